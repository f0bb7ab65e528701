//! A thousand guests, as cheap as they can be made: veth pairs whose far ends share a few namespaces and one address.
//!
//! Each asks over a socket of its own that is bound to its interface, so its request and nobody else's goes there.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pve_imds_transport::bpf::METADATA_MAC;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::{Namespace, Node, probe};

/// How many namespaces they share: one asks at a time in each.
const HOUSES: u32 = 8;

/// The guests `first..first + count`.
pub struct Crowd {
    node: String,
    first: u32,
    count: u32,
    houses: Vec<Namespace>,
}

/// What came of asking on behalf of everyone.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// When each guest had its first good answer, after the beginning, sorted.
    pub times: Vec<Duration>,
    /// Bodies that were not the asking guest's.
    pub wrong: Vec<String>,
    /// Guests that were not answered in time.
    pub silent: Vec<u32>,
}

impl Crowd {
    /// Plugs them in, on no bridge: that is for 1,023 ports at most.
    pub fn plug(node: &Node, first: u32, count: u32) -> Self {
        let houses: Vec<_> = (0..HOUSES).map(|house| Namespace::new(&format!("house{house}"))).collect();
        // Else each would look for routers and addresses of its own.
        for namespace in houses.iter().chain([&node.namespace]) {
            namespace.without_ipv6();
        }
        let crowd = Self { node: node.namespace.name().to_owned(), first, count, houses };
        let born = crowd.lines(|vmid, house| {
            let house = house.name();
            format!("link add tap{vmid}i0 up type veth peer name e{vmid} netns {house}\n")
        });
        batch(node.namespace.name(), &born.concat());
        let mac = METADATA_MAC.map(|byte| format!("{byte:02x}")).join(":");
        let ready = crowd.lines(|vmid, _| {
            format!(
                "link set e{vmid} up\naddr add 169.254.1.2/16 dev e{vmid}\n\
                 neigh replace 169.254.169.254 lladdr {mac} dev e{vmid}\n"
            )
        });
        std::thread::scope(|scope| {
            for (house, lines) in crowd.houses.iter().zip(&ready) {
                scope.spawn(move || batch(house.name(), lines));
            }
        });
        crowd
    }

    /// For each house, a line for each of its guests.
    fn lines(&self, line: impl Fn(u32, &Namespace) -> String) -> Vec<String> {
        let of_house = |(house, at): (&Namespace, u32)| self.of_house(at).map(|vmid| line(vmid, house)).collect();
        self.houses.iter().zip(0..).map(of_house).collect()
    }

    fn of_house(&self, house: u32) -> impl Iterator<Item = u32> {
        (self.first..self.first + self.count).filter(move |vmid| vmid % HOUSES == house)
    }

    /// Asks for everyone's user data until all have been answered or the patience is over.
    pub fn ask(&self, patience: Duration) -> Answers {
        let begun = Instant::now();
        let mut all = Answers::default();
        std::thread::scope(|scope| {
            let askers: Vec<_> = self.houses.iter().zip(0..).collect();
            let askers: Vec<_> = askers
                .into_iter()
                .map(|(house, at)| {
                    let enter = house.door();
                    scope.spawn(move || {
                        enter();
                        ask(self.of_house(at).collect(), begun, patience)
                    })
                })
                .collect();
            for asker in askers {
                let answers = asker.join().unwrap();
                all.times.extend(answers.times);
                all.wrong.extend(answers.wrong);
                all.silent.extend(answers.silent);
            }
        });
        all.times.sort_unstable();
        all
    }
}

/// One request for each, again for those that had no answer.
fn ask(mut waiting: Vec<u32>, begun: Instant, patience: Duration) -> Answers {
    let mut answers = Answers::default();
    while !waiting.is_empty() && begun.elapsed() < patience {
        waiting.retain(|vmid| {
            let wanted = super::user_data(*vmid);
            match call(&format!("e{vmid}")).and_then(|mut stream| probe::request(&mut stream, true)) {
                Ok((200, body)) if body == wanted => answers.times.push(begun.elapsed()),
                Ok((200, body)) => answers.wrong.push(body),
                _ => return true,
            }
            false
        });
    }
    answers.silent = waiting;
    answers
}

/// A connection to the metadata address through this interface. Short of patience, as many others wait.
fn call(interface: &str) -> io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind_to_device(&socket, interface)?;
    let patience = Some(Duration::from_millis(50));
    set_socket_timeout(&socket, Timeout::Send, patience)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
    connect(&socket, &SocketAddr::from(([169, 254, 169, 254], 80)))?;
    Ok(TcpStream::from(socket))
}

fn bind_to_device(socket: &OwnedFd, interface: &str) -> io::Result<()> {
    let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
    let length = interface.len().try_into().unwrap();
    // SAFETY: the value is a live string of that length.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, interface.as_ptr().cast(), length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One by one, as they do on a node. Namespaces that go with hundreds of interfaces in them hold the kernel's one lock of
/// all network configuration for half a minute.
impl Drop for Crowd {
    fn drop(&mut self) {
        let gone: String =
            (self.first..self.first + self.count).map(|vmid| format!("link del tap{vmid}i0\n")).collect();
        batch(&self.node, &gone);
    }
}

/// Runs `ip` commands in a namespace, by one process. One that fails does not keep it from the next.
fn batch(namespace: &str, lines: &str) {
    let mut command = Command::new("ip");
    let mut child = command.args(["-n", namespace, "-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let _ = child.wait();
}
