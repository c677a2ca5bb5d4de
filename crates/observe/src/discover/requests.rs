//! Profiles that take part only on request: which of them is of most use for a process.
//!
//! One that is about a certain program or library says most there. Those that fit nearly every process come
//! after them, in the order of this table.

use super::model::Fit;

/// A profile that fits nearly every process.
struct General {
    profile: &'static str,
    /// What it is about exists only where there are several threads: heaps of threads, not of the first one.
    needs_threads: bool,
}

/// The most useful first.
const GENERAL: &[General] = &[
    General { profile: "glibc-heap", needs_threads: true },
    General { profile: "malloc-glibc", needs_threads: false },
    // Every C++ program maps the library, few use what the profile is about.
    General { profile: "cxx-pmr", needs_threads: false },
];

/// The place of a profile among those that fit on request: the lower, the more useful.
pub(super) fn rank(profile: &str) -> usize {
    GENERAL.iter().position(|general| general.profile == profile).map_or(0, |at| at + 1)
}

/// The first of `fits` (the best first) that can be used and has something to see; `threaded`: the processes
/// have several threads.
pub(super) fn most_useful<'a>(fits: &[&'a Fit], threaded: bool) -> Option<&'a Fit> {
    let idle = |fit: &Fit| {
        GENERAL.iter().any(|general| general.profile == fit.profile && general.needs_threads)
            && !threaded
    };
    fits.iter().copied().find(|fit| fit.unusable.is_none() && !idle(fit))
}

#[cfg(test)]
mod tests {
    use drainprof_profile::Library;

    use super::*;

    fn fit(profile: &str) -> Fit {
        Fit {
            profile: profile.into(),
            kind: "slab",
            summary: String::new(),
            objects: Vec::new(),
            on_request: true,
            default_level: "objects",
            levels: Vec::new(),
            findings: Vec::new(),
            unusable: None,
        }
    }

    /// Heaps of threads are proposed only where there are threads, and what is about a certain program goes
    /// before what fits everything; what cannot be used is never proposed.
    #[test]
    fn the_most_useful_one() {
        let all = [fit("glibc-heap"), fit("malloc-glibc"), fit("cxx-pmr")];
        let all: Vec<&Fit> = all.iter().collect();
        let chosen =
            |fits: &[&Fit], threaded| most_useful(fits, threaded).map(|fit| fit.profile.clone());
        assert_eq!(chosen(&all, true).as_deref(), Some("glibc-heap"));
        assert_eq!(chosen(&all, false).as_deref(), Some("malloc-glibc"));
        assert_eq!(chosen(&all[..1], false), None);
        let broken = Fit { unusable: Some("no place".into()), ..fit("malloc-glibc") };
        assert_eq!(chosen(&[&broken, all[2]], false).as_deref(), Some("cxx-pmr"));
        assert!(rank("haproxy-pools") < rank("glibc-heap"));
        assert!(rank("malloc-glibc") < rank("cxx-pmr"));
    }

    /// The table names built-in profiles that are used on request.
    #[test]
    fn the_table_is_true() {
        let library = Library::built_in().unwrap();
        for general in GENERAL {
            let profile = library.get(general.profile).unwrap();
            assert!(profile.on_request, "{}", general.profile);
        }
    }
}
