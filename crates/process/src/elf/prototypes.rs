//! Prototypes of functions from DWARF: names and types of parameters, by the functions' addresses.
//!
//! For drafting profiles: a parameter's type says what it is far better than its position. Hostile input:
//! `gimli` decodes, the work is bounded here as in `types`.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{EndianSlice, LittleEndian};

use super::{
    types::{Trouble, Types},
    units::{At, Budget, Dwarf, Units},
};
use crate::printable;

/// Longest chain of types behind a parameter, and of origins of a function.
const MAX_CHAIN: u32 = 32;
/// Most parameters of one function.
const MAX_PARAMETERS: usize = 32;
/// Most functions that are kept of each sort.
const MAX_KEPT: usize = 200_000;

/// Which names are wanted.
pub type WantedFn<'w> = dyn Fn(&[u8]) -> bool + 'w;

/// A type, as far as a draft needs it. Names are hostile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeName {
    /// The name that the source gives it: the outermost typedef's, or the record's.
    pub name: String,
    /// The name behind all typedefs and pointers; empty for `void`.
    pub base: String,
    /// How many pointers (or references) lead to that, those in typedefs included.
    pub pointers: u8,
    /// It is a record (struct, class, union), at the end of all pointers.
    pub record: bool,
}

/// A parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; empty where the source gives none.
    pub name: String,
    /// Its type.
    pub kind: TypeName,
}

/// What the source says of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prototype {
    /// Its parameters, `this` included.
    pub parameters: Vec<Parameter>,
    /// What it returns; `None`: nothing.
    pub returns: Option<TypeName>,
}

/// What the debug information says of the functions asked for.
#[derive(Clone, Debug, Default)]
pub struct Prototypes {
    /// By the function's address.
    pub at: BTreeMap<u64, Prototype>,
    /// Names of functions that were inlined somewhere; they may exist out of line too.
    pub inlined: BTreeSet<String>,
}

impl Types {
    /// The prototypes of the functions at `addresses`, and the inlined functions whose names `wanted` takes
    /// (which takes longer to find).
    pub fn prototypes(
        &self,
        addresses: &BTreeSet<u64>,
        wanted: Option<&WantedFn<'_>>,
    ) -> Result<Prototypes, String> {
        let dwarf = self.dwarf();
        let mut search =
            Search { budget: Budget::new(), addresses, wanted, found: Prototypes::default() };
        match search.run(&dwarf) {
            Ok(()) => Ok(search.found),
            Err(Trouble::Fatal(what) | Trouble::NoMember(what)) => {
                Err(format!("{}: {what}", self.from()))
            }
        }
    }
}

type Entry<'a> = gimli::DebuggingInformationEntry<EndianSlice<'a, LittleEndian>>;

struct Search<'q> {
    budget: Budget,
    addresses: &'q BTreeSet<u64>,
    wanted: Option<&'q WantedFn<'q>>,
    found: Prototypes,
}

/// What stands out of line, or is only a template for what was inlined.
enum Seen {
    Code(u64),
    Inlined,
}

