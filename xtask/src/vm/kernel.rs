//! The kernels of the matrix: Debian's packages, downloaded and unpacked, never installed.
//!
//! A kernel is kept between runs. One of a suite that moves is asked for again every few days, and named when it is
//! another one. `systemd` puts unstable's into a file system, with all its modules.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use fs_err as fs;

use super::archive::Archive;
use crate::work;

/// A line of kernels.
pub(super) struct Line {
    /// What `--kernel` takes.
    pub(super) name: &'static str,
    /// The package that depends on the newest kernel of that line.
    meta: &'static str,
    /// A suite that is not the machine's own, whose newest kernel changes.
    suite: Option<&'static str>,
}

/// Debian's newest kernel.
pub(super) const SID: Line =
    Line { name: "sid", meta: "linux-image-cloud-amd64", suite: Some("sid") };

/// The lines, oldest first.
pub(super) const LINES: [Line; 3] = [
    Line { name: "6.1", meta: "linux-image-cloud-amd64", suite: None },
    Line { name: "6.12", meta: "linux-image-6.12-cloud-amd64", suite: None },
    SID,
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

/// File systems that tests need, where a kernel has them as modules. Neither needs another module.
const MODULES: [&str; 2] = ["kernel/fs/fuse/fuse.ko", "kernel/fs/overlayfs/overlay.ko"];

/// With this the command line chooses the preemption model.
pub(super) const PREEMPT_DYNAMIC: &str = "CONFIG_PREEMPT_DYNAMIC=y";

/// A kernel of a moving suite is taken for its newest one for this time.
const FRESH_TIME: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// The part of a package's name before the kernel's release.
const IMAGE: &str = "linux-image-";

/// A kernel on disk.
#[derive(Debug)]
pub(super) struct Kernel {
    directory: PathBuf,
    /// What `uname -r` prints.
    pub(super) release: String,
    config: String,
    /// Those of `MODULES` that its packages hold.
    pub(super) modules: Vec<PathBuf>,
    /// When the archive had no newer one.
    checked: SystemTime,
}

impl Kernel {
    fn read(directory: &Path) -> Result<Self> {
        let directory = directory.to_path_buf();
        let path = directory.join("release");
        let checked = path.metadata().and_then(|data| data.modified());
        Ok(Self {
            release: fs::read_to_string(&path)?,
            config: fs::read_to_string(directory.join("config"))?,
            modules: kept_modules(&directory.join("modules"))?,
            checked: checked.with_context(|| format!("ask for the age of {}", path.display()))?,
            directory,
        })
    }

    pub(super) fn image(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    /// `major.minor`.
    pub(super) fn version(&self) -> &str {
        version(&self.release)
    }

    /// Says before the boot what would otherwise be a riddle after it.
    pub(super) fn check(&self, more: Option<&'static str>) -> Result<()> {
        let wanted = NEEDED.into_iter().chain(more);
        let lacks: Vec<_> = wanted.filter(|&w| !self.config.lines().any(|l| l == w)).collect();
        if lacks.is_empty() {
            return Ok(());
        }
        bail!("{} lacks {}; choose another kernel", self.release, lacks.join(", "))
    }
}

/// Debian compresses the modules of some kernels.
fn kept_modules(directory: &Path) -> Result<Vec<PathBuf>> {
    let plain = work::files(directory, "ko")?;
    Ok(plain.into_iter().chain(work::files(directory, "xz")?).collect())
}

fn version(release: &str) -> &str {
    release.match_indices('.').nth(1).map_or(release, |(at, _)| &release[..at])
}

/// The kernel of a line: the kept one, or, where there is none or it is not fresh, the archive's.
pub(super) fn fetch(directory: &Path, line: &Line) -> Result<Kernel> {
    let home = directory.join("kernels").join(line.name);
    let Ok(kept) = Kernel::read(&home) else { return newest(directory, line, None) };
    let age = kept.checked.elapsed().unwrap_or_default();
    if line.suite.is_none() || age < FRESH_TIME {
        return Ok(kept);
    }
    newest(directory, line, Some(&kept.release)).or_else(|error| {
        work::note(format!("cannot look for a newer kernel than {}: {error:#}", kept.release));
        Ok(kept)
    })
}

/// The archive of a line, and its newest kernel package.
fn newest_package(directory: &Path, line: &Line) -> Result<(Archive, String)> {
    if let Some(suite) = line.suite {
        let archive = Archive::of_suite(&directory.join("suites").join(suite), suite)?;
        archive.update()?;
        let package = resolve(&archive, line)?;
        return Ok((archive, package));
    }
    let archive = Archive::of_machine();
    // A machine that has never updated its lists knows no package.
    let package = resolve(&archive, line)
        .or_else(|_| archive.update().and_then(|()| resolve(&archive, line)))?;
    Ok((archive, package))
}

/// The newest kernel of a line; downloaded unless it is the kept one.
pub(super) fn newest(directory: &Path, line: &Line, kept: Option<&str>) -> Result<Kernel> {
    let (archive, package) = newest_package(directory, line)?;
    let release = package.trim_start_matches(IMAGE);
    let home = directory.join("kernels").join(line.name);
    if kept == Some(release) {
        // Written again, so that it is fresh.
        fs::write(home.join("release"), release)?;
        return Kernel::read(&home);
    }
    let before = kept.map(|kept| format!(", which was {kept}")).unwrap_or_default();
    work::step(format!("vm: download the newest kernel of {}: {release}{before}", line.name));
    let unpacked = work::emptied(&home.with_extension("unpacked"))?;
    archive.unpack(&parts(&package, &archive.depends(&package)?), &unpacked)?;
    let fresh = work::emptied(&home.with_extension("new"))?;
    keep(&unpacked, release, &fresh)?;
    work::remove(&unpacked)?;
    work::remove(&home)?;
    fs::rename(&fresh, &home)?;
    Kernel::read(&home)
}

/// Unpacks unstable's kernel with all its modules, as `newest` has just found it, and returns their directory, which
/// also holds its image and its configuration.
pub(super) fn unpack(directory: &Path, kernel: &Kernel, to: &Path) -> Result<PathBuf> {
    let archive = Archive::of_suite(&directory.join("suites/sid"), "sid")?;
    let parts = ["base", "binary", "modules"];
    let packages = parts.map(|part| format!("linux-{part}-{}", kernel.release));
    archive.unpack(&packages, &work::emptied(to)?)?;
    Ok(to.join("usr/lib/modules").join(&kernel.release))
}

/// The newest kernel package that the line's meta package depends on.
fn resolve(archive: &Archive, line: &Line) -> Result<String> {
    let depends = archive.depends(line.meta)?;
    depends.into_iter().find(|name| name.starts_with(IMAGE)).with_context(|| {
        let advice = "the kernel matrix needs Debian's archive; leave it out with `--no-vm`";
        format!("{} depends on no kernel package; {advice}", line.meta)
    })
}

/// The packages that hold a kernel and its configuration. Newer ones are split, and the image's package is empty; what
/// else it depends on is the modules, of which no listed test needs one.
fn parts(package: &str, depends: &[String]) -> Vec<String> {
    let release = package.trim_start_matches(IMAGE);
    let parts = ["linux-base-", "linux-binary-"].map(|part| format!("{part}{release}"));
    if parts.iter().all(|part| depends.contains(part)) {
        parts.into()
    } else {
        vec![package.to_owned()]
    }
}

/// Copies what is needed of unpacked packages.
fn keep(unpacked: &Path, release: &str, to: &Path) -> Result<()> {
    for what in ["vmlinuz", "config"] {
        let places =
            [format!("boot/{what}-{release}"), format!("usr/lib/modules/{release}/{what}")];
        let mut places = places.iter().map(|place| unpacked.join(place));
        let file = places
            .find(|path| path.is_file())
            .with_context(|| format!("the packages of {release} hold no {what}"))?;
        fs::copy(&file, to.join(what))?;
    }
    let modules = work::emptied(&to.join("modules"))?;
    for module in MODULES {
        let places = ["lib", "usr/lib"].map(|place| format!("{place}/modules/{release}/{module}"));
        let places = places.into_iter().flat_map(|place| [format!("{place}.xz"), place]);
        for file in places.map(|place| unpacked.join(place)).filter(|path| path.is_file()) {
            let name = file.file_name().context("a module has no name")?;
            fs::copy(&file, modules.join(name))?;
        }
    }
    fs::write(to.join("release"), release)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{parts, version};

    /// Each way in which Debian has named kernels.
    #[test]
    fn versions_of_releases() {
        let releases =
            ["6.1.0-56-cloud-amd64", "6.12.117+deb12-cloud-amd64", "7.2.13+deb14-cloud-amd64"];
        assert_eq!(releases.map(version), ["6.1", "6.12", "7.2"]);
    }

    /// Where the kernel is a package of its own, that one and the one with its configuration; else the image's.
    #[test]
    fn split_packages() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let split = names(&["dracut", "linux-base-7.2", "linux-binary-7.2", "linux-modules-7.2"]);
        assert_eq!(parts("linux-image-7.2", &split), ["linux-base-7.2", "linux-binary-7.2"]);
        let whole = names(&["kmod", "linux-base"]);
        assert_eq!(parts("linux-image-6.1", &whole), ["linux-image-6.1"]);
    }
}
