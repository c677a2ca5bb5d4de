//! JSON Schemas of reports and comparisons, made from their types. Doc comments become descriptions.

use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::transform_subschemas};
use serde_json::{Value, json};

use super::{Report, SCHEMA, diff, why};

/// Shares: numbers from 0 to 1.
const SHARES: [&str; 7] = ["dsr", "share", "r_squared", "confidence", "avg10", "avg60", "avg300"];
/// Addresses and ids as text.
const ADDRESSES: [&str; 5] = ["parent", "place", "address", "instance", "module_offset"];

/// The schema of a report.
#[must_use]
pub fn report_schema() -> Value {
    schema::<Report>(SCHEMA, "report.schema.json")
}

/// The schema of a comparison.
#[must_use]
pub fn diff_schema() -> Value {
    schema::<diff::Diff>(diff::DIFF_SCHEMA, "diff.schema.json")
}

/// The schema of a census of heaps.
#[must_use]
pub fn census_schema() -> Value {
    schema::<drainprof_census::Census>(drainprof_census::SCHEMA, "census.schema.json")
}

/// The schema of an answer of `drainprof why`.
#[must_use]
pub fn why_schema() -> Value {
    schema::<why::Why>(why::SCHEMA, "why.schema.json")
}

fn schema<T: JsonSchema>(title: &str, file: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(refine);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    let id = format!("https://github.com/drainprof/drainprof/blob/main/docs/{file}");
    schema.insert("$id".to_owned(), id.into());
    schema.to_value()
}

/// Closes objects, and adds the limits that follow from a field's name.
fn refine(schema: &mut Schema) {
    transform_subschemas(&mut refine, schema);
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`");
    }
    if fields.get("type") != Some(&json!("object")) {
        return;
    }
    fields.insert("additionalProperties".to_owned(), json!(false));
    let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        let Some(property) = property.as_object_mut() else { continue };
        property.retain(|key, _| key != "format" && key != "default");
        let kind = property.get("type").map(Value::to_string).unwrap_or_default();
        let is_share = SHARES.contains(&name.as_str());
        if kind.contains("\"number\"") && (is_share || name.contains("seconds")) {
            property.insert("minimum".to_owned(), json!(0));
            if is_share {
                property.insert("maximum".to_owned(), json!(1));
            }
        }
        if kind.contains("\"string\"") && ADDRESSES.contains(&name.as_str()) {
            property.insert("pattern".to_owned(), json!("^0x[0-9a-f]+$"));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
