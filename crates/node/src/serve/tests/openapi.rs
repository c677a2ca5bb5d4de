use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{Response, Running, get, get_all, post, post_bare};
use crate::{
    NodeState, Refusal,
    serve::{
        Limits,
        http::{Diagnose, ROUTES, Targets, Windows},
    },
};

/// Where the documents say that they are.
const BASE: &str = "https://github.com/drainprof/drainprof/blob/main/docs/";

fn doc(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The document: its paths are written by hand, its schemas follow the types. Those of the report are in a document of
/// their own.
fn generated() -> Value {
    let settings = || {
        SchemaSettings::draft2020_12()
            .with(|all| all.definitions_path = "/components/schemas".into())
    };
    let mut answers = settings().for_serialize().into_generator();
    answers.subschema_for::<NodeState>();
    answers.subschema_for::<Targets>();
    answers.subschema_for::<Windows>();
    answers.subschema_for::<Refusal>();
    let mut requests = settings().for_deserialize().into_generator();
    requests.subschema_for::<Diagnose>();
    let mut schemas: BTreeMap<_, _> = answers.take_definitions(true).into_iter().collect();
    schemas.extend(requests.take_definitions(true));
    schemas.insert("Report".to_owned(), json!({ "$ref": "report.schema.json" }));
    for (name, schema) in &mut schemas {
        // A document of another version may say more; this one says what this version does.
        if name != "Report" && schema["properties"].is_object() {
            schema["additionalProperties"] = false.into();
        }
    }
    let mut api = doc("openapi.json");
    api["components"]["schemas"] = json!(schemas);
    api
}

/// The document's schemas are those of the types (`UPDATE_DOCS=1` renews it).
#[test]
fn schemas_are_fresh() {
    let text = serde_json::to_string_pretty(&generated()).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let fresh = std::fs::read_to_string(&path).unwrap() == text;
    assert!(fresh, "docs/openapi.json is stale: run with UPDATE_DOCS=1");
}

/// The schemas refer to those of the report.
struct Docs;

impl jsonschema::Retrieve for Docs {
    fn retrieve(
        &self,
        uri: &jsonschema::Uri<String>,
    ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        match uri.as_str().strip_prefix(BASE) {
            Some(name) => Ok(doc(name)),
            None => Err(format!("{uri} is none of our documents").into()),
        }
    }
}

/// A validator for a schema that stands in the document.
fn validator(api: &Value, schema: &Value) -> jsonschema::Validator {
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("{BASE}openapi.json"),
        "allOf": [schema],
        "components": api["components"],
    });
    jsonschema::options().with_retriever(Docs).build(&whole).unwrap()
}

/// The documented paths are those that are served, by method.
#[test]
fn all_routes_are_documented() {
    let api = doc("openapi.json");
    let mut documented = BTreeSet::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            documented.insert((method.clone(), path.clone()));
        }
    }
    let served: BTreeSet<_> =
        ROUTES.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(documented, served);
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md"))
            .unwrap();
    for (_, path) in ROUTES {
        assert!(page.contains(&format!("`{path}`")), "docs/api.md does not tell of {path}");
    }
}

/// Checks that an answer is what the document promises of its status.
fn check(api: &Value, (method, route): (&str, &str), response: &Response) {
    let status = response.status.to_string();
    let promised = &api["paths"][route][method]["responses"][status]["content"];
    let kinds = promised.as_object().unwrap_or_else(|| panic!("{route}: {}", response.status));
    let kind = kinds.keys().find(|kind| response.head.contains(&format!("content-type: {kind}")));
    let kind = kind.unwrap_or_else(|| panic!("{route}: {}", response.head));
    if kind == "application/json" {
        let validator = validator(api, &promised[kind]["schema"]);
        let value = response.json();
        let errors: Vec<_> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{route}");
    }
}

