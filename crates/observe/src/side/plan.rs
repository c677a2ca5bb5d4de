//! Which profiles are wanted at which level, and what they would place in a process.

use std::sync::Arc;

use drainprof_probe::{
    bpf::Session,
    plan::{self, AttachPlan, PlanError, Request, build, ifuncs, match_objects},
};
use drainprof_process::{Image, Process, follow_ifuncs};
use drainprof_profile::{self as profile, Finding, Level, Library, Profile};

use super::{allocators::Allocators, options::SideOptions};
use crate::ObserveError;

/// The plans of all wanted profiles that match a process.
pub(super) fn plans(
    process: &Process,
    image: &Image,
    library: &Library,
    options: &SideOptions,
    sample: u32,
    allocators: &mut Allocators,
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
        let allocator = allocators.number(profile, level);
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

/// The profiles that are asked for: those that are named, or all but those that wait to be.
pub(super) fn wanted<'a>(
    library: &'a Library,
    options: &'a SideOptions,
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
pub(super) fn load_ahead(session: &mut Session, library: &Library, options: &SideOptions) {
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
