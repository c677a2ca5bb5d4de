//! The daemon and a control group that is short of memory: the rule fires in its processes, and in no others.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{requires_root, skip},
    node::{Daemon, alone, target},
    target::Target,
};
use serde_json::Value;

/// The rule about pressure alone, in seconds.
const QUICK: &str = "
window.length = \"3s\"
window.cost = \"400%\"
triggers.pressure_high.for = \"1s\"
triggers.pressure_high.window = true
triggers.rss_slope.enabled = false
triggers.faults_high.enabled = false
triggers.vsz_growth.enabled = false
";
/// What the group may use. The program goes through 64 MiB of a file.
const LIMIT: &str = "25165824";

/// A control group of these tests, in the hierarchy that has pressure and, where that is another, in the one that has
/// the memory controller.
struct Group(Vec<PathBuf>);

impl Group {
    fn new(name: &str, limit: Option<&str>) -> io::Result<Self> {
        let name = format!("drainprof-{name}-{}", std::process::id());
        let top = Path::new("/sys/fs/cgroup");
        let unified = [top.join("unified"), top.to_owned()];
        let has_pressure = |place: &&PathBuf| place.join("memory.pressure").exists();
        let unified = unified.iter().find(has_pressure).ok_or(io::ErrorKind::NotFound)?;
        let mut group = Self(vec![unified.join(&name)]);
        fs::create_dir(&group.0[0])?;
        let Some(limit) = limit else { return Ok(group) };
        let old = top.join("memory");
        if old.join("memory.limit_in_bytes").exists() {
            group.0.push(old.join(&name));
            fs::create_dir(&group.0[1])?;
            fs::write(group.0[1].join("memory.limit_in_bytes"), limit)?;
        } else {
            fs::write(unified.join("cgroup.subtree_control"), "+memory")?;
            fs::write(group.0[0].join("memory.max"), limit)?;
        }
        Ok(group)
    }

    fn take(&self, pid: u32) -> Result<()> {
        for place in &self.0 {
            fs::write(place.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("{pid} into {}", place.display()))?;
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for place in &self.0 {
            if let Err(error) = fs::remove_dir(place) {
                eprintln!("{} stays: {error}", place.display());
            }
        }
    }
}

fn fires(state: &Value, pid: u32) -> bool {
    let alerts = target(state, pid).and_then(|one| one["alerts"].as_array());
    let own = |one: &Value| one["rule"] == "pressure_high" && one["state"] == "firing";
    alerts.is_some_and(|all| all.iter().any(own))
}

/// One group goes through more of a file than it may keep in memory, and waits; the other idles. Only the process that
/// waits has the alert, and gets the window.
#[test]
fn only_the_group_that_stalls() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let groups = (Group::new("stalls", Some(LIMIT)), Group::new("idles", None));
    let (Ok(short), Ok(enough)) = &groups else {
        let (one, other) = (groups.0.as_ref().err(), groups.1.as_ref().err());
        skip(&format!("no control groups with pressure and limits: {one:?} {other:?}"));
        return Ok(());
    };
    let mut stalls = Target::start("grow", &["mode=thrash", "mb=64"])?;
    let mut idles = Target::start("grow", &["mode=creep", "rate=1"])?;
    short.take(stalls.pid())?;
    enough.take(idles.pid())?;
    let daemon = Daemon::start(&[], QUICK)?;
    stalls.go()?;
    idles.go()?;
    let pid = stalls.pid();
    daemon.until("pressure fires", |state| fires(state, pid))?;
    let state = daemon.until("a window has ended", |state| {
        let windows = state["windows"].as_array();
        windows.is_some_and(|all| all.iter().any(|one| one["outcome"] != "running"))
    })?;
    assert!(!fires(&state, idles.pid()), "{:?}", target(&state, idles.pid()));
    for window in state["windows"].as_array().context("windows")? {
        assert_eq!((&window["pid"], &window["asked_by"]), (&pid.into(), &"pressure_high".into()));
    }
    let alerts = target(&state, pid).context("the process")?["alerts"].to_string();
    assert!(alerts.contains("tasks of this control group waited for memory"), "{alerts}");
    for process in [stalls, idles] {
        let mut process = process;
        process.go()?;
        process.finish()?;
    }
    daemon.finish()?;
    Ok(())
}
