//! Programs that run, and can be asked to do a little of everything.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{
    environment,
    nginx::Nginx,
    php::Php,
    postgresql::{Cluster, Session},
    process::Process,
    subversion::Server,
    target::Target,
};

/// A program that runs. Dropping it ends it.
pub trait Live {
    /// The process to look at.
    fn pid(&self) -> u32;
    /// Has it do something with its allocator, to the end of it. Called once, when the probes are in place.
    ///
    /// # Errors
    /// If the program does not do it.
    fn work(&mut self) -> Result<()>;
    /// Ends it properly.
    ///
    /// # Errors
    /// If it does not end.
    fn end(self: Box<Self>) -> Result<()>;
}

/// One of our own targets, as it is started for its test.
pub(super) fn target(name: &str, args: &[&str]) -> Result<Box<dyn Live>> {
    let target = Target::start(name, args)?;
    Ok(Box::new(Own { pid: target.pid(), target: Some(target) }))
}

/// A program of ours that allocates in every way, on a malloc that is preloaded or on the C library's.
pub(super) fn malloc(library: Option<&str>) -> Result<Box<dyn Live>> {
    let mut command = Command::new(environment::target("malloc_family")?);
    command.args(["20", "wait"]);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let target = Target::start_command("malloc_family", command)?;
    Ok(Box::new(Own { pid: target.pid(), target: Some(target) }))
}

struct Own {
    pid: u32,
    target: Option<Target>,
}

impl Live for Own {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn work(&mut self) -> Result<()> {
        let mut target = self.target.take().context("it works once")?;
        target.go()?;
        // It has done everything when it has ended.
        target.finish().map(drop)
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A Python that compiles.
pub(super) fn python() -> Result<Box<dyn Live>> {
    Python::start("for _ in range(10): compile('x = [1, 2, 3]', 'text', 'exec')", &[])
}

/// A Python on tcmalloc that fills spans with objects, and lets them go.
pub(super) fn python_on_tcmalloc() -> Result<Box<dyn Live>> {
    let env = [
        ("PYTHONMALLOC", "malloc"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    ];
    Python::start("kept = [bytes(100) for _ in range(20000)]\ndel kept", &env)
}

/// A Python that works when it gets a line, and ends.
struct Python {
    pid: u32,
    process: Option<Process>,
}

impl Python {
    fn start(work: &str, env: &[(&str, &str)]) -> Result<Box<dyn Live>> {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-s", "-S", "-c"]).envs(env.iter().copied());
        command
            .arg(format!("import sys\nprint('READY', flush=True)\nsys.stdin.readline()\n{work}\n"));
        let mut process = Process::start("python3", command)?;
        process.expect_out("READY")?;
        Ok(Box::new(Self { pid: process.pid(), process: Some(process) }))
    }
}

impl Live for Python {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn work(&mut self) -> Result<()> {
        let mut process = self.process.take().context("it works once")?;
        process.send_line("go")?;
        let ended = process.finish()?;
        ensure!(ended.status.success(), "python failed: {ended:?}");
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// PHP's development server.
pub(super) fn php() -> Result<Box<dyn Live>> {
    Ok(Box::new(Php::start()?))
}

impl Live for Php {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn work(&mut self) -> Result<()> {
        for path in ["/gather.php?n=10", "/fail.php"] {
            self.get(path)?;
        }
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        // It does not end by itself; dropping it ends it.
        Ok(())
    }
}

/// An svnserve with a client.
pub(super) fn svnserve() -> Result<Box<dyn Live>> {
    Ok(Box::new(Server::start()?))
}

impl Live for Server {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn work(&mut self) -> Result<()> {
        self.open_repository()
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.stop()
    }
}

/// An nginx of one process.
pub(super) fn nginx() -> Result<Box<dyn Live>> {
    Ok(Box::new(Nginx::start(false)?))
}

impl Live for Nginx {
    fn pid(&self) -> u32 {
        self.worker
    }

    fn work(&mut self) -> Result<()> {
        self.ab(&["-n", "100", "-c", "1"])?;
        self.ab(&["-k", "-n", "100", "-c", "4"])?;
        self.settle()
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.quit()
    }
}

/// A backend of PostgreSQL.
pub(super) fn postgres() -> Result<Box<dyn Live>> {
    let cluster = Cluster::start()?;
    let mut session = cluster.session()?;
    let pid = session.backend()?;
    Ok(Box::new(Backend { session, pid, cluster }))
}

struct Backend {
    session: Session,
    pid: u32,
    cluster: Cluster,
}

impl Live for Backend {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn work(&mut self) -> Result<()> {
        self.session.run(
            "create temp table t as select n, n::text as s from generate_series(1, 5000) n; \
             analyze t; select s, count(*) from t group by s order by s limit 1; \
             select * from t a join t b using (n) order by a.s limit 1; \
             prepare p as select count(*) from t; execute p; deallocate p;",
        )
    }

    fn end(self: Box<Self>) -> Result<()> {
        let Self { session, cluster, .. } = *self;
        drop(session);
        cluster.stop()
    }
}
