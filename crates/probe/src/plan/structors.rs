//! The several symbols of one C++ constructor or destructor.
//!
//! A compiler makes up to four functions of each: for a whole object (C1, D1), for the base of a larger one
//! (C2, D2), what both share (C4, D4), and a destructor that deletes too (D0). All demangle to one name, so a
//! pattern finds them all. Often some are the same code; but where one only calls another, a probe on each
//! would see one object twice. `places` asks for what is left when those that call another are taken away.

use drainprof_process::{Elf, SymbolHit, elf::readable};

/// Most bytes of one function that are looked at; a wrapper is short.
const MAX_CODE: usize = 4096;
/// Bytes of a stub that calls a function of another object.
const STUB: usize = 16;

/// `hits` without the wrappers, and each wrapper's name with that of what it calls.
pub(super) fn without_wrappers(
    elf: &Elf,
    hits: &[SymbolHit],
) -> (Vec<SymbolHit>, Vec<(String, String)>) {
    let mut wrappers = Vec::new();
    let kept = hits
        .iter()
        .filter(|hit| {
            let inner = hits
                .iter()
                .filter(|other| other.vaddr != hit.vaddr && is_inner(&hit.name, &other.name))
                .find(|other| calls(elf, hit, other));
            if let Some(inner) = inner {
                wrappers.push((hit.name.clone(), inner.name.clone()));
            }
            inner.is_none()
        })
        .cloned()
        .collect();
    (kept, wrappers)
}

/// Whether both are mangled names of one constructor or destructor, and `outer` may be made of `inner`: a whole
/// one of a base's, a deleting one of either, each of what they share. Never the other way round: destroying
/// a node may well delete its children.
fn is_inner(outer: &str, inner: &str) -> bool {
    if outer.len() != inner.len() || !outer.starts_with("_Z") {
        return false;
    }
    let mut differ = outer.bytes().zip(inner.bytes()).enumerate().filter(|(_, (a, b))| a != b);
    let (Some((at, (digit, other))), None) = (differ.next(), differ.next()) else { return false };
    let of = at.checked_sub(1).and_then(|before| outer.as_bytes().get(before));
    matches!(of, Some(b'C' | b'D'))
        && digit.is_ascii_digit()
        && other.is_ascii_digit()
        && digit < other
        // Functions may be called `poolD0` and `poolD1`, too.
        && readable(outer) == readable(inner)
}

/// Whether the code of `outer` calls or jumps to `inner`: directly, or through the linkage table.
fn calls(elf: &Elf, outer: &SymbolHit, inner: &SymbolHit) -> bool {
    let size = usize::try_from(outer.size).unwrap_or(MAX_CODE).min(MAX_CODE);
    let targets = elf.targets(outer.vaddr, size);
    if targets.direct.contains(&inner.vaddr) {
        return true;
    }
    // Read only where there is something else that it calls: of a file that cannot be read nothing is known.
    let slots = elf.slots(&[inner.name.clone().into_bytes()], None).unwrap_or_default();
    let is_slot = |address: &u64| slots.iter().any(|slot| slot.vaddr == *address);
    !slots.is_empty()
        && (targets.through.iter().any(is_slot)
            || targets
                .direct
                .iter()
                .any(|stub| elf.targets(*stub, STUB).through.first().is_some_and(is_slot)))
}

#[cfg(test)]
mod tests {
    use drainprof_process::{DebugSearch, testing::cc};

    use super::*;

    /// A destructor that deletes (D0) calls the complete one (D1), which may delete children (D0 again); another has it
    /// inlined.
    const REGION: &str = r#"
        #define FUNCTION __attribute__((noinline, noipa, visibility("default")))
        FUNCTION void hidden(void *this) { __asm__ volatile("" : : "r"(this) : "memory"); }
        void complete(void *) __asm__("_ZN4pool6RegionD1Ev");
        void deleting(void *) __asm__("_ZN4pool6RegionD0Ev");
        FUNCTION void complete(void *this) { if (*(void **)this) deleting(*(void **)this); hidden(this); }
        FUNCTION void deleting(void *this) { complete(this); hidden(this); }
        void leaf(void *) __asm__("_ZN4pool4LeafD1Ev");
        void inlined(void *) __asm__("_ZN4pool4LeafD0Ev");
        FUNCTION void leaf(void *this) { hidden(this); }
        FUNCTION void inlined(void *this) { hidden(this); hidden(this); }
    "#;

    /// A wrapper is recognised by a direct call, by one through the linkage table, and by one through a pointer there;
    /// what has the other inlined is no wrapper, and nor is what deletes its children.
    #[test]
    fn wrappers_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for (name, args) in [
            ("direct.so", &["-O2", "-shared", "-fPIC", "-nostdlib", "-Wl,-Bsymbolic"][..]),
            ("table.so", &["-O2", "-shared", "-fPIC", "-nostdlib"]),
            ("endbr.so", &["-O2", "-shared", "-fPIC", "-nostdlib", "-fcf-protection=full"]),
            ("pointer.so", &["-O2", "-shared", "-fPIC", "-nostdlib", "-fno-plt"]),
        ] {
            let path = cc(dir.path(), name, REGION, args);
            let elf = Elf::open(&path, name, DebugSearch::default()).unwrap();
            let kept = |glob: &str| {
                let (kept, wrappers) =
                    without_wrappers(&elf, &elf.resolve_demangled(glob).unwrap());
                let kept: Vec<_> = kept.into_iter().map(|hit| hit.name).collect();
                (kept, wrappers)
            };
            let (mut both, none) = kept("pool::Leaf::~Leaf");
            both.sort_unstable();
            assert_eq!(both, ["_ZN4pool4LeafD0Ev", "_ZN4pool4LeafD1Ev"], "{name}");
            assert_eq!(none, []);
            let (one, wrappers) = kept("pool::Region::~Region");
            assert_eq!(one, ["_ZN4pool6RegionD1Ev"], "{name}");
            let wrapper = ("_ZN4pool6RegionD0Ev".to_owned(), "_ZN4pool6RegionD1Ev".to_owned());
            assert_eq!(wrappers, [wrapper], "{name}");
        }
    }

    /// Only the symbols of one constructor or destructor are made of one another, and only one way round.
    #[test]
    fn variants() {
        assert!(is_inner("_ZN4pool6RegionD0Ev", "_ZN4pool6RegionD1Ev"));
        assert!(is_inner("_ZN4pool6SharedC1Ev", "_ZN4pool6SharedC4Ev"));
        assert!(is_inner("_ZN4pool5ArenaImEC1Em", "_ZN4pool5ArenaImEC2Em"));
        for (outer, inner) in [
            ("_ZN4pool6RegionD1Ev", "_ZN4pool6RegionD0Ev"),
            ("_ZN4pool6RegionD1Ev", "_ZN4pool6RegionD1Ev"),
            ("_ZN4pool6RegionC1Ev", "_ZN4pool6RegionD1Ev"),
            ("_ZN4pool6RegionC1Ei", "_ZN4pool6RegionC2Ev"),
            // Functions, and a class, whose own names end so.
            ("_ZN4pool6RegiD0Ev", "_ZN4pool6RegiD1Ev"),
            ("_ZN5PooD04initEv", "_ZN5PooD14initEv"),
            ("poolD0", "poolD1"),
        ] {
            assert!(!is_inner(outer, inner), "{outer} {inner}");
        }
    }
}
