//! Programs whose processes the kernel side notices by name before anybody has examined them.
//!
//! With probes on files, such a process is counted from its first instruction on. Without, its end is reported, so that nobody
//! takes the counts for complete.

use std::path::Path;

use drainprof_common::{
    event::Event,
    loss::Loss,
    maps::{PROGRAM_NAMES, ProgramName},
};
use drainprof_probe::bpf::BpfError;

use super::observer::{Observer, Reasons, Target};

/// What is known of a program's processes before they are examined.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) allocators: Vec<u32>,
    pub(super) not_measurable: Reasons,
}

/// A name as the kernel has it.
fn name_of(text: &str) -> ProgramName {
    let mut name = ProgramName::default();
    let kept = text.len().min(name.len() - 1);
    name[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    name
}

impl Observer {
    /// Notices further processes of the program that a process executes.
    pub fn watch_program(&mut self, pid: u32) -> Result<(), BpfError> {
        let running = |target: &&Target| target.pid == pid && target.ended.is_none();
        let Some(target) = self.targets.iter().find(running) else { return Ok(()) };
        let program = Program {
            comm: target.comm.clone(),
            exe: target.exe.clone(),
            allocators: target.allocators.clone(),
            not_measurable: target.not_measurable.clone(),
        };
        // Those that are still there are met again.
        if self.programs.len() + 2 > PROGRAM_NAMES as usize {
            self.forget_programs();
        }
        // A process may rename itself after it has begun.
        let file = Path::new(&program.exe).file_name().unwrap_or_default().to_string_lossy();
        for name in [name_of(&program.comm), name_of(&file)] {
            if !self.programs.contains_key(&name) {
                self.session.watch_program(name, self.options.follow)?;
            }
            self.programs.insert(name, program.clone());
        }
        Ok(())
    }

    /// Notices no further processes.
    pub fn forget_programs(&mut self) {
        for name in std::mem::take(&mut self.programs).into_keys() {
            self.session.forget_program(name);
        }
    }

    /// The program that a newcomer executes.
    pub(super) fn program_of(&self, event: &Event) -> Option<Program> {
        let mut name = ProgramName::default();
        name[..8].copy_from_slice(&event.granule.to_ne_bytes());
        name[8..].copy_from_slice(&event.live.to_ne_bytes());
        self.programs.get(&name).cloned()
    }

    /// Takes a newcomer back that is not to be observed: nothing of it is reported.
    pub fn discard(&mut self, pid: u32, target: u32) {
        self.session.disarm_target(pid, target);
        self.targets.retain(|known| known.target != target);
    }

    /// Counts a loss that only the caller can know of, such as processes without probes that were to be there.
    pub fn count_loss(&mut self, loss: Loss, number: u64) {
        self.session.count_loss(loss, number);
    }
}
