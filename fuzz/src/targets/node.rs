//! What the daemon reads: its configuration, and requests.

use std::path::Path;

use anyhow::{Context as _, Result};
use drainprof_node::{
    NodeState, config,
    serve::testing::{Http, is_request},
};

/// A state with names and addresses, which only a holder of the token may see.
const STATE: &[u8] = include_bytes!("../../corpus/records/state.json");

thread_local! {
    static SERVER: Result<Http> = server();
}

fn server() -> Result<Http> {
    let state: NodeState = serde_json::from_slice(STATE).context("read the state")?;
    Http::new(state).context("make a server")
}

/// A configuration.
pub(super) fn configuration(bytes: &[u8]) -> bool {
    match config::parse(&String::from_utf8_lossy(bytes), Path::new("fuzz.toml")) {
        Ok(_) => true,
        Err(errors) => {
            let shown = errors.to_string();
            assert!(!shown.contains('\u{1b}'), "{shown}");
            false
        }
    }
}

/// The file that is written for users, whose keys are comments, and with its keys.
#[allow(clippy::unnecessary_wraps, reason = "as other seeds")]
pub(super) fn default_file() -> Result<Vec<Vec<u8>>> {
    let file = config::default_file();
    let lines = file.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if key.contains(" = ") => key,
        _ => line,
    });
    let set: Vec<&str> = lines.collect();
    Ok(vec![set.join("\n").into_bytes(), file.into_bytes()])
}

/// A line of the control socket, or a request over HTTP.
pub(super) fn request(bytes: &[u8]) -> bool {
    if is_request(bytes) {
        return true;
    }
    SERVER.with(|server| {
        let Ok(server) = server else { return false };
        let answer = server.answer(bytes);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("7f12deadb000"), "an address is shown: {answer}");
        answer.starts_with("HTTP/1.1 2")
    })
}
