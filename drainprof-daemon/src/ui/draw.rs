//! From the app's state to a picture. Pure, and never fails: what does not fit is left out.

mod table;
mod windows;

use std::fmt::Write as _;

use drainprof_node::{NodeState, Outcome, WindowRecord};
use drainprof_report::{export::shown, health::Health, units};
use ratatui::{
    Frame,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::Line,
    widgets::Paragraph,
};

use super::{
    app::App,
    detail::{self, Tone},
    keys::HELP,
    numbers,
    page::Page,
    rows::Row,
};

impl App {
    /// Draws the screen.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let line = |y: u16, height: u16| {
            Rect { x: area.x, y: area.y.saturating_add(y), width: area.width, height }
                .intersection(area)
        };
        let body = line(2, area.height.saturating_sub(3));
        frame.render_widget(Paragraph::new(self.title()), line(0, 1));
        frame.render_widget(Paragraph::new(self.subtitle()), line(1, 1));
        match &self.page {
            Page::Table => table::draw(self, frame, body),
            Page::Windows { .. } => windows::draw(self, frame, body),
            Page::Detail { key, scroll } => {
                let lines = match self.row(key) {
                    Some(row) => detail::lines(&row, &self.windows(), area.width, self.look.past)
                        .into_iter()
                        .map(|line| Line::styled(line.text, self.tone(line.tone)))
                        .collect(),
                    None => vec![Line::from(
                        "It is no longer there: the process has ended, or is not watched any more.",
                    )],
                };
                scrolled(frame, body, lines, *scroll);
            }
            Page::Report { text, scroll, .. } => {
                let lines = text.lines.iter().map(|line| Line::from(line.as_str())).collect();
                scrolled(frame, body, lines, *scroll);
            }
            Page::Help { scroll } => scrolled(frame, body, self.help(), *scroll),
        }
        if area.height > 2 {
            frame.render_widget(Paragraph::new(self.footer()), line(area.height - 1, 1));
        }
    }

    /// A style in colour, where colours may be used.
    fn style(&self, colour: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.look.colour { style.fg(colour) } else { style }
    }

    fn tone(&self, tone: Tone) -> Style {
        match tone {
            Tone::Heading => self.style(Color::Cyan, Modifier::BOLD),
            Tone::Plain => Style::new(),
            Tone::Warning => self.style(Color::Yellow, Modifier::empty()),
            Tone::Bad => self.style(Color::Red, Modifier::BOLD),
        }
    }

    /// What is running, for how long, and how the machine is.
    fn title(&self) -> Line<'static> {
        let Some(state) = &self.state else {
            return Line::from(format!("drainprof top  {}", self.look.source));
        };
        let mut text = format!("drainprof top  {}", self.look.source);
        // Writing to a String cannot fail.
        if self.look.past {
            let _ = write!(text, "  {}", units::clock(state.unix_ms));
        } else {
            let _ = write!(text, ", up {}", units::duration(state.uptime_seconds));
        }
        let own = &state.self_use;
        let cpu = numbers::or_unknown(own.cpu_ratio, numbers::share);
        let rss = numbers::bytes(own.rss_bytes as f64);
        let _ = write!(text, "  itself {cpu} CPU {rss}");
        if let Some(pressure) = &state.pressure {
            let (some, full) = (pressure.some.avg10, pressure.full.avg10);
            let _ =
                write!(text, "  PSI {} some {} full", numbers::share(some), numbers::share(full));
        }
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
    }

    /// What is wrong, or else how the page is to be read.
    fn subtitle(&self) -> Line<'static> {
        let bad = self.tone(Tone::Bad);
        if let Some(failure) = &self.failure {
            return Line::styled(format!("NOT CURRENT: {failure}"), bad);
        }
        let Some(state) = &self.state else { return Line::from("waiting for the first state …") };
        if let Some(problem) = problem(state) {
            return Line::styled(problem, bad);
        }
        Line::from(match &self.page {
            Page::Table => self.order(),
            Page::Windows { .. } => "diagnostic windows, the latest first".to_owned(),
            Page::Detail { .. } => "one allocator in detail".to_owned(),
            Page::Report { .. } => "report".to_owned(),
            Page::Help { .. } => "help".to_owned(),
        })
    }

    /// How the table is sorted and filtered.
    fn order(&self) -> String {
        let rows = self.rows();
        let mut processes: Vec<_> =
            rows.iter().map(|row| (row.target.pid, row.target.start_time)).collect();
        processes.sort_unstable();
        processes.dedup();
        let descends = self.sort.ascends() == self.reversed;
        let first = if descends { "largest first" } else { "smallest first" };
        let count = units::counted(processes.len() as u64, "process", "processes");
        let filter = if self.filter.is_empty() {
            String::new()
        } else {
            format!(" with “{}”", self.filter)
        };
        format!("{count}{filter}, by {}, {first}", self.sort.words())
    }

    /// What is being typed, the last message, the progress of a window, or the keys.
    fn footer(&self) -> Line<'static> {
        if self.typing {
            return Line::from(format!("/{}_  (Enter: keep, Esc: show all)", self.filter));
        }
        if let Some(message) = &self.message {
            let tone = if message.bad { Tone::Bad } else { Tone::Heading };
            return Line::styled(message.text.clone(), self.tone(tone));
        }
        let progress = self.running().map(|(now, window)| {
            format!(
                "{}[{}] {}   ",
                shown(&window.comm, 20),
                window.pid,
                windows::progress(now, window)
            )
        });
        let keys = match &self.page {
            Page::Table if self.look.past => {
                "?:help q:quit ←→:step []:10 min Enter:detail /:filter <>:sort Tab:windows"
            }
            Page::Table => {
                "?:help q:quit Enter:detail /:filter <>:sort w:window Tab:windows t:report"
            }
            Page::Windows { .. } => "Esc:back  Enter:report  w:another  ?:help",
            Page::Detail { .. } => {
                "Esc:back  ↑↓:scroll  w:window  Enter:its report  t:report  ?:help"
            }
            Page::Report { .. } | Page::Help { .. } => "Esc:back  ↑↓ PgUp PgDn:scroll",
        };
        Line::from(format!("{}{keys}", progress.unwrap_or_default()))
    }

    /// A window that runs, and the time; that of the selected process, if there is one.
    fn running(&self) -> Option<(u64, &WindowRecord)> {
        let state = self.state.as_ref()?;
        let rows = self.rows();
        let selected = rows.get(self.position(&rows)).map(|row: &Row<'_>| row.target.pid);
        let runs = |window: &&&WindowRecord| window.outcome == Outcome::Running;
        let windows = self.windows();
        let ours = windows.iter().filter(runs).find(|window| Some(window.pid) == selected);
        let window = ours.or_else(|| windows.iter().find(runs))?;
        Some((state.unix_ms, window))
    }

    fn help(&self) -> Vec<Line<'static>> {
        HELP.iter()
            .map(|(keys, what)| {
                if keys.is_empty() {
                    Line::styled(*what, self.tone(Tone::Heading))
                } else {
                    Line::from(format!("  {keys:<12} {what}"))
                }
            })
            .collect()
    }
}

/// Lines from the one on at which the page begins; never further than to the last.
fn scrolled(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>, scroll: usize) {
    let height = usize::from(area.height);
    let first = scroll.min(lines.len().saturating_sub(height));
    let shown: Vec<Line<'_>> = lines.into_iter().skip(first).take(height).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

/// What makes the numbers other than they should be.
fn problem(state: &NodeState) -> Option<String> {
    if state.killed {
        return Some("KILL SWITCH thrown: nothing is attached, and nothing will be".to_owned());
    }
    if !state.complete {
        let losses =
            state.losses.iter().map(|(name, count)| (name.clone(), Some(*count))).collect();
        let lost: Vec<String> = Health::from_names(&losses)
            .incomplete()
            .map(|line| format!("{} {}", shown(&line.name, 60), line.count))
            .collect();
        let lost = if lost.is_empty() { state.incomplete.join("; ") } else { lost.join(", ") };
        return Some(format!("INCOMPLETE: {lost}"));
    }
    (!state.ready).then(|| "not all processes have been examined yet".to_owned())
}
