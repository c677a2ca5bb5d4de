//! Requests of strangers without a socket, for fuzzing.

use std::sync::Arc;

use tokio::{
    runtime::Runtime,
    sync::{mpsc, watch},
};

use super::{Limits, Options, control, http, hub::Hub};
use crate::{Asked, NodeState, Refusal};

/// Whether a line of the control socket is a request.
#[must_use]
pub fn is_request(line: &[u8]) -> bool {
    control::parse(line, Limits::default().line_bytes).is_ok()
}

/// An HTTP server without a socket and without a token, whose daemon refuses every request.
#[derive(Debug)]
pub struct Http {
    runtime: Runtime,
    hub: Arc<Hub>,
    /// The hub reads it.
    _state: watch::Sender<Arc<NodeState>>,
}

impl Http {
    /// It shows this state.
    ///
    /// # Errors
    /// There is no runtime to be had.
    pub fn new(state: NodeState) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, shown) = watch::channel(Arc::new(state));
        let (requests, mut asked) = mpsc::channel::<Asked>(2);
        runtime.spawn(async move {
            while let Some(Asked { answer, .. }) = asked.recv().await {
                let _ = answer.send(Err(Refusal::NotFound { message: String::new() }));
            }
        });
        let hub = Arc::new(Hub::new(&Options::default(), shown, requests));
        Ok(Self { runtime, hub, _state: sender })
    }

    /// What it answers to these bytes.
    #[must_use]
    pub fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        self.runtime.block_on(http::answer(Arc::clone(&self.hub), bytes))
    }
}
