//! What a function's name says that it does.

use std::sync::LazyLock;

/// What a function does, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    Open,
    Close,
    Reset,
    Alloc,
    Free,
    Realloc,
}

/// Words for deeds. What ends with `alloc` or `free` is one too.
const DEEDS: [(Deed, &[&str]); 6] = [
    (Deed::Realloc, &["realloc", "repalloc", "resize"]),
    (Deed::Reset, &["reset", "clear", "recycle", "rewind"]),
    (Deed::Open, &["create", "new", "init", "open", "begin", "start", "advance"]),
    (
        Deed::Close,
        &[
            "destroy", "delete", "close", "end", "fini", "finish", "dispose", "drop", "detach",
            "unref",
        ],
    ),
    (Deed::Alloc, &["get", "take", "acquire", "allocate", "memalign", "strdup", "memdup", "push"]),
    (Deed::Free, &["put", "give", "dealloc", "deallocate", "release", "return"]),
];
/// Ends of words that allocate: `palloc`, `pmemdup`.
const ALLOCS: &[&str] = &["alloc", "memalign", "strdup", "strndup", "memdup"];
/// Words for what is reclaimed whole.
const GRANULES: &[&str] = &[
    "pool", "pools", "mempool", "arena", "region", "zone", "heap", "slab", "epoch", "context",
    "ctx", "memarea", "memctx", "area", "bump", "obstack", "span", "chunk", "root",
];
/// Deeds that may be another: `get` of a getter, `start` of a server.
const WEAK: &[&str] = &["get", "take", "acquire", "put", "give", "return", "push"];
/// Functions of the C runtime, which every program has.
const RUNTIME: &[&str] = &["_init", "_fini", "_start", "main"];
/// Words that say how, not what.
const MANNERS: &[&str] =
    &["ex", "core", "full", "impl", "internal", "aligned", "zero", "zeroed", "sz"];
/// Most words of a name that is a phrase, with its verb first.
const MAX_PHRASE: usize = 4;
/// Longest name that is read.
const MAX_NAME: usize = 512;

/// What a name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Class, type or namespace; empty in C.
    pub(super) scope: String,
    /// The first word of a C name with several.
    pub(super) prefix: String,
    /// What the deed is about; empty where the name does not say.
    pub(super) noun: String,
    pub(super) deed: Deed,
    /// The very word of the deed.
    pub(super) verb: String,
    /// `arena_free`: frees the arena, or something in it.
    pub(super) ambiguous: bool,
    /// The noun is one for what is reclaimed whole.
    pub(super) granule: bool,
    /// The verb has other meanings too: a `get` is a getter more often than not.
    pub(super) weak: bool,
    /// Words beyond prefix, noun and verb: `file` of `pool_delete_file`.
    pub(super) extra: Option<String>,
}

/// What a name contains that may mean something to a draft, in lower case, by the first letter. A large program has hundreds
/// of thousands of names: each is read once, not once for each word.
static BY_LETTER: LazyLock<[Vec<&[u8]>; LETTERS]> = LazyLock::new(|| {
    let deeds = DEEDS.iter().flat_map(|(_, words)| words.iter());
    let mut by_letter = [const { Vec::new() }; LETTERS];
    for word in ["free"].iter().chain(ALLOCS).chain(deeds).chain(GRANULES) {
        if let Some(words) = letter(word.as_bytes()[0]).and_then(|at| by_letter.get_mut(at)) {
            words.push(word.as_bytes());
        }
    }
    by_letter
});
/// Letters of English.
const LETTERS: usize = 26;

/// The number of a letter, large or small.
fn letter(byte: u8) -> Option<usize> {
    byte.to_ascii_lowercase().checked_sub(b'a').map(usize::from).filter(|at| *at < LETTERS)
}

