//! Which processes are observed: probes count in them and nowhere else.

use std::sync::atomic::Ordering;

use aya::{
    Ebpf,
    maps::{HashMap, MapData},
};
use drainprof_common::maps::{
    ProgramName, TARGET_WORDS, TargetValue, program_flags, target_flags, target_word,
};

use super::{
    BpfError,
    config::Arming,
    load::{Plain, mapped, take},
    memory::Mapped,
    names,
};

/// The processes, and the words in front of them.
pub(super) struct Targets {
    map: HashMap<MapData, u32, Plain<TargetValue>>,
    words: Mapped<u64>,
    /// Programs whose processes are noticed although they are no targets.
    programs: HashMap<MapData, ProgramName, u32>,
}

impl Targets {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        Ok(Self {
            words: mapped(ebpf, names::TARGET_WORDS, TARGET_WORDS)?,
            map: take(ebpf, names::TARGETS)?,
            programs: take(ebpf, names::PROGRAM_NAMES)?,
        })
    }

    pub(super) fn arm(&mut self, tgid: u32, target: u32, arming: Arming) -> Result<(), BpfError> {
        let mut flags = 0;
        if arming.from_start {
            flags |= target_flags::FROM_START;
        }
        if arming.follow {
            flags |= target_flags::FOLLOW;
        }
        let value = TargetValue { target, flags };
        self.map
            .insert(tgid, Plain(value), 0)
            .map_err(|source| BpfError::map("entering a process in", names::TARGETS, source))?;
        self.set_word(tgid, target_word::pack(tgid, value));
        Ok(())
    }

    pub(super) fn disarm(&mut self, tgid: u32) {
        // It may have been taken out by the kernel side already. First here, then the word: a process that
        // executes another program in this instant is entered again in both, and looks here last.
        let _ = self.map.remove(&tgid);
        self.set_word(tgid, 0);
    }

    /// Notices the processes of a program: their ends, and with `enter` their beginnings, which makes them targets.
    pub(super) fn watch_program(&mut self, name: ProgramName, enter: bool) -> Result<(), BpfError> {
        let flags = program_flags::REPORT | if enter { program_flags::ENTER } else { 0 };
        self.programs
            .insert(name, flags, 0)
            .map_err(|source| BpfError::map("entering a program in", names::PROGRAM_NAMES, source))
    }

    /// Notices them no more.
    pub(super) fn forget_program(&mut self, name: ProgramName) {
        // It may not be there.
        let _ = self.programs.remove(&name);
    }

    pub(super) fn of(&self, tgid: u32) -> Option<u32> {
        self.map.get(&tgid, 0).ok().map(|value| value.0.target)
    }

    /// Changes the word in front of the map, unless it is another process's; as the kernel side does.
    fn set_word(&self, tgid: u32, word: u64) {
        let Some(at) = self.words.word(target_word::index(tgid) as usize, 0) else { return };
        // Where it does not change, another process has the place.
        let _ = at.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seen| {
            (seen == 0 || target_word::unpack(seen, tgid).is_some()).then_some(word)
        });
    }
}
