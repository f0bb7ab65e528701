//! iPXE's language, as far as it is spoken here: the one script that never goes wrong.

/// What a machine that boots from the network gets when there is nothing for it: go on to the next boot device. The line
/// break after `#!ipxe` is needed, or BIOS builds run the text as machine code.
pub const EXIT: &str = "#!ipxe\nexit\n";
