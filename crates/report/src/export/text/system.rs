//! The growth of a whole machine, as a page: by command and container, then by their call stacks.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    growth::{innermost, signed},
    page::{Page, SYMBOL},
};
use crate::{
    GrowthPath, MemoryGrowth, Report,
    export::{
        Error, PinWeight, escape,
        stack::{self, Root},
        table::Rows,
        weigh::command,
    },
    units,
};

/// Columns that are left for the numbers and the command of a call stack.
const NUMBERS: usize = 46;

/// What the processes of one command in one container have done together.
#[derive(Default)]
struct Sums {
    processes: u64,
    resident: i64,
    anonymous: i64,
    faults: u64,
    heap: i64,
    mapped: u64,
}

impl Sums {
    fn add(&mut self, growth: &MemoryGrowth) {
        self.processes += 1;
        self.resident = self.resident.saturating_add(growth.rss.change.resident());
        self.anonymous = self.anonymous.saturating_add(growth.rss.change.anon_bytes);
        self.faults = self.faults.saturating_add(growth.faults.user + growth.faults.kernel);
        self.heap = self.heap.saturating_add(growth.heap.change_bytes);
        self.mapped = self.mapped.saturating_add(growth.mappings.outstanding_bytes);
    }

    const fn is_zero(&self) -> bool {
        let Self { processes: _, resident, anonymous, faults, heap, mapped } = *self;
        resident == 0 && anonymous == 0 && faults == 0 && heap == 0 && mapped == 0
    }
}

impl Page<'_> {
    /// The growth of all processes that run.
    pub(super) fn system(&mut self, report: &Report) -> Result<(), Error> {
        let mut commands: BTreeMap<String, Sums> = BTreeMap::new();
        let mut stacks: BTreeMap<(String, String), (i64, u64, &GrowthPath)> = BTreeMap::new();
        let mut ended = BTreeSet::new();
        for target in &report.targets {
            let Some(growth) = &target.growth else { continue };
            if target.ended.is_some() {
                ended.insert(target.pid);
                continue;
            }
            let own = command(target);
            commands.entry(own.clone()).or_default().add(growth);
            for path in &growth.paths {
                let key =
                    (own.clone(), stack::frames(Root::default(), path.path_end, &path.frames));
                let (bytes, faults, _) = stacks.entry(key).or_insert((0, 0, path));
                *bytes = bytes.saturating_add(self.added(path));
                *faults = faults.saturating_add(path.faults);
            }
        }
        let all: i64 = commands.values().fold(0, |sum, own| sum.saturating_add(own.resident));
        let running: u64 = commands.values().map(|own| own.processes).sum();
        self.line("")?;
        self.wrapped(
            "",
            &format!(
                "the whole machine: resident memory {} in {} of {}; {} ended meanwhile, and gave theirs back",
                signed(all),
                units::counted(running, "process", "processes"),
                units::counted(commands.len() as u64, "command", "commands"),
                ended.len()
            ),
        )?;
        self.commands(commands)?;
        self.stacks(stacks)
    }

    /// What the view shows of a call stack.
    fn added(&self, path: &GrowthPath) -> i64 {
        match self.style.weight {
            PinWeight::Heap => path.heap_bytes,
            PinWeight::Mappings => i64::try_from(path.outstanding_bytes).unwrap_or(i64::MAX),
            _ => path.rss.resident(),
        }
    }

    fn commands(&mut self, commands: BTreeMap<String, Sums>) -> Result<(), Error> {
        let header = ["command", "processes", "resident", "anonymous", "faults", "heap", "mapped"];
        let mut rows = Rows::new(&header, 1, self.style.width);
        let mut commands: Vec<_> = commands.into_iter().filter(|(_, own)| !own.is_zero()).collect();
        if commands.is_empty() {
            return self.line("no growth in this window");
        }
        commands.sort_by_key(|(_, own)| Reverse((own.resident, own.faults)));
        for (name, own) in commands.into_iter().take(self.style.top) {
            rows.push(vec![
                escape::shown(&name, SYMBOL),
                own.processes.to_string(),
                signed(own.resident),
                signed(own.anonymous),
                own.faults.to_string(),
                signed(own.heap),
                units::bytes(own.mapped),
            ]);
        }
        self.line("")?;
        self.rows(rows, "")
    }

    fn stacks(
        &mut self,
        stacks: BTreeMap<(String, String), (i64, u64, &GrowthPath)>,
    ) -> Result<(), Error> {
        let what = match self.style.weight {
            PinWeight::Heap => "heap",
            PinWeight::Mappings => "mapped",
            _ => "resident",
        };
        let mut rows =
            Rows::new(&[what, "faults", "command: call path"], 0, self.style.width).unwrapped();
        let mut stacks: Vec<_> =
            stacks.into_iter().filter(|(_, (bytes, ..))| *bytes != 0).collect();
        stacks.sort_by_key(|(_, (bytes, faults, _))| Reverse((*bytes, *faults)));
        for ((name, _), (bytes, faults, path)) in stacks.into_iter().take(self.style.top) {
            let width = usize::from(self.style.width).saturating_sub(NUMBERS);
            let path = innermost(path, width);
            let name = escape::shown(&name, SYMBOL / 2);
            rows.push(vec![signed(bytes), faults.to_string(), format!("{name}: {path}")]);
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.line("")?;
        self.rows(rows, "")
    }
}
