//! The cells of the table: each a client on a guarded interface of its own, and behind it the one reference VM.
//!
//! In come lines of [`crate::table`]; out comes for each cell what the client made of its metadata beside what it should
//! have. A cell passes if the client has come by exactly the facts that the table says, each of them right. One whose client
//! cannot be had is lacking: it has not passed.

use std::any::Any;
use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::login;
use crate::places::Lacking;
use crate::programs;
use crate::table::{CLIENTS, Client, Dialect, Fact, Program};
use crate::world::dhcp::Dhcp;
use crate::world::machine::tap;
use crate::world::{Guest, Node, Plug};

/// One client in one dialect.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub client: &'static Client,
    pub dialect: Dialect,
    reads: &'static [Fact],
}

/// The cells of the clients that are wanted, in the table's order.
pub fn cells(wanted: impl Fn(&Client) -> bool) -> Vec<Cell> {
    let clients = CLIENTS.iter().filter(|client| wanted(client));
    clients
        .flat_map(|client| client.cells.iter().map(move |&(dialect, reads)| Cell { client, dialect, reads }))
        .collect()
}

/// What became of a cell, and how long it took.
#[derive(Debug)]
pub struct Outcome {
    pub cell: Cell,
    /// Why it has not passed.
    pub result: Result<(), Failure>,
    pub took: Duration,
}

/// Why a cell has not passed.
#[derive(Debug)]
pub enum Failure {
    /// Its client cannot be had.
    Lacking(String),
    /// The client broke off, or has not what it should.
    Wrong(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Lacking(reason) | Self::Wrong(reason)) = self;
        f.write_str(reason)
    }
}

impl Failure {
    /// What a client broke off with.
    fn of(panic: Box<dyn Any + Send>) -> Self {
        match panic.downcast::<Lacking>() {
            Ok(lacking) => Self::Lacking(lacking.0),
            Err(panic) => Self::Wrong(words(panic)),
        }
    }
}

/// What a client made of a fact, and what it should have made of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Evidence {
    pub fact: Fact,
    pub got: String,
    pub wanted: String,
}

/// The reference VM. In each cell it has the same configuration but for its number and, because cloud-init asks for that,
/// the beginning of its UUID; and its user data is in the words of the client that reads it.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    pub vmid: u32,
    dialect: Dialect,
    program: Program,
}

impl Reference {
    pub fn hostname(&self) -> String {
        format!("vm{}", self.vmid)
    }

    pub fn uuid(&self) -> String {
        self.dialect.uuid(self.vmid)
    }

    /// Lines of `authorized_keys`.
    pub fn keys(&self) -> [String; 2] {
        [
            "AAAAC3NzaC1lZDI1NTE5AAAAIEkzdXtkMleT9nw0/SqkNdxsJKGBzgU0vjrrg4FBicuR",
            "AAAAC3NzaC1lZDI1NTE5AAAAIFdEpWu2wNK56zC7x2qZ4wHJwDxX81GVnQe3Z7vB2Tpo",
        ]
        .map(|key| format!("ssh-ed25519 {key} owner@{}", self.hostname()))
    }

    /// What its user data has the client do or say.
    pub fn mark(&self) -> String {
        format!("of-{}", self.hostname())
    }

    pub fn user_data(&self) -> String {
        let mark = self.mark();
        match self.program {
            Program::Ignition => format!(
                "{{\"ignition\":{{\"version\":\"3.3.0\"}},\"storage\":{{\"files\":[{{\"path\":\"/etc/reference\",\
                 \"contents\":{{\"source\":\"data:,{mark}\"}}}}]}}}}"
            ),
            Program::Ipxe => format!("#!ipxe\necho {mark}"),
            _ => format!("#cloud-config\nwrite_files:\n- {{path: /etc/reference, content: \"{mark}\\n\"}}"),
        }
    }

    /// Its IPv4 address, IPv6 address and MAC.
    pub fn addresses(&self) -> [String; 3] {
        let number = self.vmid % 100 + 10;
        [format!("192.0.2.{number}"), format!("2001:db8::{number}"), Guest::mac(self.vmid)]
    }