/// Every route gives what the document promises: its status, its type, and JSON of its schema.
#[tokio::test]
async fn responses_match_the_document() {
    let api = doc("openapi.json");
    let running = Running::start(Limits::default(), None, true);
    let mut seen = BTreeSet::new();
    for (method, route, path, body, status) in [
        ("get", "/metrics", "/metrics", "", 200),
        ("get", "/healthz", "/healthz", "", 200),
        ("get", "/readyz", "/readyz", "", 200),
        ("get", "/status", "/status", "", 200),
        ("get", "/api/v1/state", "/api/v1/state", "", 200),
        ("get", "/api/v1/targets", "/api/v1/targets", "", 200),
        ("get", "/api/v1/targets/{pid}/report", "/api/v1/targets/4242/report", "", 200),
        ("get", "/api/v1/targets/{pid}/report", "/api/v1/targets/1/report", "", 404),
        ("get", "/api/v1/targets/{pid}/report", "/api/v1/targets/99999999999/report", "", 404),
        ("get", "/api/v1/targets/{pid}/history", "/api/v1/targets/4242/history", "", 200),
        ("get", "/api/v1/targets/{pid}/history", "/api/v1/targets/1/history", "", 404),
        ("get", "/api/v1/targets/{pid}/history", "/api/v1/targets/4242/history?from=x", "", 422),
        ("get", "/api/v1/windows", "/api/v1/windows?limit=1", "", 200),
        ("get", "/api/v1/windows/{id}/report", "/api/v1/windows/7/report", "", 200),
        ("get", "/api/v1/windows/{id}/report", "/api/v1/windows/x/report", "", 404),
        ("post", "/api/v1/diagnose", "", r#"{"pid":4242}"#, 200),
        ("post", "/api/v1/diagnose", "", r#"{"pid":4242,"seconds":5,"growth":true}"#, 200),
        ("post", "/api/v1/diagnose", "", r#"{"pid":4242,"growth":"yes"}"#, 422),
        ("post", "/api/v1/diagnose", "", r#"{"pid":1}"#, 503),
        ("post", "/api/v1/diagnose", "", "[", 400),
        ("post", "/api/v1/diagnose", "", "{}", 422),
    ] {
        let response = match method {
            "get" => get_all(running.http, path).await,
            _ => post(running.http, "", body).await,
        };
        assert_eq!(response.status, status, "{path}: {response:?}");
        check(&api, (method, route), &response);
        if status == 200 {
            seen.insert((method, route));
        }
    }
    assert_eq!(seen, ROUTES.iter().copied().collect());
    // Everybody may read the same documents, but no report.
    for (route, path, status) in [
        ("/status", "/status", 200),
        ("/api/v1/state", "/api/v1/state", 200),
        ("/api/v1/targets", "/api/v1/targets", 200),
        ("/api/v1/targets/{pid}/history", "/api/v1/targets/4242/history", 200),
        ("/api/v1/windows", "/api/v1/windows", 200),
        ("/api/v1/targets/{pid}/report", "/api/v1/targets/4242/report", 401),
        ("/api/v1/windows/{id}/report", "/api/v1/windows/7/report", 401),
    ] {
        let response = get(running.http, path).await;
        assert_eq!(response.status, status, "{path}: {response:?}");
        check(&api, ("get", route), &response);
    }
    let refused = post_bare(running.http, "", r#"{"pid":4242}"#).await;
    assert_eq!(refused.status, 401);
    check(&api, ("post", "/api/v1/diagnose"), &refused);
    // The schemas refuse what they should: each case spoils one thing.
    let schema = json!({ "$ref": "#/components/schemas/NodeState" });
    let validator = validator(&api, &schema);
    let good = get(running.http, "/api/v1/state").await.json();
    for (pointer, value) in [
        ("/schema", json!("drainprof.node/2")),
        ("/targets/0/level", json!("deep")),
        ("/targets/0/allocators/0/kind", json!("arena")),
        ("/counts/0/opened", json!(-1)),
        ("/windows/0/outcome", json!("done")),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!validator.is_valid(&bad), "{pointer}");
    }
    assert_eq!(get(running.http, "/nowhere").await.status, 404);
    assert_eq!(get(running.http, "/api/v1/diagnose").await.status, 405);
    running.stop().await;
}
