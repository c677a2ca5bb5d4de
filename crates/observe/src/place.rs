//! Planning and placing probes.

use std::{num::NonZeroU32, sync::Arc};

use drainprof_probe::{
    bpf::{OpenFiles, Session},
    plan::{self, AttachPlan, PlanError, PlannedProbe, Request, build, ifuncs, match_objects},
};
use drainprof_process::{Image, Process, follow_ifuncs};
use drainprof_profile::{self as profile, Finding, Level, Library, Profile};

use super::observer::{Allocator, ObserveError, Observer, ObserverOptions, Reasons};

/// A probe in place.
#[derive(Debug)]
pub(super) struct Placed {
    /// The spec's number, under which hits are counted.
    pub(super) spec: u32,
    /// The allocator.
    pub(super) allocator: u32,
    /// The process; `None`: all that map the object.
    pub(super) pid: Option<u32>,
    /// The probe.
    pub(super) probe: PlannedProbe,
    /// Nanoseconds of a hit at its place.
    pub(super) entry_ns: f64,
}

/// The plans of all wanted profiles that match a process.
pub(super) fn plans(
    process: &Process,
    image: &Image,
    library: &Library,
    options: &ObserverOptions,
    sample: u32,
    allocators: &mut Vec<Allocator>,
) -> Result<(Vec<AttachPlan>, Vec<Finding>), ObserveError> {
    let mut plans = Vec::new();
    let mut findings = Vec::new();
    let mut missed = Vec::new();
    let mut too_deep = None;
    for profile in wanted(library, options) {
        let objects = match match_objects(profile, image) {
            Ok(objects) => objects,
            Err(no_match) => {
                missed.push(no_match);
                continue;
            }
        };
        let level = match level(profile, options.level, !options.profiles.is_empty()) {
            Ok(level) => level,
            // One profile of many that cannot be examined so shallowly leaves the process to the others.
            Err(error) if options.profiles.is_empty() => {
                too_deep.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let followed = follow_ifuncs(process, image, &ifuncs(profile, &objects));
        let allocator = number(allocators, profile, level);
        let request = Request {
            profile,
            level,
            allocator,
            image,
            followed: &followed,
            costs: &options.costs,
            sites: options.sites,
        };
        let planned = if !profile.implicit && sample > 1 {
            Err(PlanError::Sampled { profile: profile.name.clone() })
        } else {
            build(request, &objects, &profile::wanted, &plan::compile)
        };
        match planned {
            Ok(plan) => {
                findings.extend(plan.findings.iter().cloned());
                plans.push(plan);
            }
            Err(PlanError::NoMatch(no_match)) => missed.push(no_match),
            // One profile of many that cannot be used is reported; one that was asked for is an error.
            Err(source) if options.profiles.is_empty() => findings.push(Finding {
                code: "profile_unusable".to_owned(),
                message: format!("profile {} matches but cannot be used: {source}", profile.name),
            }),
            Err(source) => {
                return Err(ObserveError::Plan {
                    pid: process.pid,
                    profile: profile.name.clone(),
                    source: Box::new(source),
                });
            }
        }
    }
    if let (true, Some(error)) = (plans.is_empty(), too_deep) {
        return Err(error);
    }
    if plans.is_empty() {
        return Err(ObserveError::NoMatch {
            pid: process.pid,
            comm: drainprof_process::printable(&process.comm),
            profiles: missed,
        });
    }
    Ok((plans, findings))
}

/// The allocators of which nothing can be said, with the reasons.
pub(super) fn not_measurable(plans: &[AttachPlan]) -> Reasons {
    let because = |plan: &AttachPlan| Some((plan.allocator, plan.not_measurable.clone()?));
    plans.iter().filter_map(because).collect()
}

/// The profiles that are asked for: those that are named, or all but those that wait to be.
pub(super) fn wanted<'a>(
    library: &'a Library,
    options: &'a ObserverOptions,
) -> impl Iterator<Item = &'a Arc<Profile>> {
    library.iter().filter(|profile| {
        if options.profiles.is_empty() {
            !profile.on_request
        } else {
            options.profiles.contains(&profile.name)
        }
    })
}

/// Begins to load the programs of the profiles that are named: most likely, a process that they match is planned next.
/// Whether a level is offered is said then.
pub(super) fn load_ahead(session: &mut Session, library: &Library, options: &ObserverOptions) {
    if options.profiles.is_empty() {
        return;
    }
    for profile in wanted(library, options) {
        if let Ok(level) = level(profile, options.level, true) {
            session.load_ahead(profile, level);
        }
    }
}

