//! A profile for an allocator that none describes: drafted from the program's functions, and used if what it counts
//! proves it.
//!
//! A draft that follows objects claims the kind `drain`, because only that can be disproved: if no member is freed
//! after the close of its granule, the close may as well have freed them, and the kind becomes `bulk`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use drainprof_process::{DebugSearch, Process, printable};
use drainprof_profile::{Kind, Level, Library, Role, draft::Draft};
use drainprof_report::{Report, coverage::Coverage, facts::Snapshot, why::Drafted};

use crate::{
    draft::{Listed, Wanted},
    observation::Options,
};

/// So many members that are freed after the close prove the kind `drain`.
const LATE: u64 = 20;

/// A draft, before it is proven.
#[derive(Debug)]
pub(super) struct Trial {
    path: PathBuf,
    profile: String,
    kind: Kind,
    /// The same as `bulk`.
    bulk: Draft,
}

/// What a trial has come to.
#[derive(Debug, PartialEq)]
pub(super) enum Judgement {
    /// The draft fits the program: it goes on.
    Proven,
    /// It fits, but whether closes free their members is open: what was counted so far does not stand.
    Bulk {
        /// Closes that left live objects.
        pinned: u64,
    },
    /// Something speaks against it.
    Refused(String),
}

impl Trial {
    /// Drafts a profile for the program of a process, and saves it in `directory`.
    ///
    /// # Errors
    /// Why there is none, in a sentence.
    pub(super) fn begin(pid: u32, directory: &Path) -> Result<Self, String> {
        let process = Process::open(pid).map_err(|error| error.to_string())?;
        let object = process.exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = printable(object.as_bytes());
        let exe = format!("/proc/{pid}/exe");
        let name = format!("draft-{}", file_name(&object));
        let wanted = |kind| Wanted { object: &object, name: Some(&name), prefix: None, kind };
        let listed = Listed::read(Path::new(&exe), &shown, DebugSearch::default(), None)
            .map_err(|error| error.to_string())?;
        let drafted = |kind| listed.draft(&wanted(kind)).map_err(|error| error.to_string());
        let bulk = drafted(Kind::Bulk)?;
        let (kind, draft) = if bulk.follows_objects {
            (Kind::Drain, drafted(Kind::Drain)?)
        } else {
            (Kind::Bulk, bulk.clone())
        };
        // Two builds of a program have two drafts.
        let path = directory.join(format!("draft-{}-{pid}.toml", file_name(&object)));
        let profile = save(&path, &draft)?;
        Ok(Self { path, profile, kind, bulk })
    }

    /// The options with the draft alone, at its first level.
    pub(super) fn options(
        &self,
        options: &Options,
        level: Option<Level>,
    ) -> Result<Options, String> {
        let mut options = options.clone();
        options.library = Library::load(std::slice::from_ref(&self.path), &[])
            .map_err(|error| error.to_string())?;
        options.observer.profiles = vec![self.profile.clone()];
        let first = if self.kind == Kind::Drain { Level::Objects } else { Level::Boundary };
        options.observer.level = Some(level.unwrap_or(first));
        Ok(options)
    }

    /// Judges by what was counted.
    pub(super) fn judge(&self, snapshot: &mut Snapshot, report: &Report) -> Judgement {
        let hits = |probes: &[drainprof_report::facts::ProbeFacts]| -> u64 {
            probes.iter().map(|probe| probe.entries).sum()
        };
        // The one process that did most: a server's master may have done nothing.
        snapshot.targets.sort_by_key(|target| std::cmp::Reverse(hits(&target.probes)));
        let coverage = Coverage::of(snapshot, report, &[], None);
        if let Some(warning) = coverage.warnings.first() {
            return Judgement::Refused(warning.message.clone());
        }
        let mut needed = vec![Role::Open, Role::Close];
        if self.kind == Kind::Drain {
            needed.extend([Role::Alloc, Role::Free]);
        }
        for role in needed {
            let name = role.name();
            if !coverage.probes.iter().any(|probe| probe.role == name && probe.hits > 0) {
                return Judgement::Refused(format!("no function with role {name} was called"));
            }
        }
        let allocators = report.targets.iter().flat_map(|target| &target.allocators);
        let (mut late, mut pinned) = (0, 0);
        for allocator in allocators {
            late += allocator.retention.late_drained.unwrap_or_default();
            pinned += allocator.granules.pinned;
        }
        tracing::debug!(profile = self.profile, pinned, late, "a draft is judged");
        if self.kind == Kind::Drain && pinned > 0 && late < LATE {
            Judgement::Bulk { pinned }
        } else {
            Judgement::Proven
        }
    }

    /// Goes on as `bulk`.
    ///
    /// # Errors
    /// If the draft cannot be saved.
    pub(super) fn become_bulk(&mut self) -> Result<(), String> {
        self.kind = Kind::Bulk;
        self.profile = save(&self.path, &self.bulk)?;
        Ok(())
    }

    /// What the answer says of it.
    pub(super) fn told(&self, against: Option<String>) -> Drafted {
        Drafted {
            path: self.path.display().to_string(),
            profile: self.profile.clone(),
            kind: self.kind,
            against,
        }
    }
}

/// Letters and digits of a name that is not ours.
fn file_name(object: &str) -> String {
    let letters = object.chars().filter(char::is_ascii_alphanumeric);
    letters.take(32).collect::<String>().to_ascii_lowercase()
}

/// Saves a draft whole, and gives its name.
fn save(path: &Path, draft: &Draft) -> Result<String, String> {
    let failed =
        |error: io::Error| format!("the draft cannot be saved as {}: {error}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    fs::write(path, &draft.text).map_err(failed)?;
    let profile =
        drainprof_profile::parse(&draft.text, &drainprof_profile::Source::File(path.into()))
            .map_err(|error| error.to_string())?;
    Ok(profile.name)
}
