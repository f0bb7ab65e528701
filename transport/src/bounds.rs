//! Every bound of this room, each with its arithmetic (design: "Bounds").

use std::time::Duration;

/// Connections of one guest that have not finished their handshake: 5 MiB. More than any client opens at once; the
/// oldest goes when one more comes.
pub(crate) const HALF_OPEN: usize = 64;

/// Established connections of one guest: 20 MiB. The most that was seen of a real client is 75, one after another. When
/// one more comes, the one that has been idle the longest goes.
pub(crate) const OPEN: usize = 256;

/// What we may have in flight to a guest per connection. Round trips take microseconds: more only costs memory.
pub(crate) const SEND_BUFFER: usize = 64 << 10;

/// What a guest may have in flight to us per connection; requests are smaller than this.
pub(crate) const RECEIVE_BUFFER: usize = 16 << 10;

/// How far packets may travel of a guest of whom nothing else is said: as far as anybody's.
pub(crate) const HOPS: u8 = 64;

/// All guests together: 256 MiB of buffers.
pub(crate) const BUFFERS: usize = 256 << 20;

/// Connections a guest always gets, however much the others hold.
pub(crate) const GRANTED: usize = 16;

/// Sockets that wait for their next connection: 2.5 MiB, as many connections as end while others begin.
pub(crate) const SPARE: usize = 32;

/// A handshake that is not finished by then never will be.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a peer may take nothing of what we sent while more of its answer waits: it is dead, or keeps its window shut
/// for ever. One byte starts the time anew, and costs the peer a connection of its own share.
pub(crate) const STALLED: Duration = Duration::from_secs(15);

/// How long a closed connection may take to say goodbye once all its bytes have arrived.
pub(crate) const GOODBYE: Duration = Duration::from_secs(5);

/// How long what was answered may take to arrive after the connection was closed on our side; a request's own time.
pub(crate) const DELIVERY: Duration = Duration::from_secs(30);

/// How long answers may take to arrive after the daemon was told to stop.
pub(crate) const LAST_DELIVERY: Duration = Duration::from_secs(2);

/// Frames read from the wire before other tasks get their turn.
pub(crate) const FRAMES_PER_TURN: usize = 64;

/// Segments sent for one guest before the next one's turn: a fourth of what the wire takes at once, and three full
/// windows of a connection.
pub(crate) const SEGMENTS_PER_TURN: usize = 128;

/// A request line and its fields. hyper wants at least 8 KiB of buffer and refuses more with 431.
pub(crate) const HEAD: usize = 8 << 10;

/// Header fields in a request.
pub(crate) const FIELDS: usize = 64;

/// From the first byte of a request's head until the head is whole. A head fits five segments.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(5);

/// How long an open connection may wait for the first byte of its next request. Clients that ask again at all do so at
/// once; coming back later costs them one round trip.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(15);

/// A wire that took no more is tried again after this: the kernel sends synchronously, so it is never longer.
pub(crate) const RETRY: Duration = Duration::from_millis(1);
