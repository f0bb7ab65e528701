//! The command line without a daemon and without privileges: what it prints and how it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pve_imds_datasources::backends::testing::{PveTree, sample_config};
use pve_imds_model::vm::VmId;

/// Runs the product with this configuration and nothing of ours in the environment.
pub fn product(config: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let file = Scratch::new("config.yaml", config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pve-imds"));
    command.env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
    command.arg("--config").arg(&file.0).args(arguments).output().unwrap()
}

/// Runs the product without a configuration.
fn bare(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pve-imds"));
    command.env_clear().envs(variables.iter().copied()).stdin(Stdio::null()).args(arguments).output().unwrap()
}

/// A tree that is not there.
const NO_TREE: &str = "pve_dir: /nonexistent";

/// A file that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("imdst-{}-{number}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn usage_and_configuration_errors_end_with_64_and_name_the_key() {
    for (config, arguments, said) in [
        ("", &["fly"][..], "fly"),
        ("", &["view"], "VMID"),
        ("", &["view", "99"], "99 is no VMID"),
        ("", &["view", "web-1"], "web-1 is no VMID; VMIDs are 100 to 999999999"),
        ("", &["view", "4294967396"], "4294967396 is no VMID"),
        ("", &["view", "0106"], "0106 is no VMID"),
        ("", &["view", "+106"], "+106 is no VMID"),
        ("", &["inspect", "0106"], "0106 is no VMID"),
        ("", &["view", "100", "nocloud/"], "paths begin with /"),
        ("", &["view", "a-name"], "a-name"),
        ("", &["view", "100", "/a b"], "/a b"),
        ("", &["view", "100", "--nic", "net0"], "net0"),
        ("", &["inspect", "99"], "99 is no VMID"),
        ("", &["doctor"], "VMID"),
        ("", &["doctor", "99"], "99 is no VMID"),
        (NO_TREE, &["doctor", "100"], "pve_dir: there is no directory /nonexistent"),
        ("", &["password"], "VMID"),
        ("", &["password", "99"], "99 is no VMID"),
        ("vendor_data: {dir: /nonexistent}", &["config", "check"], "vendor_data.dir: cannot read /nonexistent"),
        ("emulate: x\nvendor_data: {dir: /nonexistent}", &["serve"], "emulate must be"),
        ("", &["guard", "attach", "tap101i0"], "guard attach reads no configuration: leave --config out"),
        ("", &["guard", "attach", "--all"], "guard attach reads no configuration: leave --config out"),
        ("", &["guard", "status", "--pin-dir", "bpf"], "absolute"),
        ("", &["guard", "remove", "--pin-dir", "bpf"], "absolute"),
        (NO_TREE, &["config", "check"], "pve_dir: there is no directory /nonexistent"),
        (NO_TREE, &["serve"], "pve_dir: there is no directory /nonexistent"),
        (NO_TREE, &["view", "100"], "pve_dir: there is no directory /nonexistent"),
        (NO_TREE, &["inspect", "100"], "pve_dir: there is no directory /nonexistent"),
        (NO_TREE, &["taps"], "pve_dir: there is no directory /nonexistent"),
        ("pve_dir: /dev/null", &["config", "check"], "pve_dir: there is no directory /dev/null"),
        ("nocluod: {}", &["config", "check"], "nocluod"),
        ("emulate: x", &["config", "check"], "emulate must be"),
        ("emulate: x", &["config", "show"], "emulate must be"),
        ("emulate: x", &["taps"], "emulate must be"),
        ("emulate: x", &["serve"], "emulate must be"),
        ("secrets: {enabled: true}", &["config", "check"], "secrets.enabled"),
        ("a: [", &["config", "check"], "config.yaml"),
    ] {
        let output = product(config, arguments, &[]);
        assert_eq!(output.status.code(), Some(64), "{config} {arguments:?}: {}", err(&output));
        assert!(err(&output).contains(said), "{config} {arguments:?}: {}", err(&output));
    }
    let variables = [("PVE_IMDS_EMULAT", "auto"), ("PVE_IMDS_NOCLOUD", "true")];
    let output = product("", &["config", "check"], &variables);
    assert_eq!(output.status.code(), Some(64));
    for said in ["did you mean PVE_IMDS_EMULATE?", "unknown environment variable PVE_IMDS_NOCLOUD"] {
        assert!(err(&output).contains(said), "{}", err(&output));
    }
}

