use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use super::{Running, get, raw};
use crate::serve::Limits;

fn limits() -> Limits {
    Limits {
        connections: 16,
        header_timeout: Duration::from_millis(300),
        connection_timeout: Duration::from_secs(2),
        ..Limits::default()
    }
}

/// Ten megabytes of headers are refused, and the server goes on.
#[tokio::test]
async fn headers_are_bounded() {
    let running = Running::start(limits(), None, true);
    let address = running.http;
    let refused = tokio::task::spawn_blocking(move || {
        let mut bytes = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n".to_vec();
        for index in 0..10_000 {
            bytes.extend(format!("x-{index}: {}\r\n", "a".repeat(1_000)).bytes());
        }
        raw(address, &bytes)
    })
    .await
    .unwrap();
    // What was not read when the connection was closed may cut the answer off: status 0.
    assert!(matches!(refused.status, 431 | 0), "{refused:?}");
    assert_eq!(get(address, "/healthz").await.status, 200);
    running.stop().await;
}

/// A client that sends slowly, reads slowly or sends rubbish is cut off, and harms no other.
#[tokio::test]
async fn hanging_clients_are_cut_off() {
    let running = Running::start(limits(), None, true);
    let address = running.http;
    tokio::task::spawn_blocking(move || {
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"GET /metrics HTTP/1.1\r\nx: ").unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The end comes by itself: the read ends, whatever it has got.
        let mut text = Vec::new();
        let ended = slow.read_to_end(&mut text);
        assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
        assert!(!String::from_utf8_lossy(&text).contains(" 200 "));
    })
    .await
    .unwrap();
    let rubbish = tokio::task::spawn_blocking(move || raw(address, &[0xff; 4096])).await.unwrap();
    assert_eq!(rubbish.status, 400);
    assert_eq!(get(address, "/healthz").await.status, 200);
    running.stop().await;
}

/// Two hundred connections at once: those beyond the bound get that answer, and none leaves a descriptor behind.
#[tokio::test]
async fn connections_are_bounded() {
    let running = Running::start(limits(), None, true);
    let address = running.http;
    let full = tokio::task::spawn_blocking(move || {
        let mut streams: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut full = 0;
        for stream in &mut streams {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let mut text = Vec::new();
            let ended = stream.read_to_end(&mut text);
            assert!(
                !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
            );
            full += usize::from(String::from_utf8_lossy(&text).contains(" 503 "));
        }
        full
    })
    .await
    .unwrap();
    assert!((1..=184).contains(&full), "{full}");
    assert_eq!(get(address, "/healthz").await.status, 200);
    // No socket of the port of this server is open still.
    let port = format!(":{:04X} ", address.port());
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let open = table
        .lines()
        .filter(|line| {
            line.split_whitespace().nth(1).is_some_and(|local| format!("{local} ").ends_with(&port))
        })
        .filter(|line| line.split_whitespace().nth(3) == Some("01"))
        .count();
    assert_eq!(open, 0, "{table}");
    running.stop().await;
}
