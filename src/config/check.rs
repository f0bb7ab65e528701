//! From what was written to what is meant: a [`Config`] in, a [`Checked`] or every complaint out.
//!
//! Everything past start-up takes a [`Checked`], so that "an address", "a prefix that fits an interface's name" and
//! "nothing that this version cannot do" are types and not habits.

mod secrets;
mod tokens;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use pve_imds_datasources::TokenRules;
use pve_imds_datasources::backends::pve::{self as backend, Look, Signing};
use pve_imds_model::chain;
use pve_imds_model::exclude::{Bridge, Exclude, Tag};
use pve_imds_model::pools::PoolId;
use pve_imds_model::request::Emulation;
use pve_imds_model::vendor::Files;
use pve_imds_model::vm::VmId;
use pve_imds_observability::{Format, LEVELS, LevelError, check_endpoint, check_level};

pub use self::secrets::SecretStore;
use self::secrets::secrets;
use self::tokens::tokens;
use super::ConfigError;
use super::layers::Layers;
use super::schema::{self, Config};
use super::words::{Kinds, choose, nearest, suggestion};

/// A configuration that can be run.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The tree of configurations.
    pub pve_dir: PathBuf,
    /// This node.
    pub node_name: String,
    /// What VMs are shown unless they say otherwise.
    pub emulation: Emulation,
    /// Filter of the log.
    pub log_level: String,
    /// Form of the log.
    pub log_format: Format,
    /// Where metrics and health are asked for.
    pub management: Option<SocketAddr>,
    /// Where the key set is fetched from outside.
    pub publication: Option<SocketAddr>,
    /// Guests that are neither guarded nor served.
    pub exclude: Exclude,
    /// Names guests may ask for besides ours.
    pub allowed_hosts: Vec<String>,
    /// Where links are pinned.
    pub pin_dir: PathBuf,
    /// How our devices' names begin.
    pub device_prefix: String,
    /// Link kinds of guests' interfaces.
    pub accept_kinds: Kinds,
    /// `/nocloud/` is served.
    pub nocloud_enabled: bool,
    /// Proxmox's own cloud-init options are heeded.
    pub cloudinit_enabled: bool,
    /// The node's files of vendor data, as they were at start.
    pub vendor: Arc<Files>,
    /// What identity tokens say.
    pub token_rules: Arc<TokenRules>,
    /// What they are signed with.
    pub signing: Signing,
    /// Where secrets come from, and whose they are; `None`: none are rendered.
    pub secrets: Option<SecretStore>,
    /// Where traces go.
    pub otlp_endpoint: Option<String>,
}

impl Checked {
    /// Whether there is a tree at all, for those who are going to read it, and what speaks against its being the one that
    /// is meant, if anything does. That is no mistake: pmxcfs may be starting, and what should be in it is not there yet.
    ///
    /// # Errors
    /// [`ConfigError::Tree`].
    pub fn tree(&self) -> Result<Option<String>, ConfigError> {
        let (dir, node) = (self.pve_dir.display(), &self.node_name);
        Ok(match Look::at(&self.pve_dir, node) {
            Look::Missing => return Err(ConfigError::Tree(self.pve_dir.clone())),
            Look::Fine => None,
            Look::Empty => {
                Some(format!("pve_dir: {dir} holds neither .vmlist nor nodes nor qemu-server; is pve-cluster running?"))
            }
            Look::NoSuchNode(others) => Some(format!(
                "node_name: {dir}/nodes has no {node:?}, only {others:?}; this node's own name is meant (pvecm status)"
            )),
        })
    }
}

/// `IFNAMSIZ` without the final NUL: what an interface's name holds (netdevice(7)).
const INTERFACE_NAME: usize = 15;

