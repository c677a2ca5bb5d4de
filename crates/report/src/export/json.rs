//! `json`: the report as one indented document.

use std::io;

use super::{Error, Exporter, Style, escape};
use crate::Report;

#[derive(Debug)]
pub(super) struct Json;

impl Exporter for Json {
    fn report(
        &self,
        report: &Report,
        _style: &Style,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(report).map_err(Error::Json)?;
        writeln!(out, "{}", escape::json(&text))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, samples};

    fn json(report: &Report) -> String {
        let mut out = Vec::new();
        Json.report(report, &Style::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The document as a whole, for each kind.
    #[test]
    fn documents() {
        for (name, snapshot) in samples::all() {
            let options = Options { kernel: "6.18.5".to_owned(), ..Options::default() };
            let mut report = Report::build(&snapshot, &options);
            report.tool.version = "1.2.3".to_owned();
            insta::assert_snapshot!(format!("json_{name}"), json(&report));
        }
    }

    /// What is written is read back as the same report.
    #[test]
    fn round_trip() {
        for (name, snapshot) in samples::all() {
            let report = Report::build(&snapshot, &Options::default());
            let back: Report = serde_json::from_str(&json(&report)).unwrap();
            assert_eq!(json(&back), json(&report), "{name}");
        }
    }
}
