//! `make clients`: every client of the table against the daemon, and what became of each cell. Needs root.
//!
//! In come the clients, as `tests/guest/debian.sh` and `tests/clients/build.sh` installed them; out goes the table with their
//! versions, behind it why cells failed, and as the last line how many passed. Exits 1 unless all did. Arguments keep to the
//! clients that have one of them in their name.
#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "clients live in real time")]

mod cells;
mod dialect;
mod login;
mod places;
mod programs;
mod table;
#[path = "../world/mod.rs"]
mod world;

use std::panic::catch_unwind;
use std::process::ExitCode;

use cells::{Failure, Outcome, cells, run};
use table::{CLIENTS, Client, Dialect};

/// Each waits for others most of its time.
const AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |client: &Client| names.is_empty() || names.iter().any(|name| client.name.contains(name.as_str()));
    // What a cell says when it breaks off is told with the cell.
    std::panic::set_hook(Box::new(|_| {}));
    let cells = cells(wanted);
    println!("{} cells, {AT_ONCE} at once:", cells.len());
    let outcomes = match catch_unwind(|| run(&cells, AT_ONCE, tell)) {
        Ok(outcomes) => outcomes,
        Err(panic) => {
            println!("the node cannot be set up: {}\n0 of {} cells pass", cells::words(panic), cells.len());
            return ExitCode::FAILURE;
        }
    };
    print(CLIENTS.iter().filter(|client| wanted(client)), &outcomes);
    for Outcome { cell, result, .. } in &outcomes {
        if let Err(reason) = result {
            println!("{} x {}: {reason}\n", cell.client.name, cell.dialect.word());
        }
    }
    let passed = outcomes.iter().filter(|outcome| outcome.result.is_ok()).count();
    println!("{passed} of {} cells pass", outcomes.len());
    if passed == outcomes.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// As the table has it.
const fn word(outcome: &Outcome) -> &'static str {
    match outcome.result {
        Ok(()) => "pass",
        Err(Failure::Lacking(_)) => "lacking",
        Err(Failure::Wrong(_)) => "FAIL",
    }
}

/// A line while the others still run.
fn tell(outcome: &Outcome) {
    let Outcome { cell, took, .. } = outcome;
    println!("  {:<7}  {} x {}, {:.1} s", word(outcome), cell.client.name, cell.dialect.word(), took.as_secs_f64());
}

/// The table: `-` where a client does not speak a dialect.
fn print<'a>(clients: impl Iterator<Item = &'a Client>, outcomes: &[Outcome]) {
    let head = ["client", "version"].map(str::to_owned);
    let mut lines = vec![(head, Dialect::ALL.map(Dialect::word))];
    for client in clients {
        let words = Dialect::ALL.map(|dialect| {
            let of_it = |outcome: &&Outcome| outcome.cell.client.program == client.program;
            let outcome = outcomes.iter().filter(of_it).find(|outcome| outcome.cell.dialect == dialect);
            outcome.map_or("-", word)
        });
        let version = catch_unwind(|| places::version(client.program)).unwrap_or_else(|_| "not there".to_owned());
        lines.push(([client.name.to_owned(), version], words));
    }
    let [name, version] =
        [0, 1].map(|column| lines.iter().map(|(cells, _)| cells[column].len() + 2).max().unwrap_or(0));
    println!();
    for (cells, [first, second, third, fourth]) in &lines {
        println!("{:<name$}{:<version$}{first:<11}{second:<11}{third:<11}{fourth}", cells[0], cells[1]);
    }
    println!();
}
