//! Simulated processes, whose growth is known by construction, with seeds.

use drainprof_process::memory::{MemoryReading, next_look};

use super::*;

const MB: f64 = 1e6;
/// So many seeds for each kind of process.
const SEEDS: u64 = 200;
/// What a slow leak leaks per second.
const LEAK: f64 = 100_000.0;

/// A repeatable source of numbers.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Nearly normal with variance 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// What a process does beside its leak: its memory at a time, bytes.
type Noise = fn(f64, &mut Random, &mut f64) -> f64;

/// Normal, 3 MB, no memory of what was before.
fn white(_: f64, random: &mut Random, _: &mut f64) -> f64 {
    3.0 * MB * random.normal()
}

/// Of 10 to 60 MB every 1 to 40 seconds; each seed has its own.
fn saw_tooth(at: f64, random: &mut Random, own: &mut f64) -> f64 {
    if *own == 0.0 {
        *own = 1.0 + random.share();
    }
    let (height, period) = (10.0 + 50.0 * own.fract(), 1.0 + 39.0 * (own.fract() * 7.0).fract());
    height * MB * (at / period + own.fract() * 13.0).fract()
}

/// Of 20 MB every 1.5 seconds.
fn fast_saw_tooth(at: f64, random: &mut Random, own: &mut f64) -> f64 {
    if *own == 0.0 {
        *own = 1.0 + random.share();
    }
    20.0 * MB * (at / 1.5 + *own).fract()
}

/// A walk of 0.5 MB per cycle between 0 and 40 MB.
fn bounded_walk(_: f64, random: &mut Random, at: &mut f64) -> f64 {
    if *at == 0.0 {
        *at = 20.0 * MB;
    }
    *at = (*at + 0.5 * MB * random.normal()).clamp(0.1, 40.0 * MB);
    *at
}

/// A walk without bounds: the hardest case, since nothing distinguishes its present course from growth but its steps.
fn free_walk(_: f64, random: &mut Random, at: &mut f64) -> f64 {
    *at += 0.5 * MB * random.normal();
    *at
}

/// Deviations that last for 10 seconds or so.
fn lasting(_: f64, random: &mut Random, at: &mut f64) -> f64 {
    *at = 0.9 * *at + 2.0 * MB * random.normal();
    *at
}

/// 60 MB in one step at a time of its own, then nothing.
fn step(at: f64, random: &mut Random, own: &mut f64) -> f64 {
    if *own == 0.0 {
        *own = 1.0 + 118.0 * random.share();
    }
    if at > *own { 60.0 * MB } else { 0.0 }
}

/// A start that takes its own 5 to 30 seconds, times e.
fn warm_up(at: f64, random: &mut Random, own: &mut f64) -> f64 {
    if *own == 0.0 {
        *own = 5.0 + 25.0 * random.share();
    }
    80.0 * MB * (1.0 - (-at / *own).exp()) + 0.2 * MB * random.normal()
}

/// Bursts of 50 MB for 2 seconds at times of their own, one of ten looks.
fn bursts(at: f64, random: &mut Random, until: &mut f64) -> f64 {
    if *until < at && random.share() < 0.1 {
        *until = at + 2.0;
    }
    if at <= *until { 50.0 * MB } else { 0.0 }
}

/// Nothing at all.
fn silent(_: f64, _: &mut Random, _: &mut f64) -> f64 {
    0.0
}

/// A process watched for `seconds`, examined every `period`.
fn watched(noise: Noise, leak: f64, seed: u64, seconds: f64, period: f64) -> MemorySeries {
    let mut random = Random::new(seed);
    let mut course = MemorySeries::new();
    let (mut at, mut own, mut looks) = (0.0, 0.0, 0);
    while at <= seconds {
        let bytes = 200.0 * MB + leak * at + noise(at, &mut random, &mut own);
        #[allow(clippy::cast_sign_loss, reason = "the cast saturates")]
        let rss_bytes = bytes as u64;
        let room = Some(1_000_000_000);
        let reading = MemoryReading {
            rss_bytes,
            anon_bytes: rss_bytes,
            cgroup_room_bytes: room,
            ..MemoryReading::default()
        };
        course.add(at, &reading);
        at += next_look(looks, period);
        looks += 1;
    }
    course
}

/// How many of all seeds get a verdict.
fn count(verdict: MemoryVerdict, noise: Noise, leak: f64, seconds: f64, period: f64) -> u64 {
    let verdicts =
        (1..=SEEDS).map(|seed| MemoryTrend::of(&watched(noise, leak, seed, seconds, period)));
    verdicts
        .filter(|trend| {
            trend.as_ref().map_or(MemoryVerdict::TooLittle, |trend| trend.verdict) == verdict
        })
        .count() as u64
}

/// Lengths of a watch, and the times between two cycles, seconds.
const WATCHES: [(f64, f64); 4] = [(60.0, 0.5), (119.0, 0.25), (119.0, 5.0), (600.0, 5.0)];

/// No flat process is accused, however noisy, whatever its saw-tooth, its start or its bursts.
#[test]
fn flat_processes_are_not_accused() {
    let kinds: [Noise; 8] =
        [silent, white, saw_tooth, fast_saw_tooth, lasting, step, warm_up, bursts];
    for (index, noise) in kinds.into_iter().enumerate() {
        for (seconds, period) in WATCHES {
            let accused = count(MemoryVerdict::Growing, noise, 0.0, seconds, period);
            assert_eq!(accused, 0, "kind {index}, {seconds} s, every {period} s");
        }
    }
}

