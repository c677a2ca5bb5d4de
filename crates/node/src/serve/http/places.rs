//! Places for connections: so many in all, and a share of them for each client.
//!
//! A client on another machine is its address. On this machine all have the same, so there a client is the user that
//! owns the other end of the connection, which the kernel's socket diagnostics name. Where they do not, such clients
//! share one client's part. Each question is answered from one lookup, however many sockets there are; `/proc/net/tcp`
//! would be read whole.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::peer::Peer;

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// A user of this machine.
    User(u32),
    /// Another machine.
    Machine(IpAddr),
    /// A user of this machine whom the kernel does not name.
    Unknown,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    most_each: usize,
    taken: Mutex<BTreeMap<Client, usize>>,
    diagnostics: Option<OwnedFd>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    client: Client,
}

impl Places {
    /// So many in all, so many for each client.
    pub(super) fn new(most: usize, most_each: usize) -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::SOCK_DIAG);
        let opened = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol);
        if let Err(error) = &opened {
            tracing::warn!(
                %error,
                "no socket diagnostics (AF_NETLINK): all users of this machine share one client's connections"
            );
        }
        Self { most, most_each, taken: Mutex::default(), diagnostics: opened.ok() }
    }

    /// A place for a connection, if there is one.
    pub(super) fn take(self: &Arc<Self>, peer: Peer) -> Option<Place> {
        let client = self.client(peer);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&client).copied().unwrap_or_default();
        if taken.values().sum::<usize>() >= self.most || own >= self.most_each {
            return None;
        }
        taken.insert(client, own + 1);
        Some(Place { places: Arc::clone(self), client })
    }

    fn client(&self, peer: Peer) -> Client {
        let address = peer.remote.ip().to_canonical();
        if !address.is_loopback() && address != peer.local.to_canonical() {
            return Client::Machine(address);
        }
        let owner = self.diagnostics.as_ref().map(|socket| owner(socket, peer));
        match owner {
            Some(Ok(user)) => Client::User(user),
            Some(Err(error)) => {
                tracing::debug!(%error, remote = %peer.remote, "the owner of a connection is not known");
                Client::Unknown
            }
            None => Client::Unknown,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

/// `SOCK_DIAG_BY_FAMILY`, the only kind of message here.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct nlmsghdr`, and `struct inet_diag_req_v2`.
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// Where `idiag_uid` of `struct inet_diag_msg` stands in an answer.
const USER_OFFSET: usize = HEADER_BYTES + 64;

/// The user that owns the other end of a connection on this machine.
fn owner(socket: &OwnedFd, peer: Peer) -> io::Result<u32> {
    send(socket, &question(peer), SendFlags::empty())?;
    let mut answer = [0; 512];
    let (_, length) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    let is_answer = length >= USER_OFFSET + 4 && answer[4..6] == SOCK_DIAG_BY_FAMILY.to_ne_bytes();
    let user = answer[USER_OFFSET..].first_chunk().filter(|_| is_answer);
    user.map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the kernel knows no such socket"))
}

/// The request for the socket whose own address is the remote one.
fn question(peer: Peer) -> [u8; QUESTION_BYTES] {
    let mut bytes = [0; QUESTION_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(QUESTION_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    let (from, to) = (peer.remote.ip().to_canonical(), peer.local.to_canonical());
    put(
        HEADER_BYTES,
        &[if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }.as_raw() as u8],
    );
    // TCP, in any state.
    put(HEADER_BYTES + 1, &[6]);
    put(HEADER_BYTES + 4, &u32::MAX.to_ne_bytes());
    put(HEADER_BYTES + 8, &peer.remote.port().to_be_bytes());
    put(HEADER_BYTES + 10, &peer.port.to_be_bytes());
    for (at, address) in [(HEADER_BYTES + 12, from), (HEADER_BYTES + 28, to)] {
        match address {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    // Any cookie.
    put(HEADER_BYTES + 48, &u64::MAX.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    fn connected(address: &str) -> (TcpStream, Peer) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, remote) = listener.accept().unwrap();
        let local = stream.local_addr().unwrap();
        (client, Peer { remote, local: local.ip(), port: local.port() })
    }

    /// A connection of our own is ours.
    #[test]
    fn the_kernel_knows_the_owner() {
        let places = Places::new(8, 8);
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, peer) = connected(address);
            let own = nix::unistd::Uid::effective().as_raw();
            assert_eq!(places.client(peer), Client::User(own), "{address}");
        }
    }

    /// One client has its part, and no more than there is in all; a place that is given back can be taken again.
    #[test]
    fn places_are_shared() {
        let places = Arc::new(Places::new(3, 2));
        let from = |last: u8| Peer {
            remote: SocketAddr::from(([10, 0, 0, last], 1)),
            local: IpAddr::from([10, 0, 0, 1]),
            port: 9464,
        };
        let (first, second) = (places.take(from(2)), places.take(from(2)));
        assert!(first.is_some() && second.is_some());
        assert!(places.take(from(2)).is_none(), "its part is used up");
        let other = places.take(from(3));
        assert!(other.is_some());
        assert!(places.take(from(4)).is_none(), "there are three");
        drop(first);
        assert!(places.take(from(2)).is_some());
    }
}
