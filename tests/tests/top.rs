//! `drainprof top` on a real terminal: what it shows is true, its keys work, and the terminal is left as it was found.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    elf,
    environment::{self, requires_root},
    screen::{PROMPT, Screen, line},
    target::Target,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A target that stops in the middle and at its end; a quarter of its closes is pinned.
fn service() -> Result<Target> {
    Target::start("psweep", &["closes=2000", "p=2500", "stops=1"])
}

/// Types the command that shows these processes without a daemon.
fn top(screen: &Screen, pids: &[u32], more: &str) -> Result<()> {
    let binary = environment::drainprof()?;
    let profile = environment::profile("arena");
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    screen.full_screen(&format!(
        "NO_COLOR=1 {} top -i 200ms --profile {profile} -p {} {more}",
        binary.display(),
        pids.join(",")
    ))
}

/// Two processes: their DSRs are the truth, they are sorted and filtered, one is looked into, and at the end no probe and
/// nothing on the terminal is left.
#[test]
fn shows_the_truth() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let path = environment::target("steps")?;
    let (mut leaks, mut steps) = (service()?, Target::start("steps", &[])?);
    let (leaking, stepping) = (leaks.pid(), steps.pid());
    let screen = Screen::start(80, 24)?;
    top(&screen, &[leaking, stepping], "--level objects")?;
    screen.until("both processes", |text| {
        line(text, leaking).is_some() && line(text, stepping).is_some()
    })?;
    assert_eq!(screen.modes()?, (true, false), "the second screen, without a cursor");
    leaks.go()?;
    leaks.reaches("half")?;
    steps.steps("o1 a1 f1 c1 o2 c2")?;
    let text = screen.until("a DSR of 1", |text| {
        line(text, stepping).is_some_and(|line| line.contains(" 1.0000 "))
    })?;
    let row = line(&text, stepping).context("it was there")?;
    assert!(row.contains(" obj "), "{row}");

    // The worst first, and the other way round; the arrow says which.
    screen.press(&["d"])?;
    let text = screen.shows("DSR▲")?;
    let first = |text: &str| text.find(&leaking.to_string()) < text.find(&stepping.to_string());
    assert!(first(&text), "{text}");
    screen.press(&["r"])?;
    assert!(!first(&screen.shows("DSR▼")?));

    screen.types("/STEPS")?;
    screen.until("one process", |text| line(text, leaking).is_none())?;
    screen.press(&["Escape"])?;
    screen.until("both again", |text| line(text, leaking).is_some())?;

    // Into the one that leaks; what stands there is what was counted.
    screen.types("/psweep")?;
    screen.press(&["Enter", "Enter"])?;
    screen.shows("Allocator test-arena")?;
    leaks.go()?;
    leaks.reaches("end")?;
    leaks.go()?;
    let truth = leaks.finish()?.truths.into_iter().next().context("it prints a truth")?;
    let granules = &truth["allocators"][0]["granules"];
    let (drainable, pinned) = (granules["drainable"].as_u64(), granules["pinned"].as_u64());
    let (drainable, pinned) = (drainable.context("drainable")?, pinned.context("pinned")?);
    screen.shows(&format!("closed 2000: drainable {drainable}, pinned {pinned}, unknown 0"))?;
    screen.shows("Ages of granules")?;
    screen.press(&["End"])?;
    screen.shows("none so far; w starts one")?;
    screen.press(&["Escape"])?;
    let dsr = drainprof_report::units::dsr(Some(drainable as f64 / 2000.0));
    screen.until(&format!("DSR {dsr}, and the end"), |text| {
        line(text, leaking)
            .is_some_and(|line| line.contains(&format!(" {dsr} ")) && line.contains(" off "))
    })?;

    assert!(elf::changed_text_bytes(stepping, &path)? > 0, "probes show in the text");
    screen.press(&["q"])?;
    screen.is_restored()?;
    assert_eq!(elf::changed_text_bytes(stepping, &path)?, 0, "no probe is left");
    Ok(())
}

/// Ctrl-Z gives the terminal to the shell, and `fg` takes it back: counting has gone on. Then another size, and SIGTERM.
#[test]
fn stops_and_comes_back() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut target = Target::start("steps", &[])?;
    let pid = target.pid();
    let screen = Screen::start(80, 24)?;
    let binary = environment::drainprof()?;
    let profile = environment::profile("arena");
    let command =
        format!("{} top -i 200ms --profile {profile} -p {pid} --level objects", binary.display());
    screen.command(&command)?;
    screen.until("the process", |text| line(text, pid).is_some())?;
    target.steps("o1 c1")?;
    screen.shows(" 1.0000 ")?;
    screen.press(&["C-z"])?;
    screen.shows("Stopped")?;
    assert_eq!(screen.modes()?, (false, true), "the shell's screen");
    target.steps("o2 a2 c2")?;
    screen.command("fg")?;
    screen.until("the new count", |text| {
        line(text, pid).is_some_and(|line| line.contains(" 0.5000 "))
    })?;
    assert_eq!(screen.modes()?, (true, false));
    screen.resize(120, 30)?;
    screen.shows("pinned/s")?;
    let top = *screen.children()?.first().context("top runs")?;
    kill(Pid::from_raw(top.cast_signed()), Signal::SIGTERM)?;
    screen.until("the prompt", |text| text.trim_end().ends_with(PROMPT))?;
    screen.full_screen("(exit $?)")?;
    screen.is_restored()
}

/// `w` looks deeper for a while, at another level, and leaves a report that names who pins.
#[test]
fn a_window_names_who_pins() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut target = Target::start("steps", &[])?;
    let pid = target.pid();
    let screen = Screen::start(100, 100)?;
    top(&screen, &[pid], "--level objects --window 3s")?;
    screen.until("the process", |text| line(text, pid).is_some())?;
    screen.types("w")?;
    screen.shows("has begun")?;
    target.steps("o1 a1 c1 o2 a2 c2")?;
    screen.shows(": finished; Tab, then Enter, shows its report")?;
    screen.press(&["Tab"])?;
    screen.shows("finished, report")?;
    screen.press(&["Enter"])?;
    let report = screen.shows("level stacks")?;
    assert!(report.contains("2 pinned, 0 unknown") && report.contains("steps.c:"), "{report}");
    screen.types("qqq")?;
    screen.is_restored()
}

/// Without a daemon, and without a terminal, it says what to do instead.
#[test]
fn says_what_it_needs() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let binary = environment::drainprof()?;
    let screen = Screen::start(240, 24)?;
    screen.command(&format!("{} top --socket /nonexistent/socket", binary.display()))?;
    screen.shows("no drainprof daemon listens on /nonexistent/socket; is it running? Start it")?;
    screen.shows("drainprof top -p PID")?;
    screen.command(&format!("{} top < /dev/null; echo code=$?", binary.display()))?;
    screen.shows("code=2")?;
    assert!(screen.text()?.contains("top needs a terminal"));
    Ok(())
}
