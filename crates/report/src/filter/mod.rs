//! Filters: which sites and granules of a finished [`Report`] are listed, and whether it may be passed on.
//!
//! A filter only takes from lists, or names from what is listed. Counts, rates and verdicts stay those of
//! all that was observed, and a note says how much of each list is left. Pure; `cli` makes filters from
//! options and applies them before a report is exported.

mod anonymise;
mod grown;
mod pattern;
#[cfg(test)]
mod tests;
mod times;

use std::{cmp::Reverse, time::Duration};

pub use pattern::{Pattern, PatternError};
pub use times::{Range, Times, Untold};

use self::{anonymise::Anonymiser, times::Question};
use super::{Finding, Frame, Kind, Options, Report, Severity, Site, units};

/// The code of the finding that says what a filter has left.
pub const FILTERED: &str = "filtered";

/// How many rows of each list are built where a filter chooses among them; what ranks lower is not examined.
pub const CHOOSE_FROM: usize = 65_536;

/// Which of the pins a list is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// All.
    #[default]
    All,
    /// Sites with pins that are live (for kinds without pins: with objects that are live).
    Live,
    /// Sites with pins that have all been freed (for kinds without pins: with no live object); no retained granule.
    Drained,
}

/// What is to be listed. The default lists everything.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Rows that each list has at most.
    pub top: usize,
    /// Granules that are open, or closed and retained, for at least this long; sites that hold a pin that long.
    pub min_age: Duration,
    /// Granules and sites that hold at least so many bytes.
    pub min_bytes: u64,
    /// Only what one of these matches; none: no such condition.
    pub include: Vec<Pattern>,
    /// Nothing that one of these matches, whatever else does.
    pub exclude: Vec<Pattern>,
    /// Only sites of this sort.
    pub which: Which,
    /// Only sites with objects that lived then.
    pub times: Times,
    /// Of growth, only call stacks that have added memory in this time.
    pub grown_between: Option<Range>,
    /// Take out where and on what it was measured.
    pub no_paths: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            top: usize::MAX,
            min_age: Duration::ZERO,
            min_bytes: 0,
            include: Vec::new(),
            exclude: Vec::new(),
            which: Which::All,
            times: Times::default(),
            grown_between: None,
            no_paths: false,
        }
    }
}

impl Wanted {
    /// Whether rows are chosen by what they are, so that more of them must be there than are listed.
    #[must_use]
    pub fn chooses(&self) -> bool {
        !self.include.is_empty()
            || !self.exclude.is_empty()
            || self.which != Which::All
            || self.times.is_any()
            || self.grown_between.is_some()
            || !self.min_age.is_zero()
            || self.min_bytes > 0
    }
}

/// A filter at work. It remembers the pseudonyms that it has given, so that the reports which pass through
/// the same filter call the same thing by the same name.
#[derive(Debug, Default)]
pub struct Filter {
    wanted: Wanted,
    anonymiser: Anonymiser,
}

/// How many rows there were, and how many are left.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    before: u64,
    after: u64,
}

impl Left {
    /// Keeps the rows that are wanted, and as many as are wanted.
    fn retain<T>(&mut self, rows: &mut Vec<T>, top: usize, keep: impl FnMut(&T) -> bool) {
        self.before = self.before.saturating_add(rows.len() as u64);
        rows.retain(keep);
        rows.truncate(top);
        self.after = self.after.saturating_add(rows.len() as u64);
    }

    /// In words; nothing if all are left.
    fn words(self, what: &str) -> Option<String> {
        (self.after < self.before).then(|| format!("{} of {} {what}", self.after, self.before))
    }
}

