//! A pretend `/etc/pve`: real files in a directory of their own, written the way Proxmox writes them.
//!
//! In come configurations; out comes a tree whose `.vmlist` and `.version` count as pmxcfs counts, and whose `.members` says
//! whether there is a quorum, if it is told so. What it does not pretend: other nodes' writes without an inotify event (open
//! the inventory without events for that), and modes, which tell of a quorum too: a link's is what it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::rsa::Rsa;
use openssl::sign::Verifier;
use openssl::x509::extension::SubjectAlternativeName;
use openssl::x509::{X509, X509NameBuilder};
use pve_imds_model::vm::VmId;
use serde_json::json;
use tempfile::TempDir;

use crate::pve::Settings;

pub mod store;

/// A tree like `/etc/pve`; gone when dropped. `vmid`s are plain numbers, because names that are no VMID are tried too.
#[derive(Debug)]
pub struct PveTree {
    root: TempDir,
    node: String,
    layout: Layout,
    start_time: u64,
    count: u64,
    guests: BTreeMap<u32, Guest>,
    files: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Guest {
    node: String,
    kind: &'static str,
    version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Counted,
    Nodes,
    Plain,
}

impl PveTree {
    /// As on a node of a cluster: `nodes/<node>/qemu-server`, `.vmlist`, `.version`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn cluster(node: &str) -> io::Result<Self> {
        Self::new(node, Layout::Counted)
    }

