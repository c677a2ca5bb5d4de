//! Values over time as a small picture (SVG), as wide as the page. The numbers stand beside it as text.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::words;

/// Columns of a picture: of the points in each, the lowest and the highest are drawn.
const COLUMNS: usize = 300;
/// Columns of a spark line.
const SPARKS: usize = 60;
/// The coordinates of a picture, stretched to whatever place there is.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// One line of a picture.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name, a word of the help where it is one.
    pub name: String,
    /// Times and values, in order of time.
    pub points: Vec<(f64, f64)>,
}

/// A picture of values over time.
pub struct Curve<'a> {
    /// What it shows.
    pub title: &'a str,
    /// Lines of one unit; more than three look alike.
    pub lines: Vec<Line>,
    /// From when to when, on the scale of the points.
    pub span: (f64, f64),
    /// The ends of the time axis, in words.
    pub ends: [String; 2],
    /// A value in words.
    pub shown: &'a dyn Fn(f64) -> String,
    /// The highest value of the axis; `None`: that of the points.
    pub most: Option<f64>,
    /// Times to be marked: from, to (the same for a moment), and what was then.
    pub marks: Vec<(f64, f64, String)>,
}

impl std::fmt::Debug for Curve<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Curve").field("title", &self.title).finish_non_exhaustive()
    }
}

impl Curve<'_> {
    /// Draws it; what has no point says so.
    #[must_use]
    pub fn draw(&self) -> Markup {
        let values = || self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let most = self.most.unwrap_or_else(|| values().fold(0.0, f64::max));
        let (from, to) = self.span;
        let x = |at: f64| (at - from) / (to - from).max(1e-9) * WIDTH;
        html! {
            figure {
                figcaption {
                    b { (self.title) }
                    @for (index, line) in self.lines.iter().enumerate() {
                        " · "
                        @if self.lines.len() > 1 {
                            span class={ "key" (index.min(2)) } aria-hidden="true" { "━ " }
                        }
                        (words::word(&line.name)) " " (self.words(line))
                    }
                }
                @if values().next().is_none() {
                    p.dim { "No data in this time." }
                } @else {
                    div.plot data-from=(from) data-to=(to) {
                        svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img"
                            aria-label=(self.label()) {
                            @for (from, to, what) in &self.marks {
                                @let (left, right) = (x(*from).clamp(0.0, WIDTH), x(*to).clamp(0.0, WIDTH));
                                @if right - left > 1.0 {
                                    rect.window x=(tenth(left)) y="0" width=(tenth(right - left)) height="100" {
                                        title { (what) }
                                    }
                                } @else {
                                    path.mark d={ "M" (tenth(left)) " 0V100" } { title { (what) } }
                                }
                            }
                            @for (index, line) in self.lines.iter().enumerate() {
                                path class={ "l l" (index.min(2)) }
                                    d=(path(&line.points, self.span, most, COLUMNS)) {}
                            }
                        }
                        span.most { (((self.shown)(most))) }
                    }
                    div.axis { span { (self.ends[0]) } span { (self.ends[1]) } }
                }
            }
        }
    }

    /// First, last, lowest and highest value.
    fn words(&self, line: &Line) -> String {
        let shown = self.shown;
        let values = || line.points.iter().map(|point| point.1);
        let (Some(first), Some(last)) = (values().next(), values().next_back()) else {
            return "no data".to_owned();
        };
        let (low, high) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        if low.to_bits() == high.to_bits() {
            return format!("{} at each reading", shown(last));
        }
        format!(
            "{} → {} (lowest {}, highest {})",
            shown(first),
            shown(last),
            shown(low),
            shown(high)
        )
    }

    fn label(&self) -> String {
        let lines = self.lines.iter().map(|line| format!("{} {}", line.name, self.words(line)));
        format!(
            "{}, {} to {}: {}",
            self.title,
            self.ends[0],
            self.ends[1],
            lines.collect::<Vec<_>>().join("; ")
        )
    }
}

