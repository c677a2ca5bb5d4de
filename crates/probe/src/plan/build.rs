//! Profile × objects of one process → attach plan.
//!
//! Pure: decides where each probe goes and joins what is one site; does not attach. Called by `cli`
//! and `watch` for each matching profile of each target.
//!
//! # Order
//!
//! Probes count nothing until their process is armed, and then all at once, so for a first attach the
//! order does not matter. It does where a process that is armed already gets more probes: one that has
//! executed another program and is found late. There the plan's order decides what the moments in
//! between look like, and the rule is: *what begins a thing comes after all that can happen to it*. A
//! granule is judged only if its open was seen; if opens were attached first, a granule opened in
//! between would be believed to be known, while its first allocs went by unseen, and its close would be
//! called drainable. Attached last, opens bring in only granules of which everything is seen; what
//! happened before belongs to granules from before the attach, whose closes are `unknown`, and frees of
//! unknown objects, which are notices.
//!
//! # Findings
//!
//! | code | meaning |
//! |---|---|
//! | `alias` | two probes of the profile are one place; the first is used |
//! | `ambiguous` | several `static` functions of one name |
//! | `ambiguous_variable`, `loaded_twice` | a variable's address is not certain |
//! | `clones` | copies or parts of a probed function exist beside it |
//! | `clone_only`, `renamed` | a function exists only as what the compiler made of it |
//! | `deleted`, `replaced` | the object's file is no longer what its path names |
//! | `entered_again` | a function jumps to its own first instruction |
//! | `expensive_site` | probes for which there is no cheap instruction |
//! | `ifunc` | which function an IFUNC stands for, or why that is not known |
//! | `no_alternative` | of a group of probes (`one_of`), none can be placed in an object |
//! | `not_measurable` | the profile knows that its probes cannot see enough of this build |
//! | `not_a_function` | a symbol that cannot be probed |
//! | `missing_symbol` | a probe's address is not in the object |
//! | `wrapper` | of several symbols of a C++ constructor or destructor, one only calls another |
//! | `version` | probes that are not for this version of the allocator |

use std::sync::Arc;

use drainprof_common::spec::ProbeSpec;
use drainprof_process::{Followed, Image, LoadedObject, describe, printable};
use drainprof_profile::{Finding, Level, Phase, Probe, Profile, Role};

use super::{
    candidates::{self, Candidate, Candidates, Within},
    compile::{CompileFn, CompileOne, WantedFn},
    cost::Costs,
    error::PlanError,
    matching::{address_text, match_objects},
    model::{AttachPlan, Group, PlannedProbe, Site},
    resolver::ObjectResolver,
    site::{Choice, Needs, Stop},
    sites::{Placer, Sites},
    usdt,
};

/// The order of attaching, explained above.
const ORDER: [Role; 12] = [
    Role::Free,
    Role::Realloc,
    Role::Alloc,
    Role::Destroy,
    Role::Reset,
    Role::Close,
    Role::Migrate,
    Role::Reparent,
    Role::Label,
    Role::Move,
    Role::Open,
    Role::Init,
];

/// Roles without which the counts would be wrong rather than poorer.
const NEEDED: [Role; 7] =
    [Role::Open, Role::Close, Role::Reset, Role::Migrate, Role::Move, Role::Alloc, Role::Free];

/// What a plan is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The profile.
    pub profile: &'a Arc<Profile>,
    /// How deep to look.
    pub level: Level,
    /// The allocator's number in this session.
    pub allocator: u32,
    /// The process.
    pub image: &'a Image,
    /// What the IFUNCs that the profile names stand for in it; those that are not there are not probed.
    pub followed: &'a [Followed],
    /// What hits cost on this machine.
    pub costs: &'a Costs,
    /// Which instructions of functions may be probed.
    pub sites: Sites,
}

/// Matches the profile and builds its plan.
pub fn plan(
    request: Request<'_>,
    wanted: &WantedFn<'_>,
    compile: &CompileFn<'_>,
) -> Result<AttachPlan, PlanError> {
    let objects = match_objects(request.profile, request.image)?;
    build(request, &objects, wanted, compile)
}

