//! Member offsets from DWARF: `offsetof(struct ngx_pool_s, d.next)` for a binary nobody recompiles.
//!
//! Knows structs, unions, C++ classes (with bases) and type names in namespaces; not what needs the program to run (virtual bases).
//! Asked by the expression compiler through `plan::ObjectResolver`. Hostile input: `gimli` decodes, the work is bounded here.

use std::cell::Cell;

use gimli::{DwarfSections, EndianSlice, LittleEndian};

use super::{
    Elf, debug, read,
    units::{At, Budget, Dwarf, Unit, Units},
};
use crate::printable;

/// Most bytes of debug sections of one file, added up.
const MAX_SECTION_BYTES: u64 = 1 << 30;
/// Most bytes of `.debug_abbrev`, which grows about thirty-fold when it is decoded.
const MAX_ABBREVIATIONS: u64 = 32 << 20;
/// Deepest nesting of types behind a member: typedefs of typedefs, anonymous structs, base classes.
const MAX_DEPTH: u32 = 32;

/// The debug information of one object, held in memory.
#[derive(Debug)]
pub struct Types {
    /// Where it was read from, escaped.
    from: String,
    sections: DwarfSections<Vec<u8>>,
    /// What `dwz` moved to a file that several objects share.
    shared: Option<DwarfSections<Vec<u8>>>,
}

/// Loads the debug information of `elf` from the object itself or its debug file.
pub(super) fn load(elf: &Elf) -> Result<Types, String> {
    let own = elf.open_path().to_owned();
    // The debug file may have been found through another process that has ended since.
    let debug = match elf.debug_file() {
        Some(path) if !path.exists() => elf.find_debug().file.map(|file| file.path),
        found => found.map(std::path::Path::to_owned),
    };
    let mut reason = format!("{} has no debug information", elf.shown_path());
    for path in std::iter::once(own).chain(debug) {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let contents = read::open(&path, &shown).map_err(|error| error.to_string())?;
        let reader = read::Reader::new(&contents, &shown).map_err(|error| error.to_string())?;
        // The path is opened a second time: the file may have been replaced since its symbols were read.
        if elf.build_id().is_some()
            && reader.build_id().is_some_and(|id| Some(&*id) != elf.build_id())
        {
            return Err(super::ElfError::Changed { path: shown }.to_string());
        }
        if !reader.has(b".debug_info") {
            continue;
        }
        let sections = load_sections(&reader)?;
        let shared = match reader.alternative_link() {
            None => None,
            Some((name, id)) => match debug::find_alternative(&elf.search, &path, &name, &id) {
                None => {
                    reason = format!(
                        "{shown} refers to the shared debug file {}, which is missing",
                        printable(&name)
                    );
                    continue;
                }
                Some(path) => {
                    let shown = printable(path.as_os_str().as_encoded_bytes());
                    let contents = read::open(&path, &shown).map_err(|error| error.to_string())?;
                    let reader =
                        read::Reader::new(&contents, &shown).map_err(|error| error.to_string())?;
                    Some(load_sections(&reader)?)
                }
            },
        };
        return Ok(Types { from: shown, sections, shared });
    }
    let tried = elf.debug_tried();
    if !tried.is_empty() {
        reason.push_str("; no debug file at ");
        reason.push_str(&tried.join(", "));
    }
    Err(reason)
}

fn load_sections(reader: &read::Reader<'_>) -> Result<DwarfSections<Vec<u8>>, String> {
    let left = Cell::new(MAX_SECTION_BYTES);
    DwarfSections::load(|id| {
        use gimli::SectionId as Id;
        // Locations and ranges are half of the file and not needed; lines and addresses are touched by
        // gimli when it opens a unit.
        let wanted = matches!(
            id,
            Id::DebugAbbrev
                | Id::DebugInfo
                | Id::DebugTypes
                | Id::DebugStr
                | Id::DebugLineStr
                | Id::DebugStrOffsets
                | Id::DebugLine
                | Id::DebugAddr
        );
        if !wanted {
            return Ok(Vec::new());
        }
        let most = if id == Id::DebugAbbrev { MAX_ABBREVIATIONS } else { left.get() };
        let bytes = reader.contents_of(id.name(), most.min(left.get()))?;
        left.set(left.get() - bytes.len() as u64);
        Ok(bytes)
    })
}

