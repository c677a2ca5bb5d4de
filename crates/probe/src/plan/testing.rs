//! Profiles and images made by hand, for the tests of `plan`.

use std::{os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

use bytemuck::Zeroable as _;
use drainprof_common::spec::ProbeSpec;
use drainprof_process::{DebugSearch, Elf, Image, LoadedObject, MappedObject, Mapping, printable};
use drainprof_profile::{Address, Kind, Level, MatchRule, Probe, Profile, Role, Source};

use super::ObjectResolver;

/// How far from its own addresses objects of an [`image`] are mapped.
pub(crate) const BIAS: u64 = 0x7f00_0000_0000;

pub(crate) fn symbol(name: &str) -> Address {
    Address::Symbol(name.to_owned())
}

pub(crate) fn probe(role: Role, at: Address) -> Probe {
    Probe::bare(role, at)
}

pub(crate) fn profile(rule: MatchRule, probes: Vec<Probe>) -> Arc<Profile> {
    Arc::new(Profile {
        name: "pool".into(),
        kind: Kind::Drain,
        summary: String::new(),
        rule,
        granule_bytes: None,
        granule_pages: None,
        structures: Vec::new(),
        implicit: false,
        on_request: false,
        nested: false,
        versions: Vec::new(),
        not_measurable: Vec::new(),
        probes,
        source: Source::BuiltIn("pool.toml"),
    })
}

pub(crate) fn by_symbols(names: &[&str]) -> MatchRule {
    MatchRule { symbols: names.iter().map(|name| symbol(name)).collect(), ..MatchRule::default() }
}

/// An object as if it were mapped, each executable segment at [`BIAS`].
pub(crate) fn loaded(path: &Path, is_main: bool) -> LoadedObject {
    let shown = printable(path.to_str().unwrap());
    let search = DebugSearch {
        process_root: None,
        object_path: Some(path.to_owned()),
        debug_dirs: Vec::new(),
    };
    let elf = Elf::open(path, &shown, search).map(Arc::new);
    let metadata = std::fs::metadata(path).unwrap();
    let mappings = elf.iter().flat_map(|elf| elf.segments()).map(|segment| {
        let into_page = segment.vaddr & 0xfff;
        Mapping {
            start: BIAS + segment.vaddr - into_page,
            end: (BIAS + segment.vaddr + segment.memory_size).next_multiple_of(0x1000),
            file_offset: segment.file_offset - into_page,
            writable: false,
            executable: segment.executable,
        }
    });
    LoadedObject {
        mapped: MappedObject {
            path: path.to_owned(),
            shown_path: shown,
            deleted: false,
            replaced: false,
            open_path: path.to_owned(),
            inode: (metadata.dev(), metadata.ino()),
            refused: None,
            mappings: mappings.collect(),
        },
        elf,
        is_main,
    }
}

/// A process called `svc` with these objects; the first is its main program.
pub(crate) fn image(paths: &[&Path]) -> Image {
    Image {
        exe_name: "svc".into(),
        exe_path: "/opt/bin/svc".into(),
        objects: paths.iter().enumerate().map(|(at, path)| loaded(path, at == 0)).collect(),
    }
}

/// Every probe at level `objects`; opens, closes and resets at `boundary`.
pub(crate) fn wanted(probe: &Probe, level: Level) -> bool {
    level == Level::Objects || matches!(probe.role, Role::Open | Role::Close | Role::Reset)
}

/// A compiler whose specs differ by role only.
#[expect(clippy::unnecessary_wraps, reason = "it stands in for a compiler that can fail")]
pub(crate) fn compile(
    _: &Profile,
    probe: &Probe,
    _: Level,
    allocator: u32,
    _: &ObjectResolver<'_>,
) -> Result<ProbeSpec, String> {
    Ok(ProbeSpec { role: probe.role as u32, allocator, ..ProbeSpec::zeroed() })
}
