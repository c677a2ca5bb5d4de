//! Which profiles fit a process, and what they would cost there.
//!
//! Plans as `attach` would, and attaches nothing. What was found for a set of objects is remembered: most
//! processes of a machine share theirs.

use std::{collections::HashMap, sync::Arc};

use drainprof_probe::plan::{
    self, AttachPlan, Request, Sites, build, cost::Costs, ifuncs, match_objects,
};
use drainprof_process::{Image, LoadedObject, Process, follow_ifuncs, printable};
use drainprof_profile::{self as profile, Level, Library, Profile, Role};

use super::{
    hints::Hints,
    model::{Fit, Hint, LevelOffer},
    requests,
};

/// Sets of objects that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// What profiles say about one set of objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Fitting {
    pub(super) fits: Vec<Fit>,
    pub(super) hints: Vec<Hint>,
}

/// Everything that a profile can ask of a process: what it executes, and all objects. Also its root, since
/// what helps in one container is of no use in another.
type Key = (String, Vec<(u64, u64)>);
/// A profile in certain objects.
type OfferKey = (String, Vec<(u64, u64)>);

/// Finds fitting profiles, and remembers.
pub(super) struct Fitter<'a> {
    profiles: Vec<&'a Arc<Profile>>,
    /// Say also what is missing for profiles that are used only on request.
    every_hint: bool,
    costs: &'a Costs,
    sites: Sites,
    known: HashMap<Key, Arc<Fitting>>,
    offers: HashMap<OfferKey, Fit>,
    hints: Hints,
}

impl<'a> Fitter<'a> {
    /// For the profiles called `names`; empty: all of the library. Where none is named, `all` asks for what is
    /// missing for those that must be, too.
    pub(super) fn new(
        library: &'a Library,
        names: &[String],
        all: bool,
        costs: &'a Costs,
        sites: Sites,
    ) -> Self {
        let wanted = |profile: &&Arc<Profile>| names.is_empty() || names.contains(&profile.name);
        Self {
            profiles: library.iter().filter(wanted).collect(),
            every_hint: all || !names.is_empty(),
            costs,
            sites,
            known: HashMap::new(),
            offers: HashMap::new(),
            hints: Hints::default(),
        }
    }

    /// The profiles that fit a process, and those that nearly do.
    pub(super) fn fit(&mut self, process: &Process, image: &Image) -> Arc<Fitting> {
        let inodes = |objects: &mut dyn Iterator<Item = &LoadedObject>| {
            objects.map(|object| object.mapped.inode).collect::<Vec<_>>()
        };
        let key = (image.exe_path.clone(), inodes(&mut image.objects.iter()));
        if let Some(known) = self.known.get(&key) {
            return Arc::clone(known);
        }
        let mut fitting = Fitting::default();
        for profile in self.profiles.clone() {
            match match_objects(profile, image) {
                Ok(objects) => {
                    let key = (profile.name.clone(), inodes(&mut objects.iter().copied()));
                    let fit = match self.offers.get(&key) {
                        Some(known) => known.clone(),
                        None => self.offer(process, image, profile, &objects),
                    };
                    self.offers.entry(key).or_insert_with(|| fit.clone());
                    fitting.fits.push(fit);
                }
                // A near match that was not asked for is no news.
                Err(_) if profile.on_request && !self.every_hint => {}
                Err(no_match) => {
                    fitting.hints.extend(self.hints.of(profile, image, process, &no_match));
                }
            }
        }
        // Those that are used unasked first; among them those that cost least to examine.
        fitting.fits.sort_by_key(|fit| {
            let level = Level::ALL.iter().position(|level| level.name() == fit.default_level);
            (fit.unusable.is_some(), fit.on_request, requests::rank(&fit.profile), level)
        });
        let fitting = Arc::new(fitting);
        if self.known.len() >= MAX_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&fitting));
        fitting
    }

    /// What a profile that fits offers.
    fn offer(
        &self,
        process: &Process,
        image: &Image,
        profile: &Arc<Profile>,
        objects: &[&LoadedObject],
    ) -> Fit {
        let default = profile::default_level(profile);
        let mut fit = Fit {
            profile: profile.name.clone(),
            kind: profile.kind.name(),
            summary: printable(&profile.summary),
            objects: objects.iter().map(|object| object.mapped.shown_path.clone()).collect(),
            on_request: profile.on_request,
            default_level: default.name(),
            levels: Vec::new(),
            findings: Vec::new(),
            unusable: None,
        };
        let followed = follow_ifuncs(process, image, &ifuncs(profile, objects));
        for level in profile::levels(profile) {
            let request = Request {
                profile,
                level,
                allocator: 0,
                image,
                followed: &followed,
                costs: self.costs,
                sites: self.sites,
            };
            match build(request, objects, &profile::wanted, &plan::compile) {
                Ok(plan) => {
                    fit.levels.push(level_offer(&plan));
                    if level == default {
                        fit.findings = plan.findings;
                    }
                }
                Err(error) if level == default => fit.unusable = Some(error.to_string()),
                Err(_) => {}
            }
        }
        fit
    }
}

/// What the kernel takes for a granule and for an object at a plan's level.
fn level_offer(plan: &AttachPlan) -> LevelOffer {
    let rows = plan.rows();
    let most_expensive = |roles: &[Role]| {
        rows.iter()
            .filter(|row| roles.iter().any(|role| role.name() == row.role))
            .filter_map(|row| row.cost_ns)
            .reduce(f64::max)
    };
    let sum = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (None, None) => None,
        (one, other) => Some((one.unwrap_or(0.0) + other.unwrap_or(0.0)).round()),
    };
    LevelOffer {
        level: plan.level.name(),
        probes: plan.probes.len(),
        granule_ns: sum(most_expensive(&[Role::Open]), most_expensive(&[Role::Close, Role::Reset])),
        object_ns: sum(most_expensive(&[Role::Alloc]), most_expensive(&[Role::Free])),
    }
}
