//! Functions that belong to one allocator: by prefix and noun in C, by type elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Function, MAX_PROBES,
    shown::clean,
    words::{Deed, Reading, read},
};

/// Most functions that an error lists.
const MAX_LOOSE: usize = 12;
/// Verbs whose first letter stands for nothing.
const PLAIN_VERBS: &[&str] = &["alloc", "malloc", "calloc", "realloc", "memalign", "free"];
/// What it takes from a group's score that nothing says what the group is about.
const VAGUE_PENALTY: u32 = 20;

/// A function with what its name says.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) function: &'a Function,
    pub(super) reading: Reading,
}

/// Scope, prefix and noun.
type Key = (String, String, String);

/// Functions of one allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct Group<'a> {
    /// Scope or prefix, and noun.
    pub(super) title: String,
    pub(super) candidates: Vec<Candidate<'a>>,
    /// Functions that were taken out, and why.
    pub(super) dropped: Vec<(&'a Function, String)>,
    /// That a function closes is a guess: it is called `free`.
    guessed_close: bool,
    /// Its alloc functions are named otherwise, and nothing but that they are there speaks for them.
    adopted: bool,
    key: Key,
    score: u32,
}

impl<'a> Group<'a> {
    pub(super) fn having(&self, deed: Deed) -> impl Iterator<Item = &Candidate<'a>> {
        self.candidates.iter().filter(move |candidate| candidate.reading.deed == deed)
    }

    /// It opens something, and closes it or empties it.
    pub(super) fn is_whole(&self) -> bool {
        let has = |deed| self.having(deed).any(|candidate| candidate.function.unfit.is_none());
        has(Deed::Open) && (has(Deed::Close) || has(Deed::Reset))
    }

    fn rate(&mut self) {
        let some = |deed| u32::from(self.having(deed).next().is_some());
        let granule = self.candidates.iter().any(|candidate| candidate.reading.granule);
        let named = !self.key.0.is_empty() || !self.key.2.is_empty();
        let exported = self.candidates.iter().all(|candidate| candidate.function.exported);
        let strong = self.having(Deed::Alloc).any(|found| !found.reading.weak);
        let score = 100 * u32::from(self.is_whole())
            + 12 * u32::from(strong && !self.adopted)
            + 2 * some(Deed::Alloc)
            + 12 * u32::from(granule)
            + 3 * some(Deed::Close) * u32::from(!self.guessed_close)
            + some(Deed::Close)
            + 2 * some(Deed::Free)
            + some(Deed::Reset)
            + u32::from(exported);
        // `my_open` and `my_close` do not say what they open: every library has such.
        self.score = score.saturating_sub(if granule || named { 0 } else { VAGUE_PENALTY });
    }
}

/// The candidates among the functions.
fn candidates<'a>(functions: &'a [Function], prefix: Option<&str>) -> Vec<Candidate<'a>> {
    let asked = |function: &Function| {
        prefix.is_none_or(|prefix| {
            function.shown.starts_with(prefix) || function.symbol.starts_with(prefix)
        })
    };
    functions
        .iter()
        .filter(|function| asked(function))
        .filter_map(|function| Some(Candidate { function, reading: read(&function.shown)? }))
        .collect()
}

/// All groups, the best first.
pub(super) fn groups<'a>(functions: &'a [Function], asked: Option<&str>) -> Vec<Group<'a>> {
    let all = candidates(functions, asked);
    let mut by_key: BTreeMap<Key, Vec<Candidate<'a>>> = BTreeMap::new();
    for candidate in &all {
        let reading = &candidate.reading;
        let key = (reading.scope.clone(), reading.prefix.clone(), reading.noun.clone());
        by_key.entry(key).or_default().push(candidate.clone());
    }
    let mut groups: Vec<Group<'a>> = by_key
        .iter()
        .map(|((scope, prefix, noun), members)| {
            let mut group = Group {
                title: title(scope, prefix, noun),
                candidates: members.clone(),
                key: (scope.clone(), prefix.clone(), noun.clone()),
                ..Group::default()
            };
            settle_opens(&mut group);
            if scope.is_empty() {
                adopt(&mut group, prefix, noun, &all);
            }
            settle_frees(&mut group);
            drop_doubtful(&mut group);
            group.rate();
            group
        })
        .filter(|group| asked.is_some() || !is_standard(&group.title))
        .collect();
    if !groups.iter().any(Group::is_whole) {
        // Contexts that a `free` closes, as talloc's.
        for group in &mut groups {
            for candidate in &mut group.candidates {
                if candidate.reading.deed == Deed::Free {
                    candidate.reading.deed = Deed::Close;
                }
            }
            let (scope, prefix, noun) = group.key.clone();
            if scope.is_empty() {
                adopt(group, &prefix, &noun, &all);
            }
            group.rate();
        }
    }
    // By name where they are equally good, so that a draft is the same each time.
    groups.sort_by(|one, other| other.score.cmp(&one.score).then(one.title.cmp(&other.title)));
    groups
}

fn title(scope: &str, prefix: &str, noun: &str) -> String {
    match (scope, prefix, noun) {
        ("", "", noun) => noun.to_owned(),
        ("", prefix, "") => format!("{prefix}_"),
        ("", prefix, noun) => format!("{prefix}_*{noun}"),
        (scope, ..) => format!("{scope}::"),
    }
}