impl Filter {
    /// A filter for these wishes.
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, anonymiser: Anonymiser::default() }
    }

    /// What it lists.
    #[must_use]
    pub const fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The options to build a report with that this filter is then applied to: where it chooses among rows,
    /// more of them must be there than are listed in the end.
    #[must_use]
    pub fn rows(&self, options: &Options) -> Options {
        let top = if self.wanted.chooses() { options.top.max(CHOOSE_FROM) } else { options.top };
        Options { top, ..options.clone() }
    }

    /// Takes from the report what is not wanted, and says how much is left of each list.
    pub fn apply(&mut self, report: &mut Report) {
        let (mut sites, mut granules) = (Left::default(), Left::default());
        let window = report.window.seconds;
        let asked = self.wanted.times.of(report);
        let question = asked.as_ref().ok().copied().flatten();
        let mut by_time = ByTime::default();
        for allocator in report.targets.iter_mut().flat_map(|target| &mut target.allocators) {
            let (wanted, kind) = (&self.wanted, allocator.kind);
            if let Some(rows) = &mut allocator.sites {
                let listed = rows.len() as u64;
                if let Some(question) = question {
                    by_time.select(rows, question, kind);
                }
                sites.retain(rows, wanted.top, |site| {
                    let is_asked_for = question.is_none()
                        || site.selected.is_some_and(|selected| selected.objects > 0);
                    is_asked_for && wanted.site(site, kind, window)
                });
                // What was not listed before counts as not shown.
                let all = allocator.sites_total.unwrap_or(listed).max(listed);
                sites.before = sites.before.saturating_add(all - listed);
            }
            granules.retain(&mut allocator.open_granules, wanted.top, |granule| {
                let held = granule.bytes.max(granule.live_bytes);
                wanted.granule(granule.age_seconds, held, granule.opened_by.as_ref())
            });
            granules.retain(&mut allocator.pinned_granules, wanted.top, |granule| {
                let held = granule.bytes.max(granule.live_bytes);
                wanted.which != Which::Drained
                    && wanted.granule(granule.closed_for_seconds, held, granule.opened_by.as_ref())
            });
        }
        let grown = self.wanted.grown_between.map(|range| {
            let checked = grown::check(range, report);
            checked.map(|()| grown::apply(range, report, self.wanted.top))
        });
        let (grown, refused) = match grown {
            Some(Ok(left)) => (left, None),
            Some(Err(untold)) => (Left::default(), Some(untold)),
            None => (Left::default(), None),
        };
        // Before the note is added, which then names no pattern: another filter's may hold names.
        self.anonymise(report);
        // Lists that were only cut at their ends say so themselves.
        if self.wanted.chooses() {
            let words = [
                sites.words("sites"),
                granules.words("listed granules"),
                grown.words("growing call stacks"),
            ];
            let left = words.into_iter().flatten().collect::<Vec<_>>().join(" and ");
            if !left.is_empty() {
                let message = format!(
                    "{left} are shown ({}); counts, rates and verdicts are of all{}",
                    self.wanted.words(),
                    by_time.words()
                );
                report.findings.push(note(message));
            }
            for untold in asked.err().into_iter().chain(refused) {
                report.findings.push(note(format!("not filtered by time, because {untold}")));
            }
        }
    }

    /// Whether a saved report has what filters by time ask for.
    ///
    /// # Errors
    /// If it does not, with the reason.
    pub fn check(&self, report: &Report) -> Result<(), Untold> {
        self.wanted.times.check_report(report)?;
        self.wanted.grown_between.map_or(Ok(()), |range| grown::check(range, report))
    }

    /// Only takes out, where that is asked for, where and on what the report was measured.
    pub fn anonymise(&mut self, report: &mut Report) {
        if self.wanted.no_paths {
            self.anonymiser.apply(report);
        }
    }
}

/// What filters by time have found.
#[derive(Clone, Copy, Debug, Default)]
struct ByTime {
    unknown: u64,
    /// The widest range that was read; without an upper end, infinity.
    range: Option<[f64; 2]>,
}

impl ByTime {
    /// Answers the question for each site; those with most objects come first.
    fn select(&mut self, sites: &mut [Site], question: Question, kind: Kind) {
        for site in sites.iter_mut() {
            site.selected = question.of(site, kind);
            let Some(selected) = site.selected else {
                self.unknown = self.unknown.saturating_add(1);
                continue;
            };
            let read = [selected.from_seconds, selected.to_seconds.unwrap_or(f64::INFINITY)];
            let range = self.range.get_or_insert(read);
            *range = [range[0].min(read[0]), range[1].max(read[1])];
        }
        sites.sort_by_key(|site| {
            Reverse(site.selected.map(|selected| (selected.bytes, selected.objects)))
        });
    }

    fn words(self) -> String {
        let range = self.range.map(|[from, to]| match to {
            to if to.is_infinite() => format!("from {}", units::duration(from.max(0.0))),
            to => format!("from {} to {}", units::duration(from.max(0.0)), units::duration(to)),
        });
        let range = range.map_or_else(String::new, |range| format!("; read {range}"));
        match self.unknown {
            0 => range,
            count => format!("{range}; {count} sites are left out: their times are not known"),
        }
    }
}

