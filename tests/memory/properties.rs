//! What the fuzzer tries for hours, tried for seconds: every input of the corpus, then the same ones spoiled.
//!
//! The inputs are seeds of each target (`tests/fuzz/corpus/TARGET`), among them those that once broke something, cut,
//! joined and changed by dice that always fall the same way. A property that does not hold names the input.

use std::cell::Cell;
use std::fs;
use std::panic;
use std::path::Path;
use std::sync::Once;

#[path = "../fuzz/properties.rs"]
mod targets;

#[test]
fn a_frame_is_read_within_its_bounds_and_answered_where_it_came_from() {
    hold("frame", targets::frame, 50_000);
}

#[test]
fn a_tag_has_one_spelling() {
    hold("tag", targets::tag, 20_000);
}

#[test]
fn a_path_is_one_endpoint_and_no_other_vms() {
    hold("path", targets::path, 20_000);
}

#[test]
fn no_token_is_good_but_the_one_that_was_given() {
    hold("token", targets::token, 20_000);
}

#[test]
fn a_connection_hears_http_and_its_own_vm_whatever_it_says() {
    hold("request", targets::request, 3_000);
}

#[test]
fn a_hostile_guest_keeps_to_its_share_and_its_neighbour_is_served() {
    hold("conversation", targets::conversation, 2_000);
}

/// Tries the corpus of `target` and `count` inputs made of it.
fn hold(target: &str, property: fn(&[u8]), count: usize) {
    let seeds = corpus(target);
    for (name, seed) in &seeds {
        check(name, property, seed);
    }
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for number in 0..count {
        check(&format!("{target} {number}"), property, &spoiled(&seeds, &mut dice));
    }
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(!names.is_empty(), "{target} has seeds");
    names.into_iter().map(|path| (path.display().to_string(), fs::read(&path).unwrap())).collect()
}

thread_local! {
    /// Panics on this thread: tokio keeps those of its tasks to itself.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

fn check(name: &str, property: fn(&[u8]), input: &[u8]) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
    let held = panic::catch_unwind(|| property(input)).is_ok() && PANICS.get() == 0;
    assert!(held, "{name} does not hold: b\"{}\"", input.escape_ascii());
}

/// xorshift64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }
}

/// No longer than what the fuzzer tries.
const LONGEST: usize = 4096;

/// A seed with a few things done to it.
fn spoiled(seeds: &[(String, Vec<u8>)], dice: &mut Dice) -> Vec<u8> {
    let mut input = seeds[dice.below(seeds.len())].1.clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(input.len() + 1);
        let end = (at + 1 + dice.below(16)).min(input.len());
        match dice.below(8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => input.insert(at, dice.byte()),
            3 => input.get_mut(at).into_iter().for_each(|byte| *byte = dice.byte()),
            4 => input.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << dice.below(8)),
            5 => input.get_mut(at).into_iter().for_each(|byte| *byte = [0, 0x7f, 0x80, 0xff][dice.below(4)]),
            6 => input = [&input[..end], &input[at..]].concat(),
            _ => {
                let other = &seeds[dice.below(seeds.len())].1;
                input.truncate(at);
                input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
            }
        }
    }
    input.truncate(LONGEST);
    input
}
