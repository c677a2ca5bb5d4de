//! `cargo xtask dist`: packages of one build: `.deb`, debug symbols, tarball, OCI image, bill of materials, release notes,
//! check sums.
//!
//! The binary is built once, without paths of this machine in it. All else is made from it and from the sources, with
//! the time of the commit, so the same sources and tools make the same bytes; `--check` makes it twice and compares.

mod crates;
mod deb;
mod image;
mod materials;
mod tree;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::Metadata;
use fs_err as fs;
use sha2::{Digest as _, Sha256};

use crate::{artifacts, packages, work};

/// What makes the packages.
const PACKAGES: [&str; 7] =
    ["binutils", "dpkg-dev", "gzip", "lintian", "lowdown", "mmdebstrap", "xz-utils"];

/// The only architecture.
const ARCHITECTURE: &str = "amd64";

/// Arguments of `dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Package this drainprof, built with symbols, instead of building one.
    #[arg(long, value_name = "FILE")]
    drainprof: Option<PathBuf>,
    /// Debian's revision of the package.
    #[arg(long, default_value_t = 1)]
    revision: u32,
    /// No image, which takes Debian's archive.
    #[arg(long)]
    no_image: bool,
    /// Pack twice and compare the bytes; let lintian read the packages; run the image in a container.
    #[arg(long)]
    check: bool,
    /// Instead of packages, install from the crates that `cargo package` makes.
    #[arg(long)]
    crates: bool,
}

/// What all packages are made from.
struct Release<'a> {
    root: &'a Path,
    metadata: &'a Metadata,
    version: String,
    revision: u32,
    /// Seconds since 1970: the time of all files.
    epoch: String,
    /// What dpkg-deb compresses with.
    compression: &'static str,
    /// The program as it was linked.
    drainprof: PathBuf,
}

impl Release<'_> {
    /// The version of Debian's package.
    fn debian_version(&self) -> String {
        format!("{}-{}", self.version, self.revision)
    }

    /// The name of a file of this release.
    fn name(&self, rest: &str) -> String {
        format!("drainprof-{}{rest}", self.version)
    }
}

/// Builds, packs, and checks.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = work::root()?;
    let directory = artifacts::target_dir(&root).join("dist");
    if args.crates {
        return crates::install(&root, &artifacts::metadata(&root)?, &directory.join("crates"));
    }
    packages::install(&PACKAGES, "to make packages")?;
    for made in pack(&root, args, &directory.join("packages"))? {
        println!("{}", made.display());
    }
    Ok(())
}

/// Debian's package of a binary that is there, in an emptied directory: for a machine that installs it at once, so nothing
/// is compressed.
pub(crate) fn package_of(
    root: &Path,
    drainprof: &Path,
    revision: u32,
    directory: &Path,
) -> Result<PathBuf> {
    packages::install(&PACKAGES, "to make packages")?;
    let metadata = artifacts::metadata(root)?;
    let mut release = release(root, &metadata, Some(drainprof), revision)?;
    release.compression = "none";
    let stage = tree::stage(&release, &work::emptied(directory)?.join("stage/tree"))?;
    deb::package(&release, &stage, directory)
}

/// Makes the packages in `directory`, which is emptied; their paths.
fn pack(root: &Path, args: &Args, directory: &Path) -> Result<Vec<PathBuf>> {
    let metadata = artifacts::metadata(root)?;
    let release = release(root, &metadata, args.drainprof.as_deref(), args.revision)?;
    work::step(format!("dist: pack drainprof {}", release.debian_version()));
    let made = once(&release, args, directory)?;
    if args.check {
        work::step("dist: pack again, and compare");
        let again = directory.with_extension("again");
        compare(&made, &once(&release, args, &again)?)?;
        deb::lint(&made)?;
        if !args.no_image {
            image::check(root, &image::path(&release, directory), &again)?;
        }
    }
    for path in &made {
        let size = path.metadata().with_context(|| format!("read {}", path.display()))?.len();
        work::note(format!("{:>8.1} MiB  {}", size as f64 / 1_048_576.0, path.display()));
    }
    Ok(made)
}

/// What is packed: a binary that is there, or one that is built.
fn release<'a>(
    root: &'a Path,
    metadata: &'a Metadata,
    drainprof: Option<&Path>,
    revision: u32,
) -> Result<Release<'a>> {
    let package =
        metadata.packages.iter().find(|package| package.name.as_str() == "drainprof-daemon");
    Ok(Release {
        root,
        version: package.context("the workspace has no drainprof-daemon")?.version.to_string(),
        metadata,
        revision,
        epoch: epoch(root)?,
        compression: "xz",
        drainprof: match drainprof {
            Some(path) => {
                path.canonicalize().with_context(|| format!("find {}", path.display()))?
            }
            None => build(root)?,
        },
    })
}