/// Of walks at random, which do grow while they are examined, no more are accused than the confidence says.
#[test]
fn walks_are_rarely_accused() {
    for noise in [bounded_walk as Noise, free_walk] {
        for (seconds, period) in WATCHES {
            let accused = count(MemoryVerdict::Growing, noise, 0.0, seconds, period);
            assert!(accused <= SEEDS / 50, "{accused} of {SEEDS}, {seconds} s, every {period} s");
        }
    }
}

/// 100 KB/s are found within two minutes, at any pace of looking, alone and under bursts; under a noise of 3 MB and
/// under a fast saw-tooth of 20 MB by looking four times a second; and within ten minutes, mostly, under anything.
#[test]
fn slow_leaks_are_found() {
    let found = |noise: Noise, seconds: f64, period: f64| {
        count(MemoryVerdict::Growing, noise, LEAK, seconds, period)
    };
    for period in [0.25, 1.0, 5.0] {
        assert_eq!(found(silent, 119.0, period), SEEDS, "every {period} s");
        assert!(found(bursts, 119.0, period) >= SEEDS * 9 / 10, "every {period} s");
    }
    assert_eq!(found(silent, 30.0, 0.25), SEEDS);
    assert!(found(white, 119.0, 0.25) >= SEEDS * 9 / 10);
    assert!(found(fast_saw_tooth, 119.0, 0.25) >= SEEDS * 9 / 10);
    for noise in [white as Noise, saw_tooth, fast_saw_tooth, lasting, bounded_walk] {
        let count = found(noise, 600.0, 5.0);
        assert!(count >= SEEDS / 2, "{count} of {SEEDS}");
    }
}

/// The 95 % interval holds the true growth in 95 of 100 cases, or more, whatever the noise, a walk included; the
/// textbook's interval, which takes readings for independent, would miss it in most walks.
#[test]
fn intervals_are_honest() {
    for (index, noise) in [white as Noise, lasting, free_walk, bursts].into_iter().enumerate() {
        let held = (1..=SEEDS).filter(|&seed| {
            let [low, high] =
                MemoryTrend::of(&watched(noise, LEAK, seed, 119.0, 0.5)).unwrap().slope_interval;
            low <= LEAK && LEAK <= high
        });
        let held = held.count() as u64;
        assert!(held >= SEEDS * 93 / 100, "kind {index}: {held} of {SEEDS}");
    }
}

/// What shrinks is said to, what has come to an end is settling, and neither has a time to its limit.
#[test]
fn other_verdicts() {
    let shrinking = MemoryTrend::of(&watched(silent, -LEAK, 1, 119.0, 1.0)).unwrap();
    assert_eq!((shrinking.verdict, shrinking.seconds_to_limit), (MemoryVerdict::Shrinking, None));
    assert!((shrinking.slope_bytes_per_second + LEAK).abs() < 10.0, "{shrinking:?}");
    let settling = |at: f64, _: &mut Random, _: &mut f64| 80.0 * MB * (1.0 - (-at / 60.0).exp());
    let settling = MemoryTrend::of(&watched(settling, 0.0, 1, 119.0, 1.0)).unwrap();
    assert_eq!((settling.verdict, settling.seconds_to_limit), (MemoryVerdict::Settling, None));
    let steady = MemoryTrend::of(&watched(silent, 0.0, 1, 119.0, 1.0)).unwrap();
    assert_eq!((steady.verdict, steady.r_squared), (MemoryVerdict::Steady, None));
    assert_eq!((steady.slope_interval, steady.confidence), ([0.0, 0.0], 0.0));
    // 40 KB in all, however sure: the kernel's own rounding is larger.
    let small = MemoryTrend::of(&watched(silent, 300.0, 1, 119.0, 1.0)).unwrap();
    assert_eq!(small.verdict, MemoryVerdict::Steady);
    assert!(small.confidence > 0.99);
}

/// The figures of a plain leak: its slope, a sure one, and the time until 1 GB of room is gone.
#[test]
fn figures_of_a_leak() {
    let trend = MemoryTrend::of(&watched(silent, LEAK, 1, 119.0, 1.0)).unwrap();
    let near = |found: f64, truth: f64| (found - truth).abs() <= truth * 1e-3;
    assert!(near(trend.slope_bytes_per_second, LEAK), "{trend:?}");
    assert!(near(trend.anon_slope_bytes_per_second, LEAK), "{trend:?}");
    assert!(trend.r_squared.unwrap() > 0.999 && trend.confidence > 0.999, "{trend:?}");
    assert!(near(trend.seconds_to_limit.unwrap(), 10_000.0), "{trend:?}");
    let mut without = MemorySeries::new();
    for second in 0..120u32 {
        let rss_bytes = u64::from(second) * 100_000;
        without.add(f64::from(second), &MemoryReading { rss_bytes, ..MemoryReading::default() });
    }
    let trend = MemoryTrend::of(&without).unwrap();
    assert_eq!((trend.verdict, trend.seconds_to_limit), (MemoryVerdict::Growing, None));
}

/// Too short, too few, or with a gap: no trend rather than a guess.
#[test]
fn too_little() {
    assert!(MemoryTrend::of(&watched(silent, LEAK, 1, 15.0, 0.25)).is_none());
    assert!(MemoryTrend::of(&watched(silent, LEAK, 1, 119.0, 10.0)).is_none());
    let mut gap = watched(silent, LEAK, 1, 60.0, 1.0);
    assert!(MemoryTrend::of(&gap).is_some());
    for second in 0..30u32 {
        gap.add(f64::from(second) + 300.0, &MemoryReading::default());
    }
    assert!(MemoryTrend::of(&gap).is_none());
}
