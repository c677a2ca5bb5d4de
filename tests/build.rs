//! Compiles the C targets into `OUT_DIR/targets`, and puts the profiles beside them, so that one
//! directory holds everything that the tests need at run time (a virtual machine gets a copy of it).
//!
//! Flags beyond the common ones stand in a target's first line: `/* cflags: … */`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

const COMMON: &[&str] = &["-O2", "-g", "-Wall", "-Wextra", "-Werror"];

/// Variants of one source: name, source, further flags.
const VARIANTS: &[(&str, &str, &[&str])] = &[
    ("epoch_demo", "epoch_ring", &["-DDEMO"]),
    ("psweep_static", "psweep", &["-static"]),
    ("ifunc_static", "ifunc", &["-static"]),
    ("psweep_fixed", "psweep", &["-no-pie", "-fno-pic"]),
    ("psweep_plain", "psweep", &["-fomit-frame-pointer", "-fshrink-wrap", "-fcf-protection=full"]),
    ("abandon_plain", "abandon", &["-fomit-frame-pointer", "-fcf-protection=full"]),
    ("nested_plain", "nested", &["-fomit-frame-pointer", "-fcf-protection=full"]),
    ("cost_endbr", "cost", &["-fcf-protection=full"]),
    ("cost_frameless", "cost", &["-fomit-frame-pointer"]),
    ("cost_entry", "cost", &["-fomit-frame-pointer", "-DBY_NUMBER"]),
    ("places_fixed", "places", &["-no-pie", "-fno-pic"]),
    ("places_static", "places", &["-static"]),
    ("paths_fixed", "paths", &["-no-pie", "-fno-pic"]),
    ("paths_static", "paths", &["-static"]),
    ("usdt_fixed", "usdt", &["-no-pie", "-fno-pic"]),
    ("usdt_static", "usdt", &["-static"]),
    ("usdt_plain", "usdt", &["-DNO_SEMAPHORES"]),
    ("usdt_forms_fixed", "usdt_forms", &["-no-pie", "-fno-pic"]),
    ("usdt_granules_fixed", "usdt_granules", &["-no-pie", "-fno-pic"]),
    ("usdt_heap_library", "usdt_heap", &["-DLIBRARY", "-shared", "-fPIC"]),
    ("usdt_heap_shared", "usdt_heap", &["-DSHARED"]),
    // Without debug information: other documented builds of temporal-slab.
    ("temporal_counters", "temporal", &["-DCLASS=0x1a8", "-g0"]),
    ("temporal_labels", "temporal", &["-DCLASS=0x390", "-g0"]),
    ("temporal_cached", "temporal", &["-DCACHED"]),
    ("pg15", "pg16", &["-DVERSION=15"]),
    ("pg17", "pg16", &["-DVERSION=17"]),
    ("pg16_checked", "pg16", &["-DCHECKED"]),
    // Its unwind tables are for debuggers alone: `.debug_frame`.
    ("paths_bare", "paths", &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]),
];

/// Shared objects: one that a target opens, and one that is preloaded.
const PLUGINS: &[&str] =
    &["apr_counts", "isc_counts", "places_plugin", "talloc_counts", "tcmalloc_counts"];

fn main() -> Result<()> {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?).join("targets");
    let profiles = out.join("profiles");
    fs::create_dir_all(&profiles).context("cannot make the directory of the targets")?;
    println!("cargo:rerun-if-changed=targets");
    println!("cargo:rerun-if-changed=profiles");
    println!("cargo:rerun-if-changed=../include");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rustc-env=DRAINPROF_TARGETS_BUILT={}", out.display());

    for entry in fs::read_dir(sources.join("targets"))? {
        let path = entry?.path();
        // A plugin has no `main`; it is built below.
        let plugin = path.file_stem().is_some_and(|stem| PLUGINS.iter().any(|name| stem == *name));
        if path.extension().is_some_and(|extension| extension == "c") && !plugin {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            compile(&path, &out.join(&name), &[])?;
        }
    }
    for (name, source, flags) in VARIANTS {
        let source = sources.join("targets").join(source).with_extension("c");
        compile(&source, &out.join(name), flags)?;
    }
    let psweep = out.join("psweep");
    let stripped = out.join("psweep_stripped");
    run(Command::new("objcopy").arg("--strip-all").arg(&psweep).arg(&stripped))?;
    split_debug("psweep", &out)?;
    for name in ["usdt", "usdt_forms", "usdt_granules"] {
        let stripped = out.join(format!("{name}_stripped"));
        run(Command::new("objcopy").arg("--strip-all").arg(out.join(name)).arg(stripped))?;
    }
    for name in ["places", "places_fixed", "places_static", "paths", "paths_static", "paths_bare"] {
        split_debug(name, &out)?;
        let stripped = out.join(format!("{name}_stripped"));
        run(Command::new("objcopy").arg("--strip-all").arg(out.join(name)).arg(stripped))?;
    }
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let plain =
        ["places_cpp", "paths_cpp", "arenas_cpp", "inlined", "pmr", "malloc_family", "returns"];
    let plain = plain.map(|name| (name, name, None));
    let without = ("classes_without_rtti", "classes", Some("-fno-rtti"));
    for (name, source, flag) in plain.into_iter().chain([("classes", "classes", None), without]) {
        let source = sources.join("targets").join(source).with_extension("cc");
        let mut command = Command::new(&compiler);
        run(command.args(COMMON).args(flag).arg(source).arg("-o").arg(out.join(name)))?;
    }
    let stripped = out.join("classes_stripped");
    run(Command::new("objcopy").arg("--strip-all").arg(out.join("classes")).arg(stripped))?;
    // Optimised, which the tests' own programs are not.
    run(Command::new(env::var("RUSTC")?)
        .args(["--edition", "2024", "-O", "-g", "--crate-name", "rust_paths", "-o"])
        .arg(out.join("rust_paths"))
        .arg(sources.join("targets/rust/rust_paths.rs")))?;
    bumpalo(&sources, &out)?;
    for name in PLUGINS {
        let source = sources.join("targets").join(name).with_extension("c");
        compile(&source, &out.join(name), &["-shared", "-fPIC"])?;
    }
    for (how, option) in [("nodebug", "--strip-debug"), ("stripped", "--strip-all")] {
        let stripped = out.join(format!("temporal_{how}"));
        run(Command::new("objcopy").arg(option).arg(out.join("temporal")).arg(stripped))?;
    }
    run(Command::new("objcopy")
        .arg("--strip-symbol=hooked_note")
        .arg(out.join("hooked"))
        .arg(out.join("hooked_stripped")))?;

    copy_files(&sources.join("profiles"), &profiles)?;
    // Tests look for the lines of marks in them.
    copy_files(&sources.join("targets"), &out.join("sources"))?;
    copy_files(&sources.join("targets/rust"), &out.join("sources"))
}

