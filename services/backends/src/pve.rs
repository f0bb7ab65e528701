//! `/etc/pve`: which VMs there are and what their configurations say, always at hand and never waited for.
//!
//! Proxmox's cluster file system (pmxcfs) is a FUSE mount. It raises no inotify event for what other nodes write, it can
//! hang, vanish and come back empty, and its modification times have a resolution of a second. So:
//!
//! * requests read a snapshot in memory ([`Inventory`]); all IO is on one thread of its own (`watch`);
//! * the change feed is `.version` and, when it says so, `.vmlist`, polled; inotify only shortens the wait;
//! * contents are compared by digest, never by time (`reload`);
//! * what cannot be read is kept as it was and marked stale; only what the list of VMs has lost is forgotten;
//! * what looks like half a file is one that is being written, until it has stayed so (`verdict`);
//! * what is stale is told only to guests that ran before it was: whoever started since may be another VM.
//!
//! A directory without `.vmlist` works too: its configurations are then listed and all read at each poll, which is
//! meant for small trees.

mod again;
mod fetch;
mod files;
mod follow;
#[cfg(test)]
mod given_again;
mod hints;
mod inventory;
mod keyring;
mod members;
mod metrics;
mod nodes;
mod outline;
#[cfg(test)]
mod overheard;
mod pace;
mod progress;
mod reload;
mod serving;
mod unread;
mod verdict;
mod watch;

pub use again::{Quorum, Seen, Unseen};
pub use inventory::{Digest, Inventory, Record, Settings, Signing};
pub use metrics::describe as describe_metrics;
pub use nodes::{Look, is_node_name};
pub use unread::{File, Stance, Trouble, Unread};
pub use watch::Watcher;
