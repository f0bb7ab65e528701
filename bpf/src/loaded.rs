//! What a program that runs somewhere knows of an interface, without the process that loaded it.
//!
//! In comes the number of a loaded program, as a link names it; out go whether it serves an interface and what it has
//! dropped there. Its maps are found by name. A program of an earlier version may lack them; then it serves nobody, as
//! far as can be told, and its drops are unknown.

use aya::Pod;
use aya::maps::{HashMap, Map, MapData};

use crate::pins::Program;
use crate::sys;
use crate::words;

words! {
    /// What a guard does with frames for the metadata address.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Mode {
        /// The interface has a slot: they go to user space, if somebody is there.
        Serve => "serve",
        /// It has none: they are dropped.
        Drop => "drop",
    }
}

/// Frames dropped on one interface since the programs were loaded, by `steer` and by `shield`: `struct drops` in
/// `c/guard.bpf.c`.
pub(crate) type Drops = [u64; 2];

/// The size of maps that only who has a slot needs, where nobody has.
pub(crate) const IDLE_CAPACITY: u32 = 1;

/// The maps of a loaded program, as far as they could be opened.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    interfaces: Option<HashMap<MapData, u32, u32>>,
    drops: Option<HashMap<MapData, u32, Drops>>,
    /// How many interfaces it can serve.
    capacity: u32,
    /// The number of the map of drops.
    drops_id: u32,
    /// The number of the map of counters, which the programs of one load share and no others.
    pub(crate) counters: Option<u32>,
}

impl Loaded {
    /// The maps of the program with this number.
    pub(crate) fn find(program: u32) -> Self {
        let mut loaded = Self::default();
        for id in sys::program(program).map(|about| about.maps).unwrap_or_default() {
            let Ok(map) = MapData::from_id(id) else { continue };
            let Ok(info) = map.info() else { continue };
            match info.name_as_str() {
                Some("interfaces") => (loaded.interfaces, loaded.capacity) = (typed(map), info.max_entries()),
                Some("counters") => loaded.counters = Some(id),
                Some("drops") => (loaded.drops, loaded.drops_id) = (typed(map), id),
                _ => {}
            }
        }
        loaded
    }

    /// Its count of drops, and the number of that map, if it was loaded to serve nobody.
    pub(crate) fn into_idle(self) -> Option<(u32, HashMap<MapData, u32, Drops>)> {
        if self.capacity == IDLE_CAPACITY { self.drops.map(|drops| (self.drops_id, drops)) } else { None }
    }

    /// Whether it has a slot for the interface.
    pub(crate) fn mode(&self, ifindex: u32) -> Mode {
        match self.interfaces.as_ref().and_then(|map| map.get(&ifindex, 0).ok()) {
            Some(_) => Mode::Serve,
            None => Mode::Drop,
        }
    }

    /// What `program` has dropped on the interface, if that is counted.
    pub(crate) fn drops(&self, program: Program, ifindex: u32) -> Option<u64> {
        let [steer, shield] = self.drops.as_ref()?.get(&ifindex, 0).ok()?;
        match program {
            Program::Steer => Some(steer),
            Program::Shield => Some(shield),
            Program::Return | Program::Funnel => None,
        }
    }
}

/// A map of another shape is another version's.
fn typed<V: Pod>(map: MapData) -> Option<HashMap<MapData, u32, V>> {
    Map::from_map_data(map).ok()?.try_into().ok()
}
