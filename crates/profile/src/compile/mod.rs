//! From a checked probe to the spec that the kernel side runs.
//!
//! `fold` puts in what is known of the binary (addresses of globals, offsets of fields) and computes what
//! is constant; `emit` writes the byte code; this module decides which values a role needs, in which
//! phase, and the spec's flags. It reads no file and no process: a [`Resolver`] answers for the binary.
//! Called by `plan` for every probe that it places, and by `parse` once with an answer for everything, so
//! that what can never fit is refused with its place in the file.

mod emit;
mod error;
mod fold;
mod simple;

use bytemuck::Zeroable;
use drainprof_common::spec::{Kind, ProbeSpec, Role, flags};

pub use self::error::CompileError;
use self::{emit::Emitter, error::Refusal, fold::fold, simple::SimplePhase};
use super::{
    keys::Key,
    model::{Expr, Level, Phase, Probe, Profile},
    resolver::Resolver,
};

/// Whether a level has a use for a probe.
#[must_use]
pub fn wanted(probe: &Probe, level: Level) -> bool {
    match level {
        Level::Close => matches!(probe.role, Role::Close | Role::Reset),
        Level::Boundary => !matches!(probe.role, Role::Alloc | Role::Free | Role::Realloc),
        Level::Objects | Level::Stacks => true,
    }
}

/// The levels at which a profile can look, cheapest first; never empty.
#[must_use]
pub fn levels(profile: &Profile) -> Vec<Level> {
    let mut levels = Vec::new();
    let boundary = match profile.kind {
        // Without the live count of every close there would be closes without a verdict.
        Kind::Drain => closes_have_live(profile),
        // Implicit granules are known by their objects alone.
        Kind::Bulk | Kind::Slab => !profile.implicit,
    };
    if boundary {
        if has(profile, Role::Close) {
            levels.push(Level::Close);
        }
        levels.push(Level::Boundary);
    }
    if has(profile, Role::Alloc) {
        levels.push(Level::Objects);
        levels.push(Level::Stacks);
    }
    if levels.is_empty() {
        // The parser refuses such profiles; opens and closes can be counted even so.
        levels.push(Level::Boundary);
    }
    levels
}

/// The levels at which something is judged: a close of kind `bulk` or `slab` says nothing by itself.
pub fn judging_levels(profile: &Profile) -> impl Iterator<Item = Level> {
    let kind = profile.kind;
    levels(profile).into_iter().filter(move |level| *level != Level::Close || kind == Kind::Drain)
}

/// The level at which a profile looks by default.
#[must_use]
pub fn default_level(profile: &Profile) -> Level {
    let exact_at_boundary = profile.kind == Kind::Drain && closes_have_live(profile);
    if has(profile, Role::Alloc) && !exact_at_boundary { Level::Objects } else { Level::Boundary }
}

fn has(profile: &Profile, role: Role) -> bool {
    profile.probes.iter().any(|probe| probe.role == role)
}

/// Whether every close and reset supplies the live count.
pub(super) fn closes_have_live(profile: &Profile) -> bool {
    let is_close = |probe: &&Probe| matches!(probe.role, Role::Close | Role::Reset);
    has(profile, Role::Close)
        && profile.probes.iter().filter(is_close).all(|probe| probe.has(Key::Live))
}

