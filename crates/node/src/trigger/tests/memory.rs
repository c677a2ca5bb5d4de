//! Rules over readings of memory, faults and pressure.

use drainprof_process::memory::{MemoryReading, Pressure, Waiting};
use drainprof_report::{memory::MemoryTrend, series::MemorySeries};

use crate::trigger::{
    Signals, State,
    testing::{Noise, Run, TICK, resident},
};

const HOUR: f64 = 3600.0;
const MIB: u64 = 1 << 20;

/// A step by half fires after its five minutes, not before, and ends when it is back.
#[test]
fn rss_step() {
    let mut run = Run::new("rss_high");
    let mut noise = Noise::new(1);
    run.over([0.0, 4.0 * HOUR], |at| {
        let step = if (2.0 * HOUR..3.0 * HOUR).contains(&at) { 150.0 } else { 0.0 };
        resident(at, 300.0 + step + 5.0 * noise.even())
    });
    assert_eq!(
        (run.fired.as_slice(), run.ended.as_slice()),
        ([7500.0].as_slice(), [10_800.0].as_slice())
    );
}

/// It says what is usual and what is.
#[test]
fn rss_explains_itself() {
    let mut run = Run::new("rss_high");
    run.over([0.0, 2.0 * HOUR], |at| resident(at, if at < HOUR { 300.0 } else { 400.0 }));
    assert_eq!(
        run.message(),
        "resident memory is 400.0 MiB, usual are 300.0 MiB ± 0 B: 100.0 MiB more; more than 16.0 MiB more is high"
    );
}

/// Saw-teeth of any period are usual; so is noise, and a spike shorter than five minutes is none.
#[test]
fn rss_saw_teeth() {
    for period in [30.0, 300.0, 1800.0, 5000.0] {
        let mut run = Run::new("rss_high");
        run.over([0.0, 24.0 * HOUR], |at| resident(at, 200.0 + 200.0 * (at % period) / period));
        assert_eq!(run.fired, [0.0; 0], "period {period}");
    }
    for seed in 0..10 {
        let (mut run, mut noise) = (Run::new("rss_high"), Noise::new(seed));
        run.over([0.0, 24.0 * HOUR], |at| {
            resident(at, 200.0 + 100.0 * noise.even() * noise.even())
        });
        assert_eq!(run.fired, [0.0; 0], "seed {seed}");
    }
    let mut run = Run::new("rss_high");
    run.over([0.0, 12.0 * HOUR], |at| resident(at, if at % HOUR < 290.0 { 800.0 } else { 200.0 }));
    assert_eq!(run.fired, [0.0; 0]);
}

/// A flat process that grows by less than 16 MiB, or by less than a twentieth, is not accused.
#[test]
fn rss_small_step() {
    for (before, after) in [(20.0, 35.9), (1000.0, 1049.0)] {
        let mut run = Run::new("rss_high");
        run.over([0.0, 4.0 * HOUR], |at| resident(at, if at < HOUR { before } else { after }));
        assert_eq!(run.fired, [0.0; 0], "{before} to {after}");
    }
}

/// A higher state that lasts is adopted.
#[test]
fn rss_is_adopted() {
    let mut run = Run::new("rss_high");
    run.over([0.0, 12.0 * HOUR], |at| resident(at, if at < HOUR { 300.0 } else { 600.0 }));
    assert_eq!((run.fired.len(), run.state()), (1, State::Inactive));
}

fn mapped(at: f64, vsz_mib: f64, rss_mib: f64) -> Signals {
    let mut signals = resident(at, rss_mib);
    if let Some(memory) = &mut signals.memory {
        #[allow(clippy::cast_sign_loss, reason = "the tests' sizes are not negative")]
        let vsz_bytes = (vsz_mib * f64::from(1 << 20)) as u64;
        memory.vsz_bytes = vsz_bytes;
    }
    signals
}

/// Address space that grows by 30 MiB a minute beside resident memory that stays, or grows by a third of it, fires; it ends when growth ends.
#[test]
fn vsz_grows() {
    for share in [0.0, 0.33] {
        let mut run = Run::new("vsz_growth");
        run.over([0.0, 3.0 * HOUR], |at| {
            let grown = 0.5 * at.min(HOUR);
            mapped(at, 1000.0 + grown, 100.0 + share * grown)
        });
        assert_eq!((run.fired.len(), run.ended.len()), (1, 1), "{share}");
        assert!(run.fired[0] <= 910.0 && run.ended[0] <= HOUR + 600.0, "{:?}", run.fired);
    }
}

/// Address space and resident memory by time, MiB.
type Sizes = fn(f64) -> [f64; 2];

