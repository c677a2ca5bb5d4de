//! `paths_cut`: call paths that could not be followed to the start of their thread, and why.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use drainprof_profile::Level;

use super::{Case, Found, Rule, Subject};
use crate::{PathEnd, Severity, facts::CallPath, units};

pub(super) const RULE: Rule = Rule { code: "paths_cut", check };

/// Modules that a sentence names at most.
const MODULES: usize = 3;

/// The paths that end for one reason.
#[derive(Default)]
struct Cut<'a> {
    paths: HashSet<(&'a CallPath, u64)>,
    modules: BTreeSet<&'a str>,
}

fn check(case: &Case<'_>) -> Vec<Found> {
    case.subjects().filter_map(|subject| judge(case, &subject)).collect()
}

fn judge(case: &Case<'_>, subject: &Subject<'_>) -> Option<Found> {
    if subject.facts.level != Level::Stacks {
        return None;
    }
    let frames = &case.snapshot.targets.get(subject.index)?.frames;
    let (mut allocated, mut all_allocated) = (0u64, 0u64);
    let mut reasons: BTreeMap<PathEnd, Cut<'_>> = BTreeMap::new();
    for site in &subject.facts.sites {
        all_allocated = all_allocated.saturating_add(site.allocated);
        let end = site.path.end;
        if end.is_whole() {
            continue;
        }
        allocated = allocated.saturating_add(site.allocated);
        let cut = reasons.entry(end).or_default();
        cut.paths.insert((&site.path, site.opened_at));
        // The code that the outermost known call returns to is the one that cannot be left.
        let outermost = site.path.addresses.last().and_then(|address| frames.get(address));
        if let (PathEnd::NoUnwindInfo, Some(module)) =
            (end, outermost.and_then(|frame| frame.module.as_ref()))
        {
            cut.modules.insert(module);
        }
    }
    if reasons.is_empty() {
        return None;
    }
    let cut: usize = reasons.values().map(|cut| cut.paths.len()).sum();
    let reasons: Vec<String> = reasons.iter().map(|(end, cut)| reason(*end, cut)).collect();
    let share = allocated as f64 / all_allocated.max(1) as f64;
    let message = format!(
        "{cut} of {} call paths, with {} of the allocations, do not reach the start of their thread: {}. \
         Their counts are exact",
        subject.shown.sites_total.unwrap_or_default(),
        units::percent(share),
        reasons.join("; ")
    );
    Some(subject.found(RULE.code, Severity::Info, message))
}

fn reason(end: PathEnd, cut: &Cut<'_>) -> String {
    let count = cut.paths.len();
    let text = match end {
        PathEnd::Start => format!("{count} are whole"),
        PathEnd::TooDeep => format!("{count} are deeper than the limit"),
        PathEnd::NoUnwindInfo => format!("{count} end at code without unwind information"),
        PathEnd::Unreadable => format!("{count} end at a part of the stack that cannot be read"),
        PathEnd::NotCaptured => {
            format!("{count} were not captured, because they were not known yet")
        }
    };
    if cut.modules.is_empty() {
        return text;
    }
    let named: Vec<&str> = cut.modules.iter().take(MODULES).copied().collect();
    let more = if cut.modules.len() > MODULES { ", …" } else { "" };
    format!("{text} ({}{more})", named.join(", "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::reported, *};
    use crate::samples;

    /// Reported with counts, reasons, and the module that cannot be left.
    #[test]
    fn reports_reasons() {
        let mut snapshot = samples::stacks_snapshot();
        assert_eq!(
            reported(&RULE, &snapshot)[0].message,
            "1 of 4 call paths, with 0.500 % of the allocations, do not reach the start of their thread: \
             1 end at code without unwind information (libplugin.so). Their counts are exact"
        );
        let sites = &mut snapshot.targets[0].allocators[0].sites;
        Arc::make_mut(&mut sites[0].path).end = PathEnd::NotCaptured;
        Arc::make_mut(&mut sites[2].path).end = PathEnd::TooDeep;
        let message = reported(&RULE, &snapshot)[0].message.clone();
        assert!(message.starts_with("3 of 4 call paths"), "{message}");
        for part in ["1 are deeper", "1 were not captured", "1 end at code"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    /// Whole paths, and levels without paths, are silent.
    #[test]
    fn whole_paths_are_silent() {
        assert!(reported(&RULE, &samples::drain_snapshot()).is_empty());
        assert!(reported(&RULE, &samples::holders_snapshot()).is_empty());
    }
}
