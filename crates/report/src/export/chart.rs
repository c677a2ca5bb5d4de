//! `chart`: an SVG picture of what call paths hold over time, one line for each of the few that hold most.
//!
//! A leak rises to the right end; a cache stays level; what is freed at the end falls there.

use std::{cmp::Reverse, fmt::Write as _, io};

use super::{
    Error, Exporter, Style, escape,
    flamegraph::{nothing, subtitle, xml},
    stack::outer,
    weigh::command,
};
use crate::{Report, Site, Target, units};

/// Lines of a picture: more could not be distinguished.
const LINES: usize = 8;
/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; LINES] =
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

#[derive(Debug)]
pub(super) struct Chart;

impl Exporter for Chart {
    fn report(&self, report: &Report, _: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        out.write_all(&draw(report))?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

/// What one call path holds over time.
struct Line<'a> {
    target: &'a Target,
    site: &'a Site,
    /// Seconds, and bytes or objects.
    points: Vec<(f64, u64)>,
}

impl Line<'_> {
    fn peak(&self) -> u64 {
        self.points.iter().map(|point| point.1).max().unwrap_or_default()
    }

    fn last(&self) -> u64 {
        self.points.last().map_or(0, |point| point.1)
    }

    /// The two innermost functions, and what is held at the end.
    fn name(&self, unit: Unit, has_many: bool) -> String {
        let frames = self.site.frames.iter().take(2);
        let names: Vec<String> = frames.map(|frame| escape::shown(&outer(frame), NAME)).collect();
        let path = if names.is_empty() { "[unknown]".to_owned() } else { names.join(" ← ") };
        let own = if has_many {
            format!("{} ({}): ", escape::shown(&self.target.comm, NAME), self.target.pid)
        } else {
            String::new()
        };
        let verdict = match self.site.verdict {
            Some(verdict) => format!(", {}", verdict.words()),
            None => String::new(),
        };
        format!("{own}{path}: {}{verdict}", unit.shown(self.last()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Objects,
}

impl Unit {
    fn shown(self, value: u64) -> String {
        match self {
            Self::Bytes => units::bytes(value),
            Self::Objects => units::counted(value, "object", "objects"),
        }
    }

    /// The distance of grid lines for values up to `most`: a round number in this unit.
    fn step(self, most: u64) -> u64 {
        let is_enough = |step: &u64| most as f64 / *step as f64 <= TICKS;
        let mut steps = (0..63u32).map(|power| match self {
            Self::Bytes => 1u64 << power,
            Self::Objects => {
                let digit = [1u64, 2, 5][power as usize % 3];
                digit.saturating_mul(10u64.saturating_pow(power / 3))
            }
        });
        steps.find(is_enough).unwrap_or(u64::MAX)
    }
}

/// Sites of all processes.
fn sites(report: &Report) -> impl Iterator<Item = (&Target, &Site)> {
    report.targets.iter().flat_map(|target| {
        let sites = target.allocators.iter().filter_map(|own| own.sites.as_ref()).flatten();
        sites.map(move |site| (target, site))
    })
}

/// Those that ever held something, the one that holds most at the end first.
fn lines(report: &Report, unit: Unit) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = sites(report)
        .filter_map(|(target, site)| {
            let points = site.live_over_time.as_ref()?.series.iter();
            let points = points.map(|&(at, objects, bytes, _)| match unit {
                Unit::Bytes => (at, bytes.unwrap_or_default()),
                Unit::Objects => (at, objects),
            });
            Some(Line { target, site, points: points.collect() })
        })
        .filter(|line| line.peak() > 0)
        .collect();
    lines.sort_by_key(|line| Reverse((line.last(), line.peak())));
    lines
}

fn draw(report: &Report) -> Vec<u8> {
    let known = || sites(report).filter_map(|(_, site)| site.live_over_time.as_ref());
    let has_sizes = known().flat_map(|live| &live.series).all(|point| point.2.is_some());
    let (unit, what) = if has_sizes {
        (Unit::Bytes, "Live bytes over time")
    } else {
        (Unit::Objects, "Live objects over time")
    };
    let mut lines = lines(report, unit);
    let mut left_out = Vec::new();
    if lines.len() > LINES {
        left_out.push(format!("{} more call paths hold less", lines.len() - LINES));
        lines.truncate(LINES);
    }
    let unknown = sites(report).count() - known().count();
    if unknown > 0 {
        left_out.push(format!("{unknown} call paths have no readings over time"));
    }
    let below = subtitle(report, &left_out);
    if lines.is_empty() {
        let why = "No call path has live objects over time: it needs --level stacks";
        return nothing(&[what.to_owned(), why.to_owned(), below]);
    }
    let mut targets: Vec<String> = lines.iter().map(|line| command(line.target)).collect();
    targets.dedup();
    let title = format!("{what} · {}", escape::shown(&targets.join(", "), LIST));
    picture(&lines, unit, &title, &below).into_bytes()
}

/// The picture's text: axes, then each line with its name.
fn picture(lines: &[Line<'_>], unit: Unit, title: &str, below: &str) -> String {
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
    let most = lines.iter().map(Line::peak).max().unwrap_or_default().max(1);
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
    let has_many = lines.iter().any(|line| line.target.target != lines[0].target.target);
    for (row, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        let name = line.name(unit, has_many);
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
            xml(&name)
        );
        let at = BOTTOM + 50.0 + 22.0 * row as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {:.1}h30\" stroke=\"{colour}\" stroke-width=\"4\"/>",
            at - 4.0
        );
        svg += &text([LEFT + 40.0, at], "start", &name);
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
