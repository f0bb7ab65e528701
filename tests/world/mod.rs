//! A pretend node in a network namespace of its own: a bridge, an `/etc/pve`, a BPF file system, the daemon, guests.
//!
//! Everything that the kernel keeps carries the prefix [`PREFIX`] and is swept when a [`Node`] is made and when it is
//! dropped, so a killed run cannot fail the next one. No frame leaves these namespaces.
#![allow(dead_code, reason = "each tier uses its part")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the kernel's time is not tokio's, it cannot be paused"
)]

pub mod capture;
pub mod chatter;
pub mod crowd;
pub mod dhcp;
pub mod figures;
pub mod flood;
pub mod frames;
pub mod machine;
pub mod memory;
pub mod pmxcfs;
pub mod probe;
pub mod rogue;
pub mod sink;
pub mod tap;
pub mod watch;
pub mod wire;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pve_imds_datasources::backends::testing::{PveTree, sample_config};
use pve_imds_model::vm::VmId;
use pve_imds_transport::bpf::METADATA_MAC;

/// Ours, in the kernel's tables.
pub const PREFIX: &str = "imdstk";

/// Where the files of all nodes are.
const RUN: &str = "/run/imdstk";

/// The daemon's management address inside the node's namespace.
pub const MANAGEMENT: &str = "127.0.0.1:9100";

/// Anything that takes longer than this here has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a command that must succeed; its standard output.
pub fn run(command: &str) -> String {
    let output = sh(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that may fail.
pub fn sh(command: &str) -> Output {
    Command::new("bash").args(["-c", command]).stdin(Stdio::null()).output().unwrap()
}

/// Waits until `probe` yields something; what it waited for is named when it never does.
#[track_caller]
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, probe)
}

