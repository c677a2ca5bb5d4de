use std::{os::unix::fs::MetadataExt as _, path::Path};

use super::*;
use crate::{
    mapped_objects,
    testing::{Waiting, cc},
};

fn line(text: &str) -> Option<Line<'_>> {
    parse_line(text.as_bytes()).filter(Line::is_file)
}

/// The numbers of a line mean what the kernel means by them.
#[test]
fn parses_numbers() {
    let parsed = line(
        "7f0000001000-7f0000003000 r-xp 0001c000 fd:12 1234567                    /usr/lib/x.so",
    )
    .unwrap();
    assert_eq!(
        parsed.mapping,
        Mapping {
            start: 0x7f00_0000_1000,
            end: 0x7f00_0000_3000,
            file_offset: 0x1c000,
            writable: false,
            executable: true
        }
    );
    assert_eq!(parsed.device, nix::sys::stat::makedev(0xfd, 0x12));
    assert_eq!(parsed.inode, 1_234_567);
    assert_eq!(parsed.name, b"/usr/lib/x.so");
}

/// Names keep their spaces; the kernel's one escape is undone.
#[test]
fn parses_names() {
    let name = |text: &str| {
        OsString::from_vec(unescape(
            line(&format!("1000-2000 r-xp 0 08:01 5 {text}")).unwrap().name,
        ))
    };
    assert_eq!(name("/a b  c "), "/a b  c ");
    assert_eq!(name("/a\\012b"), "/a\nb");
    assert_eq!(name("/a\\b (deleted)"), "/a\\b (deleted)");
    assert!(parse_line(b"1000-2000 r-xp 0 08:01 5 /\xff\xfe").is_some(), "not UTF-8");
}

/// What is no file is passed over, and so is damage; nothing panics.
#[test]
fn skips_what_is_no_file() {
    for text in [
        "",
        "x",
        "1000-2000 r-xp 00000000 00:00 0 ",
        "1000-2000 r-xp 00000000 00:00 0",
        "7ffd0000-7ffd1000 r-xp 00000000 00:00 0                          [vdso]",
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]",
        "1000-2000 r-xp 0 08:01 5 anon_inode:[x]",
        "2000-1000 r-xp 0 08:01 5 /x",
        "1000 r-xp 0 08:01 5 /x",
        "+1000-2000 r-xp 0 08:01 5 /x",
        "1000-2000 rx 0 08:01 5 /x",
        "1000-2000 r-xp 0 0801 5 /x",
        "1000-2000 r-xp zz 08:01 5 /x",
        "1000-fffffffffffffffff r-xp 0 08:01 5 /x",
    ] {
        assert!(line(text).is_none(), "{text}");
    }
}

/// Only files with an executable mapping are kept, each once, with all their mappings.
#[test]
fn groups_by_file() {
    let text = "1000-2000 r--p 0 08:01 5 /a\n2000-3000 r-xp 1000 08:01 5 /a\n\
                3000-4000 r--p 0 08:01 6 /data\n5000-6000 rw-p 2000 08:01 5 /a\ngarbage\n";
    let files = group(text.as_bytes()).unwrap().files;
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].mappings.len(), 3);
    assert!(files[0].mappings[2].writable);
}

/// A text without end is given up, not collected.
#[test]
fn is_bounded() {
    let endless = BufReader::new(io::repeat(b'\n'));
    let error = group(endless).unwrap_err().to_string();
    assert!(error.contains("more than 1000000 mappings"), "{error}");
    let one_line = BufReader::new(io::repeat(b'a').take(64 << 20));
    assert!(group(one_line).unwrap().files.is_empty());
}

/// Our own executable is found, and can be opened through the path that is given for it.
#[test]
fn finds_the_own_executable() {
    let objects = mapped_objects(std::process::id()).unwrap();
    let exe = std::fs::metadata("/proc/self/exe").unwrap();
    let own = objects.iter().find(|object| object.inode == (exe.dev(), exe.ino())).unwrap();
    assert!(!own.deleted && !own.replaced);
    assert_eq!(own.path, std::fs::read_link("/proc/self/exe").unwrap());
    assert_eq!(std::fs::metadata(&own.open_path).unwrap().ino(), exe.ino());
    assert!(objects.iter().all(|object| !object.shown_path.contains("vdso")));
}

const ECHO: &str = "#include <unistd.h>\nint main(void) { char b[64]; long n; \
                    while ((n = read(0, b, 64)) > 0) write(1, b, n); return 0; }";

