//! A profile for an allocator that none describes: drafted from the program's functions, and used if what it counts
//! proves it.
//!
//! A draft that follows objects claims the kind `drain`, because only that can be disproved: if no member is freed
//! after the close of its granule, the close may as well have freed them, and the kind becomes `bulk`.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use drainprof_common::maps::Totals;
use drainprof_process::{DebugSearch, printable, readers::open};
use drainprof_profile::{Kind, Level, Library, Role, draft::Draft};
use drainprof_report::{Report, coverage::Coverage, facts::Snapshot, why::Drafted};

use super::begin::Setting;
use crate::{
    draft::{Listed, Wanted},
    engine::Options,
    goal::Goal,
};

/// So many members that are freed after the close prove the kind `drain`; so many closes of each sort, a live count.
const LATE: u64 = 20;
/// DSRs of the same closes, which begin and end to be observed a little apart, differ by no more.
const ALIKE: f64 = 0.02;
/// No granule holds so many bytes.
const MOST_BYTES: f64 = 1e9;

/// A draft, before it is proven.
#[derive(Debug)]
pub(super) struct Trial {
    path: PathBuf,
    profile: String,
    kind: Kind,
    /// The same as `bulk`.
    bulk: Draft,
    /// The same as `drain`, which judges closes by what granules say of themselves.
    live: Option<Draft>,
    /// Whether the bytes that granules say to hold are none.
    wrong_bytes: bool,
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
    /// It fits, but for the bytes that granules were taken to hold: sums of bytes do not stand.
    WrongBytes,
    /// Something speaks against it.
    Refused(String),
}

impl Trial {
    /// Drafts a profile for the program of a process, and saves it in `directory`.
    ///
    /// # Errors
    /// Why there is none, in a sentence.
    pub(super) fn begin(pid: u32, directory: &Path) -> Result<Self, String> {
        let process = open(pid).map_err(|error| error.to_string())?;
        let object = process.exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = printable(object.as_bytes());
        let exe = format!("/proc/{pid}/exe");
        let name = format!("draft-{}", file_name(&object));
        let wanted =
            |kind, live| Wanted { object: &object, name: Some(&name), prefix: None, kind, live };
        let listed = Listed::read(Path::new(&exe), &shown, DebugSearch::default(), None)
            .map_err(|error| error.to_string())?;
        let drafted =
            |kind, live| listed.draft(&wanted(kind, live)).map_err(|error| error.to_string());
        let bulk = drafted(Kind::Bulk, false)?;
        let (kind, draft, live) = if bulk.follows_objects {
            let live = drafted(Kind::Drain, true)?;
            let reads_live = live.levels.contains(&Level::Boundary.name());
            (Kind::Drain, drafted(Kind::Drain, false)?, Some(live).filter(|_| reads_live))
        } else {
            (Kind::Bulk, bulk.clone(), None)
        };
        // Two builds of a program have two drafts.
        let build = listed.build().unwrap_or_else(|| pid.to_string());
        let path = directory.join(format!("draft-{}-{build}.toml", file_name(&object)));
        let profile = save(&path, &draft.text)?;
        Ok(Self { path, profile, kind, bulk, live, wrong_bytes: false })
    }

    /// The level at which it is tried.
    pub(super) const fn first_level(&self) -> Level {
        match self.kind {
            Kind::Drain => Level::Objects,
            Kind::Bulk | Kind::Slab => Level::Boundary,
        }
    }

