//! `folded`: one line per call path, as `flamegraph.pl`, `inferno` and speedscope read it.

use std::io;

use super::{Error, Exporter, Style, weigh::weigh};
use crate::Report;

#[derive(Debug)]
pub(super) struct Folded;

impl Exporter for Folded {
    fn report(&self, report: &Report, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        for (stack, value) in &weigh(report, style.weight).folded {
            writeln!(out, "{stack} {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, export::PinWeight, samples};

    fn folded(snapshot: &crate::facts::Snapshot, weight: PinWeight) -> String {
        let mut out = Vec::new();
        let style = Style { weight, ..Style::default() };
        Folded.report(&Report::build(snapshot, &Options::default()), &style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The text as a whole, by each weight and for a kind without pins.
    #[test]
    fn texts() {
        let stacks = samples::stacks_snapshot();
        insta::assert_snapshot!("folded_granules", folded(&stacks, PinWeight::Granules));
        insta::assert_snapshot!("folded_bytes", folded(&stacks, PinWeight::Bytes));
        insta::assert_snapshot!("folded_retained", folded(&stacks, PinWeight::Retained));
        let holders = samples::holders_snapshot();
        insta::assert_snapshot!("folded_holders", folded(&holders, PinWeight::Granules));
    }

    /// The views of growth.
    #[test]
    fn growth() {
        let snapshot = samples::growth_snapshot();
        let faults = folded(&snapshot, PinWeight::Faults);
        // 412 MiB, and 192 KiB of files; what was taken away has no width.
        assert!(faults.lines().any(|line| line.ends_with(" 432013312")), "{faults}");
        assert!(faults.lines().any(|line| line.ends_with(" 196608")), "{faults}");
        assert_eq!(faults.lines().count(), 2);
        let heap = folded(&snapshot, PinWeight::Heap);
        assert!(heap.ends_with(" 22020096\n") && heap.lines().count() == 1, "{heap}");
        let mappings = folded(&snapshot, PinWeight::Mappings);
        assert!(mappings.ends_with(" 67108864\n") && mappings.lines().count() == 1, "{mappings}");
        assert_eq!(folded(&samples::stacks_snapshot(), PinWeight::Heap), "");
    }

    /// The example of the documentation is what the sample gives.
    #[test]
    fn documented() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flamegraphs.md");
        let page = std::fs::read_to_string(path).unwrap();
        let text = folded(&samples::stacks_snapshot(), PinWeight::Granules);
        assert!(page.contains(&format!("```text\n{text}```")), "{text}");
    }

    /// Without call paths there is nothing to write.
    #[test]
    fn nothing_without_paths() {
        assert_eq!(folded(&samples::drain_snapshot(), PinWeight::Granules), "");
    }
}
