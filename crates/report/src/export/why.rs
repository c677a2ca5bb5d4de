//! `drainprof why` as text: the answer, then five questions, in at most 25 lines.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style as Paint};

use super::{
    Style,
    escape::shown,
    heaps::{huge, unknown},
    table::Rows,
};
use crate::{
    memory::MemoryVerdict,
    units,
    why::{Answer, HolderKind, LITTLE, Why},
};

/// Rows of each answer.
const MAX_ROWS: usize = 3;
/// Characters of a sentence: two lines.
const SENTENCE: usize = 170;
/// Characters of a name.
const NAME: usize = 20;
/// Kinds of unknown memory that are listed.
const MAX_UNKNOWN: usize = 1;
/// Processes that are listed.
const PIDS: usize = 3;
/// The width of the questions' column.
const INDENT: &str = "         ";

/// Writes the answer.
///
/// # Errors
/// Those of the writer.
pub fn write_why(why: &Why, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let (word, paint) = match why.answer {
        Answer::Growing => ("GROWING", AnsiColor::Red.on_default().bold()),
        Answer::Pinned => ("PINNED", AnsiColor::Yellow.on_default().bold()),
        Answer::Idle => ("IDLE MEMORY", AnsiColor::Yellow.on_default().bold()),
        Answer::Healthy => ("HEALTHY", AnsiColor::Green.on_default().bold()),
        Answer::Unknown => ("CANNOT TELL", Paint::new().bold()),
    };
    let pids: Vec<String> = why.pids.iter().take(PIDS).map(u32::to_string).collect();
    let more = why.pids.len().saturating_sub(PIDS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    writeln!(
        out,
        "{}: {}[{}]{more}, {} observed, probes took {} of one CPU",
        style.paint(paint, word),
        shown(&why.comm, NAME),
        pids.join(", "),
        units::duration(why.seconds),
        units::percent(why.cost_ratio)
    )?;
    let enough = enough(why);
    let mut page = Page { style, out };
    page.answers("Unknown", &not_known(why))?;
    page.answers("Growing?", &[growing(why)])?;
    page.answers("Used for", &used_for(why))?;
    let held = why
        .holders
        .iter()
        .filter(|holder| holder.excess_bytes > enough || holder.kind == HolderKind::Granules);
    let held: Vec<String> = held.map(|holder| holder.text.clone()).collect();
    page.answers("Held by", &held)?;
    page.answers("Who", &why.who)?;
    page.answers("Not seen", &why.unseen)?;
    let mut steps = Vec::new();
    for next in &why.next {
        steps.push(next.text.clone());
        steps.extend(next.command.clone());
    }
    page.answers("Next", &steps)
}

/// Fewer bytes of resident memory are not worth a line.
const fn enough(why: &Why) -> u64 {
    why.growing.rss_bytes / LITTLE
}

/// What resident memory is used for, and how much of it is in huge pages, unless that is little.
pub(super) fn used_for(why: &Why) -> Vec<String> {
    let parts: Vec<String> = (why.parts.iter().filter(|part| part.bytes > 0))
        .map(|part| format!("{} {}", part.what, units::bytes(part.bytes)))
        .collect();
    let parts = (!parts.is_empty()).then(|| parts.join(", "));
    let huge = huge(why.huge_bytes, why.huge_idle_bytes).filter(|_| why.huge_bytes > enough(why));
    parts.into_iter().chain(huge).collect()
}

/// What of resident memory is not known, and why, unless it is little.
pub(super) fn not_known(why: &Why) -> Vec<String> {
    let enough = enough(why);
    let rss = why.validated_bytes.saturating_add(why.unknown_bytes);
    let matters = |bytes: u64| bytes > enough || why.answer == Answer::Unknown && bytes > 0;
    let most = why.unknown.iter().filter(|one| matters(one.bytes)).take(MAX_UNKNOWN);
    let share = units::percent(why.unknown_bytes as f64 / rss.max(1) as f64);
    most.map(|one| format!("{share} of resident memory: {}", unknown(one))).collect()
}

/// Whether memory grows, in a sentence.
pub(super) fn growing(why: &Why) -> String {
    let growing = &why.growing;
    let rss = units::bytes(growing.rss_bytes);
    let slope = match (growing.bytes_per_second, growing.interval) {
        (Some(slope), Some([low, high])) => format!(
            ", {} (95 %: {} to {})",
            units::byte_rate(slope),
            units::byte_rate(low),
            units::byte_rate(high)
        ),
        _ => String::new(),
    };
    let word = match growing.verdict {
        MemoryVerdict::Growing => "yes: it grew as long as it was observed",
        MemoryVerdict::TooLittle => "not known: observed for too short a time",
        MemoryVerdict::Settling => "less and less: as at a start, or a cache that fills",
        MemoryVerdict::Shrinking => "no, it shrinks",
        MemoryVerdict::Steady => "no",
    };
    format!("{word}. RSS {rss}{slope}")
}

struct Page<'a> {
    style: &'a Style,
    out: &'a mut dyn Write,
}

impl Page<'_> {
    /// A question, and its answers in lines of the page's width.
    fn answers(&mut self, question: &str, answers: &[String]) -> io::Result<()> {
        for (index, answer) in answers.iter().take(MAX_ROWS).enumerate() {
            let mut rows = Rows::bare(self.style.width.saturating_sub(INDENT.len() as u16));
            rows.push(vec![shown(answer, SENTENCE)]);
            for (line, text) in rows.lines("").iter().enumerate() {
                let question = if index + line == 0 { question } else { "" };
                let head = format!("{question:<width$}", width = INDENT.len());
                let head = self.style.paint(Paint::new().bold(), &head);
                writeln!(self.out, "{head}{text}")?;
            }
        }
        Ok(())
    }
}