/// A line without axes, as high as text.
#[must_use]
pub fn spark(points: &[(f64, f64)], span: (f64, f64), label: &str) -> Markup {
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    html! {
        svg.spark viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label=(label) {
            path class="l" d=(path(points, span, most, SPARKS)) {}
        }
    }
}

fn tenth(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// The line as SVG path data: of the points in each column of the picture, the lowest and the highest, in order.
fn path(points: &[(f64, f64)], (from, to): (f64, f64), most: f64, columns: usize) -> String {
    let length = (to - from).max(1e-9);
    let most = if most > 0.0 { most } else { 1.0 };
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut column: Option<(f64, [(f64, f64); 4])> = None;
    let mut flush = |column: Option<(f64, [(f64, f64); 4])>| {
        let Some((_, mut four)) = column else { return };
        four.sort_by(|one, other| one.0.total_cmp(&other.0));
        kept.extend(four);
        kept.dedup();
    };
    for &point in points.iter().filter(|(at, value)| at.is_finite() && value.is_finite()) {
        let index = ((point.0 - from) / length * columns as f64).floor();
        match &mut column {
            // First, last, lowest and highest.
            Some((own, four)) if own.to_bits() == index.to_bits() => {
                four[1] = point;
                if point.1 < four[2].1 {
                    four[2] = point;
                }
                if point.1 > four[3].1 {
                    four[3] = point;
                }
            }
            _ => flush(column.replace((index, [point; 4]))),
        }
    }
    flush(column);
    let mut data = String::new();
    for (index, (at, value)) in kept.iter().enumerate() {
        let x = ((at - from) / length * WIDTH).clamp(0.0, WIDTH);
        let y = (HEIGHT - value / most * HEIGHT).clamp(0.0, HEIGHT);
        let step = if index == 0 { 'M' } else { 'L' };
        // A String takes whatever is written.
        let _ = write!(data, "{step}{} {}", tenth(x), tenth(y));
    }
    if kept.len() == 1 {
        data.push_str("h6");
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many points there are, a path has four per column at most, and loses neither peak nor trough.
    #[test]
    fn paths_are_thinned() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|at| (f64::from(at), 50.0)).collect();
        points[777].1 = 100.0;
        points[88_888].1 = 0.0;
        let data = path(&points, (0.0, 100_000.0), 100.0, 300);
        assert!(data.matches(['M', 'L']).count() <= 4 * 300, "{}", data.len());
        let heights: Vec<&str> = data
            .split(['M', 'L'])
            .filter_map(|pair| pair.split_once(' '))
            .map(|pair| pair.1)
            .collect();
        assert!(heights.contains(&"0") && heights.contains(&"100"), "{heights:?}");
        assert_eq!(path(&[], (0.0, 1.0), 1.0, 300), "");
        assert_eq!(path(&[(0.5, 1.0)], (0.0, 1.0), 2.0, 300), "M500 50h6");
        assert_eq!(path(&[(f64::NAN, 1.0), (0.5, f64::INFINITY)], (0.0, 1.0), 2.0, 300), "");
    }

    /// The picture says in words what it shows, and where it has nothing to show.
    #[test]
    fn words_stand_beside() {
        let line = |points: Vec<(f64, f64)>| Line { name: "RSS".to_owned(), points };
        let curve = |line| Curve {
            title: "Memory",
            lines: vec![line],
            span: (0.0, 10.0),
            ends: ["start".to_owned(), "end".to_owned()],
            shown: &|value| format!("{value} B"),
            most: None,
            marks: vec![(1.0, 5.0, "window <7>".to_owned()), (6.0, 6.0, "alert".to_owned())],
        };
        let text = curve(line(vec![(0.0, 5.0), (10.0, 20.0)])).draw().into_string();
        assert!(text.contains("5 B → 20 B (lowest 5 B, highest 20 B)"), "{text}");
        assert!(text.contains("window &lt;7&gt;") && text.contains("M600 0V100"), "{text}");
        let none = curve(line(Vec::new())).draw().into_string();
        assert!(none.contains("No data in this time") && !none.contains("<svg"), "{none}");
    }
}
