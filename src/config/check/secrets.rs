//! `secrets.*`: where secrets come from, and whose they are.
//!
//! What is said is checked whether or not it is enabled; what has to be said, and a file that has to be there, only if it
//! is. The token's file may come later: its agent writes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pve_imds_datasources::backends::openbao::{Address, Namespace, Settings, check_authority};
use pve_imds_datasources::backends::secrets::Rules;
use pve_imds_model::exclude::Tag;
use pve_imds_model::secrets::{PathTemplate, TagRules};

use crate::config::schema;

/// Where secrets come from, and whose they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretStore {
    /// How the store is asked.
    pub settings: Settings,
    /// Which set is a VM's.
    pub rules: Rules,
}

/// A set that is used again for less than this is fetched for each request of a guest that asks all the time; for longer,
/// and what was replaced or taken away is served for all too long.
const CACHE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Both, if they are asked for.
pub(super) fn secrets(said: &schema::Secrets, wrong: &mut Vec<String>) -> Option<SecretStore> {
    let before = wrong.len();
    let mut must = |key: &str, text: &str, what: &str| {
        if said.enabled && text.is_empty() {
            wrong.push(format!("secrets.{key} must be {what}, because secrets.enabled is set"));
        }
        !text.is_empty()
    };
    let (has_address, has_token) = (
        must("address", &said.address, "the store's address (https://openbao.example.com:8200)"),
        must("token_file", &said.token_file, "the file that holds this node's token for the store"),
    );
    let address = has_address.then(|| Address::parse(&said.address));
    if let Some(Err(error)) = &address {
        wrong.push(format!("secrets.address: {error}"));
    }
    let namespace = Some(&said.namespace).filter(|text| !text.is_empty()).map(|text| Namespace::parse(text));
    if let Some(Err(error)) = &namespace {
        wrong.push(format!("secrets.namespace: {error}, not {:?}", said.namespace));
    }
    if has_token && !Path::new(&said.token_file).is_absolute() {
        wrong.push(format!("secrets.token_file must be an absolute path, not {:?}", said.token_file));
    }
    let authority = Some(&said.ca_file).filter(|text| !text.is_empty()).map(PathBuf::from);
    match &authority {
        Some(path) if !path.is_absolute() => {
            wrong.push(format!("secrets.ca_file must be an absolute path, or empty for the system's, not {path:?}"));
        }
        Some(path) if said.enabled => {
            if let Err(error) = check_authority(path) {
                wrong.push(format!("secrets.ca_file: {error}; {}", error.mend()));
            }
        }
        _ => {}
    }
    let path = PathTemplate::parse(&said.path_template);
    match &path {
        Err(error) => wrong.push(format!("secrets.path_template: {error}, not {:?}", said.path_template)),
        // Else every set would be missing, and nobody could see why.
        Ok(_) if !said.path_template.split('/').skip(1).any(|part| part == "data") => wrong.push(format!(
            "secrets.path_template is the path of the API: it has data/ behind the engine's own path (kv/data/…), not {:?}",
            said.path_template
        )),
        Ok(_) => {}
    }
    if Tag::parse(&said.tag_prefix).is_none() {
        wrong.push(format!("secrets.tag_prefix must be how a tag begins (pve-imds-), not {:?}", said.tag_prefix));
    }
    let cache = humantime::parse_duration(&said.cache_ttl).ok().filter(|ttl| CACHE.contains(ttl));
    if cache.is_none() {
        wrong.push(format!("secrets.cache_ttl must be 1s to 1h (60s, 5m), not {:?}", said.cache_ttl));
    }
    if wrong.len() > before || !said.enabled {
        return None;
    }
    Some(SecretStore {
        settings: Settings {
            address: address?.ok()?,
            namespace: namespace.and_then(Result::ok),
            authority,
            token: PathBuf::from(&said.token_file),
            cache: cache?,
        },
        rules: Rules {
            path: path.ok()?,
            tags: TagRules { prefix: said.tag_prefix.clone(), require_registered: said.require_registered_tags },
            require_quorum: said.require_quorum,
        },
    })
}

#[cfg(test)]
mod tests {
    use pve_imds_model::secrets::Kind;

    use super::*;

    fn said() -> schema::Secrets {
        schema::Secrets {
            enabled: true,
            address: "https://bao:8200".into(),
            token_file: "/run/agent/token".into(),
            ..schema::Secrets::default()
        }
    }

