//! Growth: from the kernel side's cells, pages and records to facts.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use drainprof_common::growth::{Cause, GrowthCell, GrowthTarget, member, path_and_stack};
use drainprof_probe::bpf::Session;
use drainprof_process::{
    mapped_ranges,
    memory::{GranuleRange, GranuleState},
    readers::ask,
};
use drainprof_report::{
    facts::{
        Began, CallPath, FaultTotals, GrowthFacts, MappingLedger, PathGrowth, TargetFacts, join,
    },
    series::AddedSet,
};

use super::{
    clock::{Clock, SHARE, now_ns, own_cpu},
    paths::Paths,
    targets::{Target, Targets},
};

/// What user space itself keeps of growth.
#[derive(Default)]
pub(super) struct Growth {
    ledgers: BTreeMap<u32, MappingLedger>,
    /// Minor and major faults when a target was armed.
    counted: BTreeMap<u32, (u64, u64)>,
    /// What call stacks have added over time.
    added: AddedSet,
    /// When the cells are read again for it.
    read_due_ns: u64,
}

impl Growth {
    /// A process is about to be armed: what its memory is now is where its growth begins.
    pub(super) fn begin(&mut self, session: &mut Session, target: u32, pid: u32) {
        self.added.begin(now_ns());
        let known = ask(pid, move || (heap_end(pid), faults(pid), resident(pid)));
        let (heap_end, faults, resident) = known.unwrap_or_default();
        self.ledgers.insert(target, MappingLedger::new(heap_end));
        if let Some(counted) = faults {
            self.counted.insert(target, counted);
        }
        if let Some(last) = resident {
            let known =
                GrowthTarget { known: (1 << member::COUNT) - 1, last, peak: last, mm_id: 0 };
            if let Err(error) = session.growth.begin(target, &known) {
                tracing::debug!(pid, %error, "where its memory begins is not known");
            }
        }
    }

    /// Reads what call stacks have added, if it is time to: it takes at most the hundredth part of a CPU.
    pub(super) fn sample(&mut self, session: &Session) {
        let at_ns = now_ns();
        if self.read_due_ns > at_ns {
            return;
        }
        let began = own_cpu();
        self.added.add(at_ns, &added(&session.growth.cells()));
        let spent = own_cpu().saturating_sub(began) * SHARE;
        let after = at_ns.saturating_add(spent.as_nanos() as u64);
        self.read_due_ns = self.added.due_ns().max(after);
    }

    /// Takes the records of system calls that have come.
    pub(super) fn take_mappings(&mut self, session: &mut Session, targets: &Targets) {
        loop {
            let records = session.drain_mappings();
            if records.is_empty() {
                break;
            }
            for record in &records {
                let number = record.target;
                if !self.ledgers.contains_key(&number) {
                    // A forked child's heap ends where its parent's did.
                    let heap_end = match targets.get(number).map(Target::began) {
                        Some(Began::Forked { from_target: parent }) => {
                            self.ledgers.get(&parent).and_then(MappingLedger::heap_end)
                        }
                        _ => None,
                    };
                    self.ledgers.insert(number, MappingLedger::new(heap_end));
                }
                if let Some(ledger) = self.ledgers.get_mut(&number) {
                    ledger.add(record);
                }
            }
        }
    }

