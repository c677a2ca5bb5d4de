//! The verdicts on generated programs, of which it is known what they do.

use std::time::Duration;

use drainprof_common::loss::Loss;

use super::{
    generated_tests::{BYTES, Random, Run, Stay, Stream, facts, judged, report, snapshot, verdict},
    *,
};
use crate::{
    facts::Duty,
    fit::{self, At, Changes},
    series::{HeldPoint, HeldSeries},
};

/// Runs per program.
const SEEDS: u64 = 100;

fn run(streams: &[(f64, Stay)]) -> Run {
    let streams = streams.iter().map(|&(rate, stay)| Stream { rate, stay }).collect();
    Run { length: 60.0, step: 0.2, before: 0.0, ended: false, streams }
}

/// How many of the runs have this verdict.
fn share(run: &Run, wanted: impl Fn(Growth) -> bool) -> f64 {
    let good = (0..SEEDS).filter(|&seed| wanted(run.verdict(seed))).count();
    good as f64 / SEEDS as f64
}

/// Never freed: a linear leak in all runs, in long and short ones, with many and few granules; the slope
/// is the rate, the forecast is the rate in bytes for a day.
#[test]
fn never_freed() {
    for (rate, length, step) in
        [(15.0, 60.0, 0.2), (400.0, 6.0, 0.05), (0.5, 3_600.0, 5.0), (3.0, 20.0, 0.05)]
    {
        let run = Run { length, step, ..run(&[(rate, Stay::ForEver)]) };
        let found = share(&run, |verdict| verdict == Growth::LinearLeak);
        assert!(found >= 0.95, "{rate}/s for {length} s: {found}");
    }
    let known = run(&[(15.0, Stay::ForEver)]).judged(1);
    let slope = known.slope_granules_per_second.unwrap();
    assert!((14.0..16.0).contains(&slope), "{slope}");
    assert!(known.r_squared.unwrap() > 0.99);
    let bytes = known.forecast_bytes_per_day.unwrap();
    assert!((bytes / (slope * 86_400.0 * BYTES as f64) - 1.0).abs() < 1e-9, "{bytes}");
}

/// Bounded by eviction, by a time to live, or by clearing: bounded in nearly all runs, accused in hardly
/// any, and nothing is forecast.
#[test]
fn bounded_by_eviction() {
    for stay in [Stay::Evicted(300), Stay::Fixed(5.0), Stay::About(4.0), Stay::Cleared(6.0)] {
        let run = run(&[(40.0, stay)]);
        let bounded = share(&run, |verdict| verdict == Growth::Bounded);
        assert!(bounded >= 0.9, "{stay:?}: {bounded}");
        let known = run.judged(3);
        assert_eq!(known.forecast_bytes_per_day, None, "{stay:?}");
    }
}

/// Attached to while they run, for 5 s to 2 min: what is bounded is never accused, however long its pins live beside the
/// observation; what leaks is never called bounded, and accused where the leak outweighs what else settles meanwhile.
#[test]
fn attached_to() {
    let about = |rate, stay| vec![(rate, stay)];
    let with_leak = |rate| vec![(40.0, Stay::Fixed(20.0)), (rate, Stay::ForEver)];
    let programs = [
        ("ring", about(500.0, Stay::Evicted(4096)), false),
        ("slow cache", about(50.0, Stay::About(90.0)), false),
        ("lifetime beyond the run", about(50.0, Stay::Fixed(300.0)), false),
        ("bursts", about(80.0, Stay::Cleared(2.0)), false),
        ("short", about(200.0, Stay::About(0.5)), false),
        ("leak", about(15.0, Stay::ForEver), true),
        ("leak beside a cache", with_leak(15.0), true),
        ("leak that outweighs a cache", with_leak(120.0), true),
    ];
    let mut missed = Vec::new();
    for (name, streams, leaks) in programs {
        for length in [5.0, 10.0, 30.0, 120.0] {
            let run = Run { length, step: length / 200.0, before: 600.0, ..run(&streams) };
            let verdicts: Vec<Growth> =
                (0..10).map(|seed| run.judged(seed).verdict.unwrap()).collect();
            let accused = |verdict: &&Growth| matches!(verdict, Growth::LinearLeak | Growth::Mixed);
            let accused = verdicts.iter().filter(accused).count();
            if leaks {
                assert!(!verdicts.contains(&Growth::Bounded), "{name}, {length} s: {verdicts:?}");
                missed.push((name, length, 10 - accused));
            } else {
                assert_eq!(accused, 0, "{name}, {length} s: {verdicts:?}");
            }
        }
    }
    missed.retain(|(_, _, runs)| *runs > 0);
    // While what the cache took before the attach goes, and until the cache has settled.
    let expected = [
        ("leak beside a cache", 5.0, 10),
        ("leak beside a cache", 10.0, 10),
        ("leak beside a cache", 30.0, 10),
        ("leak that outweighs a cache", 30.0, 10),
    ];
    assert_eq!(missed, expected, "of ten runs each");
}

