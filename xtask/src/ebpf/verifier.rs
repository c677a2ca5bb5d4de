//! What this machine's kernel says of the eBPF programs, as `drainprof doctor` reports it.
//!
//! No loader of its own: the binary that users run loads the programs, and its JSON document has the figures. Called by
//! `build-ebpf` and `ci`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fs_err as fs;
use serde_json::Value;

use super::stats::{Figures, Measured};
use crate::work;

const SCHEMA: &str = "drainprof.doctor/1";
const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// Has a drainprof binary load every program, as root.
pub(super) fn measure(drainprof: &Path) -> Result<Measured> {
    let mut command = work::as_root(drainprof, &[]);
    command.args(["doctor", "-o", "json"]);
    let line = work::describe(&command);
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    // It fails where nothing can be attached, and its document then says why.
    let programs = programs(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
        let reported = String::from_utf8_lossy(&output.stderr);
        format!("`{line}` ended with {} {}", output.status, reported.trim())
    })?;
    let release = fs::read_to_string(RELEASE)?;
    Ok(Measured { series: series(&release)?, programs })
}

/// The programs in doctor's document.
fn programs(document: &str) -> Result<BTreeMap<String, Figures>> {
    let document: Value = serde_json::from_str(document).context("its output is no JSON")?;
    if document["schema"] != SCHEMA {
        bail!("its document has the schema {}, not {SCHEMA}", document["schema"]);
    }
    let rows = document["programs"].as_array().context("its document has no list `programs`")?;
    if rows.is_empty() {
        let checks = document["checks"].as_array().map_or(&[][..], Vec::as_slice);
        let why = checks.iter().find(|check| check["name"] == "self-test");
        let why = why.and_then(|check| check["found"].as_str()).unwrap_or("it does not say why");
        bail!("the kernel did not take the programs: {why}");
    }
    let mut programs = BTreeMap::new();
    for row in rows {
        let name = row["name"].as_str().context("a program in its document has no name")?;
        let figures = Figures {
            verified: row["verified_instructions"].as_u64(),
            jited_bytes: row["jited_bytes"].as_u64(),
        };
        programs.insert(name.to_owned(), figures);
    }
    Ok(programs)
}

/// The first two numbers of a kernel's release: what distributions and patch levels of one version share.
fn series(release: &str) -> Result<String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if !major.is_empty() && !minor.is_empty() => {
            Ok(format!("{major}.{minor}"))
        }
        _ => bail!("the kernel's release `{}` does not begin with two numbers", release.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::Figures;
    use super::{programs, series};

    /// Figures are read by program; what the kernel does not report is none, not 0.
    #[test]
    fn reads_the_document() {
        let read = programs(
            r#"{"schema": "drainprof.doctor/1", "checks": [], "programs": [
                {"name": "close", "verified_instructions": 12, "jited_bytes": 34},
                {"name": "exec", "verified_instructions": null, "jited_bytes": null}]}"#,
        )
        .unwrap();
        let close = Figures { verified: Some(12), jited_bytes: Some(34) };
        assert_eq!(
            read.into_iter().collect::<Vec<_>>(),
            [("close".to_owned(), close), ("exec".to_owned(), Figures::default())]
        );
    }

    /// Without programs the self-test's own words are the error.
    #[test]
    fn says_why_there_are_none() {
        let error = programs(
            r#"{"schema": "drainprof.doctor/1", "programs": [],
                "checks": [{"name": "self-test", "found": "not permitted"}]}"#,
        )
        .unwrap_err();
        assert!(error.to_string().contains("not permitted"), "{error}");
    }

    /// No JSON, another schema and a program without a name are errors.
    #[test]
    fn refuses_other_documents() {
        for document in [
            "",
            "{}",
            r#"{"schema": "drainprof.doctor/2", "programs": [{"name": "close"}]}"#,
            r#"{"schema": "drainprof.doctor/1"}"#,
            r#"{"schema": "drainprof.doctor/1", "programs": [{}]}"#,
        ] {
            assert!(programs(document).is_err(), "{document}");
        }
    }

    /// Distribution suffixes and patch levels do not count; what is no release is an error.
    #[test]
    fn series_are_two_numbers() {
        assert_eq!(series("6.1.0-18-amd64\n").unwrap(), "6.1");
        assert_eq!(series("6.18-rc3\n").unwrap(), "6.18");
        assert!(series("Linux").is_err());
        assert!(series("6").is_err());
    }
}
