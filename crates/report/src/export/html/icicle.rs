//! Call stacks as a picture (SVG) in lines of text, the outermost function on top, as wide as the page: widths are
//! shares, so it needs no script, and fits any window.

use std::collections::BTreeMap;

use maud::{Markup, html};

/// The height of a line.
const LINE: usize = 18;
/// Narrower parts than this share are not drawn: they could not be seen.
const LEAST: f64 = 0.002;
/// Lines, and parts, at most.
const MAX_DEPTH: usize = 64;
const MAX_FRAMES: usize = 2_000;

/// A function with those that it has called.
#[derive(Debug, Default)]
struct Node<'a> {
    value: u64,
    children: BTreeMap<&'a str, Node<'a>>,
}

/// A part of the picture.
struct Part<'a> {
    name: &'a str,
    value: u64,
    depth: usize,
    from: f64,
    share: f64,
}

/// Draws stacks whose frames are joined by `;`, the outermost first, each with its weight.
pub(super) fn draw(folded: &BTreeMap<String, u64>, shown: &dyn Fn(u64) -> String) -> Markup {
    let mut root = Node::default();
    for (stack, value) in folded {
        root.value = root.value.saturating_add(*value);
        let mut node = &mut root;
        for name in stack.split(';').take(MAX_DEPTH) {
            node = node.children.entry(name).or_default();
            node.value = node.value.saturating_add(*value);
        }
    }
    let all = root.value.max(1) as f64;
    let mut parts = Vec::new();
    let mut hidden = 0u64;
    place(&root, (0, 0.0), all, &mut parts, &mut hidden);
    let depth = parts.iter().map(|part| part.depth + 1).max().unwrap_or_default();
    html! {
        svg.flame height=(depth * LINE) role="img" aria-label="Call stacks by weight; the table has the same as text" {
            @for part in &parts {
                svg x=(percent(part.from)) y=(part.depth * LINE) width=(percent(part.share)) height=(LINE) {
                    title {
                        (part.name) ": " (shown(part.value)) ", " (crate::units::percent(part.share))
                    }
                    rect.{ "f" (shade(part.name)) } width="100%" height="100%" {}
                    @if part.share > 0.01 { text x="4" y="13" { (part.name) } }
                }
            }
        }
        @if hidden > 0 { p.dim { small { (hidden) " parts are too narrow to be drawn." } } }
    }
}

/// Parts in the order of the picture; what is too narrow is counted.
fn place<'a>(
    node: &Node<'a>,
    (depth, from): (usize, f64),
    all: f64,
    parts: &mut Vec<Part<'a>>,
    hidden: &mut u64,
) {
    let mut children: Vec<(&&'a str, &Node<'a>)> = node.children.iter().collect();
    children.sort_by_key(|(_, child)| std::cmp::Reverse(child.value));
    let mut from = from;
    for (name, child) in children {
        let share = child.value as f64 / all;
        if share < LEAST || parts.len() >= MAX_FRAMES {
            *hidden += 1;
            continue;
        }
        parts.push(Part { name, value: child.value, depth, from, share });
        place(child, (depth + 1, from), all, parts, hidden);
        from += share;
    }
}

fn percent(share: f64) -> String {
    format!("{:.3}%", share.clamp(0.0, 1.0) * 100.0)
}

/// One of four shades, always the same for a name, so that neighbours differ.
fn shade(name: &str) -> u32 {
    name.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Widths are shares of the whole, deeper frames stand below, names are escaped, and a picture stays small.
    #[test]
    fn parts() {
        let folded = BTreeMap::from([("main;a<b>;c".to_owned(), 30), ("main;d".to_owned(), 10)]);
        let text = draw(&folded, &|value| format!("{value} granules")).into_string();
        let c =
            r#"<svg x="0.000%" y="36" width="75.000%" height="18"><title>c: 30 granules, 75.0 %"#;
        assert!(text.contains(c), "{text}");
        let d =
            r#"<svg x="75.000%" y="18" width="25.000%" height="18"><title>d: 10 granules, 25.0 %"#;
        assert!(
            text.contains(d) && text.contains("a&lt;b&gt;") && text.contains(r#"height="54""#),
            "{text}"
        );
        let wide: BTreeMap<String, u64> =
            (0..100_000).map(|at| (format!("main;f{at};{}", "x;".repeat(500)), 1)).collect();
        let text = draw(&wide, &|value| value.to_string()).into_string();
        assert!(text.len() < 400_000 && text.contains("too narrow"), "{}", text.len());
    }
}
