//! What is matched with what, and how the difference is shown.

use proptest::prelude::*;

use super::*;
use crate::{Frame, Kind, Options, Site, SiteFrame, samples, stored};

fn diff() -> Diff {
    Diff::of(("a", &samples::before()), ("b", &samples::after()))
}

fn sites(diff: &Diff) -> &[SiteDiff] {
    diff.allocators[0].sites.as_deref().unwrap()
}

/// Functions that allocate, and what became of them, in the order of the comparison.
fn reported(diff: &Diff) -> Vec<(String, Status)> {
    let name = |site: &SiteDiff| {
        let frame = &site.frames[0];
        frame.function.clone().unwrap_or_else(|| frame.module_offset.clone().unwrap())
    };
    sites(diff).iter().map(|site| (name(site), site.status)).collect()
}

fn told_as(expected: &[(&str, Status)]) -> Vec<(String, Status)> {
    expected.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect()
}

/// Two builds in two places, with other addresses: the allocator and its sites are matched by their names, what
/// was counted is compared per second, and the largest change comes first.
#[test]
fn two_builds() {
    let diff = diff();
    let allocator = &diff.allocators[0];
    assert_eq!((diff.allocators.len(), allocator.presence), (1, Presence::Both));
    assert_eq!(allocator.exe, "/opt/svc-2/svc");
    assert_eq!(allocator.dsr, Change { before: Some(0.7526), after: Some(0.93) });
    let rates = Change { before: Some(1_000.0), after: Some(1_000.0) };
    assert_eq!((allocator.opens_per_second, allocator.closes_per_second), (rates, rates));
    assert_eq!(allocator.pinned_per_second, Change { before: Some(247.4), after: Some(70.0) });
    assert_eq!(allocator.retained_granules, Change { before: Some(2_074), after: Some(600) });
    let expected = told_as(&[
        ("session_alloc", Status::Shrunk),
        ("retry_push", Status::New),
        ("0x4f0", Status::Gone),
        ("cache_put", Status::Same),
    ]);
    assert_eq!(reported(&diff), expected);
    assert!(diff.complete && sites(&diff).iter().all(|site| site.certain));
    let session = &sites(&diff)[0];
    assert_eq!(session.pinned_per_second, Change { before: Some(200.0), after: Some(5.0) });
    let functions: Vec<_> =
        session.frames.iter().map(|frame| frame.function.as_deref().unwrap()).collect();
    assert_eq!(functions, ["session_alloc", "make_session", "handle_request", "main"]);
    assert_eq!(diff.notes.len(), 1);
    assert!(diff.notes[0].contains("10.0 s and 20.0 s"), "{:?}", diff.notes);
}

/// A report compared with itself has no change, and nothing to note.
#[test]
fn with_itself() {
    for (name, report) in samples::saved() {
        let diff = Diff::of(("a", &report), ("a", &report));
        assert!(
            sites(&diff).iter().all(|site| site.status == Status::Same && site.certain),
            "{name}"
        );
        assert_eq!(diff.notes, Vec::<String>::new());
    }
    for (name, snapshot) in samples::all() {
        let report = Report::build(&snapshot, &Options::default());
        let diff = Diff::of(("a", &report), ("a", &report));
        assert!(diff.allocators.iter().all(|a| a.presence == Presence::Both), "{name}");
        assert!(
            diff.allocators.iter().all(|a| a.closes_per_second.before == a.closes_per_second.after)
        );
    }
}

/// Changes that chance explains are none: 20 pinned closes against 28 in the same time, but not 200 against
/// 280; and 5 % are none, however sure they are.
#[test]
fn chance_is_no_change() {
    let status = |before: u64, after: u64| {
        let [mut a, mut b] = [samples::before(), samples::before()];
        for (report, pinned) in [(&mut a, before), (&mut b, after)] {
            let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
            sites.truncate(1);
            sites[0].granules_pinned = pinned;
        }
        sites(&Diff::of(("a", &a), ("b", &b)))[0].status
    };
    assert_eq!(status(20, 28), Status::Same);
    assert_eq!(status(200, 280), Status::Grown);
    assert_eq!(status(280, 200), Status::Shrunk);
    assert_eq!(status(1_000_000, 1_050_000), Status::Same);
    assert_eq!(status(0, 1), Status::New);
    assert_eq!(status(1, 0), Status::Gone);
    assert_eq!(status(0, 0), Status::Same);
}

/// What a report does not list may rank lower there: that is said, per site and in a note.
#[test]
fn cut_lists_are_uncertain() {
    let mut before = samples::before();
    before.targets[0].allocators[0].sites_total = Some(41);
    let diff = Diff::of(("a", &before), ("b", &samples::after()));
    let certain: Vec<_> = sites(&diff).iter().map(|site| (site.status, site.certain)).collect();
    assert_eq!(certain[1], (Status::New, false));
    assert!(
        certain.iter().filter(|(status, _)| *status != Status::New).all(|(_, certain)| *certain)
    );
    assert!(diff.notes.iter().any(|note| note.contains("lists 3 of 41 sites")), "{:?}", diff.notes);
}

