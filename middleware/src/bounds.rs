//! Every bound this room sets on a guest, each with its arithmetic.
//!
//! The bounds of connections, buffers and request heads belong to the transport. What may be moved by an operator is
//! passed to the layers' constructors; these are the values they start from.

use std::num::NonZeroU32;
use std::time::Duration;

/// Requests per second that one guest may go on making. A boot of cloud-init is 40 to 75 requests, an SDK asks a few
/// times an hour: a guest that needs more is in a loop, and 1,000 such guests are still only 200,000 requests/s.
pub const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(200).expect("not zero");

/// Requests that one guest may make at once after a pause: six boots' worth (6 × 75 = 450), so that a host full of
/// containers behind one interface starts without being told to wait.
pub const REQUEST_BURST: NonZeroU32 = NonZeroU32::new(500).expect("not zero");

/// Requests of one guest that may be worked on at the same time. Clients ask one at a time, or two for two addresses:
/// 64 is 32 such clients in one guest. When all of them wait for a slow backend they hold at most
/// 64 × (8 KiB head + 8 KiB body) = 1 MiB for [`REQUEST_TIME`].
pub const REQUESTS_IN_FLIGHT: usize = 64;

/// From a request's head to its answer's head. Backends have limits of seconds; this one is for what nobody thought of.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);

/// Bytes of a request body. The largest one taken is a report of a few hundred bytes: 8 KiB is an order of magnitude
/// more, and as much as a request head.
pub const REQUEST_BODY: u64 = 8 * 1024;

/// Bytes of a refused body that are read and thrown away, so that a client which sends first and reads later hears the
/// refusal and not a reset. Beyond 64 KiB (eight times what is allowed) it is no honest mistake.
pub const REFUSED_BODY_DRAIN: u64 = 64 * 1024;

/// Identity tokens per second that one VM may go on asking for. A program needs one in five minutes: ten a second are 3,000
/// such programs, and at two thirds of a millisecond each, HTTP and all, they take a VM 0.7 % of a core.
pub const TOKENS_PER_SECOND: NonZeroU32 = NonZeroU32::new(10).expect("not zero");

/// Identity tokens that one VM may ask for at once after a pause: those of twenty programs that start together.
pub const TOKEN_BURST: NonZeroU32 = NonZeroU32::new(20).expect("not zero");

/// Characters of a path that are logged. The longest path served is about 90 characters
/// (`/2021-03-23/meta-data/network/interfaces/macs/52:54:00:12:34:56/subnet-ipv4-cidr-block/`).
pub const LOGGED_PATH: usize = 128;

/// Log lines per second that one guest may go on causing, for each of the access log and the fault log. journald drops a
/// service's lines beyond 10,000 in 30 s (333/s): 5 lets 60 guests loop before anybody's line is lost.
pub const LOG_LINES_PER_SECOND: NonZeroU32 = NonZeroU32::new(5).expect("not zero");

/// Log lines that one guest may cause at once after a pause: two boots' worth (2 × 75 = 150), so that each request of
/// an ordinary boot has its line.
pub const LOG_LINE_BURST: NonZeroU32 = NonZeroU32::new(150).expect("not zero");
