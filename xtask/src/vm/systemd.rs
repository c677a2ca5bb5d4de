//! `cargo xtask vm --systemd`: Debian with its own systemd, which installs the package and runs it for a while.
//!
//! It boots Debian 12's kernels and the newest of unstable, which waits with a process's lock held where the older ones
//! do not. mmdebstrap makes one file system with all three, again when the newest changes; each boot writes to a copy
//! that qemu throws away. A second disk is an archive: two revisions of the package, a server to observe, a process
//! that the kernel does not answer for, and `deploy/debian/check.sh`, which prints results as test binaries do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, anyhow};
use fs_err as fs;

use super::kernel::{self, Kernel};
use super::{Args, lists::Run, of_machine, qemu};
use crate::artifacts::{self, TestBinary};
use crate::dist;
use crate::tally::Tally;
use crate::{packages, work};

/// What making the file system and booting it takes.
const PACKAGES: [&str; 4] = ["e2fsprogs", "gcc", "mmdebstrap", "qemu-system-x86"];

/// What the machine has beside Debian's minimum: systemd, Debian 12's kernels, and curl, to read the daemon's page.
const INCLUDED: &str =
    "systemd-sysv,dbus,udev,procps,curl,linux-image-cloud-amd64,linux-image-6.12-cloud-amd64";

/// Installs the kernel whose modules are there; its package requires a newer `linux-base` than Debian 12 has.
const INSTALL: &str = "cp /lib/modules/$0/vmlinuz /boot/vmlinuz-$0 && \
    cp /lib/modules/$0/config /boot/config-$0 && depmod $0 && update-initramfs -c -k $0";

/// Unpacks the second disk and runs what is in it.
const UNIT: &str = "[Unit]\nDescription=check of the package\n\
    [Service]\nType=idle\nExecStart=/bin/sh -c 'mkdir -p /opt/check && tar -C /opt/check -xf /dev/vdb && \
    sh /opt/check/check.sh </dev/null >/dev/ttyS0 2>&1; systemctl poweroff --force --force'\n\
    [Install]\nWantedBy=multi-user.target\n";

/// What the script is called in the sum.
const NAME: &str = "systemd";

/// Boots Debian on each kernel, one after the other: an emulated machine with systemd keeps all processors busy.
pub(super) fn run(root: &Path, args: &Args) -> Result<Tally> {
    packages::install(&PACKAGES, "to boot Debian with systemd")?;
    let kernels = artifacts::target_dir(root).join("vm");
    let directory = kernels.join("systemd");
    let (disk, newest_kernel) = disk(&kernels, &directory)?;
    let payload = payload(root, args, &directory)?;
    let kvm = AtomicBool::new(!args.no_kvm);
    let runs = [Run {
        binary: TestBinary { name: NAME.to_owned(), ..TestBinary::default() },
        tests: Vec::new(),
    }];
    let mut tally = Tally::default();
    for line in kernel::LINES {
        if !args.kernels.is_empty() && !args.kernels.iter().any(|wanted| wanted == line.name) {
            continue;
        }
        let is_newest = line.name == kernel::SID.name;
        let version = if is_newest { newest_kernel.version() } else { line.name };
        let found = |what| newest(&directory.join("boot"), &format!("{what}-{version}."));
        let booted = found("vmlinuz").and_then(|kernel| {
            qemu::boot(&qemu::Boot {
                name: version,
                kernel: &kernel,
                initrd: &found("initrd.img")?,
                disks: &[&disk, &payload],
                log: &directory.join(format!("{version}.log")),
                append: "root=/dev/vda rw systemd.show_status=no",
                preempt: None,
                processors: 2,
                memory: 1536,
                seconds: args.timeout,
                idle: args.idle,
                verbose: args.verbose,
                kvm: &kvm,
                runs: &runs,
            })
        });
        tally.add(of_machine(version, booted));
    }
    Ok(tally)
}

