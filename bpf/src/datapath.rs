//! One load of the programs, with maps of its own: who is served, through which socket, and what was counted.
//!
//! In come our device's index, an epoch that the last load did not have, a socket, and one call per interface. Out go
//! attached programs and counters. Order is the caller's: socket and slots first, then every interface, then `return`,
//! and `funnel` last, so that until then steered frames fall into an empty map and never into another guest's stack.
//!
//! Dropping it closes our end only: what is pinned runs on with these maps and drops what nobody receives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError as AyaMapError, PerCpuArray, XskMap};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, Xdp};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::attach::{Driver, Swap, Target, Tcx, settle};
use crate::error::{AttachError, LoadError, MapError};
use crate::pins::{Pins, Program};
use crate::reason::Reason;
use crate::tag::{Epoch, Generation, Slot};

/// Who we are to every guest: the source of all our frames and the answer to ARP. Locally administered, and the same on
/// all nodes, so that what a guest remembers survives its migration.
pub const METADATA_MAC: [u8; 6] = [0x02, 0x00, 0xa9, 0xfe, 0xa9, 0xfe];

pub(crate) static GUARD: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guard.bpf.o"));
pub(crate) static FUNNEL: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/funnel.bpf.o"));

/// The loaded programs and their maps.
#[derive(Debug)]
pub struct Datapath {
    guard: Ebpf,
    funnel: Ebpf,
}

/// The name of a program in its object. `return` is a word of C, so it has an underscore there.
const fn symbol(program: Program) -> &'static str {
    match program {
        Program::Return => "return_",
        other => other.word(),
    }
}

impl Datapath {
    /// Loads the programs. Nothing is attached and nothing served yet.
    ///
    /// `a_ifindex` is the device that steered frames leave through, `epoch` one that no frame in flight can carry
    /// ([`crate::Lock::next_epoch`]).
    ///
    /// # Errors
    ///
    /// [`LoadError`]: an old kernel, missing privileges, or a verifier that thinks otherwise.
    pub fn load(a_ifindex: u32, epoch: Epoch) -> Result<Self, LoadError> {
        if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(6, 6, 0)) {
            return Err(LoadError::Kernel);
        }
        let epoch = epoch.number();
        let mut guard = EbpfLoader::new()
            .override_global("epoch", &epoch, true)
            .override_global("device_a", &a_ifindex, true)
            .override_global("own_mac", &METADATA_MAC, true)
            .load(GUARD)
            .map_err(LoadError::Object)?;
        for program in [Program::Steer, Program::Shield, Program::Return] {
            let loaded = classifier(&mut guard, program).ok_or(LoadError::Lacking(symbol(program)))?.load();
            loaded.map_err(|source| LoadError::Verifier { program, source })?;
        }
        let mut funnel =
            EbpfLoader::new().override_global("epoch", &epoch, true).load(FUNNEL).map_err(LoadError::Object)?;
        let loaded = driver(&mut funnel).ok_or(LoadError::Lacking(symbol(Program::Funnel)))?.load();
        loaded.map_err(|source| LoadError::Verifier { program: Program::Funnel, source })?;
        Ok(Self { guard, funnel })
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
        self.interfaces().and_then(|mut map| map.insert(ifindex, value, 0)).map_err(failed)
    }

    /// Stops serving `ifindex`: its frames for the metadata address are dropped, and late answers to `slot` with them.
    /// That it was not served is no error.
    ///
    /// # Errors
    ///
    /// [`MapError::Slot`].
    pub fn release(&mut self, ifindex: u32, slot: Slot) -> Result<(), MapError> {
        let failed = |source| MapError::Slot { slot: slot.number(), source };
        match self.interfaces().and_then(|mut map| map.remove(&ifindex)) {
            Ok(()) | Err(AyaMapError::KeyNotFound) => {}
            Err(AyaMapError::SyscallError(why)) if why.io_error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed(source)),
        }
        self.set_slot(slot, 0).map_err(failed)
    }

    /// Puts `steer` and `shield` on an interface, first in order, or swaps them into the links that are pinned for it.
    /// The greater [`Swap`] of the two is returned. Takes about 15 ms for each new link, none for a swap.
    ///
    /// # Errors
    ///
    /// [`AttachError`]. What was attached before is still there and drops; if only `shield` failed, `steer` is pinned.
    pub fn guard(&mut self, pins: &Pins, name: &str, ifindex: u32) -> Result<Swap, AttachError> {
        let steer = self.classify(pins, Target { program: Program::Steer, name, ifindex }, TcAttachType::Ingress)?;
        let shield = self.classify(pins, Target { program: Program::Shield, name, ifindex }, TcAttachType::Egress)?;
        Ok(steer.max(shield))
    }

    /// Puts `return` on the ingress of our device `name`, or swaps it into the pinned link. After every interface.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach_return(&mut self, pins: &Pins, name: &str) -> Result<Swap, AttachError> {
        let target = Target { program: Program::Return, name, ifindex: index_of(name)? };
        self.classify(pins, target, TcAttachType::Ingress)
    }

    /// Puts `funnel` on our device `name`, run by its driver, or swaps it into the pinned link. Last of all.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; [`AttachError::NotNative`] if the driver has no XDP.
    pub fn attach_funnel(&mut self, pins: &Pins, name: &str) -> Result<Swap, AttachError> {
        let target = Target { program: Program::Funnel, name, ifindex: index_of(name)? };
        let program = driver(&mut self.funnel).ok_or(AttachError::Lacking(target.program))?;
        settle(pins, &target, &mut Driver { program })
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

    fn classify(&mut self, pins: &Pins, target: Target<'_>, side: TcAttachType) -> Result<Swap, AttachError> {
        let program = classifier(&mut self.guard, target.program).ok_or(AttachError::Lacking(target.program))?;
        settle(pins, &target, &mut Tcx { program, side })
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

fn classifier(object: &mut Ebpf, program: Program) -> Option<&mut SchedClassifier> {
    object.program_mut(symbol(program))?.try_into().ok()
}

fn driver(object: &mut Ebpf) -> Option<&mut Xdp> {
    object.program_mut(symbol(Program::Funnel))?.try_into().ok()
}

fn typed<'a, M>(object: &'a mut Ebpf, name: &'static str) -> Result<M, AyaMapError>
where
    M: TryFrom<&'a mut Map, Error = AyaMapError>,
{
    object.map_mut(name).ok_or_else(|| AyaMapError::InvalidName { name: name.to_owned() })?.try_into()
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
