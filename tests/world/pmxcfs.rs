//! A pretend cluster file system: `/etc/pve` as a real FUSE mount, with the faults that a real one has.
//!
//! In come a cluster's files and what happens to them: other nodes write (no event here), a VM moves, a read never
//! returns, the process is killed, stopped, started again, the quorum is lost. Out goes a mount that says so as pmxcfs
//! does: status files made when their attributes are asked for, counters, modes. Programs may write here as `qm` does.
//!
//! [`protocol`] speaks with the kernel; this file is what there is to say.

mod protocol;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{PipeWriter, pipe};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use serde_json::json;

use super::{Node, PREFIX};

/// The files, and what is wrong with them.
#[derive(Debug)]
pub struct Cluster {
    /// Paths without a leading slash.
    files: BTreeMap<String, Vec<u8>>,
    /// Status files as they were made last.
    status: BTreeMap<String, Vec<u8>>,
    /// The list of VMs: node and count.
    vms: BTreeMap<u32, (String, u64)>,
    counts: BTreeMap<String, u64>,
    start_time: u64,
    count: u64,
    quorate: bool,
    /// What `.members` says of that.
    said_quorate: bool,
    /// What this is part of a path of is not answered.
    hanging: Option<String>,
    /// What this is part of a path of cannot be read (EIO).
    failing: Option<String>,
}

/// The files that nobody writes.
const STATUS: [&str; 3] = [".version", ".vmlist", ".members"];

/// This node's own, and where they lead.
const LINKS: [(&str, &str); 2] = [("local", "nodes/pve1"), ("qemu-server", "nodes/pve1/qemu-server")];

impl Cluster {
    fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            status: BTreeMap::new(),
            vms: BTreeMap::new(),
            counts: BTreeMap::from([("user.cfg".to_owned(), 0), ("datacenter.cfg".to_owned(), 0)]),
            start_time: 1000,
            count: 0,
            quorate: true,
            said_quorate: true,
            hanging: None,
            failing: None,
        }
    }

    /// A node of the cluster writes a VM's configuration.
    pub fn put(&mut self, node: &str, vmid: u32, config: &str) {
        self.write(&format!("nodes/{node}/qemu-server/{vmid}.conf"), config.as_bytes().to_vec());
    }

    /// A node of the cluster writes another file.
    pub fn put_file(&mut self, path: &str, text: &str) {
        self.write(path, text.as_bytes().to_vec());
    }

    /// The list has a VM whose file is not here yet.
    pub fn announce(&mut self, node: &str, vmid: u32) {
        self.count += 1;
        self.vms.insert(vmid, (node.to_owned(), self.count));
    }

    /// The last step of a migration, done by the node it leaves.
    pub fn migrate(&mut self, vmid: u32, node: &str) {
        let from = format!("nodes/{}/qemu-server/{vmid}.conf", self.vms[&vmid].0);
        self.rename(&from, &format!("nodes/{node}/qemu-server/{vmid}.conf"));
    }

    /// A VM is gone.
    pub fn remove(&mut self, vmid: u32) {
        let path = format!("nodes/{}/qemu-server/{vmid}.conf", self.vms[&vmid].0);
        self.unlink(&path);
    }

    /// Nothing can be written, and what others write is not seen.
    pub fn lose_quorum(&mut self) {
        self.lose_quorum_unsaid();
        self.said_quorate = false;
    }

    /// The same, and `.members` does not say so: only the modes do.
    pub fn lose_quorum_unsaid(&mut self) {
        self.quorate = false;
    }

    /// All is well again.
    pub fn regain_quorum(&mut self) {
        (self.quorate, self.said_quorate) = (true, true);
    }

    /// From now on whoever reads a path with this in it is told of an input/output error.
    pub fn fail(&mut self, part: &str) {
        self.failing = Some(part.to_owned());
    }

    /// It can be read again.
    pub fn mend(&mut self) {
        self.failing = None;
    }

    /// How often something was written below `nodes`.
    pub fn writes(&self) -> u64 {
        self.count
    }

    fn write(&mut self, path: &str, bytes: Vec<u8>) {
        self.files.insert(path.to_owned(), bytes);
        self.counted(path);
    }

    fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(bytes) = self.files.remove(from) else { return false };
        if let Some(vmid) = vmid(from) {
            self.vms.remove(&vmid);
            self.count += 1;
        }
        self.write(to, bytes);
        true
    }

    fn unlink(&mut self, path: &str) -> bool {
        let was = self.files.remove(path).is_some();
        self.counted(path);
        if let Some(vmid) = vmid(path) {
            self.vms.remove(&vmid);
        }
        was
    }

    fn counted(&mut self, path: &str) {
        if let Some(vmid) = vmid(path) {
            self.count += 1;
            let node = path.split('/').nth(1).unwrap();
            self.vms.insert(vmid, (node.to_owned(), self.count));
        }
        if let Some(count) = self.counts.get_mut(path) {
            *count += 1;
        }
    }

    /// All counters begin anew, in another order.
    fn restart(&mut self) {
        self.start_time += 1;
        self.count = self.vms.len() as u64;
        for ((_, count), new) in self.vms.values_mut().rev().zip(1..) {
            *count = new;
        }
        self.counts.values_mut().for_each(|count| *count = 0);
    }

    /// Makes a status file anew.
    fn refresh(&mut self, path: &str) {
        let text = match path {
            ".version" => {
                let mut version = json!({ "starttime": self.start_time, "clinfo": 1, "vmlist": self.count });
                for (path, count) in &self.counts {
                    version[path] = json!(count);
                }
                version
            }
            ".vmlist" => {
                let vm = |(node, count): &(String, u64)| json!({ "node": node, "type": "qemu", "version": count });
                let ids: serde_json::Map<_, _> = self.vms.iter().map(|(id, it)| (id.to_string(), vm(it))).collect();
                json!({ "version": self.count, "ids": ids })
            }
            ".members" => json!({
                "nodename": "pve1",
                "version": 1,
                "cluster": { "name": "pretend", "version": 2, "nodes": 3, "quorate": u8::from(self.said_quorate) },
                "nodelist": { "pve1": { "id": 1, "online": 1 }, "pve2": { "id": 2, "online": 1 }, "pve3": { "id": 3 } },
            }),
            _ => return,
        };
        self.status.insert(path.to_owned(), text.to_string().into_bytes());
    }
}

