//! Requests to a running daemon, over the control socket as well as over HTTP.

use drainprof_report::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{NodeState, WindowRecord};

/// A request. On the control socket, one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The whole state.
    State,
    /// The report of one process since it is observed.
    Report {
        /// The process.
        pid: u32,
    },
    /// Windows that run or have ended, the latest first.
    Windows {
        /// The limit.
        limit: u32,
    },
    /// The report that a window has left.
    WindowReport {
        /// The window.
        id: u64,
    },
    /// Open a diagnostic window.
    Diagnose {
        /// The process.
        pid: u32,
        /// For how long; null: as configured.
        seconds: Option<f64>,
        /// Whether page faults, heap and mappings are traced; null or absent: as configured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        growth: Option<bool>,
    },
    /// Turn the kill switch on: detach everything, attach nothing.
    Kill,
    /// Turn the kill switch off.
    Resume,
    /// Read the configuration again.
    Reload,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::State`].
    State {
        /// The state.
        state: Box<NodeState>,
    },
    /// To [`Request::Report`] and [`Request::WindowReport`].
    Report {
        /// The report.
        report: Box<Report>,
    },
    /// To [`Request::Windows`].
    Windows {
        /// The windows.
        windows: Vec<WindowRecord>,
    },
    /// To [`Request::Diagnose`].
    Window {
        /// The window that was opened.
        window: WindowRecord,
    },
    /// It was done; in one sentence, what.
    Done {
        /// The sentence.
        message: String,
    },
}

/// Why the daemon refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(tag = "refused", rename_all = "snake_case")]
pub enum Refusal {
    /// The process or window does not exist.
    #[error("{message}")]
    NotFound {
        /// What does not exist, in one sentence.
        message: String,
    },
    /// It cannot be done now: a window runs, the cool-down, the budget, the kill switch.
    #[error("{message}")]
    NotNow {
        /// Why, in one sentence, and when it can be tried again.
        message: String,
    },
    /// The client is not allowed to.
    #[error("{message}")]
    Forbidden {
        /// Why, in one sentence.
        message: String,
    },
    /// It was tried, and failed.
    #[error("{message}")]
    Failed {
        /// Why, in one sentence.
        message: String,
    },
}

/// A request on its way to the daemon's loop, and the way back.
#[derive(Debug)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// Takes the answer.
    pub answer: oneshot::Sender<Result<Answer, Refusal>>,
}
