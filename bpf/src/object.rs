//! The compiled objects: their bytes, and how programs and maps are found in a loaded one.
//!
//! In comes a loader with its globals set, out goes an object whose programs the verifier has accepted. The guard is
//! loaded by the daemon and by commands, with maps of different sizes.

use std::borrow::BorrowMut;
use std::io;

use aya::maps::{HashMap, Map, MapData, MapError as AyaMapError};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};

use crate::attach::{Live, Settled, Target, Tcx, settle};
use crate::error::{AttachError, LoadError};
use crate::loaded::Drops;
use crate::pins::{Pins, Program};
use crate::sys::Side;

pub(crate) static GUARD: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guard.bpf.o"));
pub(crate) static FUNNEL: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/funnel.bpf.o"));

/// The name of a program in its object. `return` is a word of C, so it has an underscore there.
pub(crate) const fn symbol(program: Program) -> &'static str {
    match program {
        Program::Return => "return_",
        other => other.word(),
    }
}

/// A loader that leaves the kernel's own type information alone: no program of ours is relocated against it, and reading
/// it costs 14 MiB that the allocator then keeps.
pub(crate) fn loader<'a>() -> EbpfLoader<'a> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    loader
}

/// Loads the guard with these of its programs.
pub(crate) fn load_guard(loader: &mut EbpfLoader<'_>, programs: &[Program]) -> Result<Ebpf, LoadError> {
    if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(6, 6, 0)) {
        return Err(LoadError::Kernel);
    }
    let mut guard = loader.load(GUARD).map_err(LoadError::Object)?;
    for &program in programs {
        let loaded = classifier(&mut guard, program).ok_or(LoadError::Lacking(symbol(program)))?.load();
        loaded.map_err(|source| refused(program, source))?;
    }
    Ok(guard)
}

/// A verifier that was asked says why; who says no without a word was not.
pub(crate) fn refused(program: Program, source: ProgramError) -> LoadError {
    match source {
        ProgramError::LoadError { io_error, verifier_log }
            if io_error.kind() == io::ErrorKind::PermissionDenied && verifier_log.to_string().trim().is_empty() =>
        {
            LoadError::Denied { program, source: io_error }
        }
        source => LoadError::Verifier { program, source },
    }
}

/// One of the guard's programs.
pub(crate) fn classifier(guard: &mut Ebpf, program: Program) -> Option<&mut SchedClassifier> {
    guard.program_mut(symbol(program))?.try_into().ok()
}

/// A map of either object.
pub(crate) fn typed<'a, M>(object: &'a mut Ebpf, name: &'static str) -> Result<M, AyaMapError>
where
    M: TryFrom<&'a mut Map, Error = AyaMapError>,
{
    object.map_mut(name).ok_or_else(|| AyaMapError::InvalidName { name: name.to_owned() })?.try_into()
}

/// Programs that can be put on interfaces, whoever has loaded them.
pub(crate) trait Guards {
    /// One of them.
    fn classifier(&mut self, program: Program) -> Option<&mut SchedClassifier>;
    /// Makes a place to count what they drop on an interface, if it has none.
    fn count_drops(&mut self, ifindex: u32) -> Result<(), AyaMapError>;
}

impl Guards for Ebpf {
    fn classifier(&mut self, program: Program) -> Option<&mut SchedClassifier> {
        classifier(self, program)
    }

    fn count_drops(&mut self, ifindex: u32) -> Result<(), AyaMapError> {
        count(&mut drops(self)?, ifindex)
    }
}

/// Puts one of the guard's programs where it belongs.
pub(crate) fn classify(
    guard: &mut impl Guards,
    pins: &Pins,
    target: Target<'_>,
    live: Live,
) -> Result<Settled, AttachError> {
    let program = guard.classifier(target.program).ok_or(AttachError::Lacking(target.program))?;
    let side = match target.program.side() {
        Some(Side::Egress) => TcAttachType::Egress,
        _ => TcAttachType::Ingress,
    };
    settle(pins, &target, &mut Tcx { program, side }, live)
}

/// Puts `steer` and `shield` on an interface, with a place to count what they drop there.
pub(crate) fn guard_interface(
    guard: &mut impl Guards,
    pins: &Pins,
    name: &str,
    ifindex: u32,
    live: Live,
) -> Result<Settled, AttachError> {
    // That there is no room for a count is no reason to leave a guest unguarded.
    let _ = guard.count_drops(ifindex);
    let steer = classify(guard, pins, Target { program: Program::Steer, name, ifindex }, live)?;
    let shield = classify(guard, pins, Target { program: Program::Shield, name, ifindex }, live)?;
    Ok(steer.max(shield))
}

/// A count that is there goes on.
pub(crate) fn count<M: BorrowMut<MapData>>(
    drops: &mut HashMap<M, u32, Drops>,
    ifindex: u32,
) -> Result<(), AyaMapError> {
    const BPF_NOEXIST: u64 = 1;
    match drops.insert(ifindex, Drops::default(), BPF_NOEXIST) {
        Err(AyaMapError::SyscallError(why)) if why.io_error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// What was dropped, by interface.
pub(crate) fn drops(guard: &mut Ebpf) -> Result<HashMap<&mut MapData, u32, Drops>, AyaMapError> {
    typed(guard, "drops")
}