/// Why a question has no answer: either this candidate is not the one, or the search must end.
pub(super) enum Trouble {
    /// The member is not in this type.
    NoMember(String),
    /// Damaged, or more than is believed.
    Fatal(String),
}

impl From<gimli::Error> for Trouble {
    fn from(error: gimli::Error) -> Self {
        Self::Fatal(format!("damaged debug information: {error}"))
    }
}

impl Types {
    /// Where it was read from, escaped.
    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// The debug information, to be searched.
    pub(super) fn dwarf(&self) -> Dwarf<'_> {
        self.sections
            .borrow_with_sup(self.shared.as_ref(), |bytes| EndianSlice::new(bytes, LittleEndian))
    }

    /// The offset in bytes of member `field` (dots between nested members) in type `type_name`.
    ///
    /// `type_name` may say `struct`, `union` or `class`, and namespaces (`ns::Type`). Where the object
    /// has several types of this name, they must agree.
    pub fn offset_of(&self, type_name: &str, field: &str) -> Result<u64, String> {
        let path: Vec<&str> = field.split('.').map(str::trim).collect();
        if path.iter().any(|name| name.is_empty()) {
            return Err(format!("`{}` is no path of members", printable(field)));
        }
        let wanted = Wanted::parse(type_name);
        let dwarf = self.dwarf();
        let mut search = Search {
            budget: Budget::new(),
            wanted: &wanted,
            path: &path,
            found: None,
            missing: None,
            declared_only: false,
        };
        let outcome = match dwarf.sup() {
            None => search.run(&dwarf),
            Some(shared) => search.run(&dwarf).and_then(|()| search.run(shared)),
        };
        match outcome {
            Err(Trouble::Fatal(what) | Trouble::NoMember(what)) => {
                Err(format!("{}: {what}", self.from))
            }
            Ok(()) => search.found.ok_or_else(|| {
                let name = printable(type_name);
                let what = match search.missing {
                    Some(member) => format!("type `{name}` has no member `{}`", printable(member)),
                    None if search.declared_only => {
                        format!("type `{name}` is declared but not defined")
                    }
                    None => format!("there is no type `{name}`"),
                };
                format!("{}: {what}", self.from)
            }),
        }
    }
}

/// The type that is asked for.
struct Wanted {
    tag: Option<gimli::DwTag>,
    /// Namespaces and name, outermost first.
    path: Vec<Vec<u8>>,
}

impl Wanted {
    fn parse(text: &str) -> Self {
        let text = text.trim();
        let mut words = text.splitn(2, char::is_whitespace);
        let (tag, name) = match (words.next(), words.next()) {
            (Some("struct"), Some(name)) => (Some(gimli::DW_TAG_structure_type), name),
            (Some("union"), Some(name)) => (Some(gimli::DW_TAG_union_type), name),
            (Some("class"), Some(name)) => (Some(gimli::DW_TAG_class_type), name),
            _ => (None, text),
        };
        Self { tag, path: name.trim().split("::").map(|part| part.as_bytes().to_vec()).collect() }
    }

    fn takes(&self, tag: gimli::DwTag) -> bool {
        match self.tag {
            // C++ uses both words for one thing.
            Some(gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type) => {
                matches!(tag, gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type)
            }
            Some(wanted) => tag == wanted,
            None => is_record(tag) || tag == gimli::DW_TAG_typedef,
        }
    }
}

fn is_record(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_class_type
    )
}

struct Search<'q> {
    budget: Budget,
    wanted: &'q Wanted,
    path: &'q [&'q str],
    found: Option<u64>,
    missing: Option<String>,
    declared_only: bool,
}

