//! Talos' downloader for the `nocloud` platform, as documented for 1.14, and what a boot makes of its three files.
//!
//! In comes the SMBIOS serial number and how long a second is; out comes how the two runs of a boot ended. A run that ends
//! with an error is started again by Talos, for ever; here whoever calls does that. Not played: `#include`, gzip bodies, the
//! CD, other platforms.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pve_imds_model::yaml;
use serde_json::Value;

use super::network::{self, Link};

/// A download's whole time, in seconds.
const LIMIT: u32 = 180;

/// Where the serial number says to look.
#[derive(Debug, PartialEq, Eq)]
pub struct Seed {
    host: String,
    /// Of the files, with a slash at its end.
    folder: String,
    hostname: Option<String>,
}

impl Seed {
    /// `None` is a CD: only the very word `nocloud-net` and an HTTP address lead to the network.
    pub fn of(serial: &str) -> Option<Self> {
        let (mut on_network, mut address, mut hostname) = (false, None, None);
        for (key, value) in serial.split(';').filter_map(|option| option.split_once('=')) {
            match key {
                "ds" => on_network = value == "nocloud-net",
                "s" => address = value.strip_prefix("http://"),
                "h" => hostname = Some(value.to_owned()),
                _ => {}
            }
        }
        let (host, path) = address.filter(|_| on_network)?.split_once('/')?;
        let folder = format!("/{path}{}", if path.is_empty() || path.ends_with('/') { "" } else { "/" });
        Some(Self { host: host.to_owned(), folder, hostname })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    MetaData,
    NetworkConfig,
    UserData,
}

impl File {
    fn name(self) -> &'static str {
        match self {
            Self::MetaData => "meta-data",
            Self::NetworkConfig => "network-config",
            Self::UserData => "user-data",
        }
    }
}

/// What an answer means to a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// This is the file.
    Done,
    /// There is no configuration, and asking again would not help.
    NoSource,
    /// Ask again.
    Again,
}

/// The table of it. `Retry-After` and all else in an answer mean nothing.
fn meaning(file: File, status: u16, empty: bool) -> Meaning {
    match (file, status, empty) {
        (File::UserData, 204 | 404, _) | (File::UserData, 200, true) => Meaning::NoSource,
        (_, 200 | 204, _) => Meaning::Done,
        _ => Meaning::Again,
    }
}

/// The pause after an attempt, counted from 1, in seconds and thousandths of jitter: 0, 1, 3, 7, 15 … and less than one more.
fn pause(attempt: u32) -> (u32, u32) {
    // Any jitter is as good as another; this one a failing test repeats.
    (((1 << attempt) - 1) / 2, attempt * 377 % 1000)
}

/// How a download ended.
#[derive(Debug)]
enum Download {
    Got(Vec<u8>),
    NoSource,
    GaveUp(String),
}

/// How the run for the machine's configuration ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Machine {
    Config(String),
    /// It waits, with a name if it got one, for anybody who sends a configuration.
    Maintenance,
}

/// How the run for the network ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Network {
    Applied {
        hostname: String,
        links: Vec<Link>,
    },
    /// Not even the name.
    Nothing,
}

/// Either run, or why it has to start from the beginning.
#[derive(Debug)]
pub struct Boot {
    pub machine: Result<Machine, String>,
    pub network: Result<Network, String>,
}

pub struct Talos {
    seed: Seed,
    second: Duration,
}

impl Talos {
    /// A machine with this serial number whose seconds last `second`.
    pub fn new(serial: &str, second: Duration) -> Option<Self> {
        Some(Self { seed: Seed::of(serial)?, second })
    }

    /// Both runs at once, each on a thread that has gone through `enter` first.
    pub fn boot(&self, enter: impl FnOnce() + Send) -> Boot {
        std::thread::scope(|scope| {
            let both = scope.spawn(|| {
                enter();
                // Threads live where the one that starts them lives.
                std::thread::scope(|scope| {
                    let machine = scope.spawn(|| self.machine());
                    let network = scope.spawn(|| self.network());
                    Boot { machine: machine.join().unwrap(), network: network.join().unwrap() }
                })
            });
            both.join().unwrap()
        })
    }

    fn machine(&self) -> Result<Machine, String> {
        let (_, _, user_data) = self.files();
        match user_data {
            Download::NoSource => Ok(Machine::Maintenance),
            Download::GaveUp(why) => Err(why),
            Download::Got(text) => {
                let text = String::from_utf8(text).map_err(|error| error.to_string())?;
                if text.lines().next().is_some_and(|line| line.trim_end() == "#cloud-config") {
                    return Ok(Machine::Maintenance);
                }
                // Documents are many here.
                for document in text.split("\n---\n") {
                    yaml::read::<Value>(document.as_bytes()).map_err(|error| error.to_string())?;
                }
                Ok(Machine::Config(text))
            }
        }
    }

