//! The five behaviours of bytehound's simulation (`temporary`, `linear leak`, `freed at the end`, `bounded` from half of
//! the run on, `temporary and linear leak` together), on an arena, where each object pins a granule of its own, and on a
//! malloc, whose pages all sites share. What each is, is known by construction.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use drainprof_common::hist::Hist;
use drainprof_profile::Level;

use super::{
    generated_tests::{BEGIN_NS, Random, facts, report, snapshot},
    *,
};
use crate::{
    facts::{CallPath, GranuleFacts, Survivors},
    fit::At,
    samples,
    series::{HeldPoint, HeldSeries, LivePoint, SiteNow, SiteSeriesSet},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Temporary,
    LinearLeak,
    FreedAtTheEnd,
    Bounded,
    TemporaryAndLeak,
}

use Behaviour::{Bounded, FreedAtTheEnd, LinearLeak, Temporary, TemporaryAndLeak};

impl Behaviour {
    const ALL: [Self; 5] = [Temporary, LinearLeak, FreedAtTheEnd, Bounded, TemporaryAndLeak];

    const fn class(self) -> Growth {
        match self {
            Temporary | Bounded => Growth::Bounded,
            LinearLeak => Growth::LinearLeak,
            FreedAtTheEnd => Growth::FreedAtShutdown,
            TemporaryAndLeak => Growth::Mixed,
        }
    }
}

/// An object: when it came and went, its size.
#[derive(Clone, Copy)]
struct Life {
    came: f64,
    went: f64,
    bytes: u64,
}

/// Iterations per second: as many as a program of small steps that sleeps in between has.
const PACE: f64 = 1_600.0;

/// All objects of one behaviour in a run of so many seconds, of `size` bytes at most.
fn run(behaviour: Behaviour, seconds: f64, size: u64, random: &mut Random) -> Vec<Life> {
    let mut all: Vec<Life> = Vec::new();
    // Those that are live and may go again, and the bytes that the bounded one holds, now and at most.
    let mut list: VecDeque<usize> = VecDeque::new();
    let (mut held, mut most) = (0, None);
    let steps = seconds * PACE;
    let mut step = 0.0;
    while step < steps {
        let now = step / PACE;
        step += 1.0;
        let rarely = random.share() >= 0.99;
        #[allow(clippy::cast_sign_loss, reason = "not negative")]
        let bytes = 1 + (random.share() * (size - 1) as f64) as u64;
        let mut come = |list: &mut VecDeque<usize>| {
            list.push_back(all.len());
            all.push(Life { came: now, went: f64::INFINITY, bytes });
        };
        #[allow(clippy::cast_sign_loss, reason = "not negative")]
        let pick = |length: usize, random: &mut Random| (random.share() * length as f64) as usize;
        match behaviour {
            Temporary => {
                if random.share() >= 0.25 {
                    come(&mut list);
                }
                if random.share() >= 0.25 && !list.is_empty() {
                    let index = pick(list.len(), random);
                    let gone = list.swap_remove_back(index).unwrap();
                    all[gone].went = now;
                }
            }
            LinearLeak | FreedAtTheEnd if rarely => come(&mut list),
            Bounded if rarely => {
                come(&mut list);
                held += bytes;
                if now >= seconds / 2.0 {
                    let most = *most.get_or_insert(held);
                    while held > most {
                        let gone = list.swap_remove_back(pick(list.len(), random)).unwrap();
                        all[gone].went = now;
                        held -= all[gone].bytes;
                    }
                }
            }
            LinearLeak | FreedAtTheEnd | Bounded => {}
            TemporaryAndLeak => {
                come(&mut list);
                let own = list.pop_back().unwrap();
                if random.share() < 0.999 {
                    if random.share() >= 0.25 {
                        list.push_back(own);
                    } else {
                        all[own].went = now;
                    }
                    if random.share() >= 0.25
                        && let Some(gone) = list.pop_back()
                    {
                        all[gone].went = now;
                    }
                }
            }
        }
    }
    if matches!(behaviour, Temporary | FreedAtTheEnd | TemporaryAndLeak) {
        // The program's end drops its lists.
        for &index in &list {
            all[index].went = (seconds - 0.001).max(all[index].came);
        }
    }
    all
}

fn ns(seconds: f64) -> u64 {
    BEGIN_NS + Duration::from_secs_f64(seconds.max(0.0)).as_nanos() as u64
}

/// What is held at each of 300 times: objects, bytes, allocated so far.
fn sampled(all: &[Life], seconds: f64) -> Vec<(f64, u64, u64, u64)> {
    let mut went: Vec<&Life> = all.iter().collect();
    went.sort_by(|one, other| one.went.total_cmp(&other.went));
    let (mut come, mut gone) = (all.iter().peekable(), went.into_iter().peekable());
    let (mut objects, mut bytes, mut allocated) = (0, 0, 0);
    let times = (0..=300).map(|tick| seconds * f64::from(tick) / 300.0);
    times
        .map(|at| {
            while let Some(life) = come.next_if(|life| life.came <= at) {
                (objects, bytes, allocated) = (objects + 1, bytes + life.bytes, allocated + 1);
            }
            while let Some(life) = gone.next_if(|life| life.went <= at) {
                (objects, bytes) = (objects - 1, bytes - life.bytes);
            }
            (at, objects, bytes, allocated)
        })
        .collect()
}

