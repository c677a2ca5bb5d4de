//! `[versions]`: named guards, by which one profile describes versions of an allocator that differ.
//!
//! A probe that names a guard (`version = "v16"`) goes only into objects in which every line of that guard holds; `plan`
//! finds out where. `[not_measurable]` guards whole builds in the same way. Called by `parse`.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{
    error::{ProfileError, Text},
    model::{NotMeasurable, Profile, Span, Version},
    raw::{MAX_MATCHES, MAX_NAME_BYTES, OneOrMany, RawProbe, build, line, symbol},
};

/// One guard as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawVersion {
    symbols: Option<Spanned<OneOrMany>>,
    no_symbols: Option<Spanned<OneOrMany>>,
    build_id: Option<Spanned<OneOrMany>>,
}

/// A guard of builds that cannot be measured, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNotMeasurable {
    symbols: Option<Spanned<OneOrMany>>,
    no_symbols: Option<Spanned<OneOrMany>>,
    build_id: Option<Spanned<OneOrMany>>,
    because: Spanned<String>,
}

/// Bytes that a reason can have.
const MAX_REASON_BYTES: usize = 256;

/// The guards, by name.
pub(super) fn parse(
    place: Text<'_>,
    raw: &BTreeMap<String, Spanned<RawVersion>>,
) -> Result<Vec<Version>, ProfileError> {
    guards(place, raw.iter().map(|(name, raw)| (name, raw.span(), raw.get_ref())))
}

/// The builds that cannot be measured, with the reasons.
pub(super) fn not_measurable(
    place: Text<'_>,
    raw: BTreeMap<String, Spanned<RawNotMeasurable>>,
) -> Result<Vec<NotMeasurable>, ProfileError> {
    let (mut lines, mut reasons) = (Vec::new(), Vec::new());
    for (name, raw) in raw {
        let span = raw.span();
        let RawNotMeasurable { symbols, no_symbols, build_id, because } = raw.into_inner();
        let text = because.get_ref();
        if text.is_empty() || text.len() > MAX_REASON_BYTES || text.chars().any(char::is_control) {
            let error = place.fail(because.span().start, "`because` is no sentence for a report");
            return Err(error.with_hint(format!(
                "say in one line of at most {MAX_REASON_BYTES} bytes what the probes cannot see"
            )));
        }
        lines.push((name, span, RawVersion { symbols, no_symbols, build_id }));
        reasons.push(because.into_inner());
    }
    let all = guards(place, lines.iter().map(|(name, span, raw)| (name, span.clone(), raw)))?;
    Ok(all
        .into_iter()
        .zip(reasons)
        .map(|(guard, because)| NotMeasurable { guard, because })
        .collect())
}

/// Guards of either table.
fn guards<'r>(
    place: Text<'_>,
    raw: impl Iterator<Item = (&'r String, Span, &'r RawVersion)>,
) -> Result<Vec<Version>, ProfileError> {
    let mut versions = Vec::new();
    for (name, span, raw) in raw {
        let at = span.start;
        if versions.len() == MAX_MATCHES {
            return Err(place.fail(at, format!("more than {MAX_MATCHES} guards")));
        }
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| is_word(byte) || byte == b'-' || byte == b'_');
        if !fits {
            let error = place.fail(at, format!("`{name}` cannot be a guard's name"));
            return Err(error.with_hint(format!(
                "expected a-z, 0-9, `-` and `_`, at most {MAX_NAME_BYTES} bytes"
            )));
        }
        let RawVersion { symbols, no_symbols, build_id } = raw;
        let version = Version {
            name: name.clone(),
            symbols: line(place, symbols.as_ref(), symbol)?,
            no_symbols: line(place, no_symbols.as_ref(), symbol)?,
            build_id: line(place, build_id.as_ref(), build)?,
        };
        let says = [version.symbols.len(), version.no_symbols.len(), version.build_id.len()];
        if says.iter().all(|lines| *lines == 0) {
            let message = format!("the guard `{name}` says nothing: it would hold everywhere");
            let hint = "give at least one of `symbols`, `no_symbols`, `build_id`";
            return Err(place.fail(at, message).with_hint(hint));
        }
        versions.push(version);
    }
    Ok(versions)
}

/// The names of a probe's guards.
pub(super) fn of_probe(place: Text<'_>, raw: &RawProbe) -> Result<Vec<String>, ProfileError> {
    line(place, raw.version.as_ref(), |text| Ok(text.to_owned()))
}

/// Probes name guards that there are, each guard is named, and groups have no use for them.
pub(super) fn check(
    place: Text<'_>,
    profile: &Profile,
    guards: &BTreeMap<String, Spanned<RawVersion>>,
    raw: &[Spanned<RawProbe>],
) -> Result<(), ProfileError> {
    for (probe, raw) in profile.probes.iter().zip(raw) {
        let Some(written) = &raw.get_ref().version else { continue };
        let at = written.span().start;
        if let Some(name) = probe.versions.iter().find(|name| !guards.contains_key(*name)) {
            let known: Vec<_> = guards.keys().map(|known| format!("`{known}`")).collect();
            let error = place.fail(at, format!("there is no version `{name}`"));
            return Err(error.with_hint(if known.is_empty() {
                format!("describe it in `[versions.{name}]`")
            } else {
                format!("expected one of {}", known.join(", "))
            }));
        }
        if probe.one_of.is_some() {
            let error = place.fail(at, "`version` on a probe of a group");
            return Err(error.with_hint("of a group the probe that can be placed is placed anyway"));
        }
    }
    let named = |name: &String| profile.probes.iter().any(|probe| probe.versions.contains(name));
    match guards.iter().find(|(name, _)| !named(name)) {
        Some((name, guard)) => {
            let error =
                place.fail(guard.span().start, format!("no probe is for the version `{name}`"));
            Err(error.with_hint(format!("write `version = \"{name}\"` on its probes")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
