//! States, times, wants, the configuration, and hostile input.

use drainprof_census::{HeapSummary, Summary};
use drainprof_process::memory::{MemoryReading, Pressure, Waiting};
use drainprof_report::{
    memory::{MemoryTrend, MemoryVerdict},
    values::Time,
};
use proptest::prelude::*;

use crate::{
    AlertState, Heaps,
    trigger::{
        Closes, Config, Engine, FaultsHigh, Objects, ProfileSignals, RULES, RetentionSlope,
        Signals, Slope, State,
        testing::{Closing, Run},
    },
};

fn faulting(at: f64, per_second: f64) -> Signals {
    Signals { at, faults_per_second: Some(per_second), ..Signals::default() }
}

/// With a window asked for by the rule that is easiest to drive.
fn windowed(hold: u64) -> Config {
    let faults_high =
        FaultsHigh { window: true, hold: Time::seconds(hold), ..FaultsHigh::default() };
    Config { faults_high, ..Config::default() }
}

/// A condition must hold all along: one check at which it does not, or that cannot be made, begins its time again.
#[test]
fn for_is_all_along() {
    let mut run = Run::new("faults_high");
    run.over([0.0, 55.0], |at| faulting(at, 2000.0));
    run.check(&faulting(55.0, 900.0));
    run.over([60.0, 115.0], |at| faulting(at, 2000.0));
    run.check(&Signals { at: 115.0, ..Signals::default() });
    run.over([120.0, 180.0], |at| faulting(at, 2000.0));
    assert_eq!((run.state(), run.fired.len()), (State::Pending, 0));
    run.check(&faulting(180.0, 2000.0));
    assert_eq!(run.fired, [180.0]);
}

/// A gap while pending begins the time again: it was not seen to hold.
#[test]
fn gap_while_pending() {
    let mut run = Run::new("faults_high");
    run.check(&faulting(0.0, 2000.0));
    run.check(&faulting(1000.0, 2000.0));
    assert_eq!(run.state(), State::Pending);
    run.check(&faulting(1059.0, 2000.0));
    assert_eq!(run.state(), State::Pending);
    run.check(&faulting(1060.0, 2000.0));
    assert_eq!(run.state(), State::Firing);
}

/// What fires stays for ten minutes while nothing is known, then ends.
#[test]
fn blind_while_firing() {
    let mut run = Run::new("faults_high");
    run.over([0.0, 65.0], |at| faulting(at, 2000.0));
    assert_eq!(run.state(), State::Firing);
    run.over([65.0, 655.0], |at| Signals { at, ..Signals::default() });
    assert_eq!(run.state(), State::Firing);
    run.over([655.0, 665.0], |at| Signals { at, ..Signals::default() });
    assert_eq!(run.state(), State::Inactive);
}

/// Times that stand still, go back or are none are passed over.
#[test]
fn strange_times() {
    let mut run = Run::with("faults_high", windowed(0));
    run.check(&faulting(f64::NAN, 2000.0));
    run.check(&faulting(f64::INFINITY, 2000.0));
    assert_eq!(run.state(), State::Inactive);
    run.check(&faulting(100.0, 2000.0));
    assert_eq!(run.state(), State::Firing);
    for at in [100.0, 99.0, f64::NEG_INFINITY] {
        run.check(&faulting(at, 0.0));
        assert_eq!(run.state(), State::Firing);
    }
    run.check(&faulting(100.1, 0.0));
    assert_eq!(run.state(), State::Inactive);
}

/// Numbers that are none say nothing: they neither begin nor end anything.
#[test]
fn strange_numbers() {
    let mut run = Run::with("faults_high", windowed(0));
    for (second, value) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
        run.check(&faulting(second as f64, value));
        assert_eq!(run.state(), State::Inactive, "{value}");
    }
    run.check(&faulting(10.0, 2000.0));
    run.check(&faulting(11.0, f64::NAN));
    assert_eq!(run.state(), State::Firing);
}

