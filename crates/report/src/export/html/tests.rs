use super::*;
use crate::{Options, samples};

fn page(report: &Report) -> String {
    let mut out = Vec::new();
    Html.report(report, &Style::default(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Every sample as a page: well-formed, without script and without anything from elsewhere, far below a megabyte.
#[test]
fn pages_stand_alone() {
    let foreign =
        regex::Regex::new(r#" (on[a-z]+|style|src)="|<script|https?://|@import|url\("#).unwrap();
    for (name, snapshot) in samples::all() {
        let text = page(&Report::build(&snapshot, &Options::default()));
        well_formed(name, &text);
        let (_, body) = text.split_once("<body>").unwrap();
        assert_eq!(foreign.find(body), None, "{name}");
        assert!(
            text.contains("default-src 'none'") && text.len() < 300_000,
            "{name}: {}",
            text.len()
        );
    }
}

/// HTML of the kind that maud writes is XML but for its void elements and unquoted attributes.
fn well_formed(name: &str, text: &str) {
    let open = regex::Regex::new("<(meta|br|input|link)([^>]*)>").unwrap();
    let xml = open.replace_all(text, "<$1$2/>").replace("<!DOCTYPE html>", "");
    let document =
        roxmltree::Document::parse(&xml).unwrap_or_else(|error| panic!("{name}: {error}"));
    let heads = document.descendants().filter(|node| node.has_tag_name("h1")).count();
    assert_eq!(heads, 1, "{name}");
    for cell in document.descendants().filter(|node| node.has_tag_name("th")) {
        assert!(cell.attribute("scope").is_some(), "{name}: a head of what?");
    }
}

/// The page of the example as a whole.
#[test]
fn whole_page() {
    let report = Report::build(&samples::stacks_snapshot(), &Options::default());
    let text = page(&report);
    let (_, body) = text.split_once("<body>").unwrap();
    insta::assert_snapshot!("html", body.replace("><", ">\n<"));
}

/// Answers, censuses and comparisons are pages, too.
#[test]
fn others_are_pages() {
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    };
    let report = samples::before();
    let answer = Why::of_report(&report);
    let evil = "<b>\u{1b}";
    let heap = drainprof_census::Heap {
        allocator: evil.to_owned(),
        live_bytes: 3 << 20,
        types: vec![drainprof_census::Type { name: evil.to_owned(), ..Default::default() }],
        ..Default::default()
    };
    let taken = Census { heaps: vec![heap], notes: vec![evil.to_owned()], ..Census::default() };
    let compared = Diff::of(("a", &samples::before()), ("b", &samples::after()));
    for (name, text, words) in [
        ("why", written(&|out| write_why(&answer, out).unwrap()), "Held by"),
        (
            "census",
            written(&|out| write_census(&taken, &Style::default(), out).unwrap()),
            "3.0 MiB",
        ),
        (
            "diff",
            written(&|out| write_diff(&compared, &Style::default(), out).unwrap()),
            "pinned before",
        ),
    ] {
        well_formed(name, &text);
        assert!(text.contains(words) && !text.contains(evil), "{name}: {text}");
    }
}

/// Whatever a process calls itself and its parts, it is text.
#[test]
fn names_are_text() {
    let mut report = Report::build(&samples::stacks_snapshot(), &Options::default());
    let evil = "</title><script>alert(1)</script>\"'&\u{202e}";
    let target = &mut report.targets[0];
    for name in [&mut target.comm, &mut target.exe, &mut target.findings[0].message] {
        evil.clone_into(name);
    }
    let allocator = &mut target.allocators[0];
    evil.clone_into(&mut allocator.profile);
    allocator.instance = Some(evil.to_owned());
    let site = &mut allocator.sites.as_mut().unwrap()[0];
    site.frames[0].frame.function = Some(evil.to_owned());
    site.threads = vec![evil.to_owned()];
    let text = page(&report);
    assert!(!text.contains("<script") && !text.contains('\u{202e}'));
    assert!(text.matches("&lt;script&gt;").count() >= 7, "{text}");
    well_formed("evil", &text);
}

/// All words that parts name have a sentence, each once.
#[test]
fn words_are_explained() {
    for (index, term) in TERMS.iter().enumerate() {
        assert!(TERMS[..index].iter().all(|other| other.name != term.name), "{}", term.name);
        assert!(!term.what.ends_with('.') && !term.then.ends_with('.'), "{}", term.name);
    }
    let text = page(&Report::build(&samples::stacks_snapshot(), &Options::default()));
    for name in ["DSR", "retained", "pin delay", "lifetime", "who pins", "share", "class", "losses"]
    {
        assert!(
            text.contains(&format!(">{name}</dfn>"))
                || text.contains(&format!("\">{}", name[..1].to_uppercase())),
            "{name}"
        );
    }
}

/// Colours of text stand out from what is behind them: at least 4.5 : 1 (WCAG AA), light and dark.
#[test]
fn colours_have_contrast() {
    let blocks: Vec<&str> =
        STYLE.split(":root{").skip(1).map(|rest| rest.split_once('}').unwrap().0).collect();
    assert_eq!(blocks.len(), 2, "light and dark");
    for block in blocks {
        let colour = |name: &str| {
            let hex = block
                .split(';')
                .find_map(|rule| rule.strip_prefix(&format!("--{name}:#")))
                .unwrap();
            let hex = if hex.len() == 3 {
                hex.chars().flat_map(|c| [c, c]).collect()
            } else {
                hex.to_owned()
            };
            let part = |at: usize| {
                let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
        };
        let contrast = |one: &str, other: &str| {
            let (one, other) = (colour(one), colour(other));
            (one.max(other) + 0.05) / (one.min(other) + 0.05)
        };
        for (text, behind) in [
            ("fg", "bg"),
            ("dim", "bg"),
            ("link", "bg"),
            ("bad", "bg"),
            ("warn", "bg"),
            ("good", "bg"),
            ("fg", "soft"),
            ("fg", "f0"),
            ("fg", "f1"),
            ("fg", "f2"),
            ("fg", "f3"),
            ("a", "bg"),
            ("b", "bg"),
            ("c", "bg"),
        ] {
            let contrast = contrast(text, behind);
            assert!(contrast >= 4.5, "{text} on {behind}: {contrast:.2}");
        }
    }
}
