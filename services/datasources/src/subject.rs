//! Whom an answer is about.
//!
//! In come the VM that asks, its interface and what the node knows besides; out goes a [`Subject`], from which every
//! document is made. It never holds anything of another VM.

use std::sync::Arc;

use bytes::Bytes;
use pve_imds_model::fault::Fault;
use pve_imds_model::pools::PoolId;
use pve_imds_model::request::{Emulation, Link};
use pve_imds_model::site::Site;
use pve_imds_model::vm::{Nic, Vm};

use crate::entry::Entered;
use crate::rendered::Rendered;
use crate::user_data::{has_user_data, user_data, vendor_data, whole};

/// A VM that asks, and all that its answers are made of.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) vm: &'a Arc<Vm>,
    /// The interface it asks through, if that is known.
    pub(crate) link: Option<Link>,
    /// The NIC it asks through, if that is known.
    pub(crate) nic: Option<&'a Nic>,
    /// The pool it is in.
    pub(crate) pool: Option<PoolId>,
    /// The node it runs on.
    pub(crate) node: &'a str,
    /// What the node adds.
    pub(crate) site: Site,
    /// The dialects it is shown.
    pub(crate) emulation: Emulation,
    /// Who has begun a boot before.
    pub(crate) entered: &'a Entered,
    /// Its user data with secrets, if it was rendered for this answer.
    pub(crate) rendered: Option<Rendered>,
}

impl Subject<'_> {
    /// Its user data.
    ///
    /// # Errors
    /// [`user_data`]'s.
    pub(crate) fn user_data(&self) -> Result<Bytes, Fault> {
        user_data(self.vm, &self.site, self.rendered.as_ref())
    }

    /// Its vendor data and that of its node.
    ///
    /// # Errors
    /// [`vendor_data`]'s.
    pub(crate) fn vendor_data(&self) -> Result<Bytes, Fault> {
        vendor_data(self.vm, self.pool.as_ref(), &self.site)
    }

    /// Whether it has user data.
    pub(crate) fn has_user_data(&self) -> bool {
        has_user_data(self.vm, &self.site)
    }

    /// Lets whoever begins a boot in OpenStack's or EC2's way go on only if its documents can be had, or could be had before:
    /// see [`Entered`].
    ///
    /// # Errors
    /// Those of [`user_data`] and [`vendor_data`].
    pub(crate) fn may_enter(&self) -> Result<(), Fault> {
        self.entered.admit(self.link, whole(self.vm, self.rendered.as_ref()))
    }
}
