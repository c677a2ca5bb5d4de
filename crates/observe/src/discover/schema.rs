//! Tests that hold the document, `docs/discover.schema.json` and `docs/discover.md` together.

use std::{collections::BTreeSet, path::Path};

use drainprof_profile::Finding;
use serde_json::{Value, json};

use super::{
    Detail, Discovery, Fit, Hint, LevelOffer, Looked, PassedOver, Prices, ProcessGroup, SCHEMA,
    render_text,
};

fn doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A document in which everything occurs.
fn sample() -> Discovery {
    let level =
        |level, object_ns| LevelOffer { level, probes: 2, granule_ns: Some(1300.0), object_ns };
    let finding = |code: &str| Finding { code: code.into(), message: format!("about {code}") };
    let fit = Fit {
        profile: "server".into(),
        kind: "bulk",
        summary: "pools".into(),
        objects: vec!["/usr/sbin/server".into()],
        on_request: false,
        default_level: "boundary",
        levels: vec![level("boundary", None), level("objects", Some(900.0))],
        findings: vec![finding("clones"), finding("expensive_site")],
        unusable: None,
    };
    let broken = Fit {
        on_request: true,
        levels: Vec::new(),
        unusable: Some("no place".into()),
        ..fit.clone()
    };
    let hint = Hint {
        profile: "heap".into(),
        object: "/lib/libc.so.6".into(),
        missing: "1 of 2 functions".into(),
        mend: Some("install libc6-dbg".into()),
    };
    let group = ProcessGroup {
        comm: "server".into(),
        exe: "/usr/sbin/server".into(),
        pids: (100..110).collect(),
        rss_bytes: 1 << 20,
        other_mount_namespace: true,
        fits: vec![fit, broken],
        hints: vec![hint],
        attach: Some("drainprof attach --family -p 100".into()),
    };
    let passed = PassedOver {
        reason: "permission",
        processes: 3,
        pids: vec![1, 2],
        message: "not permitted".into(),
    };
    Discovery {
        schema: SCHEMA,
        prices: Prices::Assumed,
        looked: Looked { processes: 12, with_profile: 10, on_request: 0, without_profile: 2 },
        groups: vec![group],
        passed_over: vec![passed],
    }
}

/// What is written is what the schema says, and the schema refuses what it does not know.
#[test]
fn documents_match_the_schema() {
    let schema: Value = serde_json::from_str(&doc("discover.schema.json")).unwrap();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let good = serde_json::to_value(sample()).unwrap();
    let errors: Vec<_> = validator.iter_errors(&good).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    for (pointer, value) in [
        ("/schema", json!("drainprof.discover/2")),
        ("/extra", json!(1)),
        ("/prices", json!("measured")),
        ("/looked/processes", json!(-1)),
        ("/groups/0/extra", json!(1)),
        ("/groups/0/fits/0/levels/0/level", json!("deep")),
        ("/groups/0/hints/0/mend", json!(7)),
        ("/passed_over/0/reason", json!("bored")),
    ] {
        let mut bad = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[key] = value;
        assert!(!validator.is_valid(&bad), "{pointer}");
    }
}

/// The page explains every field.
#[test]
fn page_mentions_everything() {
    let page = doc("discover.md");
    let mut names = BTreeSet::new();
    fields(&serde_json::to_value(sample()).unwrap(), &mut names);
    let missing: Vec<_> =
        names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/discover.md does not explain {missing:?}");
    assert!(names.len() > 25, "{names:?}");
}

fn fields(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            names.extend(map.keys().cloned());
            map.values().for_each(|value| fields(value, names));
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, names)),
        _ => {}
    }
}

fn rendered(found: &Discovery, detail: Detail) -> String {
    let mut out = Vec::new();
    render_text(found, detail, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The text says the same in a few lines per program; what the costs show already is not said again.
#[test]
fn text() {
    insta::assert_snapshot!(rendered(&sample(), Detail::Full));
}

/// What fits nearly everything is one line in an entry, and one for all programs that nothing else fits; what
/// is said of it in full stands in the document all the same.
#[test]
fn text_in_brief() {
    let mut found = sample();
    let group = found.groups[0].clone();
    let asked = |name: &str| Fit {
        profile: name.into(),
        on_request: true,
        unusable: None,
        ..group.fits[0].clone()
    };
    found.groups[0].fits.push(asked("malloc-glibc"));
    for (exe, pids) in [("/bin/cat", vec![1, 2]), ("/bin/sh", vec![3])] {
        found.groups.push(ProcessGroup {
            exe: exe.into(),
            fits: (0..pids.len()).map(|at| asked(["malloc-glibc", "glibc-heap"][at])).collect(),
            pids,
            hints: Vec::new(),
            ..group.clone()
        });
    }
    insta::assert_snapshot!(rendered(&found, Detail::Brief));
}