fn note(message: String) -> Finding {
    Finding {
        code: FILTERED.to_owned(),
        severity: Severity::Info,
        profile: None,
        instance: None,
        message,
    }
}

impl Wanted {
    fn site(&self, site: &Site, kind: Kind, window: f64) -> bool {
        self.site_is_of_the_sort(site, kind)
            && longest_held(site, kind, window)
                .is_none_or(|held| held >= self.min_age.as_secs_f64())
            && site_bytes(site, kind).is_none_or(|bytes| bytes >= self.min_bytes)
            && self.named(|pattern| {
                site.frames.iter().any(|frame| pattern.matches_frame(&frame.frame))
                    || pattern.matches_frame(&site.opened_at.frame)
            })
    }

    /// What is not known passes.
    fn site_is_of_the_sort(&self, site: &Site, kind: Kind) -> bool {
        let live = match kind {
            Kind::Drain => Some(site.pins_live),
            Kind::Bulk | Kind::Slab => site.live,
        };
        match self.which {
            Which::All => true,
            Which::Live => live.is_none_or(|live| live > 0),
            Which::Drained if kind == Kind::Drain => site.pins > 0 && live == Some(0),
            Which::Drained => live.is_none_or(|live| live == 0),
        }
    }

    /// What is not known passes: an age that is older than the attach, bytes that no profile knows.
    fn granule(&self, age: Option<f64>, bytes: Option<u64>, opened_by: Option<&Frame>) -> bool {
        age.is_none_or(|age| age >= self.min_age.as_secs_f64())
            && bytes.is_none_or(|bytes| bytes >= self.min_bytes)
            && self.named(|pattern| opened_by.is_some_and(|frame| pattern.matches_frame(frame)))
    }

    /// `--include` and `--exclude`, which wins.
    fn named(&self, matches: impl Fn(&Pattern) -> bool) -> bool {
        (self.include.is_empty() || self.include.iter().any(&matches))
            && !self.exclude.iter().any(&matches)
    }

    /// The conditions, as they are written on a command line; patterns may hold names, which an anonymous
    /// report must not tell.
    fn words(&self) -> String {
        let mut words = Vec::new();
        if self.top < usize::MAX {
            words.push(format!("--top {}", self.top));
        }
        if !self.min_age.is_zero() {
            words.push(format!("--min-age {}s", self.min_age.as_secs_f64()));
        }
        if self.min_bytes > 0 {
            words.push(format!("--min-size {}", self.min_bytes));
        }
        for (option, patterns) in [("--include", &self.include), ("--exclude", &self.exclude)] {
            for pattern in patterns {
                let text = if self.no_paths { "…" } else { pattern.text() };
                words.push(format!("{option} {text}"));
            }
        }
        match self.which {
            Which::All => {}
            Which::Live => words.push("--live-only".to_owned()),
            Which::Drained => words.push("--drained".to_owned()),
        }
        words.extend(self.times.words());
        words.extend(self.grown_between.map(grown::words));
        words.join(" ")
    }
}

/// How long the site's longest-held pin has been held, in seconds: of pins that were freed it is known; a pin
/// that is live cannot be held for longer than the site has been seen. For kinds without pins: how long its
/// live objects can have been there. `None`: not known.
fn longest_held(site: &Site, kind: Kind, window: f64) -> Option<f64> {
    let seen = (window - site.first_seen_seconds).max(0.0);
    match kind {
        Kind::Drain => {
            let freed = site.pin_delay_seconds.max.unwrap_or_default();
            Some(if site.pins_live > 0 { freed.max(seen) } else { freed })
        }
        Kind::Bulk | Kind::Slab => Some(if site.live? > 0 { seen } else { 0.0 }),
    }
}

/// What the site holds: of its pins and of the granules that they retain the larger; for kinds without pins
/// what is live, or else what was allocated. `None`: not known.
fn site_bytes(site: &Site, kind: Kind) -> Option<u64> {
    match kind {
        Kind::Drain => site.pin_bytes.max(site.retained_bytes),
        Kind::Bulk | Kind::Slab => site.live_bytes.or(site.allocated_bytes),
    }
}
