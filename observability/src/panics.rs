//! What is said about a panic: which thread, where, and why if that cannot quote anybody.

use std::any::Any;
use std::panic;

/// Replaces the process's panic hook by one that logs thread, place and, if it is safe, the message of a panic as an
/// error. For daemons: a test that fails says why by itself.
pub fn report_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let why = said(info.payload());
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("-");
        if tracing::dispatcher::has_been_set() {
            tracing::error!(thread, "panic at {place}: {why}");
        } else {
            // Before logs are installed there is nobody else to tell.
            eprintln!("panic in {thread} at {place}: {why}");
        }
    }));
}

/// A message that stands in the source as it is says nothing that is not public. One that was put together at run time may
/// quote what was at hand: `unwrap` prints the error, slicing a string prints the string, and that string may be a guest's
/// user data. Nobody can promise for every library that it is not, and the place tells which one it was.
fn said(payload: &(dyn Any + Send)) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or("(a message made at run time, which may quote; not logged)")
}