/// One large mapping, both growing alike, slow growth, and a shrinking process are none.
#[test]
fn vsz_is_no_growth() {
    let cases: [(&str, Sizes); 5] = [
        ("one mapping", |at| [if at < HOUR { 1000.0 } else { 9000.0 }, 100.0]),
        ("alike", |at| [1000.0 + at, 100.0 + at * 0.7]),
        ("slow", |at| [1000.0 + at * 0.1, 100.0]),
        ("shrinks", |at| [20_000.0 - at, 10_000.0 - at * 0.9]),
        ("comes and goes", |at| [1000.0 + at % 300.0, 100.0]),
    ];
    for (name, sizes) in cases {
        let mut run = Run::new("vsz_growth");
        run.over([0.0, 2.0 * HOUR], |at| mapped(at, sizes(at)[0], sizes(at)[1]));
        assert_eq!(run.fired, [0.0; 0], "{name}");
    }
}

/// Resident memory in MiB, by time and noise from 0 to 1.
type Course = fn(f64, f64) -> f64;

/// What the daemon sees of a process with this resident memory, of which a share is anonymous, for three hours.
fn watched(course: Course, anonymous: f64, seed: u64) -> Run {
    let mut run = Run::new("rss_slope");
    let mut noise = Noise::new(seed);
    let mut series = MemorySeries::recent(run.config.rss_slope.over.as_seconds());
    run.over([0.0, 3.0 * HOUR], |at| {
        let mut signals = resident(at, 64.0);
        if let Some(memory) = &mut signals.memory {
            let mib = course(at, noise.even());
            #[allow(clippy::cast_sign_loss, reason = "the tests' sizes are not negative")]
            let bytes = |mib: f64| (mib * f64::from(1 << 20)) as u64;
            memory.rss_bytes = bytes(mib);
            memory.anon_bytes = bytes(mib * anonymous);
            memory.file_bytes = memory.rss_bytes - memory.anon_bytes;
            series.add(at, memory);
        }
        signals.trend = MemoryTrend::of(&series);
        signals
    });
    run
}

/// Leaks fire: the first after the five minutes that it must last, the slow ones within half an hour, under noise and
/// saw-teeth, from the start of the process or hours later; and they go on firing.
#[test]
fn steady_growth() {
    let cases: [(&str, Course, [f64; 2]); 6] = [
        ("1 MB/s", |at, _| 22.0 + at, [0.0, 400.0]),
        ("100 KB/s", |at, _| 22.0 + 0.0954 * at, [0.0, 400.0]),
        ("100 KB/s, noise of 3 MB", |at, noise| 300.0 + 0.0954 * at + 3.0 * noise, [0.0, 1_800.0]),
        (
            "100 KB/s, saw-teeth of 20 MB in 40 s",
            |at, noise| 300.0 + 0.0954 * at + (at + 9.0 * noise) % 40.0 / 2.0,
            [0.0, 2_400.0],
        ),
        (
            "100 KB/s after two hours at rest",
            |at, noise| 200.0 + 0.0954 * (at - 2.0 * HOUR).max(0.0) + noise,
            [2.0 * HOUR, 2.0 * HOUR + 3_000.0],
        ),
        (
            "100 KB/s behind a start of five minutes",
            |at, noise| at.min(300.0) + 0.0954 * at + noise,
            [300.0, 3_600.0],
        ),
    ];
    for (name, course, [from, to]) in cases {
        for seed in 0..4 {
            let run = watched(course, 0.9, seed);
            let first = run.fired.first().copied().unwrap_or(f64::INFINITY);
            assert!((from..=to).contains(&first), "{name}, {seed}: {:?}", run.fired);
            assert_eq!(run.state(), State::Firing, "{name}, {seed}: {:?}", run.ended);
        }
    }
}

