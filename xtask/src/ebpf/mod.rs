//! `cargo xtask build-ebpf`: the kernel side, from its sources to the object file that is committed.
//!
//! The object lies in `drainprof-daemon/ebpf/` beside a digest of the sources it was made from, so that
//! users need neither nightly nor bpf-linker, and a stale object is noticed without building one. Called by
//! `test --fresh-ebpf` and `ci` as well.

mod digest;
mod object;
mod toolchain;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{artifacts, work};
use toolchain::Toolchain;

const CRATE: &str = "drainprof-ebpf";
const TARGET: &str = "bpfel-unknown-none";

/// Arguments of `build-ebpf`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only compare the committed digest with the sources; builds nothing.
    #[arg(long)]
    check: bool,
    /// Install the toolchain first where it is missing.
    #[arg(long)]
    setup: bool,
}

/// Builds, or checks.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = work::root()?;
    if args.setup {
        toolchain::install(&root)?;
    }
    if args.check { check(&root) } else { build(&root) }
}

/// Installs the toolchain of the kernel side where there is none.
pub(crate) fn setup(root: &Path) -> Result<()> {
    toolchain::install(root)
}

fn object_path(root: &Path) -> PathBuf {
    root.join("drainprof-daemon/ebpf/drainprof.bpf.o")
}

fn digest_path(root: &Path) -> PathBuf {
    object_path(root).with_extension("digest")
}

/// Fails when the committed object was not made from the sources as they are.
pub(crate) fn check(root: &Path) -> Result<()> {
    work::step("build-ebpf: compare the committed digest with the sources");
    let path = digest_path(root);
    let advice = "run `cargo xtask build-ebpf` and commit drainprof-daemon/ebpf/";
    let committed = std::fs::read_to_string(&path)
        .with_context(|| format!("read {}; {advice}", path.display()))?;
    let fresh = digest::of_sources(root)?;
    if committed.trim() != fresh {
        bail!(
            "the committed eBPF object is stale: its digest is {}, that of the sources {fresh}; {advice}",
            committed.trim()
        );
    }
    if !object_path(root).is_file() {
        bail!("{} is missing; {advice}", object_path(root).display());
    }
    Ok(())
}

/// Builds the object, checks it, writes it beside its digest, and prints what is in it.
pub(crate) fn build(root: &Path) -> Result<()> {
    let toolchain = Toolchain::find()?;
    work::step(format!("build-ebpf: compile {CRATE} for {TARGET} with {}", toolchain.name()));
    let target_dir = artifacts::target_dir(root).join("bpf");
    let mut cargo = toolchain.cargo(root);
    cargo.args(["build", "--release", "--locked", "-p", CRATE, "--target", TARGET, "--target-dir"]);
    cargo.arg(&target_dir);
    work::run("build the kernel side", "mend what the compiler says above", &mut cargo)?;

    let built = target_dir.join(TARGET).join("release").join(CRATE);
    let bytes = std::fs::read(&built).with_context(|| format!("read {}", built.display()))?;
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
    let same = std::fs::read(&path).is_ok_and(|before| before == bytes);
    work::step(format!("build-ebpf: write {} and its digest", path.display()));
    if same {
        work::note("the object is the one that was there already");
    } else {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("create {}", parent.display()))?;
        }
        std::fs::write(&path, &bytes).with_context(|| format!("write {}", path.display()))?;
    }
    let digest = digest::of_sources(root)?;
    let path = digest_path(root);
    std::fs::write(&path, format!("{digest}\n"))
        .with_context(|| format!("write {}", path.display()))?;
    for (program, instructions) in object::programs(&bytes)? {
        work::note(format!("{program:<32} {instructions:>6} instructions"));
    }
    work::note(format!("{} bytes", bytes.len()));
    Ok(())
}

/// Lints the kernel side for its own target.
pub(crate) fn clippy(root: &Path) -> Result<()> {
    toolchain::clippy(root)
}
