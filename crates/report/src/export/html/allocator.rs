//! One allocator: closes, retention, who pins, granules by age and fill.

use maud::{Markup, html};

use super::{
    super::{SENTENCE, shown, text::frame},
    curve::{Curve, Line},
    parts::{Fact, bar, cell, fact, facts, number, table, text},
    words,
};
use crate::{
    Allocator, Census, Frame, Growth, Kind, OpenGranule, PinnedGranule, Site, SiteFrame, Spread,
    units,
};

/// Characters of names, and of ids.
const NAME: usize = 96;
const ID: usize = 24;
/// A DSR below is worth a warning, as in text.
const POOR: f64 = 0.95;

/// Everything of an allocator; of lists, so many rows.
#[must_use]
pub fn allocator(allocator: &Allocator, top: usize) -> Markup {
    let instance = allocator.instance.as_deref().unwrap_or_default();
    html! {
        section {
            h3 {
                (shown(&allocator.profile, NAME)) " "
                @if !instance.is_empty() { span.id { (shown(instance, ID)) } " " }
                small {
                    "kind " (allocator.kind.name()) ", " (words::word("level")) " " (allocator.level.name())
                    @if allocator.destroyed { ", destroyed" }
                }
            }
            @if let Some(because) = &allocator.not_measurable {
                p.bad { "Not measurable: " (shown(because, SENTENCE)) }
            }
            (facts(&numbers(allocator)))
            (closes(allocator))
            (verdicts(allocator))
            div.charts { (curves(allocator)) }
            (sites(allocator, top))
            @if let Some(census) = &allocator.census { (fill(census)) }
            (heat(&allocator.open_granules, allocator.granules.open_now))
            (places(allocator, top))
            (open(allocator, top))
            (retained(allocator, top))
        }
    }
}

fn numbers(allocator: &Allocator) -> Vec<Fact> {
    let granules = &allocator.granules;
    let mut all = Vec::new();
    if allocator.kind == Kind::Drain {
        let class = if allocator.dsr.is_some_and(|dsr| dsr < POOR) { "bad" } else { "" };
        all.push(fact("DSR", html! { b class=(class) { (units::dsr(allocator.dsr)) } }));
        let retention = &allocator.retention;
        all.push(match retention.granules {
            Some(count) => fact("retained", bytes_or(retention.bytes, count)).and(format!(
                "{}, {} drained late",
                units::counted(count, "granule", "granules"),
                retention.late_drained.unwrap_or_default()
            )),
            None => fact("retained", "not known").and("frees are seen from level objects on"),
        });
        if let Some([p50, p99, max]) = spread(&retention.pin_delay_seconds) {
            all.push(fact("pin delay", p50).and(format!("99 %: {p99}, most: {max}")));
        }
    }
    all.push(fact("opened", granules.opened).and(format!("{} closed", granules.closed)));
    all.push(fact("open now", granules.open_now).and(format!("at most {}", granules.open_peak)));
    if let Some([p50, p99, max]) = spread(&allocator.lifetimes.seconds) {
        all.push(fact("lifetime", p50).and(format!("99 %: {p99}, most: {max}")));
    }
    if let Some(objects) = &allocator.objects {
        all.push(
            fact("live objects", objects.live)
                .and(objects.live_bytes.map(units::bytes).unwrap_or_default()),
        );
    }
    if allocator.overdue.granules > 0 {
        let value = html! { b.bad { (allocator.overdue.granules) } };
        all.push(fact("overdue", value).and(known(allocator.overdue.bytes)));
    }
    let forecast = allocator.retention.forecast_bytes_per_day;
    let live = allocator.live_over_time.as_ref().and_then(|live| live.forecast_bytes_per_day);
    if let Some(day) = forecast.or(live) {
        all.push(fact("forecast", html! { (units::bytes(whole(day))) " a day" }));
    }
    all
}

