//! The same profile as OpenTelemetry's profiles have it (`v1development`): one dictionary, and one profile for each kind of
//! numbers.

use std::collections::{BTreeMap, HashMap};

use opentelemetry_proto::tonic::{
    collector::profiles::v1development::ExportProfilesServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    profiles::v1development::{
        Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary,
        ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
    },
    resource::v1::Resource,
};
use prost::Message as _;

use super::proto;
use crate::Report;

/// Between values of one key: an attribute has one.
const BETWEEN: &str = ", ";

/// The body of a request to a collector: the call paths of a report that began then, in nanoseconds since 1970.
/// `resource`: what its process is, by OpenTelemetry's names.
#[must_use]
pub fn otlp_profiles(report: &Report, resource: &[(&str, &str)], began: u64) -> Vec<u8> {
    let from = super::profile(report);
    let mut dictionary = Dictionary::new(&from);
    let stacks: Vec<(i32, Vec<i32>)> = from
        .sample
        .iter()
        .map(|sample| (dictionary.stack(&sample.location_id), dictionary.labels(&sample.label)))
        .collect();
    let complete = dictionary.attribute("drainprof.complete", Value::BoolValue(report.complete));
    let profiles = from.sample_type.iter().enumerate().map(|(index, kind)| Profile {
        sample_type: Some(ValueType {
            type_strindex: small(kind.kind),
            unit_strindex: small(kind.unit),
        }),
        samples: stacks
            .iter()
            .zip(&from.sample)
            .filter_map(|((stack_index, labels), sample)| {
                let value = *sample.value.get(index).filter(|value| **value > 0)?;
                Some(Sample {
                    stack_index: *stack_index,
                    attribute_indices: labels.clone(),
                    values: vec![value],
                    ..Sample::default()
                })
            })
            .collect(),
        time_unix_nano: began,
        duration_nano: from.duration_nanos.try_into().unwrap_or_default(),
        attribute_indices: vec![complete],
        ..Profile::default()
    });
    let scope_profiles = ScopeProfiles {
        scope: Some(InstrumentationScope {
            name: report.tool.name.clone(),
            version: report.tool.version.clone(),
            ..InstrumentationScope::default()
        }),
        profiles: profiles.collect(),
        schema_url: String::new(),
    };
    let attributes = resource.iter().map(|(key, value)| KeyValue {
        key: (*key).to_owned(),
        value: Some(any(Value::StringValue((*value).to_owned()))),
        ..KeyValue::default()
    });
    let resource = Resource { attributes: attributes.collect(), ..Resource::default() };
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![scope_profiles],
            schema_url: String::new(),
        }],
        dictionary: Some(dictionary.tables),
    }
    .encode_to_vec()
}

/// The tables, of which each begins with an entry that means none. Numbers of pprof are places in them: it counts from 1.
struct Dictionary {
    tables: ProfilesDictionary,
    stacks: HashMap<Vec<u64>, i32>,
    /// By key and text.
    attributes: HashMap<(i32, String), i32>,
}

impl Dictionary {
    fn new(from: &proto::Profile) -> Self {
        let mut new = Self {
            tables: ProfilesDictionary {
                string_table: from.string_table.clone(),
                link_table: vec![Link::default()],
                attribute_table: vec![KeyValueAndUnit::default()],
                stack_table: vec![Stack::default()],
                ..ProfilesDictionary::default()
            },
            stacks: HashMap::new(),
            attributes: HashMap::new(),
        };
        let mut mappings = vec![Mapping::default()];
        for mapping in &from.mapping {
            let build_id = new.text(mapping.build_id);
            let known = (!build_id.is_empty()).then(|| {
                new.attribute("process.executable.build_id.gnu", Value::StringValue(build_id))
            });
            mappings.push(Mapping {
                memory_start: mapping.memory_start,
                memory_limit: mapping.memory_limit,
                filename_strindex: small(mapping.filename),
                attribute_indices: known.into_iter().collect(),
                ..Mapping::default()
            });
        }
        let functions = from.function.iter().map(|function| Function {
            name_strindex: small(function.name),
            system_name_strindex: small(function.system_name),
            filename_strindex: small(function.filename),
            ..Function::default()
        });
        let line = |line: &proto::Line| Line {
            function_index: place(line.function_id),
            line: line.line,
            ..Line::default()
        };
        let locations = from.location.iter().map(|location| Location {
            mapping_index: place(location.mapping_id),
            address: location.address,
            lines: location.line.iter().map(line).collect(),
            ..Location::default()
        });
        new.tables.mapping_table = mappings;
        new.tables.function_table = std::iter::once(Function::default()).chain(functions).collect();
        new.tables.location_table = std::iter::once(Location::default()).chain(locations).collect();
        new
    }

    fn text(&self, number: i64) -> String {
        let at = usize::try_from(number).unwrap_or_default();
        self.tables.string_table.get(at).cloned().unwrap_or_default()
    }

