//! `[[walk]]`: structures of a program that a census reads, as data: where its granules are, how large each is, and how
//! much of it lives.

use serde::Deserialize;
use toml::Spanned;

use super::{
    error::{ProfileError, Text},
    expr,
    model::{Expr, Structure},
    raw::{OneOrMany, line, name},
};

/// Walks that a profile can have.
const MAX_WALKS: usize = 16;

/// The table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWalk {
    name: Spanned<String>,
    at: Spanned<OneOrMany>,
    branches: Option<Spanned<OneOrMany>>,
    bytes: Spanned<String>,
    live: Spanned<String>,
    live_bytes: Spanned<String>,
}

/// Parses all of them.
pub(super) fn parse(
    place: Text<'_>,
    raw: &[Spanned<RawWalk>],
) -> Result<Vec<Structure>, ProfileError> {
    if let Some(extra) = raw.get(MAX_WALKS) {
        let message = format!("{} walks; at most {MAX_WALKS} are taken", raw.len());
        return Err(place.fail(extra.span().start, message));
    }
    let one = |raw: &Spanned<RawWalk>| {
        let raw = raw.get_ref();
        let of_granule = |text: &Spanned<String>| {
            let parsed = expr::parse_of_structure(text.get_ref(), 1);
            parsed.map_err(|error| place.fail(text.span().start, error.message))
        };
        let with = |args: u8| {
            move |text: &str| expr::parse_of_structure(text, args).map_err(|error| error.message)
        };
        Ok(Structure {
            name: name(place, &raw.name, "a walk's name")?,
            at: line(place, Some(&raw.at), with(0))?,
            branches: line(place, raw.branches.as_ref(), with(1))?,
            bytes: of_granule(&raw.bytes)?,
            live: of_granule(&raw.live)?,
            live_bytes: of_granule(&raw.live_bytes)?,
        })
    };
    raw.iter().map(one).collect()
}

impl Structure {
    /// All its expressions.
    pub fn expressions(&self) -> impl Iterator<Item = &Expr> {
        self.at.iter().chain(&self.branches).chain([&self.bytes, &self.live, &self.live_bytes])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::{Source, parse};

    const PROFILE: &str = r#"
schema = 1
name = "own"
kind = "slab"
on_request = true
[match]
symbols = ["pools"]
[[walk]]
name = "pool"
at = "walk(*(u64)(var(\"pools\")), *(u64)(it), it)"
branches = ["*(u64)(arg0 + 16)", "*(u64)(arg0 + 24)"]
bytes = "4096"
live = "*(u32)(arg0 + 8)"
live_bytes = "*(u32)(arg0 + 8) * 64"
"#;

    /// A profile may consist of walks alone; what a census cannot know is refused, with its place.
    #[test]
    fn walks() {
        let parse = |text: &str| {
            parse(text, &Source::File(PathBuf::from("p.toml"))).map_err(|error| error.to_string())
        };
        let profile = parse(PROFILE).unwrap();
        assert_eq!((profile.structures.len(), profile.probes.len()), (1, 0));
        assert_eq!(profile.structures[0].expressions().count(), 6);
        for (from, to, message) in [
            ("arg0 + 8", "arg1 + 8", "p.toml:13:8: only `arg0`"),
            ("arg0 + 16", "arg1 + 16", "p.toml:11:13: only `arg0`"),
            ("4096", "ret", "p.toml:12:9: only `arg0`"),
            ("it)\"", "arg0)\"", "p.toml:10:6: only `var`"),
            ("\"pool\"", "\"Pool\"", "`Pool` cannot be a walk's name"),
            ("live =", "lives =", "unknown key `lives`"),
            ("on_request = true", "", "a profile without probes"),
        ] {
            let error = parse(&PROFILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
