//! What operators see of secrets, with a store that answers: `view` with and without them, and `doctor`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use pve_imds_datasources::backends::testing::PveTree;
use pve_imds_datasources::backends::testing::store::{Failure, Store};
use serde_json::json;
use tempfile::TempDir;

use crate::commands::{err, out, product};

const PATH: &str = "kv/data/pve-imds/pools/lab/worker";
const TOKEN: &str = "s.canary-token";
const VALUE: &str = "canary-value";
/// Its notes ask for a set.
const ASKS: &str = "#<!--#user-data secrets=worker\n#token%3A {{ secret \"a\" }}\n#-->\n";
const NIC: &str = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";

/// A node whose VM 106 can have its secrets.
struct Lab {
    tree: PveTree,
    store: Store,
    dir: TempDir,
    config: String,
}

impl Lab {
    fn new() -> Self {
        Self::with("")
    }

    /// With more that is said of secrets.
    fn with(more: &str) -> Self {
        let (store, _, dir) = Store::furnished(TOKEN, &["kv/data/pve-imds/pools/*"]).unwrap();
        store.put(PATH, json!({ "a": VALUE, "n": 1 }));
        // Whoever runs the tests, the service could read it.
        for (path, mode) in [(dir.path().to_owned(), 0o755), (dir.path().join("token"), 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let mut tree = PveTree::cluster("pve1").unwrap();
        tree.put(106, &format!("{ASKS}{NIC}")).unwrap();
        tree.put_file("user.cfg", "pool:lab::106,107:\n").unwrap();
        let (pve, below) = (tree.path().display(), dir.path().display());
        let config = format!(
            "pve_dir: {pve}\nnode_name: pve1\nsecrets:\n  enabled: true\n  address: {}\n  token_file: {below}/token\n  \
             ca_file: {below}/ca.pem\n{more}",
            store.url()
        );
        Self { tree, store, dir, config }
    }

    fn notes(&mut self, notes: &str) {
        self.tree.put(106, &format!("{notes}{NIC}")).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.dir.path().join(name)).unwrap();
    }

    /// Status, standard output and standard error, with nothing secret in either.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let (status, said, complained) = self.reveal(arguments);
        assert!(!said.contains("canary"), "{said}");
        (status, said, complained)
    }

    fn reveal(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = product(&self.config, arguments, &[]);
        assert!(!err(&output).contains("canary"), "{}", err(&output));
        (output.status.code(), out(&output), err(&output))
    }
}

#[test]
fn view_shows_secrets_to_who_asks_for_them_and_no_others() {
    let lab = Lab::new();
    assert_eq!(lab.run(&["view", "106"]), (Some(0), "token: REDACTED".into(), String::new()));
    let revealed = lab.reveal(&["view", "106", "--reveal"]);
    assert_eq!(revealed, (Some(0), format!("token: {VALUE}"), String::new()));
    for path in ["/latest/user-data", "/openstack/latest/user_data"] {
        assert_eq!(lab.run(&["view", "106", path]).1, "token: REDACTED");
    }
    let (status, said, _) = lab.run(&["view", "106", "-i"]);
    assert!(status == Some(0) && said.ends_with("\n\ntoken: REDACTED"), "{said}");
    let (status, _, complained) = lab.run(&["view", "106", "--sources", "--reveal"]);
    assert!(status == Some(64) && complained.contains("--reveal"), "{complained}");
}

#[test]
fn view_names_who_knows_more() {
    let mut lab = Lab::new();
    let view = |lab: &Lab, arguments: &[&str], outcome: &str| {
        let (status, said, complained) = lab.run(arguments);
        assert_eq!((status, said.as_str()), (Some(1), ""), "{complained}");
        let expected = format!("{outcome}: `pve-imds doctor {}` says why\n", arguments[1]);
        assert!(complained.ends_with(&expected), "{complained}");
    };
    lab.store.fail(Failure::Status(503));
    for arguments in [&["view", "106"][..], &["view", "106", "--reveal"], &["view", "106", "/openstack"]] {
        view(&lab, arguments, "secret_fetch_failed");
    }
    lab.store.fail(Failure::None);
    lab.store.put(PATH, json!({ "b": VALUE }));
    view(&lab, &["view", "106"], "field_missing");
    // Neither is a document that guests would not get.
    lab.store.put(PATH, json!({ "a": VALUE.repeat(10_000) }));
    lab.tree.put(106, &format!("{}{NIC}", ASKS.replace("token", &"{{ secret \"a\" }}".repeat(10)))).unwrap();
    view(&lab, &["view", "106"], "document_too_large");
    lab.tree.put(108, &format!("{ASKS}{NIC}")).unwrap();
    view(&lab, &["view", "108"], "vm_not_in_pool");
    lab.tree.put(109, &format!("{}{NIC}", ASKS.replace("worker", "a/b"))).unwrap();
    view(&lab, &["view", "109"], "set_name_invalid");
    fs::remove_file(lab.dir.path().join("token")).unwrap();
    lab.tree.put(107, &format!("{ASKS}{NIC}")).unwrap();
    view(&lab, &["view", "107"], "token_unreadable");
    lab.config = lab.config.replace("enabled: true", "enabled: false");
    view(&lab, &["view", "106"], "secrets_disabled");
}

