//! What to do, by what was found: a value decides, text is made last.

use super::{
    holders::{Holder, HolderKind},
    measured::{Drafted, Measured},
    model::{Answer, Next, Why},
};
use crate::{
    memory::MemoryVerdict,
    model::{Report, Target},
    units,
};

/// Heaps of language runtimes.
const RUNTIMES: [&str; 2] = ["cpython", "ruby"];

/// A step.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    /// Growth by call stack, over minutes.
    WatchGrowth,
    /// The control group's limit is reached in so many seconds.
    RaiseLimit(f64),
    /// Free memory stays with the allocator.
    Trim,
    /// Level `stacks` of a profile: its name, or its file.
    FindPins(&'a str),
    /// The call stacks of pins are known already.
    MovePins,
    /// Types in the heap of a language runtime.
    ListTypes,
    /// Call stacks that allocate.
    FindMakers,
    /// Memory has just begun to rise.
    WaitForRise,
    /// No heap could be read.
    CheckPrivileges,
    /// A report alone says nothing of heaps.
    AskWhy,
    WaitForVerdict,
    Freeze,
    ListHeaps,
    /// Call stacks that touch this heap, of which nothing was read.
    WatchHeap(&'a str),
    FinishDraft(&'a Drafted),
    /// Functions have no names, so no profile can be drafted.
    WatchUnnamed,
    Draft,
    /// A draft that fits.
    UseDraft(&'a Drafted),
}

/// The steps of an answer. What `report`, if it is all that was measured, shows already needs no command.
pub(super) fn of(why: &Why, measured: &Measured<'_>, report: Option<&Report>) -> Vec<Next> {
    let targets = &measured.growth.targets;
    let is_over = targets.iter().all(|target| target.ended.is_some());
    let mut steps: Vec<Step<'_>> = answer(why, measured).into_iter().collect();
    if let (Answer::Growing, Some(seconds)) = (why.answer, why.growing.seconds_to_limit) {
        steps.push(Step::RaiseLimit(seconds));
    }
    let fitting = why.draft.as_ref().filter(|draft| draft.against.is_none());
    steps.extend(fitting.map(Step::UseDraft));
    let next = |step: Step<'_>| {
        let step = report.filter(|_| !is_over).map_or(step, |report| step.beside(report));
        let pid = match step {
            Step::AskWhy => targets.first().map(|target| target.pid),
            _ => why.pids.first().copied(),
        };
        // Once all processes have ended, there is none that a command could observe.
        let command = step.command(pid.unwrap_or_default()).filter(|_| !is_over);
        Next { text: step.text(), command }
    };
    steps.into_iter().map(next).collect()
}

/// The step that follows from the answer.
fn answer<'a>(why: &'a Why, measured: &Measured<'_>) -> Option<Step<'a>> {
    Some(match why.answer {
        Answer::Growing => Step::WatchGrowth,
        Answer::Idle => Step::Trim,
        Answer::Pinned => pinned(why),
        Answer::Healthy => return None,
        Answer::Unknown => unknown(why, measured.undrafted.is_some()),
    })
}

/// Few objects hold much.
fn pinned(why: &Why) -> Step<'_> {
    match why.holders.first() {
        Some(Holder { kind: HolderKind::Granules, allocator, .. }) => {
            let own = why.draft.as_ref().filter(|draft| draft.profile == *allocator);
            Step::FindPins(own.map_or(allocator, |draft| &draft.path))
        }
        // Their runtimes give memory back by arenas and heap pages; no probe says what holds one.
        Some(Holder { allocator, .. }) if RUNTIMES.contains(&allocator.as_str()) => Step::ListTypes,
        _ => Step::FindMakers,
    }
}

fn unknown(why: &Why, is_undrafted: bool) -> Step<'_> {
    if why.growing.may_grow() {
        Step::WaitForRise
    } else if why.parts.is_empty() {
        Step::CheckPrivileges
    } else if why.growing.verdict == MemoryVerdict::TooLittle {
        Step::WaitForVerdict
    } else if why.is_partly_read() {
        Step::Freeze
    } else if why.is_known() {
        Step::ListHeaps
    } else if let Some(heap) = why.unread_heap() {
        Step::WatchHeap(heap)
    } else if let Some(draft) = &why.draft {
        Step::FinishDraft(draft)
    } else if is_undrafted {
        Step::WatchUnnamed
    } else {
        Step::Draft
    }
}

