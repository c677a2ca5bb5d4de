//! Which requests HTTP answers, and how much: `Host` and `Origin` are checked, and the token.
//!
//! A web page whose name resolves to this machine (DNS rebinding) sends its own name as `Host`; so names that are not
//! ours are refused. An address as `Host` is safe: a page cannot have it unless it came from there.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::{super::token::Token, peer::Peer};
use crate::Refusal;

/// How much a client may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It has the token: everything, as it is.
    Full,
    /// It has not: the state without addresses.
    Public,
}

/// Checks requests before anything else sees them.
#[derive(Debug)]
pub(crate) struct Guard {
    names: Vec<String>,
    token: Option<Token>,
}

impl Guard {
    /// With further names of this machine.
    pub(crate) fn new(names: &[String], token: Option<Token>) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { names, token }
    }

    /// A layer of the router.
    pub(super) async fn admit(
        State(guard): State<Arc<Self>>,
        mut request: Request,
        next: Next,
    ) -> Response {
        let local = request.extensions().get::<Peer>().map(|peer| peer.local);
        let named = request.uri().host().is_none_or(|host| guard.knows(host, local));
        if !named || !guard.is_ours(request.headers(), local) {
            let message = "this is not the name of this server; listen.hosts can add names";
            return forbidden(message);
        }
        match guard.access(request.headers()) {
            Some(access) => {
                request.extensions_mut().insert(access);
                next.run(request).await
            }
            None => unauthorized("this is not the token"),
        }
    }

    /// Whether there is a token at all.
    pub(super) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether this is the token.
    pub(super) fn is_token(&self, given: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.is(given.trim().as_bytes()))
    }

    /// Why a request that needs the token is refused, if it is.
    pub(super) fn refusal(&self, access: Access) -> Option<Response> {
        match (access, &self.token) {
            (Access::Full, _) => None,
            (Access::Public, Some(_)) => Some(unauthorized(
                "this needs the token (Authorization: Bearer …); or ask on the control socket",
            )),
            (Access::Public, None) => Some(forbidden(
                "this needs a token, and listen.token_file names none; or ask on the control socket",
            )),
        }
    }

    /// Whether the request names this server, once, and does not come from another server's page.
    fn is_ours(&self, headers: &HeaderMap, local: Option<IpAddr>) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let origin = |origin: &header::HeaderValue| {
            let text = origin.to_str().unwrap_or_default();
            let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
            host.is_some_and(|host| self.knows(host, local))
        };
        host.is_some_and(|host| self.knows(host, local))
            && hosts.next().is_none()
            && headers.get_all(header::ORIGIN).iter().all(origin)
    }

    /// Whether a host, with or without a port, is this server: by name, or by the address that was connected to.
    fn knows(&self, host: &str, local: Option<IpAddr>) -> bool {
        let Some((host, is_bracketed)) = without_port(host) else { return false };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        match host.parse::<IpAddr>() {
            Ok(address) if address.is_ipv6() != is_bracketed => false,
            Ok(address) => {
                let address = address.to_canonical();
                address.is_loopback() || local.is_some_and(|local| local.to_canonical() == address)
            }
            Err(_) => !is_bracketed && (host == "localhost" || self.names.contains(&host)),
        }
    }

    /// How much a request may; `None`: it has a token that is wrong.
    fn access(&self, headers: &HeaderMap) -> Option<Access> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
        });
        match (given, &self.token) {
            (None, _) => Some(Access::Public),
            (Some(given), Some(token)) if token.is(given) => Some(Access::Full),
            (Some(_), _) => None,
        }
    }
}

/// A host without its port, and whether it stands in brackets; `None`: it is neither.
fn without_port(host: &str) -> Option<(&str, bool)> {
    let (host, after, is_bracketed) = if let Some(rest) = host.strip_prefix('[') {
        rest.split_once(']').map(|(address, after)| (address, after, true))?
    } else {
        let (host, after) = host.split_at(host.find(':').unwrap_or(host.len()));
        (host, after, false)
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (after.is_empty() || after.strip_prefix(':').is_some_and(is_port))
        .then_some((host, is_bracketed))
}

fn forbidden(message: &str) -> Response {
    (StatusCode::FORBIDDEN, Json(Refusal::Forbidden { message: message.to_owned() }))
        .into_response()
}

fn unauthorized(message: &str) -> Response {
    let body = Json(Refusal::Forbidden { message: message.to_owned() });
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our names and addresses, with any port; no others, however similar.
    #[test]
    fn hosts() {
        let guard = Guard::new(&["Node1.example".to_owned()], None);
        let local = Some(IpAddr::from([10, 0, 0, 7]));
        for (host, known) in [
            ("localhost", true),
            ("LOCALHOST:9464", true),
            ("localhost.", true),
            ("127.0.0.1:9464", true),
            ("[::1]:9464", true),
            ("[::ffff:127.0.0.1]", true),
            ("10.0.0.7:9464", true),
            ("node1.example:80", true),
            ("10.0.0.8", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("", false),
            ("[::1", false),
            ("[::1]evil.example", false),
            ("[::1]:80.evil.example", false),
            ("localhost:80.evil.example", false),
            ("localhost:evil", false),
            ("localhost..", false),
            ("[127.0.0.1]", false),
            ("[localhost]", false),
            ("::1", false),
        ] {
            assert_eq!(guard.knows(host, local), known, "{host}");
        }
    }

    /// One host, and no foreign origin.
    #[test]
    fn headers() {
        let guard = Guard::new(&[], None);
        let is_ours = |all: &[(header::HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in all {
                headers.append(name, value.parse().unwrap());
            }
            guard.is_ours(&headers, None)
        };
        let host = (header::HOST, "localhost:9464");
        assert!(is_ours(std::slice::from_ref(&host)));
        assert!(is_ours(&[host.clone(), (header::ORIGIN, "http://localhost:9464")]));
        assert!(!is_ours(&[]));
        assert!(!is_ours(&[host.clone(), host.clone()]));
        for origin in ["null", "http://evil.example", "https://evil.example:9464", "file://"] {
            assert!(!is_ours(&[host.clone(), (header::ORIGIN, origin)]), "{origin}");
        }
    }
}
