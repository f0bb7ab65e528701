//! What is said about a panic: where, and not what. Its message may quote what must not be quoted.

use std::panic;

/// Replaces the process's panic hook by one that logs the place of a panic, without its message, as an error. For
/// daemons: a test that fails says why in that message.
pub fn report_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        if tracing::dispatcher::has_been_set() {
            let thread = std::thread::current();
            tracing::error!(thread = thread.name().unwrap_or("-"), "panic at {place}");
        } else {
            // Before logs are installed there is nobody else to tell.
            eprintln!("panic at {place}");
        }
    }));
}
