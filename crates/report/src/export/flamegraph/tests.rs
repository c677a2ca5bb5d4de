use roxmltree::{Document, ParsingOptions};

use super::*;
use crate::{self as report, export::PinWeight, facts::Snapshot, samples};

fn svg(report: &Report, weight: PinWeight) -> String {
    let mut out = Vec::new();
    Flamegraph.report(report, &Style { weight, ..Style::default() }, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn built(snapshot: &Snapshot) -> Report {
    Report::build(snapshot, &report::Options::default())
}

fn parsed(text: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).unwrap()
}

/// Tooltips of the frames, and their widths as a share of the picture.
fn frames(text: &str) -> Vec<(String, f64)> {
    let document = parsed(text);
    let frames = document.descendants().filter(|node| node.has_tag_name("g"));
    frames
        .filter_map(|group| {
            let child = |name| group.children().find(|node| node.has_tag_name(name));
            let width = child("rect")?.attribute("width")?.strip_suffix('%')?.parse::<f64>();
            Some((child("title")?.text()?.to_owned(), width.unwrap() / 100.0))
        })
        .collect()
}

fn texts(text: &str) -> Vec<String> {
    let document = parsed(text);
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|node| node.text().map(str::to_owned)).collect()
}

fn width(frames: &[(String, f64)], function: &str) -> f64 {
    let start = format!("{function} (");
    let found: Vec<_> = frames.iter().filter(|(title, _)| title.starts_with(&start)).collect();
    assert_eq!(found.len(), 1, "{function} in {frames:?}");
    found[0].1
}

/// Each frame is as wide as its share of the pinned granules, callers as wide as what they call.
#[test]
fn widths() {
    let text = svg(&built(&samples::stacks_snapshot()), PinWeight::Granules);
    let frames = frames(&text);
    let of = |part: f64| part / 2_474.0;
    for (function, share) in [
        ("make_session", of(2_000.0)),
        ("log_in", of(2_424.0)),
        ("main", of(2_424.0)),
        ("[cut: no unwind information]", of(50.0)),
        ("libplugin.so+0x777", of(50.0)),
    ] {
        let told = width(&frames, function);
        assert!((told - share).abs() < 1e-4, "{function}: {told} is not {share}");
    }
    assert!(text.contains("make_session (2,000 pinned granules, 80.84%)"));
}

/// The title names process, profile and weight, the line below it the window; a lost event and a sample are
/// told before and after it.
#[test]
fn titles() {
    let mut report = built(&samples::stacks_snapshot());
    let text = texts(&svg(&report, PinWeight::Retained));
    let title = "Who pins: bytes of granules retained now (7.8 MiB) · svc (4242) · epoch-demo";
    assert!(text.iter().any(|line| line == title), "{text:?}");
    assert!(text.iter().any(|line| line == "10.0 s observed"), "{text:?}");
    report.complete = false;
    report.targets[0].allocators[0].sites_total = Some(10);
    let text = texts(&svg(&report, PinWeight::Granules));
    let below = text.iter().find(|line| line.contains("observed")).unwrap();
    assert!(below.starts_with("INCOMPLETE: "), "{below}");
    assert!(below.ends_with("; 6 call paths are not in the report (--top)"), "{below}");
    // Both fit the picture's width: 1200 pixels of a font 0.59 as wide as high, 17 and 12 pixels.
    report.targets[0].comm = "a long name ".repeat(20);
    report.targets[0].allocators[0].profile = "another long name ".repeat(20);
    let text = texts(&svg(&report, PinWeight::Retained));
    let [title, below] = [&text[0], &text[1]].map(|line| line.chars().count());
    assert!(title > 100 && title < 119 && below > 100 && below < 169, "{text:?}");
    let holders = texts(&svg(&built(&samples::holders_snapshot()), PinWeight::Granules));
    assert!(
        holders.iter().any(|line| line.starts_with("Who holds: live bytes (19.5 KiB) · ")),
        "{holders:?}"
    );
}

