//! Page faults and mappings: attaching what sees them, and reading what was counted.

use std::collections::BTreeMap;

use aya::{
    Ebpf,
    maps::{HashMap, MapData, RingBuf, StackTraceMap, stack_trace::StackTrace},
    programs::{RawTracePoint, TracePoint},
};
use drainprof_common::growth::{
    Cause, GrowthCell, GrowthTarget, MapRecord, RegionKey, RegionPages,
};

use super::{
    BpfError, Sizes,
    load::{Plain, load_error, mapped, program, take},
    memory::Mapped,
    names,
};

/// Records taken from the ring in one go.
const RECORDS_AT_ONCE: usize = 262_144;

/// Page faults and mappings, where they are wanted.
pub struct Growth(Option<Maps>);

struct Maps {
    cells: Mapped<GrowthCell>,
    targets: HashMap<MapData, u32, Plain<GrowthTarget>>,
    touched: HashMap<MapData, Plain<RegionKey>, Plain<RegionPages>>,
    records: RingBuf<MapData>,
    stacks: StackTraceMap<MapData>,
}

impl Maps {
    /// Loads and attaches the programs, and takes the maps.
    fn attach(ebpf: &mut Ebpf, sizes: &Sizes) -> Result<Self, BpfError> {
        for (name, event) in names::GROWTH_RAW {
            let program: &mut RawTracePoint = program(ebpf, name)?;
            program.load().map_err(|source| load_error(name, source))?;
            program
                .attach(event)
                .map_err(|source| BpfError::Tracepoint { name: event, source: Box::new(source) })?;
        }
        for (name, (category, events)) in names::GROWTH_TRACEPOINTS {
            let program: &mut TracePoint = program(ebpf, name)?;
            program.load().map_err(|source| load_error(name, source))?;
            for event in events {
                program.attach(category, event).map_err(|source| BpfError::Tracepoint {
                    name: event,
                    source: Box::new(source),
                })?;
            }
        }
        Ok(Self {
            cells: mapped(ebpf, names::GROWTH_CELLS, sizes.path_slots() as usize)?,
            targets: take(ebpf, names::GROWTH_TARGETS)?,
            touched: take(ebpf, names::TOUCHED)?,
            records: take(ebpf, names::MAPPINGS)?,
            stacks: take(ebpf, names::KERNEL_STACKS)?,
        })
    }
}

impl Growth {
    pub(super) fn take(ebpf: &mut Ebpf, sizes: &Sizes, wanted: bool) -> Result<Self, BpfError> {
        Ok(Self(if wanted { Some(Maps::attach(ebpf, sizes)?) } else { None }))
    }

    /// Whether growth is looked at.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Says how large a target's memory is before it is armed, so that its first change is reported exactly.
    pub fn begin(&mut self, target: u32, known: &GrowthTarget) -> Result<(), BpfError> {
        let Some(growth) = &mut self.0 else { return Ok(()) };
        growth
            .targets
            .insert(target, Plain(*known), 0)
            .map_err(|source| BpfError::map("entering a process in", names::GROWTH_TARGETS, source))
    }

    /// The memory of a target as the kernel has reported it last; `None` where it has reported nothing.
    #[must_use]
    pub fn read(&self, target: u32) -> Option<GrowthTarget> {
        let growth = self.0.as_ref()?;
        growth.targets.get(&target, 0).ok().map(|known| known.0)
    }

    /// All cells that are filled.
    #[must_use]
    pub fn cells(&self) -> Vec<(Cause, GrowthCell)> {
        let Some(growth) = &self.0 else { return Vec::new() };
        (0..growth.cells.len())
            .filter_map(|index| {
                // Most places are empty: one word, of target and cause, shows it.
                let head = growth.cells.word(index, 0)?;
                if head.load(std::sync::atomic::Ordering::Acquire) >> 32 == 0 {
                    return None;
                }
                let cell = growth.cells.get(index);
                Some((Cause::from_raw(cell.cause)?, cell))
            })
            .collect()
    }

    /// The pages that were touched, by target and region.
    #[must_use]
    pub fn touched(&self) -> BTreeMap<u32, BTreeMap<u64, RegionPages>> {
        let mut touched: BTreeMap<u32, BTreeMap<u64, RegionPages>> = BTreeMap::new();
        let Some(growth) = &self.0 else { return touched };
        for (key, pages) in growth.touched.iter().filter_map(Result::ok) {
            touched.entry(key.0.target).or_default().insert(key.0.region, pages.0);
        }
        touched
    }

    /// The addresses of a stack of the kernel, the innermost first, by its number; none where it is not there any more.
    #[must_use]
    pub fn kernel_stack(&self, number: u32) -> Vec<u64> {
        let found = self.0.as_ref().and_then(|growth| growth.stacks.get(&number, 0).ok());
        found.iter().flat_map(StackTrace::frames).map(|frame| frame.ip).collect()
    }

    /// The system calls that have come, and how many records could not be decoded.
    pub(super) fn drain(&mut self) -> (Vec<MapRecord>, u64) {
        let (mut records, mut unknown) = (Vec::new(), 0);
        if let Some(growth) = &mut self.0 {
            while records.len() < RECORDS_AT_ONCE {
                let Some(record) = growth.records.next() else { break };
                match bytemuck::try_pod_read_unaligned(&record) {
                    Ok(record) => records.push(record),
                    Err(_) => unknown += 1,
                }
            }
        }
        (records, unknown)
    }
}
