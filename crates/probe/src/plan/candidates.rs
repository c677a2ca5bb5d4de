//! Where a probe can go in one object, and what is special about it.
//!
//! Knows clones, IFUNCs, aliases by version and names that are not code; called by `build` for each
//! probe and object.

use drainprof_process::{
    Elf, Followed, IfuncKey, SymbolHit, SymbolKind,
    elf::{CloneKind, readable},
    printable,
};
use drainprof_profile::{Address, Finding};

use super::{
    matching::{address_text, list, unmatched, without_symbols},
    structors::without_wrappers,
    usdt_site::UsdtSite,
};

/// Most sites of one address: more is a mistake in the pattern, and costs attach time.
const MAX_SITES: usize = 256;

/// A site that the address of a probe names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) symbol: String,
    /// The name that the profile gives it, where it has another one itself.
    pub(super) alias: Option<String>,
    /// Device and inode of its object: an IFUNC may stand for a function of another one.
    pub(super) inode: (u64, u64),
    pub(super) file_offset: u64,
    /// What a USDT probe has there.
    pub(super) usdt: Option<UsdtSite>,
}

/// An object in its process.
#[derive(Clone, Copy)]
pub(super) struct Within<'a> {
    pub(super) elf: &'a Elf,
    /// Its device and inode.
    pub(super) inode: (u64, u64),
    /// What IFUNCs of the process stand for.
    pub(super) followed: &'a [Followed],
}

/// The sites of a probe in one object, none if its address is not there.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) all: Vec<Candidate>,
    pub(super) findings: Vec<Finding>,
    /// Why there is none.
    pub(super) missing: Option<String>,
    /// Why some calls may go by unseen, or be seen wrongly.
    pub(super) doubt: Option<&'static str>,
}

/// Finds where `address` is in an object.
pub(super) fn find(within: Within<'_>, address: &Address) -> Candidates {
    let Within { elf, inode, .. } = within;
    let mut found = Candidates::default();
    match address {
        Address::Symbol(name) => {
            let hits = elf.resolve(name);
            if hits.is_empty() {
                found.take_clones(within, name);
            } else {
                found.take_hits(within, &hits);
                found.warn_of_ambiguity(elf, name, &hits);
                found.warn_of_clones(elf, name);
            }
        }
        Address::Demangled(glob) => match elf.resolve_demangled(glob) {
            Err(error) => found.missing = Some(error.to_string()),
            Ok(hits) if hits.len() > MAX_SITES => {
                found.missing = Some(format!(
                    "it matches {} functions, more than {MAX_SITES}: make the pattern narrower",
                    hits.len()
                ));
            }
            Ok(hits) => {
                let (hits, wrappers) = without_wrappers(elf, &hits);
                found.take_hits(within, &hits);
                found.report_wrappers(&wrappers);
                for hit in &hits {
                    found.warn_of_clones(elf, &hit.name);
                }
            }
        },
        Address::Offset(offset) => match elf.code_at(*offset) {
            Ok(_) => {
                let symbol = address_text(address);
                found.all.push(Candidate {
                    symbol,
                    alias: None,
                    inode,
                    file_offset: *offset,
                    usdt: None,
                });
            }
            Err(error) => found.missing = Some(error.to_string()),
        },
        Address::Usdt { provider, name } => {
            match usdt_sites(within, provider, name, &address_text(address)) {
                Ok(sites) => found.all = sites,
                Err(why) => found.missing = Some(why),
            }
        }
    }
    if found.all.is_empty() && found.missing.is_none() {
        found.missing = Some(match without_symbols(elf) {
            None => match address {
                Address::Demangled(glob) => unmatched(elf, glob),
                _ => "no such symbol".into(),
            },
            Some(tried) if tried.is_empty() => {
                "no such exported symbol (the object is stripped and names no debug file)".into()
            }
            Some(tried) => format!(
                "no such exported symbol (the object is stripped; no debug file at {})",
                list(&tried)
            ),
        });
    }
    found
}

/// The sites of a USDT probe: all of them, or why one cannot be probed.
fn usdt_sites(
    within: Within<'_>,
    provider: &str,
    name: &str,
    text: &str,
) -> Result<Vec<Candidate>, String> {
    let Within { elf, inode, .. } = within;
    let notes = elf.usdt(provider, name)?;
    if notes.is_empty() {
        return Err("no such USDT probe".to_owned());
    }
    if notes.len() > MAX_SITES {
        return Err(format!("it has {} places, more than {MAX_SITES}", notes.len()));
    }
    let mut sites: Vec<Candidate> = Vec::with_capacity(notes.len());
    for note in notes {
        let file_offset = elf.file_offset(note.vaddr).filter(|_| elf.is_code(note.vaddr));
        let file_offset =
            file_offset.ok_or_else(|| format!("its place {:#x} is not in the code", note.vaddr))?;
        let usdt = Some(UsdtSite::new(elf, note)?);
        sites.push(Candidate { symbol: text.to_owned(), alias: None, inode, file_offset, usdt });
    }
    Ok(sites)
}

impl Candidates {
    fn note(&mut self, code: &str, message: String) {
        self.findings.push(Finding { code: code.to_owned(), message });
    }

