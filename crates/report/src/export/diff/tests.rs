//! Comparisons as bytes.

use super::*;
use crate::{Kind, Options, Report, samples};

fn diff() -> Diff {
    Diff::of(("before.json", &samples::before()), ("after.json", &samples::after()))
}

fn written(format: &str, diff: &Diff, style: &Style) -> String {
    let mut out = Vec::new();
    (diff_format(format).unwrap().write)(diff, style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The page as a whole, with pins, without, and where only one report has an allocator.
#[test]
fn pages() {
    insta::assert_snapshot!("text_two_builds", written("text", &diff(), &Style::default()));
    let reports = ["bulk", "slab"].map(|name| {
        let (_, snapshot) = samples::all().into_iter().find(|(n, _)| *n == name).unwrap();
        let mut report = Report::build(&snapshot, &Options::default());
        report.tool.version = "1.2.3".to_owned();
        report
    });
    let other = Diff::of(("a", &reports[0]), ("b", &reports[1]));
    insta::assert_snapshot!("text_other_kinds", written("text", &other, &Style::default()));
}

/// The text keeps to its page, also a narrow one; colour is only colour.
#[test]
fn pages_keep_their_width() {
    let narrow = Style { width: 60, ..Style::default() };
    for style in [narrow, Style::default()] {
        let text = written("text", &diff(), &style);
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(style.width), "{line}");
        }
    }
    let colour = Style { colour: true, ..Style::default() };
    let coloured = written("text", &diff(), &colour);
    assert!(coloured.contains("\u{1b}["));
    assert!(!written("text", &diff(), &Style::default()).contains('\u{1b}'));
}

/// `--top` cuts the sites that changed, and says by how many.
#[test]
fn top() {
    let style = Style { top: 1, ..Style::default() };
    let text = written("text", &diff(), &style);
    assert!(text.contains("session_alloc") && !text.contains("retry_push"));
    assert!(text.contains("and 2 more that changed"), "{text}");
}

/// The document is read back as the same comparison.
#[test]
fn json_round_trip() {
    let text = written("json", &diff(), &Style::default());
    assert_eq!(serde_json::from_str::<Diff>(&text).unwrap(), diff());
}

/// Two columns per path, outermost first; what was counted is scaled to the second window, what is retained is
/// not.
#[test]
fn folded() {
    let text = written("folded", &diff(), &Style::default());
    assert_eq!(
        text,
        "libplugin.so+0x9a0;libplugin.so+0x4f0 148 0\n\
         main;handle_request;cache_put 800 800\n\
         main;handle_request;make_session;session_alloc 4000 100\n\
         main;handle_request;retry_push 0 500\n"
    );
    let style = Style { weight: PinWeight::Retained, ..Style::default() };
    assert_eq!(
        written("folded", &diff(), &style),
        "libplugin.so+0x9a0;libplugin.so+0x4f0 303104 0\n\
         main;handle_request;make_session;session_alloc 8192000 409600\n\
         main;handle_request;retry_push 0 2048000\n"
    );
    let style = Style { weight: PinWeight::Bytes, ..Style::default() };
    assert!(written("folded", &diff(), &style).contains("cache_put 204800 204800\n"));
}

/// The picture says what it shows, has a frame per function of the second report with the change in its title,
/// and tells how many paths are gone.
#[test]
fn flame_graph() {
    let svg = written("flamegraph", &diff(), &Style::default());
    assert!(svg.contains("pinned granules after (4948 → 1400), coloured by the change"), "{svg}");
    for key in ["shrank most", "as before", "grew most"] {
        assert!(svg.contains(&format!(">{key}</text>")), "no {key} in the key of colours");
    }
    assert!(svg.contains("before.json (10.0 s) → after.json (20.0 s)"), "{svg}");
    assert!(svg.contains("1 path is gone"));
    assert!(svg.contains("<title>session_alloc (100 granules, 7.14%; -278.57%)</title>"), "{svg}");
    assert!(svg.contains("<title>retry_push (500 granules, 35.71%; +35.71%)</title>"));
    assert!(!svg.contains("libplugin"));
}

