//! pve-imds: the instance metadata service of a Proxmox VE node.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pve_imds::cli::main()
}