/// Where there is nothing to draw, the picture says why.
#[test]
fn nothing_to_draw() {
    let text = texts(&svg(&built(&samples::drain_snapshot()), PinWeight::Granules));
    assert!(text.iter().any(|line| line.contains("not of the level stacks")), "{text:?}");
    let mut report = built(&samples::stacks_snapshot());
    report.targets[0].allocators[0].sites.as_mut().unwrap().clear();
    let text = texts(&svg(&report, PinWeight::Granules));
    assert!(text.iter().any(|line| line == "No call path is shown"), "{text:?}");
    report.targets[0].allocators[0].sites_total = Some(0);
    let text = texts(&svg(&report, PinWeight::Granules));
    assert!(text.iter().any(|line| line == "No call path has any granules"), "{text:?}");
}

/// The same report is the same picture, byte by byte.
#[test]
fn reproducible() {
    let report = built(&samples::stacks_snapshot());
    assert!(svg(&report, PinWeight::Granules) == svg(&report, PinWeight::Granules));
}

/// Names of functions, processes and profiles are text of the picture, never its markup or script.
#[test]
fn hostile_names() {
    let evil = "</text><script>alert(1)</script>;\n\u{1b}[2J\"'&\u{202e}--> 7";
    let mut snapshot = samples::stacks_snapshot();
    for frame in snapshot.targets[0].frames.values_mut() {
        frame.function = Some(evil.to_owned());
    }
    evil.clone_into(&mut snapshot.targets[0].comm);
    let mut report = built(&snapshot);
    for has_frames in [true, false] {
        if !has_frames {
            report.targets[0].allocators[0].sites.as_mut().unwrap().clear();
        }
        let text = svg(&report, PinWeight::Granules);
        let scripts = |text: &str| {
            parsed(text).descendants().filter(|node| node.has_tag_name("script")).count()
        };
        assert_eq!(scripts(&text), usize::from(has_frames));
        assert!(!text.contains("<script>alert"));
        assert!(!text.chars().any(|c| c != '\n' && escape::is_hostile(c)));
    }
}

/// Numbers that cannot be added up are cut, and the picture is drawn all the same.
#[test]
fn huge_numbers() {
    let mut report = built(&samples::stacks_snapshot());
    for site in report.targets[0].allocators[0].sites.iter_mut().flatten() {
        site.granules_pinned = u64::MAX;
    }
    let frames = frames(&svg(&report, PinWeight::Granules));
    let told = width(&frames, "libplugin.so+0x777");
    assert!((told - 0.25).abs() < 1e-4, "{told}");
}

/// A function is coloured by what of its weight is retained still; a line below says so, and the search can be seen.
#[test]
fn colours() {
    let report = built(&samples::stacks_snapshot());
    let text = svg(&report, PinWeight::Granules);
    let document = parsed(&text);
    let colour = |function: &str| {
        let start = format!("{function} (");
        let is_it = |node: &roxmltree::Node<'_, '_>| {
            node.has_tag_name("title") && node.text().is_some_and(|text| text.starts_with(&start))
        };
        let title = document.descendants().find(is_it).unwrap();
        let frame = title.parent().unwrap();
        let rect = frame.children().find(|node| node.has_tag_name("rect")).unwrap();
        rect.attribute("fill").unwrap().to_owned()
    };
    assert_eq!(colour("make_session"), "rgb(232,126,61)", "all retained");
    assert_eq!(colour("libplugin.so+0x777"), "rgb(118,183,227)", "all drained");
    // 2000 of 2424.
    assert_eq!(colour("log_in"), "rgb(233,162,117)");
    let lines = texts(&text);
    for line in ["drained since", "half of it", "retained now", "Search (Ctrl-F)"] {
        assert!(lines.iter().any(|text| text == line), "no {line} in {lines:?}");
    }
    assert!(!text.contains("opacity:0.1"), "a search that can be seen");
    let size = |name: &str| document.root_element().attribute(name).unwrap();
    assert!(size("viewBox").ends_with(&format!(" {}", size("height"))), "{}", size("viewBox"));
    let retained = texts(&svg(&report, PinWeight::Retained));
    assert!(!retained.iter().any(|text| text.contains("since")), "{retained:?}");
}

/// The picture of the documentation is what the sample gives (`UPDATE_DOCS=1` renews it).
#[test]
fn documented() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/pins.svg");
    let drawn = svg(&built(&samples::stacks_snapshot()), PinWeight::Granules);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let fresh = std::fs::read_to_string(path).is_ok_and(|page| page == drawn);
    assert!(fresh, "docs/examples/pins.svg is stale: run with UPDATE_DOCS=1");
}
