use std::fs;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::*;
use crate::openbao::{Address, Settings as StoreSettings};
use crate::pve::{Settings as TreeSettings, Watcher};
use crate::testing::store::{Failure as Fails, Store};
use crate::testing::{PveTree, sample_config};

const TOKEN: &str = "s.canary-token";
const POOLS: &str = "kv/data/pve-imds/pools/{pool}/{name}";
const TAGS: &str = "kv/data/pve-imds/tags/{tag}/{name}";
const NOTES: &str = "<!--#user-data secrets=worker\n#cloud-config\na: {{ secret \"a\" }}\n-->";

fn vmid() -> VmId {
    VmId::new(106).unwrap()
}

/// A cluster with one VM, a store, and what renders.
struct Stage {
    tree: PveTree,
    store: Store,
    files: TempDir,
    secrets: Secrets,
    _watcher: Watcher,
}

impl Stage {
    fn new(path: &str) -> Self {
        let mut tree = PveTree::cluster("pve1").unwrap();
        tree.put(106, &config(NOTES, "pve-imds-lab")).unwrap();
        tree.put_file("user.cfg", "pool:lab::106:\n").unwrap();
        tree.put_file("datacenter.cfg", "user-tag-access: user-allow=existing\nregistered-tags: pve-imds-lab\n")
            .unwrap();
        // It looks once; everything that is seen later was read anew.
        let settings = TreeSettings { poll: Duration::from_secs(3600), events: false, ..tree.settings() };
        let (inventory, watcher) = Inventory::open(settings).unwrap();
        let (store, _, files) = Store::furnished(TOKEN, &["kv/data/pve-imds/*"]).unwrap();
        for scope in ["pools", "tags"] {
            store.put(
                &format!("kv/data/pve-imds/{scope}/lab/worker"),
                json!({ "a": "canary", "n": 1, "{{ secret \"a\" }}": "x" }),
            );
        }
        let bao = OpenBao::new(StoreSettings {
            address: Address::parse(&store.url()).unwrap(),
            namespace: None,
            authority: Some(files.path().join("ca.pem")),
            token: files.path().join("token"),
            cache: Duration::from_secs(60),
        });
        let rules = Rules {
            path: PathTemplate::parse(path).unwrap(),
            tags: TagRules { prefix: "pve-imds-".into(), require_registered: true },
            require_quorum: true,
        };
        let secrets = Secrets::new(inventory, bao, rules);
        Self { tree, store, files, secrets, _watcher: watcher }
    }

    /// The document, or the word; and what was looked for.
    async fn render(&self) -> (Result<String, &'static str>, String) {
        let rendering = self.secrets.render(vmid(), &FairTurns::default()).await;
        let shown = format!("{rendering:?}");
        assert!(!shown.contains("canary"), "{shown}");
        let looked_for = format!(
            "{} / {}",
            rendering.scope.map_or_else(|| "-".to_owned(), |scope| scope.to_string()),
            rendering.set.map_or_else(|| "-".to_owned(), |set| set.to_string())
        );
        let document = rendering.document.map_err(|error| {
            let told = format!("{error} {}", error.mend());
            assert!(!told.contains("canary") && !error.mend().is_empty(), "{told}");
            error.outcome().word()
        });
        (document.map(|document| String::from_utf8(document.as_ref().to_vec()).unwrap()), looked_for)
    }

    fn notes(&mut self, notes: &str) {
        self.tree.put(106, &config(notes, "pve-imds-lab")).unwrap();
    }

    fn tags(&mut self, tags: &str) {
        self.tree.put(106, &config(NOTES, tags)).unwrap();
    }

    fn settings(&mut self, settings: &str) {
        self.tree.put_file("datacenter.cfg", settings).unwrap();
    }

    fn put(&self, fields: Json) {
        self.store.put("kv/data/pve-imds/pools/lab/worker", fields);
    }
}

fn config(notes: &str, tags: &str) -> String {
    format!("{}tags: {tags}\n", sample_config(vmid(), notes))
}

const WHOLE: Result<&str, &str> = Ok("#cloud-config\na: canary");

