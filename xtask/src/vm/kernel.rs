//! The kernels of the matrix: Debian's packages, downloaded once and unpacked, never installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::work;

/// A line of kernels.
pub(super) struct Line {
    /// `major.minor`.
    pub(super) version: &'static str,
    /// The package that depends on the newest kernel of that line.
    meta: &'static str,
}

/// The matrix.
pub(super) const LINES: [&Line; 2] = [
    &Line { version: "6.1", meta: "linux-image-cloud-amd64" },
    &Line { version: "6.12", meta: "linux-image-6.12-cloud-amd64" },
];

/// Without these a kernel cannot run what is tested.
const NEEDED: [&str; 6] = [
    "CONFIG_BPF_EVENTS=y",
    "CONFIG_BPF_JIT=y",
    "CONFIG_BPF_SYSCALL=y",
    "CONFIG_DEVTMPFS=y",
    "CONFIG_SERIAL_8250_CONSOLE=y",
    "CONFIG_UPROBE_EVENTS=y",
];

/// The kernel image of a line, downloaded if it is not there yet.
pub(super) fn fetch(directory: &Path, line: &Line) -> Result<PathBuf> {
    let directory = directory.join(line.version);
    if let Some(kernel) = image(&directory) {
        return Ok(kernel);
    }
    let package = resolve(line).or_else(|_| {
        // A machine that has never updated its lists knows no package.
        work::run(
            "update the package lists",
            "check /etc/apt/sources.list",
            work::as_root("apt-get", &[]).args(["update", "-q"]).stdout(std::io::stderr()),
        )?;
        resolve(line)
    })?;
    work::step(format!("vm: download {package} (kept in {})", directory.display()));
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("create {}", directory.display()))?;
    let mut download = Command::new("apt-get");
    download.current_dir(&directory).args(["download", "-q", &package]).stdout(std::io::stderr());
    work::run("download a kernel", "check that its archive is reachable", &mut download)?;
    let archive = work::files(&directory, "deb")?.pop().context("apt-get downloaded no package")?;
    let mut unpack = Command::new("dpkg");
    unpack.arg("-x").arg(&archive).arg(&directory);
    work::run("unpack a kernel", "remove the directory and try again", &mut unpack)?;
    // The modules are most of it, and nothing here loads one.
    for part in [archive, directory.join("lib"), directory.join("usr")] {
        if part.is_dir() {
            std::fs::remove_dir_all(&part).with_context(|| format!("remove {}", part.display()))?;
        } else if part.exists() {
            std::fs::remove_file(&part).with_context(|| format!("remove {}", part.display()))?;
        }
    }
    check_config(&directory.join("boot"))?;
    image(&directory).with_context(|| format!("{package} holds no boot/vmlinuz-*"))
}

/// The newest kernel package that the line's meta package depends on.
fn resolve(line: &Line) -> Result<String> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", line.meta]);
    let advice = "the kernel matrix needs Debian 12's archive; leave it out with `--no-vm`";
    let depends = work::read("find the kernel package", advice, &mut command)?;
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .with_context(|| format!("{} depends on no kernel package; {advice}", line.meta))
}

fn image(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory.join("boot")).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-")))
}

/// Says before the boot what would otherwise be a riddle after it.
fn check_config(boot: &Path) -> Result<()> {
    let entries = std::fs::read_dir(boot).with_context(|| format!("list {}", boot.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("config-")) {
            continue;
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let lacks: Vec<&str> =
            NEEDED.into_iter().filter(|&wanted| !text.lines().any(|line| line == wanted)).collect();
        if !lacks.is_empty() {
            bail!("{} lacks {}; choose another kernel", path.display(), lacks.join(", "));
        }
    }
    Ok(())
}
