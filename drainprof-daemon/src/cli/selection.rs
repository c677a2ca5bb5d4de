//! Which processes a command is about: by number, or by what they have in common.
//!
//! Flattened into the arguments of commands; exactly one way is to be named. Commands that allow none change the group
//! where `args` names them.

use anyhow::Result;
use clap::{Args, builder::NonEmptyStringValueParser};
use drainprof_observe::ObserveError;
use drainprof_process::{MIN_CONTAINER_DIGITS, Process, ProcessError, Selected, Selector, readers};

use super::exit::{Failure, code};

/// Processes that a message lists.
const LISTED: usize = 20;
/// Digits of a container's whole id.
const CONTAINER_DIGITS: usize = 64;

/// Exactly one of the ways to name processes.
#[derive(Args, Clone, Debug, Default)]
#[group(id = "selection", required = true, multiple = false)]
pub(super) struct Selection {
    /// Process number. Repeatable.
    #[arg(short, long, value_name = "PID", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
    /// Processes of exactly this name.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    comm: Option<String>,
    /// Processes of this systemd unit.
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new())]
    unit: Option<String>,
    /// Processes of this container, of any runtime: its id, or the first 12 digits or more.
    #[arg(long, value_name = "ID", value_parser = container)]
    container: Option<String>,
    /// Processes of this control group and those below it.
    #[arg(long, value_name = "PATH", value_parser = group)]
    cgroup: Option<String>,
}

impl Selection {
    /// One process, by its number.
    pub(super) fn of(pid: u32) -> Self {
        Self { pid: vec![pid], ..Self::default() }
    }

    /// Whether nothing was selected, which means all processes, or those of the daemon.
    pub(super) const fn is_none(&self) -> bool {
        self.pid.is_empty()
            && self.comm.is_none()
            && self.unit.is_none()
            && self.container.is_none()
            && self.cgroup.is_none()
    }

    /// Whether the processes have been named one by one: then each of them is wanted.
    const fn is_by_number(&self) -> bool {
        !self.pid.is_empty()
    }

    /// What the processes have in common; `None` where they are named by number, or not at all.
    fn selector(&self) -> Option<Selector> {
        let Self { pid: _, comm, unit, container, cgroup } = self;
        (comm.clone().map(Selector::Comm))
            .or_else(|| unit.clone().map(Selector::Unit))
            .or_else(|| container.clone().map(Selector::Container))
            .or_else(|| cgroup.clone().map(Selector::Cgroup))
    }

