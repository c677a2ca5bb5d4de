//! Bytes over time as an SVG picture, which `history` draws.

use std::fmt::Write as _;

use super::escape::xml;
use crate::units;

/// Lines of a picture: more could not be distinguished.
pub const MAX_LINES: usize = 8;
/// Colours that differ with any colour vision (Okabe and Ito).
const COLOURS: [&str; MAX_LINES] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"];
/// The plot in the picture.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 1170.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 430.0;
/// Grid lines on an axis, at most.
const MAX_TICKS: u64 = 8;

/// A line of a picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// What it is: without control characters, of any other characters.
    pub name: String,
    /// Seconds, and bytes.
    pub points: Vec<(f64, u64)>,
}

/// The distance of grid lines for values up to `most`: a power of two.
const fn step(most: u64) -> u64 {
    match most.div_ceil(MAX_TICKS).checked_next_power_of_two() {
        Some(step) => step,
        None => u64::MAX,
    }
}

/// An SVG picture: axes, then each curve with its name below; of more than [`MAX_LINES`] the first ones. Times are seconds.
#[must_use]
pub fn picture(curves: &[Curve], title: &str, below: &str) -> String {
    let lines = &curves[..curves.len().min(MAX_LINES)];
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
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let most = values.max().unwrap_or_default().max(1);
    let step = step(most);
    let top = most.div_ceil(step).saturating_mul(step);
    let x = |at: f64| LEFT + (at - from) / length * (RIGHT - LEFT);
    let y = |value: u64| BOTTOM - value as f64 / top as f64 * (BOTTOM - TOP);
    let mut value = 0u64;
    while value <= top {
        let at = y(value);
        let _ =
            writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#dddddd\" fill=\"none\"/>");
        svg += &text([LEFT - 8.0, at + 4.0], "end", &units::bytes(value));
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

    /// Every line ends at the height of its last value, no point is outside of the plot, and names are escaped.
    #[test]
    fn points() {
        let shapes: [fn(u64) -> u64; 3] = [
            |at| 4096 * at,
            |at| 65_536.min(20_000 * at),
            |at| if at < 20 { 2048 * at } else { 0 },
        ];
        let curves = shapes.map(|shape| Curve {
            name: "a <b>".to_owned(),
            points: (0..=20).map(|at| (at as f64 / 2.0, shape(at))).collect(),
        });
        let text = picture(&curves, "title", "below");
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

    /// Any value has an axis.
    #[test]
    fn steps() {
        assert_eq!([1, 8, 9, 64 << 20].map(step), [1, 1, 2, 8 << 20]);
        assert_eq!(step(u64::MAX), 1 << 61);
    }
}
