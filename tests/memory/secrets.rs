//! What operators see of secrets, with a store that answers: `view` with and without them, and `doctor`.

use std::fs;

use pve_imds_datasources::backends::testing::PveTree;
use pve_imds_datasources::backends::testing::store::{Authority, Failure, Store};
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
        let authority = Authority::new().unwrap();
        let store = Store::start(&authority).unwrap();
        store.token(TOKEN, &["kv/data/pve-imds/pools/*"]);
        store.put(PATH, json!({ "a": VALUE, "n": 1 }));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), TOKEN).unwrap();
        fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
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
