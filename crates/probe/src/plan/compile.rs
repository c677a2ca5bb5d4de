//! How a plan asks for what a probe counts, and for whether it is wanted.

use drainprof_common::spec::ProbeSpec;
use drainprof_profile::{self as profile, Level, Probe, Profile};

use super::resolver::ObjectResolver;

/// Compiles one probe of a profile for one object.
pub type CompileFn<'c> =
    dyn Fn(&Profile, &Probe, Level, u32, &ObjectResolver<'_>) -> Result<ProbeSpec, String> + 'c;

/// The [`CompileFn`] for a real process: the compiler of profiles, with its errors as text.
pub fn compile(
    profile: &Profile,
    probe: &Probe,
    level: Level,
    allocator: u32,
    resolver: &ObjectResolver<'_>,
) -> Result<ProbeSpec, String> {
    profile::compile(profile, probe, level, allocator, resolver).map_err(|error| error.to_string())
}

/// The same with everything given but the probe.
pub(super) type CompileOne<'c> = dyn Fn(&Probe) -> Result<ProbeSpec, String> + 'c;

/// Whether a probe is used at a level.
pub type WantedFn<'c> = dyn Fn(&Probe, Level) -> bool + 'c;
