//! How bytes arrive: from a guest's network interface to an HTTP request, and back.
//!
//! ```text
//! guest ── tap106i0 ──steer──▶ a ═ veth ═ b ──funnel──▶ Xsk ─▶ Driver ─▶ Stack ─▶ TapStream ─▶ hyper ─▶ service
//!                  ◀─shield──   a ◀─return──  b ◀────────────────────────────────────────────────┘
//! ```
//!
//! In come frames that the kernel programs ([`pve_imds_bpf`]) tagged with the slot of the interface they came from;
//! out go HTTP requests, each with its [`Peer`], to the service that was made for exactly this interface
//! ([`Driver`], [`Server`]). The slot is the only thing that decides whose request it is: nothing a guest writes into a
//! frame does. This room knows names and indexes of interfaces and nothing of VMs.
//!
//! `unsafe` stands in one file, [`xsk`](self), the rings of the AF_XDP socket.

mod afxdp;
mod backoff;
mod bounds;
mod connection;
mod devices;
mod driver;
mod ether;
mod heal;
mod links;
mod metrics;
mod patience;
mod pool;
mod port;
mod seats;
mod segment;
mod server;
mod slots;
mod stack;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod turns;
mod wire;
mod xsk;

pub use afxdp::Xsk;
pub use backoff::Backoff;
pub use devices::{Change, Device, DeviceError, Devices, Loss, Pair};
pub use driver::{Driver, entropy};
pub use ether::{METADATA_IP, METADATA_PORT};
pub use links::{Interface, LinkEvent, Links};
pub use metrics::{Ended, describe};
pub use pve_imds_bpf as bpf;
pub use seats::{Guests, Peer, Seat, Serve};
pub use server::Server;
pub use slots::Slots;
pub use stream::TapStream;
pub use wire::{Account, MAX_FRAME, MTU, Wire};
pub use xsk::Socket;
