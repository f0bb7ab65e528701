//! A memory with an end: so much is kept, and what was put down first is forgotten first.
//!
//! Whoever fills one does so on behalf of guests, and a guest must not be able to grow it.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Entries that are kept: as many as guests have a place at once.
pub(crate) const MAX_ENTRIES: usize = 4096;

/// What is known by `K`.
#[derive(Debug)]
pub(crate) struct Book<K, V> {
    entries: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Book<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V> Book<K, V> {
    /// What stands there.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    /// Puts it down, in the place of what stood there. It is the newest entry then.
    pub(crate) fn put(&mut self, key: K, value: V) {
        if self.entries.insert(key.clone(), value).is_some() {
            self.order.retain(|known| *known != key);
        } else if self.order.len() >= MAX_ENTRIES
            && let Some(first) = self.order.pop_front()
        {
            self.entries.remove(&first);
        }
        self.order.push_back(key);
    }

    /// Forgets everything else.
    pub(crate) fn keep(&mut self, is_kept: impl Fn(&K) -> bool) {
        self.order.retain(|key| is_kept(key));
        self.entries.retain(|key, _| is_kept(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_forgotten_first() {
        let mut book = Book::default();
        for key in 0..MAX_ENTRIES {
            book.put(key, 'a');
        }
        // The oldest becomes the newest.
        book.put(0, 'b');
        book.put(MAX_ENTRIES, 'a');
        assert_eq!((book.get(&0), book.get(&1), book.get(&2)), (Some(&'b'), None, Some(&'a')));
        assert_eq!(book.get(&MAX_ENTRIES), Some(&'a'));
        assert_eq!((book.entries.len(), book.order.len()), (MAX_ENTRIES, MAX_ENTRIES));
        book.keep(|key| *key < 4);
        assert_eq!((book.get(&0), book.get(&4)), (Some(&'b'), None));
        assert_eq!((book.entries.len(), book.order.len()), (3, 3));
    }
}
