//! `drainprof top` at a daemon, on a real terminal: what it shows is what the daemon knows and what is true, windows are
//! the daemon's own, and a daemon that goes away is told of and found again.

use std::process::Command;

use anyhow::{Context as _, Result};
use drainprof_report::units;
use drainprof_tests::{
    environment::{self, requires_root},
    http,
    node::{Daemon, alone, target},
    paths::{shown, steps},
    screen::{Screen, line},
    target::Target,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// Short windows, which only a user opens.
const CONFIG: &str = "
window.length = \"3s\"
window.cost = \"400%\"
governor.enabled = false
triggers.dsr_low.enabled = false
";

fn top(screen: &Screen, daemon: &Daemon) -> Result<()> {
    let (binary, socket) = (environment::drainprof()?, daemon.file("control.sock"));
    screen.full_screen(&format!(
        "NO_COLOR=1 DRAINPROF_SOCKET={} {} top -i 200ms",
        socket.display(),
        binary.display()
    ))
}

/// Counts of the only allocator of a process: opened, closed, drainable, pinned, unknown.
fn counts(granules: &Value) -> Option<[u64; 5]> {
    let [opened, closed, drainable, pinned, unknown] =
        ["opened", "closed", "drainable", "pinned", "unknown"].map(|name| granules[name].as_u64());
    Some([opened?, closed?, drainable?, pinned?, unknown?])
}

/// Two processes that stand still: rows and details have the daemon's counts, which are the truth; rows are sorted and
/// filtered.
#[test]
fn shows_what_the_daemon_counts() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], CONFIG)?;
    let mut leaks = Target::start("psweep", &["closes=2000", "p=2500", "stops=1"])?;
    let mut stepper = Target::start("steps", &[])?;
    let (leaking, stepping) = (leaks.pid(), stepper.pid());
    daemon.attached(&[leaking, stepping])?;
    leaks.go()?;
    leaks.reaches("half")?;
    leaks.go()?;
    leaks.reaches("end")?;
    stepper.steps("o1 c1 o2 c2")?;
    let granules =
        |state: &Value, pid| target(state, pid).map(|one| one["allocators"][0]["granules"].clone());
    let known = daemon.until("it has counted both", |state| {
        let closed = |pid| granules(state, pid).and_then(|granules| granules["closed"].as_u64());
        closed(leaking) == Some(2000) && closed(stepping) == Some(2)
    })?;
    let then = known["unix_ms"].as_u64().context("a time")?;
    let known = granules(&known, leaking).context("the daemon has counts")?;
    let [opened, closed, drainable, pinned, unknown] = counts(&known).context("all counts")?;
    let dsr = units::dsr(Some(drainable as f64 / closed as f64));

    let screen = Screen::start(80, 24)?;
    top(&screen, &daemon)?;
    let text = screen.until(&format!("a DSR of {dsr} and one of 1"), |text| {
        line(text, leaking).is_some_and(|line| line.contains(&format!(" {dsr} ")))
            && line(text, stepping).is_some_and(|line| line.contains(" 1.0000 "))
    })?;
    assert!(text.starts_with("drainprof top  daemon, up "), "{text}");
    for pid in [leaking, stepping] {
        assert!(line(&text, pid).is_some_and(|line| line.contains(" bnd ")), "{text}");
    }

    let first = |text: &str| text.find(&leaking.to_string()) < text.find(&stepping.to_string());
    screen.press(&["d"])?;
    let text = screen.shows("DSR▲")?;
    assert!(first(&text), "the worst first: {text}");
    screen.press(&["r"])?;
    let text = screen.shows("DSR▼")?;
    assert!(!first(&text), "the other way round: {text}");
    screen.types("/PSWEEP")?;
    screen.until("one process", |text| line(text, stepping).is_none())?;
    screen.press(&["Enter", "Enter"])?;
    screen.shows("Allocator test-arena")?;
    screen.shows(&format!(
        "opened {opened}  closed {closed}: drainable {drainable}, pinned {pinned}, unknown {unknown}"
    ))?;
    screen.types("q")?;
    screen.press(&["Escape"])?;
    screen.until("both again", |text| line(text, stepping).is_some())?;

    // An ended process is the daemon's past.
    leaks.go()?;
    let truth = leaks.finish()?.truths.into_iter().next().context("it prints a truth")?;
    let truth = counts(&truth["allocators"][0]["granules"]).context("a truth has counts")?;
    assert_eq!([opened, closed, drainable, pinned, unknown], truth);
    screen.until("one process has ended", |text| line(text, leaking).is_none())?;
    screen.press(&["q"])?;
    screen.is_restored()?;
    the_past(&daemon, then, (leaking, &dsr), stepping)?;
    daemon.finish()?;
    Ok(())
}

