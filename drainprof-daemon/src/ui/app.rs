//! The state of the screen: what is shown, and what keys make of it. Drawing is in `draw`.

use std::collections::BTreeMap;

use drainprof_node::{Answer, NodeState, Outcome, Refusal, Request, WindowRecord};
use drainprof_report::{export::shown, units};

use super::{
    detail,
    keys::{HELP, Key},
    page::{Page, Text},
    rows::{self, Rates, Row, RowKey},
    sort::Sort,
};

/// Longest filter.
const FILTER: usize = 60;
/// Longest message that is kept.
const MESSAGE: usize = 500;

/// What whoever drives the app has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Leave.
    Quit,
    /// Stop the process, as Ctrl-Z does elsewhere, and come back.
    Suspend,
    /// Ask the source, and hand the answer to [`App::answered`].
    Ask(Request),
}

/// How the screen looks.
#[derive(Clone, Debug)]
pub struct Look {
    /// Where the states come from, for the title.
    pub source: String,
    /// Whether colours may be used; `NO_COLOR` says no. They are never the only sign of anything.
    pub colour: bool,
}

/// What a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) text: String,
    /// Whether something failed.
    pub(super) bad: bool,
}

/// The terminal UI without a terminal.
#[derive(Debug)]
pub struct App {
    pub(super) look: Look,
    pub(super) state: Option<NodeState>,
    rates: BTreeMap<RowKey, Rates>,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    selected: Option<RowKey>,
    /// The pages below the one that is shown; the table is always the lowest.
    below: Vec<Page>,
    pub(super) page: Page,
    pub(super) message: Option<Message>,
    /// Why there are no new states.
    pub(super) trouble: Option<String>,
    size: (u16, u16),
}

impl App {
    /// An app that has seen nothing yet.
    #[must_use]
    pub fn new(look: Look) -> Self {
        Self {
            look,
            state: None,
            rates: BTreeMap::new(),
            sort: Sort::Retained,
            reversed: false,
            filter: String::new(),
            typing: false,
            selected: None,
            below: Vec::new(),
            page: Page::Table,
            message: None,
            trouble: None,
            size: (80, 24),
        }
    }

