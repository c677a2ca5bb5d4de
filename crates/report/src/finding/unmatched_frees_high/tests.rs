use std::time::Duration;

use super::{super::reported, *};
use crate::{
    facts::{Moment, Snapshot},
    samples,
};

/// Counts of one allocator, as (allocated, freed, unmatched).
type Counts = (u64, u64, u64);

/// A process that was attached to, whose counts stood so after 5 of 10 seconds, and stand so now.
fn snapshot(halfway: Counts, now: Counts) -> Snapshot {
    let at = |(allocated, freed, unmatched): Counts| {
        let mut snapshot = samples::drain_snapshot();
        let totals = &mut snapshot.targets[0].allocators[0].totals;
        (totals.allocated, totals.freed, totals.unmatched_frees) = (allocated, freed, unmatched);
        snapshot.losses[Loss::UnmatchedFree as usize] = unmatched;
        snapshot
    };
    let moment = Moment { after: Duration::from_secs(5), flows: at(halfway).flows() };
    Snapshot { halfway: Some(moment), ..at(now) }
}

/// Attached to a healthy program, in which old objects are replaced by new ones for some time or all the
/// time, that shrinks at some time, or that grows, nothing is reported.
#[test]
fn healthy_programs_are_not_accused() {
    for (name, halfway, now) in [
        ("old objects go at first", (10_000, 5_000, 5_000), (20_000, 15_000, 5_000)),
        ("old objects go all the time", (10_000, 5_000, 5_000), (20_000, 12_000, 8_000)),
        ("it goes up and down a little", (10_000, 5_000, 5_060), (20_000, 12_000, 7_900)),
        ("everything is freed at the end", (10_000, 9_000, 1_010), (11_000, 11_000, 50_000)),
        ("everything is freed at first", (10_000, 9_000, 50_000), (20_000, 18_900, 51_000)),
        ("it grows", (10_000, 2_000, 500), (20_000, 4_000, 1_000)),
        ("hardly any", (1_000, 1_000, 15), (2_000, 2_000, 30)),
    ] {
        let found = reported(&RULE, &snapshot(halfway, now));
        assert!(found.is_empty(), "{name}: {}", found[0].message);
    }
}

/// Where an alloc function is missed, it is reported with the numbers, whether old objects are freed beside or
/// not, and however many frees match.
#[test]
fn missed_functions_are_told() {
    for (name, halfway, now) in [
        ("one of two", (10_000, 10_000, 10_000), (20_000, 20_000, 20_000)),
        ("old objects beside", (10_000, 5_000, 15_000), (20_000, 14_000, 26_000)),
        ("one of fifty", (49_000, 49_000, 1_000), (98_000, 98_000, 2_000)),
        ("a busier second half", (10_000, 10_000, 10_000), (40_000, 40_000, 40_000)),
    ] {
        let found = reported(&RULE, &snapshot(halfway, now));
        assert_eq!(found.len(), 1, "{name}");
        assert!(found[0].message.contains("misses an alloc function"), "{}", found[0].message);
        assert_eq!(found[0].profile.as_deref(), Some("epoch-demo"));
    }
    let found = reported(&RULE, &snapshot((10_000, 10_000, 10_000), (20_000, 20_000, 20_000)));
    let begin = "20000 of 40000 frees (50.0 %) are of objects whose allocation was not seen";
    assert!(found[0].message.starts_with(begin), "{}", found[0].message);
}

/// Frees that belong to no allocator are judged in the same way, for the report as a whole.
#[test]
fn frees_that_belong_nowhere() {
    let nowhere = |halfway: u64, now: u64| {
        let mut snapshot = snapshot((10_000, 10_000, 0), (20_000, 20_000, 0));
        snapshot.losses[Loss::UnmatchedFree as usize] = now;
        if let Some(moment) = &mut snapshot.halfway {
            moment.flows.unmatched = halfway;
        }
        reported(&RULE, &snapshot)
    };
    let found = nowhere(5_000, 10_000);
    assert!(found[0].message.starts_with("10000 frees (33.3 % of all)"), "{}", found[0].message);
    assert_eq!((found.len(), found[0].profile.as_ref()), (1, None));
    assert!(nowhere(5_000, 5_010).is_empty(), "they came at first only");
}

/// As long as nothing is known of an earlier moment, no profile is accused.
#[test]
fn without_a_middle() {
    let half_probed = snapshot((10_000, 10_000, 10_000), (20_000, 20_000, 20_000));
    assert!(reported(&RULE, &Snapshot { halfway: None, ..half_probed }).is_empty());
}

/// Where a process was observed from its start, up to 1 % is silent and more is reported at once; a child may
/// free what its parent allocated, and a program that was found late what it had before.
#[test]
fn from_the_start() {
    let began = |began: Began, late: u64, unmatched: u64| {
        let mut snapshot =
            Snapshot { halfway: None, ..snapshot((0, 0, 0), (2_573, 99, unmatched)) };
        snapshot.targets[0].began = began;
        snapshot.losses[Loss::AttachedLate as usize] = late;
        reported(&RULE, &snapshot)
    };
    assert!(began(Began::FromStart, 0, 1).is_empty());
    let found = began(Began::FromStart, 0, 2);
    assert!(found[0].message.starts_with("2 of 101 frees (1.98 %)"), "{}", found[0].message);
    assert!(found[0].message.contains("or the target frees twice"), "{}", found[0].message);
    assert_eq!(began(Began::Exec { from_target: 0 }, 0, 2).len(), 1);
    assert!(began(Began::Exec { from_target: 0 }, 1, 2).is_empty());
    assert!(began(Began::Forked { from_target: 0 }, 0, 2).is_empty());
}
