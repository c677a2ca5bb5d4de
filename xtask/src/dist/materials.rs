//! What the binary is made of: a bill of materials (`CycloneDX` 1.5), and the licences of the crates in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Package, PackageId};
use fs_err as fs;
use serde_json::{Value, json};

use super::{Release, digest};
use crate::artifacts::Lock;
use crate::work;

/// The crates that are linked into the binary, the workspace's own included, by name and version.
fn linked<'a>(release: &Release<'a>) -> Result<Vec<&'a Package>> {
    let metadata = release.metadata;
    let resolve = metadata.resolve.as_ref().context("cargo resolved nothing")?;
    let nodes: BTreeMap<&PackageId, _> =
        resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let is_root = |package: &&Package| package.name.as_str() == "drainprof-daemon";
    let root = metadata.packages.iter().find(is_root).context("no drainprof-daemon")?;
    let (mut found, mut todo) = (BTreeSet::new(), vec![&root.id]);
    while let Some(id) = todo.pop() {
        if !found.insert(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("cargo did not resolve {id}"))?;
        let is_linked = |dependency: &&cargo_metadata::NodeDep| {
            dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        };
        todo.extend(node.deps.iter().filter(is_linked).map(|dependency| &dependency.pkg));
    }
    let mut packages: Vec<_> = metadata.packages.iter().filter(|p| found.contains(&p.id)).collect();
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(packages)
}

/// The bill of materials.
pub(super) fn bill(release: &Release<'_>, stage: &Path, directory: &Path) -> Result<PathBuf> {
    let lock = Lock::read(release.root)?;
    let checksum = |package: &Package| {
        let version = package.version.to_string();
        let mut locked = lock.package.iter();
        let own = locked.find(|one| one.name == *package.name.as_str() && one.version == version);
        own.and_then(|locked| locked.checksum.as_deref())
    };
    let component = |package: &&Package| {
        let (name, version) = (package.name.as_str(), package.version.to_string());
        let url = format!("pkg:cargo/{name}@{version}");
        let mut component = json!({
            "type": "library", "name": name, "version": version, "purl": url, "bom-ref": url,
        });
        if let Some(licence) = &package.license {
            // The old way to write OR is not an expression.
            component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
        }
        if let Some(sum) = checksum(package) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let components: Vec<Value> = linked(release)?.iter().map(component).collect();
    let binary = fs::read(stage.join("usr/bin/drainprof"))?;
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application", "name": "drainprof", "version": release.version,
            "bom-ref": format!("drainprof@{}", release.version),
            "hashes": [{ "alg": "SHA-256", "content": digest(&binary) }],
        } },
        "components": components,
    });
    let text = serde_json::to_string_pretty(&bill).context("write the bill of materials")?;
    work::write(&directory.join(release.name(".cdx.json")), text.as_bytes())
}

/// The licence texts of all crates, each text once, with those that it is of.
pub(super) fn licences(release: &Release<'_>) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut summary =
        String::from("drainprof is linked with these crates. Their licence texts follow.\n\n");
    for package in linked(release)?.iter().filter(|package| package.source.is_some()) {
        let name = format!("{} {}", package.name, package.version);
        let _ = writeln!(summary, "{name}: {}", package.license.as_deref().unwrap_or("see below"));
        let directory = package.manifest_path.parent().context("a manifest lies nowhere")?;
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            let is_text = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
            if path.is_file() && is_text.iter().any(|begin| file.starts_with(begin)) {
                files.push(path);
            }
        }
        for path in files {
            let text = String::from_utf8_lossy(&fs::read(&path)?).replace('\r', "");
            texts.entry(text.trim().to_owned()).or_default().push(name.clone());
        }
    }
    // By the crates, so that a new text moves no other.
    let mut texts: Vec<_> = texts.into_iter().map(|(text, names)| (names, text)).collect();
    texts.sort();
    for (names, text) in texts {
        let _ = write!(summary, "\n{}\n{}\n\n{text}\n", "-".repeat(80), names.join(", "));
    }
    Ok(summary)
}
