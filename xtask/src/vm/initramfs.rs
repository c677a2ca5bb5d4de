//! The machines' file system: busybox, `drainprof`, the tests, and every library that they name.
//!
//! Laid out in a directory, with debug information stripped from the copies, and packed by `cpio`. Libraries
//! lie where `ldd` finds them on this machine, so that loader and paths fit.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::matrix::Run;
use super::qemu;
use crate::artifacts::{self, Tests};
use crate::work;

const BUSYBOX: &str = "/bin/busybox";

/// Packs everything; returns the archive.
pub(super) fn pack(root: &Path, directory: &Path, built: &Tests, runs: &[Run]) -> Result<PathBuf> {
    let tree = directory.join("root");
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    for name in ["bin", "dev", "etc", "opt/tests", "proc", "root", "sys", "tmp", "run"] {
        create(&tree.join(name))?;
    }
    copy(Path::new(BUSYBOX), &tree.join("bin/busybox"))?;
    let opt = tree.join("opt");
    let mut programs = vec![built.drainprof.clone()];
    copy(&built.drainprof, &opt.join("drainprof"))?;
    for run in runs {
        programs.push(run.binary.path.clone());
        artifacts::strip(
            "--strip-debug",
            &run.binary.path,
            &opt.join("tests").join(&run.binary.name),
        )?;
    }
    // As they are: what their files hold is part of the tests.
    artifacts::copy_tree(&built.targets, &opt.join("targets"))?;
    for entry in fs::read_dir(&built.targets).context("list the targets")? {
        programs.push(entry.context("list the targets")?.path());
    }
    for program in &built.programs {
        let name = program.file_name().context("a program has no name")?;
        artifacts::strip("--strip-debug", program, &opt.join("targets").join(name))?;
        programs.push(program.clone());
    }
    let schema = root.join("docs/report.schema.json");
    if schema.is_file() {
        copy(&schema, &opt.join("report.schema.json"))?;
    }
    for library in libraries(&programs)? {
        let inside = tree.join(library.strip_prefix("/").unwrap_or(&library));
        create(inside.parent().unwrap_or(&tree))?;
        copy(&library, &inside)?;
    }
    let init = tree.join("init");
    fs::write(&init, script(runs)).with_context(|| format!("write {}", init.display()))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
        .context("make init executable")?;
    for (name, text) in [("passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("group", "root:x:0:\n")] {
        fs::write(tree.join("etc").join(name), text)
            .with_context(|| format!("write etc/{name}"))?;
    }
    archive(&tree, &directory.join("initramfs.cpio"))
}

/// The first program of the machine.
fn script(runs: &[Run]) -> String {
    let mut script = String::from(
        "#!/bin/busybox sh\n\
         /bin/busybox mkdir -p /usr/bin /usr/sbin /sbin\n\
         /bin/busybox --install -s\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev 2>/dev/null\n\
         mount -t tracefs tracefs /sys/kernel/tracing\n\
         mount -t bpf bpf /sys/fs/bpf\n\
         mount -t tmpfs tmpfs /tmp\n\
         mount -t tmpfs tmpfs /run\n\
         ln -sf /proc/self/fd /dev/fd\n\
         ip link set lo up 2>/dev/null || ifconfig lo up\n\
         export RUST_BACKTRACE=1 RUST_LIB_BACKTRACE=0\n\
         export DRAINPROF_BIN=/opt/drainprof DRAINPROF_TEST_TARGETS=/opt/targets\n\
         export DRAINPROF_TEST_SCHEMA=/opt/report.schema.json\n",
    );
    // Emulation is some twenty times slower than the machine itself; fewer closes show the same.
    script.push_str("export DRAINPROF_SWEEP_CLOSES=2000\n");
    let _ = writeln!(script, "echo '{} kernel' $(uname -r)", qemu::MARK);
    for run in runs {
        let name = &run.binary.name;
        let _ = writeln!(script, "echo '{} begin {name}'", qemu::MARK);
        let _ = write!(script, "cd /tmp && /opt/tests/{name} --test-threads=1 --nocapture");
        if !run.tests.is_empty() {
            script.push_str(" --exact");
        }
        for test in &run.tests {
            let _ = write!(script, " '{test}'");
        }
        let _ = writeln!(script, " 2>&1 </dev/null\necho '{} end {name}' $?", qemu::MARK);
    }
    let _ = writeln!(script, "echo '{} done'\npoweroff -f", qemu::MARK);
    script
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(|_| ())
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// Every shared library, the loader included, that the programs name.
fn libraries(programs: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for program in programs {
        // A static program, or one of another word size without libraries, makes ldd fail: no library.
        let output = Command::new("ldd").arg(program).output().context("run ldd")?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
            if path.starts_with("not found") {
                bail!("{} needs a library that is not here: {}", program.display(), line.trim());
            }
            let path = path.split(" (").next().unwrap_or_default();
            // Next to the program it is part of the targets' directory already.
            if path.starts_with('/') && Path::new(path).is_file() {
                found.insert(PathBuf::from(path));
            }
        }
    }
    Ok(found)
}

/// Packs the tree; not compressed, since unpacking under emulation costs more than reading.
fn archive(tree: &Path, path: &Path) -> Result<PathBuf> {
    let file = fs::File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut cpio = Command::new("sh");
    cpio.current_dir(tree).stdout(file).stderr(Stdio::inherit());
    cpio.args(["-c", "find . | cpio --quiet --create --format=newc --owner=0:0"]);
    work::run("pack the initramfs", "`cargo xtask setup` installs cpio", &mut cpio)?;
    Ok(path.to_path_buf())
}
