//! How each client is run, and where it says what it came by.
//!
//! In comes where it stands; out comes evidence from the client's own results: files that it wrote, what it printed. How it
//! asks is its own affair. A client that ends with an error, or is not there, breaks its cell off in its own words.

use std::fs;

use serde_json::Value;

use crate::cells::{Evidence, Stand};
use crate::login;
use crate::places::{Tree, own};
use crate::table::{Dialect, Fact, Program};
use crate::world::machine::{boot, file};
use crate::world::script;

/// Has the client ask, in whatever way it does.
pub fn ask(stand: &Stand<'_>) -> Vec<Evidence> {
    match stand.cell.client.program {
        Program::CloudInit12 => cloud_init(stand, Tree::Debian12),
        Program::CloudInit13 => cloud_init(stand, Tree::Debian13),
        Program::CloudInitSid => cloud_init(stand, Tree::Sid),
        Program::Ignition => ignition(stand),
        Program::Afterburn => afterburn(stand),
        Program::CloudbaseInit => cloudbase_init(stand),
        Program::Botocore => paths(stand, Tree::Tools, "python3 /opt/ask/botocore_paths.py"),
        Program::RustSdk => {
            own("sdk", "imds-by-sdk");
            // It puts the slash before them itself.
            paths(stand, Tree::Tools, "/opt/own/imds-by-sdk")
        }
        Program::Ec2Metadata => ec2metadata(stand),
        Program::Ec2MetadataScript => ec2_metadata_script(stand),
        Program::Facter => facter(stand),
        Program::Ohai => ohai(stand),
        Program::SystemdImds => paths(stand, Tree::Sid, "sh /opt/ask/systemd_imds.sh"),
        Program::Ipxe => ipxe(stand),
        Program::OpenBao => login::ask(stand),
    }
}

impl Stand<'_> {
    /// Runs a shell line in a tree on this guest's network; what it printed.
    fn sh(&self, tree: Tree, line: &str) -> String {
        self.call("client.sh", tree, &["sh", "-ec", line])
    }

    /// Runs a script of `tests/guest` on a tree.
    fn call(&self, program: &str, tree: Tree, rest: &[&str]) -> String {
        let mut command =
            self.guest.as_ref().unwrap().namespace.command(script("guest").join(program).to_str().unwrap());
        command.arg(tree.path()).arg(&self.disk).arg(self.cell.dialect.smbios(self.vm.vmid)).args(rest);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "it ended with {}:\n{said}\n{errors}", output.status);
        said
    }

    /// A file that was written.
    fn written(&self, path: &str) -> String {
        fs::read_to_string(self.disk.join("upper").join(path)).unwrap_or_default()
    }

    fn hostname(&self, got: impl Into<String>) -> Evidence {
        Evidence { fact: Fact::Hostname, got: got.into(), wanted: self.vm.hostname() }
    }

    /// Keys one a line. cloud-init and cloudbase-init have them in no order.
    fn keys(&self, got: &str) -> Evidence {
        let mut lines: Vec<_> = got.lines().map(str::trim).collect();
        lines.sort_unstable();
        let mut wanted = self.vm.keys();
        wanted.sort_unstable();
        Evidence { fact: Fact::Keys, got: lines.join("\n"), wanted: wanted.join("\n") }
    }

    /// User data as it is.
    fn user_data(&self, got: impl Into<String>) -> Evidence {
        Evidence { fact: Fact::UserData, got: got.into(), wanted: self.vm.user_data() }
    }

    /// What came of its user data.
    fn mark(&self, got: impl Into<String>) -> Evidence {
        Evidence { fact: Fact::UserData, got: got.into(), wanted: self.vm.mark() }
    }

    fn network(&self, got: impl Into<String>, wanted: impl Into<String>) -> Evidence {
        Evidence { fact: Fact::Network, got: got.into(), wanted: wanted.into() }
    }

    /// Lines that must be there, whatever stands between them.
    fn network_lines(&self, text: &str, wanted: &[String]) -> Evidence {
        let found = wanted.iter().filter(|line| text.lines().any(|found| found.trim() == **line));
        let found: Vec<_> = found.map(String::as_str).collect();
        let got =
            if found.len() == wanted.len() { wanted.join("\n") } else { format!("{}\nof\n{text}", found.join("\n")) };
        self.network(got, wanted.join("\n"))
    }
}

