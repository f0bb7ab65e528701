//! Vendor data of the node, from its files to each dialect, through the command line.

use std::fs;
use std::process::Output;

use pve_imds_datasources::backends::testing::PveTree;
use tempfile::TempDir;

use crate::commands::{err, out, product};

/// A node with VMs and files.
struct World {
    tree: PveTree,
    files: TempDir,
}

impl World {
    fn new(vms: &[(u32, &str)], files: &[(&str, &str)]) -> Self {
        let mut tree = PveTree::cluster("pve1").unwrap();
        for (vmid, config) in vms {
            tree.put(*vmid, &format!("net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n{config}")).unwrap();
        }
        let world = Self { tree, files: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(name, text)| fs::write(world.files.path().join(name), text).unwrap());
        world
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let (tree, files) = (self.tree.path().display(), self.files.path().display());
        let config = format!("pve_dir: {tree}\nnode_name: pve1\nvendor_data: {{dir: {files}}}\n");
        product(&config, arguments, &[])
    }

    fn view(&self, vmid: &str, path: &str) -> String {
        let output = self.run(&["view", vmid, path]);
        assert!(output.status.success(), "{}", err(&output));
        out(&output)
    }
}

const NOCLOUD: &str = "/nocloud/vendor-data";
const OPENSTACK: &str = "/openstack/latest/vendor_data.json";
const WEB: &str = "---\ntags: [web]\n---\n#cloud-config\npackages: [nginx]\n";
const LAB: &str = "---\npools: [lab]\n---\n#!/bin/sh\ntrue\n";
const OWN: &str = "#<!--#vendor-data\n##cloud-config\n#-->\n";

#[test]
fn each_dialect_carries_what_chooses_the_vm() {
    let own = format!("{OWN}tags: web\n");
    let mut world = World::new(&[(101, "tags: web\n"), (102, ""), (103, &own)], &[("20-web", WEB), ("10-lab", LAB)]);
    world.tree.put_file("user.cfg", "pool:lab::102,103:\n").unwrap();
    let web = "#cloud-config\npackages: [nginx]\n";
    assert_eq!(world.view("101", NOCLOUD), web);
    assert_eq!(world.view("102", NOCLOUD), "#!/bin/sh\ntrue\n");
    let document = world.view("103", NOCLOUD);
    let names: Vec<_> = document.lines().filter_map(|line| line.split_once("filename=")).map(|(_, it)| it).collect();
    assert_eq!(names, ["\"10-lab\"", "\"20-web\"", "\"vendor-data\""]);
    let json = |vmid| serde_json::from_str::<serde_json::Value>(&world.view(vmid, OPENSTACK)).unwrap();
    assert_eq!(json("101"), serde_json::json!({"cloud-init": web}));
    assert_eq!(json("103"), serde_json::json!({"cloud-init": document}));
    assert_eq!(world.view("103", "/openstack/latest/vendor_data2.json"), "{}");

    let row = |vmid| {
        let said = out(&world.run(&["view", vmid, "--sources"]));
        let row = said.lines().find(|line| line.starts_with("vendor-data ")).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("101"), "vendor-data node 20-web");
    assert_eq!(row("102"), "vendor-data node 10-lab");
    assert_eq!(row("103"), "vendor-data both 10-lab, 20-web");
    let inspected: serde_json::Value = serde_json::from_str(&out(&world.run(&["inspect", "103"]))).unwrap();
    assert_eq!(inspected["imds"]["vendor_files"], serde_json::json!(["10-lab", "20-web"]));
    assert_eq!(inspected["imds"]["sources"]["vendor-data"], "both");
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_line_and_nothing_starts() {
    let world = World::new(
        &[(101, "tags: web\n")],
        &[("10-web", WEB), ("20-bad", "---\ntag: [web]\n---\n#x\n"), ("30-bad", "#x\n")],
    );
    for (arguments, status) in [
        (&["config", "check"][..], 64),
        (&["config", "show"], 64),
        (&["serve"], 64),
        // Who only looks is told, and shown what is left.
        (&["view", "101", NOCLOUD], 0),
        (&["view", "101", "--sources"], 0),
        (&["inspect", "101"], 0),
        (&["taps"], 0),
    ] {
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", err(&output));
        for said in ["20-bad: an unknown key (line 2, column 1)", "30-bad: line 1: must be `---`"] {
            assert!(err(&output).contains(said), "{arguments:?}: {}", err(&output));
        }
        assert!(!err(&output).contains("10-web"), "{}", err(&output));
        let warns =
            err(&output).starts_with("warning: vendor_data.dir: ") && err(&output).contains("it is left out here");
        assert_eq!(warns, status == 0, "{}", err(&output));
    }
    assert_eq!(world.view("101", NOCLOUD), "#cloud-config\npackages: [nginx]\n");
}