    /// Takes the functions among `hits`; several names at one offset are all kept, `build` joins them.
    fn take_hits(&mut self, within: Within<'_>, hits: &[SymbolHit]) {
        let Within { elf, inode, .. } = within;
        for hit in hits {
            let (name, object) = (printable(&hit.name), elf.shown_path());
            match hit.kind {
                SymbolKind::Ifunc => self.take_ifunc(within, hit),
                _ if !elf.is_code(hit.vaddr) => {
                    self.note(
                        "not_a_function",
                        format!("{name} in {object} is data, not a function"),
                    );
                    self.missing = Some("data, not a function".into());
                }
                _ => match hit.file_offset {
                    Some(file_offset) => {
                        let symbol = hit.name.clone();
                        self.all.push(Candidate {
                            symbol,
                            alias: None,
                            inode,
                            file_offset,
                            usdt: None,
                        });
                    }
                    None => self.missing = Some("not in the file".into()),
                },
            }
        }
        if !self.all.is_empty() {
            self.missing = None;
        }
    }

    /// Constructors and destructors that only call another symbol of the same, which is probed instead.
    fn report_wrappers(&mut self, wrappers: &[(String, String)]) {
        for (wrapper, inner) in wrappers {
            self.note(
                "wrapper",
                format!(
                    "{} only calls {} ({}): one is probed, so that nothing counts twice",
                    printable(wrapper),
                    printable(inner),
                    printable(readable(inner)),
                ),
            );
        }
    }

    /// Takes the functions that an IFUNC stands for in this process.
    fn take_ifunc(&mut self, within: Within<'_>, hit: &SymbolHit) {
        let (name, object) = (printable(&hit.name), within.elf.shown_path());
        let key = IfuncKey { inode: within.inode, resolver: hit.vaddr };
        let followed = within.followed.iter().find(|followed| followed.key == key);
        let why = match followed.map(|followed| &followed.outcome) {
            Some(Ok(implementations)) => {
                let names: Vec<String> =
                    implementations.iter().map(|place| printable(&place.symbol)).collect();
                let names = list(&names);
                self.doubt = Some("an IFUNC");
                self.note(
                    "ifunc",
                    format!(
                        "{name} in {object} chooses its implementation when it is loaded (IFUNC); this process \
                         uses {names}, which is probed"
                    ),
                );
                self.all.extend(implementations.iter().map(|place| Candidate {
                    symbol: place.symbol.clone(),
                    alias: Some(hit.name.clone()),
                    inode: place.inode,
                    file_offset: place.file_offset,
                    usdt: None,
                }));
                return;
            }
            Some(Err(why)) => why.as_str(),
            None => "it was not searched for",
        };
        self.note(
            "ifunc",
            format!(
                "{name} in {object} chooses its implementation when it is loaded (IFUNC) and is not probed, since \
                 that one is not known: {why}; name the implementation in the profile instead"
            ),
        );
        self.missing = Some(format!("an IFUNC whose implementation is not known: {why}"));
    }

    /// Functions of one name that no other object can see are several functions.
    fn warn_of_ambiguity(&mut self, elf: &Elf, name: &str, hits: &[SymbolHit]) {
        let mut addresses: Vec<u64> = hits.iter().map(|hit| hit.vaddr).collect();
        addresses.dedup();
        if addresses.len() > 1 && hits.iter().any(|hit| !hit.global) {
            self.note(
                "ambiguous",
                format!(
                    "{} has {} different functions called {}; all are probed",
                    elf.shown_path(),
                    addresses.len(),
                    printable(name)
                ),
            );
        }
    }

    /// The function is there, and so are copies or parts of it, which its probe does not see.
    fn warn_of_clones(&mut self, elf: &Elf, name: &str) {
        if self.all.is_empty() {
            return;
        }
        let clones: Vec<String> = elf
            .clones(name)
            .into_iter()
            .filter(|(_, kind)| matches!(kind, CloneKind::Copy | CloneKind::Part))
            .map(|(hit, _)| printable(&hit.name))
            .collect();
        if !clones.is_empty() {
            self.doubt = Some("calls of its clones are not seen");
            self.note(
                "clones",
                format!(
                    "the compiler made {} of {} in {}: calls that go there are not seen",
                    list(&clones),
                    printable(name),
                    elf.shown_path()
                ),
            );
        }
    }

    /// The function is not there; what the compiler made of it may be.
    fn take_clones(&mut self, within: Within<'_>, name: &str) {
        let elf = within.elf;
        let clones = elf.clones(name);
        let of = |kind: CloneKind| -> Vec<SymbolHit> {
            let all = clones.iter().filter(|(_, found)| *found == kind);
            all.map(|(hit, _)| hit.clone()).collect()
        };
        // A part is called by the copies: probing both would count a call twice.
        let (kind, hits) = [CloneKind::Renamed, CloneKind::Copy, CloneKind::Part]
            .into_iter()
            .map(|kind| (kind, of(kind)))
            .find(|(_, hits)| !hits.is_empty())
            .unwrap_or((CloneKind::Cold, Vec::new()));
        if hits.is_empty() {
            return;
        }
        self.take_hits(within, &hits);
        let (shown, object) = (printable(name), elf.shown_path());
        let names: Vec<String> = hits.iter().map(|hit| printable(&hit.name)).collect();
        let names = list(&names);
        if kind != CloneKind::Renamed {
            self.doubt = Some("it exists only as clones");
        }
        match kind {
            CloneKind::Renamed => {
                self.note("renamed", format!("{shown} is called {names} in {object}"));
            }
            CloneKind::Copy => self.note(
                "clone_only",
                format!(
                    "{shown} exists in {object} only as {names}: arguments may have moved or be missing, so check \
                     the numbers"
                ),
            ),
            CloneKind::Part | CloneKind::Cold => self.note(
                "clone_only",
                format!(
                    "{shown} exists in {object} only as {names}, the rest is inlined into its callers: calls that \
                     end before it are not seen, and arguments may have moved"
                ),
            ),
        }
    }
}
