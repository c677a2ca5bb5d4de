//! Which profiles there are, and which of two of the same name.

use std::{error::Error, fs};

use super::*;
use crate::{Kind, Level, Role, default_level, levels};

fn profile_text(name: &str, summary: &str) -> String {
    format!(
        "schema = 1\nname = \"{name}\"\nkind = \"bulk\"\nsummary = \"{summary}\"\n\
         [match]\nsymbols = \"s\"\n[[probe]]\nrole = \"close\"\nat = \"b\"\ngranule = \"arg0\"\n"
    )
}

/// The table of built-in profiles and the directory `profiles/` hold the same files, and each file is
/// named after its profile.
#[test]
fn table_and_directory_agree() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let mut files: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let table: Vec<&str> = BUILT_IN.iter().map(|row| row.0).collect();
    assert_eq!(table, files);
    let library = Library::built_in().unwrap();
    for (file, _) in BUILT_IN {
        let profile = library.get(file.strip_suffix(".toml").unwrap()).unwrap();
        assert_eq!(profile.source, Source::BuiltIn(file));
        assert!(!profile.summary.is_empty(), "{file} has no summary");
    }
    assert_eq!(library.iter().count(), BUILT_IN.len());
}

/// The built-in profiles look as deep as they are meant to, by default.
#[test]
fn built_in_levels() {
    let library = Library::built_in().unwrap();
    for (name, kind, default) in [
        ("apr", Kind::Bulk, Level::Objects),
        ("bind", Kind::Drain, Level::Boundary),
        ("epoch-demo", Kind::Drain, Level::Boundary),
        ("haproxy", Kind::Bulk, Level::Boundary),
        ("haproxy-pools", Kind::Slab, Level::Objects),
        ("mariadb", Kind::Bulk, Level::Objects),
        ("nginx", Kind::Bulk, Level::Objects),
        ("postgresql", Kind::Bulk, Level::Objects),
        ("varnish", Kind::Bulk, Level::Boundary),
        ("varnish-workspace", Kind::Bulk, Level::Objects),
    ] {
        let profile = library.get(name).unwrap();
        assert_eq!((profile.kind, default_level(profile)), (kind, default), "{name}");
        // Those without objects have but the two.
        let without_objects = ["haproxy", "varnish"].contains(&name);
        let offered = if without_objects { &Level::ALL[..2] } else { &Level::ALL };
        assert_eq!(levels(profile), offered, "{name}");
        assert!(profile.probes.iter().any(|probe| probe.role == Role::Close), "{name}");
    }
}

/// Those of language runtimes and allocator libraries follow objects where that is worth its cost.
#[test]
fn levels_of_runtimes_and_libraries() {
    let library = Library::built_in().unwrap();
    for (name, kind, default) in [
        ("cpython", Kind::Bulk, Level::Objects),
        ("libxml2", Kind::Bulk, Level::Boundary),
        ("mimalloc", Kind::Bulk, Level::Objects),
        ("php", Kind::Bulk, Level::Boundary),
        ("tcmalloc", Kind::Slab, Level::Boundary),
    ] {
        let profile = library.get(name).unwrap();
        assert_eq!((profile.kind, default_level(profile)), (kind, default), "{name}");
        // None can go deeper than it does of itself, but for call stacks where there are objects.
        let deepest = if default == Level::Objects { Level::Stacks } else { Level::Boundary };
        assert_eq!(levels(profile).last(), Some(&deepest), "{name}");
    }
}

/// Directories override the built-in profiles, later directories earlier ones, and files all of them;
/// directories that do not exist and files of other kinds are passed over.
#[test]
fn later_ones_override_earlier_ones() {
    let root = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> =
        ["usr", "missing", "etc"].iter().map(|name| root.path().join(name)).collect();
    fs::create_dir(&dirs[0]).unwrap();
    fs::create_dir(&dirs[2]).unwrap();
    fs::write(dirs[0].join("a.toml"), profile_text("nginx", "usr")).unwrap();
    fs::write(dirs[0].join("b.toml"), profile_text("own", "usr")).unwrap();
    fs::write(dirs[0].join("README"), "not a profile").unwrap();
    fs::create_dir(dirs[0].join("dir.toml")).unwrap();
    fs::write(dirs[2].join("z.toml"), profile_text("own", "etc")).unwrap();
    let file = root.path().join("mine");
    fs::write(&file, profile_text("postgresql", "mine")).unwrap();

    let library = Library::load(std::slice::from_ref(&file), &dirs).unwrap();
    let summary = |name: &str| library.get(name).unwrap().summary.clone();
    assert_eq!(summary("nginx"), "usr");
    assert_eq!(summary("own"), "etc");
    assert_eq!(summary("postgresql"), "mine");
    assert_eq!(library.get("postgresql").unwrap().source, Source::File(file));
    assert!(library.get("epoch-demo").is_some() && library.get("nothing").is_none());
    let names: Vec<_> = library.iter().map(|profile| profile.name.as_str()).collect();
    let mut expected: Vec<_> =
        BUILT_IN.iter().filter_map(|row| row.0.strip_suffix(".toml")).collect();
    expected.push("own");
    expected.sort_unstable();
    assert_eq!(names, expected);
}

/// Whatever is wrong with a file, the error says which file it is.
#[test]
fn errors_name_the_file() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = root.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let load = |path: &Path| Library::load(&[path.to_owned()], &[]).unwrap_err();

    let bad = write("bad.toml", b"schema = 1\nname = 3\n");
    assert!(load(&bad).to_string().starts_with(&format!("{}:2:8: invalid type", bad.display())));
    let binary = write("binary.toml", b"schema = 1\nname = \"\xff\"\n");
    assert!(load(&binary).to_string().starts_with(&format!("{}:2:9: ", binary.display())));
    let endless = load(Path::new("/dev/zero"));
    assert!(
        endless.to_string().starts_with("/dev/zero:1:1: the file has 262145 bytes"),
        "{endless}"
    );
    let missing = root.path().join("missing.toml");
    let error = load(&missing);
    assert!(error.to_string().contains("missing.toml"), "{error}");
    assert!(error.source().is_some(), "why it cannot be read is kept");

    let dir = root.path().join("dir");
    fs::create_dir(&dir).unwrap();
    for name in ["one.toml", "two.toml"] {
        fs::write(dir.join(name), profile_text("same", "")).unwrap();
    }
    let error = Library::load(&[], &[dir]).unwrap_err().to_string();
    assert!(error.contains("one.toml") && error.contains("two.toml"), "{error}");
}

/// What is found in a directory says where probes go: not if anybody could have put it there, or written it.
#[test]
fn open_to_all() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profiles");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("x.toml");
    fs::write(&file, profile_text("x", "own")).unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let load = || Library::load(&[], std::slice::from_ref(&dir));
    let refused = |mode: &str| {
        let Err(LibraryError::Read { source, .. }) = load() else { return false };
        source.to_string().contains(mode)
    };
    assert!(load().is_ok());
    mode(&file, 0o666);
    assert!(refused("mode 0666"));
    // Named by the caller, it is taken.
    assert!(Library::load(std::slice::from_ref(&file), &[]).is_ok());
    mode(&file, 0o644);
    mode(&dir, 0o1777);
    assert!(refused("mode 1777"));
}
