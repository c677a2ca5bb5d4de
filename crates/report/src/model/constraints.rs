//! What the schema of a report says beyond its types.

use drainprof_common::{
    loss::{LOSSES, Loss},
    spec::Role,
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

pub(super) fn role(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": Role::ALL.map(Role::name) })
}

/// All of them, and no other.
pub(super) fn losses(_: &mut SchemaGenerator) -> Schema {
    let unmatched = Loss::UnmatchedFree.info().name;
    // A sample cannot tell which frees are unmatched.
    let property = |name: &str| {
        let kind = if name == unmatched { json!(["integer", "null"]) } else { json!("integer") };
        json!({ "type": kind, "minimum": 0 })
    };
    let properties: serde_json::Map<String, Value> =
        LOSSES.iter().map(|info| (info.name.to_owned(), property(info.name))).collect();
    let names: Vec<&str> = LOSSES.iter().map(|info| info.name).collect();
    json_schema!({ "type": "object", "properties": properties, "required": names })
}

/// What an allocator's kind and level leave out.
pub(super) fn allocator() -> Value {
    let null = json!({ "type": "null" });
    let nulls = |names: &[&str]| -> Value {
        names.iter().map(|name| ((*name).to_owned(), null.clone())).collect()
    };
    let with = |mut fields: Value, name: &str, value: Value| {
        fields[name] = value;
        fields
    };
    let rule = |if_: Value, then: Value| json!({ "if": { "properties": if_ }, "then": { "properties": then } });
    let retained = ["granules", "bytes", "late_drained", "left_granules", "left_bytes"];
    let trend = ["series", "slope_granules_per_second", "verdict", "forecast_bytes_per_day"];
    let boundary =
        with(nulls(&["objects", "census"]), "retention", json!({ "properties": nulls(&retained) }));
    let without_verdict = with(
        nulls(&["dsr"]),
        "granules",
        json!({ "properties": { "drainable": { "const": 0 }, "pinned": { "const": 0 } } }),
    );
    json!([
        rule(
            json!({ "level": { "const": "stacks" } }),
            json!({ "sites": { "type": "array" }, "sites_total": { "type": "integer" } }),
        ),
        rule(
            json!({ "level": { "enum": ["close", "boundary", "objects"] } }),
            nulls(&["sites", "sites_total"])
        ),
        rule(json!({ "kind": { "enum": ["bulk", "slab"] } }), without_verdict),
        rule(json!({ "level": { "enum": ["close", "boundary"] } }), boundary),
        rule(
            json!({ "kind": { "const": "drain" }, "level": { "enum": ["close", "boundary"] } }),
            json!({ "retention": { "properties": nulls(&trend) } }),
        ),
        rule(
            json!({ "level": { "const": "close" } }),
            json!({ "retention": { "properties": nulls(&trend) } }),
        ),
        rule(json!({ "kind": { "enum": ["drain", "bulk"] } }), nulls(&["census"])),
    ])
}
