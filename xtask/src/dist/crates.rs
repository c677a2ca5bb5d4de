//! `cargo xtask dist --crates`: installs drainprof from its crates, as `cargo package` makes them, and nothing else.
//!
//! No registry has them, so a patch names the unpacked directories. A file that lies outside of its crate is missing
//! there, and the build fails.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::Metadata;

use crate::{artifacts, work};

/// Packs the crates, unpacks them below `directory`, installs the binary from there, and asks it for its profiles.
pub(super) fn install(root: &Path, metadata: &Metadata, directory: &Path) -> Result<()> {
    work::emptied(directory)?;
    // What may be published is what the binary is made of, and the kernel side, whose object is in a crate already.
    let members = metadata.workspace_packages();
    let crates: Vec<_> = members
        .iter()
        .filter(|package| package.publish.is_none() && package.name.as_str() != "drainprof-ebpf")
        .collect();
    let mut package = work::cargo(root);
    package.args(["package", "--locked", "--no-verify", "--allow-dirty", "--quiet"]);
    for member in &crates {
        package.args(["-p", member.name.as_str()]);
    }
    work::step("dist: pack the crates");
    work::run("pack the crates", "fix what cargo says above", &mut package)?;
    let mut patch = String::from("[patch.crates-io]\n");
    for member in &crates {
        let name = format!("{}-{}", member.name, member.version);
        let packed = artifacts::target_dir(root).join(format!("package/{name}.crate"));
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&packed).arg("--directory").arg(directory);
        work::run("unpack a crate", "install tar", &mut tar)?;
        let _ = writeln!(
            patch,
            "{} = {{ path = \"{}\" }}",
            member.name,
            directory.join(&name).display()
        );
    }
    work::write(&directory.join(".cargo/config.toml"), patch.as_bytes())?;
    work::step("dist: cargo install, from the unpacked crates");
    let version = &crates.first().context("no crate may be published")?.version;
    let mut install = work::cargo(directory);
    install.args(["install", "--debug", "--path", &format!("drainprof-daemon-{version}")]);
    install.arg("--root").arg(directory.join("installed"));
    install.arg("--target-dir").arg(artifacts::target_dir(root).join("dist/crates-target"));
    work::run("install from the crates", "a file may lie outside of its crate", &mut install)?;
    let mut drainprof = Command::new(directory.join("installed/bin/drainprof"));
    let listed =
        work::read("list profiles", "does it run here?", drainprof.args(["profile", "list"]))?;
    ensure!(listed.lines().count() > 20, "the installed drainprof lists few profiles:\n{listed}");
    Ok(())
}