/// Builds the plan of a profile for the objects that it matched.
pub fn build(
    request: Request<'_>,
    objects: &[&LoadedObject],
    wanted: &WantedFn<'_>,
    compile: &CompileFn<'_>,
) -> Result<AttachPlan, PlanError> {
    let mut builder = Builder::new(request);
    if let Some(because) = objects.iter().find_map(|object| builder.not_measurable(object)) {
        return Ok(builder.nothing_to_measure(because));
    }
    let main = request.image.objects.iter().find(|object| object.is_main);
    for &object in objects {
        builder.describe_object(object);
        let resolver = ObjectResolver::new(object, main);
        let compile = |probe: &Probe| {
            compile(request.profile, probe, request.level, request.allocator, &resolver)
        };
        let probes = &request.profile.probes;
        for (index, probe) in probes.iter().enumerate() {
            if !wanted(probe, request.level) || !builder.is_for(object, index, probe) {
                continue;
            }
            match &probe.one_of {
                None => builder.place(object, index, probe, &compile)?,
                // With the first of a group the whole group is decided.
                Some(group)
                    if !probes[..index].iter().any(|other| other.one_of == probe.one_of) =>
                {
                    builder.place_one_of(object, group, probe.role, &compile)?;
                }
                Some(_) => {}
            }
        }
        for finding in resolver.into_findings() {
            builder.note(finding);
        }
    }
    builder.finish(wanted)
}

/// A probe with the number of the profile's table that it came from.
struct Planned {
    table: usize,
    probe: PlannedProbe,
}

/// A probe that has no site in an object.
pub(super) struct Missing {
    pub(super) role: Role,
    /// Object, address and reason.
    pub(super) text: String,
}

/// A plan in the making; `either` adds to it too.
pub(super) struct Builder<'a> {
    pub(super) request: Request<'a>,
    pub(super) placer: Placer<'a>,
    planned: Vec<Planned>,
    pub(super) groups: Vec<Group>,
    findings: Vec<Finding>,
    pub(super) missing: Vec<Missing>,
}

