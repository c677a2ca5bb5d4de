//! What planning says of a profile and a process, beside the plan.

/// Something that the user should know about a plan.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// A short, stable name; the planner lists them.
    pub code: String,
    /// One sentence.
    pub message: String,
}