fn cloud_init(stand: &Stand<'_>, tree: Tree) -> Vec<Evidence> {
    let said = stand.call("cloud-init.sh", tree, &[]);
    let result: Value = serde_json::from_str(&stand.written("var/lib/cloud/data/result.json")).unwrap();
    let source = match stand.cell.dialect {
        Dialect::NoCloud => "DataSourceNoCloudNet ",
        Dialect::OpenStack => "DataSourceOpenStackLocal ",
        Dialect::Ec2 => "DataSourceEc2Local",
        Dialect::Identity => panic!("cloud-init logs in nowhere"),
    };
    let datasource = result["v1"]["datasource"].as_str().unwrap_or_default();
    assert!(datasource.starts_with(source), "{datasource} instead of {source}:\n{said}");
    assert_eq!(result["v1"]["errors"], serde_json::json!([]), "{said}");
    let mut evidence = vec![
        stand.hostname(said.lines().find_map(|line| line.strip_prefix("== hostname ")).unwrap_or_default()),
        stand.keys(&stand.written("home/debian/.ssh/authorized_keys")),
        stand.mark(stand.written("etc/reference").trim_end()),
    ];
    let [ipv4, ipv6, mac] = stand.vm.addresses();
    let (path, wanted) = match (tree, stand.cell.dialect) {
        (Tree::Debian12, Dialect::NoCloud) => return evidence,
        (Tree::Debian12, Dialect::OpenStack) => (
            "etc/network/interfaces.d/50-cloud-init",
            vec![
                "iface eth0 inet static".to_owned(),
                format!("address {ipv4}/24"),
                "gateway 192.0.2.1".to_owned(),
                "iface eth0 inet6 static".to_owned(),
                format!("address {ipv6}/64"),
            ],
        ),
        // A card with addresses of both families asks for both; one that nothing is known of would for one only.
        (Tree::Debian12, Dialect::Ec2) => (
            "etc/network/interfaces.d/50-cloud-init",
            vec!["iface eth0 inet dhcp".to_owned(), "iface eth0 inet6 dhcp".to_owned()],
        ),
        (_, Dialect::Ec2) => {
            ("etc/systemd/network/10-cloud-init-eth0.network", vec![format!("MACAddress={mac}"), "DHCP=yes".to_owned()])
        }
        _ => (
            "etc/systemd/network/10-cloud-init-eth0.network",
            vec![
                format!("MACAddress={mac}"),
                format!("Address={ipv4}/24"),
                "Gateway=192.0.2.1".to_owned(),
                format!("Address={ipv6}/64"),
                "Gateway=2001:db8::1".to_owned(),
            ],
        ),
    };
    evidence.push(stand.network_lines(&stand.written(path), &wanted));
    evidence
}

fn ignition(stand: &Stand<'_>) -> Vec<Evidence> {
    let platform = if stand.cell.dialect == Dialect::Ec2 { "aws" } else { "openstack" };
    let said = stand.sh(
        Tree::Debian12,
        &format!(
            "mkdir -p /run/ignition /sysroot; /usr/lib/dracut/modules.d/30ignition/ignition -platform {platform} -stage fetch \
             -log-to-stdout -config-cache /run/ignition/config.json -root /sysroot"
        ),
    );
    let config: Value =
        serde_json::from_str(&stand.written("run/ignition/config.json")).unwrap_or_else(|_| panic!("{said}"));
    let source = config["storage"]["files"][0]["contents"]["source"].as_str().unwrap_or_default();
    vec![stand.mark(source.trim_start_matches("data:,"))]
}