/// It may come with pve-cluster, and so it is none of the things that are wrong.
#[test]
fn a_tree_without_this_node_is_doubted() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("pve_dir: {}\nnode_name: pve1", dir.path().display());
    let doubts = || {
        let output = product(&config, &["config", "check"], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        err(&output)
    };
    assert!(doubts().contains("warning: pve_dir: ") && doubts().contains("is pve-cluster running?"), "{}", doubts());
    fs::create_dir_all(dir.path().join("nodes/pve2/qemu-server")).unwrap();
    assert!(doubts().contains("/nodes has no \"pve1\", only [\"pve2\"]"), "{}", doubts());
    fs::create_dir_all(dir.path().join("nodes/pve1")).unwrap();
    assert_eq!(doubts(), "");
}

/// What would be accepted and leave every interface open.
#[test]
fn no_way_of_naming_no_kind_is_taken() {
    const KINDS: &str = "PVE_IMDS_DATAPATH_ACCEPT_KINDS";
    let all = ["guard", "attach", "--all"];
    let argument = ["guard", "attach", "--all", "--accept-kinds", "tap"];
    for (arguments, variable, said) in [
        (&["config", "check"][..], "", "datapath.accept_kinds names no kind: no VM's interface would be guarded"),
        (&["config", "check"], "tunn", "datapath.accept_kinds must be tun or veth, not \"tunn\"; did you mean tun?"),
        (&all, "", "--accept-kinds (PVE_IMDS_DATAPATH_ACCEPT_KINDS) names no kind: no VM's interface would be guarded"),
        (&all, "tun,bridge", "--accept-kinds (PVE_IMDS_DATAPATH_ACCEPT_KINDS) must be tun or veth, not \"bridge\""),
        (&argument, "tun", "not \"tap\"; did you mean tun?"),
    ] {
        let output = bare(arguments, &[(KINDS, variable)]);
        assert_eq!(output.status.code(), Some(64), "{arguments:?} {variable:?}: {}", err(&output));
        assert!(err(&output).contains(said), "{arguments:?} {variable:?}: {}", err(&output));
    }
    // One that is named is guarded whatever its kind, so what the variable says is none of its business.
    let named = bare(&["guard", "attach", "tap999999999i0"], &[(KINDS, "tunn")]);
    assert!(err(&named).contains("there is no interface tap999999999i0"), "{}", err(&named));
}

#[test]
fn help_and_version_end_with_0() {
    for arguments in [&["--help"][..], &["--version"], &["help", "view"], &["guard", "--help"]] {
        let output = product("", arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(out(&output).contains("pve-imds"), "{arguments:?}");
    }
}

/// What Proxmox takes and no guest can use is said wherever a VM is looked at.
#[test]
fn what_counts_and_does_nothing_is_warned_of() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    let lines = "ipconfig0: ip=dhcp\nipconfig3: ip=192.0.2.5/24\nnet0: virtio=BC:24:11:00:00:01\nsshkeys: canary%2\n";
    tree.put(100, lines).unwrap();
    let config = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());
    for arguments in [&["view", "100"][..], &["view", "100", "--sources"], &["inspect", "100"]] {
        let output = product(&config, arguments, &[]);
        let said = err(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(0), 2), "{said}");
        for warning in [
            ": line 2, column 12: `ipconfig3`: there is no `net3` that could get it\n",
            ": line 4, column 16: `sshkeys`: key 1: `%` without two hexadecimal digits behind it; ",
        ] {
            assert!(said.contains(warning), "{warning}: {said}");
        }
        assert!(!said.contains("canary"), "{said}");
    }
}