/// Compiles one probe for a level.
///
/// `allocator` is the number that events and map keys carry; `resolver` answers for the binary.
pub fn compile(
    profile: &Profile,
    probe: &Probe,
    level: Level,
    allocator: u32,
    resolver: &dyn Resolver,
) -> Result<ProbeSpec, CompileError> {
    let at_return = probe.phase == Phase::Return;
    // The live count in memory is the measure of `boundary`; elsewhere it would only cost a read.
    let needed = |key: Key| !level.has_objects() || key != Key::Live;
    let computed = || {
        let keys = Key::values().filter(|key| key.is_used_by(probe.role) && needed(*key));
        keys.filter_map(|key| Some((key, key.value()?, probe.computed_by(key)?)))
    };
    let mut flags = flags_of(profile, level);
    if at_return {
        flags |= flags::AT_RETURN;
    }
    for (key, ..) in computed() {
        flags |= key.flag();
    }

    // Reading the return address is a tenth of what an open at entry costs. Who opened a granule says something
    // about its lifetime; of a kind whose measure is who pins, it is left out where every nanosecond counts.
    let wants_place = level.has_objects() || profile.kind != Kind::Drain || at_return;
    let opens =
        level != Level::Close && matches!(probe.role, Role::Open | Role::Reset | Role::Move);
    if (opens && wants_place) || probe.expressions.values().any(Expr::names_caller) {
        flags |= flags::HAS_CALLER;
    }
    if probe.unshared {
        flags |= flags::UNSHARED;
    }
    if level == Level::Stacks {
        if matches!(probe.role, Role::Alloc | Role::Realloc) {
            flags |= flags::STACKS;
        }
        if at_return {
            // The kernel puts another return address on the stack, over which walks from inside would stumble.
            flags |= flags::HAS_CALLER;
        }
    }

    let mut emitter = Emitter::default();
    let mut live_start = 0;
    let mut phase = |wanted: &dyn Fn(Key) -> bool, guard: bool| {
        let blame = |key| move |refusal: Refusal| CompileError::of(probe, key, refusal);
        let mut simple = SimplePhase::default();
        if guard && let Some(when) = probe.expression(Key::When) {
            let when = fold(when, resolver).map_err(blame(Some(Key::When)))?;
            emitter.guard(&when).map_err(blame(Some(Key::When)))?;
            simple.guard(&when);
        }
        for (key, index, expr) in computed().filter(|(key, ..)| wanted(*key)) {
            if key == Key::Live {
                live_start = u64::from(emitter.len());
            }
            let expr = fold(expr, resolver).map_err(blame(Some(key)))?;
            emitter.store(&expr, index).map_err(blame(Some(key)))?;
            simple.store(&expr, index);
        }
        emitter.end().map_err(blame(None))?;
        Ok((emitter.len(), simple))
    };
    let mut spec = ProbeSpec::zeroed();
    let mut at_entry = SimplePhase::default();
    if takes_at_entry(probe, flags) {
        flags |= flags::TAKE_AT_ENTRY;
        let identifies = |key| matches!(key, Key::Instance | Key::Object);
        (spec.entry_len, at_entry) = phase(&identifies, false)?;
    }
    let (len, last) = phase(&|_| true, true)?;
    if at_return {
        spec.return_start = spec.entry_len;
        spec.return_len = len - spec.entry_len;
    } else {
        spec.entry_len = len;
    }
    simple::put(&mut spec, at_entry, last, at_return);
    spec.role = probe.role as u32;
    spec.kind = profile.kind as u32;
    spec.flags = flags;
    spec.allocator = allocator;
    spec.live_start = live_start;
    spec.granule_bytes = profile.granule_bytes.unwrap_or(0);
    spec.code = emitter.code();
    spec.consts = emitter.consts();
    Ok(spec)
}

/// Whether objects are followed one by one, by their ids.
#[must_use]
pub fn follows_objects(profile: &Profile, level: Level) -> bool {
    let probes = || profile.probes.iter();
    let frees = || probes().filter(|probe| is_free(probe));
    level.has_objects()
        && probes().any(|probe| probe.role == Role::Alloc && probe.has(Key::Object))
        && frees().any(|probe| probe.has(Key::Object))
        // A bulk close needs no object's identity, unless a free cannot name its granule otherwise.
        && (profile.kind != Kind::Bulk || frees().any(|probe| !probe.has(Key::Granule)))
}

const fn is_free(probe: &Probe) -> bool {
    matches!(probe.role, Role::Free | Role::Realloc)
}

/// The flags that are the same for all probes of a profile at a level.
fn flags_of(profile: &Profile, level: Level) -> u32 {
    let mut flags = 0;
    if has(profile, Role::Open) {
        flags |= flags::HAS_OPEN;
    }
    if profile.implicit {
        flags |= flags::IMPLICIT;
    }
    if profile.nested {
        flags |= flags::NESTED;
    }
    if level == Level::Close {
        flags |= flags::CLOSES_ONLY;
    }
    if !level.has_objects() {
        return flags | flags::BOUNDARY;
    }
    let allocs = |probe: &&Probe| probe.role == Role::Alloc;
    let frees = |probe: &&Probe| is_free(probe);
    let probes = || profile.probes.iter();
    let by_object = follows_objects(profile, level);
    let allocating = |probe: &&Probe| matches!(probe.role, Role::Alloc | Role::Realloc);
    // Of a group one is placed: its members do not meet.
    let first = |probe: &&Probe| {
        probe.one_of.is_none()
            || probes()
                .find(|other| other.one_of == probe.one_of)
                .is_some_and(|other| std::ptr::eq(other, *probe))
    };
    if probes().filter(allocating).filter(first).count() > 1 {
        flags |= flags::MAY_NEST;
    }
    if by_object {
        flags |= flags::BY_OBJECT;
        let of_objects = |probe: &&Probe| allocs(probe) || frees(probe);
        if probes().filter(of_objects).all(|probe| probe.has(Key::Instance)) {
            flags |= flags::OBJECT_PER_INSTANCE;
        }
    }
    flags
}

/// Whether the object leaves the map at entry although the probe is evaluated at return: then no other
/// thread that is handed the same id in between is mistaken for this one. It needs an object that is
/// known at entry.
fn takes_at_entry(probe: &Probe, flags: u32) -> bool {
    let known = |key| probe.expression(key).is_none_or(|expr| !expr.names_ret());
    probe.phase == Phase::Return
        && matches!(probe.role, Role::Free | Role::Realloc)
        && flags & flags::BY_OBJECT != 0
        && probe.has(Key::Object)
        && known(Key::Object)
        && known(Key::Instance)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk_tests;
