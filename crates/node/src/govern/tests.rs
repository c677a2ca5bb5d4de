use drainprof_report::values::Share;
use proptest::prelude::*;

use super::*;

const TICK: f64 = 5.0;
const HOUR: f64 = 3600.0;
const TICKS_PER_HOUR: usize = 720;

/// A process under the governor: what it costs at each level if its load is 1.
struct Simulation {
    costs: [f64; Level::ALL.len()],
    wanted: Level,
    possible: Vec<Level>,
}

/// What came of it.
#[derive(Default)]
struct Course {
    /// Per tick: time, level after it, cost ratio in it.
    ticks: Vec<(f64, Option<Level>, f64)>,
    steps: Vec<(f64, Step)>,
}

impl Simulation {
    /// Of a profile without level `close`.
    fn new([boundary, objects, stacks]: [f64; 3]) -> Self {
        let possible = Level::ALL[1..].to_vec();
        Self { costs: [0.0, boundary, objects, stacks], wanted: Level::Stacks, possible }
    }

    fn run(&self, config: &Config, hours: f64, mut load: impl FnMut(f64) -> f64) -> Course {
        let mut governor = Governor::new();
        let mut level = self.possible.iter().copied().filter(|level| *level <= self.wanted).max();
        let mut course = Course::default();
        let mut at = 0.0;
        while at < hours * HOUR {
            let cost_ratio = level.map_or(0.0, |level| self.costs[level as usize]) * load(at);
            let reading = Reading {
                at,
                level,
                wanted: Some(self.wanted),
                possible: &self.possible,
                hits_per_second: cost_ratio * 1e6,
                cost_ratio,
            };
            if let Some(step) = governor.decide(config, &reading) {
                assert_eq!(step.from, level);
                assert_ne!(step.to, level);
                level = step.to;
                course.steps.push((at, step));
            }
            course.ticks.push((at, level, cost_ratio));
            at += TICK;
        }
        course
    }
}

impl Course {
    /// The most changes of level within any hour.
    fn changes_per_hour(&self) -> usize {
        most_per_hour(self.steps.iter().map(|(at, _)| *at))
    }

    /// The most steps down within any hour.
    fn falls_per_hour(&self) -> usize {
        let falls = self.steps.iter().filter(|(_, step)| step.to < step.from);
        most_per_hour(falls.map(|(at, _)| *at))
    }

    /// The highest mean cost over any hour.
    fn mean_per_hour(&self) -> f64 {
        let ticks = TICKS_PER_HOUR;
        let mut sums = vec![0.0];
        for (.., cost) in &self.ticks {
            sums.push(sums[sums.len() - 1] + cost);
        }
        sums.windows(ticks + 1)
            .map(|hour| (hour[ticks] - hour[0]) / ticks as f64)
            .fold(0.0, f64::max)
    }

    fn last_level(&self) -> Option<Level> {
        self.ticks.last().and_then(|(_, level, _)| *level)
    }

    fn most_expensive_tick(&self) -> f64 {
        self.ticks.iter().map(|(.., cost)| cost * TICK).fold(0.0, f64::max)
    }
}

/// Most of these times (seconds) within any hour.
fn most_per_hour(times: impl Iterator<Item = f64>) -> usize {
    let times: Vec<f64> = times.collect();
    let within = |at: f64| times.iter().filter(|then| (at..at + HOUR).contains(*then)).count();
    times.iter().map(|at| within(*at)).max().unwrap_or(0)
}

/// In any hour: the budget, what was saved, what smoothing lets through, and one cycle's cost for each step down: a load
/// that rises within one cycle is only known after it, at each of the levels, and again when it returns after a rest.
fn tolerated(config: &Config, course: &Course) -> f64 {
    let slack = config.budget.0 * (config.burst.as_seconds() + SMOOTHING_SECONDS)
        + course.falls_per_hour().max(3) as f64 * course.most_expensive_tick();
    config.budget.0 + slack / HOUR
}

/// What is within the budget is left alone for ever.
#[test]
fn cheap_is_left_alone() {
    let course = Simulation::new([0.001, 0.004, 0.0099]).run(&Config::default(), 24.0, |_| 1.0);
    assert!(course.steps.is_empty());
}

/// A constant load settles at the highest level that it can afford, and tries the next one rarely.
#[test]
fn constant_load_settles() {
    let course = Simulation::new([0.001, 0.006, 0.03]).run(&Config::default(), 24.0, |_| 1.0);
    let (at, first) = &course.steps[0];
    assert_eq!((first.from, first.to), (Some(Level::Stacks), Some(Level::Objects)));
    assert!(*at <= 160.0, "{at}");
    assert_eq!(
        first.why,
        "level stacks costs 3.00 % of one CPU (30000/s hits), the budget is 1% and used up: down to objects; \
         stacks is tried again in 10 min 00 s at the earliest"
    );
    assert_eq!(course.last_level(), Some(Level::Objects));
    // Once in two hours, up and down.
    assert!(course.steps.len() <= 25, "{}", course.steps.len());
    assert!(course.mean_per_hour() <= tolerated(&Config::default(), &course));
}

