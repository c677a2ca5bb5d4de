//! Rules over readings of memory, faults and pressure.

use drainprof_process::memory::{MemoryReading, Pressure, Waiting};

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

/// More than a tenth for a minute fires, and ends below a twentieth; 9.9 % does not fire, nor does pressure that the kernel does not tell.
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
    let rss_slope_bytes_per_second = Some(10_240.0);
    Signals {
        at,
        memory: Some(memory),
        seconds_to_limit: seconds,
        rss_slope_bytes_per_second,
        ..Signals::default()
    }
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
