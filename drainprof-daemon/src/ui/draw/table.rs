//! The table of processes and their allocators.

use drainprof_node::AlertState;
use drainprof_profile::Level;
use drainprof_report::export::shown;
use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row as TableRow, Table},
};

use crate::ui::{app::App, numbers, numbers::or_unknown, rows::Row, sort::Sort};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Sorted(Sort),
    Pinned,
    Open,
    Faults,
    Kind,
}

/// A column: its header, its width, and how much it matters; the least is left out first where there is no room.
struct Shape {
    column: Column,
    header: &'static str,
    width: u16,
    matters: u8,
}

const fn shape(column: Column, header: &'static str, width: u16, matters: u8) -> Shape {
    Shape { column, header, width, matters }
}

/// All columns as they stand. Names take what the numbers leave.
const COLUMNS: [Shape; 15] = [
    shape(Column::Sorted(Sort::Pid), "pid", 9, 15),
    shape(Column::Sorted(Sort::Process), "process", 8, 14),
    shape(Column::Sorted(Sort::Allocator), "allocator", 9, 11),
    shape(Column::Kind, "kind", 5, 1),
    shape(Column::Sorted(Sort::Dsr), "DSR", 6, 13),
    shape(Column::Sorted(Sort::Closes), "close/s", 7, 10),
    shape(Column::Pinned, "pinned/s", 8, 4),
    shape(Column::Open, "open", 5, 3),
    shape(Column::Sorted(Sort::Retained), "retain", 6, 12),
    shape(Column::Sorted(Sort::Forecast), "+/day", 6, 6),
    shape(Column::Sorted(Sort::Rss), "rss", 5, 9),
    shape(Column::Sorted(Sort::Slope), "rss/s", 6, 5),
    shape(Column::Faults, "faults/s", 8, 2),
    shape(Column::Sorted(Sort::Level), "lvl", 3, 8),
    shape(Column::Sorted(Sort::Cost), "cost", 5, 7),
];

/// Names are not longer than this, however wide the screen.
const PROCESS: u16 = 24;
const ALLOCATOR: u16 = 40;
/// Longest name that is examined.
const NAME: usize = 60;

/// The columns for a screen of this width, in their order, with their widths.
fn columns(width: u16) -> Vec<(&'static Shape, u16)> {
    let mut chosen: Vec<&Shape> = COLUMNS.iter().collect();
    let taken = |chosen: &[&Shape]| -> u16 {
        chosen.iter().map(|shape| shape.width + 1).sum::<u16>().saturating_sub(1)
    };
    while chosen.len() > 1 && taken(&chosen) > width {
        let least = chosen.iter().map(|shape| shape.matters).min();
        chosen.retain(|shape| Some(shape.matters) != least);
    }
    let mut room = width.saturating_sub(taken(&chosen));
    let mut widths: Vec<u16> = chosen.iter().map(|shape| shape.width).collect();
    // A third to the process, two to the allocator.
    for (sort, most, share) in [(Sort::Process, PROCESS, 3), (Sort::Allocator, ALLOCATOR, 1)] {
        let at = chosen.iter().position(|shape| shape.column == Column::Sorted(sort));
        if let Some(width) = at.and_then(|at| widths.get_mut(at)) {
            let more = (room / share).min(most - *width);
            *width += more;
            room -= more;
        }
    }
    chosen.into_iter().zip(widths).collect()
}

/// Draws the rows around the selected one.
pub(super) fn draw(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let rows = app.rows();
    if area.height == 0 || area.width == 0 {
        return;
    }
    if rows.is_empty() {
        let text = match (&app.state, app.filter.is_empty()) {
            (None, _) => "",
            (Some(_), true) => "no process is watched: the configuration selects none",
            (Some(_), false) => "no row has this text: Esc shows all",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let columns = columns(area.width);
    let selected = app.position(&rows);
    let page = usize::from(area.height).saturating_sub(1).max(1);
    let first = selected / page * page;
    let shown = rows.iter().enumerate().skip(first).take(page);
    let body = shown.map(|(index, row)| {
        let cells = columns.iter().map(|(shape, width)| {
            cell(shape.column, &text(shape.column, row, index == selected, *width))
        });
        let style = if index == selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            colour(app, row)
        };
        TableRow::new(cells.collect::<Vec<_>>()).style(style)
    });
    let header = columns.iter().map(|(shape, width)| {
        let text = header(app, shape, usize::from(*width));
        cell(shape.column, &text).style(Style::new().add_modifier(Modifier::BOLD))
    });
    let widths: Vec<Constraint> =
        columns.iter().map(|(_, width)| Constraint::Length(*width)).collect();
    let table = Table::new(body.collect::<Vec<_>>(), widths)
        .header(TableRow::new(header.collect::<Vec<_>>()))
        .column_spacing(1);
    frame.render_widget(table, area);
}

/// The header; of the column that is sorted by with an arrow, cut so that both fit.
fn header(app: &App, shape: &Shape, width: usize) -> String {
    let name: String = match shape.column {
        Column::Sorted(Sort::Pid) => format!("  {}", shape.header),
        _ => shape.header.to_owned(),
    };
    if shape.column != Column::Sorted(app.sort) {
        return name;
    }
    let arrow = if app.sort.ascends() == app.reversed { '▼' } else { '▲' };
    let mut cut: String = name.chars().take(width.saturating_sub(1)).collect();
    cut.push(arrow);
    cut
}

/// Names stand left, numbers right.
fn cell(column: Column, text: &str) -> Cell<'static> {
    let line = Line::from(Span::from(text.to_owned()));
    let left = matches!(
        column,
        Column::Sorted(Sort::Pid | Sort::Process | Sort::Allocator | Sort::Level) | Column::Kind
    );
    Cell::from(if left { line } else { line.right_aligned() })
}