    /// What becomes of it: the store, and every complaint.
    fn check(change: impl Fn(&mut schema::Secrets)) -> (Option<SecretStore>, Vec<String>) {
        let (mut said, mut wrong) = (said(), Vec::new());
        change(&mut said);
        (secrets(&said, &mut wrong), wrong)
    }

    #[test]
    fn each_complaint_names_its_key() {
        type Change = fn(&mut schema::Secrets);
        for (change, expected) in [
            ((|it| it.address.clear()) as Change, "secrets.address must be the store's address"),
            (|it| it.token_file.clear(), "secrets.token_file must be the file that holds"),
            (|it| it.address = "http://bao".into(), "secrets.address: it must begin with https://"),
            (|it| it.address = "https://canary:canary@bao".into(), "secrets.address: it must be https://host"),
            (|it| it.address = "bao".into(), "secrets.address: it must be https://host"),
            (|it| it.namespace = "a b".into(), "secrets.namespace: it must be names"),
            (|it| it.token_file = "token".into(), "secrets.token_file must be an absolute path, not \"token\""),
            (|it| it.ca_file = "ca.pem".into(), "secrets.ca_file must be an absolute path"),
            (|it| it.ca_file = "/nonexistent/ca.pem".into(), "secrets.ca_file: /nonexistent/ca.pem: No such file"),
            (|it| it.ca_file = "/etc/passwd".into(), "secrets.ca_file: /etc/passwd holds no certificate"),
            (|it| it.path_template = "kv/data/{name}".into(), "secrets.path_template: it must have {name} once"),
            (
                |it| it.path_template = "kv/data/{pool}/{tag}/{name}".into(),
                "secrets.path_template: it must have {name}",
            ),
            (|it| it.path_template = "kv/data/../{pool}/{name}".into(), "secrets.path_template: it must be a path"),
            (
                |it| it.path_template = "kv/data/{pool}/{name}?version=1".into(),
                "secrets.path_template: it must be a path",
            ),
            (|it| it.path_template = "kv/data//{pool}/{name}".into(), "secrets.path_template: it must be a path"),
            (|it| it.path_template = "kv/%64ata/{pool}/{name}".into(), "secrets.path_template: it must be a path"),
            (
                |it| it.path_template = "kv/pve-imds/{pool}/{name}".into(),
                "secrets.path_template is the path of the API",
            ),
            (|it| it.path_template = "data/{pool}/{name}".into(), "secrets.path_template is the path of the API"),
            (|it| it.tag_prefix = "-x".into(), "secrets.tag_prefix must be how a tag begins"),
            (|it| it.tag_prefix.clear(), "secrets.tag_prefix must be how a tag begins"),
            (|it| it.cache_ttl = "0s".into(), "secrets.cache_ttl must be 1s to 1h"),
            (|it| it.cache_ttl = "2h".into(), "secrets.cache_ttl must be 1s to 1h"),
            (|it| it.cache_ttl = "soon".into(), "secrets.cache_ttl must be 1s to 1h"),
        ] {
            let (store, wrong) = check(change);
            assert!(store.is_none() && wrong.len() == 1 && wrong[0].starts_with(expected), "{expected}: {wrong:?}");
            assert!(!wrong[0].contains("canary"), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_not_enabled_need_not_be_there_and_must_make_sense() {
        let off = |change: fn(&mut schema::Secrets)| {
            check(|said| {
                said.enabled = false;
                change(said);
            })
        };
        for change in [
            (|_| {}) as fn(&mut schema::Secrets),
            |it| it.address.clear(),
            |it| it.token_file.clear(),
            |it| it.ca_file = "/nonexistent/ca.pem".into(),
        ] {
            assert_eq!(off(change), (None, vec![]));
        }
        assert_eq!(off(|it| it.address = "http://bao".into()).1.len(), 1);
    }

    #[test]
    fn a_store_is_as_it_is_said_to_be() {
        let (store, wrong) = check(|said| {
            said.namespace = "prod/".into();
            said.path_template = "kv/data/tags/{tag}/{name}".into();
            said.cache_ttl = "5m".into();
        });
        let SecretStore { settings, rules } = store.unwrap();
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(
            (settings.address.to_string(), settings.cache),
            ("https://bao:8200".into(), Duration::from_secs(300))
        );
        assert_eq!(settings.namespace.unwrap().as_str(), "prod");
        assert_eq!((rules.path.kind(), rules.tags.require_registered, rules.require_quorum), (Kind::Tag, true, true));
        assert_eq!(rules.tags.prefix, "pve-imds-");
    }
}