/// Makes each package once.
fn once(release: &Release<'_>, args: &Args, directory: &Path) -> Result<Vec<PathBuf>> {
    let stage = tree::stage(release, &work::emptied(directory)?.join("stage/tree"))?;
    let mut made = vec![
        deb::package(release, &stage, directory)?,
        deb::symbols(release, &stage, directory)?,
        tree::archive(release, &stage, directory)?,
        materials::bill(release, &stage, directory)?,
        notes(release, directory)?,
    ];
    if !args.no_image {
        made.push(image::image(release, &made[0], directory)?);
    }
    made.push(sums(&made, directory)?);
    fs::remove_dir_all(directory.join("stage"))?;
    Ok(made)
}

/// The time of the last commit, unless `SOURCE_DATE_EPOCH` names one.
fn epoch(root: &Path) -> Result<String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    git(root, &["log", "-1", "--format=%ct"])
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(args);
    let text = work::read(
        "ask git",
        "set SOURCE_DATE_EPOCH and DRAINPROF_COMMIT outside of a clone",
        &mut git,
    )?;
    Ok(text.trim().to_owned())
}

/// Builds the binary of the packages: profile `dist`, with symbols, and without paths of this machine.
fn build(root: &Path) -> Result<PathBuf> {
    work::step("dist: build drainprof (profile dist, which takes long)");
    let commit = match std::env::var("DRAINPROF_COMMIT") {
        Ok(commit) => commit,
        Err(_) => git(root, &["describe", "--always", "--dirty", "--abbrev=12"])?,
    };
    let home = work::cargo_home().context("cargo has no home directory")?;
    let sysroot = work::read(
        "ask rustc",
        "install Rust",
        Command::new("rustc").args(["--print", "sysroot"]),
    )?;
    let maps = [(root, "/src"), (&home, "/cargo"), (Path::new(sysroot.trim()), "/rust")];
    let flags = maps.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    // The same for what crates have in C and assembler.
    let of_c = maps.map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
    let mut command = work::cargo(root);
    // With a target named, the flags are not those of build scripts, too.
    command.args(["build", "--locked", "-p", "drainprof-daemon", "--bin", "drainprof"]);
    command.args(["--profile", "dist", "--target", "x86_64-unknown-linux-gnu"]);
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")).env("DRAINPROF_COMMIT", commit);
    command.env("CFLAGS_x86_64_unknown_linux_gnu", of_c.join(" "));
    artifacts::executable("drainprof", &mut command)
}

/// What the changelog says of this version.
fn notes(release: &Release<'_>, directory: &Path) -> Result<PathBuf> {
    let changes = fs::read(release.root.join("CHANGELOG.md"))?;
    let changes = String::from_utf8(changes).context("CHANGELOG.md is no text")?;
    let text = section(&changes, &release.version).with_context(|| {
        format!("CHANGELOG.md has no section `## {}`: write it", release.version)
    })?;
    work::write(&directory.join(release.name("-notes.md")), text.as_bytes())
}

/// The section of a version, without its heading.
fn section<'a>(changes: &'a str, version: &str) -> Option<&'a str> {
    let heading = format!("\n## {version}\n");
    let (_, rest) = changes.split_once(&heading)?;
    let text = rest.split("\n## ").next()?.trim();
    (!text.is_empty()).then_some(text)
}

/// The SHA-256 of each file, as `sha256sum --check` reads it.
fn sums(made: &[PathBuf], directory: &Path) -> Result<PathBuf> {
    let mut text = String::new();
    for path in made {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let _ = writeln!(text, "{}  {name}", digest(&fs::read(path)?));
    }
    work::write(&directory.join("SHA256SUMS"), text.as_bytes())
}

fn digest(bytes: &[u8]) -> String {
    work::hex(&Sha256::digest(bytes))
}

/// Refuses files that are not byte for byte the same.
fn compare(made: &[PathBuf], again: &[PathBuf]) -> Result<()> {
    for (one, other) in made.iter().zip(again) {
        if fs::read(one)? != fs::read(other)? {
            bail!("not reproducible: {} and {} differ", one.display(), other.display());
        }
    }
    work::note(format!("{} files are the same, byte for byte", made.len()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::section;

    /// The section of one version, whatever stands around it; none where there is no word.
    #[test]
    fn sections() {
        let changes =
            "# Changes\n\n## 0.2.0\n\n- one\n\nMore:\n\n- two\n\n## 0.1.0\n\n- old\n\n## 0.0.1\n";
        assert_eq!(section(changes, "0.2.0"), Some("- one\n\nMore:\n\n- two"));
        assert_eq!(section(changes, "0.1.0"), Some("- old"));
        assert_eq!(section(changes, "0.0.1"), None);
        assert_eq!(section(changes, "0.2"), None);
    }
}