/// Without call paths there is nothing to draw, which is an error and not an empty picture.
#[test]
fn nothing_to_draw() {
    let report = Report::build(&samples::drain_snapshot(), &Options::default());
    let diff = Diff::of(("a", &report), ("b", &report));
    let mut out = Vec::new();
    let error = (diff_format("flamegraph").unwrap().write)(&diff, &Style::default(), &mut out);
    assert!(matches!(error, Err(Error::NothingToDraw)));
    assert!(out.is_empty());
}

/// Kinds are not mixed: with pins, what other allocators hold is left out; allocators are distinguished by roots.
#[test]
fn kinds_are_not_mixed() {
    let with_bulk = |mut report: Report| {
        let mut bulk = report.targets[0].allocators[0].clone();
        (bulk.kind, bulk.profile) = (Kind::Bulk, "pools".to_owned());
        report.targets[0].allocators.push(bulk);
        report
    };
    let [a, b] = [samples::before(), samples::after()].map(with_bulk);
    let diff = Diff::of(("a", &a), ("b", &b));
    assert!(!written("folded", &diff, &Style::default()).contains("pools"));
    let only_bulk = |mut report: Report| {
        report.targets[0].allocators.remove(0);
        let mut twin = report.targets[0].allocators[0].clone();
        twin.profile = "other".to_owned();
        report.targets[0].allocators.push(twin);
        report
    };
    let diff = Diff::of(("a", &only_bulk(a)), ("b", &only_bulk(b)));
    let text = written("folded", &diff, &Style::default());
    assert!(text.starts_with("svc;other;"), "{text}");
    assert!(text.contains("svc;pools;main;handle_request;retry_push 0 128000\n"), "{text}");
}

/// Names and numbers of stored reports cannot act on a terminal, break a line or a picture, or overflow.
#[test]
fn hostile_reports() {
    let mut reports = [samples::before(), samples::after()];
    let evil = "# \u{1b}[2J\u{9b}\u{202e}\n; <script>alert(1)</script> & 5 6";
    for report in &mut reports {
        report.tool.version = evil.to_owned();
        report.host.kernel = evil.to_owned();
        let target = &mut report.targets[0];
        (target.comm, target.exe) = (evil.to_owned(), evil.to_owned());
        let allocator = &mut target.allocators[0];
        allocator.profile = evil.to_owned();
        for site in allocator.sites.iter_mut().flatten() {
            site.granules_pinned = u64::MAX;
            site.retained_bytes = Some(u64::MAX);
            for frame in &mut site.frames {
                frame.frame.function = Some(evil.to_owned());
                frame.frame.file = Some(evil.to_owned());
                frame.frame.module = Some(evil.to_owned());
            }
        }
        allocator.sites.as_mut().unwrap()[0].frames.clear();
    }
    let diff = Diff::of((evil, &reports[0]), (evil, &reports[1]));
    for format in DIFF_FORMATS {
        for weight in [PinWeight::Granules, PinWeight::Bytes, PinWeight::Retained] {
            let text = written(format.name, &diff, &Style { weight, ..Style::default() });
            let bad = text.chars().find(|&c| c != '\n' && escape::is_hostile(c));
            assert_eq!(bad, None, "{}", format.name);
            match format.name {
                "folded" => {
                    for line in text.lines() {
                        let words: Vec<_> = line.rsplitn(3, ' ').collect();
                        assert!(
                            words[..2].iter().all(|word| word.parse::<u64>().is_ok()),
                            "{line}"
                        );
                        assert!(!line.starts_with('#'), "{line}");
                    }
                }
                "flamegraph" => assert!(!text.contains("<script>alert")),
                _ => {}
            }
        }
    }
}

/// A closed pipe is distinguished from other failures, by every format.
#[test]
fn broken_pipe_is_recognised() {
    struct Closed;
    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for format in DIFF_FORMATS {
        let error = (format.write)(&diff(), &Style::default(), &mut Closed).unwrap_err();
        assert!(error.is_broken_pipe(), "{}", format.name);
    }
}