    /// Adds the growth of each target; the mappings that have come were taken.
    pub(super) fn add_to(
        &mut self,
        targets: &mut [TargetFacts],
        session: &Session,
        paths: &Paths,
        clock: &Clock,
    ) {
        let all = session.growth.cells();
        let sums = added(&all);
        self.added.add(clock.at_ns(), &sums);
        let mut known: BTreeMap<u32, Arc<CallPath>> = BTreeMap::new();
        let mut path = |number: u32| {
            let read = || {
                let (number, stack) = path_and_stack(number);
                let own = number.checked_sub(1).map(|number| paths.path(session, number));
                let own = own.unwrap_or_default();
                match stack.checked_sub(1).map(|stack| session.growth.kernel_stack(stack)) {
                    Some(mut addresses) => {
                        addresses.extend(&own.addresses);
                        Arc::new(CallPath { addresses, end: own.end })
                    }
                    None => own,
                }
            };
            Arc::clone(known.entry(number).or_insert_with(read))
        };
        let mut cells: BTreeMap<u32, Vec<(Cause, GrowthCell)>> = BTreeMap::new();
        for (cause, cell) in all {
            cells.entry(cell.target).or_default().push((cause, cell));
        }
        let mut touched = session.growth.touched();
        let mut drained = session.read_drained();
        for target in targets {
            let mut facts = GrowthFacts::default();
            let cells = cells.remove(&target.target).unwrap_or_default();
            for (cause, cell) in &cells {
                add_cell(&mut facts, *cause, cell, &mut path);
            }
            let mut numbers: BTreeMap<Arc<CallPath>, Vec<(u32, u32)>> = BTreeMap::new();
            for (&(own, number), &bytes) in
                sums.range((target.target, 0)..=(target.target, u32::MAX))
            {
                if bytes != 0 || self.added.of((own, number)).is_some() {
                    numbers.entry(path(number)).or_default().push((own, number));
                }
            }
            for (path, numbers) in numbers {
                if let Some(own) = facts.paths.get_mut(&path) {
                    own.over_time = self.added.sum(&numbers);
                }
            }
            if let Some(ledger) = self.ledgers.get(&target.target) {
                for (number, totals) in ledger.paths() {
                    facts.paths.entry(path(number)).or_default().maps.add(&totals);
                }
                (facts.unmapped, facts.unmapped_before) =
                    (ledger.unmapped(), ledger.unmapped_before());
            }
            if let Some(memory) = session.growth.read(target.target) {
                for kind in 0..member::COUNT {
                    let is_known = memory.known >> kind & 1 != 0;
                    facts.last[kind] =
                        (is_known && target.ended.is_none()).then_some(memory.last[kind]);
                }
                facts.peak = memory.peak;
            }
            if target.ended.is_some() {
                // The end of the address space is no shrinking.
                facts.outside = [0; member::COUNT];
            }
            let drained = drained.remove(&target.target).unwrap_or_default();
            // Read only for a target with an id that may be no address.
            let (pid, alive) = (target.pid, target.ended.is_none());
            let mapped = LazyCell::new(|| {
                let read = || ask(pid, move || mapped_ranges(pid).ok()).ok().flatten();
                alive.then(read).flatten()
            });
            let (ranges, unplaced) =
                ranges(target, drained, &|id| id >= LOWEST && is_mapped(id, mapped.as_deref()));
            facts.unplaced = unplaced;
            facts.touched = join(&touched.remove(&target.target).unwrap_or_default(), &ranges);
            let now = alive.then(|| ask(pid, move || faults(pid)).ok().flatten()).flatten();
            facts.counted = now
                .zip(self.counted.get(&target.target))
                .map(|(now, then)| (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1)));
            target.growth = Some(facts);
        }
    }

    /// Records that the ledgers had no room for.
    pub(super) fn lost(&self) -> u64 {
        self.ledgers.values().map(MappingLedger::lost).sum()
    }
}

/// What each call stack of each target has added to resident memory.
fn added(cells: &[(Cause, GrowthCell)]) -> BTreeMap<(u32, u32), i64> {
    let mut sums: BTreeMap<(u32, u32), i64> = BTreeMap::new();
    for (cause, cell) in cells {
        if is_apart(*cause, cell) {
            continue;
        }
        let resident = [member::ANON, member::FILE, member::SHMEM];
        let sum = sums.entry((cell.target, cell.path)).or_default();
        *sum = resident.iter().fold(*sum, |sum, kind| sum.saturating_add(cell.rss[*kind]));
    }
    sums
}

/// Whether a cell has no call path, not even the kernel's.
fn is_apart(cause: Cause, cell: &GrowthCell) -> bool {
    cause == Cause::Outside || cause == Cause::Other && cell.path == 0
}

fn add_cell(
    facts: &mut GrowthFacts,
    cause: Cause,
    cell: &GrowthCell,
    path: &mut impl FnMut(u32) -> Arc<CallPath>,
) {
    let sum = |into: &mut [i64; member::COUNT]| {
        for (sum, value) in into.iter_mut().zip(cell.rss) {
            *sum = sum.saturating_add(value);
        }
    };
    if is_apart(cause, cell) {
        let apart = if cause == Cause::Other { &mut facts.other } else { &mut facts.outside };
        return sum(apart);
    }
    let totals = FaultTotals {
        faults: if cause == Cause::Fault { cell.events } else { 0 },
        kernel_faults: if cause == Cause::KernelFault { cell.events } else { 0 },
        writes: cell.writes,
        present: cell.present,
        rss: cell.rss,
    };
    let own: &mut PathGrowth = facts.paths.entry(path(cell.path)).or_default();
    own.memory.add(&totals);
}

