//! Debian's PHP as it is: its development server on a loopback port, with scripts in a temporary directory,
//! and an HTTP client for it.

use std::{
    fs::{self, OpenOptions},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::{sys::stat::Mode, unistd::mkfifo};
use tempfile::TempDir;

use crate::{
    environment::{deadline, which},
    process::Process,
};

/// Gathers `n` texts, and says last how much memory PHP has for it.
const GATHER: &str = r"<?php
$texts = [];
for ($i = 0; $i < (int) $_GET['n']; $i++) $texts[] = str_repeat('y', 1000) . $i;
echo memory_get_usage(true);
";

/// Waits in the middle of the request until the FIFO is written to.
const HOLD: &str = r"<?php
echo 'held';
flush();
fread(fopen(__DIR__ . '/fifo', 'r'), 1);
echo ' on';
";

/// Fails as scripts do, in the middle.
const FAIL: &str = "<?php\n$texts = array_fill(0, 100, 'x');\nno_such_function();\n";

/// PHP's development server, which works at one request at a time. Dropping it ends it.
#[derive(Debug)]
pub struct Php {
    /// The server: one process of one thread.
    pub process: Process,
    port: u16,
    directory: TempDir,
}

/// `php` with nothing but what is built in: no settings of the machine's, no extensions.
pub fn command() -> Result<Command> {
    let mut command = Command::new(which("php").context("php is installed")?);
    command.arg("-n").env_remove("PHP_CLI_SERVER_WORKERS");
    Ok(command)
}

/// Writes the scripts `gather.php`, `hold.php` and `fail.php`, and a FIFO.
pub fn scripts(at: &Path) -> Result<()> {
    for (name, text) in [("gather.php", GATHER), ("hold.php", HOLD), ("fail.php", FAIL)] {
        fs::write(at.join(name), text)?;
    }
    mkfifo(&at.join("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).context("cannot make a FIFO")
}

impl Php {
    /// Starts it, and waits until it listens.
    pub fn start() -> Result<Self> {
        let directory = TempDir::new()?;
        scripts(directory.path())?;
        // Free a moment ago; nothing else takes ports at random here.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = command()?;
        command.arg("-S").arg(format!("127.0.0.1:{port}")).arg("-t").arg(directory.path());
        let mut process = Process::start("php", command)?;
        process.expect_err_containing("started")?;
        Ok(Self { process, port, directory })
    }

    /// Asks for `path`, and returns the body of the answer once the request is over.
    ///
    /// The server hangs up after it has ended the request, memory and all.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut answer = String::new();
        self.ask(path)?.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
        let known = head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 500");
        ensure!(known, "{path}: {answer}");
        Ok(body.to_owned())
    }

    /// Asks for `path`, a request of `hold.php`, and returns when the script is in the middle of it.
    pub fn hold(&self, path: &str) -> Result<TcpStream> {
        let mut stream = self.ask(path)?;
        let (mut got, mut byte) = (Vec::new(), [0]);
        while !got.ends_with(b"\r\n\r\nheld") {
            stream.read_exact(&mut byte)?;
            got.push(byte[0]);
        }
        Ok(stream)
    }

    /// Lets a held request run on, and waits until it is over.
    pub fn release(&self, mut held: TcpStream) -> Result<()> {
        OpenOptions::new().write(true).open(self.directory.path().join("fifo"))?.write_all(b"x")?;
        let mut rest = String::new();
        held.read_to_string(&mut rest)?;
        ensure!(rest == " on", "the rest of the answer is {rest:?}");
        Ok(())
    }

    fn ask(&self, path: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(deadline()))?;
        // In one piece: the server now and then hangs up on a request that comes in several.
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }
}
