//! `/openstack/<version>/password`: the administrator's password that a guest has drawn, encrypted with its owner's public
//! key by the guest itself (cloudbase-init, cloud-init's `set-password`).
//!
//! A guest may say it once; its owner reads it. It lives in memory, under the identity the guest was given, until the
//! daemon ends. Refused: a second one, and one that is longer than Nova's four columns of 255 bytes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of a password, Nova's bound.
pub(crate) const MAX_PASSWORD: usize = 4 * 255;

/// Guests whose password is kept; the first to have said one is forgotten first. 4,096 of them are 4 MiB.
const MAX_GUESTS: usize = 4096;

/// What a guest has said. Encrypted or not, it is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Bytes);

impl Password {
    /// Takes what was sent.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn new(bytes: Bytes) -> Result<Self, TooLong> {
        if bytes.len() > MAX_PASSWORD { Err(TooLong) } else { Ok(Self(bytes)) }
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
    said: HashMap<String, Password>,
    order: VecDeque<String>,
}

impl Passwords {
    /// What the guest of this identity has said.
    #[must_use]
    pub fn get(&self, instance_id: &str) -> Option<Password> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).said.get(instance_id).cloned()
    }

    /// Takes down what it says. An empty one is none.
    pub(crate) fn say(&self, instance_id: &str, password: Password) -> Result<(), AlreadySaid> {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if book.said.contains_key(instance_id) {
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
        book.order.push_back(instance_id.to_owned());
        book.said.insert(instance_id.to_owned(), password);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str) -> Password {
        Password::new(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn it_is_said_once() {
        let passwords = Passwords::default();
        assert_eq!(passwords.get("a"), None);
        assert_eq!(passwords.say("a", password("")), Ok(()));
        assert_eq!(passwords.say("a", password("x")), Ok(()));
        assert_eq!(passwords.say("a", password("y")), Err(AlreadySaid));
        assert_eq!((passwords.get("a"), passwords.get("b")), (Some(password("x")), None));
        assert!(!format!("{passwords:?}").contains("Password(x"), "{passwords:?}");
    }

    #[test]
    fn it_has_a_length() {
        assert!(Password::new(Bytes::from(vec![b'x'; MAX_PASSWORD])).is_ok());
        assert_eq!(Password::new(Bytes::from(vec![b'x'; MAX_PASSWORD + 1])), Err(TooLong));
    }

    #[test]
    fn the_first_is_forgotten_first() {
        let passwords = Passwords::default();
        (0..=MAX_GUESTS).for_each(|guest| passwords.say(&guest.to_string(), password("x")).unwrap());
        assert_eq!(passwords.get("0"), None);
        assert!(passwords.get("1").is_some() && passwords.get(&MAX_GUESTS.to_string()).is_some());
    }
}
