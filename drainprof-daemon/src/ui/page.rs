//! The pages, one above the other: the table of processes is the lowest.

use drainprof_report::{Report, export, export::Style};

use super::rows::RowKey;

/// What is on the screen.
#[derive(Debug)]
pub(super) enum Page {
    /// Processes × allocators.
    Table,
    /// One row in detail, from this line on.
    Detail { key: RowKey, scroll: usize },
    /// The list of windows; which is selected.
    Windows { selected: Option<u64> },
    /// A report as text.
    Report { report: Box<Report>, text: Text, scroll: usize },
    /// What the keys do.
    Help { scroll: usize },
}

/// A report's lines for a screen of some width.
#[derive(Debug)]
pub(super) struct Text {
    width: u16,
    pub(super) lines: Vec<String>,
}

/// A report has at least this width: what is narrower is cut.
const MIN_WIDTH: u16 = 60;
const MAX_WIDTH: u16 = 160;

impl Text {
    /// The report as the text exporter writes it, without colours.
    pub(super) fn of(report: &Report, width: u16) -> Self {
        let style =
            Style { colour: false, width: width.clamp(MIN_WIDTH, MAX_WIDTH), ..Style::default() };
        let mut bytes = Vec::new();
        let written = match export::format("text") {
            Some(format) => format.exporter.report(report, &style, &mut bytes),
            None => Ok(()),
        };
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
        if let Err(error) = written {
            lines.push(error.to_string());
        }
        Self { width, lines }
    }

    /// The same for another width.
    pub(super) fn fit(&mut self, report: &Report, width: u16) {
        if self.width != width {
            *self = Self::of(report, width);
        }
    }
}
