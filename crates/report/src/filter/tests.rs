//! Each filter, both ways: what it keeps and what it drops; and that nothing else changes.

use super::*;
use crate::{self as report, samples};

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn filtered(wanted: &Wanted) -> Report {
    let mut report = samples::before();
    Filter::new(wanted.clone()).apply(&mut report);
    report
}

/// The allocating functions of the sites that are left; a frame without one is reported by its module.
fn left(wanted: &Wanted) -> Vec<String> {
    let report = filtered(wanted);
    let sites = report.targets[0].allocators[0].sites.clone().unwrap();
    let name = |frame: &Frame| frame.function.clone().or_else(|| frame.module.clone()).unwrap();
    sites.iter().map(|site| name(&site.frames[0].frame)).collect()
}

const SESSION: &str = "make_session";
const CACHE: &str = "cache_put";
const BARE: &str = "libplugin.so";

/// Without wishes, a report passes as it is.
#[test]
fn nothing_wanted_changes_nothing() {
    let report = filtered(&Wanted::default());
    assert_eq!(report, samples::before());
    assert_eq!(left(&Wanted::default()), [SESSION, CACHE, BARE]);
}

/// Patterns examine functions, files, modules, inlined functions and the place of opening; the second pattern
/// of a kind adds to the first.
#[test]
fn include() {
    let with = |patterns: &[&str]| {
        let include = patterns.iter().map(|text| pattern(text)).collect();
        left(&Wanted { include, ..Wanted::default() })
    };
    assert_eq!(with(&["make_session"]), [SESSION]);
    assert_eq!(with(&["session_alloc"]), [SESSION]);
    assert_eq!(with(&["session\\.h$"]), [SESSION]);
    assert_eq!(with(&["libcache"]), [CACHE]);
    assert_eq!(with(&["^main$"]), [SESSION, CACHE]);
    assert_eq!(with(&["^epoch_turn$"]), [SESSION, CACHE, BARE]);
    assert_eq!(with(&["libplugin", "cache\\.c"]), [CACHE, BARE]);
    assert_eq!(with(&["^session$"]), Vec::<String>::new());
}

/// What is excluded is dropped, also if it is included.
#[test]
fn exclude_wins() {
    let with = |include: &[&str], exclude: &[&str]| {
        let patterns = |texts: &[&str]| texts.iter().map(|text| pattern(text)).collect();
        let (include, exclude) = (patterns(include), patterns(exclude));
        left(&Wanted { include, exclude, ..Wanted::default() })
    };
    assert_eq!(with(&[], &["cache_put"]), [SESSION, BARE]);
    assert_eq!(with(&[], &["cache_put", "libplugin"]), [SESSION]);
    assert_eq!(with(&["server\\.c"], &["cache_put"]), [SESSION]);
    assert_eq!(with(&["cache_put"], &["main"]), Vec::<String>::new());
}

/// Sites are distinguished by whether pins are live.
#[test]
fn live_and_drained() {
    let with = |which| left(&Wanted { which, ..Wanted::default() });
    assert_eq!(with(Which::Live), [SESSION, BARE]);
    assert_eq!(with(Which::Drained), [CACHE]);
    let granules = |which| {
        let report = filtered(&Wanted { which, ..Wanted::default() });
        report.targets[0].allocators[0].pinned_granules.len()
    };
    assert_eq!((granules(Which::Live), granules(Which::Drained)), (3, 0));
}

/// A pin that is live may be as old as its site; one that was freed is known.
#[test]
fn min_age() {
    let with = |seconds| {
        let min_age = Duration::from_secs_f64(seconds);
        left(&Wanted { min_age, ..Wanted::default() })
    };
    assert_eq!(with(0.001), [SESSION, CACHE, BARE]);
    assert_eq!(with(0.002), [SESSION, BARE]);
    assert_eq!(with(9.75), [SESSION, BARE]);
    assert_eq!(with(9.76), Vec::<String>::new());
    // The granules were closed 8.997, 8.997 and 8.989 seconds ago.
    let granules = |seconds| {
        let min_age = Duration::from_secs_f64(seconds);
        let report = filtered(&Wanted { min_age, ..Wanted::default() });
        report.targets[0].allocators[0].pinned_granules.len()
    };
    assert_eq!((granules(8.98), granules(8.99), granules(9.0)), (3, 2, 0));
}