/// Whether a symbol's name may mean something to a draft: what is not is never demangled.
#[must_use]
pub fn is_interesting(name: &[u8]) -> bool {
    if name.starts_with(b"_Z") && name.ends_with(b"Ev") {
        return true;
    }
    if name.len() > 8 * MAX_NAME {
        return false;
    }
    let begins = |at: usize, word: &[u8]| {
        name[at..].get(..word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word))
    };
    let of = |byte: u8| letter(byte).map_or(&[][..], |at| &BY_LETTER[at][..]);
    let has_word = (0..name.len()).any(|at| of(name[at]).iter().any(|word| begins(at, word)));
    let structors: [&[u8]; 4] = [b"C1E", b"C2E", b"D1E", b"D2E"];
    has_word
        || name.starts_with(b"_Z")
            && (0..name.len()).any(|at| structors.iter().any(|word| begins(at, word)))
}

/// Whether a name as people write it says what a function does.
#[must_use]
pub fn says_something(shown: &str) -> bool {
    read(shown).is_some()
}

/// Reads a name as people write it, without parameters.
pub(super) fn read(shown: &str) -> Option<Reading> {
    if shown.is_empty() || shown.len() > MAX_NAME || RUNTIME.contains(&shown) {
        return None;
    }
    let (scope, last) = split_scope(shown);
    let class = scope.rsplit("::").next().unwrap_or_default();
    let own = |deed, verb: &str| Reading {
        scope: scope.clone(),
        prefix: String::new(),
        noun: String::new(),
        deed,
        verb: verb.to_owned(),
        ambiguous: false,
        weak: false,
        extra: None,
        granule: words(class).iter().any(|word| GRANULES.contains(&word.as_str())),
    };
    if !scope.is_empty() && last == class {
        return Some(own(Deed::Open, "constructor"));
    }
    if !scope.is_empty() && last.strip_prefix('~').is_some_and(|last| last == class) {
        return Some(own(Deed::Close, "destructor"));
    }
    let all = words(&last);
    let (at, deed) = deed_of(&all, scope.is_empty())?;
    let verb = all[at].clone();
    let prefixed = scope.is_empty() && all.len() > 1 && at > 0;
    let prefix = if prefixed { all[0].clone() } else { String::new() };
    let skip = usize::from(!prefix.is_empty());
    let rest: Vec<(usize, &String)> = all
        .iter()
        .enumerate()
        .skip(skip)
        .filter(|(index, word)| *index != at && !MANNERS.contains(&word.as_str()))
        .collect();
    let noun = rest
        .iter()
        .find(|(_, word)| GRANULES.contains(&word.as_str()))
        .or_else(|| rest.first())
        .copied();
    let mut granule = noun.is_some_and(|(_, word)| GRANULES.contains(&word.as_str()));
    let named = noun.map(|(_, word)| word.trim_end_matches('s').to_owned()).unwrap_or_default();
    // `arena_create`: the prefix is the thing itself.
    let prefix_is_granule = GRANULES.contains(&prefix.as_str());
    granule |= prefix_is_granule;
    // `free_pool` does it to the pool, `pool_free` in the pool, or to it.
    let verb_first = noun.is_some_and(|(index, _)| at < index);
    let (deed, ambiguous) = match deed {
        Deed::Free if granule && verb_first && !prefix_is_granule => (Deed::Close, false),
        Deed::Alloc if granule && verb_first && !prefix_is_granule => (Deed::Open, false),
        Deed::Free if granule && noun.is_none_or(|(index, _)| index < at) => (Deed::Free, true),
        deed => (deed, false),
    };
    let granule = granule || words(class).iter().any(|word| GRANULES.contains(&word.as_str()));
    let extra: Vec<&str> = rest
        .iter()
        .filter(|(index, _)| noun.is_none_or(|(own, _)| own != *index))
        .map(|(_, word)| word.as_str())
        .collect();
    let extra = (!extra.is_empty()).then(|| extra.join(" "));
    // What duplicates a string calls what allocates it.
    let weak = WEAK.contains(&verb.as_str()) || verb.ends_with("dup");
    Some(Reading { scope, prefix, noun: named, deed, verb, ambiguous, granule, weak, extra })
}