/// One row for each outcome that a rendering has.
#[tokio::test]
async fn each_outcome_has_its_row() {
    type Change = fn(&mut Stage);
    for (path, change, expected, looked_for) in [
        (POOLS, (|_| {}) as Change, WHOLE, "pool lab / worker"),
        (TAGS, |_| {}, WHOLE, "tag lab / worker"),
        // What is read anew.
        (POOLS, |it| it.notes("x\n<!--#user-data secrets=worker\n-->"), Ok(""), "pool lab / worker"),
        (POOLS, |it| it.notes("<!--#user-data\nx\n-->"), Err("scope_unreadable"), "- / -"),
        (POOLS, |it| it.notes("x"), Err("scope_unreadable"), "- / -"),
        (POOLS, |it| it.tree.put_in_place(106, "").unwrap(), Err("scope_unreadable"), "- / -"),
        (POOLS, |it| it.tree.remove(106).unwrap(), Err("scope_unreadable"), "- / -"),
        (POOLS, |it| _ = it.tree.stop().unwrap(), Err("scope_unreadable"), "- / -"),
        (POOLS, |it| it.notes("<!--#user-data secrets=worker\nx"), Err("notes_invalid"), "- / -"),
        (POOLS, |it| it.notes("<!--#user-data secrets=a/b\nx\n-->"), Err("set_name_invalid"), "- / -"),
        (POOLS, |it| it.notes("<!--#user-data secrets=..\nx\n-->"), Err("set_name_invalid"), "- / -"),
        (
            POOLS,
            |it| {
                let members =
                    r#"{"nodename":"pve1","version":1,"cluster":{"name":"x","version":1,"nodes":3,"quorate":0}}"#;
                fs::write(it.tree.path().join(".members"), members).unwrap();
            },
            Err("no_quorum"),
            "- / worker",
        ),
        (POOLS, |it| it.tree.put_file("user.cfg", "pool:lab::107:\n").unwrap(), Err("vm_not_in_pool"), "- / worker"),
        (
            POOLS,
            |it| it.tree.put_file("user.cfg", "pool:lab/..::106:\n").unwrap(),
            Err("scope_invalid"),
            "pool lab/.. / worker",
        ),
        (
            POOLS,
            |it| it.tree.put_file("user.cfg", "pool:other::106:\n").unwrap(),
            Err("set_missing"),
            "pool other / worker",
        ),
        (TAGS, |it| it.tags("other"), Err("tag_missing"), "- / worker"),
        (TAGS, |it| it.tags("pve-imds-lab;pve-imds-b"), Err("tag_ambiguous"), "- / worker"),
        (TAGS, |it| it.tags("pve-imds-b"), Err("tag_not_registered"), "- / worker"),
        (TAGS, |it| it.settings("registered-tags: pve-imds-lab\n"), Err("tag_policy_unsafe"), "- / worker"),
        (TAGS, |it| it.settings("user-tag-access: user-allow=existing\n"), Err("tag_not_registered"), "- / worker"),
        (
            TAGS,
            |it| it.settings("tag-style: case-sensitive=1\nregistered-tags: pve-imds-lab\n"),
            WHOLE,
            "tag lab / worker",
        ),
        // The store.
        (
            POOLS,
            |it| fs::remove_file(it.files.path().join("token")).unwrap(),
            Err("token_unreadable"),
            "pool lab / worker",
        ),
        (POOLS, |it| it.store.fail(Fails::Status(500)), Err("secret_fetch_failed"), "pool lab / worker"),
        (POOLS, |it| it.store.stop(), Err("secret_fetch_failed"), "pool lab / worker"),
        (POOLS, |it| it.store.fail(Fails::SilentAfterRequest), Err("secret_fetch_failed"), "pool lab / worker"),
        (POOLS, |it| it.store.revoke(TOKEN), Err("secret_denied"), "pool lab / worker"),
        (POOLS, |it| it.store.delete("kv/data/pve-imds/pools/lab/worker"), Err("set_missing"), "pool lab / worker"),
        (POOLS, |it| it.notes("<!--#user-data secrets=other\nx\n-->"), Err("set_missing"), "pool lab / other"),
        (POOLS, |it| it.put(json!({ "b": "canary" })), Err("field_missing"), "pool lab / worker"),
        (POOLS, |it| it.put(json!({ "A": "canary" })), Err("field_missing"), "pool lab / worker"),
        (POOLS, |it| it.put(json!({ "a": ["canary"] })), Err("field_not_string"), "pool lab / worker"),
        (POOLS, |it| it.put(json!({ "a": null })), Err("field_not_string"), "pool lab / worker"),
        (
            POOLS,
            |it| {
                it.put(json!({ "a": "v".repeat(200 << 10) }));
                it.notes(&format!("<!--#user-data secrets=worker\n{}\n-->", "{{ secret \"a\" }}".repeat(6)));
            },
            Err("document_too_large"),
            "pool lab / worker",
        ),
        // Values are put in as they are.
        (
            POOLS,
            |it| it.put(json!({ "a": "{{ secret \"a\" }}\n\u{fc}" })),
            Ok("#cloud-config\na: {{ secret \"a\" }}\n\u{fc}"),
            "pool lab / worker",
        ),
        (POOLS, |it| it.put(json!({ "a": "" })), Ok("#cloud-config\na: "), "pool lab / worker"),
    ] {
        let mut stage = Stage::new(path);
        change(&mut stage);
        let (document, told) = stage.render().await;
        let expected = (expected.map(str::to_owned), looked_for.to_owned());
        assert_eq!((document, told), expected);
    }
}