fn afterburn(stand: &Stand<'_>) -> Vec<Evidence> {
    own("afterburn", "afterburn");
    let provider = if stand.cell.dialect == Dialect::Ec2 { "aws" } else { "openstack" };
    stand.sh(
        Tree::Tools,
        &format!(
            "useradd --create-home core; /opt/own/afterburn multi --provider {provider} --attributes=/etc/attributes \
             --hostname=/etc/of-afterburn --ssh-keys=core"
        ),
    );
    let attributes = stand.written("etc/attributes");
    let ipv4 = format!("AFTERBURN_{}_IPV4_LOCAL={}", provider.to_uppercase(), stand.vm.addresses()[0]);
    let keys = stand.written("home/core/.ssh/authorized_keys.d/afterburn");
    let keys: Vec<_> = keys.lines().filter(|line| line.starts_with("ssh-")).collect();
    vec![
        stand.hostname(stand.written("etc/of-afterburn").trim_end()),
        stand.keys(&keys.join("\n")),
        stand.network_lines(&attributes, &[ipv4]),
    ]
}

fn cloudbase_init(stand: &Stand<'_>) -> Vec<Evidence> {
    own("cloudbase-init", "cloudbase");
    let service = if stand.cell.dialect == Dialect::Ec2 { "ec2" } else { "openstack" };
    let said = stand.sh(Tree::Tools, &format!("PYTHONPATH=/opt/own/cloudbase python3 /opt/ask/cloudbase.py {service}"));
    let [ipv4, ipv6, mac] = stand.vm.addresses();
    let part = |name: &str| file(&said, name).unwrap_or_default().trim_end();
    let mut evidence =
        vec![stand.hostname(part("hostname")), stand.keys(part("keys")), stand.user_data(part("user-data"))];
    if stand.cell.dialect == Dialect::OpenStack {
        let wanted = format!("{mac} {ipv4}/24 192.0.2.1\n{mac} {ipv6}/64 2001:db8::1");
        evidence.push(stand.network(part("network"), wanted));
    }
    evidence
}

/// A client that is given paths and prints what is there. Each answer stands between the marks of [`file`].
fn paths(stand: &Stand<'_>, tree: Tree, program: &str) -> Vec<Evidence> {
    const HOSTNAME: &str = "/latest/meta-data/local-hostname";
    const KEYS: [&str; 2] =
        ["/latest/meta-data/public-keys/0/openssh-key", "/latest/meta-data/public-keys/1/openssh-key"];
    const USER_DATA: &str = "/latest/user-data";
    const IPV4: &str = "/latest/meta-data/local-ipv4";
    let said = stand.sh(tree, &format!("{program} {HOSTNAME} {} {USER_DATA} {IPV4}", KEYS.join(" ")));
    let part = |path: &str| file(&said, path).unwrap_or_default().trim_end();
    vec![
        stand.hostname(part(HOSTNAME)),
        stand.keys(&KEYS.map(part).join("\n")),
        stand.user_data(part(USER_DATA)),
        stand.network(part(IPV4), stand.vm.addresses()[0].clone()),
    ]
}

fn ec2metadata(stand: &Stand<'_>) -> Vec<Evidence> {
    let said = stand.sh(
        Tree::Debian12,
        "for name in local-hostname public-keys user-data local-ipv4; do echo \"=== $name\"; ec2metadata --$name; \
         echo \"=== end $name \"; done",
    );
    let part = |name: &str| file(&said, name).unwrap_or_default().trim_end();
    // As Python prints a list.
    let keys: Vec<_> = part("public-keys").split('\'').filter(|key| key.starts_with("ssh-")).collect();
    vec![
        stand.hostname(part("local-hostname")),
        stand.keys(&keys.join("\n")),
        stand.user_data(part("user-data")),
        stand.network(part("local-ipv4"), stand.vm.addresses()[0].clone()),
    ]
}