/// Who mends one thing should not meet the next only then.
#[test]
fn everything_wrong_with_a_configuration_is_said_at_once() {
    let config =
        "nocluod: {}\nnocloud: {enabled: maybe}\nemulate: x\ndatapath: {pin_dir: a}\nvendor_data: {dir: /nonexistent}";
    let variables =
        [("PVE_IMDS_LOGLEVEL", "info"), ("PVE_IMDS_CLOUDINIT_ENABLED", "yes"), ("PVE_IMDS_LOG_FORMAT", "xml")];
    for arguments in [&["config", "check"][..], &["config", "show"], &["serve"]] {
        let output = product(config, arguments, &variables);
        let said = err(&output);
        assert_eq!(output.status.code(), Some(64), "{said}");
        let expected = [
            "config.yaml: unknown option nocluod; did you mean nocloud?",
            "config.yaml: nocloud.enabled must be true or false",
            "environment: PVE_IMDS_CLOUDINIT_ENABLED must be true or false",
            "environment: unknown environment variable PVE_IMDS_LOGLEVEL; did you mean PVE_IMDS_LOG_LEVEL?",
            "emulate must be auto, openstack or ec2, not \"x\"",
            "log.format must be ",
            "datapath.pin_dir must be an absolute path",
            "vendor_data.dir: cannot read /nonexistent",
        ];
        for expected in expected {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        assert_eq!(said.lines().count(), expected.len(), "{said}");
    }
    // Of a file that is not understood nobody knows what it would have said of vendor data.
    let output = product("a: [", &["config", "check"], &[("PVE_IMDS_X", ""), ("PVE_IMDS_EMULATE", "x")]);
    assert_eq!(err(&output).lines().count(), 2, "{}", err(&output));
}

#[test]
fn the_configuration_is_shown_with_where_each_value_is_from() {
    let variables = [("PVE_IMDS_DATAPATH_PIN_DIR", "/run/x/bpf")];
    let output = product("node_name: pve7\n", &["config", "show"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    for (key, source) in
        [("node_name: pve7", "file"), ("datapath.pin_dir: /run/x/bpf", "environment"), ("pve_dir: /etc/pve", "default")]
    {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key} in {text}"));
        assert!(line.ends_with(&format!("# {source}")), "{line}");
    }
}

#[test]
fn inspect_understands_what_proxmox_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qemu-conf");
    for number in 1001..=1009 {
        let output = product("", &["inspect", folder.join(format!("{number}.conf")).to_str().unwrap()], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let mut got: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = fs::read(folder.join(format!("{number}.json"))).unwrap();
        let mut expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        for (value, informative) in [(&mut got, &["warnings", "imds"][..]), (&mut expected, &["warnings", "title"])] {
            informative.iter().for_each(|name| drop(value.as_object_mut().unwrap().remove(*name)));
        }
        assert_eq!(got, expected, "{number}");
    }
}

#[test]
fn view_and_inspect_read_the_tree() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    tree.put(100, &sample_config(VmId::new(100).unwrap(), "<!--#user-data\nhello\n-->")).unwrap();
    tree.put(101, "name: no-nic\n").unwrap();
    let config = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());

    let output = product(&config, &["view", "100"], &[]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), "hello"), "{}", err(&output));
    let output = product(&config, &["view", "100", "/nocloud/meta-data", "--include"], &[]);
    assert!(out(&output).starts_with("HTTP/1.1 200 OK\n") && out(&output).contains("instance-id:"), "{}", out(&output));
    let output = product(&config, &["inspect", "100"], &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["vmid"], &json["name"]), (&100.into(), &"vm100".into()));

    // What a node adds is its own.
    tree.put(104, "name: roaming\nnet0: virtio=BC:24:11:00:00:01\n").unwrap();
    assert_eq!(err(&product(&config, &["view", "104"], &[])), "");
    tree.migrate(104, "pve2").unwrap();
    for arguments in [&["view", "104"][..], &["view", "104", "--sources"]] {
        let output = product(&config, arguments, &[]);
        let said = "warning: VM 104 is on node pve2: this is what it would get from pve1, ";
        assert!(output.status.success() && err(&output).starts_with(said), "{}", err(&output));
    }

    tree.put(
        103,
        &sample_config(VmId::new(103).unwrap(), "<!--#userdata\nx\n-->\n<!--#network-config\nversion: 3\n-->"),
    )
    .unwrap();
    for (arguments, status) in [(["view", "103"], 0), (["inspect", "103"], 0)] {
        let output = product(&config, &arguments, &[]);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        for said in [
            "Notes, line 1, column 6: user-data: this opens no block: its name is another one",
            "Notes, line 4, column 1: network-config: ",
        ] {
            assert!(err(&output).contains(said), "{arguments:?}: {}", err(&output));
        }
    }
    for (arguments, said) in [
        (&["view", "100", "/nothing"][..], "404"),
        (&["view", "100", "--nic", "7"], "vm_unknown: the configuration of this VM has no such NIC"),
        (&["view", "101"], "VM 101 has no network interface"),
        (&["view", "102"], "VM 102: no configuration under"),
        (&["inspect", "102"], "VM 102: no configuration under"),
    ] {
        let output = product(&config, arguments, &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(err(&output).contains(said), "{arguments:?}: {}", err(&output));
    }
}

