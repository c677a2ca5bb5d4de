//! What colours mean, and the line below a picture that says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};

use crate::export::{escape::xml, weigh::Stacks};

/// What is gone, what is half gone, what is there still: which differ with any colour vision.
const SCALE: [[f64; 3]; 3] = [[118.0, 183.0, 227.0], [235.0, 231.0, 222.0], [232.0, 126.0, 61.0]];
/// Behind all.
pub(super) const BACKGROUND: BackgroundColor =
    BackgroundColor::Flat(Color { r: 250, g: 250, b: 250 });
/// Pixels for the line.
const LINE: usize = 24;

/// A colour for a share from 0 to 1.
fn colour(share: f64) -> Color {
    let at = share.clamp(0.0, 1.0) * 2.0;
    let (low, high) = if at < 1.0 { (SCALE[0], SCALE[1]) } else { (SCALE[1], SCALE[2]) };
    let part = if at < 1.0 { at } else { at - 1.0 };
    #[allow(clippy::cast_sign_loss, reason = "between two colours")]
    let mix = |channel: usize| (low[channel] + (high[channel] - low[channel]) * part) as u8;
    Color { r: mix(0), g: mix(1), b: mix(2) }
}

/// Functions by what of their weight is there still: all of it where nothing else is known.
pub(super) fn palette(stacks: &Stacks) -> PaletteMap {
    let mut sums: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for (stack, &value) in &stacks.folded {
        let kept = stacks.kept.get(stack).map_or(value, |kept| *kept);
        for name in stack.split(';').chain(["all"]).collect::<BTreeSet<_>>() {
            let [all, there] = sums.entry(name).or_default();
            *all += value as f64;
            *there += kept as f64;
        }
    }
    let mut palette = PaletteMap::default();
    for (name, [all, there]) in sums {
        palette.insert(name, colour(there / all));
    }
    palette
}

/// The colours of a picture with their meaning.
pub(super) fn of(stacks: &Stacks) -> Vec<(String, String)> {
    let [gone, there] = stacks.quantity.colours();
    let row = |share, what: String| (css(colour(share)), what);
    if stacks.kept.is_empty() {
        return vec![row(1.0, there.to_owned())];
    }
    vec![row(0.0, gone.to_owned()), row(0.5, "half of it".to_owned()), row(1.0, there.to_owned())]
}

fn css(colour: Color) -> String {
    format!("rgb({},{},{})", colour.r, colour.g, colour.b)
}

/// A picture of `inferno` with a line of colours below, and with a search that can be seen.
pub(in super::super) fn with_key(svg: Vec<u8>, key: &[(String, String)]) -> Vec<u8> {
    let height = std::str::from_utf8(&svg).ok().and_then(height_of);
    let (Some(height), Ok(text)) = (height, String::from_utf8(svg.clone())) else { return svg };
    let below = height + LINE;
    let mut text = text
        .replacen(
            &format!(" height=\"{height}\" onload"),
            &format!(" height=\"{below}\" onload"),
            1,
        )
        .replacen(&format!(" {height}\" xmlns"), &format!(" {below}\" xmlns"), 1)
        .replacen(
            &format!("width=\"100%\" height=\"{height}\""),
            "width=\"100%\" height=\"100%\"",
            1,
        )
        .replacen("text-anchor:end; opacity:0.1; cursor", "text-anchor:end; cursor", 1)
        .replacen(">Search</text>", ">Search (Ctrl-F)</text>", 1);
    if let Some(end) = text.rfind("</svg>") {
        text.truncate(end);
    }
    let mut x = 10;
    text.push_str("<g id=\"key\">");
    for (colour, what) in key {
        let y = height + LINE / 2;
        let _ = write!(
            text,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{y}\">{}</text>",
            y - 10,
            x + 18,
            xml(what)
        );
        x += 40 + 8 * what.chars().count();
    }
    text.push_str("</g></svg>");
    text.into_bytes()
}

/// The height in pixels that the picture says.
fn height_of(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("<svg ")?;
    let (_, rest) = rest.split_once(" height=\"")?;
    rest.split_once('"')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends and the middle of the scale; what is no number is gone.
    #[test]
    fn scale() {
        assert_eq!(css(colour(0.0)), "rgb(118,183,227)");
        assert_eq!(css(colour(0.5)), "rgb(235,231,222)");
        assert_eq!(css(colour(7.0)), "rgb(232,126,61)");
        assert_eq!(css(colour(0.25)), "rgb(176,207,224)");
    }

    /// What is no picture of the library stays as it is.
    #[test]
    fn other_text() {
        assert_eq!(with_key(b"<svg>".to_vec(), &[]), b"<svg>");
    }
}
