//! From a profile's text to a checked [`Profile`].
//!
//! serde and the `toml` crate read the file's shape (keys and types); this module turns the strings into
//! roles, places and expressions; `check` then examines the whole. Every refusal names file, line and
//! column. Called by `library`; reads no file itself.

use std::collections::BTreeMap;

use drainprof_common::spec::{Kind, Role};
use serde::Deserialize;
use toml::Spanned;

use super::{
    address, check,
    error::{ProfileError, Text},
    expr,
    keys::Key,
    model::{Expr, GranulePages, KINDS, MatchRule, Phase, Probe, Profile, Source},
    nesting,
    raw::{OneOrMany, RawProbe, build, line, name, symbol},
    structures::{self, RawWalk},
    versions::{self, RawNotMeasurable, RawVersion},
};

/// Bytes that a profile's file can have.
pub const MAX_PROFILE_BYTES: usize = 256 * 1024;
/// Probes that a profile can have.
pub const MAX_PROBES: usize = 64;
/// The version of the profile language that this version of the program speaks.
pub const SCHEMA: i64 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfile {
    /// Read already by [`check_schema`]; listed here so that it is a known key.
    #[serde(rename = "schema")]
    _schema: Spanned<i64>,
    name: Spanned<String>,
    kind: Spanned<String>,
    #[serde(default)]
    summary: String,
    #[serde(default)]
    on_request: bool,
    #[serde(rename = "match")]
    rule: Spanned<RawMatch>,
    granule: Option<RawGranule>,
    #[serde(default)]
    versions: BTreeMap<String, Spanned<RawVersion>>,
    #[serde(default)]
    not_measurable: BTreeMap<String, Spanned<RawNotMeasurable>>,
    #[serde(default, rename = "walk")]
    walks: Vec<Spanned<RawWalk>>,
    #[serde(default, rename = "probe")]
    probes: Vec<Spanned<RawProbe>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMatch {
    symbols: Option<Spanned<OneOrMany>>,
    soname: Option<Spanned<OneOrMany>>,
    exe: Option<Spanned<OneOrMany>>,
    build_id: Option<Spanned<OneOrMany>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGranule {
    bytes: Option<Spanned<u64>>,
    implicit: Option<Spanned<bool>>,
    nested: Option<Spanned<bool>>,
    pages: Option<Spanned<OneOrMany>>,
    page_bytes: Option<Spanned<u64>>,
}

/// Parses and checks a profile.
pub fn parse(text: &str, source: &Source) -> Result<Profile, ProfileError> {
    let place = Text { text, source };
    if text.len() > MAX_PROFILE_BYTES {
        let message = format!("the file has {} bytes", text.len());
        return Err(place
            .fail(0, message)
            .with_hint(format!("at most {MAX_PROFILE_BYTES} are taken")));
    }
    if let Some(at) = nesting::too_deep(text) {
        return Err(place.fail(at, "brackets nest too deep"));
    }
    check_schema(place)?;
    let raw: RawProfile = toml::from_str(text).map_err(|error| shape_error(place, &error))?;
    if let Some(extra) = raw.probes.get(MAX_PROBES) {
        let message = format!("{} probes; at most {MAX_PROBES} are taken", raw.probes.len());
        return Err(place.fail(extra.span().start, message));
    }
    let rule = match_rule(place, &raw.rule)?;
    let granule_bytes = match raw.granule.as_ref().and_then(|granule| granule.bytes.as_ref()) {
        Some(bytes) if *bytes.get_ref() == 0 => {
            let error = place.fail(bytes.span().start, "a granule of 0 bytes");
            return Err(error.with_hint("leave `bytes` out where the size is not known"));
        }
        bytes => bytes.map(|bytes| *bytes.get_ref()),
    };
    let implicit = raw.granule.as_ref().and_then(|granule| granule.implicit.as_ref());
    let nested = raw.granule.as_ref().and_then(|granule| granule.nested.as_ref());
    let nested = nested.filter(|nested| *nested.get_ref());
    let probes: Vec<Probe> =
        raw.probes.iter().map(|probe| parse_probe(place, probe)).collect::<Result<_, _>>()?;
    let profile = Profile {
        name: name(place, &raw.name, "a profile's name")?,
        kind: kind(place, &raw.kind)?,
        summary: raw.summary,
        rule,
        granule_bytes,
        granule_pages: raw.granule.as_ref().map_or(Ok(None), |raw| granule_pages(place, raw))?,
        implicit: implicit.is_some_and(|implicit| *implicit.get_ref()),
        on_request: raw.on_request,
        nested: nested.is_some(),
        versions: versions::parse(place, &raw.versions)?,
        not_measurable: versions::not_measurable(place, raw.not_measurable)?,
        probes,
        structures: structures::parse(place, &raw.walks)?,
        source: source.clone(),
    };
    check::check(place, &profile, &raw.kind, implicit, &raw.probes)?;
    versions::check(place, &profile, &raw.versions, &raw.probes)?;
    if let Some(nested) = nested {
        check::nested_fits(place, &profile, nested.span().start)?;
    }
    Ok(profile)
}

/// `pages` and `page_bytes`, which need one another.
fn granule_pages(place: Text<'_>, raw: &RawGranule) -> Result<Option<GranulePages>, ProfileError> {
    match (&raw.pages, &raw.page_bytes) {
        (None, None) => Ok(None),
        (Some(pages), Some(bytes)) if *bytes.get_ref() > 0 => {
            if let Some(constant) = &raw.bytes {
                let error = place.fail(constant.span().start, "`bytes` beside `pages`");
                return Err(error.with_hint("a granule of pages has as many bytes as they have"));
            }
            let read = |text: &str| expr::parse_pages(text).map_err(|error| error.message);
            let at = line(place, Some(pages), read)?;
            Ok(Some(GranulePages { at, bytes: *bytes.get_ref() }))
        }
        (Some(given), None) => {
            let error = place.fail(given.span().start, "`pages` without `page_bytes`");
            Err(error.with_hint("say how many bytes each page has"))
        }
        (_, Some(given)) => {
            let error = place.fail(given.span().start, "`page_bytes` without pages");
            Err(error.with_hint("give a positive number, beside `pages`"))
        }
    }
}

/// Looks at `schema` before anything else: another version's file has other keys, and the version is
/// what is to be said about it.
fn check_schema(place: Text<'_>) -> Result<(), ProfileError> {
    #[derive(Deserialize)]
    struct OnlySchema {
        schema: Spanned<i64>,
    }
    let head: OnlySchema =
        toml::from_str(place.text).map_err(|error| shape_error(place, &error))?;
    if *head.schema.get_ref() == SCHEMA {
        return Ok(());
    }
    let message = format!("schema {} is not known to this version", head.schema.get_ref());
    Err(place.fail(head.schema.span().start, message).with_hint(format!("expected {SCHEMA}")))
}

/// An error of the `toml` crate in our words.
fn shape_error(place: Text<'_>, error: &toml::de::Error) -> ProfileError {
    let at = error.span().map_or(0, |span| span.start);
    let message = error.message().replace('\n', ", ");
    let message =
        message.replace("unknown field", "unknown key").replace("missing field", "missing key");
    match message.split_once(", expected ") {
        Some((message, expected)) => {
            let quotes = if message.starts_with("invalid type") && expected == "a string" {
                " in quotes"
            } else {
                ""
            };
            place.fail(at, message).with_hint(format!("expected {expected}{quotes}"))
        }
        None => place.fail(at, message),
    }
}

fn kind(place: Text<'_>, raw: &Spanned<String>) -> Result<Kind, ProfileError> {
    KINDS.into_iter().find(|kind| kind.name() == raw.get_ref()).ok_or_else(|| {
        place
            .fail(raw.span().start, format!("unknown kind `{}`", raw.get_ref()))
            .with_hint(format!("expected {}", one_of(KINDS.map(Kind::name))))
    })
}

fn role(place: Text<'_>, raw: &Spanned<String>) -> Result<Role, ProfileError> {
    let (name, at) = (raw.get_ref().as_str(), raw.span().start);
    if let Some(role) = Role::ALL.into_iter().find(|role| role.name() == name) {
        return Ok(role);
    }
    let error = place.fail(at, format!("unknown role `{name}`"));
    Err(error.with_hint(format!("expected {}", one_of(Role::ALL.map(Role::name)))))
}

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("one of {}", names.map(|name| format!("`{name}`")).join(", "))
}

fn match_rule(place: Text<'_>, raw: &Spanned<RawMatch>) -> Result<MatchRule, ProfileError> {
    let RawMatch { symbols, soname, exe, build_id } = raw.get_ref();
    let rule = MatchRule {
        symbols: line(place, symbols.as_ref(), symbol)?,
        soname: line(place, soname.as_ref(), glob)?,
        exe: line(place, exe.as_ref(), glob)?,
        build_id: line(place, build_id.as_ref(), build)?,
    };
    let is_empty = rule.symbols.is_empty()
        && rule.soname.is_empty()
        && rule.exe.is_empty()
        && rule.build_id.is_empty();
    if is_empty {
        let error =
            place.fail(raw.span().start, "`match` says nothing: it would hold for every object");
        return Err(error.with_hint("give at least one of `symbols`, `soname`, `exe`, `build_id`"));
    }
    Ok(rule)
}

fn glob(text: &str) -> Result<String, String> {
    address::check_glob(text)?;
    Ok(text.to_owned())
}

/// One probe by itself; what only makes sense beside others is left to `check`.
fn parse_probe(place: Text<'_>, raw: &Spanned<RawProbe>) -> Result<Probe, ProfileError> {
    let span = raw.span();
    let raw = raw.get_ref();
    let role = role(place, &raw.role)?;
    let at = address::parse(raw.at.get_ref())
        .map_err(|message| place.fail(raw.at.span().start, message))?;
    let expressions =
        raw.expressions.iter().map(|(key, text)| Ok((*key, expression(place, *key, text)?)));
    let mut probe = Probe {
        one_of: raw.one_of.as_ref().map(|raw| name(place, raw, "a group's name")).transpose()?,
        versions: versions::of_probe(place, raw)?,
        expressions: expressions.collect::<Result<_, ProfileError>>()?,
        unshared: raw.unshared.as_ref().is_some_and(|unshared| *unshared.get_ref()),
        span,
        ..Probe::bare(role, at)
    };
    probe.phase = phase(place, raw, &probe)?;
    check_unshared(place, raw, &probe)?;
    Ok(probe)
}

/// `unshared` lets the probe sit behind what the function writes: so it fits nothing that must be seen before
/// its effect, and no expression that reads what may be written.
fn check_unshared(place: Text<'_>, raw: &RawProbe, probe: &Probe) -> Result<(), ProfileError> {
    let Some(written) = raw.unshared.as_ref().filter(|_| probe.unshared) else { return Ok(()) };
    let at = written.span().start;
    if probe.role != Role::Open || probe.phase != Phase::Entry {
        let error = place.fail(at, "`unshared` is for an `open` that is evaluated at entry");
        return Err(error.with_hint("leave it out"));
    }
    let mut expressions = probe.expressions.iter();
    if let Some((key, _)) = expressions.find(|(key, expr)| **key != Key::Label && expr.reads()) {
        let at = raw.place(*key).map_or(at, |span| span.start);
        let error = place
            .fail(at, format!("`{key}` reads memory, which the function may have written by then"));
        return Err(error.with_hint("leave `unshared` out, or do without the read"));
    }
    Ok(())
}

/// A key's expression, with its places turned into places of the file.
fn expression(place: Text<'_>, key: Key, raw: &Spanned<String>) -> Result<Expr, ProfileError> {
    let file_at = |at| place.inside(&raw.span(), at);
    let read = if key == Key::Label { expr::parse_label } else { expr::parse };
    let mut expr =
        read(raw.get_ref()).map_err(|error| place.fail(file_at(error.at), error.message))?;
    expr.relocate(&file_at);
    Ok(expr)
}

/// When a probe is evaluated: at return where it must be or the profile says so, else at entry.
fn phase(place: Text<'_>, raw: &RawProbe, probe: &Probe) -> Result<Phase, ProfileError> {
    let names_ret =
        probe.expressions.iter().find(|(_, expr)| expr.names_ret()).map(|(key, _)| *key);
    let Some(written) = &raw.phase else {
        let moves = probe.role == Role::Move && !probe.has(Key::NewGranule);
        let at_return = names_ret.is_some() || moves || probe.role == Role::Realloc;
        return Ok(if at_return { Phase::Return } else { Phase::Entry });
    };
    let at = written.span().start;
    match (written.get_ref().as_str(), names_ret) {
        ("return", _) => Ok(Phase::Return),
        ("entry", Some(key)) => {
            let at = raw.place(key).map_or(at, |span| span.start);
            let error = place
                .fail(at, format!("`{key}` names `ret`, but the probe says `phase = \"entry\"`"));
            Err(error.with_hint("leave `phase` out, or do without `ret`"))
        }
        ("entry", None) if probe.role == Role::Realloc => {
            let error = place.fail(at, "a realloc is evaluated at its return: it may fail or move");
            Err(error.with_hint("leave `phase` out"))
        }
        ("entry", None) => Ok(Phase::Entry),
        (other, _) => {
            let error = place.fail(at, format!("unknown phase `{other}`"));
            Err(error.with_hint("expected `entry` or `return`"))
        }
    }
}

#[cfg(test)]
mod tests;
