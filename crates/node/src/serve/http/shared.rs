//! What all requests share.

use std::sync::Arc;

use axum::extract::FromRef;

use super::{super::hub::Hub, guard::Guard, past::Past, redact::Redactor};

/// What all requests share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    pub(super) guard: Arc<Guard>,
    pub(super) redactor: Arc<Redactor>,
    pub(super) past: Arc<Past>,
}

impl FromRef<Shared> for Arc<Hub> {
    fn from_ref(shared: &Shared) -> Self {
        Self::clone(&shared.hub)
    }
}
