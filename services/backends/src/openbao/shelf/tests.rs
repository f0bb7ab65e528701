use pve_imds_model::pools::PoolId;
use pve_imds_model::secrets::{PathTemplate, Scope, SetName};

use super::*;
use crate::openbao::answer;
use crate::openbao::error::{Failure, Missing};

const KEEP: Duration = Duration::from_secs(60);

fn path(set: &str) -> SecretPath {
    let template = PathTemplate::parse("kv/data/{pool}/{name}").unwrap();
    let scope = Scope::Pool(PoolId::parse("lab").unwrap());
    template.path(&scope, &SetName::parse(set).unwrap()).unwrap()
}

fn set(field: &str, length: usize) -> Landed {
    let value = "v".repeat(length);
    let body = format!(r#"{{"data":{{"data":{{"{field}":"{value}"}},"metadata":{{}}}}}}"#);
    Ok(Arc::new(answer::read(200, body.as_bytes()).unwrap()))
}

fn failed(error: impl Into<FetchError>) -> Landed {
    Err(Arc::new(error.into()))
}

fn unreachable() -> Landed {
    failed(Failure::Unreachable("refused".into()))
}

/// What somebody who asks for a field is told to do.
fn turn(shelf: &mut Shelf, set: &str, field: &str, now: Instant) -> &'static str {
    match shelf.turn(&path(set), |set| set.field(field).is_some(), now) {
        Turn::Have(_) => "have",
        Turn::Failed(_) => "failed",
        Turn::Join(_) => "join",
        Turn::Begin(_) => "begin",
    }
}

fn at(begun: Instant, millis: u64) -> Instant {
    begun + Duration::from_millis(millis)
}

#[test]
fn a_set_is_fetched_once_for_all_and_kept_for_a_while() {
    let begun = Instant::now();
    let mut shelf = Shelf::new(KEEP, begun);
    for (now, lands, expected) in [
        (0, None, "begin"),
        (1, None, "join"),
        (899, None, "join"),
        (900, Some(set("a", 1)), "have"),
        (60_899, None, "have"),
        (60_900, None, "begin"),
        (60_901, None, "join"),
        (60_902, Some(set("a", 1)), "have"),
    ] {
        let now = at(begun, now);
        if let Some(landed) = lands {
            assert!(shelf.landed(&path("x"), &landed, now).is_some());
        }
        assert_eq!(turn(&mut shelf, "x", "a", now), expected, "{now:?}");
    }
    assert_eq!(turn(&mut shelf, "y", "a", at(begun, 60_902)), "begin", "another set is another");
}

#[test]
fn who_fails_is_asked_once_a_second_and_set() {
    let begun = Instant::now();
    for error in [
        || failed(Missing::Never),
        || failed(FetchError::Denied(403)),
        || failed(Failure::NoSet),
        unreachable as fn() -> Landed,
    ] {
        let mut shelf = Shelf::new(KEEP, begun);
        let mut begins = Vec::new();
        for now in 0..10_000 {
            if turn(&mut shelf, "x", "a", at(begun, now)) == "begin" {
                begins.push(now);
                assert!(shelf.landed(&path("x"), &error(), at(begun, now)).is_none());
            }
        }
        // Its clock does not begin with ours.
        assert!((10..=11).contains(&begins.len()), "{begins:?}");
        assert!(begins.windows(2).skip(1).all(|pair| (999..=1001).contains(&(pair[1] - pair[0]))), "{begins:?}");
        assert!(begins[1] <= 1000, "{begins:?}");
    }
}

#[test]
fn sets_that_fail_together_are_not_asked_for_together() {
    let begun = Instant::now();
    let mut shelf = Shelf::new(KEEP, begun);
    let mut seconds = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        seconds.push(shelf.next_second(&path(name), begun) - begun);
        assert!(seconds.last().is_some_and(|second| *second <= Duration::from_nanos(SECOND) && !second.is_zero()));
    }
    seconds.sort_unstable();
    seconds.dedup();
    assert_eq!(seconds.len(), 8);
    // And a set's clock keeps its time.
    let (first, later) = (shelf.next_second(&path("a"), begun), shelf.next_second(&path("a"), at(begun, 5000)));
    assert_eq!(later - first, Duration::from_secs(5));
    assert_eq!(turn(&mut shelf, "a", "a", begun), "begin");
}

