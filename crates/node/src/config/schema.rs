//! The keys of the configuration, read from the schema that [`Config`] derives.

use std::sync::OnceLock;

use drainprof_report::values::{Bytes, Share, Time};
use schemars::{JsonSchema as _, generate::SchemaSettings};
use serde_json::Value as Json;
use toml::Value;

use super::model::Config;

/// Bytes of a text.
const MAX_TEXT_BYTES: usize = 4096;

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// At a reload.
    AtOnce,
    /// When the daemon starts again.
    Restart,
}

/// A key, or a section of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    schema: &'static Json,
    restart: bool,
}

impl Node {
    /// The configuration as a whole.
    pub(super) fn root() -> Self {
        static SCHEMA: OnceLock<Json> = OnceLock::new();
        let schema = SCHEMA.get_or_init(|| {
            let settings = SchemaSettings::draft2020_12().with(|all| all.inline_subschemas = true);
            Config::json_schema(&mut settings.into_generator()).to_value()
        });
        Self { schema, restart: false }
    }

    /// The key or section of this name.
    pub(super) fn child(self, name: &str) -> Option<Self> {
        let schema = self.schema["properties"].get(name)?;
        Some(Self { schema, restart: self.restart || schema["x-restart"] == true })
    }

    /// The key of this full name.
    pub(super) fn find(path: &str) -> Option<Self> {
        let mut names = path.split('.').filter(|name| !name.is_empty());
        names.try_fold(Self::root(), Self::child)
    }

    /// The names of its keys, in order; none of a key.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        self.schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// Whether it has keys of its own.
    pub(super) fn is_section(self) -> bool {
        self.schema["properties"].is_object()
    }

    /// What it means.
    pub(super) fn about(self) -> String {
        let text = self.schema["description"].as_str().unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// When a changed value takes effect.
    pub(super) const fn applies(self) -> Applies {
        if self.restart { Applies::Restart } else { Applies::AtOnce }
    }

    /// A value as an example, as it is written.
    pub(super) fn example(self) -> Option<&'static str> {
        self.schema["examples"][0].as_str()
    }

    /// What is written, in words.
    pub(super) fn expected(self) -> String {
        expected(self.schema)
    }

    /// The limit of its values, in words.
    pub(super) fn limit(self) -> Option<String> {
        if let Some([low, high]) = range(self.schema) {
            return Some(format!("from {} to {}", plain(&low), plain(&high)));
        }
        Some(format!("at most {} entries", self.schema["maxItems"].as_u64()?))
    }

    /// A value from the text of an environment variable or the command line: TOML where the key is neither a string nor
    /// a list; entries of a list are separated by commas.
    pub(super) fn value(self, text: &str) -> Value {
        let types = &self.schema["type"];
        let is = |name: &str| {
            types == name || types.as_array().is_some_and(|all| all.contains(&name.into()))
        };
        if is("array") && !text.starts_with('[') {
            let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            return Value::Array(entries.map(|entry| Value::String(entry.to_owned())).collect());
        }
        let toml = || format!("value = {text}").parse::<toml::Table>().ok()?.remove("value");
        let bare = ["integer", "boolean", "number", "array"].into_iter().any(is);
        bare.then(toml).flatten().unwrap_or_else(|| Value::String(text.to_owned()))
    }

    /// Why a value is refused that has the right type.
    pub(super) fn check(self, value: &Value) -> Result<(), String> {
        if let (Some([low, high]), Some(size)) = (range(self.schema), rank(self.schema, value))
            && let (Some(least), Some(most)) = (rank(self.schema, &low), rank(self.schema, &high))
            && !(least..=most).contains(&size)
        {
            let (low, high) = (plain(&low), plain(&high));
            return Err(format!("{} is not from {low} to {high}", plain(value)));
        }
        let entries = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        if let Some(most) = self.schema["maxItems"].as_u64()
            && entries.len() as u64 > most
        {
            return Err(format!("{} entries; the limit is {most}", entries.len()));
        }
        for (at, entry) in entries.iter().enumerate() {
            if entries[..at].contains(entry) {
                return Err(format!("entry {} is there twice", at + 1));
            }
            let Some(text) = entry.as_str() else { continue };
            if text.is_empty() || text.len() > MAX_TEXT_BYTES || text.contains(char::is_control) {
                return Err(format!(
                    "the text is empty, longer than {MAX_TEXT_BYTES} bytes, or has control characters"
                ));
            }
        }
        Ok(())
    }