impl Search<'_> {
    fn run(&mut self, dwarf: &Dwarf<'_>) -> Result<(), Trouble> {
        let mut units = Units::new(dwarf);
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            let mut seen = Vec::new();
            let mut cursor = unit.entries();
            let mut descend = true;
            loop {
                self.budget.spend()?;
                let next = if descend { cursor.next_dfs()? } else { cursor.next_sibling()? };
                let Some(entry) = next else {
                    if descend {
                        break;
                    }
                    // The end of these siblings: go on after their parent.
                    descend = true;
                    continue;
                };
                // Functions stand in units, namespaces and records; what is in a function is of no use.
                descend = entry.depth() == 0
                    || matches!(
                        entry.tag(),
                        gimli::DW_TAG_namespace
                            | gimli::DW_TAG_structure_type
                            | gimli::DW_TAG_class_type
                            | gimli::DW_TAG_union_type
                            | gimli::DW_TAG_enumeration_type
                    );
                if entry.tag() == gimli::DW_TAG_subprogram
                    && let Some(what) = self.look(dwarf, &unit, entry)?
                {
                    seen.push((entry.offset(), what));
                }
            }
            if seen.is_empty() {
                continue;
            }
            let unit = units.keep(unit);
            for (offset, what) in seen {
                self.note(&mut units, At { unit, offset }, &what)?;
            }
        }
        Ok(())
    }

    /// Whether an entry is one of the functions that are wanted.
    fn look<'a>(
        &self,
        dwarf: &Dwarf<'a>,
        unit: &super::units::Unit<'a>,
        entry: &Entry<'a>,
    ) -> Result<Option<Seen>, Trouble> {
        if let Some(value) = entry.attr_value(gimli::DW_AT_low_pc) {
            let address = dwarf.attr_address(unit, value)?;
            return Ok(address.filter(|address| self.addresses.contains(address)).map(Seen::Code));
        }
        let inlined = self.wanted.is_some()
            && matches!(
                entry.attr_value(gimli::DW_AT_inline),
                Some(gimli::AttributeValue::Inline(
                    gimli::DW_INL_inlined | gimli::DW_INL_declared_inlined
                ))
            );
        Ok(inlined.then_some(Seen::Inlined))
    }

    fn note(&mut self, units: &mut Units<'_, '_>, at: At, seen: &Seen) -> Result<(), Trouble> {
        match seen {
            Seen::Code(address) => {
                if self.found.at.len() < MAX_KEPT && !self.found.at.contains_key(address) {
                    let prototype = self.prototype(units, at)?;
                    self.found.at.insert(*address, prototype);
                }
            }
            Seen::Inlined => {
                if let Some(name) = self.name(units, at)?
                    && self.wanted.is_some_and(|wanted| wanted(&name))
                    && self.found.inlined.len() < MAX_KEPT
                {
                    self.found.inlined.insert(String::from_utf8_lossy(&name).into_owned());
                }
            }
        }
        Ok(())
    }

    /// The places that say something of an entry: itself, and what it is an instance or the body of.
    fn origins(&mut self, units: &mut Units<'_, '_>, start: At) -> Result<Vec<At>, Trouble> {
        let mut all = vec![start];
        let mut at = start;
        for _ in 0..MAX_CHAIN {
            self.budget.spend()?;
            let entry = units.entry(at)?;
            let Some(value) = entry
                .attr_value(gimli::DW_AT_abstract_origin)
                .or_else(|| entry.attr_value(gimli::DW_AT_specification))
            else {
                break;
            };
            at = units.follow(at, value)?;
            all.push(at);
        }
        Ok(all)
    }

    fn name(&mut self, units: &mut Units<'_, '_>, at: At) -> Result<Option<Vec<u8>>, Trouble> {
        for at in self.origins(units, at)? {
            if let Some(name) = units.linkage_name_at(at)? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn prototype(&mut self, units: &mut Units<'_, '_>, at: At) -> Result<Prototype, Trouble> {
        let origins = self.origins(units, at)?;
        let mut prototype = Prototype::default();
        // The body's own parameters say where their names and types are; a declaration's come without `this`
        // names now and then, so the first that has any counts.
        for &origin in &origins {
            for child in units.children(origin)? {
                self.budget.spend()?;
                if child.tag == gimli::DW_TAG_formal_parameter
                    && prototype.parameters.len() < MAX_PARAMETERS
                {
                    let parameter = self.parameter(units, child.at)?;
                    prototype.parameters.push(parameter);
                }
            }
            if !prototype.parameters.is_empty() {
                break;
            }
        }
        for &origin in &origins {
            if let Some(value) = units.entry(origin)?.attr_value(gimli::DW_AT_type) {
                let at = units.follow(origin, value)?;
                prototype.returns = Some(self.type_name(units, at)?);
                break;
            }
        }
        Ok(prototype)
    }

    fn parameter(&mut self, units: &mut Units<'_, '_>, at: At) -> Result<Parameter, Trouble> {
        let mut parameter = Parameter::default();
        let mut typed = false;
        for origin in self.origins(units, at)? {
            if parameter.name.is_empty()
                && let Some(name) = units.name_at(origin)?
            {
                parameter.name = printable(name);
            }
            if !typed && let Some(value) = units.entry(origin)?.attr_value(gimli::DW_AT_type) {
                let at = units.follow(origin, value)?;
                parameter.kind = self.type_name(units, at)?;
                typed = true;
            }
        }
        Ok(parameter)
    }

    fn type_name(&mut self, units: &mut Units<'_, '_>, start: At) -> Result<TypeName, Trouble> {
        let mut found = TypeName::default();
        let mut at = start;
        for _ in 0..MAX_CHAIN {
            self.budget.spend()?;
            let tag = units.entry(at)?.tag();
            let name = units.name_at(at)?.map(printable);
            match tag {
                gimli::DW_TAG_pointer_type
                | gimli::DW_TAG_reference_type
                | gimli::DW_TAG_rvalue_reference_type => {
                    found.pointers = found.pointers.saturating_add(1);
                }
                gimli::DW_TAG_typedef => {
                    if found.name.is_empty() {
                        found.name = name.unwrap_or_default();
                    }
                }
                gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type => {}
                _ => {
                    found.record = matches!(
                        tag,
                        gimli::DW_TAG_structure_type
                            | gimli::DW_TAG_class_type
                            | gimli::DW_TAG_union_type
                    );
                    found.base = name.unwrap_or_default();
                    break;
                }
            }
            let Some(value) = units.entry(at)?.attr_value(gimli::DW_AT_type) else { break };
            at = units.follow(at, value)?;
        }
        if found.name.is_empty() {
            found.name.clone_from(&found.base);
        }
        Ok(found)
    }
}