/// A line that Proxmox drops costs that line, and is named with its file; what is left is shown.
#[test]
fn what_is_malformed_is_named_with_file_line_and_mend() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    tree.put(100, "#<!--#user-data\nnonsense\nnet0: virtio=zz,bridge=vmbr0\nmemory: 512\n").unwrap();
    tree.put(101, "# cloning\nlock: clone\n").unwrap();
    tree.put(102, "").unwrap();
    fs::remove_file(tree.config(102)).unwrap();
    fs::create_dir(tree.config(102)).unwrap();
    let config = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());
    let file = |vmid| tree.config(vmid).display().to_string();
    let (broken, blank, odd) = (file(100), file(101), file(102));
    let lines = [
        format!("warning: {broken}: line 2, column 1: not a line of a configuration\n"),
        format!(
            "warning: {broken}: line 3, column 7: `net0`: `macaddr` must be a hardware address of one card, such as \
             BC:24:11:00:00:01\n"
        ),
        format!(
            "warning: {broken}: Notes, line 1, column 1: user-data: the block is not closed; end it with a line that holds"
        ),
    ];
    let nic = format!(
        "no network interface that can be read ({broken}: line 3, column 7: `net0`: `macaddr` must be a hardware address \
         of one card, such as BC:24:11:00:00:01); give it one: qm set 100 --net0"
    );
    let unread = format!("its configuration cannot be read: {odd} is not a regular file");
    for (arguments, status, said) in [
        (["inspect", "100"], 0, &lines[..]),
        (["inspect", &broken], 0, &lines),
        (["view", "100"], 1, &lines),
        (["view", "100"], 1, &[nic]),
        (["view", "101"], 1, &[format!("VM 101: {blank} has nothing in it that can be used")]),
        (["view", "102"], 1, std::slice::from_ref(&unread)),
        (["inspect", "102"], 1, std::slice::from_ref(&unread)),
    ] {
        let output = product(&config, &arguments, &[]);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", err(&output));
        for part in said {
            assert!(err(&output).contains(part.as_str()), "{arguments:?}: {part} in {}", err(&output));
        }
    }
}

