//! The store's name, turned into addresses by the system.
//!
//! In comes a name; out come its addresses. The system's resolver may take half a minute, and cannot be told to stop: so
//! one question is asked at a time, and whoever waits behind one that hangs gives up with its connection.

use std::net::ToSocketAddrs;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

#[derive(Debug)]
pub(super) struct Lookup(Arc<Semaphore>);

impl Default for Lookup {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let line = Arc::clone(&self.0);
        Box::pin(async move {
            let place = line.acquire_owned().await?;
            let addresses = spawn_blocking(move || {
                let _taken = place;
                // Port 0 stands for the URL's.
                (name.as_str(), 0).to_socket_addrs()
            });
            Ok(Box::new(addresses.await??) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_the_systems() {
        let lookup = Lookup::default();
        let mut found = lookup.resolve("localhost".parse().unwrap()).await.unwrap();
        assert!(found.all(|address| address.ip().is_loopback()));
        assert!(lookup.resolve("no-such-host.invalid".parse().unwrap()).await.is_err());
    }
}