    /// Sorts by something else.
    pub const fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.reversed = false;
    }

    /// The screen has this many columns and lines now.
    pub fn resized(&mut self, width: u16, height: u16) {
        self.size = (width, height);
        let pages = self.below.iter_mut().chain([&mut self.page]);
        for page in pages {
            if let Page::Report { report, text, .. } = page {
                text.fit(report, width);
            }
        }
    }

    /// Takes a new state. One of the same moment as the last is not new.
    pub fn take(&mut self, state: NodeState) {
        self.trouble = None;
        if let Some(before) = &self.state {
            if before.unix_ms == state.unix_ms {
                return;
            }
            self.rates = rows::rates(before, &state);
            if let Some(message) = ended(before, &state) {
                self.say(&message, false);
            }
        }
        self.state = Some(state);
    }

    /// There is no new state, and why.
    pub fn trouble(&mut self, why: &str) {
        self.trouble = Some(shown(why, MESSAGE));
    }

    /// Says something in the last line, until the next key.
    pub fn say(&mut self, text: &str, bad: bool) {
        self.message = Some(Message { text: shown(text, MESSAGE), bad });
    }

    /// Takes the answer to a request.
    pub fn answered(&mut self, answer: Result<Answer, Refusal>) {
        match answer {
            Ok(Answer::State { state }) => self.take(*state),
            Ok(Answer::Report { report }) => {
                let text = Text::of(&report, self.size.0);
                self.open(Page::Report { report, text, scroll: 0 });
            }
            Ok(Answer::Window { window }) => {
                let length = units::duration(window.seconds);
                let (id, comm, pid) = (window.id, &window.comm, window.pid);
                self.say(&format!("window {id} on {comm}[{pid}] has begun: {length}"), false);
            }
            Ok(Answer::Windows { windows }) => {
                if let Some(state) = &mut self.state {
                    state.windows = windows;
                    state.windows.sort_by_key(|window| window.id);
                }
            }
            Ok(Answer::Done { message }) => self.say(&message, false),
            Err(refusal) => self.say(&refusal.to_string(), true),
        }
    }

    /// The rows as they are shown, in their order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let Some(state) = &self.state else { return Vec::new() };
        let mut rows = rows::rows(state, &self.rates, &self.filter);
        rows.sort_by(|a, b| self.sort.order(self.reversed, a, b));
        rows
    }

    /// Where the selected row stands among `rows`: the first, if the one that was selected is gone.
    pub(super) fn position(&self, rows: &[Row<'_>]) -> usize {
        let wanted = self.selected.as_ref();
        let same = |row: &Row<'_>| wanted.is_some_and(|wanted| *wanted == row.key());
        let process = |row: &Row<'_>| {
            wanted.is_some_and(|key| {
                (key.pid, key.start_time) == (row.target.pid, row.target.start_time)
            })
        };
        rows.iter().position(same).or_else(|| rows.iter().position(process)).unwrap_or_default()
    }

    /// The row of a page of details, wherever it stands now.
    pub(super) fn row(&self, key: &RowKey) -> Option<Row<'_>> {
        let state = self.state.as_ref()?;
        rows::rows(state, &self.rates, "").into_iter().find(|row| row.key() == *key)
    }

    /// Windows, the latest first.
    pub(super) fn windows(&self) -> Vec<&WindowRecord> {
        self.state.iter().flat_map(|state| state.windows.iter().rev()).collect()
    }

    /// Where the selected window stands in that list.
    pub(super) fn window(&self, windows: &[&WindowRecord]) -> usize {
        let Page::Windows { selected } = &self.page else { return 0 };
        windows.iter().position(|window| Some(window.id) == *selected).unwrap_or_default()
    }

    /// Lines of a page's body.
    pub(super) const fn body(&self) -> usize {
        (self.size.1 as usize).saturating_sub(3)
    }

    /// A key was pressed.
    pub fn key(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Ctrl('c') => return Some(Action::Quit),
            Key::Ctrl('z') => return Some(Action::Suspend),
            _ => {}
        }
        self.message = None;
        if self.typing {
            self.type_filter(key);
            return None;
        }
        match key {
            Key::Char('?' | 'h') if !matches!(self.page, Page::Help { .. }) => {
                self.open(Page::Help { scroll: 0 });
                return None;
            }
            Key::Char('q') if matches!(self.page, Page::Table) => return Some(Action::Quit),
            Key::Char('q') | Key::Esc if !matches!(self.page, Page::Table) => {
                self.page = self.below.pop().unwrap_or(Page::Table);
                return None;
            }
            _ => {}
        }
        match &self.page {
            Page::Table => self.key_in_table(key),
            Page::Windows { .. } => self.key_in_windows(key),
            Page::Detail { key: row, .. } => {
                let row = row.clone();
                self.key_in_detail(key, &row)
            }
            Page::Report { .. } | Page::Help { .. } => {
                self.scroll(key);
                None
            }
        }
    }

    fn open(&mut self, page: Page) {
        // What is open already is not opened a second time: the stack of pages stays small.
        self.below.push(std::mem::replace(&mut self.page, page));
        self.below.truncate(8);
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER => {
                self.filter.push(c);
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.typing = false,
            Key::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }

    fn key_in_table(&mut self, key: Key) -> Option<Action> {
        let rows = self.rows();
        let here = self.position(&rows);
        let selected = rows.get(here).map(|row| (row.key(), row.target.pid));
        if let Some(there) = moved(key, here, rows.len(), self.body().saturating_sub(1)) {
            self.selected = rows.get(there).map(Row::key);
            return None;
        }
        match key {
            Key::Char('/') => self.typing = true,
            Key::Esc => self.filter.clear(),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('<') | Key::Left => self.sort_by(self.sort.neighbour(false)),
            Key::Char('>') | Key::Right => self.sort_by(self.sort.neighbour(true)),
            Key::Tab | Key::Char('W') => self.open(Page::Windows { selected: None }),
            Key::Char('w') => return Some(self.diagnose(selected?.1)),
            Key::Char('t') => return Some(Action::Ask(Request::Report { pid: selected?.1 })),
            Key::Enter => {
                let key = selected?.0;
                self.selected = Some(key.clone());
                self.open(Page::Detail { key, scroll: 0 });
            }
            Key::Char(letter) => {
                if let Some(sort) = Sort::ALL.into_iter().find(|sort| sort.letter() == letter) {
                    self.sort_by(sort);
                }
            }
            _ => {}
        }
        None
    }

    fn key_in_detail(&mut self, key: Key, row: &RowKey) -> Option<Action> {
        match key {
            Key::Char('w') => return Some(self.diagnose(row.pid)),
            Key::Char('t') => return Some(Action::Ask(Request::Report { pid: row.pid })),
            Key::Tab | Key::Char('W') => {
                let windows = self.windows();
                let selected = windows.iter().find(|window| window.pid == row.pid);
                let selected = selected.map(|window| window.id);
                self.open(Page::Windows { selected });
            }
            // The report of its last window that is over.
            Key::Enter => {
                let windows = self.windows();
                let over = windows.iter().find(|window| window.pid == row.pid && window.has_report);
                match over.map(|window| window.id) {
                    Some(id) => return Some(Action::Ask(Request::WindowReport { id })),
                    None => {
                        self.say("no window on this process has left a report; w starts one", true);
                    }
                }
            }
            key => self.scroll(key),
        }
        None
    }

    fn key_in_windows(&mut self, key: Key) -> Option<Action> {
        let windows = self.windows();
        let here = self.window(&windows);
        if let Some(there) = moved(key, here, windows.len(), self.body()) {
            let id = windows.get(there).map(|window| window.id);
            self.page = Page::Windows { selected: id };
            return None;
        }
        let window = *windows.get(here)?;
        match key {
            Key::Enter if window.has_report => {
                return Some(Action::Ask(Request::WindowReport { id: window.id }));
            }
            Key::Enter => {
                let text = match window.outcome {
                    Outcome::Running => "this window has not ended yet",
                    _ => "this window has left no report",
                };
                self.say(text, true);
            }
            Key::Char('w') => return Some(self.diagnose(window.pid)),
            Key::Tab | Key::Char('W') => self.page = self.below.pop().unwrap_or(Page::Table),
            _ => {}
        }
        None
    }

    fn diagnose(&mut self, pid: u32) -> Action {
        self.say(&format!("asking for a window on process {pid} …"), false);
        Action::Ask(Request::Diagnose { pid, seconds: None, growth: None })
    }

    fn scroll(&mut self, key: Key) {
        let lines = match &self.page {
            Page::Detail { key, .. } => self
                .row(key)
                .map_or(0, |row| detail::lines(&row, &self.windows(), self.size.0).len()),
            Page::Report { text, .. } => text.lines.len(),
            Page::Help { .. } => HELP.len(),
            Page::Table | Page::Windows { .. } => 0,
        };
        let body = self.body();
        let (Page::Detail { scroll, .. } | Page::Report { scroll, .. } | Page::Help { scroll }) =
            &mut self.page
        else {
            return;
        };
        // So many places the first line can have.
        let places = lines.saturating_sub(body) + 1;
        let here = (*scroll).min(places - 1);
        *scroll = match key {
            Key::Char(' ') => moved(Key::PageDown, here, places, body),
            key => moved(key, here, places, body),
        }
        .unwrap_or(here);
    }
}

/// Where a key leads from place `here` of `count`; `None` for a key that leads nowhere.
fn moved(key: Key, here: usize, count: usize, page: usize) -> Option<usize> {
    let last = count.saturating_sub(1);
    let there = match key {
        Key::Up | Key::Char('k') => here.saturating_sub(1),
        Key::Down | Key::Char('j') => here.saturating_add(1),
        Key::PageUp => here.saturating_sub(page.max(1)),
        Key::PageDown => here.saturating_add(page.max(1)),
        Key::Home => 0,
        Key::End => last,
        _ => return None,
    };
    Some(there.min(last))
}

/// Says of a window that ran before that it has ended.
fn ended(before: &NodeState, now: &NodeState) -> Option<String> {
    let ran = |window: &&WindowRecord| {
        window.outcome != Outcome::Running
            && before
                .windows
                .iter()
                .any(|then| then.id == window.id && then.outcome == Outcome::Running)
    };
    let WindowRecord { id, comm, pid, outcome, has_report, .. } = now.windows.iter().find(ran)?;
    let how = detail::outcome(*outcome);
    let report = if *has_report { "; Tab, then Enter, shows its report" } else { "" };
    Some(format!("window {id} on {comm}[{pid}]: {how}{report}"))
}
