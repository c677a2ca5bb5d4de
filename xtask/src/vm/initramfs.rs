//! The machines' file system: busybox, `drainprof`, the tests, and every library that they name.
//!
//! Laid out in a directory, with debug information stripped from the copies, and packed by `cpio`. Libraries
//! lie where `ldd` finds them on this machine, so that loader and paths fit. One archive serves all machines: each has
//! a script of its own in it, which its kernel's command line names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fs_err as fs;

use super::lists::Run;
use super::log::OURS;
use super::session::MARK;
use crate::artifacts::{self, TestBinary, Tests};
use crate::work;

const BUSYBOX: &str = "/bin/busybox";

/// Names the machine on the kernel's command line. What the kernel does not know itself it passes on to the script in
/// the environment.
pub(super) const MACHINE: &str = "drainprof_machine";

/// Variables of all tests. Emulation is some twenty times slower than the machine itself; fewer closes show the same.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("RUST_BACKTRACE", "1"),
    ("RUST_LIB_BACKTRACE", "0"),
    ("DRAINPROF_BIN", "/opt/drainprof"),
    ("DRAINPROF_TEST_TARGETS", "/opt/targets"),
    ("DRAINPROF_TEST_SCHEMA", "/opt/report.schema.json"),
    ("DRAINPROF_SWEEP_CLOSES", "2000"),
    // Seconds; a machine may itself wait for a processor.
    ("DRAINPROF_TEST_DEADLINE", "600"),
];

/// What one machine does.
pub(super) struct Job<'a> {
    pub(super) machine: &'a str,
    pub(super) runs: &'a [Run],
    /// Modules of its kernel, which it loads first.
    pub(super) modules: &'a [PathBuf],
    /// Variables for its tests; of two with one name the last wins.
    pub(super) environment: Vec<(&'a str, &'a str)>,
}

