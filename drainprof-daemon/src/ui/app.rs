//! The state of the screen: what is shown. What keys make of it is in `press`, drawing in `draw`.

use std::collections::BTreeMap;

use drainprof_node::{Answer, NodeState, Outcome, Refusal, Request, WindowRecord};
use drainprof_report::{export::shown, units};

use super::{
    detail,
    page::{Page, Text},
    rows::{self, Rates, Row, RowKey},
    sort::Sort,
    source::{Seen, Step},
};

/// Longest filter.
pub(super) const FILTER: usize = 60;
/// Longest message that is kept.
const MESSAGE_CHARS: usize = 500;

/// What the caller of the app has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Leave.
    Quit,
    /// Stop the process, as Ctrl-Z does elsewhere, and come back.
    Suspend,
    /// Go to another state of the past, and hand it to [`App::rewound`].
    Step(Step),
    /// Ask the source, and hand the answer to [`App::answered`].
    Ask(Request),
}

/// The appearance of the screen.
#[derive(Clone, Debug)]
pub struct Look {
    /// Where the states come from, for the title.
    pub source: String,
    /// Whether states are of the past, through which arrow keys lead.
    pub past: bool,
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
    pub(super) selected: Option<RowKey>,
    /// The pages below the one that is shown; the table is always the lowest.
    pub(super) below: Vec<Page>,
    pub(super) page: Page,
    pub(super) message: Option<Message>,
    /// Why there are no new states.
    pub(super) failure: Option<String>,
    pub(super) size: (u16, u16),
}

impl App {
    /// An app that has seen nothing yet.
    #[must_use]
    pub fn new(look: Look) -> Self {
        Self {
            look,
            state: None,
            rates: BTreeMap::new(),
            sort: Sort::Urgency,
            reversed: false,
            filter: String::new(),
            typing: false,
            selected: None,
            below: Vec::new(),
            page: Page::Table,
            message: None,
            failure: None,
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
        self.failure = None;
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

    /// Shows a state of the past.
    pub fn rewound(&mut self, seen: Seen) {
        self.failure = None;
        self.rates =
            seen.before.map_or_else(BTreeMap::new, |before| rows::rates(&before, &seen.state));
        self.state = Some(seen.state);
    }

    /// There is no new state, and why.
    pub fn failure(&mut self, why: &str) {
        self.failure = Some(shown(why, MESSAGE_CHARS));
    }

    /// Says something in the last line, until the next key.
    pub fn say(&mut self, text: &str, bad: bool) {
        self.message = Some(Message { text: shown(text, MESSAGE_CHARS), bad });
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
