//! Writers of comparisons (`drainprof diff`): a [`Diff`] in, bytes out; one row each in [`DIFF_FORMATS`].

mod folded;
#[cfg(test)]
mod tests;
mod text;

use std::io;

use super::{Error, PinWeight, Style, escape};
use crate::diff::Diff;

/// One row of the table of formats.
#[derive(Clone, Copy, Debug)]
pub struct DiffFormat {
    /// Its name for `--format`.
    pub name: &'static str,
    /// What it is, in half a line.
    pub what: &'static str,
    /// Writes it.
    pub write: fn(&Diff, &Style, &mut dyn io::Write) -> Result<(), Error>,
}

/// All formats; the first is the default.
pub const DIFF_FORMATS: &[DiffFormat] = &[
    DiffFormat {
        name: "text",
        what: "for people: each allocator before and after, and the sites that changed most",
        write: text::write,
    },
    DiffFormat { name: "json", what: "one drainprof.diff/1 document", write: json },
    DiffFormat { name: "html", what: "one page for a browser, in one file", write: html },
    DiffFormat {
        name: "folded",
        what: "folded stacks with two columns, before and after",
        write: folded::write,
    },
    DiffFormat {
        name: "flamegraph",
        what: "a differential flame graph (SVG): red grew, blue shrank",
        write: folded::flame_graph,
    },
];

/// The format of that name.
#[must_use]
pub fn diff_format(name: &str) -> Option<&'static DiffFormat> {
    DIFF_FORMATS.iter().find(|format| format.name == name)
}

fn html(diff: &Diff, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
    super::html::write_diff(diff, style, out)
}

fn json(diff: &Diff, _: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(diff).map_err(Error::Json)?;
    writeln!(out, "{}", escape::json(&text))?;
    Ok(())
}