    /// Every section and key with its full name, a section before its keys, in the order of the structs.
    pub(super) fn all() -> Vec<(String, Self)> {
        fn collect(node: Node, path: &str, written: &str, all: &mut Vec<(String, Node)>) {
            let start = written.find(&format!("[{path}]\n")).unwrap_or(0);
            // In a file, a key that follows a section below would belong to that. A schema sorts its keys by name.
            let place = |name: &str, child: Node| {
                let (dot, key) = (join(path, name), format!("\n{name} = "));
                let at = if child.is_section() {
                    written.find(&format!("[{dot}")).unwrap_or(usize::MAX)
                } else {
                    written[start..].find(&key).unwrap_or(usize::MAX)
                };
                (child.is_section(), at)
            };
            let children = node.names().filter_map(|name| Some((name, node.child(name)?)));
            let mut children: Vec<_> = children.collect();
            children.sort_by_key(|(name, child)| place(name, *child));
            for (name, child) in children {
                let path = join(path, name);
                all.push((path.clone(), child));
                collect(child, &path, written, all);
            }
        }
        let written = toml::to_string(&Config::default()).unwrap_or_default();
        let mut all = Vec::new();
        collect(Self::root(), "", &written, &mut all);
        all
    }
}

/// The full name of a key or section in a section; the root has no name.
pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// The names of the values of an enumeration.
fn variants(schema: &Json) -> Vec<String> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"].as_array().into_iter().flatten().map(|one| &one["const"]);
    listed.chain(described).filter(|value| value.is_string()).map(ToString::to_string).collect()
}

fn expected(schema: &Json) -> String {
    let variants = variants(schema);
    if !variants.is_empty() {
        return format!("one of {}", variants.join(", "));
    }
    let format = schema["format"].as_str().unwrap_or_default();
    let kind = schema["type"].as_str().or(schema["type"][0].as_str()).unwrap_or_default();
    match (format, kind) {
        ("time", _) => "a time with its unit: \"500ms\", \"30s\", \"1h 30m\", \"30d\"".to_owned(),
        ("size", _) => "a size: 65536, \"64KiB\", \"16MiB\"".to_owned(),
        ("share", _) => "a share: \"80%\", or 0.8".to_owned(),
        ("path", _) => "an absolute path".to_owned(),
        ("address", _) => "an address and port, or \"off\"".to_owned(),
        ("url", _) => "a URL that begins with http:// or https://".to_owned(),
        (_, "boolean") => "true or false".to_owned(),
        (_, "integer") => "a whole number".to_owned(),
        (_, "number") => "a number".to_owned(),
        (_, "array") => format!("a list, each entry {}", expected(&schema["items"])),
        (_, "object") => {
            let keys = schema["properties"].as_object().into_iter().flatten();
            let keys: Vec<_> = keys.map(|(name, _)| format!("`{name}`")).collect();
            format!("a table with keys of {}", keys.join(", "))
        }
        _ => "a text".to_owned(),
    }
}

/// The lowest and the highest value.
fn range(schema: &Json) -> Option<[Value; 2]> {
    let [low, high] = schema["x-range"].as_array()?.as_slice() else { return None };
    Some([Value::try_from(low).ok()?, Value::try_from(high).ok()?])
}

/// What values of a range compare by.
fn rank(schema: &Json, value: &Value) -> Option<f64> {
    let text = value.as_str();
    let number = value.as_integer().map(|number| number as f64).or(value.as_float());
    match schema["format"].as_str() {
        Some("time") => text.map_or(number, |text| Some(text.parse::<Time>().ok()?.as_seconds())),
        Some("size") => text.map_or(number, |text| Some(text.parse::<Bytes>().ok()?.0 as f64)),
        Some("share") => text.map_or(number, |text| Some(text.parse::<Share>().ok()?.0)),
        _ => number,
    }
}

/// A value as it reads in a sentence.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
