//! Drafts a profile from the functions of a program or library.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

use drainprof_process::{CloneKind, DebugSearch, Elf, ElfError, SymbolHit, SymbolKind, elf};
use drainprof_profile::{
    Kind,
    draft::{self, Draft, DraftError, Function, Member, Request, Signature},
};

/// Most functions that are looked at closely.
const MAX_FUNCTIONS: usize = 20_000;
/// Most functions whose code is searched for calls.
const MAX_SEARCHED: usize = 5_000;

/// What is to be drafted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The file's name, for comments.
    pub object: &'a str,
    /// The profile's name; `None`: made from the prefix, or the file's name.
    pub name: Option<&'a str>,
    /// Only functions that begin with this.
    pub prefix: Option<&'a str>,
    /// The kind that is claimed.
    pub kind: Kind,
    /// Whether granules' own live counts decide their closes, where they seem to have some.
    pub live: bool,
}

/// Why there is no draft.
#[derive(Debug, thiserror::Error)]
pub enum DraftingError {
    /// The file cannot be read.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Its functions cannot be probed safely.
    #[error(
        "a Go program: probes at returns would crash it, and its calls pass values in their own way"
    )]
    Go,
    /// Its functions show no allocator.
    #[error("{error}{stripped}")]
    Draft {
        /// What was missed.
        #[source]
        error: DraftError,
        /// What may be the cause.
        stripped: &'static str,
    },
}

/// The functions of a file, as far as their names say something.
#[derive(Debug)]
pub struct Listed {
    functions: Vec<Function>,
    types: Option<elf::Types>,
    /// Names of those that exist only inlined.
    inlined: Vec<String>,
    without_prototypes: Option<String>,
    /// What an error adds.
    stripped: &'static str,
    build: Option<String>,
}

/// Digits of a build id that tell builds apart.
const BUILD_DIGITS: usize = 12;

impl Listed {
    /// Reads the functions of the file at `path`, which messages call `shown`; of inlined ones, those that begin with
    /// `prefix`.
    ///
    /// # Errors
    /// If it is no ELF file, or its functions cannot be probed safely.
    pub fn read(
        path: &Path,
        shown: &str,
        search: DebugSearch,
        prefix: Option<&str>,
    ) -> Result<Self, DraftingError> {
        let elf = Elf::open(path, shown, search)?;
        if elf.is_go() {
            return Err(DraftingError::Go);
        }
        let hits: Vec<SymbolHit> = elf
            .functions(draft::is_interesting)
            .into_iter()
            .filter(|hit| draft::says_something(&shown_name(&hit.name)))
            .collect();
        let types = elf.types();
        // With a prefix the user knows what to look for, and wants to know why it is not there.
        let wanted: Option<&elf::WantedFn<'_>> =
            if prefix.is_some() { Some(&draft::is_interesting) } else { None };
        let addresses: BTreeSet<u64> = hits.iter().map(|hit| hit.vaddr).collect();
        let (prototypes, without_prototypes) = match types
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|types| types.prototypes(&addresses, wanted))
        {
            Ok(found) => (found, None),
            Err(why) => (elf::Prototypes::default(), Some(why)),
        };
        let mut own = elf.own_calls(&hits);
        let functions: Vec<Function> = hits
            .iter()
            .take(MAX_FUNCTIONS)
            .enumerate()
            .map(|(index, hit)| {
                let calls =
                    if index < MAX_SEARCHED { elf.calls(hit, &mut own) } else { BTreeSet::new() };
                let signature = prototypes.at.get(&hit.vaddr).map(signature);
                function(hit, signature, calls.into_iter().collect())
            })
            .collect();
        let known: HashSet<&str> = hits.iter().map(|hit| hit.name.as_str()).collect();
        let inlined = prototypes
            .inlined
            .iter()
            .filter(|name| !known.contains(name.as_str()))
            .map(|name| without_parameters(&elf::readable(name)))
            .filter(|name| prefix.is_some_and(|prefix| name.starts_with(prefix)))
            .collect();
        let stripped = if elf.is_stripped() && elf.debug_file().is_none() {
            ". It is stripped: only exported functions have names; a debug file would help"
        } else {
            ""
        };
        let build = elf.build_id().map(|id| id.chars().take(BUILD_DIGITS).collect());
        Ok(Self { functions, types: types.ok(), inlined, without_prototypes, stripped, build })
    }

    /// The first digits of the build id.
    #[must_use]
    pub fn build(&self) -> Option<String> {
        self.build.clone()
    }

    /// Drafts a profile.
    ///
    /// # Errors
    /// If the functions do not look like those of an allocator.
    pub fn draft(&self, wanted: &Wanted<'_>) -> Result<Draft, DraftingError> {
        let members = self.members(wanted.prefix);
        let request = Request {
            object: wanted.object,
            kind: wanted.kind,
            name: wanted.name,
            prefix: wanted.prefix,
            without_prototypes: self.without_prototypes.as_deref(),
            inlined_only: &self.inlined,
            members: &members,
            live: wanted.live,
        };
        draft::draft(&request, &self.functions)
            .map_err(|error| DraftingError::Draft { error, stripped: self.stripped })
    }
}