fn closes(allocator: &Allocator) -> Markup {
    let granules = &allocator.granules;
    let parts = [
        ("drainable".to_owned(), granules.drainable),
        ("pinned".to_owned(), granules.pinned),
        ("unknown".to_owned(), granules.unknown),
    ];
    html! {
        @if allocator.kind == Kind::Drain {
            (bar("Closes", &parts, &|count| count.to_string()))
        }
    }
}

/// What the curves look like, and why.
fn verdicts(allocator: &Allocator) -> Markup {
    let own = &allocator.retention;
    let live = allocator.live_over_time.as_ref();
    let pairs = [
        ("Held back", own.verdict, own.verdict_reason.as_ref()),
        (
            "Live memory",
            live.and_then(|live| live.verdict),
            live.and_then(|live| live.verdict_reason.as_ref()),
        ),
    ];
    html! {
        @for (what, verdict, reason) in pairs {
            @if let (Some(verdict), Some(reason)) = (verdict, reason) {
                p {
                    (what) ": "
                    b class=(if matches!(verdict, Growth::LinearLeak | Growth::Mixed) { "bad" } else { "" }) {
                        (verdict.words())
                    }
                    ". " (shown(reason, SENTENCE))
                }
            }
        }
    }
}

fn curves(allocator: &Allocator) -> Markup {
    let title = if allocator.kind == Kind::Drain { "Retained over time" } else { "Open over time" };
    let name = if allocator.kind == Kind::Drain { "retained" } else { "open now" };
    let held = allocator.retention.series.as_deref().unwrap_or_default();
    let live =
        allocator.live_over_time.as_ref().map(|live| live.series.as_slice()).unwrap_or_default();
    let live: Vec<_> = live.iter().map(|&(at, objects, bytes, _)| (at, objects, bytes)).collect();
    html! {
        (held_over_time(title, name, held))
        (held_over_time("Live over time", "live objects", &live))
    }
}

/// A time series of counts, or of bytes where all of them are known.
fn held_over_time(title: &str, name: &str, series: &[(f64, u64, Option<u64>)]) -> Markup {
    let bytes: Option<Vec<(f64, f64)>> =
        series.iter().map(|&(at, _, bytes)| Some((at, bytes? as f64))).collect();
    let is_bytes = bytes.is_some();
    let points =
        bytes.unwrap_or_else(|| series.iter().map(|&(at, count, _)| (at, count as f64)).collect());
    let (from, to) = match (points.first(), points.last()) {
        (Some(first), Some(last)) => (first.0, last.0),
        _ => return html! {},
    };
    Curve {
        title,
        lines: vec![Line { name: name.to_owned(), points }],
        span: (from, to),
        ends: [units::duration(from), units::duration(to)],
        shown: &|value| if is_bytes { units::bytes(whole(value)) } else { format!("{value:.0}") },
        most: None,
        marks: Vec::new(),
    }
    .draw()
}

/// The call stacks that pin or hold, as a table of so many rows.
#[must_use]
pub fn sites(allocator: &Allocator, top: usize) -> Markup {
    let sites = allocator.sites.as_deref().unwrap_or_default();
    let pins = allocator.kind == Kind::Drain;
    let columns = if pins {
        [
            text("who pins"),
            number("share"),
            number("pinned"),
            number("retained"),
            number("pin delay"),
            text("class"),
        ]
    } else {
        [
            text("who holds"),
            number("live objects"),
            number("live bytes"),
            number("granules held"),
            number("alone"),
            text("verdict"),
        ]
    };
    let all = allocator.sites_total.unwrap_or_default().max(sites.len() as u64);
    let cut = allocator.retention.is_cut();
    let rows: Vec<_> = sites.iter().take(top).map(|site| row(site, pins, cut)).collect();
    let caption = format!("Call stacks: {} of {all}", rows.len());
    table(&caption, &columns, &rows)
}

