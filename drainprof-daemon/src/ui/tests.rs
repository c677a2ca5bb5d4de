//! The app as its user sees it: pictures after keys and states.

mod past;

use drainprof_census::{HeapSummary, Summary};
use drainprof_node::{Answer, Heaps, NodeState, NodeTarget, Outcome, Refusal, Request};
use drainprof_report::{Allocator, Retention};
use proptest::prelude::*;
use ratatui::{Terminal, backend::TestBackend};

use super::{
    app::{Action, App, Look},
    keys::Key,
    samples::{self, allocator, later, report, state, target},
};

fn app() -> App {
    App::new(Look { source: "daemon".to_owned(), past: false, colour: false })
}

/// The heaps of a process, or why they are not known, are in its detail.
#[test]
fn heaps_are_shown() {
    let heap = HeapSummary {
        allocator: "glibc".to_owned(),
        resident_bytes: 200 << 20,
        held_bytes: 120 << 20,
        live_bytes: 50 << 20,
        free_bytes: 150 << 20,
        trimmable_bytes: Some(80 << 20),
        ..HeapSummary::default()
    };
    let summary = Summary { heaps: vec![heap], ..Summary::default() };
    let known = Heaps { summary, ..Heaps::default() };
    let unknown = Heaps { failure: Some("too large".to_owned()), ..Heaps::default() };
    for (heaps, shown) in [
        (known, "heap glibc: live 50.0 MiB  free 150.0 MiB  held 120.0 MiB  trimmable 80.0 MiB"),
        (unknown, "heaps unknown: too large"),
    ] {
        let mut state = state();
        state.targets.iter_mut().for_each(|target| target.heaps = Some(heaps.clone()));
        let mut app = app();
        app.resized(120, 70);
        app.take(state);
        press(&mut app, "\n");
        let picture = picture(&mut app, 120, 70);
        assert!(picture.contains(shown), "{picture}");
    }
}

/// An app that has seen two states, on a screen of that size.
fn running(width: u16, height: u16) -> App {
    let mut app = app();
    app.resized(width, height);
    app.take(state());
    app.take(later());
    app
}

