//! The pools of an nginx process: that of its configuration, and of each connection and the request that it serves.
//!
//! A pool begins with how far its first block is used (0), where that ends (8), the next block (16), the largest object
//! that is small (32) and a list of large ones (56); each other block with the first three of these. The cycle has its
//! pool at 8, and the number of connections two words before the arrays of connections, of their read events and of their
//! write events. A connection has its data at 0, its events at 8 and 16, its descriptor at 24. A request begins with a
//! signature, and its connection at 8. Where both have their pools depends on the build, and is found by what validates.
//! Source: `ngx_palloc.h`, `ngx_cycle.h`, `ngx_connection.h`, `ngx_http_request.h`.

use super::{MAX_POOLS, MAX_STEPS, Sums, again, pool};
use crate::{
    contexts::Contexts,
    model::Context,
    pages::Reader,
    space::{PAGE, Space},
};

/// Bytes of a pool's own, and of another block's.
const POOL: u64 = 80;
const BLOCK: u64 = 32;
/// The largest block that is believed.
const MAX_SIZE: u64 = 1 << 24;
/// Where the arrays may be in the cycle.
const ARRAYS: std::ops::Range<u64> = 64..1024;
/// Where a connection or a request may have its pool.
const POOL_AT: std::ops::Range<u64> = 40..200;
/// Bytes that a connection may have, and its events.
const CONNECTION: std::ops::RangeInclusive<u64> = 128..=512;
const EVENT: std::ops::RangeInclusive<u64> = 48..=256;
/// The most connections that are believed.
const MAX_CONNECTIONS: u64 = 1 << 20;
/// What an HTTP request begins with.
const SIGNATURE: u64 = 0x5054_5448;

/// Reads the pools that are reached from the pointer to the cycle at `top`.
pub(super) fn read(space: &Space<'_>, top: u64) -> Contexts {
    let mut reader = Reader::new(space, MAX_STEPS);
    let (contexts, missing) =
        again(&mut reader, |reader| all(reader, top).unwrap_or((Vec::new(), 1)));
    let mut notes = Vec::new();
    if contexts.is_empty() {
        notes.push("nginx: its pools are of no known layout, or it has none yet".to_owned());
    } else if missing > 0 {
        notes.push(format!(
            "nginx: {missing} connections are missing: swapped out, or they changed while they were read"
        ));
    }
    Contexts { contexts, notes }
}

/// All pools, and how many connections are missing.
fn all(reader: &mut Reader<'_>, top: u64) -> Option<(Vec<Context>, u64)> {
    let cycle = reader.word(top, 0)?;
    let own = reader.word(cycle, 8)?;
    let mut found = vec![pool("configuration".to_owned(), None, sums(reader, own)?)];
    // The master has none.
    let Some(connections) = Connections::find(reader, cycle) else { return Some((found, 0)) };
    let mut missing = 0;
    for index in 0..connections.number {
        if found.len() + 2 > MAX_POOLS || reader.steps == 0 {
            missing += connections.number - index;
            break;
        }
        match connections.pools(reader, index, own) {
            Some(Pools { connection: None, .. }) => {}
            Some(Pools { connection: Some(connection), request }) => {
                reader.keep::<[u64; 40]>()?;
                found.push(pool("connection".to_owned(), Some((0, 0)), connection));
                let parent = (found.len() - 1, 1);
                found.extend(request.map(|own| pool("request".to_owned(), Some(parent), own)));
            }
            None => missing += 1,
        }
    }
    Some((found, missing))
}

/// The array of connections, and those of their events.
struct Connections {
    first: u64,
    bytes: u64,
    read_events: u64,
    event_bytes: u64,
    number: u64,
}

/// The pools of a connection; what is free or listens has none.
#[derive(Default)]
struct Pools {
    connection: Option<Sums>,
    request: Option<Sums>,
}

