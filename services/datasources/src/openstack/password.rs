//! `/openstack/<version>/password`: the administrator's password that a guest has drawn, encrypted with its owner's public
//! key by the guest itself (cloudbase-init, cloud-init's `set-password`).
//!
//! A guest may say it once; its owner reads it. It lives in memory until the daemon ends, under the VM's number and the
//! identity the guest was given: two VMs can share a UUID and must not share this, and a number can become another
//! machine's. Refused: a second one, and one that is longer than Nova's four columns of 255 bytes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pve_imds_model::vm::{Vm, VmId};

/// Bytes of a password, Nova's bound.
pub(crate) const MAX_PASSWORD: usize = 4 * 255;

/// Guests whose password is kept; the first to have said one is forgotten first. 4,096 of them are 4 MiB.
const MAX_GUESTS: usize = 4096;

/// What a guest has said. Encrypted or not, it is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Bytes);

impl Password {
    /// Takes what was sent, and of that a copy: a slice would keep the whole buffer that it came in, and with it what else
    /// the guest has sent there.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        if bytes.len() > MAX_PASSWORD { Err(TooLong) } else { Ok(Self(Bytes::copy_from_slice(bytes))) }
    }

    /// The bytes, for the guest and its owner.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// More than [`MAX_PASSWORD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a password of more than {MAX_PASSWORD} bytes")]
pub struct TooLong;

/// It has been said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlreadySaid;

/// The passwords of all guests. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Passwords(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    said: HashMap<Guest, Password>,
    order: VecDeque<Guest>,
}

/// Who said it.
type Guest = (VmId, String);

fn guest(vm: &Vm) -> Guest {
    (vm.vmid, vm.instance_id())
}

impl Passwords {
    /// What the guest in this VM has said.
    #[must_use]
    pub fn get(&self, vm: &Vm) -> Option<Password> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).said.get(&guest(vm)).cloned()
    }

    /// Takes down what it says. An empty one is none.
    pub(crate) fn say(&self, vm: &Vm, password: Password) -> Result<(), AlreadySaid> {
        let guest = guest(vm);
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if book.said.contains_key(&guest) {
            return Err(AlreadySaid);
        }
        if password.0.is_empty() {
            return Ok(());
        }
        if book.order.len() >= MAX_GUESTS
            && let Some(first) = book.order.pop_front()
        {
            book.said.remove(&first);
        }
        book.order.push_back(guest.clone());
        book.said.insert(guest, password);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str) -> Password {
        Password::new(text.as_bytes()).unwrap()
    }

    fn vm(number: usize, uuid: &str) -> Vm {
        let vmid = u32::try_from(100 + number).ok().and_then(VmId::new).unwrap();
        Vm { uuid: Some(uuid.to_owned()), ..Vm::new(vmid) }
    }

    #[test]
    fn it_is_said_once() {
        let passwords = Passwords::default();
        let own = vm(0, "a");
        assert_eq!(passwords.get(&own), None);
        assert_eq!(passwords.say(&own, password("")), Ok(()));
        assert_eq!(passwords.say(&own, password("x")), Ok(()));
        assert_eq!(passwords.say(&own, password("y")), Err(AlreadySaid));
        assert_eq!(passwords.get(&own), Some(password("x")));
        // A copy that kept the UUID, and whatever comes under the same number later.
        assert_eq!((passwords.get(&vm(1, "a")), passwords.get(&vm(0, "b"))), (None, None));
        assert!(!format!("{passwords:?}").contains("Password(x"), "{passwords:?}");
    }

    #[test]
    fn it_has_a_length() {
        assert!(Password::new(&[b'x'; MAX_PASSWORD]).is_ok());
        assert_eq!(Password::new(&[b'x'; MAX_PASSWORD + 1]), Err(TooLong));
    }

    #[test]
    fn the_first_is_forgotten_first() {
        let passwords = Passwords::default();
        (0..=MAX_GUESTS).for_each(|guest| passwords.say(&vm(guest, "a"), password("x")).unwrap());
        assert_eq!(passwords.get(&vm(0, "a")), None);
        assert!(passwords.get(&vm(1, "a")).is_some() && passwords.get(&vm(MAX_GUESTS, "a")).is_some());
    }
}
