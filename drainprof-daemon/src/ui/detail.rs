//! One row in detail, as lines of text: what it is, its alerts, what pins, how old its granules are, its windows.

use std::fmt::Write as _;

use drainprof_node::{Alert, AlertState, Outcome, WindowRecord};
use drainprof_report::{Allocator, Frame, Growth, PinClass, Severity, Site, export::shown, units};

use super::{
    ages::ages,
    numbers::{self, UNKNOWN, or_unknown},
    rows::Row,
};

/// Call paths that are listed; the report has more.
const MAX_SITES: usize = 20;
/// Frames of a path that are listed.
const MAX_FRAMES: usize = 12;
/// Findings and alerts that are listed.
const MAX_MESSAGES: usize = 20;
/// Windows that are listed here; the list of windows has all.
const MAX_WINDOWS: usize = 8;
/// Columns of the longest bar.
const BAR_WIDTH: usize = 30;
/// Longest name that is shown.
const NAME_CHARS: usize = 200;

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Heading,
    Plain,
    Warning,
    Bad,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) tone: Tone,
}

/// Lines that are being written, `width` columns each.
struct Lines {
    lines: Vec<Line>,
    width: usize,
}

impl Lines {
    fn push(&mut self, tone: Tone, text: impl Into<String>) {
        self.lines.push(Line { text: text.into(), tone });
    }

    fn plain(&mut self, text: impl Into<String>) {
        self.push(Tone::Plain, text);
    }

    fn heading(&mut self, text: impl Into<String>) {
        if !self.lines.is_empty() {
            self.plain("");
        }
        self.push(Tone::Heading, text);
    }

