//! Plain tables: a header, columns as wide as their content, no lines.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table that is written line by line.
pub struct Rows {
    table: Table,
    left: usize,
}

impl Rows {
    /// A table whose first `left` columns are text and whose others are numbers.
    #[must_use]
    pub fn new(header: &[&str], left: usize, width: u16) -> Self {
        let mut table = plain(width);
        table.set_header(header);
        Self { table, left }
    }

    /// A single column of text without a header: sentences in lines.
    pub(super) fn bare(width: u16) -> Self {
        Self { table: plain(width), left: 1 }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Vec<String>) {
        self.table.add_row(row);
    }

    /// Lets lines be longer than the page; the caller cuts them.
    #[must_use]
    pub fn unwrapped(mut self) -> Self {
        self.table.set_content_arrangement(ContentArrangement::Disabled);
        self
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The lines, header first, indented by `indent`.
    #[must_use]
    pub fn lines(mut self, indent: &str) -> Vec<String> {
        let left = self.left;
        for (index, column) in self.table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            let right = index >= left;
            column.set_cell_alignment(if right {
                CellAlignment::Right
            } else {
                CellAlignment::Left
            });
        }
        self.table.lines().map(|line| format!("{indent}{}", line.trim_end())).collect()
    }
}

/// A bar for a share from 0 to 1, in eighths of a column; nothing only for nothing.
#[must_use]
pub fn bar(share: f64, columns: usize) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    #[allow(clippy::cast_sign_loss, reason = "between 0 and the number of columns")]
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).ceil() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(PARTS[eighths % 8]);
    }
    bar
}

fn plain(width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are flush right, text flush left, and nothing trails.
    #[test]
    fn alignment() {
        let mut rows = Rows::new(&["name", "count"], 1, 80);
        rows.push(vec!["a".to_owned(), "7".to_owned()]);
        rows.push(vec!["longer".to_owned(), "1234567".to_owned()]);
        assert_eq!(
            rows.lines("  "),
            ["  name      count", "  a             7", "  longer  1234567"]
        );
    }

    /// Whole and parts of columns; the least there is can be seen.
    #[test]
    fn bars() {
        let [all, half, least] = [1.0, 0.5, 1e-9].map(|share| bar(share, 5));
        assert_eq!([all, half, least], ["█████", "██▌", "▏"]);
        let [none, no_number, over] = [0.0, f64::NAN, 7.0].map(|share| bar(share, 2));
        assert_eq!([none, no_number, over], ["", "", "██"]);
    }

    /// Double-width characters take two columns.
    #[test]
    fn wide_characters() {
        let mut rows = Rows::new(&["n", "c"], 1, 80);
        rows.push(vec!["字字".to_owned(), "1".to_owned()]);
        rows.push(vec!["abcd".to_owned(), "2".to_owned()]);
        let lines = rows.lines("");
        assert_eq!(&lines[1..], ["字字  1", "abcd  2"]);
    }
}
