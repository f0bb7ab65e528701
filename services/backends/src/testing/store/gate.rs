//! The gate that connections come through, each with a thread of its own.
//!
//! Whoever closes it closes all of them and waits until their threads have ended. Nobody passes a closed gate, and no more
//! than [`MAX`] are inside at once: a connection over that is closed unheard.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::lock;

const MAX: usize = 256;

#[derive(Default)]
pub(super) struct Gate {
    inside: Mutex<Inside>,
    closed: Condvar,
}

#[derive(Default)]
struct Inside {
    is_closed: bool,
    count: u64,
    streams: BTreeMap<u64, TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

/// A place inside; given back also when a thread falls over.
struct Place(Arc<Gate>, u64);

impl Gate {
    /// Lets a connection in.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn enter(
        self: &Arc<Self>,
        stream: TcpStream,
        serve: impl FnOnce(&Self, TcpStream) + Send + 'static,
    ) -> io::Result<()> {
        let known = stream.try_clone()?;
        let mut inside = lock(&self.inside);
        if inside.is_closed || inside.streams.len() == MAX {
            return Ok(());
        }
        inside.threads.retain(|thread| !thread.is_finished());
        inside.count += 1;
        let place = Place(Arc::clone(self), inside.count);
        inside.streams.insert(place.1, known);
        // Without a thread the place is given back here.
        drop(inside);
        let thread = thread::Builder::new().name("kv-connection".into()).spawn(move || serve(&place.0, stream))?;
        let mut inside = lock(&self.inside);
        if inside.is_closed {
            drop(inside);
            _ = thread.join();
        } else {
            inside.threads.push(thread);
        }
        Ok(())
    }

    /// Waits. `false`: the gate was closed meanwhile.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let inside = lock(&self.inside);
        let waited = self.closed.wait_timeout_while(inside, time, |inside| !inside.is_closed);
        waited.is_ok_and(|(inside, _)| !inside.is_closed)
    }

    /// Closes it and all connections.
    pub(super) fn close(&self) {
        let mut inside = lock(&self.inside);
        inside.is_closed = true;
        for stream in inside.streams.values() {
            // Wakes whoever reads or writes; it may have been closed by the other side.
            _ = stream.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut inside.threads);
        drop(inside);
        self.closed.notify_all();
        for thread in threads {
            // It has told about its own panic.
            _ = thread.join();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(stream) = lock(&self.0.inside).streams.remove(&self.1) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}
