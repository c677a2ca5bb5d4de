//! Just enough HTTP for proxies under test: a server behind them, a client before them, and whether a process has
//! done all that it was asked.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::mpsc::{self, Receiver},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use crate::environment::deadline;

/// What every answer ends with.
pub const BODY: &str = "It drains.\n";

/// The most that is read of a request or of an answer's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// A server on a loopback port. It answers each connection's one request, but for those of `/hang`, which it holds
/// until it is dropped.
#[derive(Debug)]
pub struct Backend {
    /// The port on which it listens.
    pub port: u16,
    /// One message for each request that it holds.
    held: Receiver<()>,
}

impl Backend {
    /// Listens.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (tell, held) = mpsc::channel();
        // Ends with the test's process: it waits for connections, and nothing else can wake it.
        thread::spawn(move || {
            let mut holding = Vec::new();
            for stream in listener.incoming().flatten() {
                let Ok((stream, request)) = one_request(stream) else { continue };
                if request.starts_with("GET /hang") {
                    holding.push(stream);
                    if tell.send(()).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self { port, held })
    }

    /// Waits until it holds `more` requests than before.
    pub fn holds(&self, more: usize) -> Result<()> {
        for _ in 0..more {
            self.held.recv_timeout(deadline()).context("no further request reached the backend")?;
        }
        Ok(())
    }
}

/// Reads a request, and answers it if it is not one to hold.
fn one_request(mut stream: TcpStream) -> Result<(TcpStream, String)> {
    stream.set_read_timeout(Some(deadline()))?;
    let request = head(&mut stream)?;
    if !request.starts_with("GET /hang") {
        let length = BODY.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{BODY}"
        )?;
    }
    Ok((stream, request))
}

/// Reads up to the empty line.
fn head(stream: &mut TcpStream) -> Result<String> {
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        got.push(byte[0]);
        ensure!(got.len() < MAX_HEAD_BYTES, "a head without end");
    }
    Ok(String::from_utf8_lossy(&got).into_owned())
}

/// A connection to a loopback port.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects.
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(deadline()))?;
        Ok(Self { stream })
    }

    /// Sends something and waits for nothing.
    pub fn send(&mut self, text: &str) -> Result<()> {
        Ok(self.stream.write_all(text.as_bytes())?)
    }

    /// Asks for a page and reads the answer, which ends with [`BODY`] or with the connection; returns all of it.
    pub fn get(&mut self, path: &str) -> Result<String> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        let mut got = head(&mut self.stream)?;
        let mut buffer = [0; 4096];
        while !got.ends_with(BODY) {
            match self.stream.read(&mut buffer)? {
                0 => break,
                length => got.push_str(&String::from_utf8_lossy(&buffer[..length])),
            }
        }
        ensure!(got.starts_with("HTTP/1.1 200"), "{path}: {got}");
        Ok(got)
    }

    /// Ends the connection: returns once the other side has ended it, too.
    pub fn end(mut self) -> Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)?;
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// One connection, one request.
pub fn get(port: u16, path: &str) -> Result<()> {
    let mut client = Client::connect(port)?;
    client.get(path)?;
    client.end()
}

/// Waits until `done` says so.
///
/// # Errors
/// If it does not within the deadline, or fails; `what` names it.
pub fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + deadline();
    while !done()? {
        ensure!(Instant::now() < end, "not within {:?}: {what}", deadline());
        thread::yield_now();
    }
    Ok(())
}

/// Waits until all threads of a process wait for events: what is there already is never waited for.
pub fn idle(pid: u32) -> Result<()> {
    use nix::libc::{
        SYS_clock_nanosleep, SYS_epoll_pwait, SYS_epoll_wait, SYS_futex, SYS_io_getevents,
        SYS_io_uring_enter, SYS_poll, SYS_ppoll, SYS_pselect6, SYS_rt_sigtimedwait, SYS_select,
    };

    const WAITS: [i64; 11] = [
        SYS_clock_nanosleep,
        SYS_epoll_pwait,
        SYS_epoll_wait,
        SYS_futex,
        SYS_io_getevents,
        SYS_io_uring_enter,
        SYS_poll,
        SYS_ppoll,
        SYS_pselect6,
        SYS_rt_sigtimedwait,
        SYS_select,
    ];
    let sleeps = |text: &str| {
        // The first word is the number of the call that the thread sleeps in, or says that it runs.
        let call = text.split_whitespace().next().and_then(|word| word.parse::<i64>().ok());
        call.is_some_and(|call| WAITS.contains(&call))
    };
    until(&format!("{pid} has nothing to do"), || {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
        // A thread may end meanwhile.
        Ok(threads.flatten().all(|thread| {
            fs::read_to_string(thread.path().join("syscall")).is_ok_and(|text| sleeps(&text))
        }))
    })
}

/// A loopback port that was free a moment ago; nothing else takes ports at random here.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