/// The level to examine a profile with. One of many looks as deep as it can; one that was named must offer the level
/// that is asked for.
fn level(profile: &Profile, asked: Option<Level>, named: bool) -> Result<Level, ObserveError> {
    let offers = profile::levels(profile);
    let Some(asked) = asked else { return Ok(profile::default_level(profile)) };
    let deepest = offers.iter().copied().filter(|&level| level <= asked).max();
    match deepest {
        Some(level) if level == asked || !named => Ok(level),
        _ => Err(ObserveError::Level {
            profile: profile.name.clone(),
            level: asked,
            offers: offers.into_iter().map(Level::name).collect(),
        }),
    }
}

/// The allocator's number in this session, a new one for a new profile or level.
fn number(allocators: &mut Vec<Allocator>, profile: &Arc<Profile>, level: Level) -> u32 {
    let known = allocators
        .iter()
        .position(|known| Arc::ptr_eq(&known.profile, profile) && known.level == level);
    let index = known.unwrap_or_else(|| {
        allocators.push(Allocator { profile: Arc::clone(profile), level });
        allocators.len() - 1
    });
    index as u32
}

impl Observer {
    /// Attaches what is planned for a process and not in place yet; returns its allocators, and what did not
    /// go as planned.
    pub(super) fn place(
        &mut self,
        process: &Process,
        plans: &[AttachPlan],
    ) -> Result<(Vec<u32>, Vec<Finding>), ObserveError> {
        let scope = (!self.options.follow).then_some(process.pid);
        let missing: Vec<_> = plans
            .iter()
            .flat_map(|plan| plan.probes.iter().map(|probe| (probe, plan.allocator)))
            .filter(|(probe, allocator)| !self.in_place(probe, *allocator, scope))
            .map(|(probe, _)| probe)
            .collect();
        self.session.load_for(&missing, scope.and_then(NonZeroU32::new));
        let mut files = OpenFiles::default();
        let mut allocators = Vec::new();
        let mut findings = Vec::new();
        for plan in plans {
            allocators.push(plan.allocator);
            for probe in &plan.probes {
                if self.in_place(probe, plan.allocator, scope) {
                    continue;
                }
                let attached = super::fallback::attach(probe, |probe| {
                    self.session.attach(probe, scope.and_then(NonZeroU32::new), &mut files)
                })?;
                findings.extend(attached.finding);
                self.placed.push(Placed {
                    spec: attached.spec,
                    allocator: plan.allocator,
                    pid: scope,
                    entry_ns: super::cost::entry_ns(&attached.probe, &self.options.costs),
                    probe: attached.probe,
                });
            }
        }
        Ok((allocators, findings))
    }

    /// Whether a planned probe is there already: an image that was executed again, or another process of
    /// a file on which probes sit for all.
    fn in_place(&self, probe: &PlannedProbe, allocator: u32, scope: Option<u32>) -> bool {
        self.placed.iter().any(|placed| {
            placed.allocator == allocator
                && placed.pid == scope
                && placed.probe.site.inode == probe.site.inode
                && placed.probe.site.entry_offset == probe.site.entry_offset
                && placed.probe.role == probe.role
        })
    }

    /// Whether all of a process's planned probes are in place.
    pub(super) fn all_in_place(&self, process: &Process, plans: &[AttachPlan]) -> bool {
        let scope = (!self.options.follow).then_some(process.pid);
        plans
            .iter()
            .all(|plan| plan.probes.iter().all(|probe| self.in_place(probe, plan.allocator, scope)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile without objects stays at `boundary` where it is one of many, and is refused where it was named.
    #[test]
    fn levels_that_are_not_offered() {
        let library = Library::built_in().unwrap();
        let shallow = library.get("varnish").unwrap();
        for asked in [Level::Boundary, Level::Objects, Level::Stacks] {
            assert_eq!(level(shallow, Some(asked), false).unwrap(), Level::Boundary);
            assert_eq!(level(shallow, Some(asked), true).is_ok(), asked == Level::Boundary);
        }
        let deep = library.get("nginx").unwrap();
        assert_eq!(level(deep, Some(Level::Stacks), false).unwrap(), Level::Stacks);
        assert_eq!(level(deep, None, true).unwrap(), profile::default_level(deep));
    }
}
