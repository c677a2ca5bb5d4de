use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::PathBuf,
    time::Duration,
};

use super::{Running, state, window};
use crate::{
    Answer, Outcome, Refusal, Request,
    serve::{AskError, Client, Limits, Options, ServeError, Server},
};

fn options(socket: PathBuf) -> Options {
    Options { http: None, socket: Some(socket), ..Options::default() }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// A client asks several things on one connection; refusals are errors that say why.
#[tokio::test]
async fn client_asks() {
    let running = Running::start(Limits::default(), None, true);
    let socket = running.socket();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    blocking(move || {
        let mut client = Client::connect(&socket).unwrap();
        let shown = client.ask(&Request::State).unwrap();
        assert_eq!(shown, Answer::State { state: Box::new(state()) });
        let windows = client.ask(&Request::Windows { limit: 1 }).unwrap();
        assert_eq!(windows, Answer::Windows { windows: vec![window(8, Outcome::Running)] });
        assert!(matches!(client.ask(&Request::Report { pid: 4242 }), Ok(Answer::Report { .. })));
        let refused = client.ask(&Request::Report { pid: 1 }).unwrap_err();
        assert!(matches!(refused, AskError::Refused(Refusal::NotFound { .. })), "{refused:?}");
        let done = Answer::Done { message: "done".to_owned() };
        assert_eq!(client.ask(&Request::Kill).unwrap(), done);
    })
    .await;
    running.stop().await;
}

/// Garbage and lines without end get one line, and the connection ends; the next client is served.
#[tokio::test]
async fn garbage_is_answered_once() {
    let running = Running::start(Limits::default(), None, true);
    let socket = running.socket();
    blocking(move || {
        let long = vec![b'['; 70_000];
        let garbage: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\n",
            b"\xff\xfe\n",
            b"{\"request\":\"report\",\"pid\":1,\"more\":1}\n",
            &long,
        ];
        for bytes in garbage {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let _ = stream.write_all(bytes);
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert!(line.starts_with("{\"error\":\""), "{line}");
            let mut rest = Vec::new();
            let _ = reader.read_to_end(&mut rest);
            assert!(rest.is_empty());
        }
        assert!(Client::connect(&socket).unwrap().ask(&Request::State).is_ok());
    })
    .await;
    running.stop().await;
}

/// Clients that say nothing are let go, and there are never more than a few.
#[tokio::test]
async fn clients_are_bounded() {
    let limits =
        Limits { clients: 2, idle_timeout: Duration::from_millis(300), ..Limits::default() };
    let running = Running::start(limits, None, true);
    let socket = running.socket();
    blocking(move || {
        let idle: Vec<_> = (0..2).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        let refused = Client::connect(&socket).unwrap().ask(&Request::State).unwrap_err();
        assert!(matches!(refused, AskError::Refused(Refusal::NotNow { .. })), "{refused:?}");
        for mut stream in idle {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
        assert!(Client::connect(&socket).unwrap().ask(&Request::State).is_ok());
    })
    .await;
    running.stop().await;
}

/// A daemon that runs keeps its socket, and is named; what a dead one left is replaced; other files are left alone.
#[test]
fn place_has_one_owner() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let first = Server::bind(&options(socket.clone())).unwrap();
    let second = Server::bind(&options(socket.clone())).unwrap_err();
    let pid = std::process::id().to_string();
    assert!(
        matches!(&second, ServeError::Running { pid: reported, .. } if *reported == pid),
        "{second}"
    );
    assert!(UnixStream::connect(&socket).is_ok());
    drop(first);
    assert!(!socket.exists());
    // As a killed daemon leaves it: nothing listens, the lock is free.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let third = Server::bind(&options(socket.clone())).unwrap();
    assert!(UnixStream::connect(&socket).is_ok());
    drop(third);
    fs::write(&socket, "precious").unwrap();
    let refused = Server::bind(&options(socket.clone())).unwrap_err();
    assert!(matches!(refused, ServeError::NoSocket { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    let mut foreign = options(directory.path().join("other.sock"));
    foreign.group = Some("no-such-group-here".to_owned());
    let refused = Server::bind(&foreign).unwrap_err();
    assert!(refused.to_string().contains("groupadd"), "{refused}");
}

/// Without a daemon, a client says what to do.
#[test]
fn no_daemon_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let error = Client::connect(&socket).unwrap_err();
    assert!(error.to_string().contains("is it running?"), "{error}");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = Client::connect(&socket).unwrap_err();
    assert!(matches!(error, AskError::NoDaemon { .. }), "{error}");
}