    fn stack(&mut self, path: &[u64]) -> i32 {
        if let Some(&known) = self.stacks.get(path) {
            return known;
        }
        let number = count(&self.tables.stack_table);
        let location_indices = path.iter().map(|id| place(*id)).collect();
        self.tables.stack_table.push(Stack { location_indices });
        self.stacks.insert(path.to_vec(), number);
        number
    }

    fn labels(&mut self, labels: &[proto::Label]) -> Vec<i32> {
        let mut texts: BTreeMap<i64, String> = BTreeMap::new();
        for label in labels {
            let text = self.text(label.str);
            texts
                .entry(label.key)
                .and_modify(|all| {
                    all.push_str(BETWEEN);
                    all.push_str(&text);
                })
                .or_insert(text);
        }
        texts
            .into_iter()
            .map(|(key, text)| self.entry(small(key), Value::StringValue(text)))
            .collect()
    }

    /// An attribute of our own.
    fn attribute(&mut self, key: &str, value: Value) -> i32 {
        let known = self.tables.string_table.iter().position(|own| own == key);
        let number = known.map_or_else(
            || count(&self.tables.string_table),
            |at| i32::try_from(at).unwrap_or_default(),
        );
        if known.is_none() {
            self.tables.string_table.push(key.to_owned());
        }
        self.entry(number, value)
    }

    fn entry(&mut self, key_strindex: i32, value: Value) -> i32 {
        let key = (key_strindex, format!("{value:?}"));
        if let Some(&known) = self.attributes.get(&key) {
            return known;
        }
        let number = count(&self.tables.attribute_table);
        self.tables.attribute_table.push(KeyValueAndUnit {
            key_strindex,
            value: Some(any(value)),
            unit_strindex: 0,
        });
        self.attributes.insert(key, number);
        number
    }
}

const fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

/// The number that the next entry gets.
fn count<T>(table: &[T]) -> i32 {
    i32::try_from(table.len()).unwrap_or(i32::MAX)
}

/// A number of a string; what does not fit is the empty one.
fn small(number: i64) -> i32 {
    i32::try_from(number).unwrap_or_default()
}

/// A number of an entry; what does not fit is none.
fn place(id: u64) -> i32 {
    i32::try_from(id).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, samples};

    /// By the published definition: every index leads to what pprof has there, and numbers add up to the same.
    #[test]
    fn the_same_as_pprof() {
        let report = Report::build(&samples::stacks_snapshot(), &Options::default());
        let from = super::super::profile(&report);
        let bytes = otlp_profiles(&report, &[("service.name", "svc")], 7_000_000_000);
        let sent = ExportProfilesServiceRequest::decode(bytes.as_slice()).unwrap();
        let tables = sent.dictionary.unwrap();
        let text = |index: i32| tables.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!((text(0), &tables.stack_table[0]), ("", &Stack::default()));
        assert_eq!(tables.mapping_table[0], Mapping::default());
        assert_eq!(tables.function_table[0], Function::default());
        assert_eq!(tables.location_table[0], Location::default());
        let profiles = &sent.resource_profiles[0].scope_profiles[0].profiles;
        assert_eq!(profiles.len(), from.sample_type.len());
        let names = |path: &[i32]| -> Vec<String> {
            let lines = path
                .iter()
                .flat_map(|at| tables.location_table[usize::try_from(*at).unwrap()].lines.iter());
            lines
                .map(|line| {
                    let at = usize::try_from(line.function_index).unwrap();
                    text(tables.function_table[at].name_strindex).to_owned()
                })
                .collect()
        };
        for (index, profile) in profiles.iter().enumerate() {
            let kind = profile.sample_type.unwrap();
            let expected =
                from.string_table[usize::try_from(from.sample_type[index].kind).unwrap()].as_str();
            assert_eq!(text(kind.type_strindex), expected);
            assert_eq!(
                (profile.time_unix_nano, profile.samples.is_empty()),
                (7_000_000_000, false)
            );
            let sum: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
            assert_eq!(sum, from.sample.iter().map(|sample| sample.value[index]).sum::<i64>());
            for sample in &profile.samples {
                let stack = usize::try_from(sample.stack_index).unwrap();
                assert!(!names(&tables.stack_table[stack].location_indices).is_empty());
                let mut keys: Vec<i32> = sample
                    .attribute_indices
                    .iter()
                    .map(|at| tables.attribute_table[usize::try_from(*at).unwrap()].key_strindex)
                    .collect();
                let all = keys.len();
                keys.sort_unstable();
                keys.dedup();
                assert_eq!(keys.len(), all, "each key once");
            }
        }
        let all: Vec<String> =
            tables.stack_table.iter().flat_map(|stack| names(&stack.location_indices)).collect();
        assert!(all.iter().any(|name| name == "make_session"), "{all:?}");
    }
}