/// Packs everything; returns the archive.
pub(super) fn pack(
    root: &Path,
    directory: &Path,
    built: &Tests,
    jobs: &[Job<'_>],
) -> Result<PathBuf> {
    let tree = work::emptied(&directory.join("root"))?;
    for name in
        ["bin", "dev", "etc", "opt/tests", "proc", "root", "sys", "tmp", "run", "opt/machines"]
    {
        fs::create_dir_all(tree.join(name))?;
    }
    fs::copy(Path::new(BUSYBOX), tree.join("bin/busybox"))?;
    let opt = tree.join("opt");
    let mut programs = vec![built.drainprof.clone()];
    fs::copy(&built.drainprof, opt.join("drainprof"))?;
    for binary in binaries(jobs) {
        programs.push(binary.path.clone());
        artifacts::strip("--strip-debug", &binary.path, &opt.join("tests").join(&binary.name))?;
    }
    // As they are: what their files hold is part of the tests.
    artifacts::copy_tree(&built.targets, &opt.join("targets"))?;
    for entry in fs::read_dir(&built.targets)? {
        programs.push(entry?.path());
    }
    for program in &built.programs {
        let name = program.file_name().context("a program has no name")?;
        artifacts::strip("--strip-debug", program, &opt.join("targets").join(name))?;
        programs.push(program.clone());
    }
    let schema = root.join("docs/report.schema.json");
    if schema.is_file() {
        fs::copy(&schema, opt.join("report.schema.json"))?;
    }
    for library in libraries(&programs)? {
        let inside = tree.join(library.strip_prefix("/").unwrap_or(&library));
        fs::create_dir_all(inside.parent().unwrap_or(&tree))?;
        fs::copy(&library, &inside)?;
    }
    let init = tree.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, std::fs::Permissions::from_mode(0o755))?;
    for job in jobs {
        let path = opt.join("machines").join(job.machine);
        fs::write(&path, script(job))?;
        let modules = opt.join("modules").join(job.machine);
        fs::create_dir_all(&modules)?;
        for module in job.modules {
            fs::copy(module, modules.join(module.file_name().context("a module has no name")?))?;
        }
    }
    for (name, text) in [("passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("group", "root:x:0:\n")] {
        fs::write(tree.join("etc").join(name), text)?;
    }
    archive(&tree, &directory.join("initramfs.cpio"))
}

/// The first program of each machine. Its output goes to the first serial line. The second is the kernel's; the whole
/// log goes there if the kernel is tainted.
///
/// The scheduler's servers, which lend other threads some of the time of `SCHED_FIFO` ones, are off: on Linux 7.2 their
/// timer can be forwarded while it is queued, a warning in `dl_task_timer`.
const INIT: &str = "#!/bin/busybox sh\n\
    /bin/busybox mkdir -p /usr/bin /usr/sbin /sbin\n\
    /bin/busybox --install -s\n\
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp\n\
    mount -t proc proc /proc\n\
    mount -t sysfs sysfs /sys\n\
    mount -t devtmpfs devtmpfs /dev 2>/dev/null\n\
    exec >/dev/ttyS0 2>&1\n\
    mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
    mount -t debugfs debugfs /sys/kernel/debug\n\
    preempt=$(sed 's/.*(\\(.*\\)).*/\\1/' /sys/kernel/debug/sched/preempt)\n\
    export DRAINPROF_TEST_PREEMPTION=${preempt:-unknown}\n\
    for runtime in /sys/kernel/debug/sched/*_server/cpu*/runtime; do [ ! -e $runtime ] || echo 0 >$runtime; done\n\
    umount /sys/kernel/debug\n\
    mount -t tracefs tracefs /sys/kernel/tracing\n\
    mount -t bpf bpf /sys/fs/bpf\n\
    mount -t tmpfs tmpfs /tmp\n\
    mount -t tmpfs tmpfs /run\n\
    ln -sf /proc/self/fd /dev/fd\n\
    ip link set lo up 2>/dev/null || ifconfig lo up\n\
    echo \"@@drainprof kernel $(uname -r) ${preempt:-unknown} $(nproc)\"\n\
    . /opt/machines/$drainprof_machine\n\
    tainted=$(cat /proc/sys/kernel/tainted)\n\
    [ \"$tainted\" = 0 ] || dmesg >/dev/ttyS1\n\
    echo \"@@drainprof tainted $tainted\"\n\
    echo '@@drainprof done'\n\
    poweroff -f\n";

/// What a machine runs.
fn script(job: &Job<'_>) -> String {
    let mut script = String::new();
    for module in job.modules.iter().filter_map(|path| path.file_name()) {
        let path = Path::new("/opt/modules").join(job.machine).join(module);
        let _ = writeln!(script, "insmod {}", path.display());
    }
    for (name, value) in ENVIRONMENT.iter().chain(&job.environment) {
        let _ = writeln!(script, "export {name}='{value}'");
    }
    for run in job.runs {
        let name = &run.binary.name;
        // As a warning, so that the kernel's log says what ran before it says more.
        let _ = writeln!(script, "echo '<4>{OURS}{name}' >/dev/kmsg");
        let _ = writeln!(script, "echo '{MARK} begin {name}'");
        let _ = write!(script, "cd /tmp && /opt/tests/{name} --test-threads=1 --nocapture");
        if !run.tests.is_empty() {
            script.push_str(" --exact");
        }
        for test in &run.tests {
            let _ = write!(script, " '{test}'");
        }
        let _ = writeln!(script, " 2>&1 </dev/null\necho '{MARK} end {name}' $?");
    }
    script
}

/// The test binaries of all machines, each once.
fn binaries<'a>(jobs: &[Job<'a>]) -> Vec<&'a TestBinary> {
    let binaries = jobs.iter().flat_map(|job| job.runs).map(|run| &run.binary);
    let by_name: BTreeMap<_, _> = binaries.map(|binary| (&binary.name, binary)).collect();
    by_name.into_values().collect()
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
    let file = fs::File::create(path)?.into_file();
    let mut cpio = Command::new("sh");
    cpio.current_dir(tree).stdout(file).stderr(Stdio::inherit());
    cpio.args(["-c", "find . | cpio --quiet --create --format=newc --owner=0:0"]);
    work::run("pack the initramfs", "`cargo xtask setup` installs cpio", &mut cpio)?;
    Ok(path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::{INIT, Job, MACHINE, MARK, binaries, script};
    use crate::artifacts::TestBinary;
    use crate::vm::lists::Run;

    fn run(binary: &str, tests: &[&str]) -> Run {
        Run {
            binary: TestBinary { name: binary.to_owned(), ..TestBinary::default() },
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
        }
    }

    /// A machine loads its modules first; its variables win over those of all; single tests are named exactly; a binary is
    /// packed once.
    #[test]
    fn scripts() {
        let (first, second) = ([run("a", &["x::y"]), run("b", &[])], [run("b", &["z"])]);
        let environment = vec![("DRAINPROF_SWEEP_CLOSES", "500")];
        let jobs = [
            Job { machine: "7.2", runs: &first, modules: &["kept/fuse.ko".into()], environment },
            Job { machine: "6.1", runs: &second, modules: &[], environment: Vec::new() },
        ];
        let script = script(&jobs[0]);
        assert!(script.starts_with("insmod /opt/modules/7.2/fuse.ko\n"), "{script}");
        assert!(script.rfind("CLOSES='500'") > script.find("CLOSES='2000'"), "{script}");
        assert!(script.contains("/opt/tests/a --test-threads=1 --nocapture --exact 'x::y' 2>&1"));
        assert!(script.contains("/opt/tests/b --test-threads=1 --nocapture 2>&1"), "{script}");
        let packed: Vec<_> = binaries(&jobs).into_iter().map(|binary| &binary.name).collect();
        assert_eq!(packed, ["a", "b"]);
    }

    /// The script is text that cannot be formatted, so its names are repeated in it.
    #[test]
    fn names_in_the_script() {
        assert!(INIT.contains(&format!(". /opt/machines/${MACHINE}\n")));
        assert_eq!(INIT.matches("@@").count(), INIT.matches(MARK).count());
    }
}
