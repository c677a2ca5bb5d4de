//! Programs whose processes the kernel side notices by name before they are examined.
//!
//! With probes on files, such a process is counted from its first instruction on. Without, its end is reported, so that the
//! counts do not pass for complete.

use std::collections::BTreeMap;

use drainprof_common::{
    event::Event,
    maps::{PROGRAM_NAMES, ProgramName},
};
use drainprof_probe::bpf::{BpfError, Session};

use super::targets::Program;

/// Programs whose further processes are noticed, by the name that their processes have.
#[derive(Debug, Default)]
pub(super) struct Programs(BTreeMap<ProgramName, Program>);

/// A name as the kernel has it.
fn name_of(text: &str) -> ProgramName {
    let mut name = ProgramName::default();
    let kept = text.len().min(name.len() - 1);
    name[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    name
}

impl Programs {
    /// Notices further processes of a program; `enter`: they count from their first instruction on.
    pub(super) fn watch(
        &mut self,
        session: &mut Session,
        program: &Program,
        enter: bool,
    ) -> Result<(), BpfError> {
        // Those that are still there are met again.
        if self.0.len() + 2 > PROGRAM_NAMES as usize {
            self.forget(session);
        }
        for name in program.names().map(name_of) {
            if !self.0.contains_key(&name) {
                session.watch_program(name, enter)?;
            }
            self.0.insert(name, program.clone());
        }
        Ok(())
    }

    /// Notices no further processes.
    pub(super) fn forget(&mut self, session: &mut Session) {
        for name in std::mem::take(&mut self.0).into_keys() {
            session.forget_program(name);
        }
    }

    /// The program that a newcomer executes.
    pub(super) fn of(&self, event: &Event) -> Option<&Program> {
        let mut name = ProgramName::default();
        name[..8].copy_from_slice(&event.granule.to_ne_bytes());
        name[8..].copy_from_slice(&event.live.to_ne_bytes());
        self.0.get(&name)
    }
}
