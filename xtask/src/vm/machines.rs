//! The machines of the matrix: which kernel boots how, and what runs on it.
//!
//! Each kernel boots as Debian configures it, and runs the whole matrix. Each boots again with full preemption, for the
//! tests that preemption can break; all others would only repeat the first boot. One machine has 4 and one 16 processors,
//! since maps, counters and buffers exist once per processor.

/// The tests of a kernel that boots as Debian configures it.
const ALL: &str = "tests/matrix.txt";

/// The tests that preemption can break.
const PREEMPTED: &str = "tests/preempted.txt";

/// The tests that many processors can break.
const MANY: &str = "tests/processors.txt";

/// One machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// The line of kernels.
    pub(super) line: &'static str,
    /// Follows the kernel's version in the machine's name.
    pub(super) variant: Option<&'static str>,
    /// The preemption model; the kernel's own if none.
    pub(super) preempt: Option<&'static str>,
    pub(super) processors: u8,
    /// In MiB.
    pub(super) memory: u32,
    /// A file with the list of tests.
    pub(super) list: &'static str,
    /// Variables for the tests, beside those of all machines.
    pub(super) environment: &'static [(&'static str, &'static str)],
}

const USUAL: Machine = Machine {
    line: "",
    variant: None,
    preempt: None,
    processors: 2,
    memory: 1536,
    list: ALL,
    environment: &[],
};

const FULL: Machine = Machine {
    variant: Some("full"),
    preempt: Some("full"),
    list: PREEMPTED,
    environment: FEW_CASES,
    ..USUAL
};

/// Of `preempted`, numbers of threads that differ most: more of them show the same.
const FEW_CASES: &[(&str, &str)] = &[("DRAINPROF_TEST_THREADS", "4,64")];

/// The machines; those that take longest boot first. None asks for `preempt=lazy`: it is the default of sid's kernel,
/// and the older ones do not have it.
pub(super) const MACHINES: [Machine; 8] = [
    Machine { line: "6.1", ..USUAL },
    Machine { line: "6.12", ..USUAL },
    Machine { line: "sid", ..USUAL },
    Machine {
        line: "sid",
        variant: Some("16cpus"),
        processors: 16,
        memory: 4096,
        list: MANY,
        ..FULL
    },
    Machine { line: "sid", variant: Some("4cpus"), processors: 4, list: MANY, ..FULL },
    Machine { line: "sid", ..FULL },
    Machine { line: "6.12", ..FULL },
    Machine { line: "6.1", ..FULL },
];

impl Machine {
    /// The name of this machine with a kernel of that version.
    pub(super) fn name(&self, version: &str) -> String {
        self.variant.map_or_else(|| version.to_owned(), |variant| format!("{version}-{variant}"))
    }

    /// Whether `--kernel WANTED` means this machine: its name with the line, or the line alone for all of the line.
    pub(super) fn is_called(&self, wanted: &str) -> bool {
        wanted == self.line || wanted == self.name(self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel;
    use super::MACHINES;

    /// No two machines have one name, and each has a line that exists.
    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = MACHINES.iter().map(|machine| machine.name(machine.line)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), MACHINES.len());
        for machine in MACHINES {
            assert!(kernel::LINES.iter().any(|line| line.name == machine.line), "{machine:?}");
        }
    }

    /// A line's name means all its machines, a machine's name that one; nothing else means any.
    #[test]
    fn selection() {
        let chosen = |wanted: &str| {
            let chosen = MACHINES.iter().filter(|machine| machine.is_called(wanted));
            chosen.map(|machine| machine.name("7.2")).collect::<Vec<_>>()
        };
        assert_eq!(chosen("sid"), ["7.2", "7.2-16cpus", "7.2-4cpus", "7.2-full"]);
        assert_eq!(chosen("sid-full"), ["7.2-full"]);
        assert_eq!(chosen("6.1").len(), 2);
        assert!(chosen("6").is_empty());
    }
}
