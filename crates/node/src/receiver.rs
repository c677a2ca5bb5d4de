//! A server for tests of what is sent elsewhere: it takes requests one by one, with TLS if it is to.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// A request: its first line, its headers in small letters, and its body.
pub(crate) struct Taken {
    pub(crate) line: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// What reads and writes.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Where requests come in.
pub(crate) struct Receiver {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    /// Where its certificate stands as PEM.
    directory: Option<tempfile::TempDir>,
}

impl Receiver {
    /// Without TLS.
    pub(crate) fn plain() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), tls: None, directory: None }
    }

    /// With TLS, and a certificate for its address that no machine trusts by itself.
    pub(crate) fn tls() -> Self {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), own.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        Self { tls: Some(Arc::new(config)), directory: Some(directory), ..Self::plain() }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listener.local_addr().unwrap())
    }

    /// The file with its certificate.
    pub(crate) fn ca_file(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.path().join("ca.pem"))
    }

    /// Takes one request and answers it with a status.
    pub(crate) fn take(&self, status: &str) -> Taken {
        let (mut stream, taken) = self.request();
        answer(&mut stream, status);
        taken
    }

    /// Takes one request. Connections on which none comes are passed over.
    pub(crate) fn request(&self) -> (Box<dyn Stream>, Taken) {
        loop {
            let (stream, _) = self.listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut stream = self.secured(stream);
            if let Some(taken) = read(&mut stream) {
                return (stream, taken);
            }
        }
    }

    fn secured(&self, stream: TcpStream) -> Box<dyn Stream> {
        match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                Box::new(StreamOwned::new(connection, stream))
            }
        }
    }
}

/// `None` if the connection ends before the request does.
fn read(stream: &mut dyn Stream) -> Option<Taken> {
    let mut bytes = Vec::new();
    loop {
        let mut some = [0; 4096];
        let read = stream.read(&mut some).ok().filter(|read| *read > 0)?;
        bytes.extend(&some[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let line = head.lines().next().unwrap().to_owned();
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if bytes.len() >= end + 4 + length.trim().parse::<usize>().unwrap() {
            let body = bytes.split_off(end + 4);
            return Some(Taken { line, head, body });
        }
    }
}

pub(crate) fn answer(stream: &mut dyn Stream, status: &str) {
    let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).unwrap();
    stream.flush().unwrap();
}
