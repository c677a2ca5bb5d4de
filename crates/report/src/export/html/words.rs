//! One sentence for each number of a page: what it is, and what to do when it is high.

use maud::{Markup, html};

/// A number of the page.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// As the page names it.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What to do when it is high, or low where that is worse.
    pub then: &'static str,
}

const fn term(name: &'static str, what: &'static str, then: &'static str) -> Term {
    Term { name, what, then }
}

/// All of them, in the order in which help shows them.
pub const TERMS: &[Term] = &[
    term(
        "RSS",
        "resident memory of the process: anonymous, file and shared pages together",
        "if it grows without end, see what is retained, and which call stacks grow",
    ),
    term(
        "anonymous",
        "resident memory of heap, stacks and anonymous mappings; only the program can give it back",
        "see the heaps and the allocators below",
    ),
    term(
        "files",
        "resident pages of files; the kernel takes them back when memory is scarce",
        "usually nothing",
    ),
    term(
        "shared",
        "resident shared memory; each process that maps it counts it",
        "see who else maps it before adding processes up",
    ),
    term(
        "swap",
        "anonymous memory of the process in swap",
        "memory is scarce: raise the limit, or find what grows",
    ),
    term(
        "growth",
        "change per second, with its 95 % confidence interval",
        "if the whole interval is above zero for hours, it is a leak until shown otherwise",
    ),
    term(
        "limit",
        "the lowest memory limit of the control group, and when it is reached at the present growth",
        "raise it, or restart in time",
    ),
    term("granule", "what an allocator gives back as a whole: arena, pool, slab, page", ""),
    term(
        "kind",
        "drain: a close should find the granule empty; bulk: it frees all that is in it; slab: it comes when nothing is left",
        "",
    ),
    term("opened", "granules that were opened since the probes are in place", ""),
    term("closes", "times at which a granule should become reclaimable", ""),
    term("drainable", "closes with no live object: the memory comes free at once", ""),
    term(
        "pinned",
        "closes with at least one live object: the whole granule stays",
        "allocate what lives long elsewhere, copy it out, or close when it is freed",
    ),
    term(
        "unknown",
        "closes that could not be decided; they are in no ratio",
        "trace at level objects, or from the start of the process",
    ),
    term(
        "DSR",
        "drainable closes / (drainable + pinned closes): 1 is perfect",
        "the lower, the more closes leave a granule behind: see who pins",
    ),
    term(
        "pinned bytes/s",
        "bytes of granules that were pinned at their close, per second",
        "the largest is where to begin",
    ),
    term(
        "open now",
        "granules that are open, and the most that were open at once",
        "if it only grows, granules are not closed",
    ),
    term(
        "overdue",
        "open granules that outlive nearly all others opened by the same call",
        "see who opened them: a forgotten close is a leak",
    ),
    term(
        "retained",
        "granules that are closed, pinned and not yet drained, and their bytes: memory held for few objects",
        "if it grows, the pins are a leak; if it is level, a cost",
    ),
    term("grown", "what is retained at the end of the time, less what was at its begin", ""),
    term(
        "late drains",
        "pinned granules whose last pin was freed after the close",
        "many: the memory comes back, but late",
    ),
    term(
        "pin delay",
        "time from a granule's close to the free of a pin; the median where it is one number",
        "if it is far above the lifetime, these objects belong elsewhere",
    ),
    term("lifetime", "time from a granule's open (or reset) to its close", ""),
    term(
        "live objects",
        "objects that are allocated and not freed",
        "if they grow without end, it is a leak of objects",
    ),
    term(
        "forecast",
        "what a day adds at the present rate",
        "compare it with the room up to the limit",
    ),
    term(
        "age × fill",
        "open granules by age and by how full they are: old and nearly empty ones waste most",
        "see who holds them",
    ),
    term(
        "who pins",
        "call stacks whose objects were live at pinned closes; shares add up to more than 100 % where several pin the same granule",
        "begin with the first row",
    ),
    term("share", "part of all pinned closes at which an object of this call stack was live", ""),
    term(
        "class",
        "how late pins are freed: near miss (under a tenth of the granule's lifetime), moderate, fundamental (more than ten lifetimes, or never)",
        "near miss: close a little later; fundamental: allocate elsewhere",
    ),
    term(
        "held",
        "resident bytes of heap granules with at least one live object, whole",
        "held far above live: few objects keep many pages",
    ),
    term("live bytes", "bytes of live objects", "if they grow, the program keeps more"),
    term(
        "free",
        "bytes that the program has freed and the allocator keeps",
        "malloc_trim(0), or fewer arenas, give them back",
    ),
    term(
        "touched",
        "pages that were touched for the first time since the attach",
        "see which call stacks touch most",
    ),
    term(
        "faults",
        "page faults of the process per second",
        "a window with page faults names the call paths that touch memory first",
    ),
    term(
        "cost",
        "CPU time that the probes took from the process, as a share of one CPU",
        "above the budget, the daemon detaches by itself",
    ),
    term(
        "level",
        "how deep the process is traced: boundary counts closes, objects adds frees and retention, stacks adds who pins",
        "",
    ),
    term(
        "losses",
        "events that could not be counted, by name",
        "each says what to do; counts that need it are marked incomplete",
    ),
    term("findings", "what stands out, one sentence each, the numbers in it", ""),
];

/// A word of the page, with its sentence as a hint; a word that has none is shown alone.
#[must_use]
pub fn word(name: &str) -> Markup {
    named(name, name)
}

/// The same, where the page shows it by another name.
#[must_use]
pub fn named(name: &str, shown: &str) -> Markup {
    if let Some(term) = TERMS.iter().find(|term| term.name == name) {
        html! { dfn title=(term.what) { (shown) } }
    } else {
        html! { (shown) }
    }
}

/// All words with their sentences.
#[must_use]
pub fn glossary() -> Markup {
    html! {
        dl.words {
            @for term in TERMS {
                div {
                    dt { (term.name) }
                    dd {
                        (term.what) "."
                        @if !term.then.is_empty() { br; i { "What to do: " } (term.then) "." }
                    }
                }
            }
        }
    }
}
