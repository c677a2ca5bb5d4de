//! The tables of a profile as they are written, and what all of them read alike: lists, names, symbols, build ids.

use std::{
    collections::BTreeMap,
    fmt::{self, Formatter},
};

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::{
    address,
    error::{ProfileError, Text},
    keys::Key,
    model::{Address, Span},
};

/// Entries that a line of `[match]` can have.
pub const MAX_MATCHES: usize = 64;
/// Bytes that a profile's name can have.
pub const MAX_NAME_BYTES: usize = 64;

/// A probe's table as it is written; `check` examines where its keys stand.
pub(super) struct RawProbe {
    pub(super) role: Spanned<String>,
    pub(super) at: Spanned<String>,
    pub(super) one_of: Option<Spanned<String>>,
    pub(super) version: Option<Spanned<OneOrMany>>,
    pub(super) phase: Option<Spanned<String>>,
    pub(super) unshared: Option<Spanned<bool>>,
    pub(super) expressions: BTreeMap<Key, Spanned<String>>,
}

impl RawProbe {
    /// Where the key's expression stands.
    pub(super) fn place(&self, key: Key) -> Option<Span> {
        self.expressions.get(&key).map(Spanned::span)
    }
}

impl<'de> Deserialize<'de> for RawProbe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawProbeVisitor)
    }
}

struct RawProbeVisitor;

impl<'de> de::Visitor<'de> for RawProbeVisitor {
    type Value = RawProbe;

    fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("the table of a probe")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut role, mut at, mut one_of, mut version) = (None, None, None, None);
        let (mut phase, mut unshared, mut expressions) = (None, None, BTreeMap::new());
        while let Some(key) = map.next_key()? {
            match key {
                Key::Role => role = Some(map.next_value()?),
                Key::At => at = Some(map.next_value()?),
                Key::OneOf => one_of = Some(map.next_value()?),
                Key::Version => version = Some(map.next_value()?),
                Key::Phase => phase = Some(map.next_value()?),
                Key::Unshared => unshared = Some(map.next_value()?),
                key => drop(expressions.insert(key, map.next_value()?)),
            }
        }
        let missing = |key: Key| de::Error::missing_field(key.name());
        Ok(RawProbe {
            role: role.ok_or_else(|| missing(Key::Role))?,
            at: at.ok_or_else(|| missing(Key::At))?,
            one_of,
            version,
            phase,
            unshared,
            expressions,
        })
    }
}

/// A string, or an array of strings.
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<Spanned<String>>),
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

/// serde's own `untagged` would forget places and expectations.
struct OneOrManyVisitor;

impl<'de> de::Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("a string or an array of strings")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(OneOrMany::One(text.to_owned()))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(text) = seq.next_element()? {
            all.push(text);
        }
        Ok(OneOrMany::Many(all))
    }
}

/// A name, if it can be one; `what` it is for stands in the error.
pub(super) fn name(
    place: Text<'_>,
    raw: &Spanned<String>,
    what: &str,
) -> Result<String, ProfileError> {
    let name = raw.get_ref();
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = name.len() <= MAX_NAME_BYTES
        && name.bytes().next().is_some_and(is_word)
        && name.bytes().all(|byte| is_word(byte) || byte == b'-' || byte == b'_');
    if fits {
        return Ok(name.clone());
    }
    Err(place.fail(raw.span().start, format!("`{name}` cannot be {what}")).with_hint(
        format!("expected a-z, 0-9, `-` and `_`, beginning with a letter or digit, at most {MAX_NAME_BYTES} bytes"),
    ))
}

/// An address that says something about an object by being in it.
pub(super) fn symbol(text: &str) -> Result<Address, String> {
    match address::parse(text)? {
        Address::Offset(_) => Err("an offset is not a symbol; use `build_id`".to_owned()),
        found => Ok(found),
    }
}

/// A build id, in lower case.
pub(super) fn build(text: &str) -> Result<String, String> {
    let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex && text.len().is_multiple_of(2) && (2..=128).contains(&text.len()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("expected a build id in hexadecimal, found `{text}`"))
    }
}

/// One line of `[match]`, every entry read by `read`.
pub(super) fn line<T>(
    place: Text<'_>,
    raw: Option<&Spanned<OneOrMany>>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, ProfileError> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    let read_at =
        |text: &str, span: Span| read(text).map_err(|message| place.fail(span.start, message));
    match raw.get_ref() {
        OneOrMany::One(text) => Ok(vec![read_at(text, raw.span())?]),
        OneOrMany::Many(all) if all.is_empty() || all.len() > MAX_MATCHES => {
            let message = format!("{} entries", all.len());
            let error = place.fail(raw.span().start, message);
            Err(error.with_hint(format!("expected 1 to {MAX_MATCHES}")))
        }
        OneOrMany::Many(all) => {
            all.iter().map(|text| read_at(text.get_ref(), text.span())).collect()
        }
    }
}
