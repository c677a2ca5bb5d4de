//! Errors in words, and exit codes.

use std::process::ExitCode;

use drainprof_census::CensusError;
use drainprof_node::{Refusal, config::ConfigErrors, serve::AskError};
use drainprof_observe::{ObserveError, engine::command::NotObserved, goal::SpanError};
use drainprof_probe::{
    bpf::BpfError, calibrate::CalibrateError, launch::LaunchError, plan::PlanError,
};
use drainprof_process::{ProcessError, SelectError, printable_lines};
use drainprof_profile::{LibraryError, ProfileError};

/// The exit codes, as the documentation lists them.
pub mod code {
    /// All went well.
    pub const OK: u8 = 0;
    /// Something failed.
    pub const FAILURE: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// No such target, or no profile matches it.
    pub const NO_TARGET: u8 = 4;
    /// Observing cost more than the budget.
    pub const GOVERNOR: u8 = 6;
    /// The kernel lacks a feature.
    pub const UNSUPPORTED: u8 = 69;
    /// A privilege is missing.
    pub const PRIVILEGE: u8 = 77;
    /// A profile or the configuration is bad.
    pub const CONFIG: u8 = 78;
}

/// A failure whose exit code the place that found it knows.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Failure {
    /// The exit code.
    pub(super) code: u8,
    /// What to say.
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Says an error on stderr, with its causes, and gives its exit code. A reader that has gone away is no
/// failure, unless the output is `unread`.
pub(super) fn reported(error: &anyhow::Error, unread: bool) -> ExitCode {
    if is_broken_pipe(error) && !unread {
        return ExitCode::from(code::OK);
    }
    let mut text = error.to_string();
    let mut said = text.clone();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Transparent layers, and messages that quote their cause, say the same twice.
        if !said.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        said.push_str(&cause);
    }
    // It may quote a profile, a report or a name.
    eprintln!("drainprof: {}", printable_lines(&text));
    ExitCode::from(exit_code(error))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<drainprof_report::export::Error>()
            .is_some_and(drainprof_report::export::Error::is_broken_pipe)
            || cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// The exit code of an error: that of the first cause that has one.
fn exit_code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(own_code).unwrap_or(code::FAILURE)
}

fn own_code(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    macro_rules! of {
        ($($error:ty => $code:expr,)*) => {
            $(if let Some(error) = cause.downcast_ref::<$error>() {
                let code: fn(&$error) -> Option<u8> = $code;
                return code(error);
            })*
        };
    }
    of! {
        Failure => |error| Some(error.code),
        ObserveError => observe_code,
        NotObserved => not_observed_code,
        SpanError => |_| Some(code::USAGE),
        ProcessError => |error| Some(target_code(error)),
        SelectError => |error| Some(select_code(error)),
        CensusError => census_code,
        BpfError => bpf_code,
        CalibrateError => calibrate_code,
        LaunchError => |error| Some(error.exit_code()),
        AskError => ask_code,
        ProfileError => |_| Some(code::CONFIG),
        LibraryError => |_| Some(code::CONFIG),
        ConfigErrors => |_| Some(code::CONFIG),
    }
    None
}

fn census_code(error: &CensusError) -> Option<u8> {
    match error {
        CensusError::Process(error) => Some(target_code(error)),
        CensusError::TooLarge { .. }
        | CensusError::Traced { .. }
        | CensusError::NotFrozen { .. } => None,
    }
}

fn observe_code(error: &ObserveError) -> Option<u8> {
    Some(match error {
        ObserveError::Target(error) => target_code(error),
        ObserveError::Bpf(error) => return bpf_code(error),
        ObserveError::Level { .. } | ObserveError::Census { .. } => code::USAGE,
        ObserveError::Plan { source, .. } => match **source {
            PlanError::Sampled { .. } => code::USAGE,
            PlanError::Compile { .. } => code::CONFIG,
            PlanError::Unusable { .. } => code::UNSUPPORTED,
            _ => code::NO_TARGET,
        },
        ObserveError::Wait(_) | ObserveError::Symbols(_) | ObserveError::Files(_) => return None,
        ObserveError::NoMatch { .. } | ObserveError::UnknownProfile { .. } => code::NO_TARGET,
    })
}

fn not_observed_code(error: &NotObserved) -> Option<u8> {
    match error {
        NotObserved::Wrappers | NotObserved::Ended => Some(code::NO_TARGET),
        NotObserved::Observe(error) => observe_code(error),
        NotObserved::Trace(_) => None,
    }
}

const fn calibrate_code(error: &CalibrateError) -> Option<u8> {
    match error {
        CalibrateError::Architecture(_) => Some(code::UNSUPPORTED),
        CalibrateError::Bpf(error) => bpf_code(error),
        CalibrateError::Target(error) => Some(target_code(error)),
        CalibrateError::Own { .. } | CalibrateError::Implausible => None,
    }
}

const fn ask_code(error: &AskError) -> Option<u8> {
    match error {
        AskError::Permission { .. } | AskError::Refused(Refusal::Forbidden { .. }) => {
            Some(code::PRIVILEGE)
        }
        AskError::Refused(Refusal::NotFound { .. }) => Some(code::NO_TARGET),
        _ => None,
    }
}

const fn target_code(error: &ProcessError) -> u8 {
    match error {
        ProcessError::Permission { .. } => code::PRIVILEGE,
        ProcessError::Read { .. } | ProcessError::Malformed { .. } => code::FAILURE,
        _ => code::NO_TARGET,
    }
}

const fn select_code(error: &SelectError) -> u8 {
    match error {
        SelectError::NoMatch { .. } | SelectError::Ambiguous { .. } => code::NO_TARGET,
        SelectError::List(_) => code::FAILURE,
    }
}

const fn bpf_code(error: &BpfError) -> Option<u8> {
    if error.is_privilege() {
        Some(code::PRIVILEGE)
    } else if error.is_unsupported() {
        Some(code::UNSUPPORTED)
    } else {
        None
    }
}