/// Temporary plus linear: mixed, with the slope of the linear part alone.
#[test]
fn temporary_and_linear() {
    for temporary in [Stay::About(0.5), Stay::Fixed(2.0), Stay::Evicted(50)] {
        let run = run(&[(60.0, temporary), (8.0, Stay::ForEver)]);
        let mixed = share(&run, |verdict| verdict == Growth::Mixed);
        assert!(mixed >= 0.95, "{temporary:?}: {mixed}");
        let slope = |seed| run.judged(seed).slope_granules_per_second.unwrap();
        let mean = (0..40).map(slope).sum::<f64>() / 40.0;
        assert!((7.8..8.2).contains(&mean), "{temporary:?}: {mean}");
    }
}

/// Freed only at the end: reported as such once the process has ended, whether it grew until then or stood
/// still; a cache that is emptied at the end is bounded all the same.
#[test]
fn freed_only_at_the_end() {
    let growing = Run { ended: true, ..run(&[(20.0, Stay::UntilTheEnd)]) };
    let found = share(&growing, |verdict| verdict == Growth::FreedAtShutdown);
    assert!(found >= 0.95, "{found}");
    let known = growing.judged(1);
    let slope = known.slope_granules_per_second.unwrap();
    assert!((18.0..22.0).contains(&slope), "{slope}");
    assert_eq!(known.forecast_bytes_per_day, None, "it has ended");
    let flat: Vec<At> = (0..=600)
        .map(|n| f64::from(n) / 10.0)
        .map(|t| (t, if t < 59.5 { 100.0 } else { 0.0 }))
        .collect();
    let still = judged(facts(&flat, 100, 100), 60.0, true);
    assert_eq!(still.verdict, Some(Growth::FreedAtShutdown), "{still:?}");
    let mut cache = flat;
    for at in &mut cache {
        at.1 *= 0.9;
    }
    let cache = judged(facts(&cache, 9_000, 9_000), 60.0, true);
    assert_eq!(cache.verdict, Some(Growth::Bounded), "{cache:?}");
}

/// Without its end, or if it lets go before the last part of it, a run is not one that frees at the end.
#[test]
fn shutdown_needs_an_end() {
    let drop_at = |end: f64| -> Vec<At> {
        let times = (0..=600).map(|n| f64::from(n) / 10.0);
        times.map(|t| (t, if t < end { 10.0 * t } else { 0.0 })).collect()
    };
    for (end, ended) in [(59.5, false), (50.0, true)] {
        let found = judged(facts(&drop_at(end), 600, 600), 60.0, ended);
        assert_ne!(found.verdict, Some(Growth::FreedAtShutdown), "{end}");
    }
    let found = judged(facts(&drop_at(59.5), 600, 600), 60.0, true);
    assert_eq!(found.verdict, Some(Growth::FreedAtShutdown));
}

