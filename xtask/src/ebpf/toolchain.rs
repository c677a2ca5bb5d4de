//! Compilers that can build the kernel side: Debian's, which brings a `core` for eBPF, or rustup's nightly.
//!
//! Both need bpf-linker. Whichever is there is taken, Debian's first because it is pinned; where neither is,
//! the error says what is missing of each and how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::{artifacts, packages, work};

/// What is built, and for what.
pub(super) const CRATE: &str = "drainprof-ebpf";
pub(super) const TARGET: &str = "bpfel-unknown-none";

const DEBIAN_PACKAGES: [&str; 5] =
    ["cargo-web", "libpolly-22-dev", "libstd-rust-web-dev-bpf", "llvm-22-dev", "rustc-web"];
/// What building bpf-linker needs besides LLVM.
const BUILD_PACKAGES: [&str; 4] = ["gcc", "g++", "libc6-dev", "zlib1g-dev"];
const CLIPPY_PACKAGE: &str = "rust-web-clippy";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_CLIPPY: &str = "/usr/bin/cargo-clippy";
const DEBIAN_LLVM: &str = "/usr/lib/llvm-22";
const LINKER: &str = "bpf-linker";
const LINKER_VERSION: &str = "bpf-linker@0.13.0";

/// Crates that use unstable features on this target: inline assembly and atomic intrinsics.
const UNSTABLE: &str = "aya_ebpf,drainprof_ebpf";

/// A way to compile for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Toolchain {
    /// `/usr/bin/rustc` of `rustc-web`, with the prebuilt `core` of `libstd-rust-web-dev-bpf`.
    Debian,
    /// rustup's nightly, which compiles `core` from `rust-src`.
    Nightly,
}

impl Toolchain {
    /// The first that is complete.
    pub(super) fn find() -> Result<Self> {
        let mut lacks = Vec::new();
        for toolchain in [Self::Debian, Self::Nightly] {
            match toolchain.lack() {
                None => return Ok(toolchain),
                Some(lack) => lacks.push(format!("{}: {lack}", toolchain.name())),
            }
        }
        bail!(
            "no toolchain for the kernel side; on Debian run `cargo xtask build-ebpf --setup`\n  {}",
            lacks.join("\n  ")
        )
    }

    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Debian => "Debian's Rust",
            Self::Nightly => "rustup's nightly",
        }
    }

    /// What it lacks and how to get it; nothing where it is complete.
    fn lack(self) -> Option<String> {
        let linker = || {
            let how = match self {
                Self::Debian => "`cargo xtask build-ebpf --setup`",
                Self::Nightly => "`cargo install --locked bpf-linker`",
            };
            work::find_program(LINKER)
                .is_none()
                .then(|| format!("{LINKER} is neither on PATH nor in cargo's bin directory; {how}"))
        };
        match self {
            Self::Debian => debian_core().is_none().then(debian_hint).or_else(linker),
            Self::Nightly => nightly_sources()
                .is_none()
                .then(|| {
                    "`rustup toolchain install nightly --component rust-src` has not been run"
                        .to_owned()
                })
                .or_else(linker),
        }
    }

    /// A cargo of this toolchain, its flags set.
    pub(super) fn cargo(self, root: &Path) -> Command {
        let mut cargo = match self {
            Self::Debian => Command::new(DEBIAN_CARGO),
            Self::Nightly => {
                let mut cargo = Command::new("rustup");
                cargo.args(["run", "nightly", "cargo", "-Z", "build-std=core"]);
                cargo
            }
        };
        self.prepare(&mut cargo, root);
        cargo
    }

    /// The clippy of this toolchain, likewise.
    fn clippy(self, root: &Path) -> Command {
        match self {
            // Not `cargo clippy`: cargo would find rustup's clippy first, which fits another compiler.
            Self::Debian => {
                let mut clippy = Command::new(DEBIAN_CLIPPY);
                self.prepare(&mut clippy, root);
                clippy.env("CARGO", DEBIAN_CARGO).arg("clippy");
                clippy
            }
            Self::Nightly => {
                let mut clippy = self.cargo(root);
                clippy.arg("clippy");
                clippy
            }
        }
    }

    /// Sets directory, flags and profile of a command.
    fn prepare(self, cargo: &mut Command, root: &Path) {
        work::scrub(cargo);
        // Inside `cargo xtask` these name the toolchain that built the xtask.
        for key in ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
            cargo.env_remove(key);
        }
        if self == Self::Debian {
            cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", UNSTABLE);
        }
        cargo.current_dir(root).env("CARGO_ENCODED_RUSTFLAGS", flags(self, root).join("\x1f"));
        let linker = work::find_program(LINKER).and_then(|path| path.parent().map(PathBuf::from));
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Ok(path) = std::env::join_paths(std::env::split_paths(&path).chain(linker)) {
            cargo.env("PATH", path);
        }
        for (key, value) in [
            ("OPT_LEVEL", "3"),
            ("PANIC", "abort"),
            ("OVERFLOW_CHECKS", "false"),
            ("DEBUG_ASSERTIONS", "false"),
            ("CODEGEN_UNITS", "1"),
            ("LTO", "true"),
            // The flags ask for full debug information, from which BTF is made.
            ("DEBUG", "2"),
            ("STRIP", "none"),
        ] {
            cargo.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
        }
    }
}

