//! Which Python types the live blocks of pools have.
//!
//! An object has its type at +8, behind a header of the garbage collector (16 bytes) or that and two words for its
//! attributes (32 bytes). A type is an object too: the chain of types ends at `type`, which is its own. Its name is at
//! +24. Only names are kept.

use std::collections::{BTreeMap, HashMap};

use super::{HEADER, Pool};
use crate::{
    model::Type,
    space::{PAGE, Space, word_of},
};

/// Bytes in front of an object.
const BEFORE: [usize; 3] = [0, 16, 32];
/// Steps from a type to `type`.
const MAX_STEPS: u32 = 4;
/// Longest name of a type that is kept.
const MAX_NAME: usize = 100;
/// Most types that are distinguished.
const MAX_TYPES: usize = 10_000;
/// Addresses of which it is remembered whether they are types.
const MAX_KNOWN: usize = 1 << 20;
/// What has no type: memory of lists, dictionaries, and of the interpreter itself.
const UNTYPED: &str = "(no object: memory of lists, dictionaries and the interpreter)";
/// The type of a type that is its own.
const NAME: u64 = 24;
/// Reference counts are below this; pointers are not.
const MAX_REFERENCES: u64 = 1 << 40;

#[derive(Default)]
struct Count {
    objects: u64,
    bytes: u64,
    arenas: BTreeMap<u64, u64>,
}

/// Counts objects by type.
pub(super) struct Types<'a> {
    space: &'a Space<'a>,
    known: HashMap<u64, Option<usize>>,
    names: Vec<String>,
    counts: Vec<Count>,
    numbers: HashMap<String, usize>,
}

impl<'a> Types<'a> {
    pub(super) fn new(space: &'a Space<'a>) -> Self {
        let mut new = Self {
            space,
            known: HashMap::new(),
            names: Vec::new(),
            counts: Vec::new(),
            numbers: HashMap::new(),
        };
        new.number(UNTYPED.to_owned());
        new
    }

    /// Counts the live blocks of a pool.
    pub(super) fn count(&mut self, pool: &Pool, pool_bytes: u64) {
        let mut bytes = vec![0; pool_bytes as usize];
        // Pages behind the last block that was used need not be present.
        for (page, at) in bytes.chunks_mut(PAGE as usize).zip((pool.address..).step_by(4096)) {
            self.space.read(at, page);
        }
        let begun = (pool.unused - HEADER) / pool.size;
        let mut is_free = vec![false; begun as usize];
        let mut next = pool.free_list;
        // A list is no longer than its pool has blocks.
        for _ in 0..begun {
            let offset = next.checked_sub(pool.address + HEADER);
            let Some(index) = offset.filter(|offset| offset.is_multiple_of(pool.size)) else {
                break;
            };
            let Some(flag) = is_free.get_mut((index / pool.size) as usize) else { break };
            *flag = true;
            let at = (next - pool.address) as usize;
            next = word_of(&bytes, at).unwrap_or_default();
        }
        for (index, _) in is_free.iter().enumerate().filter(|(_, is_free)| !**is_free) {
            let at = (HEADER + index as u64 * pool.size) as usize;
            let block = &bytes[at..at + pool.size as usize];
            let count = self.type_of(block).unwrap_or(0);
            let count = &mut self.counts[count];
            count.objects += 1;
            count.bytes += pool.size;
            *count.arenas.entry(pool.arena).or_default() += 1;
        }
    }

    /// The types, the most bytes first.
    pub(super) fn finish(self, arena_bytes: u64) -> Vec<Type> {
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

    fn type_of(&mut self, block: &[u8]) -> Option<usize> {
        BEFORE.into_iter().find_map(|before| {
            let references = word_of(block, before)?;
            let address = word_of(block, before + 8)?;
            if !(1..MAX_REFERENCES).contains(&references)
                || !address.is_multiple_of(8)
                || address < MAX_REFERENCES
            {
                return None;
            }
            self.type_at(address)
        })
    }

    fn type_at(&mut self, address: u64) -> Option<usize> {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let found = self.name_of(address).and_then(|name| self.number(name));
        if self.known.len() < MAX_KNOWN {
            self.known.insert(address, found);
        }
        found
    }

    /// The name of a type; `None` where there is no type at this address.
    fn name_of(&self, address: u64) -> Option<String> {
        let mut meta = address;
        for step in 0..=MAX_STEPS {
            let of = self.space.field(meta, 8)?;
            if of == meta {
                break;
            }
            if step == MAX_STEPS {
                return None;
            }
            meta = of;
        }
        if meta != address && self.text(meta)? != "type" {
            return None;
        }
        self.text(address)
    }

    fn text(&self, address: u64) -> Option<String> {
        let name = self.space.field(address, NAME)?;
        let mut bytes = [0; MAX_NAME];
        let most = self.space.read_constant(name, &mut bytes);
        let end = bytes[..most].iter().position(|byte| *byte == 0).unwrap_or(most);
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        let is_name =
            !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "._-<>".contains(c));
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
