//! Lines that count and do not do what they seem to.
//!
//! In come the VM and where its options stand; out goes a doubt for each line that whoever wrote it should look at
//! again. Proxmox takes them all and says nothing; so nothing is refused here, and no value is another for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{MAX_WARNINGS, Reason, Warning};
use crate::format::split_list;
use crate::sshkeys::{self, BadKey};
use crate::vm::Vm;

/// Why a line does not do what it seems to. Never holds a text from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// Addresses for a NIC that is not there.
    #[error("there is no `net{0}` that could get it")]
    NoNic(u8),
    /// Addresses for a NIC that its guest cannot tell from others.
    #[error("`net{0}` has no hardware address here, so nothing says which card is to get it; give `net{0}` one")]
    NoMac(u8),
    /// The option stands there again.
    #[error("it stands again on line {0}, and that line counts")]
    Again(usize),
    /// A key that lets nobody in.
    #[error("{0}")]
    Key(BadKey),
    /// A name server that nobody could ask for its own address.
    #[error("a server that is given by its name is left out; give its address")]
    ServerByName,
}

/// Where the options of the main section stand: line, and column of the value.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<String, (usize, usize)>);

impl Places {
    /// The option stands at `place` and counts from there on. What is to be said of that at once?
    pub(super) fn put(
        &mut self,
        key: &str,
        value: &str,
        place: (usize, usize),
    ) -> impl Iterator<Item = Warning> + use<> {
        let earlier = self.0.insert(key.to_owned(), place);
        let again = earlier.map(|earlier| warning(key, earlier, Doubt::Again(place.0)));
        let (line, column) = place;
        let doubted = match key {
            "sshkeys" => sshkeys::doubt(value).map(|(at, why)| (at, Doubt::Key(why))),
            "nameserver" => server_by_name(value).map(|at| (at, Doubt::ServerByName)),
            _ => None,
        };
        let doubted = doubted.map(|(at, why)| warning(key, (line, column + at), why));
        again.into_iter().chain(doubted)
    }

    /// What is to be said once all is read.
    pub(super) fn doubts(&self, vm: &Vm) -> impl Iterator<Item = Warning> {
        vm.cloudinit.ipconfig.keys().filter_map(|index| {
            let doubt = match vm.nic(*index) {
                None => Doubt::NoNic(*index),
                Some(nic) if nic.mac.is_none() => Doubt::NoMac(*index),
                Some(_) => return None,
            };
            let key = format!("ipconfig{index}");
            Some(warning(&key, *self.0.get(&key)?, doubt))
        })
    }
}

/// Where in the list the first server is that is not given by its address.
fn server_by_name(list: &str) -> Option<usize> {
    let name = split_list(list).into_iter().find(|server| server.parse::<IpAddr>().is_err())?;
    // A slice of the list.
    Some(name.as_ptr().addr() - list.as_ptr().addr())
}

/// `warnings` and `others`, by line, as many as are kept.
pub(super) fn merged(mut warnings: Vec<Warning>, others: impl IntoIterator<Item = Warning>) -> Vec<Warning> {
    warnings.extend(others);
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    warnings.truncate(MAX_WARNINGS);
    warnings
}

fn warning(key: &str, (line, column): (usize, usize), why: Doubt) -> Warning {
    Warning { line, column, reason: Reason::Doubt { key: key.to_owned(), why } }
}
