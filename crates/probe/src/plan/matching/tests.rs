use drainprof_process::testing::{ALLOCATOR, MAIN, cc, library, tool};
use drainprof_profile::MatchRule;

use super::*;
use crate::plan::testing::{by_symbols, image, profile, symbol};

/// Symbols match where all of them are in one object, and only there.
#[test]
fn by_symbol() {
    let dir = tempfile::tempdir().unwrap();
    let program = cc(dir.path(), "svc", "int main(void) { return 0; }", &[]);
    let pool = library(dir.path(), "libpool.so.1", &[]);
    let image = image(&[&program, &pool]);

    let found =
        match_objects(&profile(by_symbols(&["pool_open", "helper"]), vec![]), &image).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].mapped.path, pool);

    // Each object has one of them, none has both.
    let error =
        match_objects(&profile(by_symbols(&["pool_open", "main"]), vec![]), &image).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.tried.len(), 2);
    assert!(text.contains("svc: missing pool_open"), "{text}");
    assert!(text.contains("libpool.so.1: missing main"), "{text}");
}

/// Soname, file name, executable and build id match by glob or equality; all lines must hold.
#[test]
fn by_names() {
    let dir = tempfile::tempdir().unwrap();
    let program = cc(dir.path(), "svc", &format!("{ALLOCATOR}{MAIN}"), &["-nostdlib"]);
    let pool = library(dir.path(), "libpool.so.1", &[]);
    let image = image(&[&program, &pool]);
    let id = image.objects[1].elf.as_ref().unwrap().build_id().unwrap().to_owned();
    let find = |rule: MatchRule| {
        match_objects(&profile(rule, vec![]), &image)
            .map(|found| found.iter().map(|object| object.mapped.path.clone()).collect::<Vec<_>>())
    };
    let globs = |text: &str| vec![text.to_owned()];
    let none = MatchRule::default;

    assert_eq!(find(by_symbols(&["pool_open"])).unwrap(), [program.clone(), pool.clone()]);
    let soname = MatchRule { soname: globs("libpool.so.*"), ..by_symbols(&["pool_open"]) };
    assert_eq!(find(soname.clone()).unwrap(), std::slice::from_ref(&pool));
    assert_eq!(
        find(MatchRule { soname: globs("svc"), ..none() }).unwrap(),
        std::slice::from_ref(&program),
        "a file name"
    );
    assert_eq!(
        find(MatchRule { build_id: globs(&id.to_uppercase()), ..none() }).unwrap(),
        std::slice::from_ref(&pool)
    );
    let exe = MatchRule { exe: globs("s?c"), ..none() };
    assert_eq!(find(exe).unwrap(), [program], "an executable alone is the main program");
    assert_eq!(find(MatchRule { exe: globs("/opt/*/svc"), ..soname.clone() }).unwrap(), [pool]);

    let reason = |rule: MatchRule| find(rule).unwrap_err().to_string();
    assert!(reason(MatchRule { exe: globs("nginx"), ..soname }).contains("called svc, not nginx"));
    assert!(
        reason(MatchRule { soname: globs("libc.so.6"), ..none() })
            .contains("libpool.so.1, not libc.so.6")
    );
    assert!(reason(MatchRule { build_id: globs("00ff"), ..none() }).contains(&id));
    assert!(reason(MatchRule { soname: globs("a["), ..none() }).contains("`a[` is malformed"));
    let nested = format!("{}a{}", "{".repeat(251), "}".repeat(251));
    assert!(reason(MatchRule { soname: globs(&nested), ..none() }).contains("is malformed"));
    assert!(reason(none()).contains("names nothing"), "an empty rule does not match everything");
}

/// Patterns, offsets and USDT probes are looked up; what is not there does not match.
#[test]
fn other_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int a(void) __asm__(\"_ZN4pool4openEi\"); int a(void) { return 1; }\n";
    let path = cc(dir.path(), "libd.so", source, &["-shared", "-fPIC", "-nostdlib"]);
    let image = image(&[&path]);
    let offset =
        image.objects[0].elf.as_ref().unwrap().resolve("_ZN4pool4openEi")[0].file_offset.unwrap();
    let matches = |address: Address| {
        let rule = MatchRule { symbols: vec![address], ..MatchRule::default() };
        match_objects(&profile(rule, vec![]), &image).is_ok()
    };
    assert!(matches(Address::Demangled("pool::op*".into())));
    assert!(!matches(Address::Demangled("pool::close".into())));
    assert!(!matches(Address::Demangled("x{".into())));
    assert!(matches(Address::Offset(offset)));
    assert!(!matches(Address::Offset(0)), "the file's header is no code");
    assert!(!matches(Address::Usdt { provider: "a".into(), name: "b".into() }));
    assert!(!matches(symbol("pool::open")));
}

/// A stripped object's mismatch says that it is stripped; an unreadable object says why.
#[test]
fn reasons_of_stripped_and_unreadable_objects() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &[]);
    tool("strip", &[pool.to_str().unwrap()]);
    let text = dir.path().join("jit\u{1b}[2J.so");
    std::fs::write(&text, "not ELF").unwrap();
    let image = image(&[&pool, &text]);
    let error =
        match_objects(&profile(by_symbols(&["helper"]), vec![]), &image).unwrap_err().to_string();
    assert!(error.contains("missing helper (stripped; no debug file at"), "{error}");
    assert!(error.contains("not an ELF file"), "{error}");
    assert!(!error.contains('\u{1b}'), "names are escaped");
}
