//! Which of a profile's `[versions]` an object is, and so which guarded probes go there.
//!
//! Part of `build`, which asks for every probe and object. Pure: looks at the symbols and the build id of the object.

use drainprof_process::{Elf, LoadedObject, describe, printable};
use drainprof_profile::{Address, Probe, Version};

use super::{
    build::{Builder, Missing},
    matching::{address_text, is_there, list, without_symbols},
};

impl Builder<'_> {
    /// Why nothing can be said of the profile's granules in the object, if the profile knows that.
    pub(super) fn not_measurable(&self, object: &LoadedObject) -> Option<String> {
        let elf = object.elf.as_ref().ok()?;
        let builds = &self.request.profile.not_measurable;
        let found = builds.iter().find(|build| mismatch(&build.guard, elf).is_none())?;
        Some(format!("{} (in {})", found.because, describe(object)))
    }

    /// Whether `probe`, the profile's `table`-th, is for this version of the object; says so where it is not. Of two
    /// probes that several versions allow at one address the first is meant.
    pub(super) fn is_for(&mut self, object: &LoadedObject, table: usize, probe: &Probe) -> bool {
        let Err(why) = self.holds(object, probe) else {
            let earlier = self.request.profile.probes.iter().take(table);
            let rival = earlier.into_iter().find(|other| {
                other.role == probe.role
                    && other.at == probe.at
                    && self.holds(object, other).is_ok()
            });
            if rival.is_some() && !probe.versions.is_empty() {
                let message = format!(
                    "{} is several of the profile's versions at once; what it says first of {} counts",
                    describe(object),
                    address_text(&probe.at)
                );
                self.finding("version", message);
                return false;
            }
            return true;
        };
        let text = format!("{}: {}: {why}", describe(object), address_text(&probe.at));
        self.finding("version", format!("no `{}` probe: {text}", probe.role.name()));
        self.missing.push(Missing { role: probe.role, text });
        false
    }

    /// Whether one of the probe's versions holds in the object; else why none does.
    fn holds(&self, object: &LoadedObject, probe: &Probe) -> Result<(), String> {
        if probe.versions.is_empty() {
            return Ok(());
        }
        let elf = object.elf.as_ref().map_err(ToString::to_string)?;
        let mut reasons = Vec::new();
        for version in &self.request.profile.versions {
            if !probe.versions.contains(&version.name) {
                continue;
            }
            match mismatch(version, elf) {
                None => return Ok(()),
                Some(why) => reasons.push(format!("it is not the version {}: {why}", version.name)),
            }
        }
        Err(reasons.join("; "))
    }
}

/// The first line of the guard that does not hold; `None` where all hold.
fn mismatch(version: &Version, elf: &Elf) -> Option<String> {
    let own = elf.build_id();
    if !version.build_id.is_empty()
        && !own.is_some_and(|id| version.build_id.iter().any(|want| want.eq_ignore_ascii_case(id)))
    {
        return Some(match own {
            Some(id) => format!("its build id is {}", printable(id)),
            None => "it has no build id".to_owned(),
        });
    }
    let having = |addresses: &[Address], wanted: bool| {
        let mut found = Vec::new();
        for address in addresses {
            if is_there(elf, address)? == wanted {
                found.push(address_text(address));
            }
        }
        Ok::<_, String>(found)
    };
    match having(&version.symbols, false) {
        Err(why) => return Some(why),
        Ok(missing) if !missing.is_empty() => {
            let stripped = if without_symbols(elf).is_some() { " (stripped)" } else { "" };
            return Some(format!("missing {}{stripped}", list(&missing)));
        }
        Ok(_) => {}
    }
    match having(&version.no_symbols, true) {
        Err(why) => Some(why),
        Ok(there) if !there.is_empty() => Some(format!("it has {}", list(&there))),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests;