/// The words of each line: how a link is, and which one.
fn links(said: &str) -> Vec<String> {
    said.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_chain_that_holds_is_told_link_by_link() {
    let lab = Lab::new();
    let (status, said, complained) = lab.run(&["doctor", "106"]);
    assert_eq!((status, complained.as_str()), (Some(0), ""), "{said}");
    let names = ["config", "notes", "quorum", "scope", "path", "token", "store", "fields"];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), names.len(), "{said}");
    for (line, name) in lines.iter().zip(names) {
        assert!(line.starts_with(&format!("ok    {name:<9}")), "{said}");
    }
    for expected in [
        format!("ok    config   secrets.enabled is set; the store is {}\n", lab.store.url()),
        format!("ok    notes    {}: secrets=worker, fields: 1\n", lab.tree.config(106).display()),
        "ok    scope    pool lab\n".into(),
        format!("ok    path     {PATH}\n"),
        " ms, fields: 2\n".into(),
        "ok    fields   each of the 1 is there, and text; the document has 19 bytes\n".into(),
    ] {
        assert!(said.contains(&expected), "{expected}: {said}");
    }

    let (status, said, _) = lab.run(&["doctor", "106", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    let told: Vec<_> = json.as_array().unwrap().iter().map(|link| link["link"].as_str().unwrap()).collect();
    assert_eq!((status, told), (Some(0), names.to_vec()));
    assert_eq!(json[3], json!({"link": "scope", "status": "ok", "detail": "pool lab"}));
}

/// What one does to a chain, the link that breaks, and what is said of it.
type Harm = (fn(&mut Lab), &'static str, &'static str, &'static str);

#[test]
fn the_first_link_that_is_broken_is_the_last_one_told() {
    let harms: [Harm; 14] = [
        (
            |it| it.config = it.config.replace("enabled: true", "enabled: false"),
            "config",
            "secrets_disabled",
            "set secrets.enabled",
        ),
        (|it| it.notes("#<!--#user-data secrets=a/b\n#x\n#-->\n"), "notes", "set_name_invalid", "edit the VM's Notes"),
        (|it| it.notes("#<!--#user-data secrets=a x=1\n#x\n#-->\n"), "notes", "notes_invalid", "edit the VM's Notes"),
        (|it| it.tree.put_file("user.cfg", "pool:lab::107:\n").unwrap(), "scope", "vm_not_in_pool", "pvesh set /pools"),
        (
            |it| it.tree.put_file("user.cfg", "pool:..::106:\n").unwrap(),
            "path",
            "scope_invalid",
            "give the pool or the tag another name",
        ),
        (|it| it.remove("token"), "token", "token_unreadable", "does the agent run"),
        (|it| it.write("token", ""), "token", "token_unreadable", "has its agent logged in?"),
        (|it| it.write("token", "two words"), "token", "token_unreadable", "has its agent logged in?"),
        (|it| it.store.revoke(TOKEN), "store", "secret_denied", "give the token's role a policy"),
        (|it| it.store.delete(PATH), "store", "set_missing", "bao kv undelete"),
        (|it| it.store.fail(Failure::Status(503)), "store", "secret_fetch_failed", "unseal the store"),
        (|it| it.store.stop(), "store", "secret_fetch_failed", "is secrets.address right"),
        (|it| it.store.put(PATH, json!({ "b": VALUE })), "fields", "field_missing", "bao kv patch"),
        (|it| it.store.put(PATH, json!({ "a": [VALUE] })), "fields", "field_not_string", "bao kv patch"),
    ];
    for (harm, link, outcome, mend) in harms {
        let mut lab = Lab::new();
        harm(&mut lab);
        let (status, said, complained) = lab.run(&["doctor", "106"]);
        assert_eq!(status, Some(1), "{said}{complained}");
        let mut lines: Vec<_> = said.lines().collect();
        let (mended, failed) = (lines.pop().unwrap(), lines.pop().unwrap());
        assert!(mended.starts_with("mend           ") && mended.contains(mend), "{said}");
        assert!(
            failed.starts_with(&format!("FAIL  {link:<9}")) && failed.ends_with(&format!(" ({outcome})")),
            "{said}"
        );
        assert!(lines.iter().all(|line| line.starts_with("ok  ")), "{said}");
        let reason = failed[15..].strip_suffix(&format!(" ({outcome})")).unwrap();
        assert_eq!(complained, format!("pve-imds: VM 106: {outcome}: {reason}\n"));

        let (status, said, _) = lab.run(&["doctor", "106", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&said).unwrap();
        let last = json.as_array().unwrap().last().unwrap();
        assert_eq!((status, &last["link"], &last["status"]), (Some(1), &json!(link), &json!("fail")), "{said}");
        assert_eq!(last["outcome"], json!(outcome), "{said}");
        assert!(last["mend"].as_str().unwrap().contains(mend), "{said}");
    }
}

#[test]
fn tags_and_quorum_are_links_too() {
    let mut lab = Lab::with("  path_template: kv/data/pve-imds/tags/{tag}/{name}\n");
    lab.store.token(TOKEN, &["kv/data/pve-imds/tags/*"]);
    lab.store.put("kv/data/pve-imds/tags/lab/worker", json!({ "a": VALUE }));
    let last = |lab: &Lab| {
        let (_, said, _) = lab.run(&["doctor", "106"]);
        said.lines().rfind(|line| !line.starts_with("mend ")).unwrap().to_owned()
    };
    assert!(last(&lab).ends_with("(tag_policy_unsafe)"), "{}", last(&lab));
    lab.tree.put_file("datacenter.cfg", "user-tag-access: user-allow=existing\n").unwrap();
    assert!(last(&lab).ends_with("(tag_missing)"), "{}", last(&lab));
    lab.tree.put(106, &format!("{ASKS}{NIC}tags: pve-imds-lab\n")).unwrap();
    assert!(last(&lab).ends_with("(tag_not_registered)"), "{}", last(&lab));
    let registered = "user-tag-access: user-allow=existing\nregistered-tags: pve-imds-lab\n";
    lab.tree.put_file("datacenter.cfg", registered).unwrap();
    assert!(last(&lab).starts_with("ok    fields "), "{}", last(&lab));

    let members = r#"{"nodename": "pve1", "version": 3, "cluster": {"name": "c", "version": 2, "nodes": 3, "quorate": 0}, "nodelist": {"pve1": {"id": 1, "online": 1, "ip": "192.0.2.1"}}}"#;
    fs::write(lab.tree.path().join(".members"), members).unwrap();
    assert!(last(&lab).starts_with("FAIL  quorum ") && last(&lab).ends_with("(no_quorum)"), "{}", last(&lab));
    lab.config.push_str("  require_quorum: false\n");
    let (status, said, _) = lab.run(&["doctor", "106"]);
    assert!(status == Some(0) && links(&said).contains(&"warn quorum".into()), "{said}");
}

#[test]
fn who_asks_for_no_secrets_lacks_none() {
    let mut lab = Lab::new();
    for enabled in ["true", "false"] {
        lab.config = lab.config.replace("enabled: true", &format!("enabled: {enabled}"));
        for notes in ["", "#<!--#user-data\n#{{ secret \"a\" }}\n#-->\n"] {
            lab.notes(notes);
            let (status, said, complained) = lab.run(&["doctor", "106"]);
            assert_eq!((status, links(&said), complained.as_str()), (Some(0), vec!["ok notes".into()], ""));
            assert!(said.ends_with(": its user data asks for no secrets\n"), "{said}");
        }
    }
    assert_eq!(lab.store.asked().len(), 0);
    let (status, _, complained) = lab.run(&["doctor", "109"]);
    assert!(status == Some(1) && complained.contains("VM 109: no configuration under"), "{complained}");
}

#[test]
fn a_set_that_is_named_for_nothing_is_odd() {
    let mut lab = Lab::new();
    lab.notes("#<!--#user-data secrets=worker\n#{{ secrets \"a\" }}\n#-->\n");
    let (status, said, _) = lab.run(&["doctor", "106"]);
    assert!(status == Some(0) && links(&said).contains(&"warn notes".into()), "{said}");
}

/// As the service it may be another: it owns nothing that is not root's.
#[test]
fn a_file_that_the_service_cannot_read_is_broken_or_odd() {
    let lab = Lab::new();
    let (nobody, token) = (Some(65534), lab.dir.path().join("token"));
    // Whoever else runs this has it for himself already.
    if rustix::process::getuid().is_root() {
        chown(&token, nobody, nobody).unwrap();
    }
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let (status, said, _) = lab.run(&["doctor", "106"]);
    let has_group = fs::read_to_string("/etc/group").unwrap().lines().any(|line| line.starts_with("pve-imds-token:"));
    let expected = if has_group { (Some(1), "FAIL token") } else { (Some(0), "warn token") };
    assert!(status == expected.0 && links(&said).contains(&expected.1.into()), "{said}");
    assert!(said.contains("the service cannot "), "{said}");
}