impl Search<'_> {
    /// Looks at every unit for types of the wanted name; all that define it must agree.
    fn run(&mut self, dwarf: &Dwarf<'_>) -> Result<(), Trouble> {
        let mut units = Units::new(dwarf);
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            self.search_unit(&mut units, dwarf.unit(header)?)?;
        }
        let mut headers = dwarf.type_units();
        while let Some(header) = headers.next()? {
            self.search_unit(&mut units, dwarf.unit(header)?)?;
        }
        Ok(())
    }

    fn search_unit<'a>(
        &mut self,
        units: &mut Units<'_, 'a>,
        unit: Unit<'a>,
    ) -> Result<(), Trouble> {
        // A unit costs more than an entry: the clock is looked at each time.
        self.budget.look_at_clock();
        self.budget.spend()?;
        let mut candidates = Vec::new();
        // The depths of the namespaces and classes of the wanted path that the walk is in.
        let mut inside: Vec<isize> = Vec::new();
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
            let (depth, tag) = (entry.depth(), entry.tag());
            if depth == 0 {
                // The unit itself; its children are the types.
                continue;
            }
            while inside.last().is_some_and(|&outer| outer >= depth) {
                inside.pop();
            }
            descend = false;
            let Some(part) = self.wanted.path.get(inside.len()) else { continue };
            let last = inside.len() + 1 == self.wanted.path.len();
            let fits = if last {
                self.wanted.takes(tag)
            } else {
                tag == gimli::DW_TAG_namespace || is_record(tag)
            };
            if !fits || units.name(&unit, entry).as_deref() != Some(&part[..]) {
                continue;
            }
            if !last {
                inside.push(depth);
                descend = true;
            } else if entry.attr(gimli::DW_AT_declaration).is_some() {
                self.declared_only = true;
            } else {
                candidates.push(entry.offset());
            }
        }
        if candidates.is_empty() {
            return Ok(());
        }
        let place = units.keep(unit);
        for offset in candidates {
            match self.resolve_path(units, At { unit: place, offset }) {
                Ok(offset) => match self.found {
                    Some(other) if other != offset => {
                        return Err(Trouble::Fatal(format!(
                            "several types of this name disagree: {other:#x} and {offset:#x}"
                        )));
                    }
                    _ => self.found = Some(offset),
                },
                Err(Trouble::NoMember(name)) => self.missing = Some(name),
                Err(fatal) => return Err(fatal),
            }
        }
        Ok(())
    }

    fn resolve_path(&mut self, units: &mut Units<'_, '_>, start: At) -> Result<u64, Trouble> {
        let mut at = start;
        let mut total = 0_u64;
        for &name in self.path {
            let record =
                self.record(units, at)?.ok_or_else(|| Trouble::NoMember(name.to_owned()))?;
            let (offset, member) = self
                .member(units, record, name, MAX_DEPTH)?
                .ok_or_else(|| Trouble::NoMember(name.to_owned()))?;
            total = total.wrapping_add(offset);
            at = member;
        }
        Ok(total)
    }

    /// The record behind typedefs, qualifiers and arrays; `None` for what has no members.
    fn record(&mut self, units: &mut Units<'_, '_>, start: At) -> Result<Option<At>, Trouble> {
        let mut at = start;
        for _ in 0..MAX_DEPTH {
            self.budget.spend()?;
            let entry = units.entry(at)?;
            match entry.tag() {
                // A declaration whose body is in a type unit.
                tag if is_record(tag) => match entry.attr_value(gimli::DW_AT_signature) {
                    None => return Ok(Some(at)),
                    Some(value) => {
                        at = units.follow(at, value)?;
                        continue;
                    }
                },
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_atomic_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_array_type
                | gimli::DW_TAG_member => {}
                _ => return Ok(None),
            }
            let Some(value) = entry.attr_value(gimli::DW_AT_type) else { return Ok(None) };
            at = units.follow(at, value)?;
        }
        Err(Trouble::Fatal("types nested too deeply".into()))
    }

    /// Member `name` of the record at `at`: its offset and the member itself. Looks through anonymous
    /// members and base classes.
    fn member(
        &mut self,
        units: &mut Units<'_, '_>,
        at: At,
        name: &str,
        depth: u32,
    ) -> Result<Option<(u64, At)>, Trouble> {
        if depth == 0 {
            return Err(Trouble::Fatal("types nested too deeply".into()));
        }
        let mut inner = Vec::new();
        for child in units.children(at)? {
            self.budget.spend()?;
            let base = child.tag == gimli::DW_TAG_inheritance;
            if !base && child.tag != gimli::DW_TAG_member {
                continue;
            }
            match &child.name {
                Some(found) if !base => {
                    if found == name.as_bytes() {
                        return Ok(Some((child.offset_of()?, child.at)));
                    }
                }
                _ => inner.push(child),
            }
        }
        for child in inner {
            let Some(at) = units.type_of(&child)? else { continue };
            let Some(record) = self.record(units, at)? else { continue };
            if let Some((offset, found)) = self.member(units, record, name, depth - 1)? {
                return Ok(Some((child.offset_of()?.wrapping_add(offset), found)));
            }
        }
        Ok(None)
    }
}
