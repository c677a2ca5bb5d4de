//! What was saved is read back as it was; what is no report is refused, in bounded time and memory.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Options, samples};

/// All samples, those with sites too.
fn reports() -> Vec<(&'static str, Report)> {
    samples::all()
        .into_iter()
        .map(|(name, snapshot)| (name, Report::build(&snapshot, &Options::default())))
        .chain(samples::saved())
        .collect()
}

fn refused(text: &str) -> String {
    let error = read(text.as_bytes()).unwrap_err();
    match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// A document, indented or not, and the last line of a stream are the report that was written, to the last
/// digit.
#[test]
fn what_was_saved_is_read_back() {
    for (name, report) in reports() {
        let pretty = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(read(pretty.as_bytes()).unwrap(), report, "{name}");
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(read(line.as_bytes()).unwrap(), report, "{name}");
        let stream = format!(
            "{{\"record\":\"interval\",\"time\":\"12:00:01\"}}\n{{\"record\":\"exit\"}}\n\
             {{\"record\":\"report\",\"report\":{line}}}\n\n"
        );
        assert_eq!(read(stream.as_bytes()).unwrap(), report, "{name}");
        let dos = format!("\u{feff}{}\r\n", pretty.replace('\n', "\r\n"));
        assert_eq!(read(dos.as_bytes()).unwrap(), report, "{name}");
    }
}

/// The reports that the documentation works with are the samples (`UPDATE_DOCS=1` rewrites them).
#[test]
fn examples_are_fresh() {
    for (name, report) in samples::saved() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/examples")
            .join(format!("{name}.json"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = serde_json::to_string(&report).unwrap() + "\n";
            std::fs::write(&path, text).unwrap();
        }
        let saved = read(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(saved, report, "{} is stale: run with UPDATE_DOCS=1", path.display());
    }
}

/// A report of the first version lacks what came later; that is null.
#[test]
fn reports_of_the_first_version() {
    let mut value = serde_json::to_value(samples::before()).unwrap();
    let drop = |node: &mut Value, fields: &[&str]| {
        let fields_of = node.as_object_mut().unwrap();
        for field in fields {
            assert!(fields_of.remove(*field).is_some(), "{field}");
        }
    };
    drop(&mut value, &["symbols"]);
    drop(&mut value["window"], &["duty"]);
    let allocator = &mut value["targets"][0]["allocators"][0];
    drop(allocator, &["sampling", "sites", "sites_total"]);
    drop(&mut allocator["granules"], &["left_open", "migrated", "ended_with_parent"]);
    drop(&mut allocator["objects"], &["left", "left_bytes", "migrated"]);
    drop(
        &mut allocator["retention"],
        &[
            "left_granules",
            "left_bytes",
            "series",
            "slope_granules_per_second",
            "slope_bytes_per_second",
            "slope_interval",
            "r_squared",
            "verdict",
            "verdict_reason",
            "forecast_bytes_per_day",
        ],
    );
    let names = ["function", "offset", "file", "line", "module", "module_offset", "inlined"];
    drop(&mut allocator["lifetimes"]["places"][0], &names);
    drop(&mut allocator["pinned_granules"][0], &["opened_by"]);
    value["losses"].as_object_mut().unwrap().remove("index_raced");
    let report = read(value.to_string().as_bytes()).unwrap();
    let allocator = &report.targets[0].allocators[0];
    assert_eq!((&allocator.sites, allocator.retention.verdict), (&None, None));
    assert_eq!(allocator.dsr, samples::before().targets[0].allocators[0].dsr);
}

/// Fields that a later version has added are left out.
#[test]
fn later_fields_are_left_out() {
    let mut value = serde_json::to_value(samples::before()).unwrap();
    value["mood"] = json!({"of": ["the", {"day": 1}]});
    value["targets"][0]["allocators"][0]["sites"][0]["colour"] = json!("red");
    assert_eq!(read(value.to_string().as_bytes()).unwrap(), samples::before());
}

/// Other documents, streams without an end, and what is no JSON are refused with what was found.
#[test]
fn others_are_refused() {
    let mut later = serde_json::to_value(samples::before()).unwrap();
    later["schema"] = json!("drainprof.report/2\u{1b}");
    let message = refused(&later.to_string());
    assert!(message.contains("`drainprof.report/2\\u{1b}`"), "{message}");
    let record = json!({"record": "report", "report": later}).to_string();
    assert_eq!(refused(&record), message);
    let cases = [
        ("", "it is empty"),
        (" \n\t", "it is empty"),
        ("{}", "no `schema`"),
        ("{\"schema\": \"drainprof.plan/1\"}", "`drainprof.plan/1`"),
        ("{\"schema\": 7}", "invalid type"),
        ("{\"schema\": \"drainprof.report/1\"}", "missing field `tool`"),
        ("[1, 2]", "no `schema`"),
        ("[\"drainprof.report/1\"]", "no `schema`"),
        ("hello", "expected value at line 1"),
        ("{\"record\":\"interval\"}\n{\"record\":\"exit\"}", "its last record is `exit`"),
        ("{\"record\":\"interval\"}\n{\"record\":\"rep", "cut off"),
        ("{\"record\":\"interval\"}\ngarbage", "cut off"),
        ("{\"record\":\"report\"}", "its last record is `report`"),
        ("{\"record\":\"report\",\"report\":{}}", "no `schema`"),
    ];
    for (text, part) in cases {
        let message = refused(text);
        assert!(message.contains(part), "{text}: {message}");
    }
    let binary = read(b"\x1f\x8b\x08").unwrap_err();
    assert!(matches!(binary, StoredError::NotText(1)), "{binary}");
}

/// A document that was cut off anywhere is refused; none is taken for another report.
#[test]
fn truncated_documents_are_refused() {
    let text = serde_json::to_string(&samples::before()).unwrap();
    for end in (0..text.len()).step_by(97) {
        assert!(read(&text.as_bytes()[..end]).is_err(), "{end}");
    }
}

/// Numbers beyond their type, and depth beyond reason, are errors.
#[test]
fn numbers_and_depth() {
    let text = serde_json::to_string(&samples::before()).unwrap();
    for (good, bad, part) in [
        ("\"opened\":10000", "\"opened\":18446744073709551616", "invalid type: floating point"),
        ("\"opened\":10000", "\"opened\":-1", "invalid value"),
        ("\"opened\":10000", "\"opened\":\"10000\"", "invalid type: string"),
        ("\"seconds\":10.0", "\"seconds\":1e999", "number out of range"),
        ("\"seconds\":10.0", "\"seconds\":NaN", "expected value"),
    ] {
        assert!(text.contains(good));
        let message = refused(&text.replacen(good, bad, 1));
        assert!(message.contains(part), "{bad}: {message}");
    }
    // Where nothing is examined, depth is skipped without recursion; where something is, it is bounded.
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(read(text.replacen('{', &format!("{{\"x\":{deep},"), 1).as_bytes()).is_ok());
    let frame = text.replacen("\"address\":", &format!("\"x\":{deep},\"address\":"), 1);
    assert!(refused(&frame).contains("recursion limit"));
    assert!(refused(&"{\"a\":".repeat(1_000_000)).contains("EOF"));
}

/// A small text that stands for more than can be built is refused before anything is.
#[test]
fn what_would_grow_is_refused() {
    let text = serde_json::to_string(&samples::before()).unwrap();
    let frames = format!("\"frames\":[{}{{}}]", "{},".repeat(3_000_000));
    let start = text.find("\"frames\":[").unwrap();
    let end = start + text[start..].find("}]").unwrap() + 2;
    let grown = format!("{}{frames}{}", &text[..start], &text[end..]);
    assert!(refused(&grown).contains("more than 2000000 objects"));
    let sites =
        format!("{{\"schema\":\"drainprof.report/1\",\"x\":[{}0]}}", "0,".repeat(33_000_000));
    assert!(refused(&sites).contains("more than 32000000 members"));
    // A million sites that are not even sites fail at the first.
    let start = text.find("\"sites\":[").unwrap() + 9;
    let many = format!("{}{}{}", &text[..start], "{},".repeat(1_000_000), &text[start..]);
    assert!(refused(&many).contains("missing field"));
    let large = vec![b' '; MOST_BYTES + 1];
    assert!(matches!(read(&large), Err(StoredError::TooLarge)));
}

/// The scalar at some place of the tree is changed; whether any was.
fn change(node: &mut Value, at: &mut usize, value: &Value) -> bool {
    match node {
        Value::Array(items) => items.iter_mut().any(|item| change(item, at, value)),
        Value::Object(fields) => fields.values_mut().any(|field| change(field, at, value)),
        scalar => {
            let here = *at == 0;
            if here {
                scalar.clone_from(value);
            }
            *at = at.wrapping_sub(1);
            here
        }
    }
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        any::<String>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ]
}

proptest! {
    /// Whatever is changed in a report: if it is still read, then writing and reading it again changes nothing.
    #[test]
    fn reading_is_stable(
        which in 0usize..12,
        changes in prop::collection::vec((0usize..800, scalar()), 1..6),
    ) {
        let reports = reports();
        let mut value = serde_json::to_value(&reports[which % reports.len()].1).unwrap();
        for (mut at, scalar) in changes {
            change(&mut value, &mut at, &scalar);
        }
        if let Ok(report) = read(value.to_string().as_bytes()) {
            let text = serde_json::to_string(&report).unwrap();
            let again = read(text.as_bytes()).unwrap();
            prop_assert_eq!(&again, &report);
            prop_assert_eq!(serde_json::to_string(&again).unwrap(), text);
        }
    }

    /// Bytes of any kind are refused or read, and never end the reader.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read(&bytes).is_err());
    }
}
