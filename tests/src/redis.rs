//! Debian's Redis as it is, on a socket in a temporary directory, without persistence; and what its allocator says of
//! itself.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::environment::{deadline, which};

/// What the server says once it can be asked.
pub const READY: &str = "The server is now ready to accept connections";

/// Where a server works: its directory, which goes with this.
#[derive(Debug)]
pub struct Place {
    directory: TempDir,
}

impl Place {
    /// A fresh directory.
    pub fn new() -> Result<Self> {
        Ok(Self { directory: TempDir::new()? })
    }

    /// The server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// The command that starts a server there: no port, nothing saved, nothing moved by itself.
    pub fn command(&self) -> Result<Command> {
        let mut command = Command::new(which("redis-server").context("Redis is installed")?);
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.args(["--activedefrag", "no", "--daemonize", "no", "--logfile", ""]);
        command.arg("--unixsocket").arg(self.socket()).arg("--dir").arg(self.directory.path());
        Ok(command)
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    pub fn new(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("no server at {}", socket.display()))?;
        stream.set_read_timeout(Some(deadline()))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks one thing, and returns the answer's text or number.
    pub fn ask(&mut self, words: &[&str]) -> Result<String> {
        self.send(words)?;
        self.answer()
    }

    /// Asks many things at once, and waits for all answers; an error is one of ours.
    pub fn ask_all(&mut self, all: &[Vec<String>]) -> Result<()> {
        for words in all {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.send(&words)?;
            self.answer()?;
        }
        Ok(())
    }

    fn send(&mut self, words: &[&str]) -> Result<()> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            write!(text, "${}\r\n{word}\r\n", word.len())?;
        }
        Ok(self.stream.get_mut().write_all(text.as_bytes())?)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the server is gone");
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).context("an empty answer")?;
        match kind {
            "+" | ":" => Ok(rest.to_owned()),
            "$" => {
                let mut text = vec![0; rest.parse::<usize>()? + 2];
                self.stream.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
            }
            _ => bail!("the server says {line}"),
        }
    }

    /// The server's process id.
    pub fn pid(&mut self) -> Result<u32> {
        let info = self.ask(&["INFO", "server"])?;
        let line = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        Ok(line.context("the server prints its process id")?.trim().parse()?)
    }

    /// What jemalloc says of the objects up to a page.
    pub fn small(&mut self) -> Result<Small> {
        Small::read(&self.ask(&["MEMORY", "MALLOC-STATS"])?)
    }
}

/// jemalloc's own account of the sizes up to a page: sums over its bins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Small {
    /// Objects that are not free: those of the program, and those in caches of threads.
    pub objects: u64,
    /// Their bytes, each as large as its bin says.
    pub bytes: u64,
    /// Pages of the slabs that hold them.
    pub pages: u64,
    /// Bytes in the caches of threads, of all sizes.
    pub cached_bytes: u64,
}

impl Small {
    /// Reads the text of `MEMORY MALLOC-STATS`. The table's columns are found by their names.
    fn read(text: &str) -> Result<Self> {
        let mut small = Self::default();
        let cached = text.lines().find_map(|line| line.strip_prefix("tcache_bytes:"));
        small.cached_bytes = cached.context("no tcache_bytes")?.trim().parse()?;
        let mut lines = text.lines().skip_while(|line| !line.starts_with("bins:"));
        let header = lines.next().context("no table of bins")?;
        // Rates stand in columns of their own, all with the same name.
        let names: Vec<&str> = header.split_whitespace().skip(1).collect();
        let column = |name: &str| {
            names.iter().position(|found| *found == name).with_context(|| format!("no {name}"))
        };
        let columns = [column("size")?, column("curregs")?, column("curslabs")?, column("pgs")?];
        for line in lines.take_while(|line| !line.starts_with("large:")) {
            let cells: Vec<&str> = line.split_whitespace().collect();
            if cells.len() < names.len() {
                continue;
            }
            let mut found = [0; 4];
            for (value, column) in found.iter_mut().zip(columns) {
                *value = cells[column].parse::<u64>().with_context(|| line.to_owned())?;
            }
            let [size, objects, slabs, pages] = found;
            if size <= 4096 {
                small.objects += objects;
                small.bytes += objects * size;
                small.pages += slabs * pages;
            }
        }
        ensure!(small.objects > 0, "no bins in {text}");
        Ok(small)
    }
}