impl Step<'_> {
    /// The step where a report is all that was measured.
    fn beside(self, report: &Report) -> Self {
        let has_stacks = |target: &Target| {
            target
                .allocators
                .iter()
                .any(|own| own.sites.as_ref().is_some_and(|own| !own.is_empty()))
        };
        match self {
            Self::FindPins(_) if report.targets.iter().any(has_stacks) => Self::MovePins,
            // Only `why` reads heaps.
            Self::CheckPrivileges => Self::AskWhy,
            step => step,
        }
    }

    fn text(self) -> String {
        let text = match self {
            Self::WatchGrowth => {
                "See which call stacks grow, and whether the growth ends: a start or a cache that fills looks the same \
                 at first."
            }
            Self::RaiseLimit(seconds) => {
                let left = units::duration(seconds);
                return format!(
                    "The control group's limit is reached in {left} at this rate: raise it, or restart in time."
                );
            }
            Self::Trim => {
                "Free memory stays with the allocator. Call malloc_trim(0) after a peak, or lower M_TRIM_THRESHOLD or \
                 MALLOC_ARENA_MAX."
            }
            Self::FindPins(_) => {
                "Find which objects pin: route them to a longer-lived allocator, copy them out, or close when they are \
                 freed."
            }
            Self::MovePins => {
                "Take the objects of who pins from a longer-lived allocator, copy them out, or close when they are \
                 freed."
            }
            Self::ListTypes => {
                "Few objects keep arenas. See their types; make what lives long before what lives short, or restart \
                 workers after a peak."
            }
            Self::FindMakers => {
                "Few objects hold many pages. Find who makes them: allocate them apart, or before the others."
            }
            Self::WaitForRise => {
                "Memory rises slowly, or has just begun to. See whether it goes on."
            }
            Self::CheckPrivileges => {
                "No heap could be read: check privileges, and which allocators are known."
            }
            Self::AskWhy => "See whether memory grows, and what it is used for.",
            Self::WaitForVerdict => "A verdict on growth takes longer.",
            Self::Freeze => {
                "Part of a heap could not be read. Stop the process for the reading, some 0.1 s for 100 MB."
            }
            Self::ListHeaps => "See each heap.",
            Self::WatchHeap(heap) => {
                return format!(
                    "Nothing of {heap}'s heap was read. The program's own tools, such as heap snapshots, show what \
                     holds it. See which call stacks touch it."
                );
            }
            Self::FinishDraft(_) => {
                "Most of the memory is of no known allocator. Finish the profile that was drafted from its functions."
            }
            Self::WatchUnnamed => {
                "Most of the memory is of no known allocator, and its functions have no names, or are inlined. See \
                 which call stacks touch it; keep its functions out of line, or give them USDT probes (docs/usdt.md)."
            }
            Self::Draft => {
                "Most of the memory is of no known allocator. A profile describes one: draft it from the program's \
                 symbols."
            }
            Self::UseDraft(draft) => {
                let live = match draft.live {
                    Some(_) => ", with the granules' own live counts",
                    None => "",
                };
                return format!(
                    "Profile {} was drafted from the program's functions and fits what they did{live}: {}",
                    draft.profile, draft.path
                );
            }
        };
        text.to_owned()
    }

    /// What shows more, within drainprof's default budget.
    fn command(self, pid: u32) -> Option<String> {
        Some(match self {
            Self::RaiseLimit(_) | Self::MovePins | Self::UseDraft(_) => return None,
            Self::WatchGrowth => format!("drainprof growth -p {pid} -d 5m"),
            Self::Trim | Self::ListTypes | Self::ListHeaps => format!("drainprof census -p {pid}"),
            Self::FindPins(profile) => {
                format!("drainprof attach -p {pid} --profile {profile} --level stacks -d 1m")
            }
            Self::FindMakers => {
                format!("drainprof growth -p {pid} --view allocations --sample 1/64 -d 1m")
            }
            Self::WaitForRise => format!("drainprof why -p {pid} -d 5m"),
            Self::CheckPrivileges => "drainprof doctor".to_owned(),
            Self::AskWhy => format!("drainprof why -p {pid}"),
            Self::WaitForVerdict => format!("drainprof why -p {pid} -d 1m"),
            Self::Freeze => format!("drainprof census --freeze -p {pid}"),
            Self::WatchHeap(_) | Self::WatchUnnamed => format!("drainprof growth -p {pid} -d 1m"),
            Self::FinishDraft(draft) => {
                format!("drainprof profile check {} -p {pid} --for 10s", draft.path)
            }
            Self::Draft => {
                format!("drainprof profile new --from-symbols /proc/{pid}/exe -O own.toml")
            }
        })
    }
}