/// `cut`: windows have ended with pinned granules.
fn row(site: &Site, pins: bool, cut: bool) -> Vec<Markup> {
    let class = site.class.map_or("", crate::PinClass::words);
    let verdict = site.verdict.map(Growth::words).unwrap_or_default();
    if pins {
        vec![
            path(&site.frames, &site.threads),
            cell(site.share.map(units::percent).unwrap_or_default()),
            cell(site.granules_pinned),
            cell(if cut {
                "not seen".to_owned()
            } else {
                bytes_or(site.retained_bytes, site.granules_retained)
            }),
            cell(site.pin_delay_seconds.p50.map_or("-".to_owned(), units::duration)),
            html! { (class) @if !verdict.is_empty() { br; small { (verdict) } } },
        ]
    } else {
        vec![
            path(&site.frames, &site.threads),
            cell(count(site.live)),
            cell(known(site.live_bytes)),
            cell(count(site.granules_held)),
            cell(count(site.granules_held_alone)),
            cell(verdict),
        ]
    }
}

/// A call stack: its first two functions, and all of them on request.
pub(super) fn path(frames: &[SiteFrame], threads: &[String]) -> Markup {
    let lines: Vec<String> = frames.iter().take(128).flat_map(frame::lines).collect();
    html! {
        @if lines.is_empty() { "a call stack that was not captured" }
        @else {
            @for line in lines.iter().take(2) { (line) br; }
            @if lines.len() > 2 {
                details {
                    summary { small { "all " (lines.len()) " functions" } }
                    ol { @for line in lines.iter().skip(2) { li { (line) } } }
                }
            }
            @if !threads.is_empty() {
                small {
                    "in threads "
                    @for (index, thread) in threads.iter().take(8).enumerate() {
                        @if index > 0 { ", " }
                        (shown(thread, ID))
                    }
                }
            }
        }
    }
}

/// How full the granules of a `slab` allocator are.
fn fill(census: &Census) -> Markup {
    let parts: Vec<(String, u64)> = match &census.fill {
        Some(fill) => fill
            .iter()
            .map(|class| {
                (format!("{}–{} % full", class.percent_from, class.percent_to), class.granules)
            })
            .collect(),
        None => census
            .occupancy
            .iter()
            .map(|class| (format!("{}–{} objects", class.live_from, class.live_to), class.granules))
            .collect(),
    };
    html! {
        p {
            "Census: " (census.granules_open) " granules open"
            @if let Some(bytes) = census.bytes_open { " (" (units::bytes(bytes)) ")" }
            ", " (census.drainable_now) " empty, " (census.unknown) " unknown."
            @if let Some(bytes) = census.compactable_bytes {
                " " (units::bytes(bytes)) " would come free if the objects lay side by side."
            }
        }
        (bar("Open granules by fill", &parts, &|count| count.to_string()))
    }
}

