//! Curves over time as SVG pictures: `chart`, one line for each of the few call paths that hold most, and `retention`, one
//! for each allocator. [`picture`] draws any curves.
//!
//! A leak rises to the right end; a cache stays level; what is freed at the end falls there.

use std::{cmp::Reverse, fmt::Write as _, io};

use super::{
    Error, Exporter, Style, escape,
    flamegraph::{nothing, subtitle, xml},
    stack::outer,
    weigh::command,
};
use crate::{Allocator, Kind, Report, Site, Target, units};

/// Lines of a picture: more could not be distinguished.
pub const LINES: usize = 8;
/// Colours that people with any colour vision tell apart (Okabe and Ito).
pub const COLOURS: [&str; LINES] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"];
/// Characters of a function's name, and of the title's list of processes.
const NAME: usize = 56;
const LIST: usize = 64;
/// The plot in the picture.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 1170.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 430.0;
/// Grid lines on an axis, at most.
const TICKS: f64 = 8.0;

/// What call paths hold.
#[derive(Debug)]
pub(super) struct Chart;

impl Exporter for Chart {
    fn report(&self, report: &Report, _: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        out.write_all(&draw(report))?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

/// What allocators hold back.
#[derive(Debug)]
pub(super) struct Retention;

impl Exporter for Retention {
    fn report(&self, report: &Report, _: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        out.write_all(&held_back(report))?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

/// A line of a picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// What it is: without control characters, of any other characters.
    pub name: String,
    /// Seconds, and a value.
    pub points: Vec<(f64, u64)>,
}

impl Curve {
    fn peak(&self) -> u64 {
        self.points.iter().map(|point| point.1).max().unwrap_or_default()
    }

    fn last(&self) -> u64 {
        self.points.last().map_or(0, |point| point.1)
    }
}

/// What the values of a picture are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Objects.
    Objects,
    /// Granules.
    Granules,
}

impl Unit {
    fn shown(self, value: u64) -> String {
        match self {
            Self::Bytes => units::bytes(value),
            Self::Objects => units::counted(value, "object", "objects"),
            Self::Granules => units::counted(value, "granule", "granules"),
        }
    }

    /// The distance of grid lines for values up to `most`: a round number in this unit.
    fn step(self, most: u64) -> u64 {
        let is_enough = |step: &u64| most as f64 / *step as f64 <= TICKS;
        let mut steps = (0..63u32).map(|power| match self {
            Self::Bytes => 1u64 << power,
            Self::Objects | Self::Granules => {
                let digit = [1u64, 2, 5][power as usize % 3];
                digit.saturating_mul(10u64.saturating_pow(power / 3))
            }
        });
        steps.find(is_enough).unwrap_or(u64::MAX)
    }
}

/// Keeps the curves that end highest; how many are left out.
fn keep_largest(curves: &mut Vec<Curve>) -> usize {
    curves.sort_by_key(|curve| Reverse((curve.last(), curve.peak())));
    let more = curves.len().saturating_sub(LINES);
    curves.truncate(LINES);
    more
}

/// Sites of all processes.
fn sites(report: &Report) -> impl Iterator<Item = (&Target, &Site)> {
    report.targets.iter().flat_map(|target| {
        let sites = target.allocators.iter().filter_map(|own| own.sites.as_ref()).flatten();
        sites.map(move |site| (target, site))
    })
}

/// The two innermost functions of a call path, what it holds at the end, and the verdict.
fn named(target: Option<&Target>, site: &Site, last: &str) -> String {
    let frames = site.frames.iter().take(2);
    let names: Vec<String> = frames.map(|frame| escape::shown(&outer(frame), NAME)).collect();
    let path = if names.is_empty() { "[unknown]".to_owned() } else { names.join(" ← ") };
    let own = match target {
        Some(target) => format!("{} ({}): ", escape::shown(&target.comm, NAME), target.pid),
        None => String::new(),
    };
    let verdict = match site.verdict {
        Some(verdict) => format!(", {}", verdict.words()),
        None => String::new(),
    };
    format!("{own}{path}: {last}{verdict}")
}

/// Call paths that ever held something.
fn curves(report: &Report, unit: Unit) -> Vec<Curve> {
    let has_many = report.targets.len() > 1;
    sites(report)
        .filter_map(|(target, site)| {
            let points = site.live_over_time.as_ref()?.series.iter();
            let points = points.map(|&(at, objects, bytes, _)| match unit {
                Unit::Bytes => (at, bytes.unwrap_or_default()),
                Unit::Objects | Unit::Granules => (at, objects),
            });
            let mut curve = Curve { name: String::new(), points: points.collect() };
            curve.name = named(has_many.then_some(target), site, &unit.shown(curve.last()));
            Some(curve).filter(|curve| curve.peak() > 0)
        })
        .collect()
}

fn draw(report: &Report) -> Vec<u8> {
    let known = || sites(report).filter_map(|(_, site)| site.live_over_time.as_ref());
    let has_sizes = known().flat_map(|live| &live.series).all(|point| point.2.is_some());
    let (unit, what) = if has_sizes {
        (Unit::Bytes, "Live bytes over time")
    } else {
        (Unit::Objects, "Live objects over time")
    };
    let mut curves = curves(report, unit);
    let mut left_out = Vec::new();
    let more = keep_largest(&mut curves);
    if more > 0 {
        left_out.push(format!("{more} more call paths hold less"));
    }
    let unknown = sites(report).count() - known().count();
    if unknown > 0 {
        left_out.push(format!("{unknown} call paths have no readings over time"));
    }
    let below = subtitle(report, &left_out);
    if curves.is_empty() {
        let why = "No call path has live objects over time: it needs --level stacks";
        return nothing(&[what.to_owned(), why.to_owned(), below]);
    }
    picture(&curves, unit, &title(what, report), &below).into_bytes()
}

fn title(what: &str, report: &Report) -> String {
    let mut targets: Vec<String> = report.targets.iter().map(command).collect();
    targets.dedup();
    format!("{what} · {}", escape::shown(&targets.join(", "), LIST))
}

/// What allocators hold back over time: of kind `drain` retained granules, of the others open ones.
fn held_back(report: &Report) -> Vec<u8> {
    let allocators = || {
        let targets = report.targets.iter();
        targets.flat_map(|target| target.allocators.iter().map(move |own| (target, own)))
    };
    let series = |own: &Allocator| own.retention.series.clone().unwrap_or_default();
    let has_sizes = allocators().flat_map(|(_, own)| series(own)).all(|point| point.2.is_some());
    let (unit, what) = if has_sizes {
        (Unit::Bytes, "Bytes held back over time")
    } else {
        (Unit::Granules, "Granules held back over time")
    };
    let curve = |(target, own): (&Target, &Allocator)| {
        let points = series(own).into_iter();
        let points = points.map(|(at, granules, bytes)| match unit {
            Unit::Bytes => (at, bytes.unwrap_or_default()),
            Unit::Objects | Unit::Granules => (at, granules),
        });
        let mut curve = Curve { name: String::new(), points: points.collect() };
        let instance = own.instance.as_ref().map_or_else(String::new, |own| format!(" {own}"));
        let name = format!("{}{instance} in {} ({})", own.profile, target.comm, target.pid);
        let held = if own.kind == Kind::Drain { "retained" } else { "open" };
        let verdict = own.retention.verdict.map_or("", |verdict| verdict.words());
        let mark = if verdict.is_empty() { "" } else { ", " };
        let last = unit.shown(curve.last());
        curve.name = format!("{}: {last} {held}{mark}{verdict}", escape::shown(&name, LIST));
        Some(curve).filter(|curve| !curve.points.is_empty())
    };
    let mut curves: Vec<Curve> = allocators().filter_map(curve).collect();
    let more = keep_largest(&mut curves);
    let left_out =
        if more > 0 { vec![format!("{more} more allocators hold less")] } else { Vec::new() };
    let below = subtitle(report, &left_out);
    if curves.is_empty() {
        let why = "No allocator has readings over time: kind drain needs --level objects";
        return nothing(&[what.to_owned(), why.to_owned(), below]);
    }
    picture(&curves, unit, &title(what, report), &below).into_bytes()
}

/// An SVG picture: axes, then each curve with its name below; of more than [`LINES`] the first ones. Times are seconds.
#[must_use]
pub fn picture(curves: &[Curve], unit: Unit, title: &str, below: &str) -> String {
    let lines = &curves[..curves.len().min(LINES)];
    let height = BOTTOM + 60.0 + 22.0 * lines.len() as f64;
    let mut svg = format!(
        "<?xml version=\"1.0\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" width=\"1200\" height=\"{height}\" viewBox=\"0 0 1200 {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let text = |at: [f64; 2], anchor: &str, words: &str| {
        let [x, y] = at;
        let words = xml(words);
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>\n")
    };
    svg += &text([600.0, 26.0], "middle", title);
    svg += &text([600.0, 48.0], "middle", below);
    let times = || lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    let (from, to) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let length = (to - from).max(1e-3);
    let most = lines.iter().map(Curve::peak).max().unwrap_or_default().max(1);
    let step = unit.step(most);
    let top = most.div_ceil(step).saturating_mul(step);
    let x = |at: f64| LEFT + (at - from) / length * (RIGHT - LEFT);
    let y = |value: u64| BOTTOM - value as f64 / top as f64 * (BOTTOM - TOP);
    let mut value = 0u64;
    while value <= top {
        let at = y(value);
        let _ =
            writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#dddddd\" fill=\"none\"/>");
        svg += &text([LEFT - 8.0, at + 4.0], "end", &unit.shown(value));
        let Some(next) = value.checked_add(step) else { break };
        value = next;
    }
    for part in 0..=8 {
        let at = from + length * f64::from(part) / 8.0;
        svg += &text([x(at), BOTTOM + 20.0], "middle", &units::duration(at));
    }
    for (row, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\">\
             <title>{}</title></polyline>",
            points.join(" "),
            xml(&line.name)
        );
        let at = BOTTOM + 50.0 + 22.0 * row as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {:.1}h30\" stroke=\"{colour}\" stroke-width=\"4\"/>",
            at - 4.0
        );
        svg += &text([LEFT + 40.0, at], "start", &line.name);
    }
    svg += "</svg>";
    svg
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;
    use crate::{LiveOverTime, Options, samples};