    /// A cluster's directories, and nobody who counts: no `.vmlist`, no `.version`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn uncounted(node: &str) -> io::Result<Self> {
        Self::new(node, Layout::Nodes)
    }

    /// Nothing but `qemu-server`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn plain(node: &str) -> io::Result<Self> {
        Self::new(node, Layout::Plain)
    }

    fn new(node: &str, layout: Layout) -> io::Result<Self> {
        let root = tempfile::Builder::new().prefix("imdst-pve-").tempdir()?;
        let (guests, files) = (BTreeMap::new(), BTreeMap::new());
        let tree = Self { root, node: node.to_owned(), layout, start_time: 1000, count: 0, guests, files };
        tree.make()?;
        Ok(tree)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Settings for an inventory of this tree.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings { dir: self.path().to_owned(), node: self.node.clone(), ..Settings::default() }
    }

    /// The file of a VM, whether it exists or not.
    #[must_use]
    pub fn config(&self, vmid: u32) -> PathBuf {
        let node = self.guests.get(&vmid).map_or(&self.node, |guest| &guest.node);
        self.configs(node).join(format!("{vmid}.conf"))
    }

    /// A VM appears on this node, or its configuration is replaced as Proxmox does it: another file, then renamed.
    ///
    /// # Errors
    /// A file cannot be written; so for all that follow.
    pub fn put(&mut self, vmid: u32, config: &str) -> io::Result<()> {
        let path = self.config(vmid);
        let temporary = path.with_extension(format!("conf.tmp.{}", process::id()));
        fs::write(&temporary, config)?;
        fs::rename(&temporary, &path)?;
        self.counted(vmid, 1)?;
        told(&path)
    }

    /// Many VMs appear on this node at once.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn put_many(&mut self, configs: impl IntoIterator<Item = (u32, String)>) -> io::Result<()> {
        for (vmid, config) in configs {
            fs::write(self.config(vmid), config)?;
            self.count += 1;
            self.guests.insert(vmid, Guest { node: self.node.clone(), kind: "qemu", version: self.count });
        }
        self.write_status()
    }

    /// The file itself is written over, as editors and shells do it.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn put_in_place(&mut self, vmid: u32, config: &str) -> io::Result<()> {
        let path = self.config(vmid);
        fs::write(&path, config)?;
        self.counted(vmid, 2)?;
        told(&path)
    }

    /// The configuration goes to another node, as the last step of a migration.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn migrate(&mut self, vmid: u32, node: &str) -> io::Result<()> {
        let from = self.config(vmid);
        fs::create_dir_all(self.configs(node))?;
        let to = self.configs(node).join(format!("{vmid}.conf"));
        fs::rename(from, &to)?;
        if let Some(guest) = self.guests.get_mut(&vmid) {
            node.clone_into(&mut guest.node);
        }
        self.counted(vmid, 2)?;
        told(&to)
    }

    /// The VM is gone.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn remove(&mut self, vmid: u32) -> io::Result<()> {
        let path = self.config(vmid);
        self.guests.remove(&vmid);
        self.count += 1;
        self.write_status()?;
        fs::remove_file(path)
    }

    /// A file of the whole cluster is written: `user.cfg`, `datacenter.cfg`.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn put_file(&mut self, name: &str, text: &str) -> io::Result<()> {
        let temporary = self.path().join(format!("{name}.tmp.{}", process::id()));
        fs::write(&temporary, text)?;
        let path = self.path().join(name);
        fs::rename(temporary, &path)?;
        self.count_file(name)?;
        told(&path)
    }

    /// Such a file is removed.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn remove_file(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path().join(name))?;
        self.count_file(name)
    }

    /// The node is one of a cluster's, with a majority here or elsewhere.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn set_quorum(&self, quorate: bool) -> io::Result<()> {
        let local = self.path().join("local");
        if !local.is_symlink() {
            symlink(format!("nodes/{}", self.node), local)?;
        }
        let names = fs::read_dir(self.path().join("nodes"))?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: Vec<_> = names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect();
        let nodes: serde_json::Map<_, _> =
            (1..).zip(&names).map(|(id, name)| (name.clone(), json!({ "id": id, "online": 1 }))).collect();
        let cluster =
            json!({ "name": "pretend", "version": names.len(), "nodes": names.len(), "quorate": u8::from(quorate) });
        let members = json!({ "nodename": self.node, "version": 1, "cluster": cluster, "nodelist": nodes });
        self.status(".members", &members)
    }

    /// The number is a container's from now on.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn make_container(&mut self, vmid: u32) -> io::Result<()> {
        if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.kind = "lxc";
        }
        self.counted(vmid, 1)
    }

    /// pmxcfs stops: an empty directory is left. The returned contents are for [`PveTree::start`].
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn stop(&mut self) -> io::Result<Stopped> {
        let kept = TempDir::new()?;
        for entry in fs::read_dir(self.path())? {
            let entry = entry?;
            fs::rename(entry.path(), kept.path().join(entry.file_name()))?;
        }
        Ok(Stopped(kept))
    }

    /// pmxcfs starts again: all counters begin anew.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn start(&mut self, stopped: &Stopped) -> io::Result<()> {
        for entry in fs::read_dir(stopped.0.path())? {
            let entry = entry?;
            fs::rename(entry.path(), self.path().join(entry.file_name()))?;
        }
        self.start_time += 1;
        self.count = 0;
        for guest in self.guests.values_mut() {
            self.count += 1;
            guest.version = self.count;
        }
        self.write_status()
    }

    /// A node gets another private key, of a kind that is made quickly and signs no tokens (Proxmox's are RSA).
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn put_key(&self, node: &str) -> io::Result<()> {
        let dir = self.path().join("nodes").join(node);
        fs::create_dir_all(&dir)?;
        // In place, as Proxmox does.
        fs::write(dir.join("pve-ssl.key"), key_pem()?)
    }

    /// A node gets a private key of Proxmox's kind and its certificate, or others. The first is returned.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn put_identity(&self, node: &str) -> io::Result<Vec<u8>> {
        let dir = self.path().join("nodes").join(node);
        fs::create_dir_all(&dir)?;
        let key = rsa_key_pem(2048)?;
        fs::write(dir.join("pve-ssl.key"), &key)?;
        fs::write(dir.join("pve-ssl.pem"), certificate_pem(&key)?)?;
        Ok(key)
    }

    /// A node has a key that signs nothing, and no certificate.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn spoil_identity(&self, node: &str) -> io::Result<()> {
        self.put_key(node)?;
        fs::remove_file(self.path().join("nodes").join(node).join("pve-ssl.pem"))
    }

    /// It has none any more.
    ///
    /// # Errors
    /// As [`PveTree::put`].
    pub fn remove_key(&self, node: &str) -> io::Result<()> {
        fs::remove_file(self.path().join("nodes").join(node).join("pve-ssl.key"))
    }

    fn make(&self) -> io::Result<()> {
        fs::create_dir_all(self.configs(&self.node))?;
        if self.layout != Layout::Plain {
            let dir = self.path().join("nodes").join(&self.node);
            fs::write(dir.join("pve-ssl.key"), node_key())?;
            fs::write(dir.join("pve-ssl.pem"), certificate_pem(node_key())?)?;
        }
        self.write_status()
    }

    fn configs(&self, node: &str) -> PathBuf {
        match self.layout {
            Layout::Plain => self.path().join("qemu-server"),
            Layout::Counted | Layout::Nodes => self.path().join("nodes").join(node).join("qemu-server"),
        }
    }

    /// A write of `vmid`'s file has happened; `by` is what pmxcfs adds for its kind.
    fn counted(&mut self, vmid: u32, by: u64) -> io::Result<()> {
        self.count += by;
        let node = self.node.clone();
        let guest = self.guests.entry(vmid).or_insert_with(|| Guest { node, kind: "qemu", version: 0 });
        guest.version = self.count;
        self.write_status()
    }

    fn count_file(&mut self, name: &str) -> io::Result<()> {
        *self.files.entry(name.to_owned()).or_default() += 1;
        self.write_status()
    }

    fn write_status(&self) -> io::Result<()> {
        if self.layout != Layout::Counted {
            return Ok(());
        }
        let guest = |guest: &Guest| json!({ "node": guest.node, "type": guest.kind, "version": guest.version });
        let ids: serde_json::Map<_, _> = self.guests.iter().map(|(id, it)| (id.to_string(), guest(it))).collect();
        self.status(".vmlist", &json!({ "version": self.count, "ids": ids }))?;
        let mut version =
            json!({ "starttime": self.start_time, "vmlist": self.count, "user.cfg": 0, "datacenter.cfg": 0 });
        for (name, count) in &self.files {
            version[name] = json!(count);
        }
        self.status(".version", &version)
    }

    /// Readers see one status or the other, never half of one.
    fn status(&self, name: &str, value: &serde_json::Value) -> io::Result<()> {
        let temporary = self.path().join(format!("{name}.tmp"));
        fs::write(&temporary, value.to_string())?;
        fs::rename(temporary, self.path().join(name))
    }
}

