//! One load of the programs, with maps of its own: who is served, through which socket, and what was counted.
//!
//! In come our device's index, an epoch that the last load did not have, a socket, and one call per interface. Out go
//! attached programs and counters. Order is the caller's: socket and slots first, then every interface, then `return`,
//! and `funnel` last, so that until then steered frames fall into an empty map and never into another guest's stack.
//!
//! Dropping it closes our end only: what is pinned runs on with these maps and drops what nobody receives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError as AyaMapError, MapFd, PerCpuArray, XskMap};
use aya::programs::{ProgramError, SchedClassifier, Xdp};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::attach::{Driver, Live, Swap, Target, settle};
use crate::bucket::Bucket;
use crate::credit::{Credit, Maps};
use crate::error::{AttachError, LoadError, MapError};
use crate::object::{self, FUNNEL, classify, drops, guard_interface, load_guard, refused, symbol, typed};
use crate::pins::{Pins, Program};
use crate::reason::Reason;
use crate::step::Step;
use crate::tag::{Epoch, Generation, Slot};

/// Who we are to every guest: the source of all our frames and the answer to ARP. Locally administered, and the same on
/// all nodes, so that what a guest remembers survives its migration.
pub const METADATA_MAC: [u8; 6] = [0x02, 0x00, 0xa9, 0xfe, 0xa9, 0xfe];

/// The loaded programs and their maps.
#[derive(Debug)]
pub struct Datapath {
    guard: Ebpf,
    funnel: Ebpf,
}

impl Datapath {
    /// Loads the programs. Nothing is attached and nothing served yet.
    ///
    /// `a_ifindex` is the device that steered frames leave through, `epoch` one that no frame in flight can carry
    /// ([`crate::Lock::next_epoch`]), `ring` the number of chunks that the socket's receive ring holds: `funnel` fills
    /// it up to the last 64. `bucket` is what each slot gets.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: an old kernel, missing privileges, or a verifier that thinks otherwise.
    pub fn load(a_ifindex: u32, epoch: Epoch, ring: u32, bucket: Bucket) -> Result<Self, LoadError> {
        let (interval, depth) = (bucket.interval(), bucket.depth());
        let epoch = epoch.number();
        let mut loader = object::loader();
        loader
            .override_global("epoch", &epoch, true)
            .override_global("device_a", &a_ifindex, true)
            .override_global("own_mac", &METADATA_MAC, true)
            .override_global("bucket_interval", &interval, true)
            .override_global("bucket_depth", &depth, true);
        let guard = load_guard(&mut loader, &[Program::Steer, Program::Shield, Program::Return])?;
        let mut funnel = object::loader()
            .override_global("epoch", &epoch, true)
            .override_global("ring", &ring, true)
            .load(FUNNEL)
            .map_err(LoadError::Object)?;
        let loaded = driver(&mut funnel).ok_or(LoadError::Lacking(symbol(Program::Funnel)))?.load();
        loaded.map_err(|source| refused(Program::Funnel, source))?;
        Step::Loaded.taken();
        Ok(Self { guard, funnel })
    }

    /// What is on its way to user space, in memory shared with the programs. Whoever serves takes one, before the first
    /// interface is guarded; it stays good without the datapath.
    ///
    /// # Errors
    ///
    /// [`MapError::Shared`].
    pub fn credit(&self) -> Result<Credit, MapError> {
        Credit::map(&Maps {
            credits: array(&self.guard, "credits")?,
            occupancy: array(&self.funnel, "occupancy")?,
            lost: array(&self.funnel, "lost")?,
        })
    }

    /// Gives `funnel` the socket that steered frames go to. Until it is bound, frames for it are dropped; it leaves the
    /// map by itself when it is closed.
    ///
    /// # Errors
    ///
    /// [`MapError::Socket`] if it is no AF_XDP socket.
    pub fn set_socket(&mut self, socket: BorrowedFd<'_>) -> Result<(), MapError> {
        typed::<XskMap<&mut MapData>>(&mut self.funnel, "sockets")
            .and_then(|mut sockets| sockets.set(0, socket.as_raw_fd(), 0))
            .map_err(MapError::Socket)
    }

    /// Serves `ifindex` in `slot`: its frames are steered with this slot and generation, and only answers that carry
    /// both go back to it.
    ///
    /// # Errors
    ///
    /// [`MapError::Slot`]; the interface is not served then.
    pub fn assign(&mut self, ifindex: u32, slot: Slot, generation: Generation) -> Result<(), MapError> {
        let failed = |source| MapError::Slot { slot: slot.number(), source };
        // The way back first: a frame that is steered can then always be answered.
        self.set_slot(slot, u64::from(generation.number()) << 32 | u64::from(ifindex)).map_err(failed)?;
        let value = u32::from(generation.number()) << 16 | u32::from(slot.number());
        self.interfaces().and_then(|mut map| map.insert(ifindex, value, 0)).map_err(failed)?;
        Step::Assigned.taken();
        Ok(())
    }

