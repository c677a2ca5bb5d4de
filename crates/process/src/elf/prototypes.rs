//! Prototypes of functions from DWARF: names and types of parameters, by the functions' addresses.
//!
//! For drafting profiles: a parameter's type says what it is far better than its position.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    types::Types,
    units::{At, Dwarf, Entry, Search, Trouble, Unit, Units, is_qualifier, is_record},
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
        let mut search = FunctionSearch { addresses, wanted, found: Prototypes::default() };
        self.search(&mut search)?;
        Ok(search.found)
    }
}

struct FunctionSearch<'q> {
    addresses: &'q BTreeSet<u64>,
    wanted: Option<&'q WantedFn<'q>>,
    found: Prototypes,
}

impl Search for FunctionSearch<'_> {
    /// The address of a function; `None` for one that was inlined everywhere.
    type Seen = Option<u64>;

    fn visit<'a>(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> Result<(bool, Option<Option<u64>>), Trouble> {
        // Functions stand in units, namespaces and records; what is in a function is of no use.
        let tag = entry.tag();
        let descend = entry.depth() == 0
            || is_record(tag)
            || matches!(tag, gimli::DW_TAG_namespace | gimli::DW_TAG_enumeration_type);
        if tag != gimli::DW_TAG_subprogram {
            return Ok((descend, None));
        }
        if let Some(value) = entry.attr_value(gimli::DW_AT_low_pc) {
            let address = dwarf.attr_address(unit, value)?;
            let wanted = address.filter(|address| self.addresses.contains(address));
            return Ok((descend, wanted.map(Some)));
        }
        let inlined = self.wanted.is_some()
            && matches!(
                entry.attr_value(gimli::DW_AT_inline),
                Some(gimli::AttributeValue::Inline(
                    gimli::DW_INL_inlined | gimli::DW_INL_declared_inlined
                ))
            );
        Ok((descend, inlined.then_some(None)))
    }

    fn note(
        &mut self,
        units: &mut Units<'_, '_>,
        at: At,
        address: Option<u64>,
    ) -> Result<(), Trouble> {
        let Prototypes { at: known, inlined } = &mut self.found;
        match address {
            Some(address) => {
                if known.len() < MAX_KEPT && !known.contains_key(&address) {
                    known.insert(address, prototype(units, at)?);
                }
            }
            None => {
                if let Some(name) = linkage_name(units, at)?
                    && self.wanted.is_some_and(|wanted| wanted(&name))
                    && inlined.len() < MAX_KEPT
                {
                    inlined.insert(String::from_utf8_lossy(&name).into_owned());
                }
            }
        }
        Ok(())
    }
}

/// The places that describe an entry: itself, and what it is an instance or the body of.
fn origins(units: &mut Units<'_, '_>, start: At) -> Result<Vec<At>, Trouble> {
    let mut all = vec![start];
    let mut at = start;
    for _ in 0..MAX_CHAIN {
        let Some(next) = (match units.follow(at, gimli::DW_AT_abstract_origin)? {
            None => units.follow(at, gimli::DW_AT_specification)?,
            origin => origin,
        }) else {
            break;
        };
        at = next;
        all.push(at);
    }
    Ok(all)
}

/// The name by which the linker knows a function, else its own.
fn linkage_name(units: &mut Units<'_, '_>, at: At) -> Result<Option<Vec<u8>>, Trouble> {
    for at in origins(units, at)? {
        for attribute in [gimli::DW_AT_linkage_name, gimli::DW_AT_name] {
            if let Some(name) = units.text(at, attribute)? {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

/// The type of the first origin that has one.
fn type_of(units: &mut Units<'_, '_>, origins: &[At]) -> Result<Option<TypeName>, Trouble> {
    for &origin in origins {
        if let Some(at) = units.follow(origin, gimli::DW_AT_type)? {
            return type_name(units, at).map(Some);
        }
    }
    Ok(None)
}

fn prototype(units: &mut Units<'_, '_>, at: At) -> Result<Prototype, Trouble> {
    let origins = origins(units, at)?;
    let mut parameters = Vec::new();
    // The body's own parameters say where their names and types are; a declaration's come without `this`
    // names now and then, so the first that has any counts.
    for &origin in &origins {
        for child in units.children(origin)? {
            if units.entry(child)?.tag() == gimli::DW_TAG_formal_parameter
                && parameters.len() < MAX_PARAMETERS
            {
                parameters.push(parameter(units, child)?);
            }
        }
        if !parameters.is_empty() {
            break;
        }
    }
    Ok(Prototype { parameters, returns: type_of(units, &origins)? })
}

fn parameter(units: &mut Units<'_, '_>, at: At) -> Result<Parameter, Trouble> {
    let origins = origins(units, at)?;
    let mut name = None;
    for &origin in &origins {
        name = name.or(units.text(origin, gimli::DW_AT_name)?);
    }
    let name = name.map(printable).unwrap_or_default();
    Ok(Parameter { name, kind: type_of(units, &origins)?.unwrap_or_default() })
}

fn type_name(units: &mut Units<'_, '_>, start: At) -> Result<TypeName, Trouble> {
    let mut found = TypeName::default();
    let mut next = Some(start);
    for _ in 0..MAX_CHAIN {
        let Some(at) = next else { break };
        let tag = units.entry(at)?.tag();
        let name = units.text(at, gimli::DW_AT_name)?.map(printable).unwrap_or_default();
        match tag {
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => {
                found.pointers = found.pointers.saturating_add(1);
            }
            gimli::DW_TAG_typedef => {
                if found.name.is_empty() {
                    found.name = name;
                }
            }
            tag if is_qualifier(tag) => {}
            _ => {
                found.record = is_record(tag);
                found.base = name;
                break;
            }
        }
        next = units.follow(at, gimli::DW_AT_type)?;
    }
    if found.name.is_empty() {
        found.name.clone_from(&found.base);
    }
    Ok(found)
}