/// `ngx_palloc` does not say `pool`, and `alloc_obj` says something else: such functions belong to the group
/// that opens and closes, if it has none of its own.
fn adopt<'a>(group: &mut Group<'a>, prefix: &str, noun: &str, all: &[Candidate<'a>]) {
    let opens = group.having(Deed::Open).next().is_some();
    let closes = group.having(Deed::Close).chain(group.having(Deed::Reset)).next().is_some();
    if !opens || !closes || group.having(Deed::Alloc).any(|found| !found.reading.weak) {
        return;
    }
    let is_object =
        |reading: &Reading| matches!(reading.deed, Deed::Alloc | Deed::Free | Deed::Realloc);
    let near = |reading: &Reading| {
        reading.scope.is_empty()
            && is_object(reading)
            && !reading.granule
            && (reading.prefix == prefix && reading.noun.is_empty()
                || reading.prefix.is_empty() && reading.noun.len() <= 6)
    };
    let own = |found: &Candidate<'_>| {
        group.candidates.iter().any(|candidate| std::ptr::eq(candidate.function, found.function))
    };
    let mut found: Vec<_> =
        all.iter().filter(|found| near(&found.reading) && !own(found)).cloned().collect();
    // `palloc` for a pool: the noun's first letter is in the verb.
    let initial = noun.chars().next();
    let lettered = |candidate: &Candidate<'_>| {
        !prefix.is_empty()
            && candidate.reading.prefix == prefix
            && !PLAIN_VERBS.contains(&candidate.reading.verb.as_str())
            && initial.is_some_and(|initial| candidate.reading.verb.starts_with(initial))
    };
    if found.iter().any(&lettered) {
        found.retain(|candidate| lettered(candidate));
    }
    found.truncate(MAX_PROBES);
    group.adopted = !found.is_empty() && !found.iter().all(&lettered);
    group.candidates.extend(found);
}

/// Of functions of one deed, those whose names say no more than that are meant; a `get` beside an `alloc` is a
/// getter.
fn drop_doubtful(group: &mut Group<'_>) {
    for deed in [Deed::Open, Deed::Close, Deed::Reset, Deed::Alloc, Deed::Realloc, Deed::Free] {
        let plain = group.having(deed).any(|found| found.reading.extra.is_none());
        // What a plain one calls does its work: `create` may call `create_unmanaged`.
        let called: BTreeSet<u64> = group
            .having(deed)
            .filter(|found| found.reading.extra.is_none())
            .flat_map(|found| found.function.calls.iter().copied())
            .collect();
        // `ContextInit` beside `ContextCreate` more often prepares the whole; a prototype would show.
        let weak = |found: &Candidate<'_>| {
            found.reading.weak
                || found.reading.verb == "init"
                    && found.function.signature.is_none()
                    && !called.contains(&found.function.address)
        };
        let strong = group.having(deed).any(|found| !weak(found));
        let why = |candidate: &Candidate<'_>| {
            let reading = &candidate.reading;
            // Allocators have many variants, and fewer of the rest.
            let words =
                reading.extra.as_deref().filter(|_| plain && (deed != Deed::Alloc || reading.weak));
            let words = words.filter(|_| !called.contains(&candidate.function.address));
            match words {
                _ if reading.deed != deed => None,
                Some(words) => Some(format!("its name says more (`{words}`)")),
                None if weak(candidate) && strong => {
                    Some(format!("`{}` beside others may mean something else", reading.verb))
                }
                None => None,
            }
        };
        let mut kept = Vec::new();
        for candidate in std::mem::take(&mut group.candidates) {
            match why(&candidate) {
                Some(reason) => group.dropped.push((candidate.function, reason)),
                None => kept.push(candidate),
            }
        }
        group.candidates = kept;
    }
}

/// Types of the languages' own libraries are no arenas of a program.
fn is_standard(title: &str) -> bool {
    ["std::", "core::", "alloc::", "__rustc", "__gnu", "gimli::", "hashbrown::"]
        .iter()
        .any(|own| title.starts_with(own))
}

/// `alloc_root` allocates in a root if something else opens one, as `init_alloc_root`.
fn settle_opens(group: &mut Group<'_>) {
    let allocates = |candidate: &Candidate<'_>| candidate.reading.verb.ends_with("alloc");
    if group.having(Deed::Open).all(allocates) {
        return;
    }
    for candidate in &mut group.candidates {
        if candidate.reading.deed == Deed::Open && allocates(candidate) {
            candidate.reading.deed = Deed::Alloc;
        }
    }
}

/// `arena_free` closes the arena if it takes it and nothing else, or if nothing else would close one.
fn settle_frees(group: &mut Group<'_>) {
    let closes = group.having(Deed::Close).next().is_some();
    for candidate in &mut group.candidates {
        if !candidate.reading.ambiguous {
            continue;
        }
        let alone = match candidate.function.signature.as_ref().map(|found| &found.parameters[..]) {
            // A `void *` is a member's address, where something else closes.
            Some([only]) => !closes || only.kind.record,
            Some(_) => false,
            None => !closes,
        };
        if alone {
            candidate.reading.deed = Deed::Close;
            group.guessed_close |= !closes;
        }
    }
}

/// Functions that allocate or free, for an error that names them where there is no group.
pub(super) fn loose(functions: &[Function], prefix: Option<&str>) -> Vec<String> {
    candidates(functions, prefix)
        .iter()
        .filter(|candidate| matches!(candidate.reading.deed, Deed::Alloc | Deed::Free))
        .map(|candidate| clean(&candidate.function.shown))
        .take(MAX_LOOSE)
        .collect()
}