/// Flat but noisy time series are accused in at most 5 % of the runs: independent noise, noise that depends
/// on the past, up to a random walk, and what queues of all kinds hold.
#[test]
fn noise_is_not_accused() {
    let accused = |verdict: Growth| matches!(verdict, Growth::LinearLeak | Growth::Mixed);
    for level in [30.0, 10_000.0] {
        for memory in [0.0, 0.5, 0.9, 0.99, 1.0] {
            for spread in [0.02, 0.3] {
                // The hardest case has its share near the limit; more runs tell it from the limit.
                let seeds = if memory < 1.0 { SEEDS } else { 6 * SEEDS };
                let mut count = 0;
                for seed in 0..seeds {
                    let mut random = Random::new(seed + 17);
                    let mut noise = 0.0;
                    let values: Vec<At> = (0..400)
                        .map(|n| {
                            let fresh = random.normal();
                            noise = if memory < 1.0 {
                                fresh.mul_add(f64::sqrt(1.0 - memory * memory), noise * memory)
                            } else {
                                fresh.mul_add(0.05, noise)
                            };
                            (f64::from(n) * 0.1, level * f64::mul_add(spread, noise, 1.0))
                        })
                        .collect();
                    let found = verdict(&facts(&values, 100_000, 100_000), false);
                    count += u32::from(accused(found));
                }
                let share = f64::from(count) / seeds as f64;
                assert!(share <= 0.05, "level {level}, memory {memory}, {spread}: {share}");
            }
        }
    }
    for rate in [3.0, 30.0] {
        for mean in [0.1, 1.0, 4.0, 8.0, 14.0, 25.0] {
            for stay in [Stay::About(mean), Stay::Fixed(mean), Stay::Cleared(mean)] {
                let found = share(&run(&[(rate, stay)]), accused);
                // What stays longer than half of the run may not have settled, and then is not judged.
                assert!(found <= 0.05, "{rate}/s, {stay:?}: {found}");
            }
        }
    }
}

/// The textbook error of a slope would accuse what a healthy queue holds, flat as it is, in many runs: why
/// the interval is taken otherwise. Ours excludes a slope of 0 in at most 5 % of them, counting both sides.
#[test]
fn textbook_error_would_accuse() {
    let (mut textbook, mut ours, mut runs) = (0u32, 0u32, 0u32);
    for seed in 0..SEEDS {
        let facts = run(&[(40.0, Stay::About(4.0))]).facts(seed);
        let case = Case::of(&facts, false);
        let tail = &case.held[case.held.partition_point(|at| at.0 < 20.0)..];
        let line = fit::line(tail).unwrap();
        let count = tail.len() as f64;
        // From R²: t² = R² (n − 2) / (1 − R²).
        let fit = line.r_squared.unwrap();
        textbook += u32::from(fit * (count - 2.0) / (1.0 - fit) > 1.96 * 1.96);
        let [low, high] = Changes::of(tail).unwrap().interval();
        ours += u32::from(!(low..=high).contains(&0.0));
        runs += 1;
    }
    assert!(textbook > runs / 2, "{textbook} of {runs}");
    assert!(ours <= runs / 20, "{ours} of {runs}");
}

/// Growth that comes to an end is bounded, growth that slows down is not judged yet.
#[test]
fn flattening() {
    let course = |end: f64| -> Vec<At> {
        let times = (0..=400).map(|n| f64::from(n) / 10.0);
        times.map(|t| (t, 1_000.0 * (1.0 - (-t / end).exp()))).collect()
    };
    let judge = |end: f64| verdict(&facts(&course(end), 1_000, 0), false);
    assert_eq!(judge(8.0), Growth::Bounded);
    assert_eq!(judge(20.0), Growth::TooEarly);
    assert_eq!(judge(400.0), Growth::LinearLeak);
}

/// Nothing retained is reported at once; too short, too few, or not settled is reported with what is missing, and
/// with a slope only where there are enough points for one.
#[test]
fn too_early_says_why() {
    let nothing = judged(facts(&[(0.0, 0.0), (1.0, 0.0)], 0, 0), 1.0, false);
    assert_eq!(nothing.verdict, Some(Growth::None));
    let early = |run: &Run, why: &str| {
        let found = run.judged(1);
        assert_eq!(found.verdict, Some(Growth::TooEarly), "{why}: {found:?}");
        let reason = found.verdict_reason.unwrap();
        assert!(reason.contains(why), "{reason}");
        assert_eq!((found.slope_granules_per_second, found.forecast_bytes_per_day), (None, None));
    };
    let leak = run(&[(50.0, Stay::ForEver)]);
    early(&Run { length: 4.9, step: 0.05, ..leak.clone() }, "at least 5.00 s are needed");
    early(&Run { step: 2.0, ..leak.clone() }, "31 samples");
    early(&run(&[(0.05, Stay::ForEver)]), "at least 8 are needed");
    early(&run(&[(50.0, Stay::Fixed(45.0))]), "observe at least twice as long");
    let mut gap = leak.facts(1);
    let points: Vec<_> = gap.over_time.points().collect();
    gap.over_time = HeldSeries::default();
    points[..100].iter().chain(&points[200..]).for_each(|point| gap.over_time.add(*point));
    let found = judged(gap, 60.0, false);
    assert_eq!(found.verdict, Some(Growth::TooEarly), "{found:?}");
    assert!(found.verdict_reason.unwrap().contains("gaps"));
}

