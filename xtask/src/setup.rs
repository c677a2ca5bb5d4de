//! `cargo xtask setup`: installs what the tests, the demo and the benchmarks need, and mounts tracefs.
//!
//! Fast and without root when all is there. The toolchain of the kernel side is `build-ebpf --setup`'s job.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{packages, work};

/// What the tests and the demo run or are built with; only the programs are wanted, no running service.
const PACKAGES: [&str; 29] = [
    "apache2-utils",
    "apt",
    "binutils",
    "busybox-static",
    "chromium",
    "cpio",
    "dwz",
    "dpkg",
    "g++",
    "gcc",
    "jq",
    "libapr1",
    "libc6-dbg",
    "libc6-dev",
    "libjemalloc2",
    "llvm",
    "nginx-light",
    "openssl",
    "perl",
    "postgresql-15",
    "prometheus",
    "python3",
    "qemu-system-x86",
    "sqlite3",
    "subversion",
    "systemtap-sdt-dev",
    "tmux",
    "util-linux",
    "xz-utils",
];

/// What the demo alone needs.
pub(crate) const DEMO_PACKAGES: [&str; 2] = ["gcc", "libc6-dev"];

/// What the benchmarks need beyond [`PACKAGES`]: the peers, and what both are put on.
const BENCH_PACKAGES: [&str; 6] =
    ["bpftrace", "gdb", "heaptrack", "linux-perf", "redis-server", "valgrind"];

/// What the tests on further real programs (`real_*`) need beyond [`PACKAGES`]; alphabetical.
const REAL_PACKAGES: [&str; 17] = [
    "apache2-bin",
    "bind9",
    "bind9-dnsutils",
    "golang-go",
    "haproxy",
    "ldb-tools",
    "libgoogle-perftools4",
    "libmimalloc-dev",
    "libmimalloc2.0",
    "libtalloc2",
    "libtcmalloc-minimal4",
    "libxml2-utils",
    "mariadb-server",
    "php-cli",
    "redis-server",
    "ruby",
    "varnish",
];

/// The package at npm.
const AXE: &str = "axe-core@4.14.1";

const TRACEFS: &str = "/sys/kernel/tracing";

/// Arguments of `setup`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Also what the benchmarks compare with: bpftrace, perf, heaptrack, Valgrind.
    #[arg(long)]
    pub(crate) bench: bool,
    /// Also the programs of the tests that run with `cargo xtask test --real` only.
    #[arg(long)]
    pub(crate) real: bool,
}

/// Installs and mounts what is missing.
pub(crate) fn run(args: &Args) -> Result<()> {
    work::step("setup: packages for the tests and the demo");
    packages::install(&PACKAGES, "for the tests and the demo")?;
    if args.bench {
        work::step("setup: packages for the benchmarks");
        packages::install(&BENCH_PACKAGES, "to compare with")?;
    }
    if args.real {
        work::step("setup: packages for the tests on further real programs");
        packages::install(&REAL_PACKAGES, "to be looked into by the tests")?;
    }
    accessibility()?;
    mount_tracefs()
}

/// Fetches axe-core, which checks that pages are accessible, where npm is there; the test `page` runs it.
fn accessibility() -> Result<()> {
    let directory = work::root()?.join("target/axe");
    if directory.join("package/axe.min.js").exists() || work::find_program("npm").is_none() {
        return Ok(());
    }
    work::step("setup: axe-core for the test of the pages");
    fs_err::create_dir_all(&directory)?;
    let advice = "check the npm registry, or remove npm: the test then makes its own checks only";
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", AXE]).current_dir(&directory);
    let name = work::read("npm pack", advice, &mut pack)?;
    let mut unpack = Command::new("tar");
    unpack.args(["-xzf", name.trim(), "package/axe.min.js"]).current_dir(&directory);
    work::run("unpack axe-core", advice, &mut unpack)
}

/// Mounts tracefs, which lists the tracepoints that drainprof uses, where it is absent.
pub(crate) fn mount_tracefs() -> Result<()> {
    // Only root may look inside, so its presence is read from the list of mounts.
    let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = mounts.lines().any(|line| line.split(' ').nth(1) == Some(TRACEFS));
    if mounted || !Path::new(TRACEFS).exists() {
        return Ok(());
    }
    work::step(format!(
        "setup: mount tracefs at {TRACEFS} (needs root: tracepoints are read there)"
    ));
    let mut mount = work::as_root("mount", &[]);
    mount.args(["-t", "tracefs", "nodev", TRACEFS]);
    work::run(
        "mount tracefs",
        "mount it by hand, or run on a kernel with CONFIG_TRACING",
        &mut mount,
    )
}