fn picture(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    app.resized(width, height);
    terminal.draw(|frame| app.draw(frame)).unwrap();
    let text = terminal.backend().to_string();
    // The backend puts each line between quotes.
    let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

fn press(app: &mut App, keys: &str) -> Vec<Action> {
    keys.chars()
        .filter_map(|c| {
            app.key(match c {
                '\n' => Key::Enter,
                '\t' => Key::Tab,
                '\u{1b}' => Key::Esc,
                '\u{8}' => Key::Backspace,
                c => Key::Char(c),
            })
        })
        .collect()
}

/// The table's rows: what stands below its header, without the last line.
fn table(app: &mut App) -> Vec<String> {
    let picture = picture(app, 80, 24);
    let lines: Vec<&str> = picture.lines().collect();
    lines[3..23].iter().filter(|line| !line.is_empty()).map(ToString::to_string).collect()
}

fn first_words(app: &mut App) -> Vec<String> {
    let rows = table(app);
    rows.iter()
        .map(|row| row.trim_start_matches(['>', '!', ' ']).split(' ').next().unwrap().to_owned())
        .collect()
}

/// The table on a small and on a wide screen: rates are differences of two states, what is not known is a dash, and
/// a name's escape sequence is text.
#[test]
fn tables() {
    insta::assert_snapshot!("table_80x24", picture(&mut running(80, 24), 80, 24));
    insta::assert_snapshot!("table_120x40", picture(&mut running(120, 40), 120, 40));
    insta::assert_snapshot!("table_200x12", picture(&mut running(200, 12), 200, 12));
    let waiting = picture(&mut app(), 80, 5);
    assert!(waiting.contains("waiting for the first state"), "{waiting}");
}

/// One allocator with everything, and one of which hardly anything is known.
#[test]
fn details() {
    let mut app = running(80, 70);
    press(&mut app, "\n");
    insta::assert_snapshot!("detail_of_a_leak", picture(&mut app, 80, 70));
    let mut app = running(80, 24);
    press(&mut app, "pr");
    app.key(Key::End);
    press(&mut app, "\n");
    insta::assert_snapshot!("detail_without_probes", picture(&mut app, 80, 24));
    app.resized(80, 8);
    app.key(Key::End);
    assert!(picture(&mut app, 80, 8).contains("Windows"), "scrolled to the end");
}

/// Help and the list of windows, with the progress of the one that runs.
#[test]
fn other_pages() {
    let mut app = running(80, 24);
    press(&mut app, "?");
    insta::assert_snapshot!("help", picture(&mut app, 80, 32));
    press(&mut app, "q\t");
    insta::assert_snapshot!("windows", picture(&mut app, 80, 10));
}

/// Every column can be sorted by, both ways; what is not known stands last in either.
#[test]
fn sorting() {
    let mut app = running(80, 24);
    assert_eq!(first_words(&mut app), ["4242", "99", "512", "512", "900"], "by urgency");
    press(&mut app, "p");
    assert_eq!(first_words(&mut app), ["99", "512", "512", "900", "4242"]);
    press(&mut app, "r");
    assert_eq!(first_words(&mut app), ["4242", "900", "512", "512", "99"]);
    press(&mut app, "d");
    assert_eq!(first_words(&mut app), ["512", "4242", "512", "99", "900"], "the worst DSR first");
    press(&mut app, "r");
    let dsr: Vec<String> = table(&mut app)
        .iter()
        .map(|row| row.chars().skip(29).take(6).collect::<String>().trim().to_owned())
        .collect();
    assert_eq!(dsr, ["0.9900", "0.7526", "0.5000", "–", "–"], "unknown last in either order");
    for &sort in super::Sort::ALL {
        app.sort_by(sort);
        let up = picture(&mut app, 80, 24);
        press(&mut app, "r");
        let down = picture(&mut app, 80, 24);
        assert!(up.contains(sort.words()), "{up}");
        let arrows = usize::from(sort != super::Sort::Urgency);
        let count = |text: &str| text.matches(['▲', '▼']).count();
        assert_eq!((count(&up), count(&down)), (arrows, arrows), "{sort:?}");
        if arrows == 0 {
            continue;
        }
        assert_ne!(up.find('▲').is_some(), down.find('▲').is_some(), "{sort:?}");
    }
    press(&mut app, "p>");
    assert!(picture(&mut app, 80, 24).contains("by process,"));
    press(&mut app, "<<<");
    assert!(picture(&mut app, 80, 24).contains("by cost,"));
}

/// At first, what has an alert stands first, then what pins most bytes per second, then what grows most. Retained bytes,
/// which the default level does not know, do not matter.
#[test]
fn urgency() {
    let with = |app: &mut App, pid: u32, change: &dyn Fn(&mut NodeTarget)| {
        let mut next = app.state.clone().unwrap();
        next.unix_ms += 1_000;
        next.targets.iter_mut().for_each(|target| target.alerts.clear());
        for target in &mut next.targets {
            target.rss_slope_bytes_per_second = Some(0.0);
            if target.pid == pid {
                change(target);
            }
        }
        app.take(next);
        first_words(app)[0].clone()
    };
    for pid in [99, 900, 4242] {
        let grows = |target: &mut NodeTarget| target.rss_slope_bytes_per_second = Some(1e6);
        assert_eq!(with(&mut running(80, 24), pid, &grows), pid.to_string());
    }
    let mut app = running(80, 24);
    let first = [0, 4_096]
        .map(|bytes| with(&mut app, 512, &|target| target.allocators[0].pins.bytes = Some(bytes)));
    assert_eq!(first[1], "512", "{first:?}");
    let mut app = running(80, 24);
    assert!(table(&mut app)[0].contains("!4242"), "the one with the alert");
}

/// Each key of the help does in every view what the help says.
#[test]
fn keys_work_everywhere() {
    let views = ["", "\n", "\t", "?", "report"];
    let view = |open: &str| {
        let mut app = running(80, 24);
        match open {
            "report" => app.answered(Ok(Answer::Report { report: Box::new(report()) })),
            keys => drop(press(&mut app, keys)),
        }
        app
    };
    for open in views {
        for (letter, words) in
            [("p", "by pid,"), ("x", "by cost,"), (">", "by pid,"), ("<", "by cost,")]
        {
            let mut app = view(open);
            press(&mut app, letter);
            let shown = picture(&mut app, 80, 24);
            assert!(shown.contains(words), "{letter} in {open:?}: {shown}");
        }
        let mut app = view(open);
        press(&mut app, "r");
        assert!(picture(&mut app, 80, 24).contains("smallest first"), "r in {open:?}");
        let mut app = view(open);
        press(&mut app, "/arena\n");
        assert_eq!(first_words(&mut app), ["512", "512"], "/ in {open:?}");
        for (keys, is_wanted) in [
            (
                "w",
                (|action| matches!(action, Action::Ask(Request::Diagnose { .. })))
                    as fn(&Action) -> bool,
            ),
            ("t", |action| matches!(action, Action::Ask(Request::Report { .. }))),
        ] {
            let asked = press(&mut view(open), keys);
            assert!(asked.len() == 1 && is_wanted(&asked[0]), "{keys} in {open:?}: {asked:?}");
        }
        let mut app = view(open);
        let before = picture(&mut app, 80, 24);
        let asked = press(&mut app, "\n");
        assert!(!asked.is_empty() || picture(&mut app, 80, 24) != before, "Enter in {open:?}");
        for keys in ["\t", "W", "?", "h"] {
            let mut app = view(open);
            press(&mut app, keys);
            assert_ne!(picture(&mut app, 80, 24), before, "{keys} in {open:?}");
        }
    }
}

/// The filter reads names, labels and profiles, whatever the capitals; the row that was selected stays selected while
/// the order changes.
#[test]
fn filter_and_selection() {
    let mut app = running(80, 24);
    press(&mut app, "/SVC.serv\n");
    assert_eq!(first_words(&mut app), ["4242"], "by its unit");
    press(&mut app, "\u{1b}/arena\n");
    assert_eq!(first_words(&mut app), ["512", "512"], "by the profile");
    press(&mut app, "/zz");
    assert!(picture(&mut app, 80, 24).contains("no row has this text"));
    press(&mut app, "\u{8}\u{8}\n");
    assert_eq!(first_words(&mut app), ["512", "512"]);
    press(&mut app, "\u{1b}p");
    app.key(Key::End);
    assert!(table(&mut app)[4].starts_with(">!4242"), "{:?}", table(&mut app));
    press(&mut app, "r");
    assert!(table(&mut app)[0].starts_with(">!4242"));
}

/// Letters that are commands are text while a filter is typed.
#[test]
fn typing_is_not_commanding() {
    let mut app = running(80, 24);
    assert_eq!(press(&mut app, "/qwt?"), []);
    assert!(picture(&mut app, 80, 24).contains("/qwt?_"));
    assert_eq!(press(&mut app, "\u{1b}q"), [Action::Quit]);
}

/// A window is asked for, runs, ends, and leaves a report; a refusal is shown as the daemon said it.
#[test]
fn windows() {
    let mut app = running(80, 24);
    assert_eq!(
        press(&mut app, "w"),
        [Action::Ask(Request::Diagnose { pid: 4242, seconds: None, growth: None })]
    );
    app.answered(Err(Refusal::NotNow { message: "a window on 4242 runs already".to_owned() }));
    assert!(picture(&mut app, 80, 24).contains("runs already"));
    app.answered(Ok(Answer::Window {
        window: samples::window(3, Outcome::Running, samples::BEGAN),
    }));
    assert!(picture(&mut app, 80, 24).contains("window 3 on svc[4242] has begun"));
    let mut over = later();
    over.unix_ms += 1;
    over.windows[1].outcome = Outcome::Finished;
    over.windows[1].has_report = true;
    app.take(over);
    assert!(picture(&mut app, 80, 24).contains("window 2 on svc[4242]: finished"));
    assert_eq!(press(&mut app, "\t\n"), [Action::Ask(Request::WindowReport { id: 2 })]);
    assert_eq!(press(&mut app, "j\n"), [Action::Ask(Request::WindowReport { id: 1 })]);
    app.answered(Ok(Answer::Report { report: Box::new(report()) }));
    let shown = picture(&mut app, 80, 24);
    assert!(shown.contains("report"), "{shown}");
    // Back to the windows, to the table, and out.
    assert_eq!(press(&mut app, "qqq"), [Action::Quit]);
}

/// The pages that are open do not pile up, however often one is opened.
#[test]
fn pages_do_not_pile_up() {
    let mut app = running(80, 24);
    for _ in 0..1000 {
        app.answered(Ok(Answer::Report { report: Box::new(report()) }));
    }
    let mut presses = 0;
    while press(&mut app, "q").is_empty() {
        presses += 1;
        assert!(presses < 20, "the way back is short");
    }
}

/// A process that is new, one attached again and two states of one moment have no rates.
#[test]
fn no_rates_from_nothing() {
    let closes = |app: &mut App| {
        press(app, "\u{1b}/svc\n");
        table(app)[0].split_whitespace().nth(4).unwrap().to_owned()
    };
    let mut app = running(80, 24);
    assert_eq!(closes(&mut app), "1000");
    app.take(later());
    assert_eq!(closes(&mut app), "1000", "nothing new");
    let mut again = later();
    again.unix_ms += 1000;
    let granules = &mut again.targets[3].allocators[0].granules;
    (granules.closed, granules.drainable, granules.pinned) = (3, 3, 0);
    app.take(again);
    assert_eq!(closes(&mut app), "–");
}

/// Trouble with the source shows, and goes with the next state.
#[test]
fn trouble() {
    let mut app = running(80, 24);
    app.failure("the daemon at /run/x did not answer");
    assert!(picture(&mut app, 80, 24).contains("NOT CURRENT: the daemon at /run/x"));
    let mut next = later();
    next.unix_ms += 1;
    next.complete = false;
    next.losses.insert("granule_map_full".to_owned(), 3);
    app.take(next.clone());
    let shown = picture(&mut app, 80, 24);
    assert!(shown.contains("INCOMPLETE: granule_map_full 3"), "{shown}");
    (next.unix_ms, next.killed) = (next.unix_ms + 1, true);
    app.take(next);
    assert!(picture(&mut app, 80, 24).contains("KILL SWITCH"));
}

/// Colours are used only where they may be, and nothing is reported by them alone.
#[test]
fn colours() {
    let styles = |colour| {
        let mut app = App::new(Look { source: "daemon".to_owned(), past: false, colour });
        app.resized(80, 24);
        app.take(state());
        app.key(Key::Down);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| app.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content().to_vec();
        let coloured = cells.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset).count();
        (coloured, cells.iter().map(|cell| cell.symbol().to_owned()).collect::<String>())
    };
    let ((with, coloured), (without, plain)) = (styles(true), styles(false));
    assert!(with > 0 && without == 0, "{with} {without}");
    assert_eq!(coloured, plain);
}