    fn network(&self) -> Result<Network, String> {
        let (meta_data, network_config, user_data) = self.files();
        if let Download::GaveUp(why) = user_data {
            return Err(why);
        }
        let Download::Got(network_config) = network_config else { return Ok(Network::Nothing) };
        let links = network::understand(&network_config)?;
        let meta_data = match meta_data {
            Download::Got(text) => yaml::read::<Value>(&text).unwrap_or_default(),
            Download::NoSource | Download::GaveUp(_) => Value::Null,
        };
        let of_meta_data = ["hostname", "local-hostname"].iter().find_map(|key| meta_data[key].as_str());
        let hostname = self.seed.hostname.as_deref().or(of_meta_data).ok_or("no name")?.to_owned();
        let label = hostname.split('.').next().unwrap_or_default();
        if label.is_empty() || label.len() > 63 || hostname.len() > 253 {
            return Err(format!("no name of a machine: {hostname}"));
        }
        Ok(Network::Applied { hostname, links })
    }

    /// The three files, in this order.
    fn files(&self) -> (Download, Download, Download) {
        (self.download(File::MetaData), self.download(File::NetworkConfig), self.download(File::UserData))
    }

    fn download(&self, file: File) -> Download {
        let begun = Instant::now();
        for attempt in 1.. {
            let why = match self.ask(file) {
                Err(error) => error.to_string(),
                Ok((status, body)) => match meaning(file, status, body.is_empty()) {
                    Meaning::Done => return Download::Got(body),
                    Meaning::NoSource => return Download::NoSource,
                    // Of an error's body Talos shows as much.
                    Meaning::Again => format!("{status}: {}", String::from_utf8_lossy(&body[..body.len().min(32)])),
                },
            };
            let (seconds, thousandths) = pause(attempt);
            let until_next = self.second * seconds + self.second * thousandths / 1000;
            let left = (self.second * LIMIT).saturating_sub(begun.elapsed());
            std::thread::sleep(until_next.min(left));
            if until_next >= left {
                return Download::GaveUp(format!("{}: {why}", file.name()));
            }
        }
        unreachable!("attempts are counted without end")
    }

    /// One attempt, on a connection of its own, with the header fields that Go sends.
    fn ask(&self, file: File) -> io::Result<(u16, Vec<u8>)> {
        let Seed { host, folder, .. } = &self.seed;
        let mut stream = TcpStream::connect((host.as_str(), 80))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let name = file.name();
        let head = format!(
            "GET {folder}{name} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Go-http-client/1.1\r\n\
             Accept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let broken = || io::Error::new(io::ErrorKind::InvalidData, String::from_utf8_lossy(&answer).into_owned());
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(broken)?;
        let head = String::from_utf8_lossy(&answer[..end]);
        let body = answer[end + 4..].to_vec();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(broken)?;
        let field = |name: &str| {
            head.lines().filter_map(|line| line.split_once(": ")).find(|(key, _)| key.eq_ignore_ascii_case(name))
        };
        // A body whose end cannot be told from a connection that broke is none.
        let length: usize = field("content-length").and_then(|(_, value)| value.parse().ok()).ok_or_else(broken)?;
        if field("content-encoding").is_some() || body.len() != length {
            return Err(broken());
        }
        Ok((status, body))
    }
}

#[test]
fn talos_looks_for_its_seed_where_it_does() {
    let seed = |folder: &str, hostname: Option<&str>| {
        let (host, folder, hostname) = ("169.254.169.254".to_owned(), folder.to_owned(), hostname.map(str::to_owned));
        Some(Seed { host, folder, hostname })
    };
    for (serial, expected) in [
        (crate::world::machine::SERIAL, seed("/nocloud/", None)),
        ("ds=nocloud-net;s=http://169.254.169.254/nocloud", seed("/nocloud/", None)),
        ("ds=nocloud-net;s=http://169.254.169.254/nocloud/;h=web-1", seed("/nocloud/", Some("web-1"))),
        ("s=http://169.254.169.254/nocloud/;ds=nocloud-net", seed("/nocloud/", None)),
        ("ds=nocloud;s=http://169.254.169.254/nocloud/", None),
        (" ds=nocloud-net;s=http://169.254.169.254/nocloud/", None),
        ("ds=nocloud-net", None),
        ("", None),
    ] {
        assert_eq!(Seed::of(serial), expected, "{serial}");
    }
}

#[test]
fn talos_takes_answers_as_it_does() {
    for (file, status, empty, expected) in [
        (File::UserData, 200, false, Meaning::Done),
        (File::UserData, 200, true, Meaning::NoSource),
        (File::UserData, 204, true, Meaning::NoSource),
        (File::UserData, 404, true, Meaning::NoSource),
        (File::UserData, 503, false, Meaning::Again),
        (File::UserData, 403, false, Meaning::Again),
        (File::UserData, 429, false, Meaning::Again),
        (File::UserData, 304, true, Meaning::Again),
        (File::MetaData, 200, true, Meaning::Done),
        (File::MetaData, 204, true, Meaning::Done),
        (File::MetaData, 404, true, Meaning::Again),
        (File::NetworkConfig, 404, true, Meaning::Again),
        (File::NetworkConfig, 503, false, Meaning::Again),
    ] {
        assert_eq!(meaning(file, status, empty), expected, "{file:?} {status} {empty}");
    }
    let seconds: Vec<_> = (1..=8).map(|attempt| pause(attempt).0).collect();
    assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 63, 127]);
    assert!((1..=8).all(|attempt| pause(attempt).1 < 1000));
}
