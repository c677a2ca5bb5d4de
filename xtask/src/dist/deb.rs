//! Debian's packages: the program, and its debug symbols.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;
use object::Object as _;

use super::{ARCHITECTURE, Release};
use crate::work;

/// The maintainer of the packages.
pub(super) const MAINTAINER: &str =
    "The drainprof contributors <drainprof@users.noreply.github.com>";

const SUMMARY: &str = "shows which memory of unmodified programs few objects keep from being freed";

const DESCRIPTION: &str = " drainprof observes arenas, pools and slabs of running programs with eBPF.\n \
    It reports which of them few long-lived objects pin, so that resident memory\n \
    only grows, which call stacks allocated these objects, and what heaps hold.\n";

/// Scripts of the package, in `deploy/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Check sums of all files that are installed, in order.
const SUMS: &str = "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 md5sum --";

/// The package of the program.
pub(super) fn package(release: &Release<'_>, stage: &Path, directory: &Path) -> Result<PathBuf> {
    let control = stage.join("DEBIAN");
    for script in SCRIPTS {
        let path = work::write(
            &control.join(script),
            &fs::read(release.root.join("deploy/debian").join(script))?,
        )?;
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    let fields = format!(
        "Section: utils\nDepends: {}\nSuggests: bash-completion\nHomepage: {}\n",
        libraries(stage)?,
        env!("CARGO_PKG_REPOSITORY")
    );
    let text = format!("{SUMMARY}\n{DESCRIPTION}");
    finish(release, "drainprof", &fields, &text, stage, directory)
}

/// The package of debug symbols, which debuggers find by the program's build id.
pub(super) fn symbols(release: &Release<'_>, stage: &Path, directory: &Path) -> Result<PathBuf> {
    let bytes = fs::read(&release.drainprof)?;
    let file = object::File::parse(&*bytes).context("parse drainprof")?;
    let id = file
        .build_id()
        .context("read drainprof's build id")?
        .context("drainprof has no build id")?;
    let id = work::hex(id);
    let stage = stage.with_file_name("symbols");
    let path = stage.join(format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::create_dir_all(path.parent().unwrap_or(&stage))?;
    let mut objcopy = Command::new("objcopy");
    objcopy
        .args(["--only-keep-debug", "--compress-debug-sections"])
        .arg(&release.drainprof)
        .arg(&path);
    work::run("take the debug symbols", "install binutils", &mut objcopy)?;
    fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
    // Its changelog and copyright are those of the program.
    let documents = stage.join("usr/share/doc");
    fs::create_dir_all(&documents)?;
    std::os::unix::fs::symlink("drainprof", documents.join("drainprof-dbgsym"))
        .context("link the symbols' documents")?;
    let fields = format!(
        "Section: debug\nDepends: drainprof (= {})\nAuto-Built-Package: debug-symbols\nBuild-Ids: {id}\n",
        release.debian_version()
    );
    let text = "debug symbols for drainprof\n";
    finish(release, "drainprof-dbgsym", &fields, text, &stage, directory)
}

/// Writes the control files and packs.
fn finish(
    release: &Release<'_>,
    name: &str,
    fields: &str,
    text: &str,
    stage: &Path,
    directory: &Path,
) -> Result<PathBuf> {
    let mut md5 = Command::new("sh");
    md5.current_dir(stage).args(["-c", SUMS]);
    let sums = work::read("sum up the files", "install findutils and coreutils", &mut md5)?;
    let mut bytes = 0;
    for (_, file) in sums.lines().filter_map(|line| line.split_once("  ")) {
        bytes += fs::metadata(stage.join(file))?.len();
    }
    let version = release.debian_version();
    let control = format!(
        "Package: {name}\nSource: drainprof\nVersion: {version}\nArchitecture: {ARCHITECTURE}\n\
         Maintainer: {MAINTAINER}\nInstalled-Size: {}\n{fields}Priority: optional\nDescription: {text}",
        bytes.div_ceil(1024)
    );
    work::write(&stage.join("DEBIAN/control"), control.as_bytes())?;
    work::write(&stage.join("DEBIAN/md5sums"), sums.as_bytes())?;
    let path = directory.join(format!("{name}_{version}_{ARCHITECTURE}.deb"));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "--threads-max=1", &format!("-Z{}", release.compression)]);
    dpkg.arg("--build").arg(stage).arg(&path);
    dpkg.env("SOURCE_DATE_EPOCH", &release.epoch).stdout(std::io::stderr());
    work::run("pack a .deb", "install dpkg-dev", &mut dpkg)?;
    Ok(path)
}

/// The packages of the libraries that the program is linked with.
fn libraries(stage: &Path) -> Result<String> {
    let directory = stage.with_file_name("shlibdeps");
    work::write(
        &directory.join("debian/control"),
        b"Source: drainprof\n\nPackage: drainprof\nArchitecture: any\n",
    )?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.current_dir(&directory).args(["-O", "-e"]).arg(stage.join("usr/bin/drainprof"));
    let found = work::read("find the libraries' packages", "install dpkg-dev", &mut command)?;
    fs::remove_dir_all(&directory)?;
    let found = found.trim().strip_prefix("shlibs:Depends=").map(str::to_owned);
    found.context("dpkg-shlibdeps names no packages")
}

/// Fails where lintian finds an error.
pub(super) fn lint(made: &[PathBuf]) -> Result<()> {
    work::step("dist: lintian");
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error", "--tag-display-limit", "0"]);
    lintian.args(made.iter().filter(|path| path.extension().is_some_and(|end| end == "deb")));
    work::run("lintian", "fix what it says above", lintian.stdout(std::io::stderr()))
}