/// Sites are measured by what they retain, granules by their bytes.
#[test]
fn min_size() {
    let with = |min_bytes| Wanted { min_bytes, ..Wanted::default() };
    assert_eq!(left(&with(74 * 4096)), [SESSION, BARE]);
    assert_eq!(left(&with(400 * 256)), [SESSION, CACHE, BARE]);
    assert_eq!(left(&with(400 * 256 + 1)), [SESSION, BARE]);
    assert_eq!(left(&with(2_000 * 4096)), [SESSION]);
    assert_eq!(left(&with(2_000 * 4096 + 1)), Vec::<String>::new());
    let granules = |bytes| filtered(&with(bytes)).targets[0].allocators[0].pinned_granules.len();
    assert_eq!((granules(4096), granules(4097)), (3, 0));
}

/// `--top` cuts each list at its end, after the other conditions have chosen.
#[test]
fn top() {
    assert_eq!(left(&Wanted { top: 2, ..Wanted::default() }), [SESSION, CACHE]);
    let live = Wanted { top: 2, which: Which::Live, ..Wanted::default() };
    assert_eq!(left(&live), [SESSION, BARE]);
    let report = filtered(&Wanted { top: 2, ..Wanted::default() });
    assert_eq!(report.targets[0].allocators[0].pinned_granules.len(), 2);
    assert!(report.findings.iter().all(|finding| finding.code != FILTERED));
}

/// What a filter left is reported with the conditions; no count changes, and the rules still hold.
#[test]
fn totals_stay() {
    let wanted = Wanted {
        include: vec![pattern("session")],
        exclude: vec![pattern("main2")],
        min_bytes: 5,
        ..Wanted::default()
    };
    let report = filtered(&wanted);
    let note = report.findings.iter().find(|finding| finding.code == FILTERED).unwrap();
    assert_eq!(
        note.message,
        "1 of 3 sites and 0 of 3 listed granules are shown (--min-size 5 --include session \
         --exclude main2); counts, rates and verdicts are of all"
    );
    let (now, then) =
        (&report.targets[0].allocators[0], &samples::before().targets[0].allocators[0]);
    assert_eq!(now.sites_total, Some(3));
    assert_eq!((now.granules, now.dsr, &now.lifetimes), (then.granules, then.dsr, &then.lifetimes));
    assert_eq!(report::invariants(&report), Vec::<String>::new());
}

/// Where nothing is known of age, bytes or live objects, a row is kept.
#[test]
fn the_unknown_passes() {
    let site = Site::default();
    let wanted = Wanted {
        min_age: Duration::from_secs(5),
        min_bytes: 1 << 20,
        which: Which::Live,
        ..Wanted::default()
    };
    assert!(wanted.site(&site, Kind::Bulk, 10.0));
    assert!(wanted.granule(None, None, None));
    assert!(!wanted.granule(Some(4.0), None, None));
    assert!(!wanted.granule(None, Some(5), None));
}

/// A filter that chooses is given more rows than it leaves.
#[test]
fn rows_to_choose_from() {
    let options = Options { top: 5, ..Options::default() };
    let rows = |wanted| Filter::new(wanted).rows(&options).top;
    assert_eq!(rows(Wanted { top: 5, ..Wanted::default() }), 5);
    assert_eq!(rows(Wanted { which: Which::Live, ..Wanted::default() }), CHOOSE_FROM);
}

