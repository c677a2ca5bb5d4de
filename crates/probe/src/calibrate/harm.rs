//! Whether the calls that the kernel puts in place of nops harm a process: tried on drainprof itself.
//!
//! The call leads to a page that the kernel maps into the process. On Linux 6.18 a child that the process forks has the
//! call but not the page, and dies of it; the call also overwrites what the process keeps below its stack pointer.
//! Later kernels do neither. No version is asked: the page's flags are read, and a function looks at its own words. A
//! kind that would do harm loses its cost. Called by `measure`, with its probes in place.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
};

use super::{
    model::CalibrateError,
    own::{Own, WARM_UP},
    samples::{red_zone, samples},
};
use crate::{
    bpf::EmptyProbes,
    plan::cost::{Costs, InstructionKind},
};

/// The instruction of a probe that is no call.
const BREAKPOINT: u8 = 0xcc;
/// The kernel's name for the page that such calls lead to.
const PAGE: &str = "[uprobes-trampoline]";
/// Its flag of a mapping that a forked child does not get.
const NOT_FORKED: &str = "dc";
/// A word that no register holds by chance.
const WORD: u64 = 0x5eed_0123_4567_89ab;

/// Takes the cost of each kind whose call harms a process.
pub(super) fn exclude(
    costs: &mut Costs,
    probes: &mut EmptyProbes,
    own: Own<'_>,
) -> Result<(), CalibrateError> {
    let is_call = |kind: InstructionKind| {
        let sample = samples().iter().find(|sample| sample.kind == kind);
        let placed = sample.filter(|_| costs.entry_ns[kind as usize].is_some());
        placed.is_some_and(|sample| first_byte(sample.function as usize as u64) != Some(BREAKPOINT))
    };
    let calls: Vec<_> = InstructionKind::ALL
        .into_iter()
        .filter(|kind| kind.can_be_call() && is_call(*kind))
        .collect();
    let forked = calls.is_empty()
        || fs::read_to_string("/proc/self/smaps").is_ok_and(|text| is_forked(&text));
    for kind in calls {
        if !forked {
            tracing::debug!(?kind, "a call in its place would end children that the process forks");
            costs.entry_ns[kind as usize] = None;
        }
    }
    if costs.entry_ns[InstructionKind::Nop10 as usize].is_some() && !red_zone_is_kept(probes, own)?
    {
        tracing::debug!(
            "a call in a nop10's place would overwrite what is below the stack pointer"
        );
        costs.entry_ns[InstructionKind::Nop10 as usize] = None;
    }
    Ok(())
}

/// What is in our memory at an address.
fn first_byte(address: u64) -> Option<u8> {
    let mut byte = [0];
    File::open("/proc/self/mem")
        .and_then(|memory| memory.read_exact_at(&mut byte, address))
        .ok()?;
    Some(byte[0])
}

/// Whether a child that is forked gets the page that calls lead to, by the process's `smaps`; not if there is none.
fn is_forked(smaps: &str) -> bool {
    let page = smaps.lines().skip_while(|line| !line.ends_with(PAGE));
    let flags = page.into_iter().find_map(|line| line.strip_prefix("VmFlags:"));
    flags.is_some_and(|flags| flags.split_whitespace().all(|flag| flag != NOT_FORKED))
}

/// Whether a function still finds what it keeps below its stack pointer, with a probe on a nop of ten bytes in it.
fn red_zone_is_kept(probes: &mut EmptyProbes, own: Own<'_>) -> Result<bool, CalibrateError> {
    let Some(zone) = red_zone() else { return Ok(false) };
    let at = own.offset(zone.function as usize as u64 + zone.nop)?;
    match probes.at_entry(own.object, at, own.pid, "nop10 behind stores") {
        Ok(()) => Ok((0..WARM_UP).all(|_| (zone.function)(WORD) == 0)),
        Err(error) if error.is_place_refused() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smaps(flags: &str) -> String {
        format!(
            "003fe000-003ff000 r-xp 00000000 00:00 0    [vdso]\nVmFlags: rd ex dc \n\
             003ff000-00400000 r-xp 00000000 00:00 0    {PAGE}\nSize:    4 kB\nVmFlags: {flags} \n\
             00400000-00401000 r--p 00000000 fe:00 7    /t\nVmFlags: rd dc \n"
        )
    }

    /// The flags of the page alone count, as Linux 6.18 and 7.2 have them; where it is not found, nothing is certain.
    #[test]
    fn flags_of_the_page() {
        assert!(!is_forked(&smaps("rd ex mr me io dc de")));
        assert!(is_forked(&smaps("rd ex mr me io de sd")));
        assert!(!is_forked(""));
        assert!(!is_forked("003fe000-003ff000 r-xp 00000000 00:00 0    [vdso]\nVmFlags: rd ex\n"));
    }

    /// Our own code can be read, and has no breakpoint without a probe; what is not mapped cannot.
    #[test]
    fn own_code() {
        let code = is_forked as fn(&str) -> bool as usize as u64;
        assert!(first_byte(code).is_some_and(|byte| byte != BREAKPOINT));
        assert_eq!(first_byte(0), None);
    }
}