/// At level `boundary` it is not known when a pin goes: everything is null. After a loss the slope is reported
/// and not judged.
#[test]
fn what_is_not_known_is_null() {
    let leak = run(&[(50.0, Stay::ForEver)]);
    let mut facts = leak.facts(1);
    facts.level = Level::Boundary;
    let found = judged(facts, 60.0, false);
    assert_eq!((found.series, found.verdict, found.verdict_reason), (None, None, None));
    let mut lossy = snapshot(leak.facts(1), 60.0, false);
    lossy.losses[Loss::UnmatchedFree as usize] = 3;
    let notice = report(&lossy).targets[0].allocators[0].retention.clone();
    assert_eq!(notice.verdict, Some(Growth::LinearLeak), "a notice is no loss");
    lossy.losses[Loss::ObjectMapFull as usize] = 3;
    let found = report(&lossy).targets[0].allocators[0].retention.clone();
    assert!(found.slope_granules_per_second.is_some());
    let judged = (found.verdict, found.verdict_reason, found.forecast_bytes_per_day);
    assert_eq!(judged, (None, None, None));
}

/// Windows of a duty cycle are not joined: no slope, and no verdict but that nothing was retained.
#[test]
fn windows_are_not_judged() {
    let duty = Duty { on: Duration::from_secs(60), period: Duration::from_mins(10) };
    let facts_of = |windows| duty.after(windows, Duration::from_secs(60));
    let mut seen = snapshot(run(&[(50.0, Stay::ForEver)]).facts(1), 60.0, false);
    seen.duty = Some(facts_of(2));
    let found = report(&seen).targets[0].allocators[0].retention.clone();
    assert_eq!(found.verdict, Some(Growth::TooEarly));
    assert!(found.verdict_reason.unwrap().contains("windows"));
    assert_eq!(found.slope_granules_per_second, None);
    assert!(!found.series.unwrap().is_empty(), "what was seen is shown");
    let mut quiet = snapshot(facts(&[(0.0, 0.0), (9.0, 0.0)], 0, 0), 9.0, false);
    quiet.duty = Some(facts_of(1));
    let found = report(&quiet).targets[0].allocators[0].retention.clone();
    assert_eq!(found.verdict, Some(Growth::None));
}

/// Of `bulk`, open granules are the time series. Those from before the attach that appear when they are used
/// look like growth and are not taken for it.
#[test]
fn open_granules_of_bulk() {
    let with = |appeared_per_point: u64| {
        let mut like = crate::samples::bulk();
        like.over_time = HeldSeries::default();
        for n in 0..=400u64 {
            like.over_time.add(HeldPoint {
                at_ns: 1_000 + n * 100_000_000,
                granules: 10 * n,
                bytes: 81_920 * n,
                appeared: appeared_per_point * n,
            });
        }
        (like.open_now, like.totals.opened) = (4_000, 4_030);
        like.totals.opened_before = appeared_per_point * 400;
        judged(like, 40.0, false)
    };
    let leak = with(0);
    assert_eq!(leak.verdict, Some(Growth::LinearLeak), "{leak:?}");
    assert!(leak.verdict_reason.unwrap().contains("opens/s without a close × 8.0 KiB"));
    let old = with(6);
    assert_eq!(old.verdict, Some(Growth::TooEarly));
    assert!(old.verdict_reason.unwrap().contains("before the attach"));
}

/// A report carries at most so many points, the first and the last among them, on the window's scale.
#[test]
fn series_of_a_report() {
    let run = run(&[(15.0, Stay::ForEver)]);
    let known = run.judged(1);
    let series = known.series.unwrap();
    assert!(series.len() <= POINTS + 1, "{}", series.len());
    let last = series.last().unwrap();
    assert!(series[0].0.abs() < 1e-9 && (last.0 - 60.0).abs() < 1e-6, "{last:?}");
    assert_eq!((Some(last.1), last.2), (known.granules, known.bytes));
    assert!(series.windows(2).all(|pair| pair[0].0 < pair[1].0));
}
