//! Control groups that limit memory, in the hierarchy that has the controller (version 1 or 2), made by hand.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

const TOP: &str = "/sys/fs/cgroup";

/// Where each version has what.
struct Files {
    limit: &'static str,
    peak: &'static str,
    /// A file with a line `oom_kill N`.
    events: &'static str,
}

const VERSIONS: [Files; 2] = [
    Files {
        limit: "memory.limit_in_bytes",
        peak: "memory.max_usage_in_bytes",
        events: "memory.oom_control",
    },
    Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" },
];

/// How often it is tried to remove a group: what was killed takes a moment to go.
const MAX_ATTEMPTS: u32 = 100;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(20);

/// A control group. Dropping it removes it; what was in it is to have ended by then.
#[derive(Debug)]
pub struct Limited {
    place: PathBuf,
    version: usize,
}

impl Limited {
    /// A group whose processes have so many bytes together.
    pub fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let name = format!("drainprof-{name}-{}", std::process::id());
        let old = Path::new(TOP).join("memory");
        let version = usize::from(!old.join(VERSIONS[0].limit).exists());
        let place = if version == 0 { old.join(name) } else { Path::new(TOP).join(name) };
        if version == 1 {
            fs::write(Path::new(TOP).join("cgroup.subtree_control"), "+memory")?;
        }
        fs::create_dir(&place)?;
        let group = Self { place, version };
        fs::write(group.file(VERSIONS[version].limit), bytes.to_string())?;
        Ok(group)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// A command that runs a program in it, from its first instruction on.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$1\" && shift && exec \"$@\"", "sh"]);
        command.arg(self.file("cgroup.procs")).arg(program);
        command
    }

    /// The most bytes that it had.
    pub fn peak(&self) -> Result<u64> {
        let path = self.file(VERSIONS[self.version].peak);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().parse()?)
    }

    /// Processes of it that the kernel killed for want of memory.
    pub fn kills(&self) -> Result<u64> {
        let text = fs::read_to_string(self.file(VERSIONS[self.version].events))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(line.context("oom_kill")?.trim().parse()?)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        for _ in 0..MAX_ATTEMPTS {
            if fs::remove_dir(&self.place).is_ok() {
                return;
            }
            thread::sleep(ATTEMPT_INTERVAL);
        }
        eprintln!("{} stays", self.place.display());
    }
}