#[tokio::test]
async fn a_field_that_was_missing_is_found_within_a_second() {
    let mut stage = Stage::new(POOLS);
    stage.notes("<!--#user-data secrets=worker\n{{ secret \"b\" }}\n-->");
    assert_eq!(stage.render().await.0, Err("field_missing"));
    stage.put(json!({ "a": "canary", "b": "canary-b" }));
    let begun = Instant::now();
    while stage.render().await.0 != Ok("canary-b".to_owned()) {
        assert!(begun.elapsed() < Duration::from_millis(1500));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_vm_that_leaves_its_scope_has_nothing_more_of_it() {
    let mut stage = Stage::new(POOLS);
    assert_eq!(stage.render().await.0.as_deref(), WHOLE.map_err(|_| &""));
    stage.tree.put_file("user.cfg", "pool:lab::107:\n").unwrap();
    assert_eq!(stage.render().await.0, Err("vm_not_in_pool"), "though the set is at hand");
}

#[tokio::test]
async fn what_is_heavy_is_filled_beside_the_runtime_and_the_same() {
    let mut stage = Stage::new(POOLS);
    let filler = "x".repeat(LIGHT);
    stage.notes(&format!("<!--#user-data secrets=worker\n{filler}{{{{ secret \"a\" }}}}\n-->"));
    assert_eq!(stage.render().await.0, Ok(format!("{filler}canary")));
}

#[tokio::test]
async fn what_is_redacted_is_whole_and_holds_no_value() {
    let stage = Stage::new(POOLS);
    let secrets = stage.secrets.clone().redacted();
    let document = secrets.render(vmid(), &FairTurns::default()).await.document.unwrap();
    assert_eq!(document.as_ref(), b"#cloud-config\na: REDACTED");
    stage.put(json!({ "b": "canary" }));
}

#[tokio::test]
async fn a_node_that_is_told_so_renders_without_a_quorum() {
    let stage = Stage::new(POOLS);
    let members = r#"{"nodename":"pve1","version":1,"cluster":{"name":"x","version":1,"nodes":3,"quorate":0}}"#;
    fs::write(stage.tree.path().join(".members"), members).unwrap();
    assert_eq!(stage.render().await.0, Err("no_quorum"));
    let rules = Rules { require_quorum: false, ..(*stage.secrets.rules).clone() };
    let stage = Stage { secrets: Secrets { rules: rules.into(), ..stage.secrets.clone() }, ..stage };
    assert_eq!(stage.render().await.0.as_deref(), WHOLE.map_err(|_| &""));
}