fn ec2_metadata_script(stand: &Stand<'_>) -> Vec<Evidence> {
    let said = stand.sh(
        Tree::Debian12,
        "for name in local-hostname public-keys user-data local-ipv4; do echo \"=== $name\"; ec2-metadata --$name; \
         echo \"=== end $name \"; done",
    );
    let part = |name: &str| {
        let text = file(&said, name).unwrap_or_default();
        text.strip_prefix(&format!("{name}: ")).unwrap_or(text).trim_end()
    };
    let keys: Vec<_> = part("public-keys").lines().filter(|line| line.starts_with("ssh-")).collect();
    vec![
        stand.hostname(part("local-hostname")),
        stand.keys(&keys.join("\n")),
        stand.user_data(part("user-data")),
        stand.network(part("local-ipv4"), stand.vm.addresses()[0].clone()),
    ]
}

fn facter(stand: &Stand<'_>) -> Vec<Evidence> {
    let said = stand.sh(Tree::Tools, "facter --json ec2_metadata ec2_userdata");
    let facts: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let [ipv4, _, mac] = stand.vm.addresses();
    let (metadata, user_data) = (&facts["ec2_metadata"], &facts["ec2_userdata"]);
    let text = |value: &Value| value.as_str().map_or_else(|| format!("{facts:#}"), str::to_owned);
    let keys = ["0", "1"].map(|number| text(&metadata["public-keys"][number]["openssh-key"]));
    let card = text(&metadata["network"]["interfaces"]["macs"][&mac]["local-ipv4s"]);
    vec![
        stand.hostname(text(&metadata["local-hostname"])),
        stand.keys(&keys.join("\n")),
        stand.user_data(text(user_data)),
        stand.network(format!("{mac} {card}"), format!("{mac} {ipv4}")),
    ]
}

fn ohai(stand: &Stand<'_>) -> Vec<Evidence> {
    let plugin = if stand.cell.dialect == Dialect::Ec2 { "ec2" } else { "openstack" };
    let said = stand.sh(
        Tree::Tools,
        &format!("mkdir -p /etc/chef/ohai/hints; echo '{{}}' >/etc/chef/ohai/hints/{plugin}.json; ohai --log_level fatal {plugin}"),
    );
    let facts: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let [ipv4, _, mac] = stand.vm.addresses();
    let text = |value: &Value| value.as_str().map_or_else(|| format!("{facts:#}"), str::to_owned);
    let keys = ["0", "1"].map(|number| text(&facts[format!("public_keys_{number}_openssh_key")]));
    let card = text(&facts["network_interfaces_macs"][&mac]["local_ipv4s"]);
    let mut evidence = vec![
        stand.hostname(text(&facts["local_hostname"])),
        stand.keys(&keys.join("\n")),
        stand.network(format!("{mac} {card}"), format!("{mac} {ipv4}")),
    ];
    if stand.cell.dialect == Dialect::Ec2 {
        evidence.push(stand.user_data(text(&facts["userdata"])));
    }
    evidence
}

fn ipxe(stand: &Stand<'_>) -> Vec<Evidence> {
    let path = match stand.cell.dialect {
        Dialect::NoCloud => "nocloud/user-data",
        Dialect::OpenStack => "openstack/latest/user_data",
        Dialect::Ec2 => "latest/user-data",
        Dialect::Identity => panic!("iPXE logs in nowhere"),
    };
    let (vmid, url) = (stand.vm.vmid, format!("http://169.254.169.254/{path}"));
    let console = boot(&stand.node.namespace, "ipxe.sh", &format!("tap{vmid}i0"), vmid, &[&url, "chain"]);
    assert!(console.contains("IMDS-IPXE done status=0"), "{console}");
    let mark = console.lines().map(str::trim).find(|line| line.starts_with("of-"));
    vec![stand.mark(mark.unwrap_or(&console))]
}