/// Once served, a rule wants no window until it fires again, or goes on for `repeat`.
#[test]
fn wants() {
    let mut run = Run::with("faults_high", windowed(0));
    assert_eq!(run.engine.wants(&run.config), None);
    run.check(&faulting(0.0, 2000.0));
    let want = run.engine.wants(&run.config).unwrap();
    assert_eq!(
        (want.rule, want.why.as_str()),
        ("faults_high", "2000/s page faults; the threshold is 1000/s")
    );
    // Not served, it goes on wanting.
    run.check(&faulting(10.0, 2000.0));
    assert!(run.engine.wants(&run.config).is_some());
    run.engine.served_for("pressure_high");
    assert!(run.engine.wants(&run.config).is_some(), "another rule was served");
    run.engine.served_for("faults_high");
    assert_eq!(run.engine.wants(&run.config), None);
    run.check(&faulting(20.0, 0.0));
    run.check(&faulting(30.0, 2000.0));
    assert!(run.engine.wants(&run.config).is_some());
    run.engine.served();
    run.over([35.0, 30.0 + 6.0 * 3600.0], |at| faulting(at, 2000.0));
    assert_eq!(run.engine.wants(&run.config), None);
    run.check(&faulting(30.0 + 6.0 * 3600.0, 2000.0));
    assert!(run.engine.wants(&run.config).is_some());
    run.config.faults_high.window = false;
    run.check(&faulting(30.0 + 6.0 * 3601.0, 2000.0));
    assert_eq!(run.engine.wants(&run.config), None);
}

/// What opens a window learns of a rule about memory that fires, of no other rule, and of none that has ended.
#[test]
fn memory_is_told() {
    let mut run = Run::with("faults_high", windowed(10));
    run.check(&faulting(0.0, 2000.0));
    assert!(!run.engine.memory_fires(), "it is pending");
    run.check(&faulting(10.0, 2000.0));
    assert!(run.engine.memory_fires());
    run.check(&faulting(20.0, 0.0));
    assert!(!run.engine.memory_fires());

    let mut run = Run::new("dsr_low");
    let mut closing = Closing::new(1);
    run.over([0.0, 600.0], |at| closing.check(at, 100, 0.2));
    assert_eq!(run.state(), State::Firing);
    assert!(!run.engine.memory_fires(), "drainability is not memory");
}

/// Alerts are the states that are not inactive, with the time of the wall clock.
#[test]
fn alerts() {
    let mut run = Run::new("faults_high");
    run.check(&faulting(10.0, 0.0));
    assert!(run.engine.alerts(1_000_000).is_empty());
    run.check(&faulting(15.0, 2000.0));
    run.check(&faulting(20.0, 2000.0));
    let alerts = run.engine.alerts(1_000_000);
    assert_eq!(alerts.len(), 1);
    assert_eq!((alerts[0].state, alerts[0].since_unix_ms), (AlertState::Pending, 995_000));
    run.over([25.0, 100.0], |at| faulting(at, 2000.0));
    let alerts = run.engine.alerts(1_000_000);
    assert_eq!((alerts[0].state, alerts[0].since_unix_ms), (AlertState::Firing, 980_000));
    assert_eq!(alerts[0].rule, "faults_high");
}

/// Names are unique, each is a key of the configuration, and the other way round.
#[test]
fn table_and_configuration_agree() {
    let table: toml::Table = toml::from_str(&toml::to_string(&Config::default()).unwrap()).unwrap();
    let mut keys: Vec<&str> =
        table.iter().filter(|(_, value)| value.is_table()).map(|(key, _)| key.as_str()).collect();
    let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    keys.sort_unstable();
    names.sort_unstable();
    assert_eq!(keys, names);
}