    /// A goal with the draft alone.
    ///
    /// # Errors
    /// If the draft cannot be read.
    pub(super) fn options(&self, setting: &Setting, goal: &Goal) -> Result<Options, String> {
        with_draft(setting, goal, &self.path, &self.profile)
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
        let facts = snapshot.targets.iter().flat_map(|target| &target.allocators);
        if !facts.map(|facts| &facts.totals).all(plausible_bytes) {
            return Judgement::WrongBytes;
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

    /// Goes on without the bytes that granules say to hold.
    ///
    /// # Errors
    /// If the draft cannot be saved.
    pub(super) fn leave_out_bytes(&mut self) -> Result<(), String> {
        self.wrong_bytes = true;
        let text = fs::read_to_string(&self.path).map_err(|error| error.to_string())?;
        self.profile = save(&self.path, &without_bytes(&text))?;
        Ok(())
    }

    /// A goal with the draft that judges closes by what granules say of themselves; `None`: they say nothing. It has a
    /// file of its own until it is proven.
    ///
    /// # Errors
    /// If it cannot be saved.
    pub(super) fn live_options(
        &self,
        setting: &Setting,
        goal: &Goal,
    ) -> Result<Option<Options>, String> {
        let Some(live) = &self.live else { return Ok(None) };
        let path = self.live_path();
        let profile = save(&path, &self.shown(live))?;
        with_draft(setting, goal, &path, &profile).map(Some)
    }

    /// Closes judged by what granules say were judged alike by counting: then the profile does so from now on. Returns the
    /// expression.
    pub(super) fn judge_live(&self, counted: Option<&Report>, read: &Report) -> Option<String> {
        let live = self.live.as_ref()?;
        // What cannot be removed is overwritten next time.
        let _ = fs::remove_file(self.live_path());
        let agreed = counted.is_some_and(|counted| agree(counted, read));
        tracing::debug!(profile = self.profile, agreed, "a live count is judged");
        if !agreed || save(&self.path, &self.shown(live)).is_err() {
            return None;
        }
        live.reads
            .iter()
            .find(|expression| live.text.contains(&format!("live = {expression:?}")))
            .cloned()
    }

    fn shown(&self, draft: &Draft) -> String {
        if self.wrong_bytes { without_bytes(&draft.text) } else { draft.text.clone() }
    }

    fn live_path(&self) -> PathBuf {
        self.path.with_extension("live.toml")
    }

    /// Goes on as `bulk`.
    ///
    /// # Errors
    /// If the draft cannot be saved.
    pub(super) fn become_bulk(&mut self) -> Result<(), String> {
        self.kind = Kind::Bulk;
        self.profile = save(&self.path, &self.shown(&self.bulk))?;
        Ok(())
    }

    /// What the answer says of it.
    pub(super) fn drafted(&self, against: Option<String>) -> Drafted {
        Drafted {
            path: self.path.display().to_string(),
            profile: self.profile.clone(),
            kind: self.kind,
            live: None,
            against,
        }
    }
}

/// A goal with one drafted profile alone.
fn with_draft(
    setting: &Setting,
    goal: &Goal,
    path: &Path,
    profile: &str,
) -> Result<Options, String> {
    let path = path.to_path_buf();
    let library = Library::load(&[path], &[]).map_err(|error| error.to_string())?;
    Ok(setting.with_one(goal, library, profile))
}

/// Granules hold at least half of what was allocated in them, and less than a gigabyte; or say nothing.
fn plausible_bytes(totals: &Totals) -> bool {
    let closes = (totals.drainable + totals.pinned + totals.unknown + totals.closed_plain) as f64;
    let each = totals.closed_bytes as f64 / closes.max(1.0);
    let allocated = totals.allocated_bytes as f64 / (totals.opened as f64).max(1.0);
    totals.closed_bytes == 0 || (each >= allocated / 2.0 && each < MOST_BYTES)
}

/// A draft without the bytes that its closes would read.
fn without_bytes(text: &str) -> String {
    let is_read = |line: &&str| !line.starts_with("bytes = \"*(");
    text.lines().filter(is_read).flat_map(|line| [line, "\n"]).collect()
}

/// Whether two reports of the same closes judge them alike: some drained, some pinned, and in the same shares.
fn agree(counted: &Report, read: &Report) -> bool {
    let decided = |report: &Report| {
        let all = report.targets.iter().flat_map(|target| &target.allocators);
        all.fold((0, 0), |(drained, pinned), allocator| {
            (drained + allocator.granules.drainable, pinned + allocator.granules.pinned)
        })
    };
    let ((drained, pinned), (empty, held)) = (decided(counted), decided(read));
    let enough = [drained, pinned, empty, held].into_iter().all(|count| count >= LATE);
    let share = |drained: u64, pinned: u64| drained as f64 / (drained + pinned).max(1) as f64;
    enough && (share(drained, pinned) - share(empty, held)).abs() <= ALIKE
}

/// Letters and digits of a name that is not ours.
fn file_name(object: &str) -> String {
    let letters = object.chars().filter(char::is_ascii_alphanumeric);
    letters.take(32).collect::<String>().to_ascii_lowercase()
}

/// Saves a draft in place of an older one, and gives its name. What is there is never written to: it may be a link.
fn save(path: &Path, text: &str) -> Result<String, String> {
    let failed =
        |error: io::Error| format!("the draft cannot be saved as {}: {error}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let profile = drainprof_profile::parse(text, &drainprof_profile::Source::File(path.into()))
        .map_err(|error| error.to_string())?;
    Ok(profile.name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A link that waits in the place of a draft is replaced; nothing is written to what it names.
    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (draft, victim) =
            (directory.path().join("draft-x-1.toml"), directory.path().join("victim"));
        fs::write(&victim, "as it was").unwrap();
        symlink(&victim, &draft).unwrap();
        let text = drainprof_profile::built_in_text("nginx.toml").unwrap();
        assert_eq!(save(&draft, text), Ok("nginx".to_owned()));
        assert_eq!(save(&draft, text), Ok("nginx".to_owned()), "again");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
        assert_eq!(fs::read_to_string(&draft).unwrap(), text);
    }
}