/// A program that was deleted, or replaced by another file, is found through what the process still
/// has mapped; names with spaces, line breaks and a lying suffix are found by path.
#[test]
fn deleted_replaced_and_oddly_named() {
    let dir = tempfile::tempdir().unwrap();
    let built = cc(dir.path(), "echo", ECHO, &["-O1"]);
    // Not so without CAP_CHECKPOINT_RESTORE: then only the paths can be checked.
    let may_open_map_files = std::fs::read_dir("/proc/self/map_files").is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| std::fs::metadata(entry.path()).is_ok()))
    });

    let start = |name: &str| {
        let path = dir.path().join(name);
        std::fs::copy(&built, &path).unwrap();
        (Waiting::start(&path), path)
    };
    let object = |child: &Waiting, inode: u64| {
        mapped_objects(child.pid())
            .unwrap()
            .into_iter()
            .find(|object| object.inode.1 == inode)
            .unwrap()
    };
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();

    for name in ["with space", "line\nbreak", "back\\012slash", "really (deleted)"] {
        let (child, path) = start(name);
        let found = object(&child, inode(&path));
        assert!(!found.deleted && !found.replaced, "{name:?}: {found:?}");
        if name != "back\\012slash" {
            assert_eq!(found.path, path);
        }
        assert!(!found.shown_path.contains('\n'));
        if may_open_map_files || name != "back\\012slash" {
            assert_eq!(inode(&found.open_path), inode(&path), "{name:?}");
        }
    }

    let (child, path) = start("deleted");
    let old = inode(&path);
    std::fs::remove_file(&path).unwrap();
    let found = object(&child, old);
    assert!(found.deleted && !found.replaced, "{found:?}");
    assert_eq!(found.path, path);
    if may_open_map_files {
        assert_eq!(inode(&found.open_path), old, "it can still be opened");
    }

    let (child, path) = start("updated");
    let old = inode(&path);
    std::fs::copy(&built, dir.path().join("new")).unwrap();
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    let found = object(&child, old);
    assert!(found.replaced, "{found:?}");
    if may_open_map_files {
        assert_eq!(inode(&found.open_path), old, "the old file, not the new one");
    }
}

/// The number changes with the set of files that code is executed from, and with nothing else.
#[test]
fn executed_files_as_a_number() {
    let number = |text: &str| executed(text.as_bytes()).unwrap();
    let cat = "1000-2000 r-xp 0 08:01 5 /bin/cat\n";
    let libc = "3000-4000 r-xp 0 08:01 6 /lib/libc.so\n";
    let both = number(&format!("{cat}{libc}"));
    for same in [
        format!("{libc}{cat}"),
        format!(
            "{cat}2000-3000 rw-p 1000 08:01 5 /bin/cat\n{libc}4000-5000 r-xp 0 08:01 6 /lib/libc.so\n"
        ),
        format!("{cat}{libc}8000-9000 r--p 0 08:01 9 /usr/share/data\n"),
        format!("{cat}{libc}8000-9000 rwxp 0 00:00 0 \n9000-a000 r-xp 0 00:00 0 [vdso]\n"),
        format!("{cat}{libc}8000-9000 r-xp 0 00:01 7 anon_inode:[x]\nx\n\n"),
    ] {
        assert_eq!(number(&same), both, "{same}");
    }
    for other in [
        cat.to_owned(),
        format!("{cat}{libc}8000-9000 r-xp 0 08:01 9 /lib/libm.so\n"),
        format!("{cat}{}", libc.replace(" 6 ", " 7 ")),
        format!("{cat}{}", libc.replace("08:01", "08:02")),
        format!("{cat}{}", libc.replace("r-xp", "r--p")),
    ] {
        assert_ne!(number(&other), both, "{other}");
    }
    let cat = Waiting::start(Path::new("/bin/cat"));
    assert_eq!(executed_files(cat.pid()).unwrap(), executed_files(cat.pid()).unwrap());
}

/// Generated code, the vDSO and the kernel's page for probes are distinguished; data and files are none of
/// these.
#[test]
fn memory_without_a_file() {
    use NamelessKind::{Generated, Uprobes, Vdso};
    let maps = "55e0-55f0 r-xp 00001000 08:01 99 /usr/bin/x\n\
                7000-8000 rwxp 00000000 00:00 0 \n\
                8000-9000 rw-p 00000000 00:00 0 [heap]\n\
                9000-a000 r-xp 00000000 00:00 0 [vdso]\n\
                a000-b000 r-xp 00000000 00:00 0 [anon: JIT code]\n\
                b000-c000 --xp 00000000 00:00 0 [uprobes]\n\
                d000-c000 r-xp 00000000 00:00 0 \n\
                ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n\
                nonsense\n-\nx-y r-xp 0 0 0\n";
    let found = group(maps.as_bytes()).unwrap().nameless;
    let found: Vec<_> = found.iter().map(|(mapping, kind)| (mapping.start, *kind)).collect();
    assert_eq!(
        found,
        [(0x7000, Generated), (0x9000, Vdso), (0xa000, Generated), (0xb000, Uprobes)]
    );
}

/// Mappings with their memory; a name cannot pass for a line of figures, nor figures without a mapping for anything.
#[test]
fn memory_of_mappings() {
    let text = "Rss: 7 kB\n\
        1000-3000 rw-p 00000000 00:00 0                          [heap]\nSize: 8 kB\nRss:                   8 kB\nSwap:  4 kB\n\
        5000-6000 r--s 00000000 08:01 12    /tmp/Rss: 5 kB\nRss: 4 kB\nRss: lots\n\
        200000-400000 rw-p 00000000 00:11 9    /anon_hugepage (deleted)\nRss: 0 kB\nShared_Hugetlb: 0 kB\n\
        Private_Hugetlb: 2048 kB\n";
    let all = memory_of(text.as_bytes()).unwrap();
    let figures: Vec<_> = all
        .iter()
        .map(|one| {
            (
                one.mapping.start,
                one.name.as_str(),
                one.shared,
                one.inode,
                one.rss_bytes,
                one.swap_bytes,
                one.hugetlb_bytes >> 20,
            )
        })
        .collect();
    assert_eq!(
        figures,
        [
            (0x1000, "[heap]", false, 0, 8192, 4096, 0),
            (0x5000, "/tmp/Rss: 5 kB", true, 12, 4096, 0, 0),
            (0x0020_0000, "/anon_hugepage (deleted)", false, 9, 0, 0, 2),
        ]
    );
}
