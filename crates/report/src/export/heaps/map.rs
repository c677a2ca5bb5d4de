//! A picture of heaps: granules in the order of their addresses, by how full they are. One sees holes, plateaus, and
//! granules that few objects pin.

use std::io::{self, Write};

use drainprof_census::{Census, Heap, MapCell};

use super::super::escape::{NAME, shown};
use crate::units;

/// Cells of a row, and points of a cell.
const COLUMNS: usize = 128;
const SIDE: usize = 7;
/// Points of the margin, and of a line of text.
const MARGIN: usize = 10;
const LINE: usize = 18;
/// Up to this fill a cell is pinned where it has few objects.
const PINNED: f64 = 0.125;
/// Colours by fill: nothing lives, pinned, then up to a quarter, a half, three quarters, and more.
const COLOURS: [(&str, &str); 6] = [
    ("#e8e8e8", "free"),
    ("#d7301f", "at most 1/8 full"),
    ("#fdae61", "to 1/4"),
    ("#fee090", "to 1/2"),
    ("#91bfdb", "to 3/4"),
    ("#4575b4", "fuller"),
];

/// Writes a picture as SVG.
///
/// # Errors
/// `out` cannot be written.
pub fn write_heap_map(census: &Census, out: &mut dyn Write) -> io::Result<()> {
    let rows = |heap: &Heap| heap.map.len().div_ceil(COLUMNS);
    let blocks = census.heaps.iter().map(|heap| rows(heap) * SIDE + 2 * LINE + MARGIN);
    let (width, height) = (COLUMNS * SIDE + 2 * MARGIN, blocks.sum::<usize>() + 3 * LINE);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    )?;
    let title = format!("{}[{}]", shown(&census.comm, NAME), census.pid);
    text(MARGIN, LINE, &format!("{title}: heaps by address, first to last"), out)?;
    for ((colour, name), at) in COLOURS.into_iter().zip((MARGIN..).step_by(130)) {
        let y = LINE + 8;
        writeln!(out, "<rect x=\"{at}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>")?;
        text(at + 16, y + 11, name, out)?;
    }
    let mut top = 3 * LINE;
    for heap in &census.heaps {
        text(MARGIN, top, &caption(heap), out)?;
        for (index, cell) in heap.map.iter().enumerate() {
            let (column, row) = (index % COLUMNS, index / COLUMNS);
            writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"{}\">\
                 <title>{}</title></rect>",
                MARGIN + column * SIDE,
                top + 6 + row * SIDE,
                colour(cell),
                describe(cell)
            )?;
        }
        top += rows(heap) * SIDE + 2 * LINE + MARGIN;
    }
    writeln!(out, "</svg>")
}

fn text(x: usize, y: usize, text: &str, out: &mut dyn Write) -> io::Result<()> {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(out, "<text x=\"{x}\" y=\"{y}\">{text}</text>")
}

fn caption(heap: &Heap) -> String {
    let granules: u64 = heap.map.iter().map(|cell| cell.granules).sum();
    let each = granules.div_ceil(heap.map.len().max(1) as u64);
    format!(
        "{}: {} live in {} resident; a cell is {each} {}{}",
        heap.allocator,
        units::bytes(heap.live_bytes),
        units::bytes(heap.resident_bytes),
        heap.granules.unit,
        if each == 1 { "" } else { "s" }
    )
}

fn fill(cell: &MapCell) -> f64 {
    cell.live_bytes as f64 / cell.bytes.max(1) as f64
}

fn colour(cell: &MapCell) -> &'static str {
    let index = match fill(cell) {
        _ if cell.objects == 0 => 0,
        fill if fill <= PINNED => 1,
        fill if fill <= 0.25 => 2,
        fill if fill <= 0.5 => 3,
        fill if fill <= 0.75 => 4,
        _ => 5,
    };
    COLOURS[index].0
}

fn describe(cell: &MapCell) -> String {
    format!(
        "{} of {}: {}",
        units::percent(fill(cell).min(1.0)),
        units::bytes(cell.bytes),
        units::counted(cell.objects, "object", "objects")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cells in rows, coloured by fill; a hostile name does not leave its text.
    #[test]
    fn picture() {
        let cell = |objects, live_bytes| MapCell {
            granules: 1,
            bytes: 4096,
            objects,
            live_bytes,
            ..MapCell::default()
        };
        let mut map = vec![cell(0, 0); COLUMNS];
        map.extend([cell(1, 64), cell(50, 4000)]);
        let heap = Heap { allocator: "glibc".to_owned(), map, ..Heap::default() };
        let census =
            Census { comm: "a<script>".to_owned(), heaps: vec![heap], ..Census::default() };
        let mut out = Vec::new();
        write_heap_map(&census, &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        assert!(svg.contains("a&lt;script&gt;[0]") && svg.ends_with("</svg>\n"), "{svg}");
        let cells = |colour: &str| svg.matches(&format!("fill=\"{colour}\"><title>")).count();
        assert_eq!([0, 1, 5].map(|index: usize| cells(COLOURS[index].0)), [COLUMNS, 1, 1]);
        assert!(
            svg.contains("y=\"67\" width=\"7\" height=\"7\" fill=\"#d7301f\"><title>1.56 %"),
            "{svg}"
        );
    }
}
