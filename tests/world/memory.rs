//! What a process holds: resident memory, descriptors, threads, and the kernel's BPF objects among its descriptors.

use std::fmt;
use std::fs;

use super::until;

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, KiB.
    pub resident: u64,
    /// The most it ever was, KiB.
    pub peak: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// BPF programs, maps and links among them.
    pub bpf: usize,
    /// Threads.
    pub threads: u64,
}

impl Usage {
    /// Of the process with this number.
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let descriptors: Vec<_> = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten().collect();
        let bpf = descriptors.iter().filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let bpf = bpf.filter(|text| ["prog_id:", "map_id:", "link_id:"].iter().any(|id| text.contains(id)));
        Self {
            resident: field("VmRSS:"),
            peak: field("VmHWM:"),
            bpf: bpf.count(),
            descriptors: descriptors.len(),
            threads: field("Threads:"),
        }
    }

    /// Waits until the process holds no more than then of what is counted and not weighed: it may not have seen yet that
    /// whoever asked for its metrics has gone.
    #[track_caller]
    pub fn all_given_back(pid: u32, then: &Self) {
        until("all that was taken is given back", || {
            let now = Self::of(pid);
            (now.descriptors <= then.descriptors && now.bpf <= then.bpf && now.threads <= then.threads).then_some(())
        });
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, peak, descriptors, bpf, threads } = self;
        write!(f, "{resident} KiB (peak {peak}), {descriptors} descriptors ({bpf} of BPF), {threads} threads")
    }
}
