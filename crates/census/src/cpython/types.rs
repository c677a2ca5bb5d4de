//! Which Python types the live blocks of pools have.
//!
//! An object has its type behind its reference count. A type says by its flags what is in front of its instances: nothing,
//! a header of the garbage collector (16 bytes; 32 before 3.8), or that and two words for attributes and weak references
//! (3.11 and later). A type is an object too: the chain of types ends at `type`, which is its own. Only names are kept.

use std::collections::{BTreeMap, HashMap};

use super::runtime::Layout;
use crate::{
    model::Type,
    space::{PAGE, Space, word_of},
};

/// Bytes in front of an object.
const BEFORE: [u64; 3] = [0, 16, 32];
/// What the allocator's debug hooks have in front of a block: its bytes, a letter, and seven bytes of this.
const HOOK: u64 = 16;
const HOOK_BYTES: [u8; 7] = [0xfd; 7];
/// Steps from a type to `type`.
const MAX_STEPS: u32 = 4;
/// Longest name of a type that is kept.
const MAX_NAME: usize = 100;
/// Most types that are distinguished.
const MAX_TYPES: usize = 10_000;
/// Addresses of which it is remembered whether they are types.
const MAX_KNOWN: usize = 1 << 20;
/// Of which of them it is known without a search.
const RECENT: usize = 256;
/// What has no type: memory of lists, dictionaries, and of the interpreter itself.
const UNTYPED: &str = "(no object: memory of lists, dictionaries and the interpreter)";
/// What lies in pools that are not all in memory.
const UNREAD: &str = "(not in memory)";
/// Flags of types: has two words in front of the collector's header, can be used, has that header, is a type of types.
const PREHEADER: u64 = 1 << 3 | 1 << 4;
const READY: u64 = 1 << 12;
const COLLECTED: u64 = 1 << 14;
const OF_TYPES: u64 = 1 << 31;
/// Bytes of an instance, at most.
const MAX_INSTANCE: u64 = 1 << 20;
/// The upper half of a reference count: nothing, or from 3.14 on some flags in its upper half.
const MAX_FLAGS: u64 = 1 << 12;
/// Reference counts of objects that live for ever (3.12 and later) are not below this, others that are not below …
const IMMORTAL: u64 = 3 << 30;
/// … this may be addresses.
const ADDRESSES: u64 = 1 << 16;

#[derive(Default)]
struct Count {
    objects: u64,
    bytes: u64,
    arenas: BTreeMap<u64, u64>,
    /// The arena of the last ones, and objects in it that `arenas` lacks.
    last: (u64, u64),
}

impl Count {
    fn add(&mut self, objects: u64, bytes: u64, arena: u64) {
        self.objects += objects;
        self.bytes += bytes;
        if self.last.0 != arena {
            self.settle();
            self.last.0 = arena;
        }
        self.last.1 += objects;
    }

    fn settle(&mut self) {
        let (arena, objects) = std::mem::take(&mut self.last);
        if objects > 0 {
            *self.arenas.entry(arena).or_default() += objects;
        }
    }
}

/// What is known of a type.
#[derive(Clone, Copy)]
struct Known {
    /// Its place in the list of names.
    number: usize,
    /// Its flags.
    flags: u64,
    /// Bytes of an instance, at least.
    bytes: u64,
}

impl Known {
    /// Whether a block of so many bytes can hold an instance behind so many.
    fn fits(self, before: u64, block: u64) -> bool {
        let is_behind = match (self.flags & COLLECTED != 0, self.flags & PREHEADER != 0) {
            (false, _) => before == 0,
            // Before 3.8 the collector's header has 32 bytes.
            (true, false) => before > 0,
            (true, true) => before == 32,
        };
        is_behind && before.saturating_add(self.bytes) <= block
    }
}

/// Counts objects by type.
pub(super) struct Types<'a> {
    space: &'a Space<'a>,
    layout: Layout,
    known: HashMap<u64, Option<Known>>,
    /// Of these, the last ones that were asked for.
    recent: [(u64, Option<Known>); RECENT],
    names: Vec<String>,
    counts: Vec<Count>,
    numbers: HashMap<String, usize>,
}

impl<'a> Types<'a> {
    pub(super) fn new(space: &'a Space<'a>, layout: Layout) -> Self {
        let mut new = Self {
            space,
            layout,
            known: HashMap::new(),
            recent: [(0, None); RECENT],
            names: Vec::new(),
            counts: Vec::new(),
            numbers: HashMap::new(),
        };
        new.number(UNTYPED.to_owned());
        new.number(UNREAD.to_owned());
        new
    }

    /// Counts a live block of so many bytes.
    pub(super) fn count(&mut self, block: &[u8], size: u64, arena: u64) {
        let number = self.type_of(block, size).unwrap_or(0);
        self.add(number, 1, size, arena);
    }

    /// Counts live blocks of a pool that is not all in memory.
    pub(super) fn count_unread(&mut self, objects: u64, size: u64, arena: u64) {
        self.add(1, objects, size, arena);
    }

    fn add(&mut self, number: usize, objects: u64, size: u64, arena: u64) {
        self.counts[number].add(objects, objects * size, arena);
    }

