use std::{collections::BTreeSet, fs};

use super::*;
use crate::testing::{MAIN, cc, library, open, tool};

fn all(elf: &Elf) -> Vec<SymbolHit> {
    elf.functions(|_| true)
}

fn named<'a>(hits: &'a [SymbolHit], name: &str) -> &'a SymbolHit {
    hits.iter().find(|hit| hit.name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// A call of an exported function is found where it goes through the linkage table, by a stub or without one.
#[test]
fn calls_through_the_linkage_table() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#define SHOWN __attribute__((noinline, noipa, visibility(\"default\")))\n\
                  SHOWN void *inner(void *pool) { return pool; }\n\
                  SHOWN void *outer(void *pool) { return (char *)inner(pool) + 1; }\n";
    for more in [&["-fPIC"][..], &["-fPIC", "-fno-plt"], &["-fPIC", "-fcf-protection=full"]] {
        let args = [&["-O2", "-shared", "-nostdlib"][..], more].concat();
        let elf = open(&cc(dir.path(), "libcalls.so", source, &args), &[]);
        let hits = all(&elf);
        let (inner, outer) = (named(&hits, "inner"), named(&hits, "outer"));
        let calls = elf.calls(outer, &mut elf.own_calls(&hits));
        assert!(calls.contains(&inner.vaddr), "{more:?}: {calls:x?}");
        assert!(!elf.calls(inner, &mut elf.own_calls(&hits)).contains(&outer.vaddr));
        let unknown = elf.calls(outer, &mut OwnCalls::default());
        assert!(!unknown.contains(&inner.vaddr), "{more:?}: it is no direct call");
    }
}

/// Functions are listed with their aliases and without data, and direct calls between them are found.
#[test]
fn functions_and_calls() {
    let dir = tempfile::tempdir().unwrap();
    let elf = open(&library(dir.path(), "libpool.so.1", &[]), &[]);
    let hits = all(&elf);
    let (opens, helper) = (named(&hits, "pool_open"), named(&hits, "helper"));
    assert_eq!(named(&hits, "pool_make").vaddr, opens.vaddr);
    assert!(hits.iter().all(|hit| hit.name != "the_pool"), "data is no function");
    assert!(elf.calls(opens, &mut OwnCalls::default()).contains(&helper.vaddr));
    assert!(
        elf.calls(helper, &mut OwnCalls::default()).is_empty(),
        "calls nothing outside of itself"
    );
    let wanted = elf.functions(|name| name.starts_with(b"pool_"));
    assert_eq!(wanted.len(), 3, "open, make, close: {wanted:?}");
    // A size that is not to be believed is bounded, and code that is not there is no call.
    let beyond = SymbolHit { size: u64::MAX, ..opens.clone() };
    let _ = elf.calls(&beyond, &mut OwnCalls::default());
    assert!(
        elf.calls(&SymbolHit { vaddr: 1 << 60, ..opens.clone() }, &mut OwnCalls::default())
            .is_empty()
    );
}

/// Parameters have their names and types, through typedefs and pointers; what is inlined is known by name.
#[test]
fn prototypes() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!(
        "{}{MAIN}\
         __attribute__((noinline)) int pool_create(pool_t **out, const pool_alias *of, unsigned long size)\n\
         {{ *out = pool_open((int)size + !of); return 0; }}\n\
         static inline __attribute__((always_inline)) int pool_peek(pool_t *p) {{ return p->live; }}\n\
         int use(pool_t *p) {{ return pool_peek(p); }}\n",
        crate::testing::ALLOCATOR
    );
    let path = cc(dir.path(), "typed", &source, &["-g", "-O1", "-nostdlib"]);
    let elf = open(&path, &[]);
    let hits = all(&elf);
    let addresses: BTreeSet<u64> = hits.iter().map(|hit| hit.vaddr).collect();
    let types = elf.types().unwrap();
    let found = types.prototypes(&addresses, Some(&|name| name.starts_with(b"pool_"))).unwrap();
    let create = &found.at[&named(&hits, "pool_create").vaddr];
    let parameters: Vec<_> = create
        .parameters
        .iter()
        .map(|p| (p.name.as_str(), p.kind.name.as_str(), p.kind.base.as_str(), p.kind.pointers))
        .collect();
    assert_eq!(
        parameters,
        [
            ("out", "pool_t", "pool", 2),
            ("of", "pool_alias", "pool", 1),
            ("size", "long unsigned int", "long unsigned int", 0)
        ]
    );
    assert!(create.parameters[0].kind.record && !create.parameters[2].kind.record);
    assert_eq!(create.returns.as_ref().map(|kind| kind.base.as_str()), Some("int"));
    assert_eq!(found.at[&named(&hits, "pool_close").vaddr].returns, None, "void");
    let opens = found.at[&named(&hits, "pool_open").vaddr].returns.clone().unwrap();
    assert_eq!((opens.name.as_str(), opens.pointers), ("pool_t", 1));
    assert!(found.inlined.contains("pool_peek"), "{:?}", found.inlined);
    assert!(types.prototypes(&addresses, None).unwrap().inlined.is_empty(), "not asked for");
}

/// A method has `this`, and a constructor its class.
#[test]
fn methods() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("arena.cpp");
    fs::write(
        &input,
        "struct Arena { long n; Arena(); ~Arena(); void *Allocate(unsigned long size); };\n\
         Arena::Arena() : n(1) {}\nArena::~Arena() { n = 0; }\n\
         void *Arena::Allocate(unsigned long size) { return &n + size; }\n",
    )
    .unwrap();
    let path = dir.path().join("libarena.so");
    let args = ["-x", "c++", "-shared", "-fPIC", "-nostdlib", "-g", "-O1"];
    tool("cc", &[&args[..], &[input.to_str().unwrap(), "-o", path.to_str().unwrap()]].concat());
    let elf = open(&path, &[]);
    let hits = all(&elf);
    let addresses: BTreeSet<u64> = hits.iter().map(|hit| hit.vaddr).collect();
    let found = elf.types().unwrap().prototypes(&addresses, None).unwrap();
    let allocate = &found.at[&named(&hits, "_ZN5Arena8AllocateEm").vaddr];
    let shown: Vec<_> =
        allocate.parameters.iter().map(|p| (p.name.as_str(), p.kind.base.as_str())).collect();
    assert_eq!(shown, [("this", "Arena"), ("size", "long unsigned int")]);
    let constructor = &found.at[&named(&hits, "_ZN5ArenaC2Ev").vaddr];
    assert_eq!(constructor.parameters[0].kind.base, "Arena");
}