/// No address, path, file, id, label or name of a process, thread or module is left in an anonymous report of
/// any kind; names of functions and all counts are.
#[test]
fn anonymous_reports() {
    let samples = samples::all().into_iter().map(|(name, snapshot)| {
        let mut snapshot = snapshot;
        for target in &mut snapshot.targets {
            "svc-name".clone_into(&mut target.comm);
            target.container = Some("feedc0de".to_owned());
        }
        (name, Report::build(&snapshot, &Options::default()))
    });
    for (name, mut report) in samples.chain(samples::saved()) {
        let before = serde_json::to_value(&report).unwrap();
        Filter::new(Wanted { no_paths: true, ..Wanted::default() }).apply(&mut report);
        let text = serde_json::to_string(&report).unwrap();
        for secret in [
            "svc",
            "/usr",
            "/opt",
            "/src",
            ".c\"",
            ".h\"",
            "0x7f",
            "0x40",
            "0x50",
            "worker-",
            "request\\u",
            "libcache",
            "libplugin",
            "00112233",
            "4242",
            "123456",
            "feedc0de",
        ] {
            assert!(!text.contains(secret), "{name} tells {secret}: {text}");
        }
        assert_eq!(text.contains("handle_request"), before.to_string().contains("handle_request"));
        let after = serde_json::to_value(&report).unwrap();
        assert_eq!(after["losses"], before["losses"]);
        for (index, target) in report.targets.iter().enumerate() {
            for (at, allocator) in target.allocators.iter().enumerate() {
                let then = &before["targets"][index]["allocators"][at];
                assert_eq!(serde_json::to_value(allocator.granules).unwrap(), then["granules"]);
            }
        }
        assert_eq!(report::invariants(&report), Vec::<String>::new(), "{name}");
    }
}

/// Files are reported by the pseudonym that their frames have, without path and build id.
#[test]
fn anonymous_files() {
    let mut report = Report::build(&samples::stacks_snapshot(), &Options::default());
    assert!(report.targets[0].modules[0].build_id.is_some());
    Filter::new(Wanted { no_paths: true, ..Wanted::default() }).apply(&mut report);
    let module = &report.targets[0].modules[0];
    assert!(module.name.starts_with("module-"), "{module:?}");
    assert_eq!((&module.path, &module.build_id), (&module.name, &None));
    let mut frames =
        report.targets[0].allocators[0].sites.iter().flatten().flat_map(|site| &site.frames);
    assert!(frames.any(|frame| frame.frame.module.as_ref() == Some(&module.name)));
}

/// One thing has one pseudonym, in one report and in all that pass the same filter; another has another.
#[test]
fn pseudonyms_are_stable() {
    let mut filter = Filter::new(Wanted { no_paths: true, ..Wanted::default() });
    let [(_, mut before), (_, mut after)] = samples::saved();
    filter.apply(&mut before);
    filter.apply(&mut after);
    let module = |report: &Report, site: usize| {
        let sites = report.targets[0].allocators[0].sites.as_ref().unwrap();
        sites[site].frames[0].frame.module.clone().unwrap()
    };
    assert_eq!(before.targets[0].exe, module(&before, 0));
    assert_eq!(module(&before, 1), module(&after, 0));
    assert_ne!(module(&before, 1), module(&before, 2));
    assert_eq!(before.targets[0].comm, "process-1");
}

/// A function that a process generated is often named after a file, and a message may quote anything.
#[test]
fn names_with_paths() {
    let mut report = samples::before();
    let allocator = &mut report.targets[0].allocators[0];
    let frame = &mut allocator.sites.as_mut().unwrap()[0].frames[0].frame;
    frame.function = Some("LazyCompile:~work /home/me/app.js:12".to_owned());
    frame.module = Some("[generated]".to_owned());
    report.targets[0].findings.push(Finding {
        code: "never_fired".to_owned(),
        message: "open in /home/me/svc".to_owned(),
        ..note(String::new())
    });
    // An earlier filter's note tells its pattern; one that is applied now does not.
    Filter::new(Wanted { exclude: vec![pattern("/home/you|cache")], ..Wanted::default() })
        .apply(&mut report);
    assert!(report.findings.iter().any(|finding| finding.message.contains("/home/you")));
    Filter::new(Wanted { no_paths: true, include: vec![pattern("home")], ..Wanted::default() })
        .apply(&mut report);
    let text = serde_json::to_string(&report).unwrap();
    assert!(!text.contains("home") && text.contains("function-1") && text.contains("[generated]"));
    assert!(text.contains("--include …"), "{text}");
}
