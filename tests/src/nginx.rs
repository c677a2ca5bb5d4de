//! Debian's nginx as it is, on a loopback port, with a configuration of its own in a temporary directory.
//!
//! Used by the end-to-end tests and by the benchmark of nginx.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    environment::{deadline, which},
    process::Process,
};

/// An nginx that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Nginx {
    /// The process that was started: the master, or the only one.
    pub process: Process,
    /// The port on which it listens.
    pub port: u16,
    /// The process that serves.
    pub worker: u32,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx and waits until it listens. `workers`: a master with one worker process.
    pub fn start(workers: bool) -> Result<Self> {
        let directory = TempDir::new()?;
        let root = directory.path();
        fs::create_dir(root.join("html"))?;
        fs::write(root.join("html/index.html"), "It drains.\n")?;
        // Free a moment ago; nothing else takes ports at random here.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let at = root.display();
        let text = format!(
            "daemon off; master_process {}; worker_processes 1; user root;\n\
             pid {at}/nginx.pid; error_log stderr notice;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; keepalive_timeout 600; client_header_timeout 600;\n\
             client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
             fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
             server {{ listen 127.0.0.1:{port}; root {at}/html; }} }}\n",
            if workers { "on" } else { "off" }
        );
        let config = root.join("nginx.conf");
        fs::write(&config, text)?;
        let mut command = Command::new(which("nginx").context("nginx is installed")?);
        command.arg("-p").arg(root).arg("-c").arg(&config).args(["-e", "stderr"]);
        let mut process = Process::start("nginx", command)?;
        let worker = if workers {
            worker_pid(&process.expect_err_containing("start worker process ")?)?
        } else {
            process.expect_err_containing("using the ")?;
            process.pid()
        };
        Ok(Self { process, port, worker, _directory: directory })
    }

    /// Returns once nginx has done all that it was asked before.
    ///
    /// It has when it waits for events: those that are there are never waited for. Its log cannot tell,
    /// since USR1 is logged from the signal handler, in the middle of a request if it comes there.
    pub fn settle(&self) -> Result<()> {
        let until = Instant::now() + deadline();
        let state = format!("/proc/{}/syscall", self.worker);
        loop {
            let text = fs::read_to_string(&state).with_context(|| format!("read {state}"))?;
            // The first word is the number of the call that it sleeps in, or says that it runs.
            let call = text.split_whitespace().next().and_then(|word| word.parse::<i64>().ok());
            if call.is_some_and(|call| {
                [nix::libc::SYS_epoll_wait, nix::libc::SYS_epoll_pwait].contains(&call)
            }) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "nginx is still busy: {text}");
            std::thread::yield_now();
        }
    }

    /// Runs `ab` against it, and returns what it printed; a failed request is an error.
    pub fn ab(&self, more: &[&str]) -> Result<String> {
        let mut command = Command::new(which("ab").context("ab is installed")?);
        command.arg("-q").args(more).arg(format!("http://127.0.0.1:{}/index.html", self.port));
        let output = command.output()?;
        ensure!(output.status.success(), "ab failed: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains("Failed requests:        0"), "{text}");
        Ok(text)
    }

    /// Connects, sends `request`, and where it is whole reads the response to its end.
    pub fn ask(&self, request: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(deadline()))?;
        stream.write_all(request.as_bytes())?;
        if request.ends_with("\r\n\r\n") {
            let mut got = Vec::new();
            let mut byte = [0];
            while !got.ends_with(b"It drains.\n") {
                stream.read_exact(&mut byte)?;
                got.push(byte[0]);
            }
        }
        Ok(stream)
    }

    /// Asks it to finish, and waits until it has.
    pub fn quit(mut self) -> Result<()> {
        self.process.signal(Signal::SIGQUIT)?;
        self.process.wait().map(drop)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A master that is asked to stop ends its workers; one that is killed would leave them behind.
        // It may have ended already.
        if self.process.signal(Signal::SIGTERM).is_ok() {
            let _ = self.process.wait();
        }
    }
}

/// The process id at the end of a line of nginx's log.
pub fn worker_pid(line: &str) -> Result<u32> {
    let pid = line.rsplit(' ').next().context("the line has words")?;
    pid.parse().with_context(|| format!("no pid at the end of {line:?}"))
}
