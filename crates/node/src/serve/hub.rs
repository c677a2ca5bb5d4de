//! What all ways to ask have in common: the state, the metrics, and the way to the daemon's loop.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, mpsc::error::TrySendError, oneshot, watch};

use super::{
    metrics::{Family, Metrics},
    options::Options,
};
use crate::{Answer, Asked, NodeState, Refusal, Request};

/// One per server.
#[derive(Debug)]
pub(super) struct Hub {
    state: watch::Receiver<Arc<NodeState>>,
    requests: mpsc::Sender<Asked>,
    metrics: Mutex<Metrics>,
    changed: Mutex<Instant>,
    stale_after: Duration,
    answer_timeout: Duration,
}

impl Hub {
    pub(super) fn new(
        options: &Options,
        state: watch::Receiver<Arc<NodeState>>,
        requests: mpsc::Sender<Asked>,
    ) -> Self {
        Self {
            state,
            requests,
            metrics: Mutex::new(Metrics::new(&options.labels)),
            changed: Mutex::new(Instant::now()),
            stale_after: options.stale_after,
            answer_timeout: options.limits.answer_timeout,
        }
    }

    /// Takes every state into the metrics, so that no window is missed between two scrapes.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {
            let now = Arc::clone(&state.borrow_and_update());
            locked(&self.metrics).observe(&now);
            *locked(&self.changed) = Instant::now();
        }
    }

    /// The state.
    pub(super) fn state(&self) -> Arc<NodeState> {
        Arc::clone(&self.state.borrow())
    }

    /// Reports each new state.
    pub(super) fn news(&self) -> watch::Receiver<Arc<NodeState>> {
        let mut news = self.state.clone();
        news.mark_unchanged();
        news
    }

    /// The metrics as of the state of now.
    pub(super) fn families(&self) -> Arc<[Family]> {
        let mut metrics = locked(&self.metrics);
        metrics.observe(&self.state());
        metrics.families()
    }

    /// How old the state is.
    pub(super) fn age(&self) -> Duration {
        locked(&self.changed).elapsed()
    }

    /// For how long there has been no new state, if that is too long.
    pub(super) fn stuck(&self) -> Option<Duration> {
        let age = self.age();
        (age > self.stale_after).then_some(age)
    }

    /// Asks the daemon's loop. Never waits for room in its queue, and not for ever for its answer.
    pub(super) async fn ask(&self, request: Request) -> Result<Answer, Refusal> {
        if request == Request::State {
            return Ok(Answer::State { state: Box::new(NodeState::clone(&self.state())) });
        }
        let (answer, answered) = oneshot::channel();
        self.requests.try_send(Asked { request, answer }).map_err(|error| {
            let message = match error {
                TrySendError::Full(_) => {
                    "the daemon has too many requests waiting; try again in a few seconds"
                }
                TrySendError::Closed(_) => "the daemon is stopping",
            };
            Refusal::NotNow { message: message.to_owned() }
        })?;
        match tokio::time::timeout(self.answer_timeout, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Refusal::Failed {
                message: "the daemon has dropped the request; its log says why".to_owned(),
            }),
            Err(_) => Err(Refusal::NotNow {
                message: format!(
                    "the daemon has not answered within {} s; it may do what was asked later",
                    self.answer_timeout.as_secs_f64()
                ),
            }),
        }
    }
}

/// What panics while it holds a lock leaves counts behind that are still whole: each is written by one assignment.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
