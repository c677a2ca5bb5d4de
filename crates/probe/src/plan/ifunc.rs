//! Which IFUNCs a profile names, so that they can be followed before its plan is built.
//!
//! Pure: `watch` asks, has [`drainprof_process::follow_ifuncs`] look into the process, and gives `build` the
//! answers.

use drainprof_process::{IfuncKey, LoadedObject, SymbolKind};
use drainprof_profile::{Address, Profile};

/// The IFUNCs that probes of `profile` name in the objects that it matched.
#[must_use]
pub fn ifuncs(profile: &Profile, objects: &[&LoadedObject]) -> Vec<IfuncKey> {
    let mut keys = Vec::new();
    for object in objects {
        // Patterns are looked at twice only where there is a reason to.
        let Some(elf) = object.elf.as_ref().ok().filter(|elf| elf.has_ifuncs()) else { continue };
        for probe in &profile.probes {
            let hits = match &probe.at {
                Address::Symbol(name) => elf.resolve(name),
                // A malformed pattern is reported by `build`.
                Address::Demangled(glob) => elf.resolve_demangled(glob).unwrap_or_default(),
                Address::Offset(_) | Address::Usdt { .. } => Vec::new(),
            };
            for hit in hits.iter().filter(|hit| hit.kind == SymbolKind::Ifunc) {
                let key = IfuncKey { inode: object.mapped.inode, resolver: hit.vaddr };
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
    }
    keys
}