#[test]
fn where_an_answer_comes_from_is_said_and_never_to_a_guest() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    let nic = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
    let notes = "#<!--#imds\n#hop_limit%3A 1\n#-->\n#<!--#network-config\n#version%3A 3\n#-->\n";
    tree.put(100, &format!("{notes}ciuser: ops\ncores: many\n{nic}")).unwrap();
    tree.put(101, &format!("tags: lab\n{nic}")).unwrap();
    let base = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());
    let config = format!("{base}guests: {{exclude: {{tags: [lab]}}}}\n");

    let output = product(&config, &["view", "100", "--sources"], &[]);
    let said = out(&output);
    let lines: Vec<String> = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "ANSWER FROM DETAIL",
            "user-data options",
            "vendor-data empty",
            "network-config default the block is broken: line 4, column 1: not a network configuration: the version is \
             neither 1 nor 2",
            "imds block hop_limit: 1",
            "nocloud default served",
            "openstack default served",
            "ec2 default served",
            "guests.exclude node not excluded",
        ],
    );
    for warning in [": line 8, column 8: ", ": Notes, line 4, column 1: network-config: "] {
        assert!(err(&output).contains(warning), "{warning}: {}", err(&output));
    }
    let output = product(&config, &["inspect", "100"], &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours = &json["imds"];
    assert_eq!(ours["sources"]["user-data"], "options");
    assert_eq!((&ours["policy"]["hop_limit"], &ours["policy"]["mac"]), (&1.into(), &"any".into()));
    assert_eq!((&ours["excluded"]["net0"], &ours["owner"]), (&serde_json::Value::Null, &"pve1".into()));
    assert_eq!(ours["warnings"].as_array().map(Vec::len), Some(2), "{ours}");

    let output = product(&config, &["view", "101"], &[]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), ""));
    assert!(err(&output).contains("leaves net0 out (tag lab)"), "{}", err(&output));
    let output = product(&config, &["view", "101", "--sources"], &[]);
    assert!(out(&output).contains("excluded (tag lab): neither guarded nor served"), "{}", out(&output));
    let output = product(&base, &["view", "100", "--include"], &[]);
    for word in ["options", "hop_limit", "broken"] {
        assert!(!out(&output).contains(word), "the guest does not hear of it: {}", out(&output));
    }
}

/// A 404 has no body, so the word is said for it.
#[test]
fn what_a_policy_withholds_is_said_with_its_word() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    let rest = "#<!--#user-data\n#x\n#-->\nipconfig0: ip=192.0.2.5/24\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
    tree.put(100, &format!("#<!--#imds\n#enabled%3A false\n#-->\n{rest}")).unwrap();
    tree.put(101, &format!("#<!--#imds\n#enabled%3A perhaps\n#-->\n{rest}")).unwrap();
    let config = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());
    for (arguments, said) in [
        (
            ["view", "100", "/nocloud/meta-data"],
            "would get 404 Not Found for /nocloud/meta-data on net0: vm_excluded: its policy says `enabled: false`\n",
        ),
        (["view", "100", "/x"], "404 Not Found for /x on net0: not_found: nothing is served there\n"),
        (
            ["view", "101", "/nocloud/meta-data"],
            "503 Service Unavailable for /nocloud/meta-data on net0: policy_invalid\n",
        ),
    ] {
        let output = product(&config, &arguments, &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(err(&output).ends_with(said), "{arguments:?}: {}", err(&output));
    }
    for (vmid, why) in [("100", "the policy says `enabled: false`"), ("101", "the policy is broken")] {
        let output = product(&config, &["view", vmid, "--sources"], &[]);
        let refused = |what: &str| format!("{what:<16} refused  {why}\n");
        for what in ["user-data", "vendor-data", "network-config", "nocloud", "openstack", "ec2"] {
            assert!(out(&output).contains(&refused(what)), "{vmid}: {}", out(&output));
        }
    }
}

