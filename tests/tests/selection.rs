//! Processes that are selected by what they have in common: exactly these are observed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use drainprof_tests::{
    environment::{self, requires_root},
    target::Target,
    tracer::{Traced, Tracer, run_to_end},
};

/// Two control groups of the test, one in the other; the inner one is named as systemd names a service's.
struct Groups {
    outer: PathBuf,
    service: String,
}

impl Groups {
    fn new() -> Result<Self> {
        let top = Path::new("/sys/fs/cgroup");
        let is_unified = |place: &PathBuf| place.join("cgroup.controllers").exists();
        let unified = [top.join("unified"), top.to_owned()].into_iter().find(is_unified);
        let unified = unified.context("no unified hierarchy of control groups is mounted")?;
        let name = format!("drainprof-selected-{}", std::process::id());
        let groups = Self { outer: unified.join(&name), service: format!("{name}.service") };
        fs::create_dir_all(groups.inner())?;
        Ok(groups)
    }

    fn inner(&self) -> PathBuf {
        self.outer.join(&self.service)
    }

    /// The path of the outer group, as `/proc` shows it.
    fn path(&self) -> Result<String> {
        let name = self.outer.file_name().and_then(|name| name.to_str());
        Ok(format!("/{}", name.context("a group's name")?))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for place in [self.inner(), self.outer.clone()] {
            if let Err(error) = fs::remove_dir(&place) {
                eprintln!("{} stays: {error}", place.display());
            }
        }
    }
}

/// Starts a program as a target, in a group.
fn start(program: &Path, group: &Path, seed: &str) -> Result<Target> {
    let mut command = Command::new(program);
    command.args(["closes=500", "p=2500", seed]);
    let target = Target::start_command("psweep", command)?;
    fs::write(group.join("cgroup.procs"), target.pid().to_string())?;
    Ok(target)
}

/// Two processes of one name, of which one is in the service; a third one has another name and is in the outer group.
/// Each selector finds those that it means, and what they do is counted to the last event.
#[test]
fn by_name_unit_and_group() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let groups = Groups::new()?;
    let directory = tempfile::tempdir()?;
    let name = format!("sel{}", std::process::id());
    let other = format!("oth{}", std::process::id());
    for name in [&name, &other] {
        fs::copy(environment::target("psweep")?, directory.path().join(name))?;
    }
    let path = groups.path()?;
    let ways: [([&str; 2], [bool; 3]); 3] = [
        (["--comm", &name], [true, true, false]),
        (["--unit", &groups.service], [true, false, false]),
        (["--cgroup", &path], [true, false, true]),
    ];
    for (way, meant) in ways {
        let top = groups.outer.parent().context("the root of the hierarchy")?;
        let program = directory.path().join(&name);
        let mut targets = [
            start(&program, &groups.inner(), "seed=1")?,
            start(&program, top, "seed=2")?,
            start(&directory.path().join(&other), &groups.outer, "seed=3")?,
        ];
        let tracer = Tracer::attach(&[], "arena", &[&way[..], &["--level", "objects"]].concat())?;
        for target in &mut targets {
            target.go()?;
        }
        let mut truths = Vec::new();
        for (target, is_meant) in targets.into_iter().zip(meant) {
            let finished = target.finish()?;
            if is_meant {
                truths.extend(finished.truths);
            }
        }
        Traced { truths, outcome: tracer.finish()? }.exact();
    }
    Ok(())
}

/// A name that nobody has, and one that several have where one is needed.
#[test]
fn none_and_too_many() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    for command in ["attach", "growth", "census", "discover"] {
        let refused = run_to_end(&[command, "--comm", "nobody has this"])?;
        let talk = refused.talk();
        assert_eq!(refused.code, Some(4), "{talk}");
        assert!(talk.contains("--comm nobody has this") && talk.contains("ps -e"), "{talk}");
    }
    let directory = tempfile::tempdir()?;
    let name = format!("two{}", std::process::id());
    let program = directory.path().join(&name);
    fs::copy(environment::target("psweep")?, &program)?;
    let two = [(); 2].map(|()| Target::start_command("psweep", Command::new(&program)));
    let [Ok(one), Ok(two)] = two else { bail!("the targets do not start: {two:?}") };
    let refused = run_to_end(&["census", "--comm", &name])?;
    let mut pids = [one.pid(), two.pid()];
    pids.sort_unstable();
    assert_eq!(refused.code, Some(4), "{}", refused.talk());
    let list = format!("choose one of {}, {} with -p", pids[0], pids[1]);
    assert!(refused.talk().contains(&list), "{}", refused.talk());
    Ok(())
}
