//! The HTTP client for what is sent elsewhere: with TLS where the URL begins with `https://`.

use std::{path::Path, sync::Arc, time::Duration};

use axum::http::HeaderValue;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::{ServeError, secret};

pub(crate) type Client = HyperClient<HttpsConnector<HttpConnector>>;

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
                let secret = secret(path).map_err(|error: ServeError| error.to_string())?;
                Some(sensitive(&secret).ok_or_else(|| {
                    format!("what {} holds is no value of an HTTP header", path.display())
                })?)
            }
            None => None,
        };
        let connector = HttpsConnectorBuilder::new().with_tls_config(self.tls()?).https_or_http();
        Ok(Client::new(connector.enable_http1().build(), timeout, authorization))
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