/// Losses and other levels are noted; sites of one report alone are not compared.
#[test]
fn notes() {
    let incomplete = Report::build(&samples::incomplete_snapshot(), &Options::default());
    let diff = Diff::of(("a", &incomplete), ("b", &samples::before()));
    assert!(!diff.complete && !diff.before.complete && diff.after.complete);
    assert_eq!(diff.allocators[0].sites, None);
    for part in ["before is incomplete", "different levels", "only one report has sites"] {
        assert!(diff.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", diff.notes);
    }
    let sampled = Report::build(&samples::sampled_pages_snapshot(), &Options::default());
    let diff = Diff::of(("a", &sampled), ("b", &sampled));
    assert!(diff.notes.iter().any(|note| note.contains("was sampled")), "{:?}", diff.notes);
    let (times, estimated) = (
        sampled.targets[0].allocators[0].granules.closed,
        diff.allocators[0].closes_per_second.after,
    );
    assert_eq!(estimated, Some(times as f64 * 8.0 / sampled.window.seconds));
    let mut empty = samples::before();
    empty.window.seconds = 0.0;
    let diff = Diff::of(("a", &empty), ("b", &empty));
    assert!(diff.notes.iter().any(|note| note.contains("empty")), "{:?}", diff.notes);
    assert_eq!(diff.allocators[0].opens_per_second, Change::default());
}

/// Worker processes and instances of one name are one allocator; another program is another.
#[test]
fn instances_are_summed() {
    let mut workers = samples::before();
    let mut second = workers.targets[0].clone();
    (second.target, second.pid) = (1, 4243);
    second.allocators.push(second.allocators[0].clone());
    workers.targets.push(second);
    let diff = Diff::of(("a", &samples::before()), ("b", &workers));
    let allocator = &diff.allocators[0];
    assert_eq!(diff.allocators.len(), 1);
    assert_eq!(allocator.processes, Change { before: Some(1), after: Some(2) });
    assert_eq!(allocator.instances, Change { before: Some(1), after: Some(3) });
    assert_eq!(allocator.dsr.before, allocator.dsr.after);
    assert_eq!(allocator.retained_granules.after, Some(3 * 2_074));
    let pinned = Change { before: Some(2_000), after: Some(6_000) };
    assert_eq!(sites(&diff)[0].granules_pinned, pinned);
    "other".clone_into(&mut workers.targets[1].comm);
    "/usr/bin/other".clone_into(&mut workers.targets[1].exe);
    let diff = Diff::of(("a", &samples::before()), ("b", &workers));
    let presence: Vec<_> = diff.allocators.iter().map(|allocator| allocator.presence).collect();
    assert_eq!(presence, [Presence::Both, Presence::OnlyAfter]);
    let diff = Diff::of(("a", &workers), ("b", &samples::before()));
    let presence: Vec<_> = diff.allocators.iter().map(|allocator| allocator.presence).collect();
    assert_eq!(presence, [Presence::Both, Presence::OnlyBefore]);
}

/// An allocator is found again under another path and name as long as there is no choice, and never as one of
/// another kind.
#[test]
fn renamed_programs() {
    let mut renamed = samples::after();
    "svc-2".clone_into(&mut renamed.targets[0].comm);
    assert_eq!(Diff::of(("a", &samples::before()), ("b", &renamed)).allocators.len(), 1);
    let mut third = renamed.targets[0].clone();
    (third.target, third.comm) = (1, "svc-3".to_owned());
    renamed.targets.push(third);
    assert_eq!(Diff::of(("a", &samples::before()), ("b", &renamed)).allocators.len(), 3);
    let mut bulk = samples::after();
    bulk.targets[0].allocators[0].kind = Kind::Bulk;
    assert_eq!(Diff::of(("a", &samples::before()), ("b", &bulk)).allocators.len(), 2);
}

/// Paths match without the files' names where one build lacks them, and under the executable's new name; not
/// where functions differ.
#[test]
fn builds_without_lines_and_with_other_names() {
    let change = |change: fn(&mut Frame)| {
        let mut after = samples::before();
        "/opt/svc-new".clone_into(&mut after.targets[0].exe);
        for site in after.targets[0].allocators[0].sites.as_mut().unwrap() {
            site.frames.iter_mut().for_each(|frame| change(&mut frame.frame));
            change(&mut site.opened_at.frame);
        }
        sites(&Diff::of(("a", &samples::before()), ("b", &after))).len()
    };
    assert_eq!(
        change(|frame| {
            (frame.file, frame.line) = (None, None);
            frame.inlined.iter_mut().for_each(|inlined| inlined.file = None);
            if frame.module.as_deref() == Some("svc") {
                frame.module = Some("svc-new".to_owned());
            }
        }),
        3
    );
    assert_eq!(
        change(|frame| {
            if frame.module.as_deref() == Some("svc") {
                frame.module = Some("svc-new".to_owned());
            }
        }),
        3
    );
    assert_eq!(change(|frame| frame.function = Some("f".to_owned())), 6);
}

/// Paths of one report that have the same names are one site.
#[test]
fn same_names_are_one() {
    let mut report = samples::before();
    let sites_of = report.targets[0].allocators[0].sites.as_mut().unwrap();
    let mut twin = sites_of[0].clone();
    twin.frames[1].frame.line = Some(99);
    twin.frames[1].address = Some("0x999".to_owned());
    sites_of.push(twin);
    let diff = Diff::of(("a", &samples::before()), ("b", &report));
    assert_eq!(sites(&diff).len(), 3);
    let pinned = Change { before: Some(2_000), after: Some(4_000) };
    assert_eq!(sites(&diff)[0].granules_pinned, pinned);
}

/// Frames of which nothing is known do not make a path another one.
#[test]
fn nameless_frames() {
    let mut report = samples::before();
    let sites_of = report.targets[0].allocators[0].sites.as_mut().unwrap();
    let bare = SiteFrame { address: Some("0x7f".to_owned()), frame: Frame::default() };
    *sites_of = vec![Site { frames: vec![bare], ..sites_of[0].clone() }];
    let mut other = report.clone();
    let sites_of = other.targets[0].allocators[0].sites.as_mut().unwrap();
    sites_of[0].frames[0].address = Some("0x55".to_owned());
    let diff = Diff::of(("a", &report), ("b", &other));
    assert_eq!(sites(&diff).len(), 1);
}

/// Whatever numbers stored reports hold, the comparison is made, and is a document that is read back.
#[test]
fn hostile_numbers() {
    fn spoil(node: &mut serde_json::Value) {
        match node {
            serde_json::Value::Number(number) if number.is_u64() => *node = u64::MAX.into(),
            serde_json::Value::Number(_) => *node = serde_json::json!(-1e308),
            serde_json::Value::Array(items) => items.iter_mut().for_each(spoil),
            serde_json::Value::Object(fields) => {
                let kept = ["pid", "target", "generation", "one_in", "from_target"];
                let values = fields.iter_mut().filter(|(name, _)| !kept.contains(&name.as_str()));
                values.for_each(|(_, value)| spoil(value));
            }
            _ => {}
        }
    }
    for (name, report) in samples::saved() {
        let mut value = serde_json::to_value(&report).unwrap();
        spoil(&mut value);
        let mut spoilt = stored::read(value.to_string().as_bytes()).unwrap();
        let twin = spoilt.targets[0].clone();
        spoilt.targets.push(twin);
        for (a, b) in [(&report, &spoilt), (&spoilt, &report), (&spoilt, &spoilt)] {
            let diff = Diff::of(("a", a), ("b", b));
            let text = serde_json::to_string(&diff).unwrap();
            assert_eq!(serde_json::from_str::<Diff>(&text).unwrap(), diff, "{name}");
        }
    }
}

proptest! {
    /// Every site of either report is in the comparison once, with its counts.
    #[test]
    fn no_site_is_left_out(
        before in prop::collection::vec((0u8..6, 0u64..1_000), 0..12),
        after in prop::collection::vec((0u8..6, 0u64..1_000), 0..12),
    ) {
        let report = |sites: &[(u8, u64)]| {
            let mut report = samples::before();
            let allocator = &mut report.targets[0].allocators[0];
            let shape = allocator.sites.as_ref().unwrap()[0].clone();
            let sites = sites.iter().map(|(name, pinned)| {
                let mut site = Site { granules_pinned: *pinned, ..shape.clone() };
                site.frames[0].frame.function = Some(format!("f{}", name / 2));
                // Some differ only in what is not always known.
                site.frames[0].frame.file = (name % 2 == 0).then(|| "f.c".to_owned());
                site
            });
            allocator.sites = Some(sites.collect());
            report
        };
        let diff = Diff::of(("a", &report(&before)), ("b", &report(&after)));
        let sum = |of: fn(&SiteDiff) -> Option<u64>| sites(&diff).iter().filter_map(of).sum::<u64>();
        prop_assert_eq!(sum(|s| s.granules_pinned.before), before.iter().map(|s| s.1).sum::<u64>());
        prop_assert_eq!(sum(|s| s.granules_pinned.after), after.iter().map(|s| s.1).sum::<u64>());
    }
}
