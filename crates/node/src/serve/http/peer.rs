//! Who asks.

use std::net::{IpAddr, SocketAddr};

/// Who asks, and at which of our addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) remote: SocketAddr,
    pub(super) local: IpAddr,
    pub(super) port: u16,
}
