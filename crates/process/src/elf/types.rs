//! Member offsets from DWARF: `offsetof(struct ngx_pool_s, d.next)` for a binary that is not recompiled.
//!
//! Knows structs, unions, C++ classes with their bases, and namespaces. Virtual bases need the running program.
//! The expression compiler asks, through the plan.

use std::{cell::Cell, path::Path};

use gimli::{DwTag, DwarfSections, EndianSlice, LittleEndian};

use super::{
    error::ElfError,
    object::Elf,
    read::{Reader, with_open},
    units::{
        At, Dwarf, Entry, Search, Trouble, Unit, Units, is_qualifier, is_record, text_of, walk,
    },
};
use crate::printable;

/// Most bytes of debug sections of an object, in total, with those of the file that it shares with others.
const MAX_SECTION_BYTES: u64 = 128 << 20;
/// Deepest nesting of types behind a member: typedefs of typedefs, anonymous structs, base classes.
const MAX_DEPTH: u32 = 32;
/// Most members of a type that are examined.
const MAX_MEMBERS: usize = 1000;

type Sections = DwarfSections<Vec<u8>>;

/// The debug information of one object, held in memory.
#[derive(Debug)]
pub struct Types {
    /// The file that it was read from, escaped.
    from: String,
    sections: Sections,
    /// What `dwz` moved to a file that several objects share.
    shared: Option<Sections>,
}

impl Elf {
    /// The object's types, from its own DWARF or its debug file's; large, so drop it after use.
    pub fn types(&self) -> Result<Types, String> {
        let own = self.open_path().to_owned();
        // The debug file may have been found through another process that has ended since.
        let debug = match self.debug_file() {
            Some(path) if crate::identity(path).is_err() => {
                self.find_debug().file.map(|file| file.path)
            }
            found => found.map(Path::to_owned),
        };
        let mut reason = format!("{} has no debug information", self.shown_path());
        for path in std::iter::once(own).chain(debug) {
            match self.types_in(&path, &mut reason) {
                Ok(None) => {}
                Ok(Some(types)) => return Ok(types),
                Err(error) => return Err(error.to_string()),
            }
        }
        let tried = self.debug_tried();
        if !tried.is_empty() {
            reason.push_str("; no debug file at ");
            reason.push_str(&tried.join(", "));
        }
        Err(reason)
    }

    /// The types in the file at `path`; `None` where it has none, or where a part is missing: then `reason` says so.
    fn types_in(&self, path: &Path, reason: &mut String) -> Result<Option<Types>, ElfError> {
        let from = printable(path.as_os_str().as_encoded_bytes());
        let taken = Cell::new(0);
        with_open(self.open_part(path, &from)?, &from, |reader| {
            // A debug file is opened a second time: it may have been replaced since its symbols were read.
            if self.build_id().is_some()
                && reader.build_id()?.is_some_and(|id| Some(&*id) != self.build_id())
            {
                return Err(ElfError::Changed { path: from.clone() });
            }
            if !reader.has(b".debug_info") {
                return Ok(None);
            }
            let mut shared = None;
            if let Some((name, id)) = reader.alternative_link() {
                let Some(path) = self.find_shared(path, &name, &id) else {
                    let name = printable(&name);
                    *reason =
                        format!("{from} refers to the shared debug file {name}, which is missing");
                    return Ok(None);
                };
                let shown = printable(path.as_os_str().as_encoded_bytes());
                let file = self.open_part(&path, &shown)?;
                shared = Some(with_open(file, &shown, |reader| load_sections(reader, &taken))?);
            }
            Ok(Some(Types { from: from.clone(), sections: load_sections(reader, &taken)?, shared }))
        })
    }

    /// The offset of member `field` in the type `type_name`; see [`Types::offset_of`].
    #[cfg(test)]
    pub(super) fn offset_of(&self, type_name: &str, field: &str) -> Result<u64, String> {
        self.types()?.offset_of(type_name, field)
    }
}

