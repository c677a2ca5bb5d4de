//! The HTTP client for what is sent elsewhere: with TLS where the URL begins with `https://`.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderName, HeaderValue, Request, StatusCode, header},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::token::secret;

/// Bytes of an answer that are read, so that its connection can be used again.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Posts, each time within the same timeout.
#[derive(Debug)]
pub(crate) struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Body>,
    timeout: Duration,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// Posts, and returns the status of the answer. The error is a sentence.
    pub(crate) async fn post(
        &self,
        url: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Vec<u8>,
    ) -> Result<StatusCode, String> {
        let mut request =
            Request::post(url).body(Body::from(body)).map_err(|error| error.to_string())?;
        let agent = HeaderValue::from_static(concat!("drainprof/", env!("CARGO_PKG_VERSION")));
        let authorization = self.authorization.clone().map(|own| (header::AUTHORIZATION, own));
        request.headers_mut().extend(headers.into_iter().chain(authorization));
        request.headers_mut().insert(header::USER_AGENT, agent);
        let answer = async {
            let answer = self.pool.request(request).await.map_err(|error| causes(&error))?;
            let status = answer.status();
            // Its text does not matter.
            let _ = to_bytes(Body::new(answer.into_body()), MAX_ANSWER_BYTES).await;
            Ok(status)
        };
        let late = || format!("it has not answered within {} s", self.timeout.as_secs());
        tokio::time::timeout(self.timeout, answer).await.map_err(|_| late())?
    }
}

/// An error with its causes.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Who is written to, and how each knows the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer<'a> {
    /// The URL.
    pub(crate) url: &'a str,
    /// A file with the value of the `Authorization` header.
    pub(crate) authorization_file: Option<&'a Path>,
    /// A file with the certificates (PEM) that its certificate must come from; `None`: those that this machine trusts.
    pub(crate) ca_file: Option<&'a Path>,
}

impl Peer<'_> {
    /// A client for it. The error is a sentence.
    pub(crate) fn client(self, timeout: Duration) -> Result<Client, String> {
        let authorization = match self.authorization_file {
            Some(path) => {
                let secret = secret(path).map_err(|error| error.to_string())?;
                Some(sensitive(&secret).ok_or_else(|| {
                    format!("what {} holds is no value of an HTTP header", path.display())
                })?)
            }
            None => None,
        };
        let connector = HttpsConnectorBuilder::new().with_tls_config(self.tls()?).https_or_http();
        let pool = Pool::builder(TokioExecutor::new()).build(connector.enable_http1().build());
        Ok(Client { pool, timeout, authorization })
    }

    fn tls(self) -> Result<ClientConfig, String> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot prepare TLS: {error}"))?;
        let mut roots = RootCertStore::empty();
        match (self.url, self.ca_file) {
            (url, Some(path)) if url.starts_with("https://") => {
                let failed = |why: String| {
                    format!("cannot take certificates (PEM) from {}: {why}", path.display())
                };
                for found in
                    CertificateDer::pem_file_iter(path).map_err(|e| failed(e.to_string()))?
                {
                    let certificate = found.map_err(|error| failed(error.to_string()))?;
                    roots.add(certificate).map_err(|error| failed(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(failed("it has none".to_owned()));
                }
            }
            (url, None) if url.starts_with("https://") => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err("this machine trusts no certificate: install ca-certificates, or set `ca_file`".to_owned());
                }
            }
            (url, _) if url.starts_with("http://") => {}
            _ => return Err("expected a URL that begins with http:// or https://".to_owned()),
        }
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// A header's value that is not shown in logs.
pub(crate) fn sensitive(value: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