/// What is no leak does not fire: flat under noise, starts that end, steps, saw-teeth, caches that fill, the day's
/// load, slow growth below the threshold; nor do growing files, or shared buffers that are visited one by one.
#[test]
fn no_steady_growth() {
    let cases: [(&str, Course, f64); 10] = [
        ("flat", |_, noise| 300.0 + 30.0 * noise, 0.9),
        ("a start of five minutes", |at, noise| 20.0 + at.min(300.0) + noise, 0.9),
        (
            "a cache that fills, half in two minutes",
            |at, noise| 20.0 + 500.0 * (1.0 - (-at / 173.0).exp()) + noise,
            0.9,
        ),
        (
            "a cache that fills, half in three minutes",
            |at, noise| 20.0 + 500.0 * (1.0 - (-at / 260.0).exp()) + noise,
            0.9,
        ),
        ("a step of 200 MB", |at, noise| if at < HOUR { 100.0 } else { 300.0 } + noise, 0.9),
        (
            "a step each 20 minutes, and back",
            |at, _| 100.0 + 99.0 * (at / 1_200.0 % 2.0).floor(),
            0.9,
        ),
        ("saw-teeth of 60 MB", |at, noise| 100.0 + (at + 9.0 * noise) % 60.0, 0.9),
        (
            "1 GB more by noon",
            |at, noise| {
                1_500.0 - 500.0 * (std::f64::consts::TAU * at / 86_400.0).cos() + 9.0 * noise
            },
            0.9,
        ),
        ("2.5 GB a day", |at, noise| 300.0 + 0.03 * at + noise, 0.9),
        ("files", |at, _| 22.0 + at, 0.3),
    ];
    for (name, course, anonymous) in cases {
        for seed in 0..4 {
            let run = watched(course, anonymous, seed);
            assert_eq!(run.fired, [0.0; 0], "{name}, {seed}");
        }
    }
}

/// A leak that was fixed ends the rule.
#[test]
fn growth_that_ends() {
    let run = watched(|at, noise| 22.0 + at.min(HOUR) + noise, 0.9, 1);
    assert_eq!((run.fired.len(), run.ended.len()), (1, 1), "{:?} {:?}", run.fired, run.ended);
    assert!((HOUR..HOUR + 1_800.0).contains(&run.ended[0]), "{:?}", run.ended);
}

/// It says how fast, how sure, and what of it.
#[test]
fn growth_explains_itself() {
    let run = watched(|at, _| 22.0 + at, 1.0, 0);
    let message = run.message();
    let expected =
        "resident memory grows by 1.0 MiB/s (95 %: 1.0 MiB/s to 1.0 MiB/s, R² 1.000) over 29 min";
    assert!(message.starts_with(expected), "{message}");
    assert!(
        message.contains("1.0 MiB/s of that anonymous; 10.6 GiB are resident now"),
        "{message}"
    );
    assert!(message.ends_with("the threshold is 64.0 KiB/s"), "{message}");
}

fn touching(at: f64, faults: f64, anon_mib: f64) -> Signals {
    let mut signals = resident(at, 2.0 * anon_mib);
    if let Some(memory) = &mut signals.memory {
        #[allow(clippy::cast_sign_loss, reason = "the tests' counts are not negative")]
        let minor_faults = faults as u64;
        memory.minor_faults = minor_faults;
    }
    signals
}

/// What is seen at a time.
type At = fn(f64) -> Signals;

/// Faults that all bring anonymous memory that stays fire; what is given back as fast, files, few faults, and huge pages,
/// whose share is not known, do not.
#[test]
fn anonymous_faults() {
    let mut run = Run::new("anon_faults");
    // 256 faults a second bring a mebibyte.
    run.over([0.0, HOUR], |at| touching(at, 256.0 * at, 100.0 + 0.9 * at));
    assert_eq!(run.fired, [570.0]);
    assert_eq!(
        run.message(),
        "at least 90.0 % of 76800 page faults in the last 5m brought anonymous memory that stays, 270.0 MiB; the \
         threshold is 80%"
    );
    run.over([HOUR, 2.0 * HOUR], |at| touching(at, 256.0 * at, 100.0 + 0.9 * HOUR));
    assert_eq!(run.state(), State::Inactive);

    let cases: [(&str, At); 4] = [
        ("given back", |at| touching(at, 5_000.0 * at, 100.0 + at % 60.0)),
        ("files", |at| touching(at, 256.0 * at, 100.0 + 0.4 * at)),
        ("few", |at| touching(at, 10.0 * at, 100.0 + at / 26.0)),
        ("huge pages", |at| touching(at, 256.0 * at, 100.0 + 20.0 * at)),
    ];
    for (name, signals) in cases {
        let mut run = Run::new("anon_faults");
        run.over([0.0, HOUR], signals);
        assert_eq!(run.fired, [0.0; 0], "{name}");
    }
}

fn faulting(at: f64, per_second: f64) -> Signals {
    Signals { at, faults_per_second: Some(per_second), ..Signals::default() }
}

