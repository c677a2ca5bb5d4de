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
    ("psweep_static", "psweep", &["-static"]),
    ("ifunc_static", "ifunc", &["-static"]),
    ("psweep_fixed", "psweep", &["-no-pie", "-fno-pic"]),
    ("psweep_plain", "psweep", &["-fomit-frame-pointer", "-fshrink-wrap", "-fcf-protection=full"]),
    ("cost_endbr", "cost", &["-fcf-protection=full"]),
];

fn main() -> Result<()> {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?).join("targets");
    let profiles = out.join("profiles");
    fs::create_dir_all(&profiles).context("cannot make the directory of the targets")?;
    println!("cargo:rerun-if-changed=targets");
    println!("cargo:rerun-if-changed=profiles");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rustc-env=DRAINPROF_TARGETS_BUILT={}", out.display());

    for entry in fs::read_dir(sources.join("targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
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
    split_debug(&psweep, &out)?;
    run(Command::new("objcopy")
        .arg("--strip-symbol=hooked_note")
        .arg(out.join("hooked"))
        .arg(out.join("hooked_stripped")))?;

    for entry in fs::read_dir(sources.join("profiles"))? {
        let path = entry?.path();
        if let Some(name) = path.file_name() {
            fs::copy(&path, profiles.join(name))?;
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

/// `psweep_split`: no symbols of its own, but a debug file beside it, found by its debug link.
fn split_debug(psweep: &Path, out: &Path) -> Result<()> {
    let split = out.join("psweep_split");
    let debug = "psweep_split.debug";
    run(Command::new("objcopy").arg("--only-keep-debug").arg(psweep).arg(out.join(debug)))?;
    run(Command::new("objcopy")
        .current_dir(out)
        .arg("--strip-all")
        .arg(format!("--add-gnu-debuglink={debug}"))
        .arg(psweep)
        .arg(split))
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    ensure!(status.success(), "{shown} failed: {status}");
    Ok(())
}
