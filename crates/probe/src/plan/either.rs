//! Probes that stand for one another (`one_of`): which one of them is placed in an object.
//!
//! The return of a function is expensive: a call through it costs an entry and a return. Where the same can be
//! seen at the entry of another function (an inner one that is handed the finished object), a profile
//! names both, and the cheaper is placed, here and on this machine. Part of `build`, which calls it once per
//! group and object; costs are those of the sites that would be chosen.

use drainprof_common::spec::ProbeSpec;
use drainprof_process::{LoadedObject, describe};
use drainprof_profile::{Probe, Role};

use super::{
    PlanError,
    build::{Builder, Missing},
    candidates::Candidates,
    compile::CompileOne,
    matching::address_text,
    model::{Group, Member, phase_name},
    sites::Ask,
    usdt,
};

/// A member of the group that can be placed.
struct Able<'p> {
    table: usize,
    probe: &'p Probe,
    found: Candidates,
    /// One for each site.
    specs: Vec<ProbeSpec>,
    /// Which of the listed members it is.
    listed: usize,
    /// Nanoseconds of a call; infinite where it is not known.
    cost_ns: f64,
}

/// Costs that differ by no more are alike: measured again, they may change places.
const ALIKE_RATIO: f64 = 1.2;

impl Builder<'_> {
    /// Plans the best of the probes of `group` in `object`: one that sees all calls, if there is one; of
    /// these the first in the profile that costs about as little as the cheapest.
    pub(super) fn place_one_of(
        &mut self,
        object: &LoadedObject,
        group: &str,
        role: Role,
        compile: &CompileOne<'_>,
    ) -> Result<(), PlanError> {
        let profile = self.request.profile;
        let probes = profile.probes.iter().enumerate();
        let probes = probes.filter(|(_, probe)| probe.one_of.as_deref() == Some(group));
        let mut members = Vec::new();
        let mut able = Vec::new();
        let mut error = None;
        for (table, probe) in probes {
            let mut member = Member {
                at: address_text(&probe.at),
                phase: phase_name(probe.phase),
                cost_ns: None,
                used: false,
                drawback: None,
            };
            let found = self.find(object, probe);
            match compile_found(object, &found, probe, compile) {
                Ok(specs) => {
                    let cost_ns = self.cost_at_worst(probe, &specs, &found);
                    member.cost_ns = cost_ns;
                    member.drawback = found.doubt.map(str::to_owned);
                    let cost_ns = cost_ns.unwrap_or(f64::INFINITY);
                    able.push(Able { table, probe, found, specs, listed: members.len(), cost_ns });
                }
                Err(why) => {
                    if found.missing.is_none() {
                        error.get_or_insert_with(|| self.uncompiled(object, probe, why.clone()));
                    }
                    member.drawback = Some(why);
                }
            }
            members.push(member);
        }
        let certain = able.iter().any(|one| one.found.doubt.is_none());
        able.retain(|one| one.found.doubt.is_none() == certain);
        let cheapest = able.iter().map(|one| one.cost_ns).fold(f64::INFINITY, f64::min);
        let best = able.into_iter().find(|one| one.cost_ns <= cheapest * ALIKE_RATIO);
        if let Some(best) = best {
            members[best.listed].used = true;
            for finding in best.found.findings {
                self.note(finding);
            }
            for (candidate, spec) in best.found.all.into_iter().zip(best.specs) {
                self.add(object, best.table, best.probe, &spec, candidate);
            }
        } else if let Some(error) = error {
            return Err(error);
        } else {
            self.none_of(object, group, role, &members);
        }
        self.groups.push(Group {
            group: group.to_owned(),
            role: role.name(),
            object: object.mapped.shown_path.clone(),
            members,
        });
        Ok(())
    }

    /// What a call costs at the most expensive of the sites that a member has.
    fn cost_at_worst(
        &mut self,
        probe: &Probe,
        specs: &[ProbeSpec],
        found: &Candidates,
    ) -> Option<f64> {
        let costs = found.all.iter().zip(specs).map(|(candidate, spec)| {
            let is_usdt = candidate.usdt.is_some();
            let ask = Ask { role: probe.role, phase: probe.phase, spec, is_usdt };
            self.placer.cost(candidate.inode, candidate.file_offset, ask)
        });
        costs.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
    }

    /// Says that a group has no site in an object.
    fn none_of(&mut self, object: &LoadedObject, group: &str, role: Role, members: &[Member]) {
        let why = |member: &Member| {
            format!("{}: {}", member.at, member.drawback.as_deref().unwrap_or("not to be placed"))
        };
        let all: Vec<_> = members.iter().map(why).collect();
        self.finding(
            "no_alternative",
            format!(
                "none of the `{}` probes of the group {group} can be placed in {}: {}",
                role.name(),
                describe(object),
                all.join("; ")
            ),
        );
        for text in all {
            let text = format!("{}: {text}", describe(object));
            self.missing.push(Missing { role, text });
        }
    }
}

/// The specs of a probe that has places, or why it cannot be placed.
fn compile_found(
    object: &LoadedObject,
    found: &Candidates,
    probe: &Probe,
    compile: &CompileOne<'_>,
) -> Result<Vec<ProbeSpec>, String> {
    match &found.missing {
        Some(why) => Err(why.clone()),
        None => usdt::specs(object.elf.as_deref().ok(), probe, &found.all, compile),
    }
}

#[cfg(test)]
mod tests;