fn load_sections(reader: &Reader<'_>, taken: &Cell<u64>) -> Result<Sections, ElfError> {
    use gimli::SectionId as Id;
    DwarfSections::load(|id| {
        let is_needed = matches!(
            id,
            Id::DebugAbbrev
                | Id::DebugInfo
                | Id::DebugTypes
                | Id::DebugStr
                | Id::DebugLineStr
                | Id::DebugStrOffsets
                | Id::DebugAddr
        );
        // Lines, locations and ranges are half of the file, and nothing here needs them.
        if !is_needed {
            return Ok(Vec::new());
        }
        let bytes = reader.contents_of(id.name(), taken.get(), MAX_SECTION_BYTES)?;
        taken.set(taken.get() + bytes.len() as u64);
        Ok(bytes)
    })
}

impl Types {
    /// Lets `search` walk the debug information; an error names the file.
    pub(super) fn search(&self, search: &mut impl Search) -> Result<(), String> {
        let dwarf = self
            .sections
            .borrow_with_sup(self.shared.as_ref(), |bytes| EndianSlice::new(bytes, LittleEndian));
        walk(&dwarf, search).map_err(|Trouble(what)| format!("{}: {what}", self.from))
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
        let mut search =
            MemberSearch { types: Named::new(type_name), path: &path, found: None, missing: None };
        self.search(&mut search)?;
        search.found.ok_or_else(|| {
            let name = printable(type_name);
            let what = match search.missing {
                Some(member) => format!("type `{name}` has no member `{}`", printable(member)),
                None => search.types.missing(&name),
            };
            format!("{}: {what}", self.from)
        })
    }

    /// The members of type `type_name` that are unsigned or signed integers, atomic ones too; its name as in
    /// [`Types::offset_of`].
    ///
    /// # Errors
    /// If there is no such type, or the debug information cannot be followed.
    pub fn integers_of(&self, type_name: &str) -> Result<Vec<IntegerMember>, String> {
        let mut search = IntegerSearch { types: Named::new(type_name), found: None };
        self.search(&mut search)?;
        search.found.ok_or_else(|| {
            format!("{}: {}", self.from, search.types.missing(&printable(type_name)))
        })
    }
}

/// A member that is an integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegerMember {
    /// Its name; hostile.
    pub name: String,
    /// Its size in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
}

/// The type that is asked for.
struct Wanted<'q> {
    tag: Option<DwTag>,
    /// Namespaces and name, outermost first.
    path: Vec<&'q str>,
}

impl<'q> Wanted<'q> {
    fn parse(text: &'q str) -> Self {
        let text = text.trim();
        let (tag, name) = match text.split_once(char::is_whitespace) {
            Some(("struct", name)) => (Some(gimli::DW_TAG_structure_type), name),
            Some(("union", name)) => (Some(gimli::DW_TAG_union_type), name),
            Some(("class", name)) => (Some(gimli::DW_TAG_class_type), name),
            _ => (None, text),
        };
        Self { tag, path: segments(name.trim()) }
    }

    fn takes(&self, tag: DwTag) -> bool {
        match self.tag {
            // C++ uses both words for one thing.
            Some(gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type) => {
                is_record(tag) && tag != gimli::DW_TAG_union_type
            }
            Some(wanted) => tag == wanted,
            None => is_record(tag) || tag == gimli::DW_TAG_typedef,
        }
    }
}

/// The parts of a name between `::`; those inside of template arguments belong to the argument.
fn segments(name: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, letter) in name.char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && at >= start && name[at..].starts_with("::") => {
                parts.push(name[start..at].trim());
                start = at + 2;
            }
            _ => {}
        }
    }
    parts.push(name[start..].trim());
    parts
}

/// Whether two names differ in spaces at most that stand beside a sign: compilers write `Map<int,char *>` in many ways.
fn is_same_name(one: &[u8], other: &[u8]) -> bool {
    one == other
        || (one.contains(&b'<') && other.contains(&b'<') && significant(one).eq(significant(other)))
}