    /// Stops serving `ifindex`: its frames for the metadata address are dropped, and late answers to `slot` with them.
    /// What was dropped there is no longer counted. That it was not served is no error.
    ///
    /// # Errors
    ///
    /// [`MapError::Slot`].
    pub fn release(&mut self, ifindex: u32, slot: Slot) -> Result<(), MapError> {
        let failed = |source| MapError::Slot { slot: slot.number(), source };
        self.interfaces().and_then(|mut map| removed(map.remove(&ifindex))).map_err(failed)?;
        self.set_slot(slot, 0).map_err(failed)?;
        drops(&mut self.guard).and_then(|mut map| removed(map.remove(&ifindex))).map_err(failed)?;
        Step::Released.taken();
        Ok(())
    }

    /// Puts `steer` and `shield` on an interface, first in order, or swaps them into the links that are pinned for it.
    /// The greater [`Swap`] of the two is returned. Takes about 15 ms for each new link, none for a swap.
    ///
    /// # Errors
    ///
    /// [`AttachError`]. What was attached before is still there and drops; if only `shield` failed, `steer` is pinned.
    pub fn guard(&mut self, pins: &Pins, name: &str, ifindex: u32) -> Result<Swap, AttachError> {
        Ok(guard_interface(&mut self.guard, pins, name, ifindex, Live::Swap)?.into())
    }

    /// Puts `return` on the ingress of our device `name`, or swaps it into the pinned link. After every interface.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach_return(&mut self, pins: &Pins, name: &str) -> Result<Swap, AttachError> {
        let target = Target { program: Program::Return, name, ifindex: index_of(name)? };
        Ok(classify(&mut self.guard, pins, target, Live::Swap)?.into())
    }

    /// Puts `funnel` on our device `name`, run by its driver, or swaps it into the pinned link. Last of all.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; [`AttachError::NotNative`] if the driver has no XDP.
    pub fn attach_funnel(&mut self, pins: &Pins, name: &str) -> Result<Swap, AttachError> {
        let target = Target { program: Program::Funnel, name, ifindex: index_of(name)? };
        let program = driver(&mut self.funnel).ok_or(AttachError::Lacking(target.program))?;
        Ok(settle(pins, &target, &mut Driver { program }, Live::Swap)?.into())
    }

    /// What the programs of this load have counted, by reason, since it was loaded. Ordinary traffic is not counted.
    #[must_use]
    pub fn counters(&self) -> Vec<(Reason, u64)> {
        let maps = [&self.guard, &self.funnel]
            .map(|object| object.map("counters").and_then(|map| PerCpuArray::<_, u64>::try_from(map).ok()));
        let sum = |index: u32| -> u64 {
            maps.iter().flatten().filter_map(|map| map.get(&index, 0).ok()).map(|cpus| cpus.iter().sum::<u64>()).sum()
        };
        (0..).zip(Reason::ALL).map(|(index, reason)| (*reason, sum(index))).collect()
    }

    fn interfaces(&mut self) -> Result<HashMap<&mut MapData, u32, u32>, AyaMapError> {
        typed(&mut self.guard, "interfaces")
    }

    fn set_slot(&mut self, slot: Slot, value: u64) -> Result<(), AyaMapError> {
        typed::<Array<&mut MapData, u64>>(&mut self.guard, "slots")?.set(slot.number().into(), value, 0)
    }

    /// For `testing`: runs frames through a program without an interface.
    pub(crate) fn run(
        &self,
        program: Program,
        options: aya::TestRunOptions<'_>,
    ) -> Result<aya::TestRunResult, ProgramError> {
        use aya::TestRun;
        let missing = ProgramError::NotLoaded;
        match program {
            Program::Funnel => {
                let funnel: &Xdp = self.funnel.program(symbol(program)).ok_or(missing)?.try_into()?;
                funnel.test_run(options)
            }
            _ => {
                let guard: &SchedClassifier = self.guard.program(symbol(program)).ok_or(missing)?.try_into()?;
                guard.test_run(options)
            }
        }
    }
}

fn driver(object: &mut Ebpf) -> Option<&mut Xdp> {
    object.program_mut(symbol(Program::Funnel))?.try_into().ok()
}

/// The descriptor of an array.
fn array<'a>(object: &'a Ebpf, name: &'static str) -> Result<&'a MapFd, MapError> {
    match object.map(name) {
        Some(Map::Array(array)) => Ok(array.fd()),
        _ => Err(MapError::Lacking(name)),
    }
}

/// That a key was not there is as good as its removal.
fn removed(result: Result<(), AyaMapError>) -> Result<(), AyaMapError> {
    match result {
        Err(AyaMapError::KeyNotFound) => Ok(()),
        Err(AyaMapError::SyscallError(why)) if why.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn index_of(name: &str) -> Result<u32, AttachError> {
    socket(AddressFamily::INET, SocketType::DGRAM, None)
        .and_then(|any| netdevice::name_to_index(any, name))
        .map_err(|why| AttachError::NoInterface { name: name.to_owned(), source: why.into() })
}

const _: fn() = || {
    fn assert_send<T: Send>() {}
    assert_send::<Datapath>();
};