/// The deed that a name's words show, and which word does. The first word of a C name with several is a
/// prefix more often than not (`talloc_new`).
fn deed_of(words: &[String], in_c: bool) -> Option<(usize, Deed)> {
    let of = |word: &str| {
        DEEDS
            .iter()
            .find(|(_, known)| known.contains(&word))
            .map(|(deed, _)| *deed)
            .or_else(|| ALLOCS.iter().any(|end| word.ends_with(end)).then_some(Deed::Alloc))
            .or_else(|| word.ends_with("free").then_some(Deed::Free))
    };
    let first = usize::from(in_c && words.len() > 1);
    let found = |range: std::ops::Range<usize>| {
        let mut range = range;
        range.find_map(|at| words.get(at).and_then(|word| Some((at, of(word)?))))
    };
    // There the word must stand for itself, and be most of the name: `alloc_obj`, not `talloc_version`.
    let whole = |word: &String| {
        ["alloc", "malloc", "free"].contains(&word.as_str())
            || DEEDS.iter().any(|(_, known)| known.contains(&word.as_str()))
    };
    // `init_alloc_root`: a deed first, and what it is about last.
    let about = words.last().is_some_and(|word| GRANULES.contains(&word.as_str()));
    if in_c && about && words.len() <= MAX_PHRASE && words.first().is_some_and(whole) {
        return found(0..1);
    }
    found(first..words.len()).or_else(|| {
        words.first().filter(|word| words.len() <= 2 && whole(word)).and_then(|_| found(0..first))
    })
}

/// Scope and last name: `a::B<c::D>::e` is `a::B` and `e`; `<a::B as c::D>::e` too.
fn split_scope(shown: &str) -> (String, String) {
    if let Some(inner) =
        shown.strip_prefix("core::ptr::drop_in_place<").and_then(|rest| rest.strip_suffix('>'))
    {
        return (without_parameters(inner), "drop".to_owned());
    }
    let text = match of_type(shown) {
        Some((own, rest)) => format!("{own}{rest}"),
        None => shown.to_owned(),
    };
    let plain = without_parameters(&text);
    match plain.rfind("::") {
        Some(at) => (plain[..at].to_owned(), plain[at + 2..].to_owned()),
        None => (String::new(), plain),
    }
}

/// `<a::B<T> as c::D>::e` and `<a::B<T>>::e` are about `a::B<T>`: that, and `::e`.
fn of_type(shown: &str) -> Option<(&str, &str)> {
    let inner = shown.strip_prefix('<')?;
    let mut depth = 1_u32;
    let end = inner.char_indices().find_map(|(at, c)| {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })?;
    let (own, rest) = (&inner[..end], &inner[end + 1..]);
    Some((own.split(" as ").next().unwrap_or(own), rest))
}

/// A name without what stands in angle brackets.
fn without_parameters(text: &str) -> String {
    let mut depth = 0_u32;
    let mut plain = String::new();
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    // `Arena<T>::new` of Rust is written `Arena<T>::new` or `Arena::<T>::new`.
    while plain.contains("::::") {
        plain = plain.replace("::::", "::");
    }
    plain.trim_matches(':').to_owned()
}

