//! Tests that hold the comparison, `docs/diff.schema.json` and `docs/reports-offline.md` together.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};

use super::Diff;
use crate::{Options, Report, samples, schema::tests::walk};

fn doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn schema() -> Value {
    serde_json::from_str(&doc("diff.schema.json")).unwrap()
}

fn diffs() -> Vec<Value> {
    let mut reports: Vec<Report> = samples::saved().into_iter().map(|(_, report)| report).collect();
    let built = samples::all().into_iter();
    reports.extend(built.map(|(_, snapshot)| Report::build(&snapshot, &Options::default())));
    let diff = |a: &Report, b: &Report| serde_json::to_value(Diff::of(("a", a), ("b", b))).unwrap();
    reports.windows(2).map(|pair| diff(&pair[0], &pair[1])).collect()
}

/// Comparisons of all kinds and levels are what the schema says.
#[test]
fn comparisons_match_the_schema() {
    assert!(jsonschema::draft202012::meta::is_valid(&schema()));
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    for diff in diffs() {
        let errors: Vec<_> = validator
            .iter_errors(&diff)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, Vec::<String>::new());
    }
}

/// The schema refuses what no comparison may say: each case changes one thing in a good one.
#[test]
fn broken_comparisons_are_refused() {
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    let good = diffs().remove(0);
    assert!(validator.is_valid(&good));
    for (pointer, value) in [
        ("/schema", json!("drainprof.diff/2")),
        ("/extra", json!(1)),
        ("/complete", json!(null)),
        ("/before/processes", json!(-1)),
        ("/allocators/0/presence", json!("gone")),
        ("/allocators/0/dsr", json!(0.5)),
        ("/allocators/0/dsr/extra", json!(0.5)),
        ("/allocators/0/retained_granules/after", json!(0.5)),
        ("/allocators/0/level/before", json!("deep")),
        ("/allocators/0/sites/0/status", json!("more")),
        ("/allocators/0/sites/0/frames/0/address", json!("0x1")),
    ] {
        let mut diff = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        diff.pointer_mut(parent).unwrap()[key] = value;
        assert!(!validator.is_valid(&diff), "{pointer}");
    }
}

/// No object of the schema lets unknown fields pass, and the page explains every field.
#[test]
fn schema_is_closed_and_explained() {
    let page = doc("reports-offline.md");
    let mut names = BTreeSet::new();
    walk(&schema(), &mut |node| {
        if node.get("type") == Some(&json!("object")) {
            assert_eq!(node.get("additionalProperties"), Some(&json!(false)), "{node}");
        }
        if let Some(properties) = node.get("properties").and_then(Value::as_object) {
            names.extend(properties.keys().cloned());
        }
    });
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/reports-offline.md does not explain {missing:?}");
}