/// How the arena crate and its target are compiled: as cargo does for `dev` (functions are out of line, but for those
/// that insist), in the other mangling, and as for `release` with `lto`.
const BUMPALO: &[(&str, &[&str])] = &[
    ("rust_bumpalo", &["-Copt-level=0"]),
    ("rust_bumpalo_v0", &["-Copt-level=0", "-Csymbol-mangling-version=v0"]),
    ("rust_bumpalo_lto", &["-Copt-level=3", "-Clto=fat", "-Ccodegen-units=1"]),
];

/// The crate `bumpalo` and the target that uses it, each way by itself: cargo would compile them one way.
fn bumpalo(sources: &Path, out: &Path) -> Result<()> {
    // Cargo has fetched only what this build needs. For the rest of the platform's packages this one may use the
    // network: a machine that has never built anything passes, too.
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(sources.join("Cargo.toml"))
        .other_options(["--locked", "--filter-platform", &env::var("TARGET")?].map(str::to_owned))
        .exec()
        .context("cannot tell where cargo has the source of bumpalo")?;
    let package = metadata.packages.iter().find(|package| package.name == "bumpalo");
    let package = package.context("bumpalo is among the dependencies")?;
    let library =
        package.targets.iter().find(|target| target.is_lib()).context("it is a library")?;
    let rustc = env::var("RUSTC")?;
    for (name, flags) in BUMPALO {
        let rlib = out.join(format!("lib{name}.rlib"));
        run(Command::new(&rustc)
            .args(["--crate-type", "rlib", "--crate-name", "bumpalo", "-g", "--cap-lints", "allow"])
            .args(["--edition", library.edition.as_str()])
            .args(*flags)
            .arg(&library.src_path)
            .arg("-o")
            .arg(&rlib))?;
        run(Command::new(&rustc)
            .args(["--edition", "2024", "-g", "--crate-name", "rust_bumpalo"])
            .args(*flags)
            .arg("--extern")
            .arg(format!("bumpalo={}", rlib.display()))
            .arg("-o")
            .arg(out.join(name))
            .arg(sources.join("targets/rust/rust_bumpalo.rs")))?;
        fs::remove_file(rlib)?;
    }
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if let Some(name) = path.file_name()
            && path.is_file()
        {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

fn compile(source: &Path, output: &Path, more: &[&str]) -> Result<()> {
    let text = fs::read_to_string(source)?;
    let own = text
        .lines()
        .next()
        .and_then(|line| line.trim().strip_prefix("/* cflags: "))
        .and_then(|line| line.strip_suffix(" */"))
        .unwrap_or_default();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    run(Command::new(compiler)
        .args(COMMON)
        .args(["-pthread", "-Wl,--build-id"])
        .args(own.split_whitespace())
        .args(more)
        .arg(source)
        .arg("-o")
        .arg(output))
}

/// `NAME_split`: no symbols of its own, but a debug file beside it, found by its debug link.
fn split_debug(name: &str, out: &Path) -> Result<()> {
    let (whole, split) = (out.join(name), out.join(format!("{name}_split")));
    let debug = format!("{name}_split.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&whole).arg(out.join(&debug)))?;
    run(Command::new("objcopy")
        .current_dir(out)
        .arg("--strip-all")
        .arg(format!("--add-gnu-debuglink={debug}"))
        .arg(whole)
        .arg(split))
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    ensure!(status.success(), "{shown} failed: {status}");
    Ok(())
}
