//! What is pinned, by name alone: cheap enough to be looked at twice a second.
//!
//! A name says that somebody pinned a link and nobody has removed the pin. Whether the link still does anything costs
//! some system calls more for each ([`Pins::standing`]); [`Pins::list`] asks that and more of every one.

use std::collections::HashSet;

use crate::error::PinError;
use crate::pins::{PinName, Pins, Program};

impl Pins {
    /// The pins there are: program and interface, 0 for `return` and `funnel`.
    ///
    /// # Errors
    ///
    /// As [`Pins::open`] when the file system is gone, [`PinError::Dir`] if the directory cannot be read.
    pub fn census(&self) -> Result<HashSet<(Program, u32)>, PinError> {
        Self::open(self.dir())?;
        let names = self.names()?.into_iter().map(|name| match name {
            PinName::Interface(ifindex, program) => (program, ifindex),
            PinName::Device(program) => (program, 0),
        });
        Ok(names.collect())
    }
}