    fn config(&self) -> String {
        let [ipv4, ipv6, _] = self.addresses();
        let keys: String = self.keys().iter().map(|key| escaped(key) + "%0A").collect();
        let notes = format!("<!--#user-data\n{}\n-->\n", self.user_data());
        self.dialect.config(self.vmid, &notes)
            + &format!(
                "sshkeys: {keys}\nipconfig0: ip={ipv4}/24,gw=192.0.2.1,ip6={ipv6}/64,gw6=2001:db8::1\nnameserver: 192.0.2.53\n"
            )
            + &if self.dialect == Dialect::Identity { format!("tags: {}\n", login::TAG) } else { String::new() }
    }
}

/// As Proxmox writes keys into a configuration.
fn escaped(key: &str) -> String {
    key.replace('%', "%25").replace(' ', "%20").replace('+', "%2B").replace('/', "%2F").replace('@', "%40")
}

/// Where a client stands.
pub struct Stand<'a> {
    pub node: &'a Node,
    pub cell: Cell,
    pub vm: Reference,
    /// None of a machine in QEMU, which opens the tap itself.
    pub guest: Option<Guest>,
    /// What it writes.
    pub disk: PathBuf,
}

impl<'a> Stand<'a> {
    fn new(node: &'a Node, cell: Cell, vm: Reference) -> Self {
        let disk = Node::dir().join(format!("disk-{}", vm.vmid));
        fs::create_dir_all(&disk).unwrap();
        let guest = match cell.client.program {
            Program::Ipxe => {
                tap(node, &format!("tap{}i0", vm.vmid), 1);
                None
            }
            _ => Some(Guest::plug(node, vm.vmid, Plug::Veth, "169.254.1.2/16")),
        };
        Self { node, cell, vm, guest, disk }
    }

    /// Runs the client; whether it has what the table says, and rightly.
    fn judge(&self) -> Result<(), Failure> {
        let evidence = catch_unwind(AssertUnwindSafe(|| programs::ask(self))).map_err(Failure::of)?;
        self.holds(&evidence).map_err(Failure::Wrong)
    }

    /// Each fact that the table says is there and right, and no other.
    fn holds(&self, evidence: &[Evidence]) -> Result<(), String> {
        for fact in Fact::ALL {
            let found = evidence.iter().find(|evidence| evidence.fact == fact);
            match (found, self.cell.reads.contains(&fact)) {
                (Some(Evidence { got, wanted, .. }), true) if got == wanted => {}
                (Some(Evidence { got, wanted, .. }), true) => {
                    return Err(format!("{}: {got:?} instead of {wanted:?}", fact.word()));
                }
                (None, true) => return Err(format!("{}: nothing", fact.word())),
                (Some(_), false) => return Err(format!("{}: the table says that it is not read", fact.word())),
                (None, false) => {}
            }
        }
        Ok(())
    }
}

/// What a panic said.
pub fn words(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast::<String>().map(|text| *text);
    text.or_else(|panic| panic.downcast::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|_| "a panic".to_owned())
}

/// Runs these cells, so many at once; each is told to `done` when it is over. In the order they were given.
pub fn run(cells: &[Cell], at_once: usize, done: impl Fn(&Outcome) + Sync) -> Vec<Outcome> {
    let mut node = Node::new();
    let vms: Vec<_> = (301..)
        .zip(cells)
        .map(|(vmid, cell)| Reference { vmid, dialect: cell.dialect, program: cell.client.program })
        .collect();
    fs::write(node.config(), node.settings() + &login::settings()).unwrap();
    let who_log_in: Vec<_> = vms.iter().filter(|vm| vm.dialect == Dialect::Identity).copied().collect();
    login::enrol(&mut node, &who_log_in);
    for vm in &vms {
        node.tree.put(vm.vmid, &vm.config()).unwrap();
    }
    node.start();
    let _dhcp = Dhcp::start(&node, cells.len().try_into().unwrap());
    let stands: Vec<_> = cells.iter().zip(&vms).map(|(cell, vm)| Stand::new(&node, *cell, *vm)).collect();
    for vm in &vms {
        node.await_guard(&format!("tap{}i0", vm.vmid));
    }
    let (next, outcomes) = (Mutex::new(stands.iter().enumerate()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some((index, stand)) = next.lock().unwrap().next() else { return };
                    let begun = Instant::now();
                    let result = stand.judge();
                    let outcome = Outcome { cell: stand.cell, result, took: begun.elapsed() };
                    done(&outcome);
                    outcomes.lock().unwrap().push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
