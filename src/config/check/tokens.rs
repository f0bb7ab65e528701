//! `jwtsvid.*` and `identity.*`: what identity tokens say and what they are signed with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pve_imds_datasources::TokenRules;
use pve_imds_datasources::backends::pve::Signing;
use pve_imds_model::identity::{Audience, Issuer, Lifetime, MAX_AUDIENCE, Owners, Template, TrustDomain};

use crate::config::schema::Config;

/// Both.
pub(super) fn tokens(config: &Config, wrong: &mut Vec<String>) -> (TokenRules, Signing) {
    let said = &config.jwtsvid;
    let mut read = |key: &str, error: &dyn std::fmt::Display| wrong.push(format!("{key}: {error}"));
    let trust_domain = TrustDomain::parse(&said.trust_domain);
    let template = Template::parse(&said.subject_template);
    let owners = Owners::parse(config.identity.uuid_owner.iter().map(String::as_str));
    trust_domain.as_ref().err().into_iter().for_each(|error| read("jwtsvid.trust_domain", error));
    template.as_ref().err().into_iter().for_each(|error| read("jwtsvid.subject_template", error));
    owners.as_ref().err().into_iter().flatten().for_each(|error| read("identity.uuid_owner", error));
    let lifetime = humantime::parse_duration(&said.token_ttl).ok().filter(|ttl| ttl.subsec_nanos() == 0);
    let lifetime = lifetime.and_then(|ttl| Lifetime::new(ttl.as_secs()));
    if lifetime.is_none() {
        wrong.push(format!("jwtsvid.token_ttl must be 1s to 1h in whole seconds (5m, 90s), not {:?}", said.token_ttl));
    }
    let issuer = Some(&said.issuer).filter(|text| !text.is_empty()).and_then(|text| {
        Issuer::parse(text).map_err(|error| wrong.push(format!("jwtsvid.issuer {error}: {text:?}"))).ok()
    });
    let mut audiences = Vec::new();
    for name in &said.audiences {
        match Audience::parse(name) {
            Some(audience) => audiences.push(audience),
            None => wrong.push(format!("jwtsvid.audiences: {name:?} is not 1 to {MAX_AUDIENCE} printable characters")),
        }
    }
    for (key, path) in [("private_key_path", &said.private_key_path), ("nodes_dir", &said.nodes_dir)] {
        if !path.is_empty() && !Path::new(path).is_absolute() {
            wrong.push(format!("jwtsvid.{key} must be an absolute path, or empty for Proxmox's own"));
        }
    }
    let lifetime = lifetime.unwrap_or_default();
    let path = |text: &str| Some(text).filter(|text| !text.is_empty()).map(PathBuf::from);
    let rules = TokenRules {
        trust_domain: trust_domain.unwrap_or_default(),
        template: template.unwrap_or_default(),
        issuer,
        audiences: Some(audiences).filter(|audiences| !audiences.is_empty()),
        lifetime,
        owners: owners.unwrap_or_default(),
    };
    let signing = Signing {
        private_key: path(&said.private_key_path),
        nodes_dir: path(&said.nodes_dir),
        lifetime: Duration::from_secs(lifetime.seconds().into()),
    };
    (rules, signing)
}
