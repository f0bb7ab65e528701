//! How pins go, and guards with them.
//!
//! Each removal looks again with [`Change`] held, and what it then sees is what it removes. Nothing of others is removed:
//! what only has a pin's name stays where it is, and so do the guards of another network namespace that are pinned in the
//! same directory. Seen from here their interfaces are gone, or are others with the same index.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::name::PinName;
use super::{Interfaces, Look, Looked, Pins, Program, Stray};
use crate::error::PinError;
use crate::lock::{self, Change};
use crate::standing::Standing;
use crate::step::Step;
use crate::stray;

/// What [`Pins::sweep`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The pins it removed: program and interface, 0 for our devices when they are gone.
    pub gone: Vec<(Program, u32)>,
    /// Files with a pin's name that are none.
    pub foreign: Vec<PathBuf>,
}

impl Pins {
    /// Removes what is left of interfaces that are gone: their links are defunct, or `alive` denies them.
    ///
    /// `alive` is asked with the directory in hand, and must look anew: an interface may have been born, and guarded by
    /// another process, since a list of them was made.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] and [`PinError::Busy`]; pins that came later in the list are still there.
    pub fn sweep(&self, alive: impl Fn(u32) -> bool) -> Result<Swept, PinError> {
        let mut swept = Swept::default();
        // Asked of all pins, and seldom needed: of a guard that runs, but not here.
        let mut elsewhere = None;
        let mut is_left = |look: &Look| -> Result<bool, PinError> {
            if look.is_elsewhere() && *get_or_try(&mut elsewhere, || self.are_elsewhere())? {
                return Ok(false);
            }
            Ok(look.standing == Standing::Stale || !alive(look.ifindex))
        };
        for name in self.names()? {
            match self.look(name)? {
                Looked::At(look) if is_left(&look)? => {}
                Looked::Foreign => {
                    swept.foreign.push(self.file(name));
                    continue;
                }
                Looked::At(_) | Looked::Nothing => continue,
            }
            let _change = Change::take(&self.dir)?;
            if let Looked::At(look) = self.look(name)?
                && is_left(&look)?
            {
                self.clear(name)?;
                swept.gone.push((name.program(), look.ifindex));
            }
        }
        swept.gone.sort_unstable_by_key(|(program, ifindex)| (*ifindex, *program));
        swept.foreign.sort();
        Ok(swept)
    }

    /// Removes what is left of one interface. A guard that lives is left alone: by now it may be another interface's
    /// that has got the same index, or the same one's under another name. Only [`Pins::sweep`] and
    /// [`Pins::remove_all`] open a guard.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] and [`PinError::Busy`].
    pub fn forget(&self, ifindex: u32) -> Result<(), PinError> {
        self.clear_stale(Program::Steer, ifindex)?;
        self.clear_stale(Program::Shield, ifindex)?;
        Ok(())
    }

    /// Removes every pin of ours, and takes every guard off the interfaces of this network namespace, also those that
    /// somebody else holds: returns these.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`], [`PinError::Busy`] and [`PinError::Strays`]; pins and guards may be left.
    pub fn remove_all(&self) -> Result<Vec<Stray>, PinError> {
        let _change = Change::take(&self.dir)?;
        let mut pinned = HashSet::new();
        for name in self.names()? {
            if let Looked::At(Look { link, .. }) = self.look(name)? {
                self.clear(name)?;
                pinned.insert(link.id);
            }
        }
        lock::forget_copy(&self.dir);
        // Without its pin a link goes when the kernel finds the time; what is still there is taken off, but only what
        // was pinned nowhere here is news.
        let off = stray::detach_all().map_err(PinError::Strays)?;
        let names = Interfaces::open().map_err(PinError::Strays)?;
        Ok(names.named(off.into_iter().filter(|(_, link)| !pinned.contains(&link.id))))
    }

    /// Takes every guard off the interfaces of this network namespace, wherever it is pinned: for who has no directory.
    ///
    /// # Errors
    ///
    /// [`PinError::Strays`]; guards may be left.
    pub fn detach_all() -> Result<Vec<Stray>, PinError> {
        let off = stray::detach_all().map_err(PinError::Strays)?;
        let names = Interfaces::open().map_err(PinError::Strays)?;
        Ok(names.named(off.into_iter()))
    }

    /// Takes off whatever else of ours runs beside the pinned link of `program` on `ifindex`. Returns how many that was.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if the pin cannot be read, [`PinError::Strays`].
    pub fn detach_strays(&self, program: Program, ifindex: u32) -> Result<usize, PinError> {
        match self.look(PinName::of(program, ifindex))? {
            Looked::At(Look { link, standing: Standing::Doubled, .. }) => {
                stray::detach_but(program, ifindex, link.id).map_err(PinError::Strays)
            }
            _ => Ok(0),
        }
    }

    /// Removes the pin of `program` on `ifindex` if it is stale, and says whether it was.
    ///
    /// # Errors
    ///
    /// [`PinError::Elsewhere`] besides those of a removal.
    pub(crate) fn clear_stale(&self, program: Program, ifindex: u32) -> Result<bool, PinError> {
        // Nothing to do is the rule, and then nobody is kept waiting.
        if self.standing(program, ifindex)? != Standing::Stale {
            return Ok(false);
        }
        let _change = Change::take(&self.dir)?;
        let name = PinName::of(program, ifindex);
        match self.look_for(name, |_| ifindex)? {
            Looked::At(look) if look.is_elsewhere() && self.are_elsewhere()? => {
                Err(PinError::Elsewhere { dir: self.dir.clone() })
            }
            Looked::At(Look { standing: Standing::Stale, .. }) => self.clear(name).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Removes one pin, with [`Change`] held; that it is gone already is as good.
    fn clear(&self, name: PinName) -> Result<(), PinError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Ok(()) => Step::Cleared.taken(),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(PinError::Pin { path, source }),
        }
        Ok(())
    }
}

/// What is known, or is now found out.
fn get_or_try<T, E>(known: &mut Option<T>, find: impl FnOnce() -> Result<T, E>) -> Result<&mut T, E> {
    Ok(match known {
        Some(known) => known,
        None => known.insert(find()?),
    })
}