/// The bytes of a name without the spaces that separate no words.
fn significant(name: &[u8]) -> impl Iterator<Item = u8> {
    let is_word = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii())
    };
    name.iter().enumerate().filter_map(move |(at, &byte)| {
        let separates = || is_word(name[..at].last()) && is_word(name.get(at + 1));
        (byte != b' ' || separates()).then_some(byte)
    })
}

/// Finds the types of a name, as the walk comes by.
struct Named<'q> {
    wanted: Wanted<'q>,
    /// The depths of the namespaces and classes of the wanted name that the walk is in.
    inside: Vec<isize>,
    declared_only: bool,
}

impl<'q> Named<'q> {
    fn new(name: &'q str) -> Self {
        Self { wanted: Wanted::parse(name), inside: Vec::new(), declared_only: false }
    }

    /// Why none was found.
    fn missing(&self, name: &str) -> String {
        if self.declared_only {
            format!("type `{name}` is declared but not defined")
        } else {
            format!("there is no type `{name}`")
        }
    }

    /// Whether to look below an entry, and whether it is a type of that name.
    fn visit<'a>(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> (bool, Option<()>) {
        let (depth, tag) = (entry.depth(), entry.tag());
        while self.inside.last().is_some_and(|&outer| outer >= depth) {
            self.inside.pop();
        }
        if depth == 0 {
            // The unit itself; its children are the types.
            return (true, None);
        }
        let Some(part) = self.wanted.path.get(self.inside.len()) else { return (false, None) };
        let last = self.inside.len() + 1 == self.wanted.path.len();
        let matches = if last {
            self.wanted.takes(tag)
        } else {
            tag == gimli::DW_TAG_namespace || is_record(tag)
        };
        let name = || text_of(dwarf, unit, entry, gimli::DW_AT_name);
        if !matches || !name().is_some_and(|name| is_same_name(&name, part.as_bytes())) {
            return (false, None);
        }
        if !last {
            self.inside.push(depth);
            return (true, None);
        }
        let declared = entry.has_attr(gimli::DW_AT_declaration);
        self.declared_only |= declared;
        (false, (!declared).then_some(()))
    }
}

/// Looks for a member in all types of the wanted name; all that define it must agree.
struct MemberSearch<'q> {
    types: Named<'q>,
    path: &'q [&'q str],
    found: Option<u64>,
    missing: Option<&'q str>,
}

impl Search for MemberSearch<'_> {
    type Seen = ();

    fn visit<'a>(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> Result<(bool, Option<()>), Trouble> {
        Ok(self.types.visit(dwarf, unit, entry))
    }

    fn note(&mut self, units: &mut Units<'_, '_>, at: At, (): ()) -> Result<(), Trouble> {
        let (mut at, mut total) = (at, 0_u64);
        for &name in self.path {
            let record = record(units, at)?;
            let member = record.map(|record| member(units, record, name, MAX_DEPTH)).transpose()?;
            let Some((offset, member)) = member.flatten() else {
                self.missing = Some(name);
                return Ok(());
            };
            total = total.wrapping_add(offset);
            at = member;
        }
        match self.found.replace(total) {
            Some(other) if other != total => Err(Trouble(format!(
                "several types of this name disagree: {other:#x} and {total:#x}"
            ))),
            _ => Ok(()),
        }
    }
}

/// Lists the integer members of the first type of the wanted name.
struct IntegerSearch<'q> {
    types: Named<'q>,
    found: Option<Vec<IntegerMember>>,
}

impl Search for IntegerSearch<'_> {
    type Seen = ();

    fn visit<'a>(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> Result<(bool, Option<()>), Trouble> {
        Ok(self.types.visit(dwarf, unit, entry))
    }

    fn note(&mut self, units: &mut Units<'_, '_>, at: At, (): ()) -> Result<(), Trouble> {
        let Some(record) = record(units, at)?.filter(|_| self.found.is_none()) else {
            return Ok(());
        };
        let mut found = Vec::new();
        for child in units.children(record)?.into_iter().take(MAX_MEMBERS) {
            let entry = units.entry(child)?;
            if entry.tag() != gimli::DW_TAG_member || entry.has_attr(gimli::DW_AT_bit_size) {
                continue;
            }
            let name = units.text(child, gimli::DW_AT_name)?;
            if let (Some(name), Some(bytes)) = (name, integer_bytes(units, child)?) {
                found.push(IntegerMember { name: printable(name), bytes });
            }
        }
        self.found = Some(found);
        Ok(())
    }
}