/// What is too expensive even at the lowest level pauses within a few looks, and is observed again every few minutes.
#[test]
fn very_dear_is_observed_in_parts() {
    let config = Config::default();
    for cost in [0.02, 0.2, 1.0] {
        let costs = [cost, 2.0 * cost, 4.0 * cost];
        let course = Simulation::new(costs).run(&config, 24.0, |_| 1.0);
        let paused = course.steps.iter().find(|(_, step)| step.to.is_none()).unwrap();
        let until = if cost < 0.1 { 600.0 } else { 6.0 * TICK };
        assert!(paused.0 <= until, "{cost}: {}", paused.0);
        assert!(course.mean_per_hour() <= tolerated(&config, &course));
        assert!(course.changes_per_hour() <= 24, "{cost}: {}", course.changes_per_hour());
        let parts = course.steps.iter().filter(|(_, step)| step.from.is_none()).count();
        assert!(parts >= 24 * 4, "{cost}: {parts}");
        let observed = course.ticks.iter().filter(|(_, level, _)| level.is_some()).count();
        let share = observed as f64 / course.ticks.len() as f64;
        // As much as the budget has room for, but for what a look is late.
        assert!(share <= config.budget.0 / cost + 0.01, "{cost}: {share}");
    }
}

/// A burst that the savings cover costs no level.
#[test]
fn a_burst_costs_no_level() {
    let burst = |at: f64| if at % 600.0 < 60.0 { 1.0 } else { 0.02 };
    let course = Simulation::new([0.01, 0.02, 0.04]).run(&Config::default(), 24.0, burst);
    assert!(course.steps.is_empty(), "{:?}", course.steps[0]);
}

/// Square waves of any period and height: the changes of level and the mean cost of any hour are bounded.
#[test]
fn square_waves() {
    let config = Config::default();
    let mut worst = (0, 0.0, 0.0);
    let periods = (0..32).map(|step| 10.0 * 1.25_f64.powi(step));
    for period in periods {
        for height in [1.5, 10.0, 100.0] {
            for duty in [0.1, 0.5, 0.9] {
                for costs in [[0.01, 0.01, 0.01], [0.002, 0.005, 0.01], [0.0001, 0.004, 0.02]] {
                    let load = |at: f64| if at % period < duty * period { height } else { 0.0001 };
                    let course = Simulation::new(costs).run(&config, 8.0, load);
                    let mean = course.mean_per_hour();
                    assert!(
                        mean <= tolerated(&config, &course),
                        "period {period}, height {height}, duty {duty}, {costs:?}: {mean}"
                    );
                    let changes = course.changes_per_hour();
                    if changes > worst.0 {
                        worst = (changes, period, height);
                    }
                }
            }
        }
    }
    assert!(worst.0 <= CHANGES, "{worst:?}");
}

/// Changes of level in any hour, whatever the load does. A level that was too expensive is tried again after 10, 20 and 40
/// minutes, so it is entered and left five times; a step down over several levels can cost one more. The cheapest is
/// entered and left every 5 minutes.
const CHANGES: usize = 36;

/// A target that becomes cheap is back at its level within the longest wait and the rests between levels.
#[test]
fn back_when_cheap() {
    let config = Config::default();
    for dear_hours in [0.1, 1.0, 6.0, 20.0] {
        let load = |at: f64| if at < dear_hours * HOUR { 100.0 } else { 1.0 };
        let course = Simulation::new([0.0005, 0.001, 0.004]).run(&config, dear_hours + 2.0, load);
        assert_eq!(course.steps[0].1.from, Some(Level::Stacks));
        let back = course
            .ticks
            .iter()
            .find(|(at, level, _)| *at >= dear_hours * HOUR && *level == Some(Level::Stacks));
        let back = back.map(|(at, ..)| at - dear_hours * HOUR);
        assert!(back.is_some_and(|back| back <= HOUR + 180.0), "{dear_hours}: {back:?}");
        assert_eq!(course.last_level(), Some(Level::Stacks));
    }
}

/// Only levels that are possible are stepped to, and none above the one that is wanted.
#[test]
fn possible_and_wanted() {
    let simulation = Simulation {
        costs: [0.0, 0.0, 0.5, 0.5],
        wanted: Level::Objects,
        possible: vec![Level::Objects, Level::Stacks],
    };
    let course = simulation.run(&Config::default(), 3.0, |at| if at < HOUR { 1.0 } else { 0.001 });
    assert_eq!(course.steps[0].1.to, None);
    assert!(course.steps.iter().all(|(_, step)| matches!(step.to, None | Some(Level::Objects))));
    assert_eq!(course.last_level(), Some(Level::Objects));
}

