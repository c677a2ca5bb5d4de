//! The list of diagnostic windows.

use drainprof_node::{Outcome, WindowRecord};
use drainprof_report::{export::shown, units};
use ratatui::{
    Frame,
    layout::Rect,
    style::{Modifier, Style},
    text::Line,
    widgets::Paragraph,
};

use crate::ui::{app::App, detail};

/// Columns of the bar of progress.
const BAR: usize = 10;

/// Draws the list around the selected window.
pub(super) fn draw(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let windows = app.windows();
    if windows.is_empty() {
        let text =
            "no window so far: w in the list of processes starts one on the selected process";
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let now = app.state.as_ref().map_or(0, |state| state.unix_ms);
    let selected = app.window(&windows);
    let page = usize::from(area.height).max(1);
    let first = selected / page * page;
    let lines = windows.iter().enumerate().skip(first).take(page).map(|(index, window)| {
        let mark = if index == selected { '>' } else { ' ' };
        let how = match window.outcome {
            Outcome::Running => progress(now, window),
            outcome if window.has_report => format!("{}, report", detail::outcome(outcome)),
            outcome => detail::outcome(outcome).to_owned(),
        };
        let text = format!(
            "{mark}{:>4}  {}[{}]  {}  {how}  {}: {}",
            window.id,
            shown(&window.comm, 20),
            window.pid,
            units::duration(window.seconds),
            shown(&window.asked_by, 40),
            shown(&window.why, 300),
        );
        let style = if index == selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Line::styled(text, style)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

/// How far a window has come: `12 of 60 s [##--------]`.
pub(super) fn progress(now_ms: u64, window: &WindowRecord) -> String {
    let past = now_ms.saturating_sub(window.began_unix_ms) as f64 / 1000.0;
    let share = if window.seconds > 0.0 { (past / window.seconds).clamp(0.0, 1.0) } else { 1.0 };
    #[allow(clippy::cast_sign_loss, reason = "between 0 and 1")]
    let done = ((share * BAR as f64) as usize).min(BAR);
    format!(
        "{:.0} of {:.0} s [{}{}]",
        past.min(window.seconds),
        window.seconds,
        "#".repeat(done),
        "-".repeat(BAR - done)
    )
}