fn lives(all: &[Life], seconds: f64) -> Hist {
    let mut hist = Hist::new();
    let went = all.iter().filter(|life| life.went <= seconds);
    went.for_each(|life| hist.record(ns(life.went) - ns(life.came)));
    hist
}

/// The verdict on granules that are pinned by one object each.
fn on_arena(all: &[Life], seconds: f64) -> Option<Growth> {
    let went = all.iter().filter(|life| life.went <= seconds).count() as u64;
    let points: Vec<At> =
        sampled(all, seconds).into_iter().map(|(at, live, ..)| (at, live as f64)).collect();
    let mut facts = facts(&points, all.len() as u64, went);
    facts.pin_delays = lives(all, seconds);
    let held = all.iter().filter(|life| life.went > seconds);
    facts.granules = held
        .map(|life| GranuleFacts {
            closed: true,
            closed_ns: ns(life.came),
            opened_ns: ns(life.came) - 1_000,
            ..samples::granule(0x1000)
        })
        .collect();
    report(&snapshot(facts, seconds, true)).targets[0].allocators[0].retention.verdict
}

/// The site of a malloc: what the observer knows of these objects.
fn on_malloc(all: &[Life], seconds: f64) -> crate::Report {
    let mut set = SiteSeriesSet::default();
    for (at, objects, bytes, allocated) in sampled(all, seconds) {
        let live = LivePoint { at_ns: 0, objects, bytes, allocated };
        let first_ns = ns(0.0);
        // They share their pages with others, so that these say nothing.
        let now = SiteNow {
            first_ns,
            granules: 5,
            live,
            weight: bytes,
            ever: true,
            ..SiteNow::default()
        };
        set.add(ns(at), [(1, now)]);
    }
    let live = || all.iter().filter(|life| life.went > seconds);
    let mut survivors = Survivors::between(ns(0.0), ns(seconds));
    live().for_each(|life| survivors.add(ns(life.came), 1, life.bytes));
    let mut facts = samples::pages();
    facts.level = Level::Stacks;
    facts.sites = vec![SiteFacts {
        path: Arc::new(CallPath { addresses: vec![1], ..CallPath::default() }),
        allocated: all.len() as u64,
        allocated_bytes: all.iter().map(|life| life.bytes).sum(),
        live: Some(live().count() as u64),
        live_bytes: live().map(|life| life.bytes).sum(),
        lives: lives(all, seconds),
        survivors,
        over_time: set.of(1).cloned(),
        ..samples::site(0)
    }];
    facts.over_time = HeldSeries::default();
    facts.over_time.add(HeldPoint { at_ns: ns(0.0), ..HeldPoint::default() });
    report(&snapshot(facts, seconds, true))
}

fn site(report: &crate::Report) -> &crate::Site {
    &report.targets[0].allocators[0].sites.as_ref().unwrap()[0]
}

/// Each behaviour is called what it is or `too_early` in every run: ten seeds, 30 and 120 seconds, objects of up to 64
/// bytes and of up to 8 KB, on an arena and on a malloc. What keeps all, frees it at the end, or is bounded, is always called
/// what it is.
#[test]
fn bytehounds_simulation() {
    let mut table = String::new();
    let mut wrong = Vec::new();
    for behaviour in Behaviour::ALL {
        for seconds in [30.0, 120.0] {
            for size in [64, 8_192] {
                let mut counts = [[0u32; 3]; 2];
                for seed in 0..10 {
                    let mut random = Random::new(seed + 100 * size);
                    let all = run(behaviour, seconds, size, &mut random);
                    let malloc = on_malloc(&all, seconds);
                    let site = site(&malloc);
                    for (on, verdict) in
                        [on_arena(&all, seconds), site.verdict].into_iter().enumerate()
                    {
                        let verdict = verdict.unwrap();
                        let index = if verdict == behaviour.class() {
                            0
                        } else if verdict == Growth::TooEarly {
                            1
                        } else {
                            wrong.push((
                                behaviour,
                                seconds,
                                size,
                                seed,
                                on,
                                verdict,
                                site.verdict_reason.clone(),
                            ));
                            2
                        };
                        counts[on][index] += 1;
                    }
                }
                let row = format!("{behaviour:?} {seconds} s {size} B: arena, malloc {counts:?}\n");
                table.push_str(&row);
                let sure = matches!(behaviour, LinearLeak | FreedAtTheEnd | Bounded);
                let right = counts.iter().all(|counts| counts[0] == 10);
                assert!(!sure || right, "[right, too early, wrong]\n{table}{wrong:#?}");
            }
        }
    }
    assert!(wrong.is_empty(), "[right, too early, wrong]\n{table}{wrong:#?}");
    println!("[right, too early, wrong]\n{table}");
}
