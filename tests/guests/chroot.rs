//! A machine that boots Debian's own cloud-init in a chroot: of Debian 12 (22.4) and of Debian 13 (25.1), in each dialect.
//!
//! In comes a VM that is plugged in; out comes what a boot left on the machine's disk: who cloud-init thinks it is, what it
//! has done, which network it wrote down. The boot is `tests/guest/cloud-init.sh`; a machine that is booted again has the
//! same disk. Which datasource it looks for stands in its SMBIOS fields and nowhere else.

use std::fs;
use std::path::PathBuf;

use crate::table::Dialect;
use crate::world::{Guest, Node, Plug, script};

const ADDRESS: &str = "169.254.1.2/16";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Debian12,
    Debian13,
}

impl Release {
    pub const BOTH: [Self; 2] = [Self::Debian12, Self::Debian13];

    /// Old machines are plugged in as containers are, new ones as QEMU's.
    fn plug(self) -> Plug {
        match self {
            Self::Debian12 => Plug::Veth,
            Self::Debian13 => Plug::Tap(1),
        }
    }

    pub fn tree(self) -> PathBuf {
        let name = match self {
            Self::Debian12 => "debian12",
            Self::Debian13 => "debian13",
        };
        let tree = script("../target/guest").join(name);
        assert!(tree.exists(), "no {}; run: tests/guest/debian.sh", tree.display());
        tree
    }
}

impl Dialect {
    /// What cloud-init calls it.
    fn datasource(self) -> &'static str {
        match self {
            Self::NoCloud => "DataSourceNoCloudNet ",
            Self::OpenStack => "DataSourceOpenStack",
            Self::Ec2 => "DataSourceEc2",
            Self::Identity => panic!("cloud-init logs in nowhere"),
        }
    }

    /// What cloud-init takes for the machine's identity.
    fn instance(self, vmid: u32) -> String {
        match self {
            Self::NoCloud | Self::OpenStack | Self::Identity => self.uuid(vmid),
            Self::Ec2 => format!("i-08000{vmid:012}"),
        }
    }
}

/// A machine that can be booted again.
pub struct Machine {
    pub release: Release,
    pub dialect: Dialect,
    pub guest: Guest,
    disk: PathBuf,
}

/// What a boot left behind.
pub struct Boot {
    pub said: String,
    written: PathBuf,
}

impl Machine {
    pub fn new(node: &Node, vmid: u32, release: Release, dialect: Dialect) -> Self {
        let guest = Guest::plug(node, vmid, release.plug(), ADDRESS);
        node.await_guard(&guest.tap());
        let disk = Node::dir().join(format!("disk-{vmid}"));
        fs::create_dir_all(&disk).unwrap();
        Self { release, dialect, guest, disk }
    }

    /// Boots it to the end, whatever comes of it.
    pub fn boot(&self) -> Boot {
        let program = script("guest/cloud-init.sh");
        let mut command = self.guest.namespace.command(program.to_str().unwrap());
        command.arg(self.release.tree()).arg(&self.disk).arg(self.dialect.smbios(self.guest.vmid));
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert_ne!(output.status.code(), Some(124), "the boot never ended:\n{said}");
        assert!(said.contains("== hostname "), "the boot broke off:\n{said}");
        Boot { said, written: self.disk.join("upper") }
    }

    /// How often the daemon answered this request so: `GET /nocloud/user-data`, `503`.
    pub fn answers(&self, node: &Node, request: &str, answer: &str) -> usize {
        let log = fs::read_to_string(node.log()).unwrap();
        let (tap, request) = (self.guest.tap(), format!("{request} {answer} "));
        log.lines().filter(|line| line.contains(&format!(" {tap} ")) && line.contains(&request)).count()
    }

    /// The machine is itself: the right datasource, its own identity, nothing failed.
    #[track_caller]
    pub fn is_whole(&self, node: &Node, boot: &Boot) {
        let said = &boot.said;
        assert!(boot.datasource().starts_with(self.dialect.datasource()), "{}\n{said}", boot.datasource());
        assert!(!said.contains(": status ") && !said.contains("Traceback"), "{said}");
        let instance = self.dialect.instance(self.guest.vmid);
        assert_eq!(boot.file("var/lib/cloud/data/instance-id").as_deref(), Some(&*format!("{instance}\n")), "{said}");
        let errors = boot.result("errors");
        assert_eq!(errors, serde_json::json!([]), "{said}");
        if self.dialect == Dialect::NoCloud {
            let asked = self.answers(node, "GET /nocloud/network-config", "200") > 0;
            assert_eq!(asked, self.release == Release::Debian13, "who asks for network-config over HTTP");
        }
    }
}

impl Boot {
    /// A file that the boot wrote.
    pub fn file(&self, path: &str) -> Option<String> {
        fs::read(self.written.join(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a directory, those that the boot has made.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.written.join(path)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Whether a file that the boot wrote has these lines, all of them; of one that ends in "…" the beginning.
    #[track_caller]
    pub fn has_lines(&self, path: &str, lines: &[&str]) {
        let text = self.file(path).unwrap_or_else(|| panic!("no {path}\n{}", self.said));
        for line in lines {
            let is = |found: &str| line.strip_suffix('…').map_or(found == *line, |begin| found.starts_with(begin));
            assert!(text.lines().any(|found| is(found.trim())), "no {line:?} in {path}:\n{text}");
        }
    }

    fn result(&self, key: &str) -> serde_json::Value {
        let text = self.file("var/lib/cloud/data/result.json").unwrap_or_else(|| panic!("no result\n{}", self.said));
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["v1"][key].clone()
    }

    pub fn datasource(&self) -> String {
        self.result("datasource").as_str().unwrap_or_default().to_owned()
    }

    /// What `hostname` says at the end.
    pub fn hostname(&self) -> &str {
        self.said.lines().find_map(|line| line.strip_prefix("== hostname ")).unwrap()
    }
}
