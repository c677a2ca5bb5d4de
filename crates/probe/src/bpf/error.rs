//! What can go wrong between user space and the kernel.

use std::io;

use super::Holder;

/// The kernel's own word for "not supported"; it was never meant to leave the kernel, and libc lacks it.
const ENOTSUPP: i32 = 524;

/// An error of loading, attaching or reading; names the step, the object and what to do.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refused for lack of privileges.
    #[error(
        "loading eBPF {what} was not permitted; run as root, or with CAP_SYS_ADMIN, \
         CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (see `drainprof doctor`)"
    )]
    Privilege {
        /// The program or map.
        what: String,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel lacks something.
    #[error("this kernel cannot {what}; `drainprof doctor` says what is missing")]
    Unsupported {
        /// What it cannot do.
        what: String,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel would run a program on a stack that two threads can use at once.
    #[error(
        "this kernel runs the eBPF program {program} on a private stack, one per CPU, although a \
         thread can be preempted in it: the kernel could crash, so drainprof does not attach; use \
         another kernel, or a newer drainprof, and report it"
    )]
    PrivateStack {
        /// The program.
        program: String,
    },
    /// A map could not be made as large as asked.
    #[error("no memory for the eBPF maps ({bytes} bytes); lower --max-granules or --max-objects")]
    Memory {
        /// What was asked for.
        bytes: u64,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This process, or the machine, has as many files open as may be.
    #[error(
        "cannot load eBPF {what}: too many files are open; raise the limit (ulimit -n, LimitNOFILE= of a unit)"
    )]
    Descriptors {
        /// What was loaded.
        what: String,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A probe could not be attached.
    #[error("attaching to {symbol} in {object} at offset {offset:#x} failed")]
    Attach {
        /// The symbol.
        symbol: String,
        /// The object as the process sees it.
        object: String,
        /// The file offset.
        offset: u64,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel refused a probe for lack of privileges.
    #[error(
        "placing a probe on {symbol} in {object} at offset {offset:#x} was not permitted; run as \
         root, or with CAP_SYS_ADMIN (CAP_PERFMON is not enough on every kernel), CAP_SYS_PTRACE \
         and CAP_DAC_READ_SEARCH"
    )]
    NotPermitted {
        /// The symbol.
        symbol: String,
        /// The object as the process sees it.
        object: String,
        /// The file offset.
        offset: u64,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A process holds a lock that the kernel would wait for.
    #[error("no probe is put into {object} now: {holder}")]
    Held {
        /// The object as the process sees it.
        object: String,
        /// The process.
        holder: Holder,
    },
    /// The kernel does not come back with a probe.
    #[error(
        "no probe is put into {object} now: the kernel has not put the last one in place for {seconds:.1} s, since it \
         waits for a process that holds the lock of its address space; end that process, or the server of its files"
    )]
    Late {
        /// The object as the process sees it.
        object: String,
        /// For how long.
        seconds: f64,
    },
    /// A tracepoint could not be attached.
    #[error("attaching to the tracepoint {name} failed")]
    Tracepoint {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A map could not be read or written.
    #[error("{step} the eBPF map {map} failed")]
    Map {
        /// What was being done.
        step: &'static str,
        /// The map.
        map: &'static str,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// All specs are taken.
    #[error("more than {0} probes in one session; raise --max-probes or use fewer profiles")]
    TooManyProbes(u32),
    /// The object file in this binary is not what this code expects.
    #[error("the built-in eBPF object lacks {0}; the binary was built from mismatched sources")]
    Mismatch(String),
}

impl BpfError {
    /// Whether the kernel refused for lack of privileges.
    #[must_use]
    pub const fn is_privilege(&self) -> bool {
        matches!(self, Self::Privilege { .. } | Self::NotPermitted { .. })
    }

    /// Whether the kernel lacks something that is needed.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. } | Self::PrivateStack { .. })
    }

    /// Whether a probe may be put in place later: a process is in the way.
    #[must_use]
    pub const fn is_for_now(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Late { .. })
    }

    /// Whether the kernel refused a probe on the very instruction: another one of the function may do.
    ///
    /// It says so in several ways: of instructions that it does not know, may not move, or that are not
    /// where it expects them.
    #[must_use]
    pub fn is_place_refused(&self) -> bool {
        let Self::Attach { source, .. } = self else { return false };
        let refusals = [nix::libc::EINVAL, nix::libc::EOPNOTSUPP, ENOTSUPP, nix::libc::ENOEXEC];
        os_error(source.as_ref()).is_some_and(|error| refusals.contains(&error))
    }

    pub(super) fn map(
        step: &'static str,
        map: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::Map { step, map, source: Box::new(source) }
    }

    /// Sorts a failure to attach by what the kernel said.
    pub(super) fn attach(
        symbol: String,
        object: String,
        offset: u64,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let refused = matches!(os_error(&source), Some(nix::libc::EPERM | nix::libc::EACCES));
        let source = Box::new(source);
        if refused {
            Self::NotPermitted { symbol, object, offset, source }
        } else {
            Self::Attach { symbol, object, offset, source }
        }
    }

    /// Sorts a failure to load by what the kernel said.
    pub(super) fn load(
        what: String,
        bytes: u64,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        match os_error(&source) {
            Some(nix::libc::EPERM | nix::libc::EACCES) if !is_verifier_refusal(&source) => {
                Self::Privilege { what, source: Box::new(source) }
            }
            Some(nix::libc::ENOMEM | nix::libc::E2BIG) if !is_verifier_refusal(&source) => {
                Self::Memory { bytes, source: Box::new(source) }
            }
            Some(nix::libc::EMFILE | nix::libc::ENFILE) => {
                Self::Descriptors { what, source: Box::new(source) }
            }
            _ => Self::Unsupported { what: format!("load eBPF {what}"), source: Box::new(source) },
        }
    }
}

/// The first OS error in a chain of causes.
fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error();
        }
        next = error.source();
    }
    None
}

/// The verifier says EACCES and E2BIG too, but it also says why.
fn is_verifier_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.to_string().contains("processed ") {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit of open files that is reached is no lack of the kernel.
    #[test]
    fn too_many_files() {
        for error in [nix::libc::EMFILE, nix::libc::ENFILE] {
            let source = io::Error::from_raw_os_error(error);
            let text = BpfError::load("maps".to_owned(), 0, source).to_string();
            assert!(text.contains("maps: too many files") && !text.contains("kernel"), "{text}");
        }
        let lacking = BpfError::load("maps".to_owned(), 0, io::Error::from_raw_os_error(22));
        assert!(matches!(lacking, BpfError::Unsupported { .. }), "{lacking}");
    }

    /// A kernel that does not permit a probe lacks nothing, and nothing is wrong with the place; any other error is one
    /// of the place.
    #[test]
    fn refused_probes() {
        let attach = |error: i32| {
            let source = io::Error::from_raw_os_error(error);
            BpfError::attach("f".to_owned(), "/svc".to_owned(), 0x10, source)
        };
        for error in [nix::libc::EPERM, nix::libc::EACCES] {
            let refused = attach(error);
            assert!(refused.is_privilege() && !refused.is_place_refused(), "{refused}");
            let text = refused.to_string();
            assert!(text.contains("f in /svc at offset 0x10") && text.contains("CAP_SYS_ADMIN"));
        }
        let place = attach(nix::libc::EINVAL);
        assert!(!place.is_privilege() && place.is_place_refused(), "{place}");
    }
}
