//! The lines of the control socket: requests in, replies out.

use serde::{Deserialize, Serialize};

use crate::{Answer, Refusal, Request};

/// One line from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The answer.
    Ok(Answer),
    /// It is not done.
    Refused(Refusal),
    /// The line was no request; the connection is closed.
    Error(String),
}

impl Reply {
    /// As it is written.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|error| {
            let reply = Self::Error(format!("the answer has no JSON form: {error}"));
            serde_json::to_vec(&reply).unwrap_or_default()
        });
        line.push(b'\n');
        line
    }
}

/// The request of a line of at most so many bytes.
pub(crate) fn parse(text: &[u8], max_bytes: usize) -> Result<Request, String> {
    let Some(text) = text.strip_suffix(b"\n") else {
        return Err(if text.len() > max_bytes {
            format!("a request has at most {max_bytes} bytes")
        } else {
            "a request ends with a line feed".to_owned()
        });
    };
    serde_json::from_slice(text).map_err(|error| format!("this is no request: {error}"))
}
