//! Debian's Subversion as it is: a repository and a home directory of its own in a temporary directory.
//!
//! The same few commands, step by step: as they are, or with a library preloaded that counts pools from
//! inside (`targets/apr_counts.c`), which is the truth. And a server on a loopback port, which waits in the
//! middle of a conversation.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    environment::{deadline, which},
    preload,
    process::Process,
};

/// Lines of the file that is imported. The counts depend on it.
const ITEMS: usize = 300;

/// A directory with a file to import, in which a repository will be.
#[derive(Debug)]
pub struct Workspace {
    directory: TempDir,
}

impl Workspace {
    /// An empty home directory and the file.
    pub fn new() -> Result<Self> {
        use std::fmt::Write as _;

        let directory = TempDir::new()?;
        fs::create_dir(directory.path().join("home"))?;
        let mut text = "<items>\n".to_owned();
        for n in 0..ITEMS {
            writeln!(text, "<item id=\"{n}\">text {n}</item>")?;
        }
        text.push_str("</items>\n");
        fs::write(directory.path().join("items.xml"), text)?;
        Ok(Self { directory })
    }

    /// What is done, one process each and in this order: create a repository, import the file, show the
    /// log, verify.
    pub fn steps(&self) -> Result<Vec<Command>> {
        let (at, imported) = (self.directory.path(), self.directory.path().join("items.xml"));
        let repository = at.join("repository");
        let url = format!("file://{}", repository.display());
        let target = format!("{url}/items.xml");
        let words: [(&str, Vec<&OsStr>); 4] = [
            ("svnadmin", vec!["create".as_ref(), repository.as_ref()]),
            (
                "svn",
                vec![
                    "import".as_ref(),
                    "-q".as_ref(),
                    "-m".as_ref(),
                    "items".as_ref(),
                    imported.as_ref(),
                    target.as_ref(),
                ],
            ),
            ("svn", vec!["log".as_ref(), "-q".as_ref(), url.as_ref()]),
            ("svnadmin", vec!["verify".as_ref(), "-q".as_ref(), repository.as_ref()]),
        ];
        let mut steps = Vec::new();
        for (program, args) in words {
            let mut command =
                Command::new(which(program).with_context(|| format!("{program} is installed"))?);
            // Nothing of the user's own: its settings would have pools, too.
            command.args(args).env("HOME", at.join("home")).env("LC_ALL", "C");
            steps.push(command);
        }
        Ok(steps)
    }

    /// A step with the counting library preloaded: into its program, not into its parent.
    pub fn counting(&self, step: &Command) -> Result<Command> {
        preload::counting("apr", step, &self.counts())
    }

    /// What was counted, a line for each process.
    pub fn counted(&self) -> Result<Vec<Value>> {
        preload::counted(&self.counts())
    }

    fn counts(&self) -> PathBuf {
        self.directory.path().join("counts")
    }
}

/// An svnserve in conversation with one client, the test, for which it waits.
#[derive(Debug)]
pub struct Server {
    /// The server: one process of one thread, which ends with the conversation.
    pub process: Process,
    port: u16,
    stream: TcpStream,
    _workspace: Workspace,
}

impl Server {
    /// Starts it on a new repository, connects, and reads its greeting.
    pub fn start() -> Result<Self> {
        let workspace = Workspace::new()?;
        let create = workspace.steps()?.swap_remove(0);
        let ended = Process::start("svnadmin", create)?.finish()?;
        ensure!(ended.status.success(), "svnadmin create failed: {ended:?}");
        // Free a moment ago; nothing else takes ports at random here.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let root = workspace.directory.path();
        let mut command = Command::new(which("svnserve").context("svnserve is installed")?);
        command.args(["--listen-once", "--listen-host", "127.0.0.1", "--listen-port"]);
        command.arg(port.to_string()).arg("--root").arg(root);
        command.env("HOME", root.join("home")).env("LC_ALL", "C");
        let process = Process::start("svnserve", command)?;
        let until = Instant::now() + deadline();
        // It does not say when it listens.
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => ensure!(Instant::now() < until, "svnserve does not listen: {error}"),
            }
            std::thread::yield_now();
        };
        stream.set_read_timeout(Some(deadline()))?;
        let mut server = Self { process, port, stream, _workspace: workspace };
        server.answer()?;
        Ok(server)
    }

    /// Asks for the repository; once this returns, the server has opened it and waits for a login.
    pub fn open_repository(&mut self) -> Result<()> {
        let url = format!("svn://127.0.0.1:{}/repository", self.port);
        let hello = format!(
            "( 2 ( edit-pipeline svndiff1 absent-entries depth mergeinfo log-revprops ) {}:{url} 4:test ( ) ) ",
            url.len()
        );
        self.stream.write_all(hello.as_bytes())?;
        let answer = self.answer()?;
        ensure!(answer.starts_with("( success "), "svnserve refuses: {answer}");
        self.settle()
    }

    /// Returns once the server waits for what the client says next.
    fn settle(&self) -> Result<()> {
        let until = Instant::now() + deadline();
        let state = format!("/proc/{}/syscall", self.process.pid());
        loop {
            let text = fs::read_to_string(&state).with_context(|| format!("read {state}"))?;
            // The first word is the number of the call that it sleeps in, or says that it runs.
            let call = text.split_whitespace().next().and_then(|word| word.parse::<i64>().ok());
            if call.is_some_and(|call| {
                [nix::libc::SYS_read, nix::libc::SYS_poll, nix::libc::SYS_recvfrom].contains(&call)
            }) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "svnserve is still busy: {text}");
            std::thread::yield_now();
        }
    }

    /// One answer: a list in brackets.
    fn answer(&mut self) -> Result<String> {
        let (mut text, mut open, mut byte) = (String::new(), 0_i32, [0]);
        loop {
            self.stream.read_exact(&mut byte).with_context(|| format!("after {text:?}"))?;
            text.push(char::from(byte[0]));
            match byte[0] {
                b'(' => open += 1,
                // A space may be left of the answer before.
                b')' if open == 1 => return Ok(text.trim_start().to_owned()),
                b')' => open -= 1,
                _ => {}
            }
        }
    }

    /// The word at an address of its memory.
    pub fn word(&self, address: u64) -> Result<u64> {
        let memory = File::open(format!("/proc/{}/mem", self.process.pid()))?;
        let mut word = [0; 8];
        memory
            .read_exact_at(&mut word, address)
            .with_context(|| format!("cannot read svnserve's memory at {address:#x}"))?;
        Ok(u64::from_le_bytes(word))
    }

    /// Hangs up, and waits for its end.
    pub fn stop(self) -> Result<()> {
        drop(self.stream);
        self.process.finish().map(drop)
    }
}

/// The version of Subversion, such as `1.14.2`.
pub fn version() -> Result<String> {
    let svn = which("svn").context("svn is installed")?;
    let home = TempDir::new()?;
    let output = Command::new(svn).args(["--version", "-q"]).env("HOME", home.path()).output()?;
    ensure!(output.status.success(), "svn --version failed: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