/// Columns and rows of the picture by age and fill.
const AGES: [(f64, &str); 6] = [
    (1.0, "under 1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (f64::INFINITY, "older"),
];
const FILLS: [(u128, &str); 5] =
    [(0, "empty"), (10, "up to 10 %"), (50, "up to 50 %"), (90, "up to 90 %"), (u128::MAX, "full")];

/// Open granules by age and fill, as far as both are known of those that are listed.
fn heat(granules: &[OpenGranule], open_now: u64) -> Markup {
    let mut counts = [[0u64; AGES.len()]; FILLS.len()];
    let mut counted = 0u64;
    for granule in granules {
        let (Some(age), Some(live), Some(bytes)) =
            (granule.age_seconds, granule.live_bytes, granule.bytes.filter(|bytes| *bytes > 0))
        else {
            continue;
        };
        let percent = u128::from(live) * 100 / u128::from(bytes);
        let column = AGES.iter().position(|(most, _)| age < *most).unwrap_or(AGES.len() - 1);
        let row = FILLS.iter().position(|(most, _)| percent <= *most).unwrap_or(FILLS.len() - 1);
        counts[row][column] += 1;
        counted += 1;
    }
    let most = counts.iter().flatten().copied().max().unwrap_or_default().max(1);
    // Four shades; the number itself stands in each cell.
    let shade = |count: u64| (count * 4).div_ceil(most).min(4);
    html! {
        @if counted > 0 {
            div.scroll tabindex="0" role="region" aria-label="Open granules by age and fill" {
                table.heat {
                    caption {
                        (words::named("age × fill", "Open granules by age × fill")) ": "
                        (counted) " of " (open_now.max(counted)) ", the oldest"
                    }
                    thead { tr {
                        th scope="col" { "full \\ age" }
                        @for (_, name) in AGES { th.n scope="col" { (name) } }
                    } }
                    tbody {
                        @for ((_, name), row) in FILLS.iter().zip(counts) { tr {
                            th scope="row" { (name) }
                            @for count in row { td.{ "q" (shade(count)) } { @if count > 0 { (count) } } }
                        } }
                    }
                }
            }
        }
    }
}

fn folded(summary: &str, table: &Markup, is_empty: bool) -> Markup {
    html! { @if !is_empty { details { summary { (summary) } (table) } } }
}

fn places(allocator: &Allocator, top: usize) -> Markup {
    let columns = [
        text("opened at"),
        number("closes"),
        number("lifetime"),
        number("99 %"),
        number("open now"),
        number("overdue"),
    ];
    let rows: Vec<_> = allocator
        .lifetimes
        .places
        .iter()
        .take(top)
        .map(|place| {
            vec![
                at(Some(&place.frame), place.place.as_deref()),
                cell(place.closed),
                cell(time(place.p50)),
                cell(time(place.p99)),
                cell(place.open_now),
                cell(place.overdue),
            ]
        })
        .collect();
    folded(
        "Where granules are opened",
        &table("By place of opening", &columns, &rows),
        rows.is_empty(),
    )
}

fn open(allocator: &Allocator, top: usize) -> Markup {
    let columns = [
        text("granule"),
        text("label"),
        text("opened at"),
        number("age"),
        number("live objects"),
        number("bytes"),
        text("overdue"),
    ];
    let rows: Vec<_> = allocator
        .open_granules
        .iter()
        .take(top)
        .map(|granule| {
            vec![
                html! { span.id { (shown(&granule.id, ID)) } },
                cell(shown(granule.label.as_deref().unwrap_or("-"), ID)),
                at(granule.opened_by.as_ref(), granule.place.as_deref()),
                cell(granule.age_seconds.map_or("before attach".to_owned(), units::duration)),
                cell(count(granule.live)),
                cell(known(granule.bytes)),
                cell(if granule.overdue { "overdue" } else { "" }),
            ]
        })
        .collect();
    folded("The oldest open granules", &table("Open granules", &columns, &rows), rows.is_empty())
}

fn retained(allocator: &Allocator, top: usize) -> Markup {
    let columns = [
        text("granule"),
        text("label"),
        text("opened at"),
        number("closed for"),
        number("pins"),
        number("bytes"),
    ];
    let row = |granule: &PinnedGranule| {
        vec![
            html! { span.id { (shown(&granule.id, ID)) } },
            cell(shown(granule.label.as_deref().unwrap_or("-"), ID)),
            at(granule.opened_by.as_ref(), granule.place.as_deref()),
            cell(time(granule.closed_for_seconds)),
            cell(granule.live),
            cell(known(granule.bytes)),
        ]
    };
    let rows: Vec<_> = allocator.pinned_granules.iter().take(top).map(row).collect();
    folded(
        "The oldest retained granules",
        &table("Retained granules", &columns, &rows),
        rows.is_empty(),
    )
}

fn at(named: Option<&Frame>, place: Option<&str>) -> Markup {
    let none = Frame::default();
    cell(frame::long(named.unwrap_or(&none), place).unwrap_or_else(|| "-".to_owned()))
}

fn spread(spread: &Spread) -> Option<[String; 3]> {
    Some([spread.p50?, spread.p99?, spread.max?].map(units::duration))
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), units::duration)
}

fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), units::bytes)
}

fn bytes_or(bytes: Option<u64>, count: u64) -> String {
    bytes.map_or_else(|| units::counted(count, "granule", "granules"), units::bytes)
}

#[allow(clippy::cast_sign_loss, reason = "the cast saturates, and nothing below zero is shown")]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}
