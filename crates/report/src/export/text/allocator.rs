//! One allocator's part of the page.

use super::{
    frame,
    page::{BOLD, DOUBTFUL, GOOD, Page, SYMBOL},
};
use drainprof_profile::Level;

use crate::{
    Allocator, Kind, OpenGranule, PinnedGranule, Spread,
    export::{Error, escape, exporter::SENTENCE, table::Rows},
    units,
};

/// Columns before a fact's text: four of indent, ten for its name.
const NAMES: usize = 14;
/// Characters shown of a granule's label.
const LABEL: usize = 24;
/// Characters shown of an id or address; 18 are needed.
const ADDRESS: usize = 20;

impl Page<'_> {
    pub(super) fn allocator(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let instance = escape::shown(allocator.instance.as_deref().unwrap_or_default(), ADDRESS);
        let destroyed = if allocator.destroyed { ", destroyed" } else { "" };
        let head = format!("{} {instance}", escape::shown(&allocator.profile, SYMBOL));
        let head = self.style.paint(BOLD, head.trim_end());
        let kind = allocator.kind.name();
        let level = allocator.level.name();
        self.line(&format!("\n  {head}  (kind {kind}, level {level}{destroyed})"))?;
        self.dsr(allocator)?;
        self.counts(allocator)?;
        self.estimates(allocator)?;
        self.lifetimes(allocator)?;
        if let Some(census) = &allocator.census {
            self.census(census)?;
        }
        self.sites(allocator)?;
        self.open_granules(allocator)?;
        self.pinned_granules(allocator)
    }

    /// A named fact, on more lines if it does not fit one.
    pub(super) fn fact(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let indent = " ".repeat(NAMES);
        // Colour has no width, but the wrapping would not know; what is coloured is short.
        let lines = if text.contains('\u{1b}') {
            vec![format!("{indent}{text}")]
        } else {
            let mut rows = Rows::bare(self.style.width.saturating_sub(NAMES as u16));
            rows.push(vec![text.to_owned()]);
            rows.lines(&indent)
        };
        for (index, line) in lines.iter().enumerate() {
            match line.strip_prefix(&indent) {
                Some(rest) if index == 0 => self.line(&format!("    {name:<10}{rest}"))?,
                _ => self.line(line)?,
            }
        }
        Ok(())
    }

    fn dsr(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let granules = allocator.granules;
        if allocator.kind != Kind::Drain {
            return Ok(());
        }
        let value = match allocator.not_measurable {
            Some(_) => "not measurable".to_owned(),
            None => units::dsr(allocator.dsr),
        };
        let value = match allocator.dsr {
            Some(dsr) if dsr < 0.95 => self.style.paint(DOUBTFUL, &value),
            Some(_) => self.style.paint(GOOD, &value),
            None => value,
        };
        self.fact(
            "DSR",
            &format!(
                "{value}  {} drainable, {} pinned, {} unknown",
                granules.drainable, granules.pinned, granules.unknown
            ),
        )
    }

    /// What is known of all pages where some were sampled.
    fn estimates(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let Some(sampling) = allocator.sampling else { return Ok(()) };
        let estimated = sampling.estimated;
        let mut parts = vec![format!("about {} closed", estimated.granules_closed)];
        if let Some(live) = estimated.objects_live {
            let interval = estimated
                .objects_live_bytes_interval
                .map(|interval| format!("; 95 % of the bytes: {}", units::byte_interval(interval)));
            parts.push(format!(
                "{live} objects live{}{}",
                held(estimated.objects_live_bytes),
                interval.unwrap_or_default()
            ));
        }
        let text = format!(
            "{}; 1 of {} granules was followed, and every object that is larger than one; all other \
             numbers are of those",
            parts.join(", "),
            sampling.one_in
        );
        self.fact("estimated", &text)
    }

    fn counts(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let granules = allocator.granules;
        // Without opens, nothing is known of what is open.
        let has_opens = allocator.level != Level::Close;
        let mut parts = Vec::new();
        if has_opens {
            parts.push(format!("{} opened", granules.opened));
        }
        let rarely = [
            (granules.opened_before, "open before"),
            (granules.resets, "resets"),
            (granules.reopened, "reopened"),
            (granules.destroyed, "destroyed open"),
            (granules.migrated, "handed over"),
            (granules.ended_with_parent, "ended with their parents"),
            (granules.left_open, "open at a window's end"),
        ];
        parts.push(format!("{} closed", granules.closed));
        parts.extend(rarely.iter().filter(|&&(n, _)| n > 0).map(|(n, what)| format!("{n} {what}")));
        if has_opens {
            parts.push(format!("{} open now (peak {})", granules.open_now, granules.open_peak));
        }
        if allocator.kind != Kind::Drain && granules.unknown > 0 {
            parts.push(format!("{} unknown", granules.unknown));
        }
        self.fact("granules", &parts.join(", "))?;
        if let Some(objects) = allocator.objects {
            let bytes = match (objects.live_bytes, objects.allocated_bytes) {
                (Some(live), Some(all)) => {
                    format!(" ({} of {})", units::bytes(live), units::bytes(all))
                }
                _ => String::new(),
            };
            let left = match objects.left {
                0 => String::new(),
                left => format!("{left} live at a window's end, "),
            };
            self.fact(
                "objects",
                &format!(
                    "{} allocated, {} freed, {left}{} live{bytes}",
                    objects.allocated, objects.freed, objects.live
                ),
            )?;
        }
        if allocator.kind == Kind::Drain {
            self.retention(allocator)?;
        }
        self.growth(allocator)?;
        if allocator.overdue.granules > 0 {
            let bytes = held(allocator.overdue.bytes);
            let text = format!("{} granules{bytes}", allocator.overdue.granules);
            let text = self.style.paint(DOUBTFUL, &text);
            self.fact("overdue", &text)?;
        }
        Ok(())
    }

    fn retention(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let retention = &allocator.retention;
        let (Some(granules), Some(drained)) = (retention.granules, retention.late_drained) else {
            let pins = allocator.pins;
            let granules = match pins.bytes {
                Some(bytes) => format!(", in {} of granules", units::bytes(bytes)),
                None => String::new(),
            };
            self.fact("pins", &format!("{} objects at pinned closes{granules}", pins.objects))?;
            let level = allocator.level.name();
            return self.fact("retained", &format!("not measurable at level {level}"));
        };
        let bytes = held(retention.bytes);
        let left = retention.left_granules.filter(|&left| left > 0).map(|left| {
            let bytes = held(retention.left_bytes);
            format!(
                "{left} granules{bytes} were closed and pinned at a window's end; what became of \
                 them was not seen"
            )
        });
        match left {
            Some(left) if granules == 0 => {
                self.fact("retained", &format!("not known; {drained} drained late"))?;
                self.fact("", &left)?;
            }
            left => {
                let text = format!("{granules} granules{bytes}, {drained} drained late");
                self.fact("retained", &text)?;
                left.map_or(Ok(()), |left| self.fact("", &left))?;
            }
        }
        if let Some(delay) = spread(&retention.pin_delay_seconds) {
            self.fact("pin delay", &delay)?;
        }
        Ok(())
    }

    /// How what is held back changes over time.
    fn growth(&mut self, allocator: &Allocator) -> Result<(), Error> {
        if let Some(live) = &allocator.live_over_time
            && let (Some(verdict), Some(reason)) = (live.verdict, &live.verdict_reason)
        {
            let reason = escape::shown(reason, SENTENCE);
            self.fact("growth", &format!("live memory: {}: {reason}", verdict.words()))?;
        }
        let retention = &allocator.retention;
        let (Some(verdict), Some(reason)) = (retention.verdict, &retention.verdict_reason) else {
            return Ok(());
        };
        // Said once: call stacks have no granules of their own.
        let shared = allocator.kind == Kind::Slab && allocator.sites.is_some();
        let sampled = match (allocator.sampling.is_some(), shared) {
            (true, true) => "of the sample's granules, shared by all call stacks: ",
            (true, false) => "of the sample, ",
            (false, true) => "granules, shared by all call stacks: ",
            (false, false) => "",
        };
        let reason = escape::shown(reason, SENTENCE);
        self.fact("growth", &format!("{sampled}{}: {reason}", verdict.words()))
    }

    fn lifetimes(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let lifetimes = &allocator.lifetimes;
        let Some(text) = spread(&lifetimes.seconds) else { return Ok(()) };
        #[allow(clippy::cast_sign_loss, reason = "a mean of unsigned numbers")]
        let mean = lifetimes.bytes_per_granule.map(|mean| units::bytes(mean.round() as u64));
        let mean = mean.map(|mean| format!(", {mean} per granule")).unwrap_or_default();
        self.fact("lifetime", &format!("{text} over {} closes{mean}", lifetimes.count))?;
        if let [place] = &lifetimes.places[..] {
            // A single address would tell nothing; a name does.
            let named = place.frame.module.as_ref();
            let text = named.and_then(|_| frame::long(&place.frame, place.place.as_deref()));
            return text.map_or(Ok(()), |text| self.fact("opened at", &text));
        }
        let header = ["opened at", "closed", "p50", "p99", "open now", "overdue"];
        let mut rows = Rows::new(&header, 1, self.style.width.saturating_sub(4));
        for place in lifetimes.places.iter().take(self.style.top) {
            rows.push(vec![
                frame::long(&place.frame, place.place.as_deref())
                    .unwrap_or_else(|| "unknown".to_owned()),
                place.closed.to_string(),
                time(place.p50),
                time(place.p99),
                place.open_now.to_string(),
                place.overdue.to_string(),
            ]);
        }
        self.rows(rows, "    ")?;
        self.left_out(lifetimes.places.len())
    }

    fn open_granules(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let granules = &allocator.open_granules;
        if granules.is_empty() {
            return Ok(());
        }
        let header =
            ["open granule", "gen", "label", "opened at", "parent", "age", "live", "bytes", ""];
        let mut rows = Rows::new(&header, 5, self.style.width.saturating_sub(4));
        for granule in granules.iter().take(self.style.top) {
            let OpenGranule { id, generation, label, place, opened_by, parent, .. } = granule;
            let place = frame::short(opened_by.as_ref(), place.as_deref());
            let mut row = identity(id, *generation, label.as_ref(), place);
            row.extend([
                parent.as_deref().map_or_else(dash, |parent| escape::shown(parent, ADDRESS)),
                granule.age_seconds.map_or_else(|| "before attach".to_owned(), units::duration),
                count(granule.live),
                granule.bytes.map_or_else(dash, units::bytes),
                if granule.overdue { "overdue" } else { "" }.to_owned(),
            ]);
            rows.push(row);
        }
        self.rows(rows, "    ")?;
        self.left_out(granules.len().max(count_of(allocator.granules.open_now)))
    }

    fn pinned_granules(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let granules = &allocator.pinned_granules;
        if granules.is_empty() {
            return Ok(());
        }
        let header = ["pinned granule", "gen", "label", "opened at", "closed for", "pins", "bytes"];
        let mut rows = Rows::new(&header, 4, self.style.width.saturating_sub(4));
        for granule in granules.iter().take(self.style.top) {
            let PinnedGranule { id, generation, label, place, opened_by, .. } = granule;
            let place = frame::short(opened_by.as_ref(), place.as_deref());
            let mut row = identity(id, *generation, label.as_ref(), place);
            row.extend([
                time(granule.closed_for_seconds),
                granule.live.to_string(),
                granule.bytes.map_or_else(dash, units::bytes),
            ]);
            rows.push(row);
        }
        self.rows(rows, "    ")?;
        let all = allocator.retention.granules.map_or(0, count_of);
        self.left_out(granules.len().max(all))
    }

    /// Says how many rows of a list are not shown.
    fn left_out(&mut self, all: usize) -> Result<(), Error> {
        if all > self.style.top {
            let more = all - self.style.top;
            self.line(&format!("    and {more} more"))?;
        }
        Ok(())
    }
}

fn identity(
    id: &str,
    generation: u32,
    label: Option<&String>,
    place: Option<String>,
) -> Vec<String> {
    vec![
        escape::shown(id, ADDRESS),
        generation.to_string(),
        label.map_or_else(dash, |label| escape::shown(label, LABEL)),
        place.unwrap_or_else(dash),
    ]
}

fn dash() -> String {
    "-".to_owned()
}

pub(super) fn count(value: Option<u64>) -> String {
    value.map_or_else(dash, |value| value.to_string())
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(dash, units::duration)
}

fn count_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(super) fn held(bytes: Option<u64>) -> String {
    bytes.map(|bytes| format!(" ({})", units::bytes(bytes))).unwrap_or_default()
}

fn spread(spread: &Spread) -> Option<String> {
    let Spread { p50: Some(p50), p99: Some(p99), max: Some(max) } = *spread else { return None };
    let [p50, p99, max] = [p50, p99, max].map(units::duration);
    Some(format!("p50 {p50}, p99 {p99}, max {max}"))
}
