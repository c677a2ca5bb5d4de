//! `drainprof profile new`: lists an object's functions and has a profile drafted from them.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_process::{CloneKind, DebugSearch, Elf, SymbolHit, SymbolKind, elf, printable};
use drainprof_profile::draft::{self, Function, Request, Signature};

use super::{code, exit::Failure};

/// Most functions that are looked at closely.
const MAX_FUNCTIONS: usize = 20_000;
/// Most functions whose code is searched for calls.
const MAX_SEARCHED: usize = 5_000;

#[derive(Args, Debug)]
pub(super) struct NewArgs {
    /// The program or library.
    #[arg(long, value_name = "BINARY")]
    from_symbols: PathBuf,
    /// The profile's name. Default: made from the prefix, or the file's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only functions that begin with this: `ngx_`, or `my::Arena`.
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Write to this file instead of stdout; one that exists is not overwritten.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Look for separate debug files here too.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_DEBUG_DIR")]
    debug_dir: Vec<PathBuf>,
}

/// Drafts a profile.
pub(super) fn main(args: &NewArgs) -> Result<u8> {
    let path = &args.from_symbols;
    let shown = printable(path.as_os_str().as_encoded_bytes());
    let whole = fs::canonicalize(path).with_context(|| format!("cannot open {shown}"))?;
    let search = DebugSearch {
        process_root: None,
        object_path: Some(whole.clone()),
        debug_dirs: args.debug_dir.clone(),
    };
    let elf = Elf::open(&whole, &shown, search)?;
    let hits: Vec<SymbolHit> = elf
        .functions(draft::is_interesting)
        .into_iter()
        .filter(|hit| draft::says_something(&shown_name(&hit.name)))
        .collect();
    let types = elf.types();
    // With a prefix the user knows what to look for, and wants to know why it is not there.
    let inlined: Option<&elf::WantedFn<'_>> =
        if args.prefix.is_some() { Some(&draft::is_interesting) } else { None };
    let addresses: BTreeSet<u64> = hits.iter().map(|hit| hit.vaddr).collect();
    let (prototypes, without) = match types.and_then(|types| types.prototypes(&addresses, inlined))
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
    let begins = |name: &str| args.prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix));
    let inlined_only: Vec<String> = prototypes
        .inlined
        .iter()
        .filter(|name| !known.contains(name.as_str()))
        .map(|name| without_parameters(&elf::readable(name)))
        .filter(|name| begins(name) && args.prefix.is_some())
        .collect();
    let object = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let request = Request {
        object: &object,
        name: args.name.as_deref(),
        prefix: args.prefix.as_deref(),
        without_prototypes: without.as_deref(),
        inlined_only: &inlined_only,
    };
    let drafted = draft::draft(&request, &functions).map_err(|error| {
        let stripped = match (elf.is_stripped(), elf.debug_file()) {
            (true, None) => {
                ". It is stripped: only exported functions have names; a debug file would help"
            }
            _ => "",
        };
        Failure::new(code::NO_TARGET, format!("{error}{stripped}"))
    })?;
    write(args.output.as_deref(), &drafted.text)?;
    eprintln!(
        "drainprof: a draft with {} probes, levels {}; its comments say what is left to decide",
        drafted.probes,
        drafted.levels.join(", ")
    );
    Ok(code::OK)
}

fn write(output: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = output else {
        return Ok(io::stdout().lock().write_all(text.as_bytes())?);
    };
    // Somebody may have finished an earlier draft.
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write the draft to {}", path.display()))
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