/// Every rule and every default is in the documentation.
#[test]
fn documented() {
    let page = include_str!("../../../../../docs/triggers.md");
    let table: toml::Table = toml::from_str(&toml::to_string(&Config::default()).unwrap()).unwrap();
    for (rule, settings) in table.iter().filter(|(_, value)| value.is_table()) {
        let begin =
            page.find(&format!("### `{rule}`")).unwrap_or_else(|| panic!("{rule} has no section"));
        let section = &page[begin..];
        let section = &section[..section[4..].find("\n### ").map_or(section.len(), |end| end + 4)];
        for (key, value) in settings.as_table().unwrap() {
            let line = format!("{key} = {}", value.to_string().replace('\'', "\""));
            assert!(section.contains(&line), "{rule} lacks `{line}`");
        }
    }
}

/// The defaults are right, survive writing and reading, and any part can be given.
#[test]
fn configured() {
    let default = Config::default();
    assert_eq!(default.problems(), [""; 0]);
    assert_eq!(toml::from_str::<Config>("").unwrap(), default);
    assert_eq!(toml::from_str::<Config>(&toml::to_string(&default).unwrap()).unwrap(), default);
    let text = "[dsr_low]\nbelow = 0.7\nfor = '10m'\nwindow = false";
    let config: Config = toml::from_str(text).unwrap();
    assert_eq!((config.dsr_low.below.0, config.dsr_low.hold), (0.7, Time::minutes(10)));
    assert!(!config.dsr_low.window && config.dsr_low.enabled);
    assert_eq!(config.dsr_drop, default.dsr_drop);
}

/// Unknown keys are refused with what is known; wrong values are reported all at once, with their whole keys.
#[test]
fn wrong_configurations() {
    for text in ["[dsr_lov]", "[dsr_low]\nbelov = 1", "[dsr_low]\nhold = '1m'"] {
        let error = toml::from_str::<Config>(text).unwrap_err().to_string();
        assert!(error.contains("unknown field"), "{text}: {error}");
    }
    let cases = [
        ("repeat = '1s'", "`repeat`"),
        ("[dsr_low]\nback = 0.7", "`dsr_low.below`"),
        ("[dsr_low]\nfor = '48h'", "`dsr_low.for`"),
        ("[dsr_drop]\nsigmas = 0.0", "`dsr_drop.sigmas`"),
        ("[dsr_drop]\nadopt = '1s'", "`dsr_drop.adopt`"),
        ("[retention_slope]\nback = '1GiB'", "`retention_slope.back`"),
        ("[rss_slope]\nback = '1GiB'", "`rss_slope.back`"),
        ("[rss_slope]\nover = '30s'", "`rss_slope.over`"),
        ("[anon_faults]\nabove = 0.1", "`anon_faults.back`"),
        ("[rss_high]\nmin_share = 2", "`rss_high.min_share`"),
        ("[vsz_growth]\nover = '1s'", "`vsz_growth.over`"),
        ("[anon_high]\nabove = '180%'", "`anon_high.above`"),
        ("[faults_high]\nabove = nan", "`faults_high.above`"),
        ("[limit_near]\nback = '1h'", "`limit_near.within`"),
        ("[pressure_high]\nback = 0.5", "`pressure_high.back`"),
        ("[unmatched_frees]\nmin_frees = 0", "`unmatched_frees.min_frees`"),
    ];
    for (text, key) in cases {
        let problem = refused(text);
        assert!(
            problem.contains(&key.replacen('`', "triggers.", 1).replace('`', "")),
            "{text}: {problem}"
        );
    }
    let two = "[dsr_low]\nback = 0.7\nmin_closes = 0\n[anon_high]\nabove = 2";
    assert!(refused(two).lines().count() >= 2);
}

/// Why the sections of rules in a text are refused.
fn refused(text: &str) -> String {
    let text = format!("[triggers]\n{}", text.replace('[', "[triggers."));
    crate::config::parse(&text, std::path::Path::new("test.toml")).unwrap_err().to_string()
}

