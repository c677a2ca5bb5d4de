//! The files that belong to an object and know names: its debug file, what `dwz` moved out of either to a file that
//! several share, packages of split DWARF, and GSYM. Called by `resolve`.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::wire::Part;
use crate::{Elf, elf::hex, guard::ask_file};

/// Where the build id stands in the header of a GSYM file. Its length is the byte at 7.
const GSYM_ID: usize = 28;

/// The files of `elf` beside its own, each after the one that it belongs to.
pub(super) fn of(elf: &Elf) -> Vec<(Part, File)> {
    let around = |path: &Path| {
        [(Part::Shared, elf.shared_with(path)), (Part::Package, Some(elf.package_of(path)))]
    };
    let mut paths = Vec::from(around(elf.open_path()));
    if let Some(debug) = elf.debug_file() {
        paths.push((Part::Debug, Some(debug.to_owned())));
        paths.extend(around(debug));
    }
    let open = |(part, path): (Part, Option<PathBuf>)| {
        elf.open_beside(&path?).ok().map(|file| (part, file))
    };
    let gsym = gsym(elf).map(|file| (Part::Gsym, file));
    paths.into_iter().filter_map(open).chain(gsym).collect()
}

/// The GSYM file that proves itself by the object's build id.
fn gsym(elf: &Elf) -> Option<File> {
    let wanted = elf.build_id()?;
    elf.gsym_candidates().find_map(|path| {
        let file = elf.open_beside(&path).ok()?;
        let mut header = [0; GSYM_ID + 20];
        ask_file(|| file.read_exact_at(&mut header, 0)).ok()?;
        let id = header[GSYM_ID..].get(..usize::from(header[7]))?;
        (header.starts_with(b"MYSG") && hex(id) == wanted).then_some(file)
    })
}