/// The same for what takes its time.
#[track_caller]
pub fn until_within<T>(patience: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(begun.elapsed() < patience, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A namespace that goes when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new(name: &str) -> Self {
        let name = format!("{PREFIX}-{name}");
        run(&format!("ip netns add {name} && ip -n {name} link set lo up"));
        Self { name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ip -n <this> …`
    pub fn ip(&self, arguments: &str) -> String {
        run(&format!("ip -n {} {arguments}", self.name))
    }

    /// A command that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    /// Runs a shell line inside; it must succeed.
    pub fn run(&self, line: &str) -> String {
        run(&format!("ip netns exec {} bash -c '{line}'", self.name))
    }

    /// No interface here, now or later, speaks IPv6 by itself.
    pub fn without_ipv6(&self) {
        self.run("for of in all default; do echo 1 > /proc/sys/net/ipv6/conf/$of/disable_ipv6; done");
    }

    /// Moves the thread that calls it inside, for good; so do threads that thread starts.
    pub fn door(&self) -> impl FnOnce() + Send + 'static {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        move || {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
        }
    }

    /// Runs `f` inside, on a thread of its own.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let enter = self.door();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter();
                f()
            });
            thread.join().unwrap()
        })
    }

    /// The index of an interface here.
    pub fn index(&self, interface: &str) -> u32 {
        let json: serde_json::Value =
            serde_json::from_str(&run(&format!("ip -n {} -j link show dev {interface}", self.name))).unwrap();
        json[0]["ifindex"].as_u64().unwrap().try_into().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        sh(&format!("ip netns del {}", self.name));
    }
}

/// Removes what a killed run left. Processes in our namespaces are ours.
fn sweep() {
    let names = run("ip netns list");
    for name in names.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| name.starts_with(PREFIX))
    {
        for pid in run(&format!("ip netns pids {name}")).split_whitespace() {
            sh(&format!("kill -9 {pid}"));
        }
        forget(name);
        run(&format!("ip netns del {name}"));
    }
    // The last one first: it may be in another.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for place in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).filter(|place| place.starts_with(RUN)) {
        run(&format!("umount {place}"));
    }
    let _ = fs::remove_dir_all(RUN);
}

/// Removes the claim of a daemon that was killed in this namespace, and its directory unless somebody else has something there.
fn forget(namespace: &str) {
    let claim = format!("/run/pve-imds/net-$(stat -Lc %i /run/netns/{namespace})");
    sh(&format!("rm -rf {claim} {claim}.sock; rmdir /run/pve-imds"));
}

/// The node.
pub struct Node {
    pub namespace: Namespace,
    pub tree: PveTree,
    daemon: Option<Child>,
    starts: u32,
}

impl Node {
    /// A node with a bridge `vmbr0` and no guest. The daemon is not started.
    pub fn new() -> Self {
        sweep();
        fs::create_dir_all(Self::dir().join("bpf")).unwrap();
        run(&format!("mount -t bpf {PREFIX} {RUN}/bpf"));
        let namespace = Namespace::new("node");
        namespace.ip("link add vmbr0 type bridge");
        namespace.ip("link set vmbr0 up");
        let tree = PveTree::cluster("pve1").unwrap();
        let node = Self { namespace, tree, daemon: None, starts: 0 };
        fs::write(node.config(), node.settings()).unwrap();
        node
    }

    /// A node whose daemon serves and guards one guest, of VM 101.
    pub fn serving_one() -> (Self, Guest) {
        let mut node = Self::new();
        node.vm(101);
        let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
        node.start();
        node.await_guard("tap101i0");
        (node, guest)
    }

    pub fn dir() -> PathBuf {
        PathBuf::from(RUN)
    }

    pub fn pin_dir() -> PathBuf {
        Self::dir().join("bpf")
    }

    /// The same directory as the daemon sees it: `ip netns exec` gave that mounts of its own.
    pub fn inner_pin_dir(&self) -> PathBuf {
        let dir = Self::pin_dir();
        Path::new("/proc").join(self.pid().to_string()).join("root").join(dir.strip_prefix("/").unwrap())
    }

    /// Every pin that the daemon has when it guards these, as it sees them.
    pub fn expected_pins(&self, guests: &[Guest]) -> Vec<PathBuf> {
        let of_guest = |guest: &Guest| {
            let index = self.namespace.index(&guest.tap());
            ["steer", "shield"].map(|program| format!("{index}-{program}"))
        };
        let names = guests.iter().flat_map(of_guest).chain(["return".to_owned(), "funnel".to_owned()]);
        names.map(|name| self.inner_pin_dir().join(name)).collect()
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        Self::dir().join("config.yaml")
    }

    pub fn settings(&self) -> String {
        format!(
            "pve_dir: {}\nnode_name: pve1\nlog_level: debug\nmanagement: {{listen: '{MANAGEMENT}'}}\n\
             datapath: {{pin_dir: {RUN}/bpf, device_prefix: {PREFIX}-, accept_kinds: [tun, veth]}}\n",
            self.tree.path().display()
        )
    }

    /// Gives a VM a configuration with its number in the Notes.
    pub fn vm(&mut self, vmid: u32) {
        let notes = format!("<!--#user-data\n{}\n-->", user_data(vmid));
        self.tree.put(vmid, &sample_config(VmId::new(vmid).unwrap(), &notes)).unwrap();
    }

    /// A command line of the product, in the node's namespace.
    pub fn product(&self, arguments: &[&str]) -> Output {
        let mut command = self.namespace.command(env!("CARGO_BIN_EXE_pve-imds"));
        // The one that reads no configuration.
        if !arguments.starts_with(&["guard", "attach"]) {
            command.arg("--config").arg(self.config());
        }
        command.args(arguments).output().unwrap()
    }

    /// Starts the daemon and waits until it serves.
    pub fn start(&mut self) {
        self.launch();
        until("the daemon is healthy", || {
            if let Some(status) = self.daemon.as_mut().unwrap().try_wait().unwrap() {
                panic!("the daemon ended ({status}):\n{}", fs::read_to_string(self.log()).unwrap());
            }
            self.management("/healthz").filter(|text| text == "ok\n")
        });
    }

    /// Starts the daemon.
    pub fn launch(&mut self) {
        self.starts += 1;
        let log = File::create(self.log()).unwrap();
        let mut command = self.namespace.command(env!("CARGO_BIN_EXE_pve-imds"));
        command.arg("--config").arg(self.config()).arg("serve").stdout(Stdio::null()).stderr(log);
        self.daemon = Some(command.spawn().unwrap());
    }

    /// What the daemon logged since its last start.
    pub fn log(&self) -> PathBuf {
        Self::dir().join(format!("log-{}", self.starts))
    }

    /// Where root asks the daemon.
    pub fn socket(&self) -> PathBuf {
        let inode = run(&format!("stat -Lc %i /run/netns/{}", self.namespace.name()));
        PathBuf::from(format!("/run/pve-imds/net-{}.sock", inode.trim()))
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    /// Whether there is one.
    pub fn is_running(&self) -> bool {
        self.daemon.is_some()
    }

    /// Ends the daemon with this signal and waits until it is gone.
    pub fn stop(&mut self, signal: &str) {
        let mut daemon = self.daemon.take().unwrap();
        run(&format!("kill -{signal} {}", daemon.id()));
        daemon.wait().unwrap();
    }

    /// Asks the management listener.
    pub fn management(&self, path: &str) -> Option<String> {
        let url = format!("http://{MANAGEMENT}{path}");
        let output = self.namespace.command("curl").args(["-sf", "-m", "5", &url]).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The value of one metric.
    pub fn metric(&self, name: &str) -> f64 {
        // A machine that is busy with other things may let it wait for longer than `curl` does.
        let text = until("the metrics are read", || self.management("/metrics"));
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit(' ').next()).map_or(0.0, |value| value.parse().unwrap())
    }

    /// How often an interface was guarded since the start.
    pub fn guarded(&self) -> f64 {
        self.metric("pve_imds_guard_attachments_total{result=\"guarded\"}")
    }

    /// Whether both programs are pinned for this interface.
    pub fn is_guarded(&self, interface: &str) -> bool {
        let index = self.namespace.index(interface);
        ["steer", "shield"].iter().all(|program| Self::pin_dir().join(format!("{index}-{program}")).exists())
    }

    /// How many links are pinned for interfaces.
    pub fn pins() -> usize {
        let names = fs::read_dir(Self::pin_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains('-')).count()
    }

    /// Waits until the interface is guarded.
    pub fn await_guard(&self, interface: &str) {
        until(&format!("{interface} is guarded"), || self.is_guarded(interface).then_some(()));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the daemon's last words");
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
        sh(&format!("umount {RUN}/bpf; rm -rf {RUN}"));
        forget(self.namespace.name());
    }
}

/// A guest that is a kernel of its own: a namespace with `eth0`.
pub struct Guest {
    pub namespace: Namespace,
    pub vmid: u32,
    relay: Option<tap::Relay>,
}

/// How a guest is plugged into the node.
#[derive(Clone, Copy, Debug)]
pub enum Plug {
    /// A veth pair, as containers have.
    Veth,
    /// A tap with this many queues, held open by a process that plays QEMU.
    Tap(usize),
    /// A tap whose guest tags all its frames with this VLAN.
    Tagged(u16),
}

impl Guest {
    /// Plugs a guest in as `tap<vmid>i0`, on the bridge, with this address.
    pub fn plug(node: &Node, vmid: u32, plug: Plug, address: &str) -> Self {
        let guest = Self::born(node, vmid, plug, address);
        guest.join(node);
        guest
    }

    /// The same, with its interface still down and on no bridge.
    pub fn born(node: &Node, vmid: u32, plug: Plug, address: &str) -> Self {
        let namespace = Namespace::new(&format!("g{vmid}"));
        let (outside, node_ns) = (format!("tap{vmid}i0"), &node.namespace);
        let relay = match plug {
            Plug::Veth => {
                node_ns.ip(&format!("link add {outside} type veth peer name eth0 netns {}", namespace.name()));
                None
            }
            Plug::Tap(queues) => Some((queues, None)),
            Plug::Tagged(vlan) => Some((1, Some(vlan))),
        };
        Self::wire(node, vmid, namespace, relay, address)
    }

    /// A veth guest whose interface on the node has this index.
    pub fn plug_at(node: &Node, vmid: u32, index: u32, address: &str) -> Self {
        let namespace = Namespace::new(&format!("g{vmid}"));
        let (outside, inside) = (format!("tap{vmid}i0"), namespace.name());
        node.namespace.ip(&format!("link add {outside} index {index} type veth peer name eth0 netns {inside}"));
        let guest = Self::wire(node, vmid, namespace, None, address);
        guest.join(node);
        guest
    }

    /// Raises its interface, on the bridge.
    pub fn join(&self, node: &Node) {
        node.namespace.ip(&format!("link set {} up master vmbr0", self.tap()));
    }

    fn wire(node: &Node, vmid: u32, namespace: Namespace, relay: Option<(usize, Option<u16>)>, address: &str) -> Self {
        let (outside, node_ns) = (format!("tap{vmid}i0"), &node.namespace);
        let relay =
            relay.map(|(queues, vlan)| tap::Relay::start((node_ns, &outside), (&namespace, "eth0"), queues, vlan));
        namespace.ip(&format!("link set eth0 address {} up", Self::mac(vmid)));
        namespace.ip(&format!("addr add {address} dev eth0"));
        Self { namespace, vmid, relay }
    }

    /// The process that holds the guest's tap.
    pub fn relay(&self) -> &tap::Relay {
        self.relay.as_ref().unwrap()
    }

    /// A way to send frames of a test's own making on the guest's link.
    pub fn link(&self) -> wire::Wire {
        match &self.relay {
            Some(relay) => relay.wire(),
            None => wire::Wire::packet(&self.namespace, "eth0"),
        }
    }

    /// Puts the metadata address into the guest's neighbour table for good, as after a migration: it never asks for it.
    pub fn knows_us(&self) {
        let mac = METADATA_MAC.map(|byte| format!("{byte:02x}")).join(":");
        self.namespace.ip(&format!("neigh replace 169.254.169.254 lladdr {mac} dev eth0 nud permanent"));
    }

    /// Its interface on the node.
    pub fn tap(&self) -> String {
        format!("tap{}i0", self.vmid)
    }

    pub fn mac(vmid: u32) -> String {
        format!("bc:24:11:{:02x}:{:02x}:{:02x}", vmid >> 16 & 0xff, vmid >> 8 & 0xff, vmid & 0xff)
    }

    /// `curl` inside the guest; status and body. `None` without an answer.
    pub fn curl(&self, arguments: &[&str], path: &str) -> Option<(u16, String)> {
        let url = format!("http://169.254.169.254{path}");
        let mut command = self.namespace.command("curl");
        command.args(["-s", "-m", "5", "-w", "\n%{http_code}"]).args(arguments).arg(url);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n')?;
        let status = status.parse().ok().filter(|status| *status != 0)?;
        output.status.success().then(|| (status, body.to_owned()))
    }

    /// Waits for an answer: the guest's kernel may still be sulking about the silence before.
    pub fn await_answer(&self) {
        until("the guest is answered", || self.curl(&["--connect-timeout", "1"], "/nocloud/"));
    }

    /// The body of a 200.
    #[track_caller]
    pub fn get(&self, path: &str) -> String {
        match self.curl(&[], path) {
            Some((200, body)) => body,
            other => panic!("guest {} asked {path}: {other:?}", self.vmid),
        }
    }

    /// What only this guest's user data says.
    pub fn user_data(&self) -> String {
        user_data(self.vmid)
    }

    /// The four files are this guest's own.
    #[track_caller]
    pub fn has_its_own_files(&self) {
        let vmid = self.vmid;
        let meta = format!("instance-id: \"00000000-0000-4000-8000-{vmid:012}\"\nlocal-hostname: \"vm{vmid}\"\n");
        assert_eq!(self.get("/nocloud/meta-data"), meta);
        assert_eq!(self.get("/nocloud/user-data"), self.user_data());
        assert_eq!(self.get("/nocloud/vendor-data"), "");
        let network = self.get("/nocloud/network-config");
        assert!(network.contains(&format!("macaddress: \"{}\"", Self::mac(vmid))), "{network}");
    }
}

/// What only this VM's user data says.
pub fn user_data(vmid: u32) -> String {
    format!("#cloud-config\nhostname: only-for-{vmid}")
}

/// Files of the tests.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}