/// The size of an integer behind typedefs and qualifiers, or of an atomic that is a record; `None` for other types.
fn integer_bytes(units: &mut Units<'_, '_>, member: At) -> Result<Option<u8>, Trouble> {
    let mut at = member;
    for _ in 0..MAX_DEPTH {
        let Some(next) = units.follow(at, gimli::DW_AT_type)? else { return Ok(None) };
        at = next;
        let tag = units.entry(at)?.tag();
        if tag == gimli::DW_TAG_typedef || is_qualifier(tag) {
            continue;
        }
        let is_integer = match tag {
            gimli::DW_TAG_base_type => matches!(
                units.entry(at)?.attr_value(gimli::DW_AT_encoding),
                Some(gimli::AttributeValue::Encoding(
                    gimli::DW_ATE_signed | gimli::DW_ATE_unsigned
                ))
            ),
            tag if is_record(tag) => units
                .text(at, gimli::DW_AT_name)?
                .is_some_and(|name| name.starts_with(b"atomic") || name.starts_with(b"Atomic")),
            _ => false,
        };
        let bytes = units.entry(at)?.attr_value(gimli::DW_AT_byte_size);
        let bytes = bytes.and_then(|size| size.udata_value()).and_then(|n| u8::try_from(n).ok());
        return Ok(bytes.filter(|bytes| is_integer && matches!(bytes, 1 | 2 | 4 | 8)));
    }
    Err(too_deep())
}

fn too_deep() -> Trouble {
    Trouble("types nested too deeply".into())
}

/// The record behind typedefs, qualifiers and arrays; `None` for what has no members.
fn record(units: &mut Units<'_, '_>, start: At) -> Result<Option<At>, Trouble> {
    let mut at = start;
    for _ in 0..MAX_DEPTH {
        let next = match units.entry(at)?.tag() {
            // A declaration whose body is in a type unit.
            tag if is_record(tag) => match units.follow(at, gimli::DW_AT_signature)? {
                None => return Ok(Some(at)),
                body => body,
            },
            gimli::DW_TAG_typedef | gimli::DW_TAG_array_type | gimli::DW_TAG_member => {
                units.follow(at, gimli::DW_AT_type)?
            }
            tag if is_qualifier(tag) => units.follow(at, gimli::DW_AT_type)?,
            _ => None,
        };
        let Some(next) = next else { return Ok(None) };
        at = next;
    }
    Err(too_deep())
}

/// Member `name` of the record at a place: its offset, and where it is. Looks through anonymous members and base
/// classes.
fn member(
    units: &mut Units<'_, '_>,
    at: At,
    name: &str,
    depth: u32,
) -> Result<Option<(u64, At)>, Trouble> {
    if depth == 0 {
        return Err(too_deep());
    }
    let mut inner = Vec::new();
    for child in units.children(at)? {
        let base = match units.entry(child)?.tag() {
            gimli::DW_TAG_inheritance => true,
            gimli::DW_TAG_member => false,
            _ => continue,
        };
        match units.text(child, gimli::DW_AT_name)? {
            Some(found) if !base => {
                if found == name.as_bytes() {
                    return Ok(Some((units.member_offset(child)?, child)));
                }
            }
            _ => inner.push(child),
        }
    }
    for child in inner {
        let Some(at) = units.follow(child, gimli::DW_AT_type)? else { continue };
        let Some(record) = record(units, at)? else { continue };
        if let Some((offset, found)) = member(units, record, name, depth - 1)? {
            return Ok(Some((units.member_offset(child)?.wrapping_add(offset), found)));
        }
    }
    Ok(None)
}