/// More than 1,000 faults per second for a minute fire; 950 do not end it, 400 do; exactly 1,000, and 2,000 with pauses, do not fire.
#[test]
fn faults() {
    let mut run = Run::new("faults_high");
    run.over([0.0, 200.0], |at| faulting(at, 1001.0));
    assert_eq!(run.fired, [60.0]);
    run.over([200.0, 400.0], |at| faulting(at, 950.0));
    assert_eq!(run.state(), State::Firing);
    assert_eq!(run.message(), "950/s page faults; the threshold is 1000/s");
    run.check(&faulting(400.0, 400.0));
    assert_eq!(run.ended, [400.0]);

    let mut run = Run::new("faults_high");
    run.over([0.0, HOUR], |at| faulting(at, 1000.0));
    run.over([HOUR, 2.0 * HOUR], |at| faulting(at, if at % 60.0 < TICK { 0.0 } else { 2000.0 }));
    assert_eq!(run.fired, [0.0; 0]);
}

fn pressed(at: f64, avg10: f64) -> Signals {
    let some = Waiting { avg10, avg60: avg10 / 2.0, ..Waiting::default() };
    let pressure = Some(Pressure { some, ..Pressure::default() });
    Signals { at, pressure, ..Signals::default() }
}

/// More than a tenth for a minute fires, and ends below a twentieth; 9.9 % does not fire, nor does pressure that the
/// kernel does not tell of the group.
#[test]
fn pressure() {
    let mut run = Run::new("pressure_high");
    run.over([0.0, 100.0], |at| pressed(at, 0.11));
    assert_eq!(run.fired, [60.0]);
    assert!(
        run.message().contains("waited for memory 11.0 % of the last 10 seconds"),
        "{}",
        run.message()
    );
    run.over([100.0, 200.0], |at| pressed(at, 0.06));
    assert_eq!(run.state(), State::Firing);
    run.check(&pressed(200.0, 0.04));
    assert_eq!(run.state(), State::Inactive);

    let mut run = Run::new("pressure_high");
    run.over([0.0, HOUR], |at| pressed(at, 0.099));
    run.over([HOUR, 2.0 * HOUR], |at| Signals { at, ..Signals::default() });
    assert_eq!(run.fired, [0.0; 0]);
}

fn anonymous(at: f64, rss: u64, anon: u64) -> Signals {
    let memory =
        MemoryReading { rss_bytes: rss * MIB, anon_bytes: anon * MIB, ..MemoryReading::default() };
    Signals { at, memory: Some(memory), ..Signals::default() }
}

/// More than four fifths fires after five minutes, three quarters end it; exactly four fifths, and small processes, do not fire.
#[test]
fn anon() {
    let mut run = Run::new("anon_high");
    run.over([0.0, 400.0], |at| anonymous(at, 1000, 810));
    assert_eq!(run.fired, [300.0]);
    run.over([400.0, 500.0], |at| anonymous(at, 1000, 780));
    assert_eq!(run.state(), State::Firing);
    run.check(&anonymous(500.0, 1000, 750));
    assert_eq!(run.state(), State::Inactive);

    let mut run = Run::new("anon_high");
    run.over([0.0, HOUR], |at| anonymous(at, 1000, 800));
    run.over([HOUR, 2.0 * HOUR], |at| anonymous(at, 255, 255));
    run.over([2.0 * HOUR, 3.0 * HOUR], |at| anonymous(at, 0, 0));
    assert_eq!(run.fired, [0.0; 0]);
}

fn limited(at: f64, seconds: Option<f64>) -> Signals {
    let memory = MemoryReading {
        cgroup_bytes: Some(900 * MIB),
        cgroup_limit_bytes: Some(1024 * MIB),
        ..MemoryReading::default()
    };
    let trend = MemoryTrend {
        slope_bytes_per_second: 10_240.0,
        seconds_to_limit: seconds,
        ..MemoryTrend::default()
    };
    Signals { at, memory: Some(memory), trend: Some(trend), ..Signals::default() }
}

/// A limit in five hours fires after five minutes, one in eight hours does not end it; no growth does.
#[test]
fn limit() {
    let mut run = Run::new("limit_near");
    run.over([0.0, 400.0], |at| limited(at, Some(5.0 * HOUR)));
    assert_eq!(run.fired, [300.0]);
    assert_eq!(
        run.message(),
        "the control group's memory limit is reached in 5 h 00 min at the present growth, 900.0 MiB of 1.0 GiB are used, \
         resident memory grows by 10.0 KiB/s"
    );
    run.over([400.0, 500.0], |at| limited(at, Some(8.0 * HOUR)));
    assert_eq!(run.state(), State::Firing);
    run.check(&limited(500.0, None));
    assert_eq!(run.state(), State::Inactive);

    let mut run = Run::new("limit_near");
    run.over([0.0, HOUR], |at| limited(at, Some(6.0 * HOUR)));
    run.over([HOUR, 2.0 * HOUR], |at| limited(at, Some(f64::INFINITY)));
    assert_eq!(run.fired, [0.0; 0]);
}
