//! `cargo xtask build-ebpf`: the kernel side, from its sources to the object file that is committed.
//!
//! The object lies in `crates/probe/ebpf/` beside a digest of the sources it was made from, so that
//! users need neither nightly nor bpf-linker, and a stale object is noticed without building one; and beside a
//! table of its programs' sizes, so that a change shows what it costs. Called by `test --fresh-ebpf` and `ci`
//! as well.

mod digest;
mod object;
mod stack;
mod stats;
mod toolchain;
mod verifier;

pub(crate) use self::toolchain::{clippy, install};

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::{artifacts, work};
use stats::Statistics;
use toolchain::{CRATE, TARGET, Toolchain};

/// Arguments of `build-ebpf`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only compare the committed digest with the sources, and the committed table with the object; builds nothing.
    #[arg(long)]
    check: bool,
    /// Only compare what this kernel's verifier says of the committed object with the committed table.
    #[arg(long, conflicts_with = "check")]
    compare: bool,
    /// Install the toolchain first where it is missing.
    #[arg(long)]
    setup: bool,
}

/// Builds, or checks.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = work::root()?;
    if args.setup {
        install(&root)?;
    }
    if args.check {
        return check(&root);
    }
    if args.compare {
        return compare(&root, &artifacts::drainprof_dev(&root)?);
    }
    let mut statistics = compile(&root)?;
    renew_figures(&root, &mut statistics)?;
    print(&statistics);
    Ok(())
}

fn object_path(root: &Path) -> PathBuf {
    root.join("crates/probe/ebpf/drainprof.bpf.o")
}

fn digest_path(root: &Path) -> PathBuf {
    object_path(root).with_extension("digest")
}

fn statistics_path(root: &Path) -> PathBuf {
    object_path(root).with_extension("stats")
}

/// The committed table.
fn statistics(root: &Path) -> Result<Statistics> {
    let path = statistics_path(root);
    let text = fs::read_to_string(&path)?;
    Statistics::parse(&text).with_context(|| format!("read {}", path.display()))
}

/// Fails when the committed object was not made from the sources as they are, or the committed table is not
/// about that object.
pub(crate) fn check(root: &Path) -> Result<()> {
    work::step("build-ebpf: compare the committed digest with the sources");
    let path = digest_path(root);
    let advice = "run `cargo xtask build-ebpf` and commit crates/probe/ebpf/";
    let committed = fs::read_to_string(&path)?;
    let fresh = digest::of_sources(root)?;
    if committed.trim() != fresh {
        bail!(
            "the committed eBPF object is stale: its digest is {}, that of the sources {fresh}; {advice}",
            committed.trim()
        );
    }
    let path = object_path(root);
    let bytes = fs::read(&path)?;
    let kept = statistics(root).context(advice)?;
    let differences = kept.differences(&Statistics::of(object::programs(&bytes)?));
    if !differences.is_empty() {
        bail!(
            "{} is not about the committed eBPF object; {advice}\n  {}",
            statistics_path(root).display(),
            differences.join("\n  ")
        );
    }
    stack_suffices(&bytes)
}

/// Fails when a program takes more stack than older kernels let it have; shows the one that takes most.
fn stack_suffices(object: &[u8]) -> Result<()> {
    let needs = stack::needs(object).context("find how much stack the programs take")?;
    let too_deep: Vec<_> = needs
        .iter()
        .filter(|need| need.bytes > stack::MAX_STACK_BYTES)
        .map(ToString::to_string)
        .collect();
    if !too_deep.is_empty() {
        bail!(
            "Linux 6.1 would refuse programs, which may have {} bytes of stack; let one of the functions keep less at \
             once, or call one after the other\n  {}",
            stack::MAX_STACK_BYTES,
            too_deep.join("\n  ")
        );
    }
    if let Some(need) = needs.first() {
        work::note(format!(
            "the deepest stack, of {} bytes allowed: {}",
            stack::MAX_STACK_BYTES,
            need
        ));
    }
    Ok(())
}

