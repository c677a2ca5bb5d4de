//! What keys make of the screen: each view has its own, and all others work everywhere.

use drainprof_node::{Outcome, Request};

use super::{
    app::{Action, App, FILTER},
    detail,
    keys::{HELP, Key},
    page::Page,
    rows::{Row, RowKey},
    sort::Sort,
    source::Step,
};

/// What a view makes of a key.
enum Pressed {
    /// The key is one of the view's own.
    Used(Option<Action>),
    /// It means what it means everywhere.
    Elsewhere,
}

const DONE: Pressed = Pressed::Used(None);

impl App {
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
        let is_table = matches!(self.page, Page::Table);
        match key {
            Key::Char('?' | 'h') if !matches!(self.page, Page::Help { .. }) => {
                self.open(Page::Help { scroll: 0 });
                return None;
            }
            Key::Char('q') if is_table => return Some(Action::Quit),
            Key::Char('q' | '?' | 'h') | Key::Esc if !is_table => {
                self.page = self.below.pop().unwrap_or(Page::Table);
                return None;
            }
            _ => {}
        }
        let pressed = match &self.page {
            Page::Table => self.key_in_table(key),
            Page::Windows { .. } => self.key_in_windows(key),
            Page::Detail { key: row, .. } => {
                let row = row.clone();
                self.key_in_detail(key, &row)
            }
            Page::Report { .. } | Page::Help { .. } => self.scroll(key),
        };
        match pressed {
            Pressed::Used(action) => action,
            Pressed::Elsewhere => self.key_anywhere(key),
        }
    }

    pub(super) fn open(&mut self, page: Page) {
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

    fn key_in_table(&mut self, key: Key) -> Pressed {
        let rows = self.rows();
        let here = self.position(&rows);
        if let Some(there) = moved(key, here, rows.len(), self.body().saturating_sub(1)) {
            self.selected = rows.get(there).map(Row::key);
            return DONE;
        }
        match key {
            Key::Esc => self.filter.clear(),
            _ => return Pressed::Elsewhere,
        }
        DONE
    }

    fn key_in_detail(&mut self, key: Key, row: &RowKey) -> Pressed {
        let windows = self.windows();
        let mut own = windows.iter().filter(|window| window.pid == row.pid);
        match key {
            Key::Tab | Key::Char('W') => {
                let selected = own.next().map(|window| window.id);
                self.open(Page::Windows { selected });
            }
            // The report of its last window that is over.
            Key::Enter => match own.find(|window| window.has_report).map(|window| window.id) {
                Some(id) => return Pressed::Used(Some(Action::Ask(Request::WindowReport { id }))),
                None => self.say("no window on this process has left a report; w starts one", true),
            },
            key => return self.scroll(key),
        }
        DONE
    }

    fn key_in_windows(&mut self, key: Key) -> Pressed {
        let windows = self.windows();
        let here = self.window(&windows);
        if let Some(there) = moved(key, here, windows.len(), self.body()) {
            let id = windows.get(there).map(|window| window.id);
            self.page = Page::Windows { selected: id };
            return DONE;
        }
        match (key, windows.get(here)) {
            (Key::Enter, Some(window)) if window.has_report => {
                let id = window.id;
                return Pressed::Used(Some(Action::Ask(Request::WindowReport { id })));
            }
            (Key::Enter, Some(window)) => {
                let text = match window.outcome {
                    Outcome::Running => "this window has not ended yet",
                    _ => "this window has left no report",
                };
                self.say(text, true);
            }
            (Key::Enter, None) => self.say("there is no window yet; w starts one", true),
            (Key::Tab | Key::Char('W'), _) => self.page = self.below.pop().unwrap_or(Page::Table),
            _ => return Pressed::Elsewhere,
        }
        DONE
    }

    /// What a key means where the view has no use of its own for it. What changes the table leads back to it.
    fn key_anywhere(&mut self, key: Key) -> Option<Action> {
        let step = match key {
            Key::Left => Some(Step::Back),
            Key::Right => Some(Step::Forth),
            Key::Char('[') => Some(Step::FarBack),
            Key::Char(']') => Some(Step::FarForth),
            _ => None,
        };
        if let Some(step) = step.filter(|_| self.look.past) {
            return Some(Action::Step(step));
        }
        let sort = match key {
            Key::Tab | Key::Char('W') => {
                self.open(Page::Windows { selected: None });
                return None;
            }
            Key::Char('w') => return Some(self.diagnose(self.subject()?)),
            Key::Char('t') => return Some(Action::Ask(Request::Report { pid: self.subject()? })),
            Key::Enter => {
                self.look_into();
                return None;
            }
            Key::Char('/' | 'r') => None,
            Key::Char('<') | Key::Left => Some(self.sort.neighbour(false)),
            Key::Char('>') | Key::Right => Some(self.sort.neighbour(true)),
            Key::Char(letter) => Some(*Sort::ALL.iter().find(|sort| sort.letter() == letter)?),
            _ => return None,
        };
        self.below.clear();
        self.page = Page::Table;
        match sort {
            Some(sort) => self.sort_by(sort),
            None if key == Key::Char('r') => self.reversed = !self.reversed,
            None => self.typing = true,
        }
        None
    }

    /// The process that the view is about; of the help, that of the selected row.
    fn subject(&self) -> Option<u32> {
        let own = match &self.page {
            Page::Detail { key, .. } => Some(key.pid),
            Page::Windows { .. } => {
                let windows = self.windows();
                windows.get(self.window(&windows)).map(|window| window.pid)
            }
            Page::Report { report, .. } => report.targets.first().map(|target| target.pid),
            Page::Table | Page::Help { .. } => None,
        };
        own.or_else(|| {
            let rows = self.rows();
            rows.get(self.position(&rows)).map(|row| row.target.pid)
        })
    }

    /// Opens the details of the selected row; above a report, of a row of its process.
    fn look_into(&mut self) {
        let rows = self.rows();
        let selected = rows.get(self.position(&rows));
        let subject = self.subject();
        let is_subject = |row: &&Row<'_>| Some(row.target.pid) == subject;
        let row = selected.filter(is_subject).or_else(|| rows.iter().find(is_subject));
        match row.map(Row::key) {
            Some(key) => {
                self.selected = Some(key.clone());
                self.open(Page::Detail { key, scroll: 0 });
            }
            None => self.say("no row of the table is of this process", true),
        }
    }

    fn diagnose(&mut self, pid: u32) -> Action {
        self.say(&format!("asking for a window on process {pid} …"), false);
        Action::Ask(Request::Diagnose { pid, seconds: None, growth: None })
    }

    fn scroll(&mut self, key: Key) -> Pressed {
        let lines = match &self.page {
            Page::Detail { key, .. } => self.row(key).map_or(0, |row| {
                detail::lines(&row, &self.windows(), self.size.0, self.look.past).len()
            }),
            Page::Report { text, .. } => text.lines.len(),
            Page::Help { .. } => HELP.len(),
            Page::Table | Page::Windows { .. } => 0,
        };
        let body = self.body();
        let (Page::Detail { scroll, .. } | Page::Report { scroll, .. } | Page::Help { scroll }) =
            &mut self.page
        else {
            return Pressed::Elsewhere;
        };
        // So many places the first line can have.
        let places = lines.saturating_sub(body) + 1;
        let here = (*scroll).min(places - 1);
        let key = if key == Key::Char(' ') { Key::PageDown } else { key };
        let Some(there) = moved(key, here, places, body) else { return Pressed::Elsewhere };
        *scroll = there;
        DONE
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