impl Connections {
    fn find(reader: &mut Reader<'_>, cycle: u64) -> Option<Self> {
        ARRAYS.step_by(8).find_map(|at| {
            let [number, _, first, reads, writes] =
                reader.pages.words(cycle.checked_add(at)?.checked_sub(16)?)?;
            let is_sane = [first, reads, writes].into_iter().all(|array| reader.is_heap(array))
                && (2..=MAX_CONNECTIONS).contains(&number);
            let [own_read, own_write] = reader.pages.words(first.checked_add(8)?)?;
            if !is_sane || own_read != reads || own_write != writes {
                return None;
            }
            let found = CONNECTION.step_by(8).find_map(|bytes| {
                let [read, write] = reader.pages.words(first.checked_add(bytes + 8)?)?;
                let event_bytes = read.checked_sub(reads)?;
                (EVENT.contains(&event_bytes) && write.checked_sub(writes)? == event_bytes)
                    .then_some((bytes, event_bytes))
            });
            let (bytes, event_bytes) = found?;
            let all = Self { first, bytes, read_events: reads, event_bytes, number };
            all.head(reader, number - 1).is_some().then_some(all)
        })
    }

    /// A connection: its address, its data and its descriptor.
    fn head(&self, reader: &mut Reader<'_>, index: u64) -> Option<(u64, u64, u64)> {
        reader.step()?;
        let address = self.first.checked_add(index * self.bytes)?;
        let [data, read, _, descriptor] = reader.pages.words(address)?;
        let event = self.read_events.checked_add(index * self.event_bytes)?;
        (read == event).then_some((address, data, descriptor & 0xffff_ffff))
    }

    /// The pools of one; that of the configuration, which the channel to the master has, is not its own. `None`: it could
    /// not be read.
    fn pools(&self, reader: &mut Reader<'_>, index: u64, shared: u64) -> Option<Pools> {
        let (address, data, descriptor) = self.head(reader, index)?;
        if descriptor == u64::from(u32::MAX) {
            return Some(Pools::default());
        }
        let Some((own, connection)) = member(reader, address, shared) else {
            return Some(Pools::default());
        };
        let mut request = None;
        if let Some([signature, back]) = reader.pages.words(data)
            && signature & 0xffff_ffff == SIGNATURE
            && back == address
        {
            request = member(reader, data, own).map(|(_, sums)| sums);
        }
        Some(Pools { connection: Some(connection), request })
    }
}

/// The first member of a structure that is a pool, other than `not`.
fn member(reader: &mut Reader<'_>, structure: u64, not: u64) -> Option<(u64, Sums)> {
    POOL_AT.step_by(8).find_map(|at| {
        let address = reader.word(structure, at).filter(|address| *address != not)?;
        Some((address, sums(reader, address)?))
    })
}

/// The blocks and large objects of the pool at an address, if there is one.
fn sums(reader: &mut Reader<'_>, address: u64) -> Option<Sums> {
    if !address.is_multiple_of(16) || !reader.is_heap(address) {
        return None;
    }
    let [at, end, mut next, _, max, current, _, mut large] = reader.pages.words(address)?;
    let size = end.checked_sub(address).filter(|size| (POOL + 1..=MAX_SIZE).contains(size))?;
    if max != (size - POOL).min(PAGE - 1) || !reader.is_heap(current) {
        return None;
    }
    let mut sums = Sums::default();
    sums.add(address, address + POOL, at, end)?;
    while next != 0 {
        reader.step()?;
        let block = next;
        let [at, end, following] = reader.pages.words(block)?;
        (end.checked_sub(block)? == size).then_some(())?;
        sums.add(block, block.checked_add(BLOCK)?, at, end)?;
        next = following;
    }
    while large != 0 {
        reader.step()?;
        let [following, object] = reader.pages.words(large)?;
        if object != 0 {
            sums.add_bytes(usable(reader, object)?, 0)?;
        }
        large = following;
    }
    Some(sums)
}

/// What malloc has given for an object: a chunk of glibc has its size in the word before, with three flags.
fn usable(reader: &mut Reader<'_>, object: u64) -> Option<u64> {
    let chunk = reader.word(object.checked_sub(8)?, 0)? & !7;
    (chunk.is_multiple_of(16) && (32..super::MAX_BLOCK).contains(&chunk)).then(|| chunk - 8)
}