    /// The types, the most bytes first.
    pub(super) fn finish(mut self, arena_bytes: u64) -> Vec<Type> {
        self.counts.iter_mut().for_each(Count::settle);
        let mut objects: BTreeMap<u64, u64> = BTreeMap::new();
        for count in &self.counts {
            for (arena, own) in &count.arenas {
                *objects.entry(*arena).or_default() += own;
            }
        }
        let mut types: Vec<Type> = self
            .names
            .into_iter()
            .zip(self.counts)
            .filter(|(_, count)| count.objects > 0)
            .map(|(name, count)| {
                let is_alone = |(arena, own): &(&u64, &u64)| objects.get(arena) == Some(own);
                let alone = count.arenas.iter().filter(is_alone).count() as u64;
                Type {
                    name,
                    objects: count.objects,
                    bytes: count.bytes,
                    arenas: count.arenas.len() as u64,
                    arenas_alone: alone,
                    alone_bytes: alone * arena_bytes,
                }
            })
            .collect();
        types.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        types
    }

    fn type_of(&mut self, block: &[u8], size: u64) -> Option<usize> {
        let is_hooked = block.get(9..HOOK as usize) == Some(&HOOK_BYTES);
        let (block, size) =
            if is_hooked { (block.get(HOOK as usize..)?, size - HOOK) } else { (block, size) };
        BEFORE.into_iter().find_map(|before| {
            let references = word_of(block, before as usize)?;
            let address = word_of(block, (before + self.layout.of) as usize)?;
            let is_count = references & 0xffff_ffff != 0
                && (references >> 32).trailing_zeros() >= 16
                && references >> 48 < MAX_FLAGS;
            if !is_count || !address.is_multiple_of(8) || address < PAGE {
                return None;
            }
            let known = self.type_at(address)?;
            // Programs that are not position-independent have addresses as low as a count can be.
            let references = references & 0xffff_ffff;
            let may_point = (ADDRESSES..IMMORTAL).contains(&references);
            let is_object = !may_point || self.space.range_at(references).is_none();
            (is_object && known.fits(before, size)).then_some(known.number)
        })
    }

    fn type_at(&mut self, address: u64) -> Option<Known> {
        let recent = (address / 16) as usize % RECENT;
        if self.recent[recent].0 != address {
            self.recent[recent] = (address, self.known_at(address));
        }
        self.recent[recent].1
    }

    fn known_at(&mut self, address: u64) -> Option<Known> {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let found = self.read_type(address);
        let is_room = || self.space.budget.keeps::<[(u64, Option<Known>); 2]>(1);
        if self.known.len() < MAX_KNOWN && is_room() {
            self.known.insert(address, found);
        }
        found
    }

    /// What is known of a type; `None` where there is no type at this address.
    fn read_type(&mut self, address: u64) -> Option<Known> {
        let mut meta = address;
        for step in 0..=MAX_STEPS {
            let of = self.space.field(meta, self.layout.of)?;
            if of == meta {
                break;
            }
            if step == MAX_STEPS {
                return None;
            }
            meta = of;
        }
        if meta != address {
            self.space.word(meta)?;
        }
        let (flags, of_types) = (self.flags(address)?, self.flags(meta)?);
        if self.text(meta)? != "type" || of_types & OF_TYPES == 0 {
            return None;
        }
        let name = self.text(address)?;
        let bytes = self.space.field(address, self.layout.name + 8)?;
        let is_type = (self.layout.of + 8..=MAX_INSTANCE).contains(&bytes);
        // A string can be shorter than the largest kind of a string.
        let bytes = if name == "str" { self.layout.of + 8 } else { bytes };
        let number = is_type.then(|| self.number(name)).flatten()?;
        Some(Known { number, flags, bytes })
    }

    /// The flags of a type that can be used.
    fn flags(&self, address: u64) -> Option<u64> {
        self.space.field(address, self.layout.flags).filter(|flags| flags & READY != 0)
    }

    fn text(&self, address: u64) -> Option<String> {
        let name = self.space.field(address, self.layout.name)?;
        let mut bytes = [0; MAX_NAME];
        let mut most = self.space.read_constant(name, &mut bytes);
        if most == 0 {
            // The next page need not be there.
            let here = (PAGE - name % PAGE).min(MAX_NAME as u64) as usize;
            most = self.space.read_constant(name, &mut bytes[..here]);
        }
        let end = bytes[..most].iter().position(|byte| *byte == 0);
        let whole = end.or((most == MAX_NAME).then_some(most))?;
        let text = bytes[..whole].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let is_name = !text.is_empty()
            && (end.is_none() || text.len() == whole)
            && !text.chars().any(char::is_control);
        is_name.then(|| text.to_owned())
    }

    fn number(&mut self, name: String) -> Option<usize> {
        if let Some(number) = self.numbers.get(&name) {
            return Some(*number);
        }
        if self.names.len() >= MAX_TYPES {
            return None;
        }
        let number = self.names.len();
        self.names.push(name.clone());
        self.counts.push(Count::default());
        self.numbers.insert(name, number);
        Some(number)
    }
}