/// Checks everything and reports everything that is wrong, not only the first.
///
/// # Errors
/// One sentence for each complaint, each naming its key.
pub(super) fn check(layers: &Layers, config: &Config, host: &str) -> Result<Checked, Vec<String>> {
    let mut wrong = Vec::new();
    unavailable(config, &mut wrong);
    let emulation = word("emulate", &config.emulate, EMULATIONS, &mut wrong);
    let log_format = word("log.format", &config.log.format, FORMATS, &mut wrong);
    let exclude = exclude(&config.guests.exclude, &mut wrong);
    let management = management(layers, config, &mut wrong);
    let publication = publication(config, management, &mut wrong);
    if config.pve_dir.is_empty() {
        wrong.push("pve_dir must name a directory".into());
    }
    let pin_dir = PathBuf::from(&config.datapath.pin_dir);
    if !pin_dir.is_absolute() {
        wrong.push("datapath.pin_dir must be an absolute path".into());
    }
    let prefix = &config.datapath.device_prefix;
    let fits = (1..INTERFACE_NAME).contains(&prefix.len());
    if !fits || !prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) || prefix.starts_with("tap") {
        wrong.push(format!(
            "datapath.device_prefix must be 1 to {} letters, digits, '-', '_' or '.' and not begin with \"tap\"",
            INTERFACE_NAME - 1
        ));
    }
    let accept_kinds = Kinds::read(config.datapath.accept_kinds.iter().map(String::as_str));
    if let Err(error) = &accept_kinds {
        wrong.push(format!("datapath.accept_kinds {error}"));
    }
    if let Err(error) = check_level(&config.log_level) {
        let meant = match &error {
            LevelError::Unknown(word) => nearest(word, LEVELS.iter().copied()),
            LevelError::Directive(..) => None,
        };
        wrong.push(format!("log_level: {}{}", chain(&error), suggestion(meant)));
    }
    let known = targets();
    for target in strange_targets(&config.log_level, &known) {
        let meant = suggestion(nearest(target, known.iter().map(String::as_str)));
        wrong.push(format!("log_level: nothing here logs as {target:?}{meant}"));
    }
    let endpoint = &config.otlp.endpoint;
    if let Some(error) = check_endpoint(endpoint).err().filter(|_| !endpoint.is_empty()) {
        wrong.push(format!("otlp.endpoint: {error}"));
    }
    let node_name = match config.node_name.as_str() {
        "" => host.split('.').next().unwrap_or_default().to_owned(),
        name => name.to_owned(),
    };
    if !backend::is_node_name(&node_name) {
        // A full host name is what most of the world calls a machine's name.
        let first = node_name.split('.').next().filter(|first| *first != node_name && backend::is_node_name(first));
        let meant = suggestion(first);
        wrong.push(format!("node_name must be this node's name under /etc/pve/nodes, not {node_name:?}{meant}"));
    }
    let (token_rules, signing) = tokens(config, &mut wrong);
    let secrets = secrets(&config.secrets, &mut wrong);
    for name in config.http.allowed_hosts.iter().filter(|name| !is_host_name(name)) {
        wrong.push(format!("http.allowed_hosts must be names alone, without scheme, port, path or *: no {name:?}"));
    }
    let accept_kinds = match (accept_kinds, wrong.is_empty()) {
        (Ok(kinds), true) => kinds,
        _ => return Err(wrong),
    };
    Ok(Checked {
        pve_dir: config.pve_dir.clone().into(),
        node_name,
        emulation,
        log_level: config.log_level.clone(),
        log_format,
        management,
        publication,
        exclude,
        allowed_hosts: config.http.allowed_hosts.clone(),
        pin_dir,
        device_prefix: prefix.clone(),
        accept_kinds,
        nocloud_enabled: config.nocloud.enabled,
        cloudinit_enabled: config.cloudinit.enabled,
        // Whoever opens files puts them here.
        vendor: Arc::default(),
        token_rules: token_rules.into(),
        signing,
        secrets,
        otlp_endpoint: Some(endpoint.clone()).filter(|endpoint| !endpoint.is_empty()),
    })
}

/// The crates whose lines are told apart by their names, behind ours and `_`.
const CRATES: &[&str] = &["backends", "bpf", "datasources", "middleware", "model", "observability", "transport"];

/// What this crate's own lines are told apart by, behind its name and `::`.
const OWN: &[&str] = &["access", "app", "audit", "secrets"];

fn targets() -> Vec<String> {
    let own = OWN.iter().map(|own| format!("pve_imds::{own}"));
    own.chain(CRATES.iter().map(|name| format!("pve_imds_{name}"))).collect()
}