fn text(column: Column, row: &Row<'_>, selected: bool, width: u16) -> String {
    let rates = row.rates;
    match column {
        // Has no column.
        Column::Sorted(Sort::Urgency) => String::new(),
        Column::Sorted(Sort::Pid) => {
            let mark = match row.alert() {
                Some(AlertState::Firing) => '!',
                Some(AlertState::Pending) => '?',
                None => ' ',
            };
            format!("{}{mark}{}", if selected { '>' } else { ' ' }, row.target.pid)
        }
        Column::Sorted(Sort::Process) => shown(&row.target.comm, NAME),
        Column::Sorted(Sort::Allocator) => allocator(row, usize::from(width)),
        Column::Sorted(Sort::Dsr) => or_unknown(row.dsr(), numbers::dsr),
        Column::Sorted(Sort::Closes) => or_unknown(rates, |rates| numbers::rate(rates.closes)),
        Column::Sorted(Sort::Retained) => {
            or_unknown(row.retained(), |bytes| numbers::bytes(bytes as f64))
        }
        Column::Sorted(Sort::Forecast) => or_unknown(row.forecast(), numbers::growth),
        Column::Sorted(Sort::Rss) => or_unknown(row.rss(), |bytes| numbers::bytes(bytes as f64)),
        Column::Sorted(Sort::Slope) => {
            or_unknown(row.target.rss_slope_bytes_per_second, numbers::growth)
        }
        Column::Sorted(Sort::Level) => match row.level() {
            Some(Level::Close) => "cls".to_owned(),
            Some(Level::Boundary) => "bnd".to_owned(),
            Some(Level::Objects) => "obj".to_owned(),
            Some(Level::Stacks) => "stk".to_owned(),
            None if row.target.observed_ratio.is_some() => "pau".to_owned(),
            None => "off".to_owned(),
        },
        Column::Sorted(Sort::Cost) => {
            or_unknown(row.level().and(row.target.cost.cpu_ratio), numbers::share)
        }
        Column::Pinned => or_unknown(rates, |rates| numbers::rate(rates.pinned)),
        Column::Open => {
            or_unknown(row.allocator, |allocator| numbers::count(allocator.granules.open_now))
        }
        Column::Faults => or_unknown(row.target.faults_per_second, numbers::rate),
        Column::Kind => or_unknown(row.allocator, |allocator| allocator.kind.name().to_owned()),
    }
}

/// The profile, and the end of the instance where the process has several: that is where they differ.
fn allocator(row: &Row<'_>, width: usize) -> String {
    let Some((profile, instance)) = row.profile() else { return numbers::UNKNOWN.to_owned() };
    let profile = shown(profile, NAME);
    let twins = row
        .target
        .allocators
        .iter()
        .filter(|twin| Some(twin.profile.as_str()) == row.profile().map(|p| p.0));
    let Some(instance) = instance.filter(|_| twins.count() > 1) else { return profile };
    let instance = shown(instance, NAME);
    let digits: Vec<char> = instance.chars().rev().take(4).collect();
    let end: String = digits.into_iter().rev().collect();
    let name: String = profile.chars().take(width.saturating_sub(end.len() + 2)).collect();
    format!("{name}@…{end}")
}

fn colour(app: &App, row: &Row<'_>) -> Style {
    match row.alert() {
        Some(AlertState::Firing) => app.style(Color::Red, Modifier::empty()),
        Some(AlertState::Pending) => app.style(Color::Yellow, Modifier::empty()),
        None => Style::new(),
    }
}
