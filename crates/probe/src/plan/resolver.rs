//! What expressions ask about the object that they are compiled for: addresses of variables, offsets
//! of members.
//!
//! Made by `build`, asked by the expression compiler. Pure but for reading the object's debug
//! information, which it does at most once.

use std::cell::{OnceCell, RefCell};

use drainprof_process::{LoadedObject, SymbolHit, SymbolKind, elf::Types, printable};
use drainprof_profile::{Finding, Resolver};

/// Answers for one object of one process.
#[derive(Debug)]
pub struct ObjectResolver<'a> {
    object: &'a LoadedObject,
    main: Option<&'a LoadedObject>,
    /// Kept for the next question: debug information takes long to read and is large.
    types: OnceCell<Result<Types, String>>,
    findings: RefCell<Vec<Finding>>,
}

impl<'a> ObjectResolver<'a> {
    /// For `object`, in a process whose main program is `main`.
    #[must_use]
    pub fn new(object: &'a LoadedObject, main: Option<&'a LoadedObject>) -> Self {
        Self { object, main, types: OnceCell::new(), findings: RefCell::default() }
    }

    /// What the user should know about the answers that were given.
    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings.into_inner()
    }

    /// A variable that a library and the main program both export is the main program's for all objects:
    /// programs at a fixed address hold copies of the library variables that they use.
    fn interposed(&self, symbol: &str) -> Option<u64> {
        let main = self.main.filter(|main| main.mapped.inode != self.object.mapped.inode)?;
        self.object.elf.as_ref().ok()?.exported_data(symbol)?;
        let vaddr = main.elf.as_ref().ok()?.exported_data(symbol)?;
        Some(vaddr.wrapping_add(self.bias(main)?))
    }

    fn bias(&self, object: &LoadedObject) -> Option<u64> {
        let biases = object.biases();
        if biases.len() > 1 {
            self.note(
                "loaded_twice",
                format!(
                    "{} is loaded {} times; variables are those of the first",
                    object.mapped.shown_path,
                    biases.len()
                ),
            );
        }
        biases.first().copied()
    }

    fn note(&self, code: &str, message: String) {
        let finding = Finding { code: code.to_owned(), message };
        let mut findings = self.findings.borrow_mut();
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
}

impl Resolver for ObjectResolver<'_> {
    /// The address in the running process of the global symbol `symbol`; `None` where the object has no
    /// such symbol, or several.
    fn var(&self, symbol: &str) -> Option<u64> {
        if let Some(address) = self.interposed(symbol) {
            return Some(address);
        }
        let elf = self.object.elf.as_ref().ok()?;
        let hits = elf.resolve(symbol);
        // A name for data is meant here, if there is one.
        let data: Vec<&SymbolHit> =
            hits.iter().filter(|hit| hit.kind == SymbolKind::Object).collect();
        let chosen: Vec<&SymbolHit> = if data.is_empty() { hits.iter().collect() } else { data };
        let [hit] = chosen[..] else {
            if chosen.len() > 1 {
                self.note(
                    "ambiguous_variable",
                    format!(
                        "{} has {} variables called {}; none can be chosen",
                        self.object.mapped.shown_path,
                        chosen.len(),
                        printable(symbol)
                    ),
                );
            }
            return None;
        };
        Some(hit.vaddr.wrapping_add(self.bias(self.object)?))
    }

    /// The offset of `field` in `type_name`, from the object's debug information.
    fn offset_of(&self, type_name: &str, field: &str) -> Result<u64, String> {
        let elf = self.object.elf.as_ref().map_err(ToString::to_string)?;
        self.types
            .get_or_init(|| elf.types())
            .as_ref()
            .map_err(Clone::clone)?
            .offset_of(type_name, field)
    }
}
