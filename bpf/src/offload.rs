//! What our own device must not leave to hardware that it does not have.
//!
//! With transmit checksums "offloaded", frames would reach user space whole (up to 64 KiB) and with half a checksum.
//! Without, the kernel cuts and sums them on the way, and the stack may verify what it reads.

use std::ffi::CString;
use std::io;

use rustix::net::{AddressFamily, SocketType, socket};

use crate::sys;

const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// Turns transmit checksum offload off, and with it segmentation offload: what `ethtool -K <name> tx off` does.
///
/// # Errors
///
/// `InvalidInput` if no interface can have that name, `NotFound`-like errors of the kernel if none has.
pub fn disable_tx_checksum(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sys::ethtool(any, &name, ETHTOOL_STXCSUM, 0)?;
    Ok(())
}

/// Whether transmit checksum offload is on.
///
/// # Errors
///
/// As [`disable_tx_checksum`].
pub fn tx_checksum(name: &str) -> io::Result<bool> {
    let name = CString::new(name)?;
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(sys::ethtool(any, &name, ETHTOOL_GTXCSUM, 0)? != 0)
}