/// As of a later time the history has one process less; so many steps back it is there, with its DSR.
fn the_past(daemon: &Daemon, then: u64, (pid, dsr): (u32, &str), other: u32) -> Result<()> {
    let later = daemon.until("it knows of the end", |state| {
        target(state, pid).is_none() && target(state, other).is_some()
    })?;
    let later = later["unix_ms"].as_u64().context("a time")?;
    let (binary, store) = (environment::drainprof()?, daemon.file("store/history.db"));
    let mut times = Vec::new();
    http::until("the history has that state", || {
        let mut history = Command::new(&binary);
        history.args(["history", "-o", "json", "-p", &other.to_string(), "--store"]).arg(&store);
        let all: Value = serde_json::from_slice(&history.output()?.stdout)?;
        let memory = all["processes"][0]["memory"].as_array().context("its memory")?;
        times = memory.iter().filter_map(|one| one["unix_ms"].as_u64()).collect();
        Ok(times.contains(&later))
    })?;
    let steps = times.iter().filter(|time| (then + 1..=later).contains(time)).count();

    let screen = Screen::start(80, 24)?;
    let (binary, store) = (binary.display(), store.display());
    screen.full_screen(&format!("NO_COLOR=1 {binary} top --at {later} --store {store}"))?;
    let text = screen.until("the later state", |text| line(text, other).is_some())?;
    assert!(text.starts_with("drainprof top  history  20"), "{text}");
    assert!(line(&text, pid).is_none(), "{text}");
    for _ in 0..steps {
        screen.press(&["Left"])?;
    }
    screen.until("the state before its end", |text| {
        line(text, pid).is_some_and(|line| line.contains(&format!(" {dsr} ")))
    })?;
    screen.press(&["d", "Home", "Enter"])?;
    screen.shows("the history keeps counts and memory")?;
    screen.press(&["q", "q"])?;
    screen.is_restored()
}

/// `w` opens a window of the daemon's, a second one is refused, and the report that the daemon keeps is shown: it names
/// who pins.
#[test]
fn opens_a_window_of_the_daemon() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], CONFIG)?;
    let mut service = Target::start("routing", &["rate=500"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGUSR1)?;
    let screen = Screen::start(100, 100)?;
    top(&screen, &daemon)?;
    screen.until("the process", |text| line(text, pid).is_some())?;
    screen.types("w")?;
    let length = units::duration(3.0);
    screen.shows(&format!("window 1 on routing[{pid}] has begun: {length}"))?;
    screen.types("w")?;
    screen.shows("a diagnostic window of this process is running")?;
    let state = daemon.until("the window runs", |state| state["windows"][0]["id"] == 1)?;
    let window = &state["windows"][0];
    assert_eq!((&window["pid"], &window["outcome"]), (&Value::from(pid), &"running".into()));
    screen.shows("finished; Tab, then Enter, shows its report")?;
    screen.press(&["Tab"])?;
    screen.shows("finished, report")?;
    screen.press(&["Enter"])?;
    let page = screen.shows("level stacks")?;
    let (status, body) = daemon.get("/api/v1/windows/1/report")?;
    assert_eq!(status, 200, "{body}");
    let report: Value = serde_json::from_str(&body)?;
    let allocator = &report["targets"][0]["allocators"][0];
    let [.., pinned, unknown] = counts(&allocator["granules"]).context("the report has counts")?;
    assert!(pinned > 0, "{allocator}");
    assert!(page.contains(&format!("{pinned} pinned, {unknown} unknown")), "{page}");
    let sites = allocator["sites"].as_array().context("the report has sites")?;
    let guilty = sites.iter().find(|site| site["granules_pinned"].as_u64() > Some(0));
    let guilty = shown(&steps(guilty.context("somebody pins")?));
    assert!(guilty.contains("make_session") && page.contains("make_session"), "{guilty}\n{page}");
    screen.types("qqq")?;
    screen.is_restored()?;
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A daemon that ends is told of, its last word stays, and one that is started again is shown again.
#[test]
fn survives_its_daemon() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], CONFIG)?;
    let mut stepper = Target::start("steps", &[])?;
    let pid = stepper.pid();
    daemon.attached(&[pid])?;
    stepper.steps("o1 c1")?;
    let screen = Screen::start(160, 24)?;
    top(&screen, &daemon)?;
    let drained = |text: &str| line(text, pid).is_some_and(|line| line.contains(" 1.0000 "));
    screen.until("a DSR", drained)?;
    // Not even then is it shown as one that the governor pauses.
    daemon.until("the governor has looked at it", |state| {
        target(state, pid).is_some_and(|one| !one["observed_ratio"].is_null())
    })?;
    let socket = daemon.file("control.sock");
    let directory = daemon.stop()?;
    let gone = format!("NOT CURRENT: no drainprof daemon listens on {}", socket.display());
    let text = screen.shows(&gone)?;
    // The daemon's last word is that it looks no more.
    assert!(line(&text, pid).is_some_and(|line| line.contains(" off ")), "{text}");
    screen.types("w")?;
    let said = format!("no drainprof daemon listens on {}", socket.display());
    screen.until("that no window is had", |text| {
        text.trim_end().lines().last().is_some_and(|line| line.contains(&said))
    })?;

    let daemon = Daemon::start_in(directory)?;
    daemon.attached(&[pid])?;
    stepper.steps("o2 a2 c2")?;
    screen.until("the new daemon's count", |text| {
        !text.contains("NOT CURRENT")
            && line(text, pid).is_some_and(|line| line.contains(" 0.0000 "))
    })?;
    daemon.stop()?;
    screen.shows("NOT CURRENT")?;
    screen.press(&["q"])?;
    screen.is_restored()
}
