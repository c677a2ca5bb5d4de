//! Going through the processes: all, or those that were named.

use std::{collections::BTreeMap, path::PathBuf};

use drainprof_probe::plan::{Sites, cost::Costs};
use drainprof_process::{
    ElfCache, Image, ImageOptions, Kinship, ProcessError, printable, processes, readers::open,
};
use drainprof_profile::Library;

use super::{
    fitting::Fitter,
    groups::{Grouper, Member},
    model::{Discovery, Looked, PassedOver, Prices, SCHEMA},
};

/// Most pids that are listed for one reason.
const MAX_LISTED: usize = 8;

/// What to search for, and where.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// The processes; empty: all.
    pub pids: Vec<u32>,
    /// Names of the profiles; empty: all.
    pub profiles: Vec<String>,
    /// How the profiles were given on the command line, for the commands that are proposed.
    pub asked: Vec<String>,
    /// List also what nothing fits, and what nearly fits only on request.
    pub all: bool,
    /// More places to search for separate debug files.
    pub debug_dirs: Vec<PathBuf>,
    /// What probes cost; assumed where nothing is remembered.
    pub costs: Costs,
    /// Which instructions of functions may be probed.
    pub sites: Sites,
}

/// Looks at processes and finds out which profiles fit them.
///
/// A process that cannot be examined is counted, with its reason; only a `/proc` that cannot be listed is
/// an error.
pub fn scan(library: &Library, options: &ScanOptions) -> std::io::Result<Discovery> {
    let every = options.pids.is_empty();
    let mut pids: Vec<u32> = if every { processes()?.collect() } else { options.pids.clone() };
    pids.sort_unstable();
    pids.dedup();
    let kinship = Kinship::read()?;
    let image_options = ImageOptions { debug_dirs: options.debug_dirs.clone() };
    let mut cache = ElfCache::new();
    let mut fitter =
        Fitter::new(library, &options.profiles, options.all, &options.costs, options.sites);
    let mut grouper = Grouper::default();
    let mut passed_over = PassedOvers::default();
    let mut looked = Looked::default();
    for pid in pids {
        let seen = open(pid).and_then(|process| {
            Image::load(&process, &image_options, &mut cache).map(|image| (process, image))
        });
        let (process, image) = match seen {
            Ok(seen) => seen,
            Err(error) => {
                passed_over.note(pid, &error, every);
                continue;
            }
        };
        let fitting = fitter.fit(&process, &image);
        looked.processes += 1;
        let usable = |on_request: bool| {
            fitting.fits.iter().any(|fit| fit.unusable.is_none() && fit.on_request == on_request)
        };
        let (unasked, asked) = (usable(false), usable(true));
        *match (unasked, asked) {
            (true, _) => &mut looked.with_profile,
            (false, true) => &mut looked.on_request,
            (false, false) => &mut looked.without_profile,
        } += 1;
        if options.all || !fitting.fits.is_empty() || !fitting.hints.is_empty() {
            let member = Member {
                process: &process,
                image: &image,
                rss_bytes: process.rss_bytes().unwrap_or(0),
                threaded: process.threads().is_ok_and(|threads| threads.len() > 1),
            };
            grouper.add(member, &fitting);
        }
    }
    Ok(Discovery {
        schema: SCHEMA,
        prices: if options.costs.measured { Prices::Remembered } else { Prices::Assumed },
        looked,
        groups: grouper.finish(&kinship, &options.asked),
        passed_over: passed_over.0.into_values().collect(),
    })
}

/// Processes that could not be examined, by reason.
#[derive(Default)]
struct PassedOvers(BTreeMap<&'static str, PassedOver>);

impl PassedOvers {
    /// Of a whole machine, what is no program of anybody's is not worth a word.
    fn note(&mut self, pid: u32, error: &ProcessError, every: bool) {
        let reason = match error {
            ProcessError::KernelThread { .. } => "kernel_thread",
            ProcessError::Myself { .. } => "myself",
            ProcessError::Permission { .. } => "permission",
            ProcessError::ForeignExecutable { .. } => "foreign",
            ProcessError::NoSuchProcess { .. }
            | ProcessError::Ended { .. }
            | ProcessError::Zombie { .. }
            | ProcessError::IsThread { .. } => "gone",
            _ => "unreadable",
        };
        if every && matches!(reason, "kernel_thread" | "myself" | "gone") {
            return;
        }
        let entry = self.0.entry(reason).or_insert_with(|| PassedOver {
            reason,
            processes: 0,
            pids: Vec::new(),
            message: printable(error.to_string()),
        });
        entry.processes += 1;
        if entry.pids.len() < MAX_LISTED {
            entry.pids.push(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use drainprof_process::testing::Waiting;

    use super::*;

    fn options(pids: &[u32]) -> ScanOptions {
        ScanOptions {
            pids: pids.to_vec(),
            profiles: Vec::new(),
            asked: Vec::new(),
            all: false,
            debug_dirs: Vec::new(),
            costs: Costs::assumed(),
            sites: Sites::default(),
        }
    }

    /// Processes that cannot be examined are counted with their reason; one that no profile fits is listed
    /// only where all are asked for; one for which a profile must be named is listed with a command that does.
    #[test]
    fn nothing_is_left_out_silently() {
        let library = Library::built_in().unwrap();
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let own = std::process::id();
        let named = |pids: &[u32]| ScanOptions {
            profiles: vec!["nginx".into()],
            asked: vec!["nginx".into()],
            ..options(pids)
        };
        let found = scan(&library, &named(&[cat.pid(), own, u32::MAX / 4])).unwrap();
        let reasons: Vec<_> = found.passed_over.iter().map(|passed| passed.reason).collect();
        assert_eq!(reasons, ["gone", "myself"]);
        assert_eq!((found.looked.processes, found.looked.without_profile), (1, 1));
        assert_eq!(found.groups, []);
        let all = ScanOptions { all: true, ..named(&[cat.pid()]) };
        let found = scan(&library, &all).unwrap();
        assert_eq!(found.groups[0].pids, [cat.pid()]);
        assert_eq!(found.groups[0].attach, None);
        let found = scan(&library, &options(&[cat.pid()])).unwrap();
        assert_eq!((found.looked.on_request, found.looked.without_profile), (1, 0));
        assert!(found.groups[0].fits.iter().all(|fit| fit.on_request));
        let command = format!("drainprof attach -p {} --profile malloc-glibc", cat.pid());
        assert_eq!(found.groups[0].attach, Some(command), "it has one thread");
    }
}