/// Whose configuration a path is.
fn vmid(path: &str) -> Option<u32> {
    let (_, name) = path.strip_prefix("nodes/")?.split_once("/qemu-server/")?;
    name.strip_suffix(".conf")?.parse().ok()
}

/// The mount.
pub struct Pmxcfs {
    cluster: Arc<Mutex<Cluster>>,
    /// None while it is killed or stopped.
    server: Option<Server>,
}

/// The process behind a mount, played by a thread.
struct Server {
    stop: PipeWriter,
    thread: JoinHandle<()>,
}

impl Pmxcfs {
    /// An empty cluster with the nodes `pve1`, which is this one, and `pve2`, mounted among the files of `_node`, whose
    /// birth has swept what a killed run left there.
    pub fn new(_node: &Node) -> Self {
        let base = Self::base();
        fs::create_dir_all(&base).unwrap();
        mount(PREFIX, &base, "tmpfs", MountFlags::empty(), None).unwrap();
        // What is mounted later is seen by programs that were given a copy of all mounts before.
        mount_change(&base, MountPropagationFlags::SHARED).unwrap();
        fs::create_dir_all(Self::dir()).unwrap();
        let mut fs = Self { cluster: Arc::new(Mutex::new(Cluster::new())), server: None };
        fs.start();
        fs
    }

    fn base() -> PathBuf {
        Node::dir().join("etc")
    }

    /// Where it is mounted.
    pub fn dir() -> PathBuf {
        Self::base().join("pve")
    }

    /// A file of a VM of this node.
    pub fn config(vmid: u32) -> PathBuf {
        Self::dir().join(format!("nodes/pve1/qemu-server/{vmid}.conf"))
    }

    /// The cluster, to be changed by other nodes: nothing of it raises an event here.
    pub fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }

    /// Whatever touches a path with this in it is not answered until [`Pmxcfs::release`].
    pub fn hang(&self, part: &str) {
        self.cluster().hanging = Some(part.to_owned());
    }

    /// All that waits is answered, as things are now.
    pub fn release(&self) {
        self.cluster().hanging = None;
        // Any request wakes the thread that answers.
        _ = fs::metadata(Self::dir());
    }

    /// The process is killed: the mount stays, and whoever looks is told that nobody is connected.
    pub fn kill(&mut self) {
        let Server { stop, thread } = self.server.take().unwrap();
        drop(stop);
        thread.join().unwrap();
    }

    /// What is left of the mount goes: an empty directory.
    pub fn unmount(&mut self) {
        unmount(Self::dir(), UnmountFlags::DETACH).unwrap();
        if self.server.is_some() {
            self.kill();
        }
    }

    /// The process starts, with another life's counters.
    pub fn start(&mut self) {
        self.cluster().restart();
        let device: File = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions\0", device.as_raw_fd());
        let options = std::ffi::CString::from_vec_with_nul(options.into_bytes()).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(PREFIX, Self::dir(), "fuse", flags, options.as_c_str()).unwrap();
        let (stopped, stop) = pipe().unwrap();
        let cluster = Arc::clone(&self.cluster);
        let thread = std::thread::spawn(move || protocol::serve(&device, &stopped, &cluster));
        self.server = Some(Server { stop, thread });
    }
}

impl Drop for Pmxcfs {
    fn drop(&mut self) {
        _ = unmount(Self::dir(), UnmountFlags::DETACH);
        if let Some(Server { stop, thread }) = self.server.take() {
            drop(stop);
            _ = thread.join();
        }
        _ = unmount(Self::base(), UnmountFlags::DETACH);
    }
}

/// Writes a file as Proxmox does it: another one, then renamed.
pub fn rename_over(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = PathBuf::from(format!("{}.tmp.{}", path.display(), std::process::id()));
    fs::write(&temporary, text)?;
    fs::rename(temporary, path)
}
