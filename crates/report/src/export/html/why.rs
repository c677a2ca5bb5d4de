//! The answer, in sentences, at the top of a page.

use maud::{Markup, html};

use super::{
    super::{
        SENTENCE, shown,
        why::{growing, not_known, used_for},
    },
    allocator::whole as rounded,
    parts::bar,
};
use crate::{
    Allocator, Growth, Report,
    health::Health,
    memory::MemoryVerdict,
    units,
    why::{Answer, Why},
};

/// Sentences of each answer.
const MAX_SENTENCES: usize = 5;

/// The answer that a report gives.
#[must_use]
pub fn answer(report: &Report) -> Markup {
    let found = Why::of_report(report);
    let growing = if report.targets.iter().any(|target| target.memory.is_some()) {
        growing(&found)
    } else {
        "not measured: --growth reads memory over time".to_owned()
    };
    why(&found, growing, &speeds(report), &sure(report))
}

/// The answer of `drainprof why`, which names in its text how fast and how sure.
pub(super) fn whole(answer: &Why) -> Markup {
    let parts: Vec<(String, u64)> =
        answer.parts.iter().map(|part| (shown(&part.what, SENTENCE), part.bytes)).collect();
    html! {
        (why(answer, growing(answer), &[], &[]))
        (bar("Resident memory by use", &parts, &units::bytes))
    }
}

/// How fast each allocator holds more.
fn speeds(report: &Report) -> Vec<String> {
    let allocators = report.targets.iter().flat_map(|target| &target.allocators);
    let speed = |own: &Allocator| {
        let retention = &own.retention;
        let granules = retention.slope_granules_per_second.filter(|slope| *slope > 0.0)?;
        let is_leak = matches!(retention.verdict?, Growth::LinearLeak | Growth::Mixed);
        let bytes =
            retention.slope_bytes_per_second.map(|slope| format!(", {}", units::byte_rate(slope)));
        let day = retention
            .forecast_bytes_per_day
            .map(|day| format!(", {} a day", units::bytes(rounded(day))));
        let (bytes, day) = (bytes.unwrap_or_default(), day.unwrap_or_default());
        is_leak.then(|| format!("{}: {granules:.1} granules/s{bytes}{day}", own.profile))
    };
    allocators.filter_map(speed).collect()
}

/// An answer; whether memory grows, how fast, and how sure that is, in sentences.
fn why(why: &Why, growing: String, fast: &[String], sure: &[String]) -> Markup {
    let leaks = why.holders.iter().any(|holder| holder.grows);
    let (class, answer) = match why.answer {
        Answer::Growing => ("bad", "Memory grows, and goes on growing"),
        Answer::Pinned if leaks => {
            ("bad", "It looks like a leak: more and more memory is held, and does not come back")
        }
        Answer::Pinned => ("bad", "Few live objects hold much memory"),
        Answer::Idle => ("warn", "Much of the memory is free, and could be given back"),
        Answer::Healthy => {
            ("good", "Memory does not grow, and what at least 75 % of it is used for is known")
        }
        Answer::Unknown => ("", "No leak was found, but too little is known to rule one out"),
    };
    let held: Vec<String> = why.holders.iter().map(|holder| holder.text.clone()).collect();
    html! {
        section.why.(class) aria-label="Why" {
            p { (answer) "." }
            dl {
                (answers("Unknown", &not_known(why)))
                (answers("Growing?", &[growing]))
                (answers("How fast", fast))
                (answers("Used for", &used_for(why)))
                (answers("Held by", &held))
                (answers("Who", &why.who))
                (answers("How sure", sure))
                (answers("Not seen", &why.unseen))
                @if !why.next.is_empty() {
                    div {
                        dt { "Next" }
                        dd {
                            @for next in &why.next {
                                (shown(&next.text, SENTENCE)) " "
                                @if let Some(command) = &next.command { code { (shown(command, SENTENCE)) } " " }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn answers(question: &str, answers: &[String]) -> Markup {
    html! {
        @if !answers.is_empty() {
            div {
                dt { (question) }
                dd {
                    @for (index, answer) in answers.iter().take(MAX_SENTENCES).enumerate() {
                        @if index > 0 { br; }
                        (shown(answer, SENTENCE))
                    }
                    @if answers.len() > MAX_SENTENCES { " … and " (answers.len() - MAX_SENTENCES) " more" }
                }
            }
        }
    }
}

/// How far the numbers of a report can be relied on.
fn sure(report: &Report) -> Vec<String> {
    let health = Health::from_names(&report.losses);
    let mut sure = Vec::new();
    if report.complete {
        sure.push("nothing that the counts need was lost".to_owned());
    } else if health.complete() {
        sure.push("INCOMPLETE: a profile is not measurable".to_owned());
    } else {
        sure.push(
            "INCOMPLETE: something that the counts need was lost (losses are below)".to_owned(),
        );
    }
    let allocators = || report.targets.iter().flat_map(|target| &target.allocators);
    if let Some(sampling) = allocators().find_map(|allocator| allocator.sampling) {
        sure.push(format!("estimated from a sample of 1 of {}", sampling.one_in));
    }
    let growing = report.targets.iter().filter_map(|target| target.memory.as_ref());
    for memory in
        growing.filter(|memory| memory.verdict == MemoryVerdict::Growing).take(MAX_SENTENCES)
    {
        sure.push(memory.verdict_reason.clone());
    }
    sure.push(format!(
        "observed for {}; what takes longer than that to come back looks like a leak",
        report.window.observed_words()
    ));
    sure
}