    /// A sentence over as many lines as it needs; all but the first are indented.
    fn sentence(&mut self, tone: Tone, text: &str) {
        let width = self.width.max(20);
        let mut line = String::new();
        let mut used = 0;
        for word in text.split(' ') {
            let length = word.chars().count();
            if used > 0 && used + 1 + length > width {
                self.push(tone, std::mem::take(&mut line));
                line.push_str("    ");
                line.push_str(word);
                used = 4 + length;
                continue;
            }
            if used > 0 || !line.is_empty() {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
        }
        self.push(tone, line);
    }
}

/// The lines for a page of `width` columns. `windows`: the latest first, of all processes. `past`: the history keeps less
/// than a daemon knows.
pub(super) fn lines(row: &Row<'_>, windows: &[&WindowRecord], width: u16, past: bool) -> Vec<Line> {
    let mut out = Lines { lines: Vec::new(), width: usize::from(width) };
    process(row, &mut out);
    heaps(row, &mut out);
    alerts(row, &mut out);
    if let Some(allocator) = row.allocator {
        counts(row, allocator, &mut out);
        if past {
            let kept = "the history keeps counts and memory; call paths and ages are in the reports of windows";
            out.sentence(Tone::Plain, kept);
        } else {
            sites(allocator, &mut out);
            histogram(allocator, &mut out);
        }
    }
    findings(row, &mut out);
    let none = if past { "none by then" } else { "none so far; w starts one" };
    windows_of(row, windows, none, &mut out);
    out.lines
}

fn process(row: &Row<'_>, out: &mut Lines) {
    let target = row.target;
    let labels = &target.labels;
    out.push(
        Tone::Heading,
        format!(
            "{}[{}]  {}",
            shown(&target.comm, NAME_CHARS),
            target.pid,
            shown(&target.exe, NAME_CHARS)
        ),
    );
    let places = [
        ("container", &labels.container),
        ("unit", &labels.unit),
        ("pod", &labels.pod),
        ("namespace", &labels.namespace),
        ("cgroup", &labels.cgroup),
    ];
    let named = places.into_iter().filter_map(|(name, value)| {
        value.as_ref().map(|value| format!("{name} {}", shown(value, NAME_CHARS)))
    });
    let named: Vec<String> = named.collect();
    if !named.is_empty() {
        out.sentence(Tone::Plain, &named.join("  "));
    }
    let none = if target.observed_ratio.is_some() { "paused" } else { "off" };
    let level = target.level.map_or(none, drainprof_profile::Level::name);
    out.sentence(Tone::Plain, &format!("level {level}: {}", shown(&target.reason, 2 * NAME_CHARS)));
    if let Some(ratio) = target.observed_ratio.filter(|ratio| *ratio < 1.0) {
        out.plain(format!("observed {} of the last ten minutes", units::percent(ratio)));
    }
    let cost = &target.cost;
    let (ratio, hits) = (or_unknown(cost.cpu_ratio, units::percent), cost.hits);
    let basis = if cost.measured { "" } else { ", by another machine's costs" };
    out.plain(format!("probes cost {ratio} of one CPU, {hits} hits{basis}"));
    let Some(memory) = target.memory else {
        out.plain("memory could not be read");
        return;
    };
    out.sentence(
        Tone::Plain,
        &format!(
            "RSS {} (anon {}, file {}, shared {})  PSS {}  swap {}  VSZ {}",
            units::bytes(memory.rss_bytes),
            units::bytes(memory.anon_bytes),
            units::bytes(memory.file_bytes),
            units::bytes(memory.shmem_bytes),
            or_unknown(memory.pss_bytes, units::bytes),
            units::bytes(memory.swap_bytes),
            units::bytes(memory.vsz_bytes),
        ),
    );
    out.sentence(
        Tone::Plain,
        &format!(
            "RSS grows {}  faults {}  cgroup {} of {}  full in {}",
            or_unknown(target.rss_slope_bytes_per_second, units::byte_rate),
            or_unknown(target.faults_per_second, units::rate),
            or_unknown(memory.cgroup_bytes, units::bytes),
            or_unknown(memory.cgroup_limit_bytes, units::bytes),
            or_unknown(target.seconds_to_limit, units::duration),
        ),
    );
}

fn heaps(row: &Row<'_>, out: &mut Lines) {
    let Some(known) = &row.target.heaps else { return };
    if let Some(why) = &known.failure {
        out.sentence(Tone::Plain, &format!("heaps unknown: {}", shown(why, 2 * NAME_CHARS)));
    }
    for heap in &known.summary.heaps {
        out.sentence(
            Tone::Plain,
            &format!(
                "heap {}: live {}  free {}  held {}  trimmable {}  of {} resident",
                shown(&heap.allocator, NAME_CHARS),
                units::bytes(heap.live_bytes),
                units::bytes(heap.free_bytes),
                units::bytes(heap.held_bytes),
                or_unknown(heap.trimmable_bytes, units::bytes),
                units::bytes(heap.resident_bytes),
            ),
        );
    }
}

fn alerts(row: &Row<'_>, out: &mut Lines) {
    if row.target.alerts.is_empty() {
        return;
    }
    out.heading("Alerts");
    for Alert { rule, state, message, .. } in row.target.alerts.iter().take(MAX_MESSAGES) {
        let (mark, tone, how) = match state {
            AlertState::Firing => ('!', Tone::Bad, "firing"),
            AlertState::Pending => ('?', Tone::Warning, "pending"),
        };
        let (rule, message) = (shown(rule, NAME_CHARS), shown(message, 2 * NAME_CHARS));
        out.sentence(tone, &format!("{mark} {rule} {how}: {message}"));
    }
}

fn counts(row: &Row<'_>, allocator: &Allocator, out: &mut Lines) {
    let instance = allocator.instance.as_ref().map(|id| format!(" at {}", shown(id, 20)));
    let instance = instance.unwrap_or_default();
    let (profile, kind) = (shown(&allocator.profile, NAME_CHARS), allocator.kind.name());
    out.heading(format!(
        "Allocator {profile}{instance}, kind {kind}, level {}",
        allocator.level.name()
    ));
    let granules = &allocator.granules;
    let now = row.rates;
    let dsr = |value| or_unknown(value, |value| units::dsr(Some(value)));
    out.plain(format!(
        "DSR {}  of the last closes {}",
        dsr(row.dsr()),
        dsr(now.and_then(|rates| rates.dsr)),
    ));
    let per_second = |value| or_unknown(value, units::rate);
    out.plain(format!(
        "opens {}  closes {}  pinned {}  (per second, now)",
        per_second(now.map(|rates| rates.opens)),
        per_second(now.map(|rates| rates.closes)),
        per_second(now.map(|rates| rates.pinned)),
    ));
    out.sentence(
        Tone::Plain,
        &format!(
            "opened {}  closed {}: drainable {}, pinned {}, unknown {}  open {}{}",
            granules.opened,
            granules.closed,
            granules.drainable,
            granules.pinned,
            granules.unknown,
            granules.open_now,
            // Of the past it is not known.
            if granules.open_peak < granules.open_now.max(1) {
                String::new()
            } else {
                format!(" (most {})", granules.open_peak)
            },
        ),
    );
    if let Some(objects) = allocator.objects {
        out.plain(format!(
            "objects allocated {}, freed {}, live {} ({})",
            objects.allocated,
            objects.freed,
            objects.live,
            or_unknown(objects.live_bytes, units::bytes),
        ));
    }
    let retention = &allocator.retention;
    out.sentence(
        Tone::Plain,
        &format!(
            "retained {} ({})  drained late {}  grows {}  in a day {}",
            or_unknown(retention.granules, |granules| units::counted(
                granules, "granule", "granules"
            )),
            or_unknown(retention.bytes, units::bytes),
            or_unknown(retention.late_drained, |count| count.to_string()),
            or_unknown(retention.slope_bytes_per_second, units::byte_rate),
            or_unknown(retention.forecast_bytes_per_day, numbers::growth),
        ),
    );
    if let Some(verdict) = retention.verdict {
        let reason = retention.verdict_reason.as_deref().unwrap_or_default();
        let tone = if verdict == Growth::LinearLeak { Tone::Bad } else { Tone::Plain };
        out.sentence(
            tone,
            &format!("course: {}. {}", verdict.words(), shown(reason, 2 * NAME_CHARS)),
        );
    }
}

fn sites(allocator: &Allocator, out: &mut Lines) {
    let Some(sites) = &allocator.sites else {
        out.heading("Who pins");
        out.sentence(
            Tone::Plain,
            "call paths are known at level stacks only: w starts a window that has them",
        );
        return;
    };
    let total = allocator.sites_total.unwrap_or(sites.len() as u64);
    out.heading(format!("Who pins: {}", units::counted(total, "call path", "call paths")));
    for (number, site) in sites.iter().take(MAX_SITES).enumerate() {
        let share = or_unknown(site.share, units::percent);
        let class = site.class.map_or(UNKNOWN, PinClass::words);
        let course = site.verdict.map_or(UNKNOWN, Growth::words);
        let text = format!(
            "{}. pinned {} ({share})  retains {} ({})  {class}  course: {course}",
            number + 1,
            units::counted(site.granules_pinned, "granule", "granules"),
            site.granules_retained,
            or_unknown(site.retained_bytes, units::bytes),
        );
        out.sentence(Tone::Plain, &text);
        frames(site, out);
    }
    let listed = sites.len().min(MAX_SITES) as u64;
    if total > listed {
        out.plain(format!("and {} more: t shows the report", total - listed));
    }
}

fn frames(site: &Site, out: &mut Lines) {
    for frame in site.frames.iter().take(MAX_FRAMES) {
        out.plain(format!("     {}", name(&frame.frame, frame.address.as_deref())));
    }
    if site.frames.len() > MAX_FRAMES {
        out.plain(format!("     … {} more", site.frames.len() - MAX_FRAMES));
    }
    if site.frames.is_empty() {
        out.plain("     the call path was not captured");
    }
}

/// Function, file and line; the functions that were put into it stand before it.
fn name(frame: &Frame, address: Option<&str>) -> String {
    // Writing to a String cannot fail.
    let mut text = String::new();
    for inlined in frame.inlined.iter().rev().take(4) {
        text.push_str(&shown(&inlined.function, NAME_CHARS));
        text.push_str(" in ");
    }
    match (&frame.function, &frame.module, &frame.module_offset) {
        (Some(function), ..) => text.push_str(&shown(function, NAME_CHARS)),
        (None, Some(module), Some(offset)) => {
            let _ = write!(text, "{}+{}", shown(module, NAME_CHARS), shown(offset, 20));
        }
        _ => text.push_str(&address.map_or_else(|| UNKNOWN.to_owned(), |at| shown(at, 20))),
    }
    if let Some(file) = &frame.file {
        // The end of the path says more than its beginning.
        let file = file.rsplit('/').next().unwrap_or(file);
        let _ = write!(text, "  {}", shown(file, NAME_CHARS));
        if let Some(line) = frame.line {
            let _ = write!(text, ":{line}");
        }
    }
    text
}

fn histogram(allocator: &Allocator, out: &mut Lines) {
    let classes = ages(allocator);
    out.heading("Ages of granules");
    let Some(most) = classes.iter().map(|class| class.closed).max() else {
        out.plain("none was closed whose open was seen, and none is listed as open or retained");
        return;
    };
    out.plain(format!(
        "{:>9}  {:>6}  {:>8}  {:>10}  closed at this age",
        "age", "open", "retained", "closed"
    ));
    for class in classes {
        let bar = bar(class.closed, most);
        out.plain(format!(
            "{:>9}  {:>6}  {:>8}  {:>10}  {bar}",
            class.name, class.open, class.retained, class.closed
        ));
    }
    let (open, retained) = (allocator.open_granules.len(), allocator.pinned_granules.len());
    let all_retained = or_unknown(allocator.retention.granules, |granules| granules.to_string());
    out.sentence(
        Tone::Plain,
        &format!(
            "open: the oldest {open} of {}; retained: the oldest {retained} of {all_retained}, by the time since their close",
            allocator.granules.open_now
        ),
    );
}

/// A bar that is empty for 0 only.
fn bar(count: u64, most: u64) -> String {
    let share = if most == 0 { 0.0 } else { count as f64 / most as f64 };
    #[allow(clippy::cast_sign_loss, reason = "a share of what is counted is not negative")]
    let columns = (share * BAR_WIDTH as f64).round() as usize;
    "█".repeat(columns.clamp(usize::from(count > 0), BAR_WIDTH))
}

fn findings(row: &Row<'_>, out: &mut Lines) {
    let of_this = |profile: &Option<String>| match (profile, row.profile()) {
        (Some(profile), Some((ours, _))) => profile == ours,
        _ => true,
    };
    let findings = row.target.findings.iter().filter(|finding| of_this(&finding.profile));
    let mut headed = false;
    for finding in findings.take(MAX_MESSAGES) {
        if !headed {
            out.heading("Findings");
            headed = true;
        }
        let (word, tone) = match finding.severity {
            Severity::Info => ("note", Tone::Plain),
            Severity::Warning => ("warning", Tone::Warning),
            Severity::Error => ("error", Tone::Bad),
        };
        out.sentence(tone, &format!("{word}: {}", shown(&finding.message, 4 * NAME_CHARS)));
    }
}

fn windows_of(row: &Row<'_>, windows: &[&WindowRecord], none: &str, out: &mut Lines) {
    out.heading("Windows");
    let ours: Vec<_> = windows.iter().filter(|window| window.pid == row.target.pid).collect();
    if ours.is_empty() {
        out.plain(none);
    }
    for window in ours.iter().take(MAX_WINDOWS) {
        out.sentence(
            Tone::Plain,
            &format!(
                "{}. {}, {}, asked for by {}: {}",
                window.id,
                units::duration(window.seconds),
                outcome(window.outcome),
                shown(&window.asked_by, NAME_CHARS),
                shown(&window.why, NAME_CHARS),
            ),
        );
    }
}

/// How a window ended, in words.
pub(super) const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "running",
        Outcome::Finished => "finished",
        Outcome::TargetEnded => "the process has ended",
        Outcome::OverCost => "broken off: it cost too much",
        Outcome::Interrupted => "interrupted",
        Outcome::Failed => "failed",
    }
}
