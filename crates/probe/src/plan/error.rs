//! Why a profile has no plan for a process.

use super::NoMatch;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The profile is not about this process.
    #[error(transparent)]
    NoMatch(#[from] NoMatch),
    /// A role without which the counts would be wrong has no probe left.
    #[error(
        "profile {profile} fits, but none of its `{role}` probes can be placed:{}",
        lines(tried)
    )]
    NothingToProbe {
        /// The profile.
        profile: String,
        /// The role.
        role: &'static str,
        /// Object, address and reason of each that was tried.
        tried: Vec<String>,
    },
    /// Only pages can be sampled.
    #[error(
        "profile {profile} is not a census: only the pages of a census can be sampled; leave out --sample"
    )]
    Sampled {
        /// The profile.
        profile: String,
    },
    /// All instructions that a probe could sit on would harm the process, or are refused by the kernel.
    #[error(
        "profile {profile}: no probe may sit on {site} in {object}, and there is no other site: on this kernel its kind \
         is unusable (see `drainprof calibrate`)"
    )]
    Unusable {
        /// The profile.
        profile: String,
        /// Symbol, offset and instruction.
        site: String,
        /// The object.
        object: String,
    },
    /// An expression of a probe cannot be compiled for this object.
    #[error("profile {profile}: probe {address} in {object}: {what}")]
    Compile {
        /// The profile.
        profile: String,
        /// The probe's address.
        address: String,
        /// The object.
        object: String,
        /// What is wrong.
        what: String,
    },
}

fn lines(tried: &[String]) -> String {
    tried.iter().fold(String::new(), |text, line| text + "\n  " + line)
}
