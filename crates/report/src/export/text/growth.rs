//! The growth of a process, as a page: one sentence that says it, then the views.

use std::fmt::Write as _;

use super::page::{Page, SYMBOL};
use crate::{
    GrowthPath, MemoryGrowth, Target,
    export::{Error, PinWeight, escape, stack, table::Rows},
    facts::GranuleState,
    units,
};

/// Columns that are left for the numbers of a view.
const NUMBERS: usize = 44;

impl Page<'_> {
    /// What is known of a target's growth, if anything.
    pub(super) fn memory_growth(&mut self, target: &Target) -> Result<(), Error> {
        let Some(growth) = &target.growth else { return Ok(()) };
        self.line("")?;
        self.wrapped("  ", &headline(growth))?;
        let rss = &growth.rss;
        self.wrapped("  ", &format!(
            "resident memory {}: anonymous {}, files {}, shared {}; by call paths {}, by other system calls {}, \
             from outside {}",
            signed(rss.change.resident()),
            signed(rss.change.anon_bytes),
            signed(rss.change.file_bytes),
            signed(rss.change.shmem_bytes),
            signed(rss.by_paths.resident()),
            signed(rss.by_others.resident()),
            signed(rss.from_outside.resident()),
        ))?;
        let touched = &growth.touched;
        self.wrapped("  ", &format!(
            "touched {}: in pinned granules {}, in open ones {}, in drained ones {}, elsewhere {}",
            units::bytes(touched.bytes),
            known(touched.pinned_bytes),
            known(touched.open_bytes),
            known(touched.drained_bytes),
            known(touched.elsewhere_bytes),
        ))?;
        if touched.granules_unplaced > 0 {
            let text = format!(
                "not measurable, because the memory of {} is not known: their ids are no addresses, or the \
                 profile knows no bytes",
                units::counted(touched.granules_unplaced, "granule", "granules")
            );
            self.wrapped("  ", &text)?;
        }
        self.places(growth)?;
        if is_steady(growth) {
            self.line("")?;
            return self.line("  no growth in this window");
        }
        let all = self.style.weight;
        if !matches!(all, PinWeight::Heap | PinWeight::Mappings) {
            self.faults(growth)?;
        }
        if !matches!(all, PinWeight::Faults | PinWeight::Mappings) {
            self.heap(growth)?;
        }
        if !matches!(all, PinWeight::Faults | PinWeight::Heap) {
            self.mappings(growth)?;
        }
        Ok(())
    }

    fn places(&mut self, growth: &MemoryGrowth) -> Result<(), Error> {
        let mut rows =
            Rows::new(&["touched in", "opened at", "granules", "bytes"], 2, self.width());
        for place in growth.touched.places.iter().take(self.style.top) {
            let state = match place.state {
                GranuleState::Open => "open granules",
                GranuleState::Pinned => "pinned granules",
                GranuleState::Drained => "drained granules",
            };
            let at = &place.opened_at;
            let name = at.frame.function.as_deref().or(at.place.as_deref()).unwrap_or("unknown");
            rows.push(vec![
                state.to_owned(),
                escape::shown(name, SYMBOL),
                place.granules.to_string(),
                units::bytes(place.bytes),
            ]);
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.line("")?;
        self.rows(rows, "  ")
    }

    fn faults(&mut self, growth: &MemoryGrowth) -> Result<(), Error> {
        let faults = &growth.faults;
        let major = faults.major.map_or_else(String::new, |major| format!(", {major} major"));
        self.line("")?;
        self.wrapped(
            "  ",
            &format!(
                "page faults: {} of the program, {} of the kernel in its name, {} writes{major}{}",
                faults.user,
                faults.kernel,
                faults.writes,
                faults.bytes_each.map_or_else(String::new, |each| format!(
                    "; {} each",
                    units::bytes(whole(each))
                )),
            ),
        )?;
        if growth.paths.iter().any(|path| path.selected.is_some()) {
            return self.view(
                growth,
                &["added", "from", "to", "call path"],
                |path| path.selected.map(|selected| selected.bytes),
                |path| {
                    let selected = path.selected.as_ref();
                    let time =
                        |seconds: Option<f64>| seconds.map_or_else(String::new, units::duration);
                    vec![
                        selected.map_or_else(String::new, |selected| signed(selected.bytes)),
                        time(selected.map(|selected| selected.from_seconds)),
                        time(selected.map(|selected| selected.to_seconds)),
                    ]
                },
            );
        }
        self.view(
            growth,
            &["faults", "anonymous", "files", "call path"],
            // Faults at pages that were there add nothing.
            |path| (path.faults > 0 && has_added(path)).then(|| path.rss.resident()),
            |path| {
                vec![
                    path.faults.to_string(),
                    signed(path.rss.anon_bytes),
                    signed(path.rss.file_bytes),
                ]
            },
        )
    }

    fn heap(&mut self, growth: &MemoryGrowth) -> Result<(), Error> {
        self.line(&format!("\n  heap: {}", signed(growth.heap.change_bytes)))?;
        self.view(
            growth,
            &["heap", "call path"],
            |path| (path.heap_bytes != 0).then_some(path.heap_bytes),
            |path| vec![signed(path.heap_bytes)],
        )
    }

    fn mappings(&mut self, growth: &MemoryGrowth) -> Result<(), Error> {
        let maps = &growth.mappings;
        self.line("")?;
        self.wrapped("  ", &format!(
            "mappings: {} in {} outstanding ({} anonymous) of {} mapped; {} unmapped, and {} of what was \
             there before; {} given back by madvise",
            units::bytes(maps.outstanding_bytes),
            units::counted(maps.outstanding, "piece", "pieces"),
            units::bytes(maps.outstanding_anon_bytes),
            units::bytes(maps.mapped_bytes),
            units::bytes(maps.unmapped_bytes),
            units::bytes(maps.unmapped_before_bytes),
            units::bytes(maps.given_back_bytes),
        ))?;
        self.view(
            growth,
            &["outstanding", "pieces", "mapped", "call path"],
            |path| (path.mapped_bytes > 0).then(|| path.outstanding_bytes.cast_signed()),
            |path| {
                vec![
                    units::bytes(path.outstanding_bytes),
                    path.outstanding.to_string(),
                    units::bytes(path.mapped_bytes),
                ]
            },
        )
    }

    /// The paths that have a weight in a view, the heaviest first.
    fn view(
        &mut self,
        growth: &MemoryGrowth,
        header: &[&str],
        weight: impl Fn(&GrowthPath) -> Option<i64>,
        cells: impl Fn(&GrowthPath) -> Vec<String>,
    ) -> Result<(), Error> {
        let mut paths: Vec<(i64, &GrowthPath)> =
            growth.paths.iter().filter_map(|path| Some((weight(path)?, path))).collect();
        paths.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let mut rows = Rows::new(header, 0, self.width()).unwrapped();
        for (_, path) in paths.into_iter().take(self.style.top) {
            let mut row = cells(path);
            row.push(innermost(path, usize::from(self.width()).saturating_sub(NUMBERS)));
            rows.push(row);
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.rows(rows, "  ")
    }

    fn width(&self) -> u16 {
        self.style.width.saturating_sub(2)
    }
}

/// Whether page faults of a path have changed what is resident.
fn has_added(path: &GrowthPath) -> bool {
    (path.rss.anon_bytes, path.rss.file_bytes, path.rss.shmem_bytes) != (0, 0, 0)
}

/// Whether no view has anything to show.
fn is_steady(growth: &MemoryGrowth) -> bool {
    let is_idle = |path: &GrowthPath| {
        !has_added(path)
            && path.heap_bytes == 0
            && path.mapped_bytes == 0
            && path.selected.is_none()
    };
    growth.rss.change.resident() == 0
        && growth.heap.change_bytes == 0
        && growth.mappings.mapped_bytes == 0
        && growth.paths.iter().all(is_idle)
}

/// The sentence that says where memory went.
fn headline(growth: &MemoryGrowth) -> String {
    let touched = &growth.touched;
    let change = signed(growth.rss.change.anon_bytes);
    let mut text = match touched.pinned_bytes {
        Some(bytes) => format!(
            "{change} anonymous resident memory in this window; {} first touched in granules that are now pinned",
            units::bytes(bytes)
        ),
        None => format!(
            "{change} anonymous resident memory in this window; how much of it in pinned granules is not measurable"
        ),
    };
    let pinned = touched.places.iter().find(|place| place.state == GranuleState::Pinned);
    if let (Some(place), Some(all @ 1..)) = (pinned, touched.pinned_bytes) {
        let at = &place.opened_at;
        let name =
            at.frame.function.as_deref().or(at.place.as_deref()).unwrap_or("an unknown place");
        let share = place.bytes as f64 / all as f64;
        let _ = write!(
            text,
            "; {} of them opened at {}",
            units::percent(share),
            escape::shown(name, SYMBOL)
        );
    }
    text
}

/// Bytes, if they are known.
fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "not measurable".to_owned(), units::bytes)
}

