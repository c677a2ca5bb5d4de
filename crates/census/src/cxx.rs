//! Which C++ classes the objects of a heap have, and which granules they hold.
//!
//! An object of a class with virtual functions begins with the address of its vtable, which lies in a mapped file. Two
//! words before that address are 0, the way to the begin of the object, and the address of the class's `type_info`.
//! That one is an object too: its class is one of three of the C++ runtime, and its name stands at +8. So no symbol is
//! needed. Without RTTI the second word is 0, and the vtable's symbol names the class. Only names are kept. Source:
//! Itanium C++ ABI, 2.5.2 and 2.9.5.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use drainprof_process::{elf::readable, printable};

use crate::{
    model::Type,
    space::{RangeKind, Space},
};

/// The kind of an object whose class is not known.
pub(crate) const NO_CLASS: u16 = 0;
/// Most classes that are distinguished.
const MAX_CLASSES: usize = 10_000;
/// Words of which it is remembered what they lead to; each new one costs reads.
const MAX_KNOWN: usize = 1 << 16;
/// Bytes of a mangled name, and characters of a name.
const MAX_MANGLED: usize = 1024;
const MAX_NAME: usize = 160;
/// What the class of a `type_info` is called: `__class_type_info`, `__si_…`, `__vmi_…`.
const RUNTIME: (&str, &str) = ("N10__cxxabiv1", "class_type_infoE");

/// Objects of one class.
#[derive(Default)]
struct Count {
    name: String,
    objects: u64,
    bytes: u64,
    granules: u64,
    /// The last granule that one of them lies in.
    last: Option<u64>,
}

/// Names classes, and counts their objects.
pub(crate) struct Classes<'a> {
    space: &'a Space<'a>,
    /// Where the first mapped file begins and the last one ends.
    files: (u64, u64),
    known: HashMap<u64, u16>,
    numbers: HashMap<String, u16>,
    counts: Vec<Count>,
}

impl<'a> Classes<'a> {
    pub(crate) fn new(space: &'a Space<'a>) -> Self {
        let mut files = space.ranges.iter().filter(|range| range.kind == RangeKind::File);
        let first = files.next();
        let last = files.next_back().or(first).map_or(0, |range| range.end);
        Self {
            space,
            files: (first.map_or(0, |range| range.start), last),
            known: HashMap::new(),
            numbers: HashMap::new(),
            counts: vec![Count::default()],
        }
    }

    /// The class of an object by its first word.
    pub(crate) fn class(&mut self, word: u64) -> u16 {
        if !word.is_multiple_of(8) || !(self.files.0..self.files.1).contains(&word) {
            return NO_CLASS;
        }
        if let Some(known) = self.known.get(&word) {
            return *known;
        }
        if self.known.len() >= MAX_KNOWN {
            return NO_CLASS;
        }
        let class = self.name(word).map_or(NO_CLASS, |mangled| self.number(&mangled));
        self.known.insert(word, class);
        class
    }

    /// Counts objects of a class that lie in granules with these numbers; lower numbers come first.
    pub(crate) fn count(&mut self, class: u16, objects: u64, bytes: u64, granules: (u64, u64)) {
        let Some(count) = self.counts.get_mut(usize::from(class)).filter(|_| class != NO_CLASS)
        else {
            return;
        };
        count.objects += objects;
        count.bytes = count.bytes.saturating_add(bytes);
        let (first, last) = granules;
        let again = u64::from(count.last.is_some_and(|before| before >= first));
        count.granules += (last.saturating_sub(first) + 1).saturating_sub(again);
        count.last = Some(last);
    }

    /// The classes, by bytes of granules that they alone hold: how many, and how many bytes.
    pub(crate) fn finish(self, alone: &BTreeMap<u16, (u64, u64)>) -> Vec<Type> {
        let counts = self.counts.into_iter().zip(0u16..).filter(|(count, _)| count.objects > 0);
        let mut types: Vec<Type> = counts
            .map(|(count, number)| {
                let (arenas_alone, alone_bytes) = alone.get(&number).copied().unwrap_or_default();
                let Count { name, objects, bytes, granules, .. } = count;
                Type { name, objects, bytes, arenas: granules, arenas_alone, alone_bytes }
            })
            .collect();
        types.sort_by_key(|one| Reverse((one.alone_bytes, one.bytes)));
        types
    }

    fn number(&mut self, mangled: &str) -> u16 {
        let readable = readable(&format!("_ZTS{mangled}"));
        let name = readable.strip_prefix("typeinfo name for ").unwrap_or(mangled);
        let name: String = printable(name.as_bytes()).chars().take(MAX_NAME).collect();
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = u16::try_from(self.counts.len()).unwrap_or(NO_CLASS);
        if self.counts.len() >= MAX_CLASSES {
            return NO_CLASS;
        }
        self.counts.push(Count { name: name.clone(), ..Count::default() });
        self.numbers.insert(name, number);
        number
    }