/// Words of a name: `ngx_create_pool`, `MemoryContextCreate`.
fn words(name: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in name.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()) {
        let mut word = String::new();
        let mut before_lower = false;
        for c in part.chars() {
            if c.is_uppercase() && before_lower {
                all.push(std::mem::take(&mut word));
            }
            before_lower = c.is_lowercase() || c.is_ascii_digit();
            word.extend(c.to_lowercase());
        }
        all.push(word);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_words(shown: &str) -> Option<(Deed, String, String, String)> {
        read(shown).map(|found| (found.deed, found.scope, found.prefix, found.noun))
    }

    /// Names of real allocators are read as a person would.
    #[test]
    fn real_names() {
        for (shown, deed, prefix, noun) in [
            ("ngx_create_pool", Deed::Open, "ngx", "pool"),
            ("ngx_destroy_pool", Deed::Close, "ngx", "pool"),
            ("ngx_reset_pool", Deed::Reset, "ngx", "pool"),
            ("ngx_palloc", Deed::Alloc, "ngx", ""),
            ("ngx_pfree", Deed::Free, "ngx", ""),
            ("apr_pool_create_ex", Deed::Open, "apr", "pool"),
            ("apr_pool_clear", Deed::Reset, "apr", "pool"),
            ("apr_palloc", Deed::Alloc, "apr", ""),
            ("mi_heap_malloc", Deed::Alloc, "mi", "heap"),
            ("mi_heap_delete", Deed::Close, "mi", "heap"),
            ("arena_open", Deed::Open, "arena", ""),
            ("epoch_close", Deed::Close, "epoch", ""),
            ("_talloc_free", Deed::Free, "talloc", ""),
            ("MemoryContextDelete", Deed::Close, "memory", "context"),
            ("palloc", Deed::Alloc, "", ""),
            ("alloc_obj", Deed::Alloc, "", "obj"),
            ("free_obj", Deed::Free, "", "obj"),
            ("init_alloc_root", Deed::Open, "", "root"),
            ("free_root", Deed::Close, "", "root"),
        ] {
            let found = read_words(shown).unwrap_or_else(|| panic!("{shown} says nothing"));
            assert_eq!(found, (deed, String::new(), prefix.into(), noun.into()), "{shown}");
        }
        for silent in ["main", "ngx_http_send_header", "", "memcpy", "x"] {
            assert_eq!(read_words(silent), None, "{silent}");
        }
    }

    /// C++ constructors and destructors, and methods of Rust types, belong to their type.
    #[test]
    fn scopes() {
        for (shown, deed, scope) in [
            ("MemChunk::MemChunk", Deed::Open, "MemChunk"),
            ("MemChunk::~MemChunk", Deed::Close, "MemChunk"),
            ("tcmalloc::PageHeap::New", Deed::Open, "tcmalloc::PageHeap"),
            ("tcmalloc::PageHeap::Delete", Deed::Close, "tcmalloc::PageHeap"),
            ("bumpalo::Bump::reset", Deed::Reset, "bumpalo::Bump"),
            ("my::Arena<T>::alloc", Deed::Alloc, "my::Arena"),
            ("<my::Arena<T>>::alloc", Deed::Alloc, "my::Arena"),
            ("<my::Arena<T> as core::ops::Drop>::drop", Deed::Close, "my::Arena"),
            ("core::ptr::drop_in_place<my::Arena<u64>>", Deed::Close, "my::Arena"),
        ] {
            let (found, in_scope, ..) = read_words(shown).unwrap_or_else(|| panic!("{shown}"));
            assert_eq!((found, in_scope.as_str()), (deed, scope), "{shown}");
        }
    }

    /// Whether the granule or something in it is freed is reported by the order of the words, or not at all.
    #[test]
    fn who_is_freed() {
        assert_eq!(read("free_pool").unwrap().deed, Deed::Close);
        let in_it = read("my_pool_free").unwrap();
        assert_eq!((in_it.deed, in_it.ambiguous), (Deed::Free, true));
        assert!(!read("free_obj").unwrap().ambiguous);
    }

    /// Whatever is read later passes the filter before, mangled or not.
    #[test]
    fn filter() {
        for name in [
            "ngx_create_pool",
            "_ZN8tcmalloc8PageHeap3NewEm",
            "_ZN8MemChunkC1EP7MemPool",
            "MPL_Get",
        ] {
            assert!(is_interesting(name.as_bytes()), "{name}");
        }
        assert!(!is_interesting(b"memcpy"));
        assert!(!is_interesting(b"main"));
        // Each word counts, wherever it is and however it is written.
        let words = DEEDS.iter().flat_map(|(_, words)| words.iter()).chain(GRANULES);
        for word in words.chain(ALLOCS.iter()).chain(&["free"]) {
            for name in [(*word).to_owned(), format!("_x{}", word.to_uppercase())] {
                assert!(is_interesting(name.as_bytes()), "{name}");
                assert!(!is_interesting(&[b"_", &name.as_bytes()[..2]].concat()), "{name}");
            }
        }
    }

    /// Hostile names are bounded and do no harm.
    #[test]
    fn hostile_names() {
        for name in
            ["<".repeat(400), ":".repeat(400), "::~".into(), "<a as b".into(), "é_FREE_é".into()]
        {
            let _ = read(&name);
        }
        assert_eq!(read(&"alloc_".repeat(1000)), None);
    }
}