/// Nothing of a 404 says which of two configurations, and which key of it, somebody has to look at.
#[test]
fn what_hides_a_dialect_is_named() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    let nic = "name: web\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
    tree.put(100, nic).unwrap();
    tree.put(101, &format!("#<!--#imds\n#ec2_tokens%3A required\n#-->\n{nic}")).unwrap();
    tree.put(102, &format!("#<!--#imds\n#emulate%3A ec2\n#-->\n{nic}")).unwrap();
    let base = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());
    let (ec2, off) = (format!("{base}emulate: ec2\n"), format!("{base}nocloud: {{enabled: false}}\n"));
    let required = "its policy says `ec2_tokens: required`, which without an `emulate` means EC2 alone";
    let emulates = "its policy says `emulate: ec2`";
    for (config, vmid, path, why) in [
        (&base, "101", "/nocloud/meta-data", required),
        (&base, "101", "/openstack", required),
        (&base, "102", "/nocloud/user-data", emulates),
        (&base, "102", "/openstack/latest/meta_data.json", emulates),
        (&ec2, "100", "/openstack", "this node's configuration says `emulate: ec2`"),
        (&off, "100", "/nocloud/meta-data", "this node's configuration says `nocloud.enabled: false`"),
        // There is none of it whatever is shown.
        (&base, "100", "/openstack/latest/user_data", "nothing is served there"),
        (&base, "101", "/latest/user-data", "nothing is served there"),
    ] {
        let output = product(config, &["view", vmid, path], &[]);
        let said = format!("404 Not Found for {path} on net0: not_found: {why}\n");
        assert!(err(&output).ends_with(&said), "{}", err(&output));
        let sources = out(&product(config, &["view", vmid, "--sources"], &[]));
        let named = sources.contains(&format!("not served: {why}\n"));
        assert_eq!(named, why != "nothing is served there", "{sources}");
    }
}

/// As a client that knows sessions; without this node's key there are none, and that is said of what was asked first.
#[test]
fn what_a_session_is_required_for_can_be_seen() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    let nic = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
    tree.put(100, &format!("#<!--#imds\n#ec2_tokens%3A required\n#-->\nname: web\n{nic}")).unwrap();
    let config = format!("pve_dir: {}\nnode_name: pve1\n", tree.path().display());
    let ask = || product(&config, &["view", "100", "/latest/meta-data/hostname"], &[]);
    let output = ask();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), "web"), "{}", err(&output));
    fs::remove_file(tree.path().join("nodes/pve1/pve-ssl.key")).unwrap();
    let output = ask();
    let said = "VM 100 would get 503 Service Unavailable for /latest/api/token on net0: node_key_unreadable: ";
    assert!(output.status.code() == Some(1) && err(&output).contains(said), "{}", err(&output));
    for said in ["/nodes/pve1/pve-ssl.key: No such file", "`pvecm updatecerts`"] {
        assert!(err(&output).contains(said), "{}", err(&output));
    }
}

/// What is asked for in words that can be meant, and is not there.
#[test]
fn what_is_not_found_ends_with_1() {
    let empty = std::env::temp_dir().join(format!("imdst-{}-empty", std::process::id()));
    fs::create_dir(&empty).unwrap();
    let config = format!("pve_dir: {}\n", empty.display());
    for (arguments, said) in [
        (&["inspect", "nope"][..], "cannot read nope: there is no such file; give a path or a VMID"),
        (
            &["inspect", "/nonexistent/100.conf"],
            "cannot read /nonexistent/100.conf: there is no such file; give a path",
        ),
        (&["inspect", "/"], "cannot read /: it is a directory; give a configuration in it"),
        (&["inspect", "/dev/zero"], "cannot read /dev/zero: larger than 1 MiB, which no configuration is"),
        (&["inspect", "100"], "is pve-cluster running?"),
        (&["view", "100"], "is pve-cluster running?"),
        (&["doctor", "100"], "is pve-cluster running?"),
        (&["guard", "status", "--pin-dir", "/nonexistent"], "mount -t bpf -o mode=0700 bpf"),
        (&["guard", "remove", "--pin-dir", "/nonexistent"], "mount -t bpf -o mode=0700 bpf"),
    ] {
        let output = product(&config, arguments, &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(said), "{arguments:?}: {}", err(&output));
    }
    // pmxcfs mounts over an empty directory and may do so later.
    let output = product(&config, &["config", "check"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    fs::remove_dir(&empty).unwrap();
    let show = product(NO_TREE, &["config", "show"], &[]);
    assert_eq!(show.status.code(), Some(0), "what is configured can be shown: {}", err(&show));
}
