//! The files of a package, as they lie on the user's machine, and the tarball of them.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use fs_err as fs;

use super::{Release, materials};
use crate::{artifacts, work};

/// Where documents lie.
pub(super) const DOCS: &str = "usr/share/doc/drainprof";

/// Files that are installed as they are.
const FILES: [(&str, &str); 9] = [
    ("deploy/systemd/drainprof.service", "usr/lib/systemd/system/drainprof.service"),
    ("deploy/systemd/drainprof.sysusers.conf", "usr/lib/sysusers.d/drainprof.conf"),
    ("deploy/systemd/drainprof.tmpfiles.conf", "usr/lib/tmpfiles.d/drainprof.conf"),
    ("include/drainprof_usdt.h", "usr/include/drainprof_usdt.h"),
    ("deploy/debian/copyright", "usr/share/doc/drainprof/copyright"),
    ("README.md", "usr/share/doc/drainprof/README.md"),
    ("deploy/grafana/drainprof.json", "usr/share/doc/drainprof/examples/grafana.json"),
    ("deploy/kubernetes/daemonset.yaml", "usr/share/doc/drainprof/examples/daemonset.yaml"),
    (
        "deploy/prometheus/drainprof.rules.yml",
        "usr/share/doc/drainprof/examples/prometheus.rules.yml",
    ),
];

/// Shells, and where their completions lie.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/drainprof"),
    ("zsh", "usr/share/zsh/vendor-completions/_drainprof"),
    ("fish", "usr/share/fish/vendor_completions.d/drainprof.fish"),
];

/// Manual pages that are made of pages of the documentation.
const PAGES: [(&str, &str, &[&str]); 2] = [
    ("drainprof.toml", "configuration of drainprof's daemon", &["configuration.md", "triggers.md"]),
    ("drainprof-profile", "profiles of allocators", &["profiles.md", "expressions.md"]),
];

/// Lays out all files below `stage`.
pub(super) fn stage(release: &Release<'_>, stage: &Path) -> Result<PathBuf> {
    let binary = stage.join("usr/bin/drainprof");
    fs::create_dir_all(stage.join("usr/bin"))?;
    artifacts::strip("--strip-all", &release.drainprof, &binary)?;
    for (from, to) in FILES {
        work::write(&stage.join(to), &fs::read(release.root.join(from))?)?;
    }
    for (from, to) in [("docs", "docs"), ("profiles", "examples/profiles")] {
        for extension in ["md", "toml"] {
            for path in work::files(&release.root.join(from), extension)? {
                let inside = path.strip_prefix(release.root.join(from)).unwrap_or(&path);
                work::write(&stage.join(DOCS).join(to).join(inside), &fs::read(&path)?)?;
            }
        }
    }
    for (shell, path) in SHELLS {
        work::write(&stage.join(path), &output(&binary, &["completions", shell])?)?;
    }
    work::write(
        &stage.join(DOCS).join("examples/drainprof.toml"),
        &output(&binary, &["config", "default"])?,
    )?;
    write_gz(
        &stage.join(DOCS).join("changelog.gz"),
        &fs::read(release.root.join("CHANGELOG.md"))?,
    )?;
    write_gz(&stage.join(DOCS).join("changelog.Debian.gz"), debian_changelog(release)?.as_bytes())?;
    write_gz(&stage.join(DOCS).join("THIRD-PARTY.gz"), materials::licences(release)?.as_bytes())?;
    manual(release, &binary, stage)?;
    set_modes(stage, &binary)?;
    Ok(stage.to_owned())
}

/// What the program itself says.
fn output(binary: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let text = work::read("ask drainprof", "does it run here?", Command::new(binary).args(args))?;
    Ok(text.into_bytes())
}

/// One entry: the changes themselves are in the other changelog.
fn debian_changelog(release: &Release<'_>) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date", &format!("@{}", release.epoch)]);
    let date = work::read("write a date", "install coreutils", &mut date)?;
    Ok(format!(
        "drainprof ({}) stable; urgency=medium\n\n  * Version {}: see changelog.gz.\n\n -- {}  {date}",
        release.debian_version(),
        release.version,
        super::deb::MAINTAINER
    ))
}

/// Pages from the help texts (section 1), and from the documentation (section 5).
fn manual(release: &Release<'_>, binary: &Path, stage: &Path) -> Result<()> {
    let pages = stage.join("pages");
    output(binary, &["man", "--dir", &pages.to_string_lossy()])?;
    let manual = stage.join("usr/share/man");
    for path in work::files(&pages, "1")? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        write_gz(&manual.join(format!("man1/{name}.gz")), &fs::read(&path)?)?;
    }
    fs::remove_dir_all(&pages)?;
    for (name, what, sources) in PAGES {
        let mut text = format!("# NAME\n\n{name} - {what}\n\n");
        for source in sources {
            text.push_str(&String::from_utf8_lossy(&fs::read(
                release.root.join("docs").join(source),
            )?));
        }
        write_gz(
            &manual.join(format!("man5/{name}.5.gz")),
            to_manual(release, stage, name, &text)?.as_bytes(),
        )?;
    }
    Ok(())
}

/// A page of Markdown as a manual page.
fn to_manual(release: &Release<'_>, stage: &Path, name: &str, text: &str) -> Result<String> {
    let page = work::write(&stage.join("page.md"), text)?;
    let mut lowdown = Command::new("lowdown");
    lowdown.args(["-s", "-T", "man", "--nroff-nolinks", "-m", "section: 5"]);
    lowdown.args(["-m", &format!("title: {name}"), "-m", "date: "]);
    lowdown.args(["-m", &format!("source: drainprof {}", release.version)]).arg(&page);
    let made = work::read("make a manual page", "install lowdown", &mut lowdown)?;
    fs::remove_file(&page)?;
    Ok(made)
}

/// Compressed without name and time.
pub(super) fn write_gz(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    let mut gz = GzBuilder::new().write(Vec::new(), Compression::best());
    gz.write_all(bytes).context("compress")?;
    work::write(path, &gz.finish().context("compress")?)
}

/// Files for all to read, directories for all to enter, one program.
fn set_modes(directory: &Path, program: &Path) -> Result<()> {
    let set = |path: &Path, mode| fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    set(directory, 0o755)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            set_modes(&path, program)?;
        } else {
            set(&path, if path == program { 0o755 } else { 0o644 })?;
        }
    }
    Ok(())
}

/// The same files as an archive that is unpacked at `/`.
pub(super) fn archive(release: &Release<'_>, stage: &Path, directory: &Path) -> Result<PathBuf> {
    let path = directory.join(release.name("-linux-x86_64.tar.xz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--xz"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).args(["--exclude=./DEBIAN", "--transform"]);
    tar.arg(format!("s,^\\.,{},", release.name("-linux-x86_64"))).arg("--file").arg(&path);
    tar.arg("--directory").arg(stage).arg(".").env("XZ_OPT", "-T1");
    work::run("pack the tarball", "install tar and xz-utils", &mut tar)?;
    Ok(path)
}