/// Every line of the help fits a screen of 80 columns.
#[test]
fn help_fits() {
    for (keys, what) in super::keys::HELP {
        assert!(15 + what.chars().count() <= 80 && keys.chars().count() <= 12, "{keys} {what}");
    }
}

fn keys() -> impl Strategy<Value = Key> {
    prop_oneof![
        6 => any::<char>().prop_map(Key::Char),
        6 => proptest::sample::select("upnadcbfmglxrwtW/<>?hjkq ".chars().collect::<Vec<_>>()).prop_map(Key::Char),
        8 => proptest::sample::select(vec![
            Key::Enter, Key::Esc, Key::Backspace, Key::Tab, Key::Up, Key::Down, Key::Left,
            Key::Right, Key::PageUp, Key::PageDown, Key::Home, Key::End, Key::Ctrl('x'),
        ]),
    ]
}

fn anything() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-f64::MAX),
        Just(f64::MAX),
        Just(0.0),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        -1e12..1e12,
    ]
}

prop_compose! {
    fn states()(
        rows in proptest::collection::vec((any::<u32>(), any::<String>(), any::<bool>(), anything(), any::<u64>()), 0..40),
        unix_ms in any::<u64>(),
        seconds in anything(),
        complete in any::<bool>(),
    ) -> NodeState {
        let mut state = state();
        (state.unix_ms, state.uptime_seconds, state.complete) = (unix_ms, seconds, complete);
        state.windows[0].seconds = seconds;
        state.windows[1].seconds = seconds;
        state.targets.extend(rows.into_iter().map(|(pid, text, with, number, count)| {
            let of = Allocator {
                dsr: Some(number),
                retention: Retention {
                    bytes: Some(count),
                    forecast_bytes_per_day: Some(number),
                    slope_bytes_per_second: Some(number),
                    ..Retention::default()
                },
                instance: Some(text.clone()),
                open_granules: vec![samples::open(Some(number))],
                ..allocator(&text)
            };
            let mut of = target(pid, &text, if with { vec![of.clone(), of] } else { Vec::new() });
            of.rss_slope_bytes_per_second = Some(number);
            of.cost.cpu_ratio = Some(number);
            of
        }));
        state
    }
}

#[derive(Clone, Debug)]
enum Step {
    Key(Key),
    State(Box<NodeState>),
    Size(u16, u16),
    Report,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => keys().prop_map(Step::Key),
        2 => states().prop_map(|state| Step::State(Box::new(state))),
        3 => (1u16..220, 1u16..60).prop_map(|(width, height)| Step::Size(width, height)),
        1 => Just(Step::Report),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever comes, on whatever screen, there is a picture, and it holds no control character.
    #[test]
    fn always_a_picture(steps in proptest::collection::vec(steps(), 1..25)) {
        let mut app = app();
        let (mut width, mut height) = (20, 5);
        for step in steps {
            match step {
                Step::Key(key) => drop(app.key(key)),
                Step::State(state) => app.take(*state),
                Step::Size(w, h) => (width, height) = (w, h),
                Step::Report => app.answered(Ok(Answer::Report { report: Box::new(report()) })),
            }
            let shown = picture(&mut app, width, height);
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
        }
    }
}