fn anything() -> impl Strategy<Value = Signals> {
    let closes =
        (any::<u64>(), any::<u64>()).prop_map(|(drainable, pinned)| Closes { drainable, pinned });
    let objects = (any::<u64>(), any::<u64>(), any::<u64>())
        .prop_map(|(allocs, frees, unmatched_frees)| Objects { allocs, frees, unmatched_frees });
    let slope = (any::<f64>(), any::<[f64; 2]>())
        .prop_map(|(bytes_per_second, interval)| Slope { bytes_per_second, interval });
    let profile = (
        "[a-c]",
        proptest::option::of(closes),
        proptest::option::of(objects),
        proptest::option::of(slope),
    )
        .prop_map(|(profile, closes, objects, retention_slope)| ProfileSignals {
            profile,
            closes,
            objects,
            retained_bytes: None,
            retention_slope,
        });
    let memory =
        any::<[u64; 4]>().prop_map(|[rss_bytes, anon_bytes, vsz_bytes, limit]| MemoryReading {
            rss_bytes,
            anon_bytes,
            vsz_bytes,
            cgroup_bytes: Some(rss_bytes),
            cgroup_limit_bytes: Some(limit),
            ..MemoryReading::default()
        });
    let pressure = any::<f64>().prop_map(|avg10| Pressure {
        some: Waiting { avg10, ..Waiting::default() },
        ..Pressure::default()
    });
    let rates = (
        proptest::option::of(any::<f64>()),
        proptest::option::of(any::<f64>()),
        proptest::option::of(any::<f64>()),
        proptest::option::of(any::<f64>()),
    );
    (
        -10.0..1000.0_f64,
        prop::collection::vec(profile, 0..4),
        proptest::option::of(memory),
        rates,
        proptest::option::of(pressure),
        proptest::option::of(heaps()),
    )
        .prop_map(
            |(at, profiles, memory, (faults, slope, limit, observed), pressure, heaps)| Signals {
                at,
                profiles,
                memory,
                faults_per_second: faults,
                trend: slope.map(|slope| MemoryTrend {
                    slope_bytes_per_second: slope,
                    slope_interval: [slope, slope],
                    anon_slope_bytes_per_second: slope,
                    newest_slope_bytes_per_second: slope,
                    verdict: MemoryVerdict::Growing,
                    seconds_to_limit: limit,
                    ..MemoryTrend::default()
                }),
                heaps,
                pressure,
                observed,
            },
        )
}

fn heaps() -> impl Strategy<Value = Heaps> {
    let heap = ("[a-c]", any::<[u64; 2]>(), any::<Option<u64>>()).prop_map(
        |(allocator, [resident_bytes, live_bytes], trimmable_bytes)| HeapSummary {
            allocator,
            resident_bytes,
            live_bytes,
            trimmable_bytes,
            ..HeapSummary::default()
        },
    );
    (any::<u64>(), any::<u64>(), prop::collection::vec(heap, 0..4)).prop_map(
        |(unix_ms, rss_bytes, heaps)| Heaps {
            unix_ms,
            summary: Summary { rss_bytes, heaps, ..Summary::default() },
            failure: None,
        },
    )
}

proptest! {
    /// Whatever it is reported, it never panics; a state that is not inactive has a message, an inactive one has none.
    #[test]
    fn never_panics(looks in prop::collection::vec(anything(), 0..60), waits in any::<bool>()) {
        let mut config = Config::default();
        if !waits {
            config.retention_slope = RetentionSlope { hold: Time::seconds(0), ..RetentionSlope::default() };
        }
        let mut engine = Engine::new();
        let mut now = 0.0;
        for mut signals in looks {
            now += signals.at;
            signals.at = now;
            engine.check(&config, &signals);
            for state in engine.states() {
                prop_assert_eq!(state.message.is_empty(), state.state == State::Inactive, "{:?}", state);
            }
            prop_assert_eq!(engine.alerts(0).is_empty(), engine.states().all(|state| state.state == State::Inactive));
        }
    }
}
