//! Tests that hold the report, `docs/report.schema.json` and `docs/report.md` together.

use std::{collections::BTreeSet, path::Path};

use drainprof_common::{loss::LOSSES, spec::Role};

use super::*;
use crate::{Options, Report, export::FORMATS, finding::RULES, samples};

fn doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn schema() -> Value {
    serde_json::from_str(&doc("report.schema.json")).unwrap()
}

/// The schemas of the documentation are those of the types; `UPDATE_DOCS=1` renews them.
#[test]
fn schemas_are_those_of_the_types() {
    let schemas = [
        ("report.schema.json", report_schema()),
        ("diff.schema.json", diff_schema()),
        ("census.schema.json", census_schema()),
        ("why.schema.json", why_schema()),
    ];
    for (name, schema) in schemas {
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(doc(name) == text, "docs/{name} is stale; UPDATE_DOCS=1 renews it");
    }
}

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn sample(name: &str) -> Value {
    let (_, snapshot) = samples::all().into_iter().find(|(n, _)| *n == name).unwrap();
    serde_json::to_value(Report::build(&snapshot, &Options::default())).unwrap()
}

/// Reports of all kinds and levels, with and without data, are what the schema says.
#[test]
fn reports_match_the_schema() {
    assert!(jsonschema::draft202012::meta::is_valid(&schema()));
    let validator = validator();
    for (name, _) in samples::all() {
        let report = sample(name);
        let errors: Vec<_> = validator
            .iter_errors(&report)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{name}");
    }
}

/// The schema refuses what no report may say: each case changes one thing in a good report.
#[test]
fn broken_reports_are_refused() {
    let validator = validator();
    let cases = [
        ("drain", "/schema", json!("drainprof.report/2")),
        ("drain", "/complete", json!(null)),
        ("drain", "/extra", json!(1)),
        ("drain", "/losses/of_patience", json!(1)),
        ("drain", "/losses/ring_full", json!(-1)),
        ("drain", "/window/seconds", json!("10")),
        ("drain", "/targets/0/extra", json!(1)),
        ("drain", "/targets/0/began", json!({"how": "forked"})),
        ("drain", "/targets/0/ended", json!({"how": "exit", "code": 0, "signal": 9})),
        ("drain", "/targets/0/allocators/0/extra", json!(1)),
        ("drain", "/targets/0/allocators/0/dsr", json!(1.5)),
        ("drain", "/targets/0/allocators/0/kind", json!("pool")),
        ("drain", "/targets/0/allocators/0/instance", json!(4096)),
        ("drain", "/targets/0/allocators/0/granules/extra", json!(1)),
        ("drain", "/targets/0/allocators/0/pinned_granules/0/id", json!("12")),
        ("drain", "/targets/0/allocators/0/census", json!({})),
        ("sampled_pages", "/targets/0/allocators/0/sampling/one_in", json!(1)),
        ("sampled_pages", "/targets/0/allocators/0/sampling/estimated/granules_opened", json!(1)),
        ("duty", "/window/duty/on_seconds", json!(0)),
        ("memory", "/pressure/some/avg10", json!(12.5)),
        ("memory", "/targets/0/memory/verdict", json!("leaking")),
        ("memory", "/targets/0/memory/confidence", json!(1.5)),
        ("memory", "/targets/0/memory/last/rss_bytes", json!(-1)),
        ("memory", "/targets/0/memory/last/extra", json!(1)),
        ("memory", "/targets/0/memory/seconds_to_limit", json!(-1.0)),
        ("bulk", "/targets/0/allocators/0/dsr", json!(0.0)),
        ("bulk", "/targets/0/allocators/0/granules/pinned", json!(1)),
        ("slab", "/targets/0/allocators/0/census/occupancy/0/live_to", json!(-1)),
        ("boundary", "/targets/0/allocators/0/retention/granules", json!(0)),
        ("boundary", "/targets/0/allocators/0/retention/verdict", json!("none")),
        ("drain", "/targets/0/allocators/0/retention/verdict", json!("leak")),
        ("drain", "/targets/0/allocators/0/retention/series", json!([[0.5, 3]])),
        ("drain", "/targets/0/allocators/0/sites", json!([])),
        ("stacks", "/targets/0/allocators/0/sites", json!(null)),
        ("stacks", "/targets/0/allocators/0/sites_total", json!(null)),
        ("stacks", "/targets/0/allocators/0/sites/0/extra", json!(1)),
        ("stacks", "/targets/0/allocators/0/sites/0/class", json!("late")),
        ("stacks", "/targets/0/allocators/0/sites/0/path_end", json!("cut")),
        ("stacks", "/targets/0/allocators/0/sites/0/frames/0/address", json!(64)),
        ("drain", "/targets/0/allocators/0/retention/slope_interval", json!([1.0])),
        (
            "boundary",
            "/targets/0/allocators/0/objects",
            sample("drain")["targets"][0]["allocators"][0]["objects"].clone(),
        ),
    ];
    for (name, pointer, value) in cases {
        let mut report = sample(name);
        assert!(validator.is_valid(&report), "{name}");
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        report.pointer_mut(parent).unwrap()[key] = value;
        assert!(!validator.is_valid(&report), "{name} {pointer}");
    }
    for field in ["schema", "complete", "losses", "targets", "self"] {
        let mut report = sample("drain");
        report.as_object_mut().unwrap().remove(field);
        assert!(!validator.is_valid(&report), "without {field}");
    }
}

/// No object of the schema lets unknown fields pass.
#[test]
fn schema_is_closed() {
    let mut closed = 0;
    walk(&schema(), &mut |node| {
        if node.get("type") == Some(&json!("object")) {
            assert_eq!(node.get("additionalProperties"), Some(&json!(false)), "{node}");
            closed += 1;
        }
    });
    assert!(closed > 20, "{closed}");
}

/// The schema names exactly the losses and roles that there are.
#[test]
fn schema_knows_losses_and_roles() {
    let schema = schema();
    let losses = &schema["properties"]["losses"];
    let names: BTreeSet<_> = LOSSES.iter().map(|info| info.name).collect();
    let known: BTreeSet<_> =
        losses["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(known, names);
    let required: BTreeSet<_> =
        losses["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(required, names);
    let roles = &schema["$defs"]["Probe"]["properties"]["role"]["enum"];
    assert_eq!(*roles, json!(Role::ALL.map(Role::name)));
}

/// `docs/report.md` mentions every field of the schema (losses have a page of their own), every
/// finding and every format.
#[test]
fn page_mentions_everything() {
    let page = doc("report.md");
    let mut schema = schema();
    schema["properties"]["losses"]["properties"] = json!({});
    let mut names = BTreeSet::new();
    walk(&schema, &mut |node| {
        if let Some(properties) = node.get("properties").and_then(Value::as_object) {
            names.extend(properties.keys().cloned());
        }
    });
    names.extend(RULES.iter().map(|rule| rule.code.to_owned()));
    names.extend(FORMATS.iter().map(|format| format.name.to_owned()));
    let missing: Vec<_> =
        names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/report.md does not explain {missing:?}");
}

/// Visits a node and all below it.
pub(crate) fn walk(node: &Value, visit: &mut impl FnMut(&Value)) {
    visit(node);
    match node {
        Value::Object(fields) => fields.values().for_each(|field| walk(field, visit)),
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        _ => {}
    }
}
