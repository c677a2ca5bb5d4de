//! `--no-paths`: takes from a report where and on what it was measured, so that it can be shared.
//!
//! Taken out: addresses, source files and lines, labels, build ids,
//! ids of sites. Replaced by pseudonyms: modules, executables and
//! probed objects (`module-1`), process and thread names, containers, process numbers, instances, granule ids, and names
//! of functions that hold a `/` (code that a process generates is often named after its source file).
//! Messages of findings that may quote any of it are left out. What stays: names of functions and profiles,
//! offsets in functions and modules, all numbers, drainprof's version and the kernel's release.

use std::collections::BTreeMap;

use crate::{Allocator, Finding, Frame, Place, Report, Target};

/// Findings whose messages consist of fixed words and numbers.
const PLAIN_FINDINGS: [&str; 7] =
    ["lost", "low_dsr", "pinned", "leak", "no_data", "overdue", "allocs_without_frees"];
const LEFT_OUT: &str = "(the message is left out: it may quote names)";

/// Numbers in the order in which things are first met.
#[derive(Debug, Default)]
struct Numbers(BTreeMap<String, usize>);

impl Numbers {
    fn of(&mut self, name: &str) -> usize {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let number = self.0.len() + 1;
        self.0.insert(name.to_owned(), number);
        number
    }

    fn name(&mut self, what: &str, name: &mut String) {
        if !name.is_empty() {
            *name = format!("{what}-{}", self.of(name));
        }
    }

    /// Ids keep their form.
    fn id(&mut self, id: &mut String) {
        *id = format!("{:#x}", self.of(id));
    }
}

/// The pseudonyms given so far.
#[derive(Debug, Default)]
pub(super) struct Anonymiser {
    modules: Numbers,
    functions: Numbers,
    processes: Numbers,
    containers: Numbers,
    pids: Numbers,
    threads: Numbers,
    instances: Numbers,
    granules: Numbers,
    objects: Numbers,
}

impl Anonymiser {
    /// Takes out and replaces.
    pub(super) fn apply(&mut self, report: &mut Report) {
        report.findings.iter_mut().for_each(|finding| self.finding(finding));
        report.targets.iter_mut().for_each(|target| self.target(target));
    }

    fn finding(&mut self, finding: &mut Finding) {
        if let Some(instance) = &mut finding.instance {
            self.instances.id(instance);
        }
        if !PLAIN_FINDINGS.contains(&finding.code.as_str()) {
            LEFT_OUT.clone_into(&mut finding.message);
        }
    }

    fn target(&mut self, target: &mut Target) {
        let process = format!("{}/{}", target.pid, target.start_time);
        target.pid = u32::try_from(self.pids.of(&process)).unwrap_or(u32::MAX);
        target.start_time = 0;
        self.processes.name("process", &mut target.comm);
        target.container.iter_mut().for_each(|id| self.containers.name("container", id));
        self.module(&mut target.exe);
        target.findings.iter_mut().for_each(|finding| self.finding(finding));
        for probe in &mut target.probes {
            self.module(&mut probe.object);
            self.function(&mut probe.symbol);
        }
        for module in &mut target.modules {
            self.module(&mut module.name);
            module.path.clone_from(&module.name);
            module.build_id = None;
        }
        target.allocators.iter_mut().for_each(|allocator| self.allocator(allocator));
        for heap in target.census.iter_mut().flat_map(|census| &mut census.growth) {
            // Names of types are names of the program.
            heap.types.clear();
        }
        if let Some(growth) = &mut target.growth {
            for place in &mut growth.touched.places {
                place.opened_at.place = None;
                self.frame(&mut place.opened_at.frame);
            }
            for frame in growth.paths.iter_mut().flat_map(|path| &mut path.frames) {
                frame.address = None;
                self.frame(&mut frame.frame);
            }
        }
    }

    fn allocator(&mut self, allocator: &mut Allocator) {
        if let Some(instance) = &mut allocator.instance {
            self.instances.id(instance);
        }
        for Place { place, frame, .. } in &mut allocator.lifetimes.places {
            *place = None;
            self.frame(frame);
        }
        for granule in &mut allocator.open_granules {
            self.granules.id(&mut granule.id);
            granule.parent.iter_mut().for_each(|parent| self.granules.id(parent));
            (granule.label, granule.place) = (None, None);
            granule.opened_by.iter_mut().for_each(|frame| self.frame(frame));
        }
        for granule in &mut allocator.pinned_granules {
            self.granules.id(&mut granule.id);
            granule.parent.iter_mut().for_each(|parent| self.granules.id(parent));
            (granule.label, granule.place) = (None, None);
            granule.opened_by.iter_mut().for_each(|frame| self.frame(frame));
        }
        for site in allocator.sites.iter_mut().flatten() {
            site.oldest.iter_mut().for_each(|object| self.objects.id(&mut object.id));
            site.id = None;
            site.threads.iter_mut().for_each(|thread| self.threads.name("thread", thread));
            site.opened_at.place = None;
            self.frame(&mut site.opened_at.frame);
            for frame in &mut site.frames {
                frame.address = None;
                self.frame(&mut frame.frame);
            }
        }
    }

    fn frame(&mut self, frame: &mut Frame) {
        (frame.file, frame.line) = (None, None);
        frame.module.iter_mut().for_each(|module| self.module(module));
        frame.function.iter_mut().for_each(|function| self.function(function));
        for inlined in &mut frame.inlined {
            (inlined.file, inlined.line) = (None, None);
            self.function(&mut inlined.function);
        }
    }

    /// A file is known by its name without the directory, so that a process's executable and the module of its
    /// frames are one; what is in brackets is no file.
    fn module(&mut self, module: &mut String) {
        if module.starts_with('[') && !module.contains('/') {
            return;
        }
        let mut name = module.rsplit('/').next().unwrap_or_default().to_owned();
        self.modules.name("module", &mut name);
        *module = name;
    }

    fn function(&mut self, function: &mut String) {
        if function.contains('/') {
            self.functions.name("function", function);
        }
    }
}
