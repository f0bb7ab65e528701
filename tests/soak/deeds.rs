//! What is done to the node and by its guests, one deed after the other, and whom each may cost an answer.

use crate::world::Plug;
use crate::world::flood::Flood;

/// A deed.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    /// A guest is plugged in, asks, and is unplugged.
    Visit(Plug),
    /// A VM gets another name.
    Rewrite,
    /// A command of `ip` on the node; the daemon mends what needs mending.
    Change(&'static str),
    /// A guest floods for a second.
    Flood(Flood),
}

/// Whom it cuts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nobody.
    None,
    /// This one of those who stay, until the next deed undoes it.
    One(usize),
    /// Everybody, until the daemon has mended it.
    All,
}

impl Harm {
    /// Whether it cuts this one off.
    pub fn reaches(self, guest: usize) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => one == guest,
            Self::All => true,
        }
    }
}

/// Over and over.
pub const DEEDS: &[(Deed, Harm)] = &[
    (Deed::Visit(Plug::Veth), Harm::None),
    (Deed::Rewrite, Harm::None),
    (Deed::Change("link set tap101i0 promisc on"), Harm::None),
    (Deed::Change("link set tap101i0 promisc off"), Harm::None),
    (Deed::Flood(Flood::Segments), Harm::None),
    (Deed::Visit(Plug::Tap(1)), Harm::None),
    (Deed::Change("link set tap102i0 nomaster"), Harm::None),
    (Deed::Change("link set tap102i0 master vmbr0"), Harm::None),
    (Deed::Flood(Flood::Slow), Harm::None),
    (Deed::Change("link set tap103i0 down"), Harm::One(2)),
    (Deed::Change("link set tap103i0 up"), Harm::None),
    (Deed::Rewrite, Harm::None),
    (Deed::Flood(Flood::Syns), Harm::None),
    (Deed::Visit(Plug::Veth), Harm::None),
    (Deed::Change("link set imdstk-a down"), Harm::All),
    (Deed::Flood(Flood::Headers), Harm::None),
    (Deed::Change("link del imdstk-a"), Harm::All),
    (Deed::Flood(Flood::Supers), Harm::None),
    (Deed::Visit(Plug::Tap(2)), Harm::None),
    (Deed::Flood(Flood::HalfClosed), Harm::None),
];