    /// The processes that are meant now, sorted, each once. Numbers (`-p`) are taken as they are: whether these
    /// processes exist is for the caller to find out. Empty only if nothing was selected.
    ///
    /// # Errors
    /// If no process matches (exit code 4), and if `/proc` cannot be read.
    pub(super) fn resolve(&self) -> Result<Vec<u32>> {
        if let Some(selector) = self.selector() {
            return Ok(selector.find()?.into_iter().map(|Selected { pid, .. }| pid).collect());
        }
        let mut pids = self.pid.clone();
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// The processes that are meant now, sorted, each examined. Of several, those that have ended meanwhile are left
    /// out; so are, of those that were not named one by one, those that cannot be traced.
    ///
    /// # Errors
    /// If no process is left, or one that was named cannot be traced.
    pub(super) fn open(&self) -> Result<Vec<Process>> {
        let pids = self.resolve()?;
        let (mut opened, mut left_out) = (Vec::new(), None);
        for &pid in &pids {
            match readers::open(pid) {
                Ok(process) => opened.push(process),
                // A number that was never there is a mistake.
                Err(error @ ProcessError::NoSuchProcess { .. }) if self.is_by_number() => {
                    return Err(error.into());
                }
                Err(error) if pids.len() > 1 && self.may_lack(&error) => {
                    tracing::warn!("not observed: {error}");
                    left_out = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match left_out.filter(|_| opened.is_empty()) {
            Some(error) => Err(error.into()),
            None => Ok(opened),
        }
    }

    /// Whether the others suffice where a process cannot be examined.
    pub(super) fn may_lack(&self, error: &ProcessError) -> bool {
        error.is_gone() || !self.is_by_number()
    }

    /// Whether the others suffice where a process cannot be observed.
    pub(super) fn may_leave_out(&self, error: &ObserveError) -> bool {
        match error {
            ObserveError::Target(error) => self.may_lack(error),
            ObserveError::NoMatch { .. } => !self.is_by_number(),
            _ => false,
        }
    }

    /// The one process that is meant.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), and if more than one is meant (exit code 4).
    pub(super) fn resolve_one(&self) -> Result<u32> {
        match self.resolve()?[..] {
            [pid] => Ok(pid),
            ref pids => {
                let text = format!("this needs one process: choose one of {} with -p", list(pids));
                Err(Failure::new(code::NO_TARGET, text).into())
            }
        }
    }
}

fn list(pids: &[u32]) -> String {
    let listed: Vec<_> = pids.iter().take(LISTED).map(u32::to_string).collect();
    let more = pids.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", listed.join(", "))
}

/// The id of a container, also with the runtime that Kubernetes puts before it (`containerd://`).
fn container(text: &str) -> Result<String, String> {
    let id = text.rsplit_once("://").map_or(text, |(_, id)| id).to_ascii_lowercase();
    let is_id = (MIN_CONTAINER_DIGITS..=CONTAINER_DIGITS).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id).ok_or_else(|| {
        format!(
            "it takes {MIN_CONTAINER_DIGITS} to {CONTAINER_DIGITS} hexadecimal digits, not a name"
        )
    })
}

/// The path of a control group; the directory where groups are mounted may stand before it.
fn group(text: &str) -> Result<String, String> {
    let path = text.strip_prefix("/sys/fs/cgroup").unwrap_or(text);
    match path.strip_prefix('/') {
        _ if text.is_empty() => Err("it is empty".to_owned()),
        None if path.is_empty() => Ok("/".to_owned()),
        None => Err("a path begins with /".to_owned()),
        Some(_) => Ok(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::command::Cli;

    #[derive(clap::Parser)]
    struct One {
        #[command(flatten)]
        selection: Selection,
    }

    fn parsed(words: &[&str]) -> Result<Selection, clap::Error> {
        One::try_parse_from([&["x"], words].concat()).map(|one| one.selection)
    }

    /// Numbers are sorted, each once, and taken without a check of the processes.
    #[test]
    fn numbers() {
        let selection = parsed(&["-p", "9,3", "-p", "3"]).unwrap();
        assert!(selection.is_by_number() && selection.selector().is_none());
        assert_eq!(selection.resolve().unwrap(), [3, 9]);
        let error = selection.resolve_one().unwrap_err();
        assert!(error.to_string().contains("one of 3, 9 with -p"), "{error}");
        assert_eq!(parsed(&["-p", "4000000000"]).unwrap().resolve_one().unwrap(), 4_000_000_000);
        assert_eq!(list(&[1; 22]).matches('1').count(), 20);
    }

    /// Each way is one selector, and what cannot be one is refused.
    #[test]
    fn ways() {
        let id = "8F2c1d3a4b5e6f70";
        let selector = |words: &[&str]| parsed(words).map(|found| found.selector());
        let ways = [
            (["--comm", "svc"], Selector::Comm("svc".into())),
            (["--unit", "nginx.service"], Selector::Unit("nginx.service".into())),
            (["--container", id], Selector::Container(id.to_lowercase())),
            (["--container", "cri-o://8f2c1d3a4b5e"], Selector::Container("8f2c1d3a4b5e".into())),
            (["--cgroup", "/a/b/"], Selector::Cgroup("/a/b/".into())),
            (["--cgroup", "/sys/fs/cgroup/a"], Selector::Cgroup("/a".into())),
            (["--cgroup", "/sys/fs/cgroup"], Selector::Cgroup("/".into())),
        ];
        for (words, wanted) in ways {
            assert_eq!(selector(&words).unwrap(), Some(wanted), "{words:?}");
        }
        for refused in [
            ["--comm", ""],
            ["--container", "8f2c1d3a4b5"],
            ["--container", "my-container-x"],
            ["--cgroup", "a"],
            ["--cgroup", ""],
            ["-p", "0"],
        ] {
            assert!(selector(&refused).is_err(), "{refused:?}");
        }
    }

    /// Exactly one way is needed, by all commands but those that mean all processes without.
    #[test]
    fn exactly_one() {
        let parses = |words: &str| Cli::try_parse_from(words.split(' ')).is_ok();
        for command in ["attach", "growth", "census", "diagnose", "discover", "top"] {
            let needs = matches!(command, "attach" | "census" | "diagnose");
            assert_eq!(parses(&format!("drainprof {command}")), !needs, "{command}");
            for way in ["-p 1", "--comm a", "--unit a", "--container 0123456789ab", "--cgroup /a"] {
                assert!(parses(&format!("drainprof {command} {way}")), "{command} {way}");
            }
            assert!(!parses(&format!("drainprof {command} -p 1 --comm a")), "{command}");
            assert!(!parses(&format!("drainprof {command} --unit a --comm a")), "{command}");
        }
    }

    /// A name that no process has is no target, and the message says which name.
    #[test]
    fn nobody() {
        let error = parsed(&["--comm", "no such name"]).unwrap().resolve().unwrap_err();
        assert!(error.to_string().contains("--comm no such name"), "{error}");
    }
}