/// The targets in a filter that are meant to be ours and are not. A filter goes for all targets that begin with its own, so
/// the beginning of one of ours will do.
fn strange_targets<'a>(level: &'a str, known: &[String]) -> Vec<&'a str> {
    let targets = level.split(',').filter_map(|word| Some(word.split_once('=')?.0.trim()));
    let ours = |target: &str| {
        let below = |known: &str| target.strip_prefix(known).is_some_and(|rest| rest.starts_with("::"));
        known.iter().any(|known| known.starts_with(target) || below(known))
    };
    targets.filter(|target| target.starts_with("pve") && !target.contains('[') && !ours(target)).collect()
}

const EMULATIONS: &[(&str, Emulation)] =
    &[("auto", Emulation::Auto), ("openstack", Emulation::Openstack), ("ec2", Emulation::Ec2)];

const FORMATS: &[(&str, Format)] =
    &[("auto", Format::Auto), ("journald", Format::Journald), ("text", Format::Text), ("json", Format::Json)];

/// An option that is one of these words; after a complaint, some value.
fn word<T: Copy + Default>(key: &str, text: &str, words: &[(&'static str, T)], wrong: &mut Vec<String>) -> T {
    choose(text, words).unwrap_or_else(|why| {
        wrong.push(format!("{key} {why}"));
        T::default()
    })
}

/// What can stand in `Host` before the port. Anything else would be allowed and never asked for.
fn is_host_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn management(layers: &Layers, config: &Config, wrong: &mut Vec<String>) -> Option<SocketAddr> {
    let (key, text) = match (config.metrics_addr.as_str(), config.management.listen.as_str()) {
        ("", listen) => ("management.listen", listen),
        (old, _) if layers.is_default("management.listen") => ("metrics_addr", old),
        (old, listen) if old == listen => ("management.listen", listen),
        _ => {
            wrong.push("metrics_addr is the old name of management.listen; set only one of them".into());
            return None;
        }
    };
    if text.is_empty() {
        return None;
    }
    // The old option took ":9100" for every address; the new one wants it said.
    let every = key == "metrics_addr" && text.starts_with(':');
    let full = if every { format!("0.0.0.0{text}") } else { text.to_owned() };
    match full.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            wrong.push(format!("{key} must be an address and a port (127.0.0.1:9100), not {text:?}"));
            None
        }
    }
}

fn publication(config: &Config, management: Option<SocketAddr>, wrong: &mut Vec<String>) -> Option<SocketAddr> {
    let text = &config.jwks.listen;
    if text.is_empty() {
        return None;
    }
    let address = text.parse().ok();
    match address {
        None => wrong.push(format!("jwks.listen must be an address and a port (0.0.0.0:8444), not {text:?}")),
        same if same == management => {
            wrong.push(format!("jwks.listen and management.listen are both {text}; set another"))
        }
        Some(_) => {}
    }
    address
}

/// Who is left out. What Proxmox would not take for a name can match nobody: whoever wrote it meant something else.
fn exclude(written: &schema::Exclude, wrong: &mut Vec<String>) -> Exclude {
    fn each<T: Ord, W: std::fmt::Debug>(
        key: &str,
        what: &str,
        written: &[W],
        parse: impl Fn(&W) -> Option<T>,
        wrong: &mut Vec<String>,
    ) -> BTreeSet<T> {
        let mut read = BTreeSet::new();
        for item in written {
            match parse(item) {
                Some(item) => _ = read.insert(item),
                None => wrong.push(format!("guests.exclude.{key}: {item:?} is no {what}")),
            }
        }
        read
    }
    Exclude {
        vmids: each("vmids", "VMID; those are 100 to 999999999", &written.vmids, |it| VmId::new(*it), wrong),
        pools: each("pools", "pool's path (lab, lab/a)", &written.pools, |it| PoolId::parse(it), wrong),
        tags: each("tags", "tag", &written.tags, |it| Tag::parse(it), wrong),
        bridges: each("bridges", "interface's name", &written.bridges, |it| Bridge::parse(it), wrong),
    }
}