#[test]
fn an_outage_is_everybodys() {
    let begun = Instant::now();
    let mut shelf = Shelf::new(KEEP, begun);
    assert_eq!(turn(&mut shelf, "first", "a", begun), "begin");
    shelf.landed(&path("first"), &unreachable(), begun);
    // A thousand sets ask all the time: a few of them get through to the store.
    let mut begins = 0;
    for now in 1..=1000 {
        let name = format!("x{}", now % 500);
        if turn(&mut shelf, &name, "a", at(begun, now)) == "begin" {
            begins += 1;
            shelf.landed(&path(&name), &unreachable(), at(begun, now));
        }
    }
    assert!((7..=9).contains(&begins), "{begins}");
    // The first one that gets through ends it.
    let now = at(begun, 3000);
    assert_eq!(turn(&mut shelf, "x1", "a", now), "begin");
    assert_eq!(turn(&mut shelf, "x2", "a", now), "failed");
    shelf.landed(&path("x1"), &failed(Missing::Never), now);
    assert_eq!(turn(&mut shelf, "x2", "a", now), "begin");
    assert_eq!(turn(&mut shelf, "x3", "a", now), "begin");
}

#[test]
fn a_set_that_lacks_something_is_looked_at_again() {
    let begun = Instant::now();
    let mut shelf = Shelf::new(KEEP, begun);
    assert_eq!(turn(&mut shelf, "x", "b", begun), "begin");
    shelf.landed(&path("x"), &set("a", 1), begun);
    assert_eq!(turn(&mut shelf, "x", "b", begun), "have", "it was fetched just now");
    assert_eq!(turn(&mut shelf, "x", "b", at(begun, 1000)), "begin");
    assert_eq!(turn(&mut shelf, "x", "b", at(begun, 1001)), "join");
    assert_eq!(turn(&mut shelf, "x", "a", at(begun, 1001)), "have", "for others it is enough");
    // The store is gone: what is here still is.
    shelf.landed(&path("x"), &unreachable(), at(begun, 1002));
    assert_eq!(turn(&mut shelf, "x", "a", at(begun, 1003)), "have");
    assert_eq!(turn(&mut shelf, "x", "b", at(begun, 1003)), "have");
    assert_eq!(turn(&mut shelf, "x", "b", at(begun, 3000)), "begin");
    // The store says that we may not have it any more.
    shelf.landed(&path("x"), &failed(FetchError::Denied(403)), at(begun, 3001));
    assert_eq!(turn(&mut shelf, "x", "a", at(begun, 3002)), "failed");
}

#[test]
fn what_is_kept_is_bounded_and_wiped_in_time() {
    let begun = Instant::now();
    let mut shelf = Shelf::new(KEEP, begun);
    let big = MAX_BYTES / 4;
    for (now, name) in (0..).zip(["a", "b", "c", "d", "e"]) {
        let now = at(begun, now);
        assert_eq!(turn(&mut shelf, name, "a", now), "begin");
        shelf.landed(&path(name), &set("a", big), now);
        // Asked for again, it is not the oldest.
        assert_eq!(turn(&mut shelf, "a", "a", now), "have");
    }
    let kept = |shelf: &Shelf| shelf.sets.values().filter(|entry| entry.kept.is_some()).count();
    assert_eq!(kept(&shelf), 3);
    assert_eq!(turn(&mut shelf, "b", "a", at(begun, 2000)), "begin");
    // One that alone is too much is kept all the same: an answer is bounded.
    shelf.landed(&path("b"), &set("a", MAX_BYTES), at(begun, 2000));
    assert_eq!((kept(&shelf), turn(&mut shelf, "b", "a", at(begun, 2000))), (1, "have"));
    shelf.forget(at(begun, 61_999));
    assert_eq!(kept(&shelf), 1);
    shelf.forget(at(begun, 62_000));
    assert_eq!(kept(&shelf), 0);

    for name in 0..2 * MAX_SETS {
        turn(&mut shelf, &format!("n{name}"), "a", at(begun, 70_000));
        shelf.landed(&path(&format!("n{name}")), &failed(Missing::Never), at(begun, 70_000));
    }
    assert_eq!(shelf.sets.len(), MAX_SETS);
}
