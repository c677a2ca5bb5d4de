//! Debian packages: what is installed, and installing what is not.
//!
//! `dpkg-query` answers first, so that a machine which has everything needs neither root nor network.
//! Called by `setup`, `build-ebpf --setup` and `vm`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::work;

/// Those of `wanted` that are not installed.
pub(crate) fn missing<'a>(wanted: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${db:Status-Status}\n"])
        .args(wanted)
        .output()
        .context("ask dpkg-query for installed packages; this needs Debian or a relative of it")?;
    // It fails when any package is unknown, and still lists the others.
    let listed = String::from_utf8_lossy(&output.stdout);
    let installed: Vec<&str> =
        listed.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    Ok(wanted.iter().copied().filter(|name| !installed.contains(name)).collect())
}

/// Installs what is missing of `wanted`; `why` is reported before root is asked for.
///
/// Services of the packages are not started: a `policy-rc.d` of our own stands in the way meanwhile.
pub(crate) fn install(wanted: &[&str], why: &str) -> Result<()> {
    let missing = missing(wanted)?;
    if missing.is_empty() {
        work::note(format!("already installed: {}", wanted.join(" ")));
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("install {}: there is no apt-get here; install them by hand", missing.join(" "));
    }
    let sudo = if work::is_root() { "" } else { " (through sudo: installing packages needs root)" };
    work::note(format!("installing {} {why}{sudo}", missing.join(" ")));
    apt(&["update", "-q"])?;
    let guard = ServiceGuard::put()?;
    let mut args = vec!["install", "-q", "-y", "--no-install-recommends"];
    args.extend(&missing);
    let outcome = apt(&args);
    guard.remove()?;
    outcome
}

/// Runs `apt-get` as root without questions.
fn apt(args: &[&str]) -> Result<()> {
    let env: [(&str, &OsStr); 1] = [("DEBIAN_FRONTEND", OsStr::new("noninteractive"))];
    let mut command = work::as_root("apt-get", &env);
    command.args(["-o", "Dpkg::Use-Pty=0"]).args(args).stdin(std::process::Stdio::null());
    // apt reports on stdout; a task's stdout is for results.
    command.stdout(std::io::stderr());
    work::run("apt-get", "check its messages above, and /etc/apt/sources.list", &mut command)
}

/// Keeps packages from starting their services while it stands.
struct ServiceGuard {
    ours: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl ServiceGuard {
    fn put() -> Result<Self> {
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        let script = format!("printf '#!/bin/sh\\nexit 101\\n' >{POLICY} && chmod 755 {POLICY}");
        work::run(
            "keep services stopped",
            "check that /usr/sbin is writable",
            work::as_root("sh", &[]).args(["-c", &script]),
        )?;
        Ok(Self { ours: true })
    }

    fn remove(self) -> Result<()> {
        if !self.ours {
            return Ok(());
        }
        let mut command = work::as_root("rm", &[]);
        work::run("remove policy-rc.d", "remove it by hand", command.args(["-f", POLICY]))
    }
}
