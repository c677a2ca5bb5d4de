//! Kinds of allocators by name: for serde and schemas.

pub use drainprof_common::spec::Kind;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(crate) fn serialize<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
    let name = String::deserialize(from)?;
    drainprof_profile::KINDS
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| D::Error::unknown_variant(&name, &["drain", "bulk", "slab"]))
}

pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["drain", "bulk", "slab"] })
}
