//! Programs that run, and can be asked to do a little of everything.

use anyhow::{Context as _, Result};

use crate::{
    nginx::Nginx,
    postgresql::{Cluster, Session},
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

/// An svnserve that a client talks to.
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
             select * from t a join t b using (n) order by a.s limit 1;",
        )
    }

    fn end(self: Box<Self>) -> Result<()> {
        let Self { session, cluster, .. } = *self;
        drop(session);
        cluster.stop()
    }
}