    fn svg(report: &Report) -> String {
        let mut out = Vec::new();
        Chart.report(report, &Style::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Three call paths: a leak, a cache that filled up, and one that was freed at the end.
    fn report() -> Report {
        let mut report = samples::before();
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        let shapes: [fn(u64) -> u64; 3] = [
            |at| 4096 * at,
            |at| 65_536.min(20_000 * at),
            |at| if at < 20 { 2048 * at } else { 0 },
        ];
        for (site, shape) in sites.iter_mut().zip(shapes) {
            let point = |at: u64| (at as f64 / 2.0, shape(at) / 64, Some(shape(at)), at);
            site.live_over_time = Some(LiveOverTime {
                series: (0..=20).map(point).collect(),
                ..LiveOverTime::default()
            });
        }
        report
    }

    /// The picture as a whole: deterministic, with the lines in the order of what they hold at the end.
    #[test]
    fn whole() {
        insta::assert_snapshot!("chart", svg(&report()));
    }

    /// Every line ends at the height of its last value, and no point is outside of the plot.
    #[test]
    fn points() {
        let text = svg(&report());
        let document = Document::parse(&text).unwrap();
        let lines: Vec<Vec<(f64, f64)>> = document
            .descendants()
            .filter_map(|node| node.attribute("points"))
            .map(|points| {
                let pair = |point: &str| {
                    let (x, y) = point.split_once(',').unwrap();
                    (x.parse().unwrap(), y.parse().unwrap())
                };
                points.split(' ').map(pair).collect()
            })
            .collect();
        assert_eq!(lines.len(), 3);
        for (x, y) in lines.iter().flatten() {
            assert!((LEFT..=RIGHT).contains(x) && (TOP..=BOTTOM).contains(y), "{x} {y}");
        }
        let ends: Vec<f64> = lines.iter().map(|line| line[20].1).collect();
        // 81,920 and 65,536 of 81,920 bytes, and nothing.
        assert_eq!(ends, [TOP, 142.0, BOTTOM]);
        assert!(text.contains("64.0 KiB") && text.contains("10.0 s"), "{text}");
    }

    /// What allocators hold back is a curve each, with the verdict; of more than fit, those that end highest stay.
    #[test]
    fn retention() {
        let drawn = |report: &Report| {
            let mut out = Vec::new();
            Retention.report(report, &Style::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let mut report = Report::build(&samples::stacks_snapshot(), &Options::default());
        let text = drawn(&report);
        Document::parse(&text).unwrap();
        assert!(text.contains("Bytes held back over time"), "{text}");
        assert!(text.contains("epoch-demo") && text.contains(": 7.8 MiB retained, "), "{text}");
        let own = report.targets[0].allocators[0].clone();
        report.targets[0].allocators = vec![own; LINES + 2];
        let text = drawn(&report);
        assert_eq!(text.matches("<polyline").count(), LINES);
        assert!(text.contains("2 more allocators hold less"), "{text}");
        for own in &mut report.targets[0].allocators {
            own.retention.series = None;
        }
        assert!(drawn(&report).contains("needs --level objects"));
    }

    /// Without sizes it is objects; without readings the picture says what is missing; names are escaped.
    #[test]
    fn corners() {
        let mut report = report();
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        sites[0].frames[0].frame.function = Some("f<a&b>".to_owned());
        sites[2].live_over_time = None;
        for site in sites.iter_mut() {
            let series = site.live_over_time.iter_mut().flat_map(|live| &mut live.series);
            series.for_each(|point| point.2 = None);
        }
        let text = svg(&report);
        assert!(text.contains("Live objects over time") && text.contains("1280 objects"), "{text}");
        assert!(
            text.contains("f&lt;a&amp;b&gt;") && text.contains("1 call paths have no readings")
        );
        Document::parse(&text).unwrap();
        let empty = svg(&Report::build(&samples::drain_snapshot(), &Options::default()));
        assert!(empty.contains("needs --level stacks"), "{empty}");
        assert_eq!(Unit::Objects.step(1_000), 200);
        assert_eq!((Unit::Bytes.step(81_920), Unit::Bytes.step(u64::MAX)), (16_384, 1 << 61));
    }
}