/// Fails when a program takes this kernel's verifier far longer than the committed table says.
pub(crate) fn compare(root: &Path, drainprof: &Path) -> Result<()> {
    let why = if work::is_root() { "" } else { " (through sudo: loading eBPF needs root)" };
    work::step(format!("build-ebpf: ask the kernel's verifier{why}"));
    let measured = verifier::measure(drainprof)?;
    let comparison = statistics(root)?.compare(&measured);
    for line in &comparison.lines {
        work::note(line);
    }
    if !comparison.breaches.is_empty() {
        bail!(
            "much more to verify than before; find out which change made it so, or, if it has to be, run `cargo xtask \
             build-ebpf` as root and commit {}\n  {}",
            statistics_path(root).display(),
            comparison.breaches.join("\n  ")
        );
    }
    Ok(())
}

/// Builds the object, checks it, writes it beside its digest and its table, and prints what is in it.
pub(crate) fn build(root: &Path) -> Result<()> {
    print(&compile(root)?);
    Ok(())
}

fn print(statistics: &Statistics) {
    for line in statistics.to_string().lines().filter(|line| !line.is_empty()) {
        work::note(line);
    }
}

/// Asks this kernel's verifier, where that is possible, and writes the table again.
fn renew_figures(root: &Path, statistics: &mut Statistics) -> Result<()> {
    work::step("build-ebpf: ask the kernel's verifier");
    if !work::is_root() {
        work::note("the verifier's figures were left as they were: loading eBPF needs root");
        return Ok(());
    }
    match artifacts::drainprof_dev(root).and_then(|drainprof| verifier::measure(&drainprof)) {
        Ok(measured) => statistics.set_figures(&measured),
        // The object is built all the same: the daemon may not fit it yet, or a container forbid loading.
        Err(error) => {
            work::note(format!("the verifier's figures were left as they were: {error:#}"));
            return Ok(());
        }
    }
    write_statistics(root, statistics)
}

fn write_statistics(root: &Path, statistics: &Statistics) -> Result<()> {
    let path = statistics_path(root);
    fs::write(&path, statistics.to_string())?;
    Ok(())
}

/// Builds the object, checks it, and writes it beside its digest and its table. The verifier's figures stay.
fn compile(root: &Path) -> Result<Statistics> {
    let toolchain = Toolchain::find()?;
    work::step(format!("build-ebpf: compile {CRATE} for {TARGET} with {}", toolchain.name()));
    let target_dir = artifacts::target_dir(root).join("bpf");
    let mut cargo = toolchain.cargo(root);
    cargo.args(["build", "--release", "--locked", "-p", CRATE, "--target", TARGET, "--target-dir"]);
    cargo.arg(&target_dir);
    work::run("build the kernel side", "mend what the compiler says above", &mut cargo)?;

    let built = target_dir.join(TARGET).join("release").join(CRATE);
    let bytes = fs::read(&built)?;
    let bytes = object::strip(&bytes).with_context(|| format!("strip {}", built.display()))?;
    for path in [Some(root.to_path_buf()), std::env::var_os("HOME").map(PathBuf::from)] {
        if let Some(path) = path.filter(|path| path.parent().is_some())
            && object::contains(&bytes, path.as_os_str().as_encoded_bytes())
        {
            bail!(
                "the object holds {}, a path of this machine; extend `--remap-path-prefix` in \
                 xtask/src/ebpf/toolchain.rs",
                path.display()
            );
        }
    }

    let path = object_path(root);
    let same = fs::read(&path).is_ok_and(|before| before == bytes);
    work::step(format!("build-ebpf: write {}, its digest and its table", path.display()));
    if same {
        work::note("the object is the one that was there already");
    } else {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, &bytes)?;
    }
    let digest = digest::of_sources(root)?;
    let path = digest_path(root);
    fs::write(&path, format!("{digest}\n"))?;
    let mut fresh = Statistics::of(object::programs(&bytes)?);
    match statistics(root) {
        Ok(before) => fresh.keep_figures(&before),
        Err(error) => work::note(format!("a new table, without the verifier's figures: {error:#}")),
    }
    write_statistics(root, &fresh)?;
    work::note(format!("{} bytes", bytes.len()));
    stack_suffices(&bytes)?;
    Ok(fresh)
}
