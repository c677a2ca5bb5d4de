//! The container image: Debian's C library, then the package; written as an archive in OCI's layout.
//!
//! Both layers are archives that other tools make; what is left is three JSON documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;
use serde_json::{Value, json};

use super::tree::write_gz;
use super::{ARCHITECTURE, Release, digest};
use crate::{artifacts, packages, work};

/// What runs an image.
const RUNTIME: [&str; 4] = ["curl", "podman", "runc", "uidmap"];

/// Debian's release of the base.
const SUITE: &str = "bookworm";

/// What a linked program takes, and names of protocols and time zones; no shell, no package manager.
const BASE: &str = "base-files,libc6,libgcc-s1,netbase,tzdata";

/// Users that drainprof becomes or names.
const USERS: &str = "printf 'root:x:0:0:root:/root:/usr/sbin/nologin\\n\
    nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\\n' > \"$1/etc/passwd\"; \
    printf 'root:x:0:\\nnogroup:x:65534:\\ndrainprof:x:999:\\n' > \"$1/etc/group\"";

/// Where the image lies.
pub(super) fn path(release: &Release<'_>, directory: &Path) -> PathBuf {
    directory.join(release.name("-image-amd64.tar"))
}

/// Makes the image of the package `deb`.
pub(super) fn image(release: &Release<'_>, deb: &Path, directory: &Path) -> Result<PathBuf> {
    let layout = directory.join("stage/image");
    let base = directory.join("stage/base.tar");
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=extract", &format!("--include={BASE}")]);
    mmdebstrap.arg(format!("--customize-hook={USERS}")).arg(SUITE).arg(&base);
    mmdebstrap.env("SOURCE_DATE_EPOCH", &release.epoch);
    work::run("make the image's base", "is Debian's archive reachable?", &mut mmdebstrap)?;
    let mut unpack = Command::new("dpkg-deb");
    let files = unpack.arg("--fsys-tarfile").arg(deb).output().context("run dpkg-deb")?.stdout;
    let layers = [layer(&layout, &fs::read(&base)?)?, layer(&layout, &files)?];
    let config = json!({
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/drainprof"],
            "Cmd": ["daemon"],
            "Env": ["PATH=/usr/bin"],
            "ExposedPorts": { "9464/tcp": {} },
            "Volumes": { "/var/lib/drainprof": {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "drainprof",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
            },
        },
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|(_, id)| id).collect::<Vec<_>>() },
    });
    let config = blob(&layout, "config", config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers.iter().map(|(layer, _)| layer).collect::<Vec<_>>(),
    });
    let mut manifest = blob(&layout, "manifest", manifest.to_string().as_bytes())?;
    let name = format!("drainprof:{}", release.version);
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    work::write(&layout.join("index.json"), index.to_string().as_bytes())?;
    work::write(&layout.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let path = path(release, directory);
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u=rwX,go=rX",
    ]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--file").arg(&path);
    tar.arg("--directory").arg(&layout).args(["blobs", "index.json", "oci-layout"]);
    work::run("pack the image", "install tar", &mut tar)?;
    Ok(path)
}

/// Runs the image as `deploy/kubernetes` does, beside a container with a server that leaks.
pub(super) fn check(root: &Path, image: &Path, directory: &Path) -> Result<()> {
    packages::install(&RUNTIME, "to run the image")?;
    work::step("dist: run the image in a container");
    let server = artifacts::target(&root.join("tests/targets/request_server.c"), directory)?;
    let mut script = work::as_root("sh", &[]);
    script.arg(root.join("deploy/container/check.sh")).args([image, &server]);
    script.arg(root.join("tests/profiles/request-server.toml")).stdout(std::io::stderr());
    work::run("run the image", "see what it says above", &mut script)
}

/// Adds a layer; its descriptor, and the digest of what it unpacks to.
fn layer(layout: &Path, archive: &[u8]) -> Result<(Value, String)> {
    let packed = write_gz(&layout.with_extension("layer"), archive)?;
    let descriptor = blob(layout, "layer", &fs::read(&packed)?)?;
    fs::remove_file(&packed)?;
    Ok((descriptor, format!("sha256:{}", digest(archive))))
}

/// Adds a blob under the name of its digest; its descriptor.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> Result<Value> {
    let compressed = if kind == "layer" { ".v1.tar+gzip" } else { ".v1+json" };
    let sum = digest(bytes);
    work::write(&layout.join("blobs/sha256").join(&sum), bytes)?;
    Ok(json!({
        "mediaType": format!("application/vnd.oci.image.{kind}{compressed}"),
        "digest": format!("sha256:{sum}"),
        "size": bytes.len(),
    }))
}