/// A step that is not done is asked for again, and is no second failure.
#[test]
fn step_not_done() {
    let (config, mut governor) = (Config::default(), Governor::new());
    let mut asked = 0;
    for tick in 0..100 {
        let reading = Reading {
            at: f64::from(tick) * TICK,
            level: Some(Level::Boundary),
            wanted: Some(Level::Boundary),
            possible: &Level::ALL[1..],
            hits_per_second: 1e6,
            cost_ratio: 0.5,
        };
        if let Some(step) = governor.decide(&config, &reading) {
            assert_eq!(step.to, None);
            assert!(step.why.contains("paused; it is observed again in "), "{}", step.why);
            asked += 1;
        }
    }
    assert!(asked > 90, "{asked}");
}

/// Where closes alone are within the budget, they are observed, and nothing is paused.
#[test]
fn closes_alone_come_before_a_pause() {
    let mut simulation = Simulation::new([0.03, 0.3, 0.6]);
    simulation.costs[Level::Close as usize] = 0.008;
    simulation.possible = Level::ALL.to_vec();
    let course = simulation.run(&Config::default(), 1.0, |_| 1.0);
    assert!(course.ticks.iter().all(|(_, level, _)| level.is_some()));
    assert_eq!(course.ticks.last().unwrap().1, Some(Level::Close));
}

/// Switched off, it changes nothing.
#[test]
fn disabled() {
    let config = Config { enabled: false, ..Config::default() };
    let course = Simulation::new([1.0, 1.0, 1.0]).run(&config, 1.0, |_| 1.0);
    assert!(course.steps.is_empty());
}

/// The budget can be written both ways; wrong values are reported by their keys, and unknown keys are refused.
#[test]
fn configured() {
    assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
    let written = toml::to_string(&Config::default()).unwrap();
    assert_eq!(toml::from_str::<Config>(&written).unwrap(), Config::default());
    for text in ["budget = '2%'", "budget = 0.02"] {
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.budget, Share(0.02));
        assert_eq!(config.problems(), [""; 0]);
    }
    let cases = ["budget = 0", "budget = '101%'", "headroom = -1", "burst = '2h'", "retry = '2h'"];
    for text in cases {
        let text = format!("[governor]\n{text}");
        let path = std::path::Path::new("test.toml");
        let problem = crate::config::parse(&text, path).unwrap_err().to_string();
        let key = text.split(['\n', ' ']).nth(1).unwrap();
        assert!(problem.starts_with("test.toml:2:"), "{problem}");
        assert!(problem.contains(&format!("governor.{key}: ")), "{text}: {problem}");
    }
    assert!(toml::from_str::<Config>("buget = '1%'").unwrap_err().to_string().contains("budget"));
}

/// Two bursts in one hour, with a rest in which every level is cheap: each burst costs one cycle at each level.
#[test]
fn bursts_with_a_rest() {
    let loads = [(170.0, 80), (0.0, 532), (183.0, 108)];
    let mut loads = loads.into_iter().flat_map(|(load, ticks)| std::iter::repeat_n(load, ticks));
    let config = Config::default();
    let costs = [0.009, 0.017, 0.017];
    let course = Simulation::new(costs).run(&config, 1.0, |_| loads.next().unwrap_or(0.0));
    assert_eq!(course.last_level(), None);
    assert!((4..=6).contains(&course.falls_per_hour()), "{:?}", course.steps);
    assert!(course.mean_per_hour() <= tolerated(&config, &course));
}

proptest! {
    /// Random loads: changes of level and mean cost of any hour stay within the same bounds.
    #[test]
    fn random_loads(
        loads in prop::collection::vec((0.0..200.0_f64, 1..200_u32), 1..40),
        costs in (0.0..0.01_f64, 0.0..0.01_f64, 0.0..0.02_f64),
    ) {
        let config = Config::default();
        let series: Vec<f64> =
            loads.iter().flat_map(|(load, ticks)| std::iter::repeat_n(*load, *ticks as usize)).collect();
        let costs = [costs.0, costs.0 + costs.1, costs.0 + costs.1 + costs.2];
        let mut loads = series.iter().copied();
        let hours = series.len() as f64 * TICK / HOUR;
        let course = Simulation::new(costs).run(&config, hours, |_| loads.next().unwrap_or(0.0));
        prop_assert!(course.changes_per_hour() <= CHANGES, "{}", course.changes_per_hour());
        prop_assert!(course.mean_per_hour() <= tolerated(&config, &course));
    }

    /// Whatever it is reported, it never panics, and steps only where it can.
    #[test]
    fn never_panics(readings in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>(), 0..4_usize, 0..4_usize), 0..50)) {
        let config = Config::default();
        let mut governor = Governor::new();
        let level = |index: usize| Level::ALL.get(index).copied();
        for (at, hits_per_second, cost_ratio, now, wanted) in readings {
            let reading = Reading { at, level: level(now), wanted: level(wanted), possible: &Level::ALL[..2], hits_per_second, cost_ratio };
            if let Some(step) = governor.decide(&config, &reading) {
                prop_assert!(step.to != reading.level && step.to != Some(Level::Stacks));
            }
            prop_assert!(governor.account.balance().is_finite());
        }
    }
}
