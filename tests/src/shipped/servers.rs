//! Servers that run, and can be asked to do a little of everything.

use anyhow::Result;
use nix::sys::signal::Signal;

use super::live::Live;
use crate::{
    bind::{RUNNING, Zone},
    haproxy::Setup,
    http::{Client, get, idle},
    mariadb::{Server, Session},
    process::Process,
    varnish::Varnish,
};

/// A Varnish, of which the child is observed.
pub(super) fn varnish() -> Result<Box<dyn Live>> {
    Ok(Box::new(Varnish::start()?))
}

impl Live for Varnish {
    fn pid(&self) -> u32 {
        self.child
    }

    fn work(&mut self) -> Result<()> {
        let mut kept = Client::connect(self.port)?;
        for _ in 0..10 {
            kept.get("/here")?;
        }
        kept.end()?;
        get(self.port, "/there")?;
        self.settle([0, 0, 0]).map(drop)
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.quit()
    }
}

/// A `named` with one zone.
pub(super) fn named() -> Result<Box<dyn Live>> {
    let zone = Zone::new()?;
    let mut process = Process::start("named", zone.named()?)?;
    process.expect_err_containing(RUNNING)?;
    Ok(Box::new(Named { zone, process }))
}

struct Named {
    zone: Zone,
    process: Process,
}

impl Live for Named {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn work(&mut self) -> Result<()> {
        // Another configuration is another view, with contexts of its own.
        self.process.signal(Signal::SIGHUP)?;
        self.process.expect_err_containing(RUNNING)?;
        self.zone.ask(10)
    }

    fn end(mut self: Box<Self>) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait().map(drop)
    }
}

/// An HAProxy of one process.
pub(super) fn haproxy() -> Result<Box<dyn Live>> {
    let setup = Setup::new()?;
    let process = Process::start("haproxy", setup.haproxy()?)?;
    setup.stats()?;
    Ok(Box::new(Proxy { setup, process }))
}

struct Proxy {
    setup: Setup,
    process: Process,
}

impl Live for Proxy {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn work(&mut self) -> Result<()> {
        for path in ["/here", "/there"] {
            get(self.setup.port, path)?;
        }
        idle(self.process.pid())
    }

    fn end(mut self: Box<Self>) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait().map(drop)
    }
}

/// A MariaDB.
pub(super) fn mariadb() -> Result<Box<dyn Live>> {
    let server = Server::start()?;
    let session = server.session()?;
    Ok(Box::new(Database { server, session }))
}

struct Database {
    server: Server,
    session: Session,
}

impl Live for Database {
    fn pid(&self) -> u32 {
        self.server.process.pid()
    }

    fn work(&mut self) -> Result<()> {
        // A connection has roots that are set up with a block.
        self.server.session()?;
        self.session.run("prepare p from 'select count(*) from test.t'")?;
        self.session.run("execute p")?;
        self.session.run("deallocate prepare p")?;
        idle(self.server.process.pid())
    }

    fn end(self: Box<Self>) -> Result<()> {
        let Self { server, session } = *self;
        drop(session);
        server.quit()
    }
}