/// Functions of a path that fit a line, the innermost first.
pub(super) fn innermost(path: &GrowthPath, width: usize) -> String {
    const FRAMES: usize = 4;
    let names: Vec<String> = path
        .frames
        .iter()
        .take(FRAMES)
        .map(|frame| escape::shown(&stack::outer(frame), SYMBOL / 2))
        .collect();
    let more = if path.frames.len() > FRAMES { " ← …" } else { "" };
    let text = if names.is_empty() { "unknown".to_owned() } else { names.join(" ← ") + more };
    escape::shown(&text, width)
}

/// Whole bytes; what a stored report says may be anything.
#[allow(clippy::cast_sign_loss, reason = "the cast saturates")]
const fn whole(bytes: f64) -> u64 {
    bytes as u64
}

/// Bytes with their sign.
pub(in crate::export) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "−" } else { "+" };
    format!("{sign}{}", units::bytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use crate::{
        Options, Report,
        export::{Exporter as _, Style, text::Text},
        facts::{FaultTotals, MapTotals, Snapshot},
        samples,
    };

    fn page(snapshot: &Snapshot) -> String {
        let mut out = Vec::new();
        let report = Report::build(snapshot, &Options::default());
        Text.report(&report, &Style::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Call paths whose page faults have added nothing have no row; where there is nothing to show at all, that is said
    /// once.
    #[test]
    fn steady() {
        let mut snapshot = samples::growth_snapshot();
        let grown = page(&snapshot);
        assert!(grown.contains("106526") && !grown.contains("no growth in this window"), "{grown}");
        let growth = snapshot.targets[0].growth.as_mut().unwrap();
        let first = growth.paths.values_mut().max_by_key(|path| path.memory.faults).unwrap();
        first.memory.rss = [0; 4];
        let text = page(&snapshot);
        assert!(text.contains("page faults:") && !text.contains("106526"), "{text}");

        let growth = snapshot.targets[0].growth.as_mut().unwrap();
        for path in growth.paths.values_mut() {
            path.memory = FaultTotals { rss: [0; 4], ..path.memory };
            path.maps = MapTotals::default();
        }
        (growth.other, growth.outside, growth.unmapped) = ([0; 4], [0; 4], 0);
        growth.last = [None; 4];
        let text = page(&snapshot);
        assert_eq!(text.matches("no growth in this window").count(), 1, "{text}");
        assert!(!text.contains("page faults:") && !text.contains("heap:"), "{text}");
    }
}