/// Options whose part of the product is not in this version. Accepting them in silence would be a promise.
fn unavailable(config: &Config, wrong: &mut Vec<String>) {
    if config.pxe.enabled {
        wrong.push("pxe.enabled is set, but this version has no such function yet; leave it out".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(file: &str) -> Result<Checked, Vec<String>> {
        let mut layers = Layers::defaults();
        assert_eq!(layers.file(file.as_bytes()), []);
        check(&layers, &layers.config().unwrap(), "pve1.example.com")
    }

    #[test]
    fn the_defaults_can_be_run() {
        let checked = checked("").unwrap();
        assert_eq!(checked.node_name, "pve1");
        assert_eq!(checked.management, Some(([127, 0, 0, 1], 9100).into()));
        assert_eq!(checked.device_prefix, "imds-");
        assert!(checked.nocloud_enabled);
    }

    #[test]
    fn each_complaint_names_its_key() {
        for (file, key) in [
            ("emulate: gcp", "emulate"),
            ("log: {format: xml}", "log.format"),
            ("management: {listen: somewhere}", "management.listen"),
            ("management: {listen: ':9100'}", "management.listen"),
            ("metrics_addr: x", "metrics_addr"),
            ("metrics_addr: 127.0.0.1:1\nmanagement: {listen: '127.0.0.1:2'}", "metrics_addr"),
            ("pve_dir: ''", "pve_dir"),
            ("node_name: a/b", "node_name"),
            ("node_name: pve1.example.com", "node_name"),
            ("http: {allowed_hosts: ['']}", "http.allowed_hosts"),
            ("http: {allowed_hosts: ['http://imds']}", "http.allowed_hosts"),
            ("http: {allowed_hosts: [imds, 'imds:80']}", "http.allowed_hosts"),
            ("http: {allowed_hosts: ['*.example.org']}", "http.allowed_hosts"),
            ("datapath: {pin_dir: bpf}", "datapath.pin_dir"),
            ("datapath: {device_prefix: ''}", "datapath.device_prefix"),
            ("datapath: {device_prefix: fifteen-letters}", "datapath.device_prefix"),
            ("datapath: {device_prefix: 'a b'}", "datapath.device_prefix"),
            ("datapath: {device_prefix: tap1i}", "datapath.device_prefix"),
            ("datapath: {accept_kinds: []}", "datapath.accept_kinds"),
            ("datapath: {accept_kinds: ['']}", "datapath.accept_kinds"),
            ("datapath: {accept_kinds: [tap]}", "datapath.accept_kinds"),
            ("datapath: {accept_kinds: [tun, bridge]}", "datapath.accept_kinds"),
            ("otlp: {endpoint: 'https://x'}", "otlp.endpoint"),
            ("otlp: {endpoint: 'http://user@x'}", "otlp.endpoint"),
            ("log_level: inof", "log_level"),
            ("log_level: 'info,pve_imds::acess=warn'", "log_level"),
            ("pxe: {enabled: true}", "pxe.enabled"),
            ("jwks: {listen: ':1'}", "jwks.listen"),
            ("jwks: {listen: pve1}", "jwks.listen"),
            ("jwks: {listen: '127.0.0.1:9100'}", "jwks.listen and management.listen"),
            ("jwtsvid: {issuer: 'http://pve1'}", "jwtsvid.issuer must begin with https://: \"http://pve1\""),
            ("jwtsvid: {issuer: 'https://pve1/'}", "jwtsvid.issuer must not end in a slash"),
            ("jwtsvid: {token_ttl: 0s}", "jwtsvid.token_ttl"),
            ("jwtsvid: {token_ttl: 61m}", "jwtsvid.token_ttl"),
            ("jwtsvid: {token_ttl: '1500ms'}", "jwtsvid.token_ttl"),
            ("jwtsvid: {token_ttl: soon}", "jwtsvid.token_ttl"),
            ("jwtsvid: {trust_domain: Prod}", "jwtsvid.trust_domain"),
            ("jwtsvid: {subject_template: '{host}'}", "jwtsvid.subject_template"),
            ("jwtsvid: {audiences: [a, '']}", "jwtsvid.audiences: \"\""),
            ("jwtsvid: {private_key_path: pve-ssl.key}", "jwtsvid.private_key_path"),
            ("jwtsvid: {nodes_dir: nodes}", "jwtsvid.nodes_dir"),
            ("identity: {uuid_owner: ['106']}", "identity.uuid_owner: \"106\""),
            ("guests: {exclude: {vmids: [100, 99]}}", "guests.exclude.vmids: 99 is no VMID"),
            ("guests: {exclude: {pools: [lab, lab//a]}}", "guests.exclude.pools: \"lab//a\""),
            ("guests: {exclude: {tags: [lab, -a]}}", "guests.exclude.tags: \"-a\""),
            ("guests: {exclude: {bridges: [vmbr0, sixteen--letters]}}", "guests.exclude.bridges: \"sixteen--letters\""),
        ] {
            let wrong = checked(file).unwrap_err();
            assert!(wrong.len() == 1 && wrong[0].starts_with(key), "{file}: {wrong:?}");
        }
    }

    #[test]
    fn a_word_that_is_nearly_right_is_told() {
        for (file, meant) in [
            (
                "otlp: {endpoint: 'https://x'}",
                "otlp.endpoint: `https://x` must start with http://; for TLS let a collector on this node speak it",
            ),
            ("otlp: {endpoint: 'localhost:4318'}", "otlp.endpoint: `localhost:4318` must start with http://"),
            (
                "log_level: 'info,pve_imds::acess=warn'",
                "log_level: nothing here logs as \"pve_imds::acess\"; did you mean pve_imds::access?",
            ),
            (
                "log_level: 'info,pve-imds_backends=debug'",
                "log_level: nothing here logs as \"pve-imds_backends\"; did you mean pve_imds_backends?",
            ),
            ("emulate: openstak", "emulate must be auto, openstack or ec2, not \"openstak\"; did you mean openstack?"),
            (
                "log: {format: JSON}",
                "log.format must be auto, journald, text or json, not \"JSON\"; did you mean json?",
            ),
            ("log: {format: ''}", "log.format must be auto, journald, text or json, not \"\""),
            (
                "log_level: inof",
                "log_level: log level `inof` is none of off, error, warn, info, debug, trace; did you mean info?",
            ),
            (
                "log_level: warning",
                "log_level: log level `warning` is none of off, error, warn, info, debug, trace; did you mean warn?",
            ),
            (
                "datapath: {accept_kinds: [tap]}",
                "datapath.accept_kinds must be tun or veth, not \"tap\"; did you mean tun?",
            ),
            (
                "node_name: pve1.example.com",
                "node_name must be this node's name under /etc/pve/nodes, not \"pve1.example.com\"; did you mean pve1?",
            ),
        ] {
            assert_eq!(checked(file).unwrap_err(), [meant], "{file}");
        }
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        assert_eq!(checked("emulate: x\npve_dir: ''\nlog: {format: x}").unwrap_err().len(), 3);
    }

    #[test]
    fn whoever_is_left_out_is_named_in_proxmoxs_words() {
        let file = "guests: {exclude: {vmids: [106, 106], pools: [lab/a], tags: [lab], bridges: [vmbr0]}}";
        let exclude = checked(file).unwrap().exclude;
        let counts = (exclude.vmids.len(), exclude.pools.len(), exclude.tags.len(), exclude.bridges.len());
        assert_eq!(counts, (1, 1, 1, 1));
        assert!(checked("").unwrap().exclude.is_empty());
    }

    #[test]
    fn a_filter_may_name_what_logs() {
        for level in [
            "warn,pve_imds_backends=debug",
            "info,pve_imds::access=warn",
            "info,pve_imds=debug,pve_imds::app::guard=trace",
            "info,pve_imds_mid=debug,hyper=warn",
            "info,[request]=debug",
            "info,pve_imds[request]=debug",
        ] {
            assert_eq!(checked(&format!("log_level: '{level}'")).unwrap().log_level, level);
        }
    }

    #[test]
    fn who_verifies_is_told_where_and_by_whom() {
        let checked = checked("jwks: {listen: '[::]:8444'}\njwtsvid: {issuer: 'https://pve1:8444'}").unwrap();
        assert_eq!(checked.publication.unwrap().port(), 8444);
        assert_eq!(checked.token_rules.issuer.as_ref().unwrap().as_str(), "https://pve1:8444");
    }

    #[test]
    fn the_old_name_still_works() {
        assert_eq!(checked("metrics_addr: ':9200'").unwrap().management, Some(([0, 0, 0, 0], 9200).into()));
        assert_eq!(checked("management: {listen: ''}").unwrap().management, None);
    }
}
