//! The page that is being written: lines, titles and tables, fit for a terminal.

use std::io;

use anstyle::{AnsiColor, Style as Paint};

use crate::{
    export::{
        exporter::{Error, Style},
        table::Rows,
    },
    model::Cost,
    units,
};

pub(super) const BOLD: Paint = Paint::new().bold();
pub(super) const GOOD: Paint = AnsiColor::Green.on_default();
pub(super) const BAD: Paint = AnsiColor::Red.on_default().bold();
pub(super) const DOUBTFUL: Paint = AnsiColor::Yellow.on_default();

/// Characters shown of a path, and of a symbol.
pub(super) const PATH: usize = 80;
pub(super) const SYMBOL: usize = 60;

/// What is being written.
pub(in crate::export) struct Page<'a> {
    pub(in crate::export) style: &'a Style,
    pub(in crate::export) out: &'a mut dyn io::Write,
}

impl Page<'_> {
    pub(in crate::export) fn line(&mut self, text: &str) -> Result<(), Error> {
        writeln!(self.out, "{text}")?;
        Ok(())
    }

    pub(in crate::export) fn title(&mut self, text: &str) -> Result<(), Error> {
        let text = self.style.paint(BOLD, text);
        self.line(&text)
    }

    pub(in crate::export) fn rows(&mut self, rows: Rows, indent: &str) -> Result<(), Error> {
        rows.lines(indent).iter().try_for_each(|line| self.line(line))
    }

    /// A sentence in lines of the page's width, all indented.
    pub(in crate::export) fn wrapped(&mut self, indent: &str, text: &str) -> Result<(), Error> {
        let mut rows = Rows::bare(self.style.width.saturating_sub(indent.len() as u16));
        rows.push(vec![text.to_owned()]);
        self.rows(rows, indent)
    }
}

/// The kernel's part alone: hence "at least".
pub(super) fn cost(cost: &Cost) -> String {
    let ratio = cost
        .cpu_ratio
        .map_or_else(String::new, |ratio| format!(" ({} of one CPU)", units::percent(ratio)));
    let source = if cost.measured { "" } else { ", by costs measured on other machines" };
    let time = units::duration(cost.cpu_seconds);
    format!("probing took at least {time} of its time{ratio} for {} hits{source}", cost.hits)
}
