//! The table of costs as `calibrate` shows it: for people, and as JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::{Calibration, HostKey};
use crate::plan::cost::{InstructionKind, Treatment};

/// The name and version of the JSON document.
const SCHEMA: &str = "drainprof.calibration/2";
/// Nanoseconds of CPU time that one percent of one CPU has in a second.
const ONE_PERCENT_NS: f64 = 1e7;

/// One kind of instruction.
#[derive(Serialize)]
struct Row {
    kind: InstructionKind,
    /// `None` where it is unusable.
    entry_ns: Option<f64>,
    treatment: Treatment,
    /// Hits per second that one percent of one CPU pays for.
    hits_per_second_at_one_percent: Option<f64>,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    host: &'a HostKey,
    cached: bool,
    kinds: Vec<Row>,
    return_ns: f64,
}

fn rows(calibration: &Calibration) -> Vec<Row> {
    let treatments = calibration.costs.treatments();
    InstructionKind::ALL
        .into_iter()
        .zip(treatments)
        .map(|(kind, treatment)| {
            let entry_ns = calibration.costs.entry_ns[kind as usize];
            Row {
                kind,
                entry_ns: entry_ns.map(tenths),
                treatment,
                hits_per_second_at_one_percent: entry_ns
                    .map(|cost| (ONE_PERCENT_NS / cost).round()),
            }
        })
        .collect()
}

/// More digits would only pretend.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"))
}

/// Writes the table, what a return adds, and where it was measured.
pub fn render_text(calibration: &Calibration, out: &mut dyn Write) -> io::Result<()> {
    let host = &calibration.host;
    let machine = if host.virtual_machine { ", virtual machine" } else { "" };
    writeln!(out, "Linux {} ({})", host.kernel_release, host.kernel_version)?;
    writeln!(out, "{}{machine}", host.cpu_model)?;
    let source = if calibration.cached {
        "remembered from an earlier measurement (--fresh measures again)"
    } else {
        "measured now"
    };
    writeln!(out, "{source}\n")?;
    writeln!(
        out,
        "{:<12}{:>10}  {:<15}{:>20}",
        "probe on", "ns/hit", "treatment", "hits/s for 1 % CPU"
    )?;
    for row in rows(calibration) {
        writeln!(
            out,
            "{:<12}{:>10}  {:<15}{:>20}",
            row.kind.name(),
            whole(row.entry_ns),
            row.treatment.name(),
            whole(row.hits_per_second_at_one_percent)
        )?;
    }
    writeln!(
        out,
        "\na probe at the same function's return adds {:.0} ns",
        calibration.costs.return_ns
    )
}

/// Writes the same as one JSON document.
pub fn render_json(calibration: &Calibration, out: &mut dyn Write) -> io::Result<()> {
    let document = Document {
        schema: SCHEMA,
        host: &calibration.host,
        cached: calibration.cached,
        kinds: rows(calibration),
        return_ns: tenths(calibration.costs.return_ns),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::cost::Costs;

    fn calibration() -> Calibration {
        Calibration {
            costs: Costs { measured: true, ..Costs::assumed() },
            host: HostKey {
                kernel_release: "6.18.0".to_owned(),
                kernel_version: "#1 SMP".to_owned(),
                cpu_model: "A CPU @ 2.00GHz".to_owned(),
                virtual_machine: true,
                tool_version: "0.1.0".to_owned(),
            },
            cached: false,
        }
    }

    /// The table for people.
    #[test]
    fn text() {
        let mut out = Vec::new();
        render_text(&calibration(), &mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
    }

    /// The document for programs has every kind, and figures that belong together.
    #[test]
    fn json() {
        let mut out = Vec::new();
        render_json(&Calibration { cached: true, ..calibration() }, &mut out).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(document["schema"], SCHEMA);
        assert_eq!(document["cached"], true);
        assert_eq!(document["host"]["virtual_machine"], true);
        let kinds = document["kinds"].as_array().unwrap();
        assert_eq!(kinds.len(), InstructionKind::ALL.len());
        let row = |kind: &str| kinds.iter().find(|row| row["kind"] == kind).unwrap();
        assert_eq!(row("push")["treatment"], "emulated");
        assert_eq!(row("push")["entry_ns"], 550.0);
        assert_eq!(row("push")["hits_per_second_at_one_percent"], 18_182.0);
        assert_eq!(row("nop10")["treatment"], "unusable");
        assert!(row("nop10")["entry_ns"].is_null());
        assert!(row("nop10")["hits_per_second_at_one_percent"].is_null());
    }
}
