//! A digest of everything that the eBPF object is made from.
//!
//! Sources and manifests of the kernel side and of the common crate, and the locked versions of the crates
//! that shape the code. Paths are part of it, relative and in order, so moving a file changes it too. The
//! toolchain is not: the same sources from two toolchains are both right.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fs_err as fs;
use sha2::{Digest, Sha256};

use crate::artifacts::Lock;
use crate::work::{self, hex};

const CRATES: [&str; 2] = ["drainprof-common", "drainprof-ebpf"];
const LOCKED: [&str; 3] = ["aya-ebpf", "aya-log-ebpf", "bytemuck"];

/// The digest of the sources as they are now, in hex.
pub(super) fn of_sources(root: &Path) -> Result<String> {
    let mut files: Vec<PathBuf> = Vec::new();
    for name in CRATES {
        files.push(root.join(name).join("Cargo.toml"));
        files.extend(work::files(&root.join(name).join("src"), "rs")?);
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let bytes = fs::read(&file)?;
        let name = file.strip_prefix(root).unwrap_or(&file);
        part(&mut hash, name.as_os_str().as_encoded_bytes());
        part(&mut hash, &bytes);
    }
    let lock = Lock::read(root)?;
    for name in LOCKED {
        part(&mut hash, format!("{name} {}", locked(&lock, name)?).as_bytes());
    }
    Ok(hex(&hash.finalize()))
}

/// Adds a part with its length before it, so that no two lists of parts have one digest.
fn part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// The version that a crate is locked at.
fn locked(lock: &Lock, name: &str) -> Result<String> {
    let versions = lock.package.iter().filter(|package| package.name == name);
    let versions: Vec<&str> = versions.map(|package| package.version.as_str()).collect();
    if versions.is_empty() {
        bail!("Cargo.lock does not hold {name}; the kernel side is built from it");
    }
    Ok(versions.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"aya-ebpf\"\nversion = \"0.2.1\"\n\
                        [[package]]\nname = \"aya-log-ebpf\"\nversion = \"0.2.0\"\n\
                        [[package]]\nname = \"bytemuck\"\nversion = \"1.25.0\"\n";

    fn lay_out(root: &Path) {
        for name in CRATES {
            fs::create_dir_all(root.join(name).join("src/deep")).unwrap();
            fs::write(root.join(name).join("Cargo.toml"), "[package]\n").unwrap();
            fs::write(root.join(name).join("src/lib.rs"), "//! x\n").unwrap();
        }
        fs::write(root.join("Cargo.lock"), LOCK).unwrap();
    }

    /// The digest follows a source, a manifest, a file's name and a locked version, and nothing else.
    #[test]
    fn changes_with_what_the_object_is_made_from() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        lay_out(root);
        let mut seen = vec![of_sources(root).unwrap()];
        fs::write(root.join("drainprof-common/README.md"), "no source").unwrap();
        assert_eq!(of_sources(root).unwrap(), seen[0]);

        fs::write(root.join("drainprof-ebpf/src/deep/a.rs"), "//! y\n").unwrap();
        seen.push(of_sources(root).unwrap());
        fs::rename(
            root.join("drainprof-ebpf/src/deep/a.rs"),
            root.join("drainprof-ebpf/src/deep/b.rs"),
        )
        .unwrap();
        seen.push(of_sources(root).unwrap());
        fs::write(root.join("drainprof-common/Cargo.toml"), "[package]\n\n").unwrap();
        seen.push(of_sources(root).unwrap());
        fs::write(root.join("Cargo.lock"), LOCK.replace("1.25.0", "1.26.0")).unwrap();
        seen.push(of_sources(root).unwrap());
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all);
    }

    /// Without a crate that shapes the object there is no digest to trust.
    #[test]
    fn missing_lock_entry_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        lay_out(dir.path());
        fs::write(dir.path().join("Cargo.lock"), "package = []\n").unwrap();
        assert!(of_sources(dir.path()).unwrap_err().to_string().contains("aya-ebpf"));
    }
}