/// Compiler flags; paths of this machine are replaced by names that are the same everywhere.
fn flags(toolchain: Toolchain, root: &Path) -> Vec<String> {
    // The default, v1 of the instruction set, has no atomics that return the old value. Those are in
    // Linux since 5.12, which is older than any that is tested.
    let mut flags: Vec<String> = [
        "--cfg=bpf_target_arch=\"x86_64\"",
        "-Clink-arg=--btf",
        "-Ctarget-cpu=v3",
        "-Cdebuginfo=2",
    ]
    .map(String::from)
    .into();
    let home = std::env::var_os("HOME").filter(|home| home.len() > 1);
    let mut remaps = vec![(root.to_path_buf(), "/drainprof")];
    remaps.extend(home.map(|home| (PathBuf::from(home), "/home")));
    if let Some(home) = work::cargo_home() {
        // Below here the registry's name comes first, which differs where a mirror is used.
        let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten();
        remaps.extend(registries.flatten().map(|registry| (registry.path(), "/crates")));
        remaps.push((home, "/cargo"));
    }
    if toolchain == Toolchain::Nightly
        && let Some(sources) = nightly_sources()
    {
        remaps.push((sources, "/rust-src"));
    }
    // The last one that fits wins, so what lies inside of another comes after it.
    remaps.sort_by_key(|(from, _)| from.as_os_str().len());
    let remap = |(from, to): (PathBuf, _)| format!("--remap-path-prefix={}={to}", from.display());
    flags.extend(remaps.into_iter().map(remap));
    flags
}

/// The directory of Debian's prebuilt `core` for eBPF.
fn debian_core() -> Option<PathBuf> {
    if !Path::new(DEBIAN_CARGO).is_file() {
        return None;
    }
    let mut rustc = Command::new(DEBIAN_RUSTC);
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    let printed = work::read("ask rustc for its libraries", "", &mut rustc).ok()?;
    let directory = PathBuf::from(printed.trim());
    let mut names = fs::read_dir(&directory).ok()?.flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with("libcore-")).then_some(directory)
}

/// The library sources of rustup's nightly.
fn nightly_sources() -> Option<PathBuf> {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", "nightly", "rustc", "--print", "sysroot"]).env_remove("RUSTUP_TOOLCHAIN");
    let printed = work::read("ask nightly for its place", "", &mut rustc).ok()?;
    let library = Path::new(printed.trim()).join("lib/rustlib/src/rust/library");
    library.join("core").is_dir().then(|| library.parent().map(PathBuf::from))?
}

fn debian_hint() -> String {
    format!("install the packages {}", DEBIAN_PACKAGES.join(" "))
}

/// Installs Debian's toolchain and bpf-linker where no toolchain is complete.
pub(crate) fn install(root: &Path) -> Result<()> {
    work::step("build-ebpf: toolchain of the kernel side");
    if let Ok(toolchain) = Toolchain::find() {
        work::note(format!("{} is there", toolchain.name()));
        return Ok(());
    }
    let wanted: Vec<&str> = DEBIAN_PACKAGES.into_iter().chain(BUILD_PACKAGES).collect();
    packages::install(&wanted, "to compile for the kernel").context(
        "Debian 12 has them in its security archive; elsewhere use rustup: `rustup toolchain install \
         nightly --component rust-src` and `cargo install --locked bpf-linker`",
    )?;
    if work::find_program(LINKER).is_none() {
        work::step(format!("build-ebpf: cargo install {LINKER_VERSION} (about a minute)"));
        let mut cargo = work::cargo(root);
        cargo.args(["install", "--locked", LINKER_VERSION]);
        cargo.args(["--no-default-features", "--features", "llvm-22"]);
        cargo.arg("--target-dir").arg(artifacts::target_dir(root).join("bpf-linker"));
        cargo.env("LLVM_PREFIX", DEBIAN_LLVM).env("LLVM_SYS_221_PREFIX", DEBIAN_LLVM);
        work::run(
            "install bpf-linker",
            "it needs LLVM 22 with its headers (llvm-22-dev)",
            &mut cargo,
        )?;
    }
    Toolchain::find().map(|_| ())
}

/// Lints the kernel side for its own target, with the clippy that belongs to the toolchain.
pub(crate) fn clippy(root: &Path) -> Result<()> {
    let toolchain = Toolchain::find()?;
    if toolchain == Toolchain::Debian {
        packages::install(&[CLIPPY_PACKAGE], "to lint the kernel side")?;
    }
    let mut clippy = toolchain.clippy(root);
    clippy.args(["--release", "--locked", "-p", CRATE, "--target", TARGET, "--target-dir"]);
    clippy.arg(artifacts::target_dir(root).join("bpf")).args(["--", "-D", "warnings"]);
    work::run("clippy of the kernel side", "fix what it says above", &mut clippy)
}
