//! Which of root's rights a command needs, asked before it begins.
//!
//! In comes what the process may do (capabilities(7)); out comes the name of what it lacks. The kernel itself says
//! "operation not permitted" and not which; a verifier without CAP_PERFMON says pages about pointers. Who is root in a
//! user namespace only has all these names and none of the rights: that is left to the kernel to say.

use std::fs;

use pve_imds_model::words;

words! {
    /// One of them, as the kernel, systemd and setpriv call it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Right {
        /// Devices, attaching, what programs may do to frames.
        NetAdmin => "CAP_NET_ADMIN",
        /// The AF_XDP socket.
        NetRaw => "CAP_NET_RAW",
        /// Finding programs that are pinned elsewhere.
        SysAdmin => "CAP_SYS_ADMIN",
        /// What our programs do with pointers.
        Perfmon => "CAP_PERFMON",
        /// Programs and maps.
        Bpf => "CAP_BPF",
    }
}

impl Right {
    /// Its bit in `/proc/self/status` (`linux/capability.h`).
    const fn bit(self) -> u64 {
        1 << match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::SysAdmin => 21,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }

    /// CAP_SYS_ADMIN is what CAP_BPF and CAP_PERFMON were cut out of, and stands for both.
    const fn bits(self) -> u64 {
        match self {
            Self::Bpf | Self::Perfmon => self.bit() | Self::SysAdmin.bit(),
            Self::NetAdmin | Self::NetRaw | Self::SysAdmin => self.bit(),
        }
    }
}

/// What needs rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Serve,
    Attach,
    Status,
    Remove,
    Taps,
}

impl Deed {
    /// The table: who does it, and what it takes.
    const fn takes(self) -> (&'static str, &'static [Right]) {
        use Right::{Bpf, NetAdmin, NetRaw, Perfmon, SysAdmin};
        match self {
            Self::Serve => ("serve", &[Bpf, Perfmon, NetAdmin, NetRaw]),
            Self::Attach => ("guard attach", &[Bpf, Perfmon, NetAdmin]),
            Self::Status => ("guard status", &[SysAdmin]),
            Self::Remove => ("guard remove", &[SysAdmin]),
            // For what is pinned elsewhere; the rest anyone may see.
            Self::Taps => ("taps", &[SysAdmin]),
        }
    }

    /// Sees that this process may.
    ///
    /// # Errors
    /// [`Lacking`].
    pub(super) fn allowed(self) -> Result<(), Lacking> {
        // Who cannot be asked is let through: the kernel decides anyway.
        let held = fs::read_to_string("/proc/self/status").ok().and_then(|status| effective(&status));
        self.lacks(held.unwrap_or(u64::MAX))
    }

    fn lacks(self, held: u64) -> Result<(), Lacking> {
        let (deed, takes) = self.takes();
        let missing: Vec<_> = takes.iter().filter(|right| right.bits() & held == 0).map(|right| right.word()).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Lacking { deed, missing }),
        }
    }
}

/// The process may not do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{deed} takes more rights: {} missing; run it as root, or grant that (in a unit: CapabilityBoundingSet=, and for \
     another user than root AmbientCapabilities=)",
    list(.missing)
)]
pub(super) struct Lacking {
    deed: &'static str,
    missing: Vec<&'static str>,
}

fn list(missing: &[&str]) -> String {
    let verb = if missing.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", missing.join(", "))
}

/// The effective set in the text of `/proc/self/status` (proc_pid_status(5)).
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_a_table() {
        use Right::{Bpf, NetAdmin, NetRaw, Perfmon, SysAdmin};
        let all = u64::MAX;
        let without = |rights: &[Right]| rights.iter().fold(all, |held, right| held & !right.bit());
        for (deed, held, missing) in [
            (Deed::Serve, all, &[][..]),
            (Deed::Serve, 0, &[Bpf, Perfmon, NetAdmin, NetRaw]),
            (Deed::Serve, without(&[SysAdmin]), &[]),
            (Deed::Serve, without(&[SysAdmin, Bpf]), &[Bpf]),
            (Deed::Serve, without(&[SysAdmin, Perfmon]), &[Perfmon]),
            (Deed::Serve, without(&[Bpf, Perfmon]), &[]),
            (Deed::Serve, without(&[NetAdmin]), &[NetAdmin]),
            (Deed::Serve, without(&[NetRaw]), &[NetRaw]),
            (Deed::Attach, 0, &[Bpf, Perfmon, NetAdmin]),
            (Deed::Attach, without(&[SysAdmin, NetRaw]), &[]),
            (Deed::Attach, without(&[NetAdmin]), &[NetAdmin]),
            (Deed::Status, without(&[SysAdmin]), &[SysAdmin]),
            (Deed::Status, SysAdmin.bit(), &[]),
            (Deed::Remove, 0, &[SysAdmin]),
            (Deed::Remove, SysAdmin.bit(), &[]),
            (Deed::Taps, 0, &[SysAdmin]),
            (Deed::Taps, SysAdmin.bit(), &[]),
        ] {
            let lacking = deed.lacks(held).err().map(|lacking| lacking.missing).unwrap_or_default();
            assert_eq!(lacking, missing.iter().map(|right| right.word()).collect::<Vec<_>>(), "{deed:?} {held:x}");
        }
    }

    #[test]
    fn the_mend_stands_last() {
        assert_eq!(
            Deed::Attach.lacks(Right::NetAdmin.bit()).unwrap_err().to_string(),
            "guard attach takes more rights: CAP_BPF, CAP_PERFMON are missing; run it as root, or grant that (in a unit: \
             CapabilityBoundingSet=, and for another user than root AmbientCapabilities=)"
        );
    }

    #[test]
    fn the_effective_set_is_read_as_the_kernel_writes_it() {
        for (status, set) in [
            ("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000003000\n", Some(0x3000)),
            ("CapEff:\tx\n", None),
            ("Name:\tx\n", None),
        ] {
            assert_eq!(effective(status), set);
        }
    }
}
