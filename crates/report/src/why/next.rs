//! What to do, by what was found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Holder, HolderKind, Why};
use crate::{Report, memory::MemoryVerdict};

/// Heaps of language runtimes.
const RUNTIMES: [&str; 2] = ["cpython", "ruby"];

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Next {
    /// What to do, in a sentence.
    pub text: String,
    /// The command that shows more; null where there is none. It keeps within drainprof's default budget.
    pub command: Option<String>,
}

pub(super) fn of(why: &Why, undrafted: bool) -> Vec<Next> {
    let pid = why.pids.first().copied().unwrap_or_default();
    let step = |text: &str, command: String| Next {
        text: text.to_owned(),
        command: (!command.is_empty()).then_some(command),
    };
    let first = why.holders.first();
    let unread = why.unread_heap();
    let mut steps = Vec::new();
    match why.answer {
        Answer::Growing => {
            steps.push(step(
                "See which call stacks grow, and whether the growth ends: a start or a cache that fills looks the \
                 same at first.",
                format!("drainprof growth -p {pid} -d 5m"),
            ));
            if let Some(limit) = why.growing.seconds_to_limit {
                let left = crate::units::duration(limit);
                steps.push(step(
                    &format!("The control group's limit is reached in {left} at this rate: raise it, or restart in time."),
                    String::new(),
                ));
            }
        }
        Answer::Idle => steps.push(step(
            "Free memory stays with the allocator. Call malloc_trim(0) after a peak, or lower M_TRIM_THRESHOLD or \
             MALLOC_ARENA_MAX.",
            format!("drainprof census -p {pid}"),
        )),
        Answer::Pinned => steps.push(pinned(why, first, pid)),
        Answer::Healthy => {}
        Answer::Unknown if why.growing.may_grow() => steps.push(step(
            "Memory rises slowly, or has just begun to. See whether it goes on.",
            format!("drainprof why -p {pid} -d 5m"),
        )),
        Answer::Unknown if why.parts.is_empty() => steps.push(step(
            "No heap could be read: check privileges, and which allocators are known.",
            "drainprof doctor".to_owned(),
        )),
        Answer::Unknown if why.growing.verdict == MemoryVerdict::TooLittle => steps.push(step(
            "A verdict on growth takes longer.",
            format!("drainprof why -p {pid} -d 1m"),
        )),
        Answer::Unknown if why.is_partly_read() => steps.push(step(
            "Part of a heap could not be read. Stop the process for the reading, some 0.1 s for 100 MB.",
            format!("drainprof census --freeze -p {pid}"),
        )),
        Answer::Unknown if why.is_known() => steps
            .push(step("See each heap.", format!("drainprof census -p {pid}"))),
        Answer::Unknown if unread.is_some() => steps.push(step(
            &format!(
                "Nothing of {}'s heap was read. The program's own tools, such as heap snapshots, show what holds it. \
                 See which call stacks touch it.",
                unread.unwrap_or_default()
            ),
            format!("drainprof growth -p {pid} -d 1m"),
        )),
        Answer::Unknown if why.draft.is_some() => steps.push(step(
            "Most of the memory is of no known allocator. Finish the profile that was drafted from its functions.",
            format!(
                "drainprof profile check {} -p {pid} --for 10s",
                why.draft.as_ref().map_or("", |draft| &draft.path)
            ),
        )),
        Answer::Unknown if undrafted => steps.push(step(
            "Most of the memory is of no known allocator, and its functions have no names, or are inlined. See which \
             call stacks touch it; keep its functions out of line, or give them USDT probes (docs/usdt.md).",
            format!("drainprof growth -p {pid} -d 1m"),
        )),
        Answer::Unknown => steps.push(step(
            "Most of the memory is of no known allocator. A profile describes one: draft it from the program's symbols.",
            format!("drainprof profile new --from-symbols /proc/{pid}/exe -O own.toml"),
        )),
    }
    if let Some(draft) = why.draft.as_ref().filter(|draft| draft.against.is_none()) {
        steps.push(step(
            &format!(
                "Profile {} was drafted from the program's functions and fits what they did{}: {}",
                draft.profile,
                if draft.live.is_some() { ", with the granules' own live counts" } else { "" },
                draft.path
            ),
            String::new(),
        ));
    }
    steps
}

/// Steps whose answer is in the report itself name no command.
pub(super) fn known(steps: &mut [Next], report: &Report) {
    let mut allocators = report.targets.iter().flat_map(|target| &target.allocators);
    let has_stacks =
        allocators.any(|own| own.sites.as_ref().is_some_and(|sites| !sites.is_empty()));
    let asks = |step: &&mut Next| {
        step.command.as_ref().is_some_and(|command| command.contains("--level stacks"))
    };
    // Only `why` reads heaps.
    for step in steps.iter_mut().filter(|step| step.command.as_deref() == Some("drainprof doctor"))
    {
        "See whether memory grows, and what it is used for.".clone_into(&mut step.text);
        step.command =
            report.targets.first().map(|target| format!("drainprof why -p {}", target.pid));
    }
    for step in steps.iter_mut().filter(asks).filter(|_| has_stacks) {
        "Take the objects of who pins from a longer-lived allocator, copy them out, or close when they are freed."
            .clone_into(&mut step.text);
        step.command = None;
    }
}

/// Few objects hold much.
fn pinned(why: &Why, first: Option<&Holder>, pid: u32) -> Next {
    let file = |name: &str| {
        let own = why.draft.as_ref().filter(|draft| draft.profile == name);
        own.map_or_else(|| name.to_owned(), |draft| draft.path.clone())
    };
    match first {
        Some(Holder { kind: HolderKind::Granules, allocator, .. }) => Next {
            text: "Find which objects pin: route them to a longer-lived allocator, copy them out, or close when they are freed."
                .to_owned(),
            command: Some(format!(
                "drainprof attach -p {pid} --profile {} --level stacks -d 1m",
                file(allocator)
            )),
        },
        // Their runtimes give memory back by arenas and heap pages; no probe says who holds one.
        Some(Holder { allocator, .. }) if RUNTIMES.contains(&allocator.as_str()) => Next {
            text: "Few objects keep arenas. See their types; make what lives long before what lives short, or restart \
                   workers after a peak."
                .to_owned(),
            command: Some(format!("drainprof census -p {pid}")),
        },
        _ => Next {
            text: "Few objects hold many pages. Find who makes them: allocate them apart, or before the others."
                .to_owned(),
            command: Some(format!(
                "drainprof growth -p {pid} --view allocations --sample 1/64 -d 1m"
            )),
        },
    }
}
