//! Where the memory of granules is whose ids are no addresses: read from the target's own structures, as the
//! profile says (`pages`). Between hits, so what the program changes meanwhile may be missed; what cannot be read
//! is not known. Called by `snapshot`.

use std::{cell::Cell, collections::BTreeMap};

use drainprof_common::interp::Machine;
use drainprof_process::{read_memory, readers::ask};
use drainprof_profile::{GranulePages, Resolver, eval_all};
use drainprof_report::facts::{AllocatorFacts, GranuleFacts};

/// Reads of one allocator's memory per snapshot: a fraction of a second.
const MAX_READS: u32 = 200_000;

/// Finds the pages of all granules of an allocator, in the process `pid` that runs.
pub(super) fn find(facts: &mut AllocatorFacts, pid: u32) {
    let profile = facts.profile.clone();
    let Some(pages) = &profile.granule_pages else { return };
    // Pages belong to an id: of its generations, the newest has them.
    let mut newest: BTreeMap<u64, usize> = BTreeMap::new();
    let since = |granule: &GranuleFacts| (!granule.closed, granule.closed_ns, granule.opened_ns);
    for (index, granule) in facts.granules.iter().enumerate() {
        let known = newest.entry(granule.id).or_insert(index);
        if since(granule) > since(&facts.granules[*known]) {
            *known = index;
        }
    }
    let (ids, instance) = (newest.keys().copied().collect::<Vec<u64>>(), facts.instance);
    let (own, left) = (facts.profile.clone(), MAX_READS);
    let found = ask(pid, move || -> BTreeMap<u64, Option<Vec<u64>>> {
        let Some(pages) = &own.granule_pages else { return BTreeMap::new() };
        let memory = Memory { pid, left: Cell::new(left), instance, granule: Cell::new(0) };
        ids.into_iter().map(|id| (id, memory.pages(pages, id))).collect()
    });
    // Where the kernel does not answer, nothing is known.
    let mut found = found.unwrap_or_default();
    for (index, granule) in facts.granules.iter_mut().enumerate() {
        let Some(Some(own)) = found.get_mut(&granule.id) else { continue };
        let own =
            if newest.get(&granule.id) == Some(&index) { std::mem::take(own) } else { Vec::new() };
        granule.bytes = pages.bytes.saturating_mul(own.len() as u64);
        granule.pages = Some(own);
    }
    let mut retained = facts.granules.iter().filter(|granule| granule.closed);
    facts.pages_known = retained.clone().all(|granule| granule.pages.is_some());
    facts.retained_bytes =
        retained.by_ref().fold(0, |sum, granule| sum.saturating_add(granule.bytes));
}

/// The target's memory, with an instance and a granule as arguments.
struct Memory {
    pid: u32,
    left: Cell<u32>,
    instance: u64,
    granule: Cell<u64>,
}

impl Memory {
    /// The addresses of a granule's pages; `None` where they cannot be read.
    fn pages(&self, pages: &GranulePages, granule: u64) -> Option<Vec<u64>> {
        self.granule.set(granule);
        let mut all = Vec::new();
        for at in &pages.at {
            all.extend(eval_all(at, self, &Nothing).ok()?);
        }
        all.sort_unstable();
        all.dedup();
        Some(all)
    }
}

impl Machine for Memory {
    fn arg(&self, index: u8) -> u64 {
        if index == 0 { self.instance } else { self.granule.get() }
    }

    fn ret(&self) -> u64 {
        0
    }

    fn caller(&self) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        self.left.set(self.left.get().checked_sub(1)?);
        let (mut bytes, len) = ([0; 8], usize::from(size).min(8));
        let read = read_memory(self.pid, address, &mut bytes[..len]);
        (read == Ok(len)).then(|| u64::from_le_bytes(bytes))
    }
}

/// Pages name nothing of the binary; the parser sees to it.
struct Nothing;

impl Resolver for Nothing {
    fn var(&self, _: &str) -> Option<u64> {
        None
    }

    fn offset_of(&self, _: &str, _: &str) -> Result<u64, String> {
        Err("pages name no member".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use drainprof_profile::expr;

    use super::*;

    /// Lists in this very process: a walk of walks yields each node, and what cannot be read yields nothing.
    #[test]
    fn lists_of_lists() {
        let inner = [[0u64, 0], [0, 0], [0, 0]];
        let node = |index: usize| std::ptr::from_ref(&inner[index]) as u64;
        let heads = [node(0), 0, node(2)];
        let memory = Memory {
            pid: std::process::id(),
            left: Cell::new(100),
            instance: heads.as_ptr() as u64,
            granule: Cell::new(0),
        };
        let pages =
            |text: &str| GranulePages { at: vec![expr::parse_pages(text).unwrap()], bytes: 1 };
        let text = "walk(arg0, it + 8, walk(*(u64)(it), *(u64)(it), it), end = arg0 + 24)";
        let mut expected = [node(0), node(2)];
        expected.sort_unstable();
        assert_eq!(memory.pages(&pages(text), 7).unwrap(), expected);
        assert_eq!(memory.pages(&pages("arg1"), 7).unwrap(), [7]);
        assert_eq!(memory.pages(&pages("*(u64)(8)"), 7), None);
        assert_eq!(memory.pages(&pages("arg0 + 0 % (arg1 == 8)"), 7), None);
        let endless = "walk(arg0, it, *(u64)(it), max = 4096)";
        assert_eq!(memory.pages(&pages(endless), 7), None);
    }
}