    /// The mangled name of the class whose vtable is at `vtable`.
    fn name(&self, vtable: u64) -> Option<String> {
        match self.before(vtable)? {
            0 => self.space.vtable(vtable),
            type_info => {
                let [meta, name] = self.constants(type_info)?;
                let runtime = self.text(self.constants(self.before(meta)?)?[1])?;
                let (begin, end) = RUNTIME;
                let is_class = runtime.starts_with(begin) && runtime.ends_with(end);
                if is_class { self.text(name) } else { None }
            }
        }
    }

    /// The word before a vtable, which belongs to objects as a whole.
    fn before(&self, vtable: u64) -> Option<u64> {
        let [to_object, type_info] = self.constants(vtable.checked_sub(16)?)?;
        (to_object == 0).then_some(type_info)
    }

    /// Two words of a mapped file.
    fn constants(&self, address: u64) -> Option<[u64; 2]> {
        let is_file = self.space.range_at(address)?.kind == RangeKind::File;
        if is_file { self.space.words(address) } else { None }
    }

    fn text(&self, address: u64) -> Option<String> {
        let mut bytes = [0; MAX_MANGLED];
        let length = self.space.read_constant(address, &mut bytes);
        let end = bytes[..length].iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        // A star marks a class that no other file knows.
        let text = text.strip_prefix('*').unwrap_or(text);
        let is_name = !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
        is_name.then(|| text.to_owned())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        space::{PAGE, Range},
        testing::{Pieces, anonymous},
    };

    const FILE: u64 = 0x7c00_0000_0000;
    /// A vtable of `Session`, one without RTTI, one that is in the middle of an object.
    pub(crate) const SESSION: u64 = FILE + 0x110;
    pub(crate) const NO_RTTI: u64 = FILE + 0x210;
    const INNER: u64 = FILE + 0x310;

    /// Adds a mapped file with classes.
    pub(crate) fn add_classes(memory: &mut Pieces) -> Range {
        memory.pieces.push((FILE, vec![0; PAGE as usize]));
        let (info, meta, meta_info, names) =
            (FILE + 0x400, FILE + 0x510, FILE + 0x600, FILE + 0x700);
        memory.put(SESSION - 16, &[0, info]);
        memory.put(NO_RTTI - 16, &[0, 0]);
        memory.put(INNER - 16, &[u64::MAX - 15, info]);
        memory.put(info, &[meta, names]);
        memory.put(meta - 16, &[0, meta_info]);
        memory.put(meta_info, &[meta, names + 0x40]);
        memory.write(names, b"7Session\0");
        memory.write(names + 0x40, b"N10__cxxabiv117__class_type_infoE\0");
        memory.vtables.push((NO_RTTI, "N3app5StateE".to_owned()));
        Range { kind: RangeKind::File, writable: false, ..anonymous(FILE, PAGE) }
    }

    /// A class is named by its `type_info`, or by its vtable's symbol; what is no vtable, absent, or torn names none.
    #[test]
    fn names() {
        let mut memory = Pieces::default();
        let file = add_classes(&mut memory);
        let known = |memory: &Pieces, word| {
            let space = Space::new(vec![file.clone()], memory);
            let mut classes = Classes::new(&space);
            let class = classes.class(word);
            classes.counts[usize::from(class)].name.clone()
        };
        assert_eq!(known(&memory, SESSION), "Session");
        assert_eq!(known(&memory, NO_RTTI), "app::State");
        for word in [INNER, SESSION + 8, SESSION + 4, FILE, FILE + PAGE - 8, 8, u64::MAX - 7, 0] {
            assert_eq!(known(&memory, word), "", "{word:x}");
        }
        memory.absent.push(FILE);
        assert_eq!(known(&memory, SESSION), "", "the page is not in memory");
        memory.absent.clear();
        memory.write(FILE + 0x740, b"St9exception\0");
        assert_eq!(known(&memory, SESSION), "", "no type_info");
    }

    /// Granules count once for each class, however many objects lie in them.
    #[test]
    fn granules() {
        let mut memory = Pieces::default();
        let file = add_classes(&mut memory);
        let space = Space::new(vec![file], &memory);
        let mut classes = Classes::new(&space);
        let [session, state] = [SESSION, NO_RTTI].map(|word| classes.class(word));
        for (class, granules) in
            [(session, (1, 1)), (session, (1, 3)), (state, (3, 3)), (NO_CLASS, (4, 4))]
        {
            classes.count(class, 1, 64, granules);
        }
        let types = classes.finish(&BTreeMap::from([(session, (2, 8192))]));
        let rows: Vec<_> =
            types.iter().map(|one| (one.name.as_str(), one.arenas, one.alone_bytes)).collect();
        assert_eq!(rows, [("Session", 3, 8192), ("app::State", 1, 0)]);
    }
}