impl<'a> Builder<'a> {
    const fn new(request: Request<'a>) -> Self {
        Self {
            request,
            placer: Placer::new(request.image, request.costs, request.sites),
            planned: Vec::new(),
            groups: Vec::new(),
            findings: Vec::new(),
            missing: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    pub(super) fn finding(&mut self, code: &str, message: String) {
        self.note(Finding { code: code.to_owned(), message });
    }

    /// Says what is special about an object as a whole.
    fn describe_object(&mut self, object: &LoadedObject) {
        let path = &object.mapped.shown_path;
        if object.mapped.replaced {
            let message = format!(
                "{path} was replaced on disk since the process mapped it; the old file is probed, which only \
                 processes started before use"
            );
            self.finding("replaced", message);
        } else if object.mapped.deleted {
            let message = format!(
                "{path} was deleted since the process mapped it; it is probed all the same"
            );
            self.finding("deleted", message);
        }
    }

    /// Where `probe` can go in `object`.
    pub(super) fn find(&self, object: &LoadedObject, probe: &Probe) -> Candidates {
        match &object.elf {
            Ok(elf) => {
                let inode = object.mapped.inode;
                let within = Within { elf, inode, followed: self.request.followed };
                candidates::find(within, &probe.at)
            }
            Err(error) => Candidates { missing: Some(error.to_string()), ..Candidates::default() },
        }
    }

    /// The error of a probe that cannot be compiled for an object.
    pub(super) fn uncompiled(
        &self,
        object: &LoadedObject,
        probe: &Probe,
        what: String,
    ) -> PlanError {
        PlanError::Compile {
            profile: self.request.profile.name.clone(),
            address: address_text(&probe.at),
            object: describe(object),
            what,
        }
    }

    /// Plans `probe`, the profile's `table`-th, in `object`.
    fn place(
        &mut self,
        object: &LoadedObject,
        table: usize,
        probe: &Probe,
        compile: &CompileOne<'_>,
    ) -> Result<(), PlanError> {
        let found = self.find(object, probe);
        let address = address_text(&probe.at);
        for finding in found.findings {
            self.note(finding);
        }
        if let Some(why) = found.missing {
            let text = format!("{}: {address}: {why}", describe(object));
            self.finding("missing_symbol", format!("no `{}` probe: {text}", probe.role.name()));
            self.missing.push(Missing { role: probe.role, text });
        }
        if found.all.is_empty() {
            return Ok(());
        }
        let specs = usdt::specs(object.elf.as_deref().ok(), probe, &found.all, compile)
            .map_err(|what| self.uncompiled(object, probe, what))?;
        let is_go = object.elf.as_ref().is_ok_and(|elf| elf.is_go());
        if is_go && probe.phase == Phase::Return {
            let what = "a probe at a return crashes a Go program, which moves its stacks: use what is known at the entry";
            return Err(self.uncompiled(object, probe, what.to_owned()));
        }
        for (candidate, spec) in found.all.into_iter().zip(specs) {
            self.add(object, table, probe, &spec, candidate);
        }
        Ok(())
    }

    /// Adds a probe, or its name to the one that is at this site already.
    pub(super) fn add(
        &mut self,
        object: &LoadedObject,
        table: usize,
        probe: &Probe,
        spec: &ProbeSpec,
        candidate: Candidate,
    ) {
        let profile = self.request.profile;
        let elsewhere = self.request.image.objects.iter();
        let object = std::iter::once(object)
            .chain(elsewhere)
            .find(|object| object.mapped.inode == candidate.inode)
            .unwrap_or(object);
        let same = self.planned.iter_mut().find(|other| {
            other.probe.site.inode == object.mapped.inode
                && other.probe.site.entry_offset == candidate.file_offset
                && other.probe.role == probe.role
                // Two tables that name the very same address mean two probes (with different `when`s),
                // unless they do the same thing.
                && (other.table == table
                    || profile.probes[other.table].at != probe.at
                    || same_spec(&other.probe.spec, spec))
        });
        let Some(other) = same else {
            self.planned.push(Planned {
                table,
                probe: PlannedProbe {
                    spec: *spec,
                    role: probe.role,
                    phase: probe.phase,
                    site: Site {
                        open_path: object.mapped.open_path.clone(),
                        shown_path: object.mapped.shown_path.clone(),
                        inode: object.mapped.inode,
                        file_offset: candidate.file_offset,
                        entry_offset: candidate.file_offset,
                        symbol: candidate.symbol,
                        aliases: candidate.alias.into_iter().collect(),
                        usdt: candidate.usdt,
                    },
                    // Chosen when all probes are known.
                    choice: Choice::blind(Stop::Asked, Needs::default()),
                },
            });
            return;
        };
        let site = &mut other.probe.site;
        for name in std::iter::once(&candidate.symbol).chain(&candidate.alias) {
            if site.symbol != *name && !site.aliases.contains(name) {
                site.aliases.push(name.clone());
            }
        }
        if other.table != table && !same_spec(&other.probe.spec, spec) {
            let message = format!(
                "{} and {} are one function in {}, but the profile says different things about them; what it says \
                 first counts",
                printable(&site.symbol),
                printable(&candidate.symbol),
                site.shown_path
            );
            self.finding("alias", message);
        }
    }

    /// The plan for a build of which the probes cannot see enough: none, and the reason.
    fn nothing_to_measure(mut self, because: String) -> AttachPlan {
        let name = &self.request.profile.name;
        self.finding("not_measurable", format!("{name} is not measurable: {because}"));
        AttachPlan { not_measurable: Some(because), ..self.planned() }
    }

    fn planned(self) -> AttachPlan {
        AttachPlan {
            profile: Arc::clone(self.request.profile),
            level: self.request.level,
            allocator: self.request.allocator,
            costs: self.request.costs.clone(),
            probes: self.planned.into_iter().map(|planned| planned.probe).collect(),
            groups: self.groups,
            not_measurable: None,
            findings: self.findings,
        }
    }

    /// The error of the first probe that may not sit where it has to.
    fn unusable(&self) -> Option<PlanError> {
        self.planned.iter().find_map(|Planned { probe, .. }| {
            let here = probe.choice.here.as_ref().filter(|here| here.cost_ns.is_infinite())?;
            let (symbol, offset) = (printable(&probe.site.symbol), probe.choice.offset);
            Some(PlanError::Unusable {
                profile: self.request.profile.name.clone(),
                site: format!("{symbol}+{offset:#x} `{}` ({})", here.instruction, here.kind.name()),
                object: probe.site.shown_path.clone(),
            })
        })
    }

    fn finish(mut self, wanted: &WantedFn<'_>) -> Result<AttachPlan, PlanError> {
        let Request { profile, level, .. } = self.request;
        for role in NEEDED {
            let asked =
                profile.probes.iter().any(|probe| probe.role == role && wanted(probe, level));
            let placed = self.planned.iter().any(|planned| planned.probe.role == role);
            if asked && !placed {
                let tried = self.missing.into_iter().filter(|missing| missing.role == role);
                return Err(PlanError::NothingToProbe {
                    profile: profile.name.clone(),
                    role: role.name(),
                    tried: tried.map(|missing| missing.text).collect(),
                });
            }
        }
        let mut probes: Vec<_> =
            self.planned.iter_mut().map(|planned| &mut planned.probe).collect();
        let found = self.placer.place_all(&mut probes);
        for finding in found {
            self.note(finding);
        }
        if let Some(error) = self.unusable() {
            return Err(error);
        }
        // Stable: within a role the profile's order stays.
        self.planned.sort_by_key(|planned| {
            ORDER.iter().position(|&role| role == planned.probe.role).unwrap_or(ORDER.len())
        });
        Ok(self.planned())
    }
}

fn same_spec(one: &ProbeSpec, other: &ProbeSpec) -> bool {
    bytemuck::bytes_of(one) == bytemuck::bytes_of(other)
}

#[cfg(test)]
mod tests;