impl Listed {
    /// The integers in granules, as far as there is debug information.
    fn members(&self, prefix: Option<&str>) -> Vec<Member> {
        let Some(types) = &self.types else { return Vec::new() };
        let mut members = Vec::new();
        for (of, scoped) in draft::granule_records(&self.functions, prefix) {
            let found = [&scoped, &of]
                .into_iter()
                .find_map(|path| Some((path, types.integers_of(path).ok()?)));
            if let Some((path, integers)) = found {
                members.extend(integers.into_iter().map(|integer| Member {
                    of: of.clone(),
                    path: path.clone(),
                    name: integer.name,
                    bytes: integer.bytes,
                }));
            }
        }
        members
    }
}

/// A symbol's name as people write it, without parameters.
fn shown_name(symbol: &str) -> String {
    let readable = elf::readable(symbol);
    if readable == symbol { readable } else { without_parameters(&readable) }
}

/// A symbol as a draft sees it.
fn function(hit: &SymbolHit, signature: Option<Signature>, calls: Vec<u64>) -> Function {
    let shown = shown_name(&hit.name);
    let mangled = shown != hit.name;
    // The mangled names of Rust carry a hash that every build changes.
    let rust = mangled && rustc_mangled(&hit.name);
    let at = if rust { format!("demangled:{}", glob(&shown)) } else { hit.name.clone() };
    Function {
        symbol: hit.name.clone(),
        shown,
        at,
        address: hit.vaddr,
        unfit: unfit(hit),
        exported: hit.global,
        signature,
        calls,
    }
}

/// Why a symbol is nothing to probe.
fn unfit(hit: &SymbolHit) -> Option<String> {
    if hit.kind == SymbolKind::Ifunc {
        return Some("an IFUNC: name it by hand, it is followed to what it stands for".to_owned());
    }
    let what = match Elf::clone_kind(&hit.name)? {
        CloneKind::Renamed => return None,
        CloneKind::Copy => "a copy that the compiler made, with other parameters",
        CloneKind::Part => "a part of a function; the rest was inlined",
        CloneKind::Cold => "code that is jumped into, never called",
    };
    Some(what.to_owned())
}

fn rustc_mangled(name: &str) -> bool {
    name.starts_with("_R") || {
        // `…17h` and sixteen digits of hash.
        let hash = name.rfind("17h").map(|at| &name[at + 3..]);
        hash.and_then(|rest| rest.get(..16))
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }
}

/// A name as a pattern that matches it: what means something in patterns stands for any character.
fn glob(name: &str) -> String {
    name.chars().map(|c| if "*?[]{}!\\,".contains(c) { '?' } else { c }).collect()
}

/// A demangled name without its parameters: up to the parenthesis that stands in no brackets.
fn without_parameters(name: &str) -> String {
    let mut depth = 0_u32;
    for (at, c) in name.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 && at > 0 && !name[at..].starts_with("(anonymous") => {
                return name[..at].to_owned();
            }
            _ => {}
        }
    }
    name.to_owned()
}

fn signature(found: &elf::Prototype) -> Signature {
    let kind = |found: &elf::TypeName| draft::Type {
        name: found.name.clone(),
        base: found.base.clone(),
        pointers: found.pointers,
        record: found.record,
    };
    Signature {
        parameters: found
            .parameters
            .iter()
            .map(|parameter| draft::Parameter {
                name: parameter.name.clone(),
                kind: kind(&parameter.kind),
            })
            .collect(),
        returns: found.returns.as_ref().map(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names lose their parameters, and become patterns that match themselves.
    #[test]
    fn names() {
        assert_eq!(without_parameters("a::B<c(d)>::e(int, f)"), "a::B<c(d)>::e");
        assert_eq!(without_parameters("(anonymous namespace)::f(int)"), "(anonymous namespace)::f");
        assert_eq!(without_parameters("plain"), "plain");
        assert_eq!(glob("a::B<[u8; 4]>::new"), "a::B<?u8; 4?>::new");
        assert!(rustc_mangled("_ZN7bumpalo4Bump5reset17h0123456789abcdefE"));
        assert!(!rustc_mangled("_ZN8tcmalloc8PageHeap3NewEm"));
    }
}
