//! Debian's httpd as it is: a census of the pools of the Apache Portable Runtime, by tag.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, deadline, has_programs, requires_root, which},
    process::Process,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

const MODULES: &str = "/usr/lib/apache2/modules";

/// httpd with one process that serves, on a loopback port.
struct Httpd {
    process: Process,
    port: u16,
    _directory: TempDir,
}

impl Httpd {
    fn start() -> Result<Self> {
        let directory = TempDir::new()?;
        let root = directory.path().display();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let text = format!(
            "ServerRoot {root}\nPidFile {root}/pid\nErrorLog /dev/stderr\nListen 127.0.0.1:{port}\n\
             ServerName a\nUser nobody\nGroup nogroup\nDocumentRoot {root}\n\
             LoadModule mpm_event_module {MODULES}/mod_mpm_event.so\n\
             LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
             StartServers 1\nThreadsPerChild 16\nMaxRequestWorkers 16\nMinSpareThreads 1\n\
             MaxSpareThreads 16\nKeepAliveTimeout 600\nTimeout 600\nLogLevel notice\n"
        );
        let config = directory.path().join("httpd.conf");
        fs::write(&config, text)?;
        let mut command = Command::new(which("apache2").context("apache2 is installed")?);
        command.arg("-f").arg(&config).arg("-DFOREGROUND");
        let mut process = Process::start("apache2", command)?;
        process.expect_err_containing("resuming normal operations")?;
        Ok(Self { process, port, _directory: directory })
    }

    fn ask(&self, request: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(deadline()))?;
        stream.write_all(request.as_bytes())?;
        if request.ends_with("\r\n\r\n") {
            let mut first = [0; 15];
            stream.read_exact(&mut first)?;
            ensure!(first.starts_with(b"HTTP/1.1 "), "{first:?}");
        }
        Ok(stream)
    }

    /// The process that serves.
    fn worker(&self) -> Result<u32> {
        let pid = self.process.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        children.trim().parse().with_context(|| format!("one child in {children:?}"))
    }
}

fn pools(pid: u32) -> Result<Vec<Value>> {
    let mut command = Command::new(environment::drainprof()?);
    let output = command.args(["census", "-o", "json", "-p", &pid.to_string()]).output()?;
    ensure!(output.status.success(), "{output:?}");
    let mut census: Value = serde_json::from_slice(&output.stdout)?;
    Ok(census["contexts"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// Two connections that are idle have a pool each; three with a half-sent request have one of the request, too. The
/// configuration's pool is there, in the process that serves and in the other.
#[test]
fn pools_by_tag() -> Result<()> {
    if !requires_root() || !has_programs(&["apache2"]) {
        return Ok(());
    }
    let mut httpd = Httpd::start()?;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(httpd.ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")?);
    }
    for _ in 0..3 {
        held.push(httpd.ask("GET /a HTTP/1.1\r\nHost: a\r\n")?);
    }
    let worker = httpd.worker()?;
    let count = |pools: &[Value], tag: &str| pools.iter().filter(|own| own["name"] == tag).count();
    // httpd does not say when it has read the begin of a request, or is done with one.
    let until = Instant::now() + deadline();
    let seen = loop {
        let seen = pools(worker)?;
        if count(&seen, "request") == 3 && count(&seen, "transaction") == 5 {
            break seen;
        }
        ensure!(Instant::now() < until, "{seen:?}");
    };
    let sane = |own: &Value| {
        let (total, free) = (own["total_bytes"].as_u64(), own["free_bytes"].as_u64());
        own["kind"] == "pool" && total.is_some_and(|total| total % 4096 == 0) && free < total
    };
    ensure!(seen.iter().all(sane), "{seen:?}");
    assert_eq!(count(&seen, "pconf"), 1, "{seen:?}");
    assert_eq!(count(&pools(httpd.process.pid())?, "pconf"), 1);
    drop(held);
    httpd.process.signal(Signal::SIGTERM)?;
    httpd.process.wait()?;
    Ok(())
}