/// The file system, and beside it `boot/` with its kernels, made if it is not there or lacks the newest kernel.
fn disk(kernels: &Path, directory: &Path) -> Result<(PathBuf, Kernel)> {
    let (disk, boot) = (directory.join("debian.ext4"), directory.join("boot"));
    let (tree, made) = (directory.join("tree"), directory.join("debian.ext4.new"));
    let kept = kernel::fetch(kernels, &kernel::SID)?;
    if disk.exists() && boot.join(format!("initrd.img-{}", kept.release)).exists() {
        return Ok((disk, kept));
    }
    // The archive may no longer have the packages of a kept one.
    let kernel = kernel::newest(kernels, &kernel::SID, Some(&kept.release))?;
    work::step(format!(
        "vm: make a file system of Debian 12 with systemd and kernel {} (kept; 400 MB of packages)",
        kernel.release
    ));
    fs::create_dir_all(directory)?;
    for old in [&disk, &boot, &tree] {
        remove_tree(old)?;
    }
    let unpacked = directory.join("newest");
    let modules = kernel::unpack(kernels, &kernel, &unpacked)?;
    let unit = directory.join("check.service");
    fs::write(&unit, UNIT)?;
    let mut mmdebstrap = work::as_root("mmdebstrap", &[]);
    mmdebstrap.args(["--quiet", "--variant=minbase", &format!("--include={INCLUDED}")]);
    for hook in [
        format!("copy-in {} /etc/systemd/system", unit.display()),
        "chroot \"$1\" systemctl enable check.service".to_owned(),
        format!("copy-in {} /usr/lib/modules", modules.display()),
        format!("chroot \"$1\" sh -c '{INSTALL}' {}", kernel.release),
    ] {
        mmdebstrap.arg(format!("--customize-hook={hook}"));
    }
    mmdebstrap.arg("bookworm").arg(&tree);
    work::run("make Debian", "is Debian's archive reachable?", &mut mmdebstrap)?;
    work::remove(&unpacked)?;
    let mut copy = work::as_root("cp", &[]);
    copy.args(["-r", "--no-target-directory"]).arg(tree.join("boot")).arg(&boot);
    work::run("copy the kernels", "is the disk full?", &mut copy)?;
    let mut mke2fs = work::as_root("mke2fs", &[]);
    mke2fs.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&tree).arg(&made).arg("1536M");
    work::run("make the file system", "is the disk full?", &mut mke2fs)?;
    remove_tree(&tree)?;
    fs::rename(&made, &disk)?;
    Ok((disk, kernel))
}

fn remove_tree(tree: &Path) -> Result<()> {
    let mut rm = work::as_root("rm", &[]);
    work::run("remove a file system", "remove it by hand", rm.arg("-rf").arg(tree))
}

/// The last file whose name begins so.
fn newest(directory: &Path, begin: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)?;
    let paths = entries.flatten().map(|entry| entry.path());
    let is_meant = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
    };
    let found = paths.filter(is_meant).max();
    found.ok_or_else(|| anyhow!("{} has no {begin}*", directory.display()))
}

/// The second disk: packages of the revisions 1 and 2, the server, its profile, the script.
fn payload(root: &Path, args: &Args, directory: &Path) -> Result<PathBuf> {
    let content = directory.join("payload");
    work::emptied(&content)?;
    let drainprof = match &args.drainprof {
        Some(path) => path.clone(),
        None => artifacts::drainprof_dev(root)?,
    };
    // The second one is there to upgrade to.
    let upgrades = args.tests.is_empty() || args.tests.iter().any(|step| step == "upgrade");
    for revision in 1..=1 + u32::from(upgrades) {
        let deb = dist::package_of(root, &drainprof, revision, &directory.join("packages"))?;
        fs::copy(deb, content.join(format!("drainprof-{revision}.deb")))?;
    }
    artifacts::target(&root.join("tests/targets/request_server.c"), &content)?;
    artifacts::target(&root.join("tests/targets/silent.c"), &content)?;
    for (from, to) in [
        ("tests/profiles/request-server.toml", "request-server.toml"),
        ("deploy/debian/check.sh", "check.sh"),
    ] {
        fs::copy(root.join(from), content.join(to))?;
    }
    if !args.tests.is_empty() {
        fs::write(content.join("tests"), args.tests.join("\n"))?;
    }
    let payload = directory.join("payload.tar");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&payload).arg("--directory").arg(&content).arg(".");
    work::run("pack the payload", "install tar", &mut tar)?;
    Ok(payload)
}
