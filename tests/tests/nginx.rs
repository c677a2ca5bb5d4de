//! Debian's nginx as it is, on a loopback port, with a configuration of the test's own.
//!
//! nginx makes one pool per connection and one per request, so `ab -n 100 -c 1` opens exactly 200 and
//! closes exactly 200. It has done all that it was asked when it sleeps in its wait for events.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::sum_rule,
    environment::{deadline, has_programs, requires_root, which},
    process::Process,
    tracer::{Outcome, Tracer},
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

const OBJECTS: [&str; 2] = ["--level", "objects"];

struct Nginx {
    process: Process,
    port: u16,
    worker: u32,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx and waits until it listens. `workers`: a master with one worker process.
    fn start(workers: bool) -> Result<Self> {
        let directory = TempDir::new()?;
        let root = directory.path();
        fs::create_dir(root.join("html"))?;
        fs::write(root.join("html/index.html"), "It drains.\n")?;
        // Free a moment ago; nobody else takes ports at random here.
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
    fn settle(&self) -> Result<()> {
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

    fn ab(&self, more: &[&str]) -> Result<()> {
        let mut command = Command::new(which("ab").context("ab is installed")?);
        command.arg("-q").args(more).arg(format!("http://127.0.0.1:{}/index.html", self.port));
        let output = command.output()?;
        ensure!(output.status.success(), "ab failed: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains("Failed requests:        0"), "{text}");
        Ok(())
    }

    /// Connects, sends `request`, and where it is whole reads the response to its end.
    fn ask(&self, request: &str) -> Result<TcpStream> {
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

    fn quit(mut self) -> Result<()> {
        self.process.signal(Signal::SIGQUIT)?;
        self.process.wait().map(drop)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A master that is told to stop ends its workers; one that is killed would leave them behind.
        // If it has ended already there is nobody to tell.
        if self.process.signal(Signal::SIGTERM).is_ok() {
            let _ = self.process.wait();
        }
    }
}

fn worker_pid(line: &str) -> Result<u32> {
    let pid = line.rsplit(' ').next().context("the line has words")?;
    pid.parse().with_context(|| format!("no pid at the end of {line:?}"))
}

fn ready() -> bool {
    requires_root() && has_programs(&["nginx", "ab"])
}

/// The allocator of one process.
fn pools(outcome: &Outcome, pid: u32) -> Result<Value> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    let targets = report["targets"].as_array().context("a list of targets")?;
    let target = targets
        .iter()
        .find(|target| target["pid"] == pid)
        .with_context(|| format!("no target {pid} in {targets:?}"))?;
    let allocator = target["allocators"][0].clone();
    ensure!(!allocator.is_null(), "nothing was seen of {pid}: {target}");
    assert_eq!(sum_rule(&allocator), None);
    assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"bulk".into(), &Value::Null));
    Ok(allocator)
}

fn granules(allocator: &Value) -> [u64; 4] {
    ["opened", "opened_before", "closed", "open_now"]
        .map(|key| allocator["granules"][key].as_u64().unwrap_or(u64::MAX))
}

/// 100 requests over 100 connections: 200 pools opened, 200 closed, none left.
#[test]
fn one_process_is_exact() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(false)?;
        // Twice: the second attach finds a process that was traced before.
        for _ in 0..2 {
            let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
            nginx.ab(&["-n", "100", "-c", "1"])?;
            nginx.settle()?;
            tracer.interrupt()?;
            let allocator = pools(&tracer.finish()?, nginx.worker)?;
            assert_eq!(granules(&allocator), [200, 0, 200, 0], "{allocator}");
            assert_eq!(allocator["objects"]["live"], 0, "a bulk close frees the members");
        }
        nginx.quit()?;
    }
    Ok(())
}

/// The same 100 requests over one kept connection: 101 pools.
#[test]
fn keep_alive_is_exact() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(false)?;
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
        nginx.ab(&["-k", "-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        assert_eq!(granules(&allocator), [101, 0, 101, 0], "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// Master and worker, both named by pid: the worker does it all, and no more than that.
#[test]
fn worker_is_exact() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(true)?;
        let pids = [nginx.process.pid(), nginx.worker];
        let tracer = Tracer::attach(&pids, "nginx", &OBJECTS)?;
        nginx.ab(&["-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        assert_eq!(granules(&allocator), [200, 0, 200, 0], "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// A worker that the master forks after a reload is followed from its first instruction.
#[test]
fn new_worker_is_followed() -> Result<()> {
    if ready() {
        let mut nginx = Nginx::start(true)?;
        let more = ["--level", "objects", "--follow-forks"];
        let tracer = Tracer::attach(&[nginx.process.pid()], "nginx", &more)?;
        let old = nginx.worker;
        nginx.process.signal(Signal::SIGHUP)?;
        nginx.worker = worker_pid(&nginx.process.expect_err_containing("start worker process ")?)?;
        nginx.process.expect_err_containing(&format!("worker process {old} exited"))?;
        nginx.ab(&["-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        let [opened, _, closed, _] = granules(&allocator);
        assert_eq!((opened, closed), (200, 200), "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// Five idle kept connections and three half-sent requests hold exactly eleven pools.
#[test]
fn idle_connections_hold_pools() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(false)?;
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
        let whole = "GET /index.html HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(nginx.ask(whole)?);
        }
        for _ in 0..3 {
            held.push(nginx.ask("GET /index.html HTTP/1.1\r\nHo")?);
        }
        nginx.settle()?;
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let allocator = pools(&outcome, nginx.worker)?;
        // Five requests were answered; eight connections and three requests are open.
        assert_eq!(granules(&allocator), [16, 0, 5, 11], "{allocator}");
        let open = allocator["open_granules"].as_array().context("a list")?;
        assert_eq!(open.len(), 11, "{open:?}");
        drop(held);
        nginx.quit()?;
    }
    Ok(())
}