/// What a stopped pmxcfs will show again.
#[derive(Debug)]
pub struct Stopped(TempDir);

/// A new private key, PEM.
///
/// # Errors
/// OpenSSL makes none.
pub fn key_pem() -> Result<Vec<u8>, ErrorStack> {
    let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    PKey::from_ec_key(EcKey::generate(&curve)?)?.private_key_to_pem_pkcs8()
}

/// An RSA key, PEM, the same for as long as this process lives: making one takes long.
#[must_use]
pub fn node_key() -> &'static [u8] {
    static KEY: LazyLock<Vec<u8>> = LazyLock::new(|| rsa_key_pem(2048).unwrap_or_default());
    &KEY
}

/// A new RSA key, PEM.
///
/// # Errors
/// OpenSSL makes none.
pub fn rsa_key_pem(bits: u32) -> Result<Vec<u8>, ErrorStack> {
    PKey::from_rsa(Rsa::generate(bits)?)?.private_key_to_pem_pkcs8()
}

/// Header and payload of a compact JWS that was signed with that key (`RS256`). `None`: it was not.
#[must_use]
pub fn read_token(key: &[u8], token: &str) -> Option<(serde_json::Value, serde_json::Value)> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, payload) = signed.split_once('.')?;
    let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
    let read = |part: &str| serde_json::from_slice(&decode(part)?).ok();
    let key = PKey::private_key_from_pem(key).ok()?;
    let mut verifier = Verifier::new(MessageDigest::sha256(), &key).ok()?;
    let is_good = verifier.verify_oneshot(&decode(signature)?, signed.as_bytes()).ok()?;
    is_good.then(|| Some((read(header)?, read(payload)?)))?
}

/// A new certificate of that key for `localhost` and `127.0.0.1`, signed with itself, good for a day, PEM.
///
/// # Errors
/// OpenSSL makes none.
pub fn certificate_pem(key: &[u8]) -> Result<Vec<u8>, ErrorStack> {
    let key = PKey::private_key_from_pem(key)?;
    let mut certificate = X509::builder()?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_text("CN", "localhost")?;
    let name = name.build();
    let mut serial = BigNum::new()?;
    serial.rand(64, MsbOption::MAYBE_ZERO, false)?;
    certificate.set_version(2)?;
    certificate.set_serial_number(&*serial.to_asn1_integer()?)?;
    certificate.set_subject_name(&name)?;
    certificate.set_issuer_name(&name)?;
    certificate.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    certificate.set_not_after(&*Asn1Time::days_from_now(1)?)?;
    let names = SubjectAlternativeName::new()
        .dns("localhost")
        .ip("127.0.0.1")
        .build(&certificate.x509v3_context(None, None))?;
    certificate.append_extension(names)?;
    certificate.set_pubkey(&key)?;
    certificate.sign(&key, MessageDigest::sha256())?;
    certificate.build().to_pem()
}

/// A small but complete configuration: a name, an UUID and one NIC, all told apart by `vmid`; `notes` becomes the Notes.
#[must_use]
pub fn sample_config(vmid: VmId, notes: &str) -> String {
    let number = vmid.get();
    let mut config = String::new();
    for line in notes.lines() {
        config += &format!("#{}\n", line.replace('%', "%25").replace(':', "%3A"));
    }
    let mac = format!("BC:24:11:{:02X}:{:02X}:{:02X}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff);
    config
        + &format!(
            "memory: 512\nname: vm{number}\nnet0: virtio={mac},bridge=vmbr0\nostype: l26\n\
             smbios1: uuid=00000000-0000-4000-8000-{number:012}\n"
        )
}

/// Has inotify say once more that the file was written. pmxcfs knows a file and its count at once and says so afterwards;
/// here somebody may have looked between the two, and would hear of the second from nobody.
fn told(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path).map(drop)
}