/// The granules of a target as ranges of addresses, and how many there are whose memory is not known.
fn ranges(
    target: &TargetFacts,
    drained: Vec<GranuleRange>,
    is_address: &dyn Fn(u64) -> bool,
) -> (Vec<GranuleRange>, BTreeMap<GranuleState, u64>) {
    let mut all = Vec::new();
    let mut unplaced: BTreeMap<GranuleState, u64> = BTreeMap::new();
    let granules = target.allocators.iter().enumerate().flat_map(|(allocator, facts)| {
        let pages = facts.profile.granule_pages.as_ref().map_or(0, |pages| pages.bytes);
        facts.granules.iter().map(move |granule| (allocator, pages, granule))
    });
    for (number, (allocator, page_bytes, granule)) in granules.enumerate() {
        let state = if granule.closed { GranuleState::Pinned } else { GranuleState::Open };
        let range = |start, bytes| GranuleRange {
            granule: number as u64,
            start,
            bytes,
            state,
            allocator,
            place: granule.place,
        };
        match &granule.pages {
            Some(pages) => all.extend(pages.iter().map(|page| range(*page, page_bytes))),
            None if page_bytes == 0 && granule.bytes > 0 && is_address(granule.id) => {
                all.push(range(granule.id, granule.bytes));
            }
            None => *unplaced.entry(state).or_default() += 1,
        }
    }
    let taken: BTreeSet<u64> = all.iter().map(|range| range.start).collect();
    for range in drained {
        // Its memory may have been given back: only what never is an address says something.
        if range.start < LOWEST {
            *unplaced.entry(GranuleState::Drained).or_default() += 1;
        } else if !taken.contains(&range.start) {
            all.push(range);
        }
    }
    (all, unplaced)
}

/// No program has memory below: the kernel keeps it free (`vm.mmap_min_addr`).
const LOWEST: u64 = 65_536;

/// Whether an address is mapped. What a process had mapped that has ended is not known, so it may have been.
fn is_mapped(address: u64, mapped: Option<&[(u64, u64)]>) -> bool {
    mapped.is_none_or(|mapped| {
        let next = mapped.partition_point(|(start, _)| *start <= address);
        next.checked_sub(1).and_then(|at| mapped.get(at)).is_some_and(|(_, end)| address < *end)
    })
}

/// Sizes of a process's resident memory in bytes, by [`member`].
fn resident(pid: u32) -> Option<[u64; member::COUNT]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024))
    };
    let mut sizes = [0; member::COUNT];
    sizes[member::FILE] = field("RssFile:")?;
    sizes[member::ANON] = field("RssAnon:")?;
    sizes[member::SWAP] = field("VmSwap:").unwrap_or_default();
    sizes[member::SHMEM] = field("RssShmem:")?;
    Some(sizes)
}

/// Minor and major faults of a process so far.
fn faults(pid: u32) -> Option<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    let minor = rest.nth(7)?.parse().ok()?;
    let major = rest.nth(1)?.parse().ok()?;
    Some((minor, major))
}

/// Where a process's heap ends.
fn heap_end(pid: u32) -> Option<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = maps.lines().find(|line| line.ends_with("[heap]"))?;
    let (_, end) = line.split_whitespace().next()?.split_once('-')?;
    u64::from_str_radix(end, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is mapped is an address; others may be one only where it is not known what was mapped.
    #[test]
    fn addresses() {
        let mapped = mapped_ranges(std::process::id()).unwrap();
        let own = std::ptr::from_ref(&mapped) as u64;
        assert!(is_mapped(own, Some(&mapped)));
        for address in [15, LOWEST + 1, u64::MAX] {
            assert!(!is_mapped(address, Some(&mapped)), "{address}");
            assert!(is_mapped(address, None), "{address}");
        }
    }

    /// This very process can be read.
    #[test]
    fn own_memory() {
        let own = std::process::id();
        let sizes = resident(own).unwrap();
        assert!(sizes[member::ANON] > 0 && sizes[member::FILE] > 0);
        assert!(faults(own).unwrap().0 > 0);
        assert!(heap_end(own).is_none_or(|end| end > 4096));
        assert!(resident(u32::MAX).is_none() && faults(u32::MAX).is_none());
    }
}
