//! Where output goes and how it looks: stdout or a file, a terminal or not.

mod noted;
mod whole;

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal as _, LineWriter, Write},
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use anyhow::{Context as _, Result};
use drainprof_process::printable_lines;
use drainprof_report::export::{Format, PinWeight, Style};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::stat::{fstat, makedev},
};
use tracing_subscriber::{EnvFilter, fmt};

pub(super) use self::noted::{failure, is_unread};
use self::{noted::Stdout, whole::Whole};
use super::{
    exit::{Failure, code},
    queue::Queue,
};

/// Talk goes to stderr; `RUST_LOG` overrides what `-v` asks for.
pub(super) fn init_talk(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    fmt()
        .with_env_filter(filter)
        .with_writer(|| Talk(io::stderr()))
        .with_ansi(io::stderr().is_terminal() && no_color().is_none())
        .without_time()
        .with_target(false)
        .init();
}

/// Stderr, for lines that may quote anything: whatever acts on a terminal is escaped, but for line ends and the log's own
/// colours. (What the log quotes has no escape sequence any more when it comes here.)
struct Talk<W>(W);

impl<W: Write> Write for Talk<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split("\u{1b}[");
        let mut safe = parts.next().map(printable_lines).unwrap_or_default();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit() && c != ';');
            let is_colour = end.is_some_and(|end| part[end..].starts_with('m'));
            safe.push_str(if is_colour { "\u{1b}[" } else { "\\u{1b}[" });
            safe.push_str(&printable_lines(part));
        }
        self.0.write_all(safe.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether stdout was closed when this process began: Rust's runtime opens the null device there then, for reading and
/// writing. Services have that for stderr, too.
fn is_closed() -> bool {
    let is_null = |descriptor: BorrowedFd<'_>| {
        let flags = fcntl(descriptor, FcntlArg::F_GETFL).map(OFlag::from_bits_truncate);
        let device = fstat(descriptor).map(|about| about.st_rdev);
        device == Ok(makedev(1, 3)) && flags.is_ok_and(|flags| flags.contains(OFlag::O_RDWR))
    };
    is_null(io::stdout().as_fd()) && !is_null(io::stderr().as_fd())
}

fn require_open() -> Result<()> {
    if !is_closed() {
        return Ok(());
    }
    let text = "stdout is closed: redirect it, or name a file with -O where there is that option";
    Err(Failure::new(code::FAILURE, text).into())
}

/// Stdout, for commands that print without options of output.
pub(super) fn stdout() -> Result<impl Write> {
    require_open()?;
    Ok(LineWriter::new(Stdout))
}

/// Prints what was asked of the command line itself: help, a version.
pub(super) fn print(text: &clap::Error) -> Result<()> {
    let mut out = stdout()?;
    let is_coloured = io::stdout().is_terminal() && no_color().is_none();
    let text = text.render();
    let written = if is_coloured { write!(out, "{}", text.ansi()) } else { write!(out, "{text}") };
    Ok(written?)
}

pub(super) fn no_color() -> Option<()> {
    std::env::var_os("NO_COLOR").filter(|value| !value.is_empty()).map(drop)
}

/// Refuses to write what is no text to a terminal.
pub(super) fn require_no_terminal(format: &Format, path: Option<&Path>) -> Result<()> {
    if format.binary && path.is_none() && io::stdout().is_terminal() {
        let text = format!(
            "{} is no text and does not belong on a terminal: name a file with -O, or redirect stdout",
            format.name
        );
        return Err(Failure::new(code::USAGE, text).into());
    }
    Ok(())
}

/// How output gets to its place.
enum Writer {
    /// Blocks on a slow reader.
    Direct(BufWriter<Box<dyn Write + Send>>),
    /// A slow reader loses records.
    Queued(Queue),
}

/// The place that output goes to.
pub(super) struct Output {
    writer: Writer,
    /// The file that gets its name at the end.
    whole: Option<Whole>,
    terminal: bool,
    style: Style,
}

impl Output {
    /// Stdout, or a file that gets its name when it is whole. A wrong path is told now, before anything is attached.
    pub(super) fn open(path: Option<&Path>, top: usize) -> Result<Self> {
        let begin = |path: &Path| {
            Whole::begin(path).with_context(|| format!("cannot write to {}", path.display()))
        };
        match path.map(begin).transpose()?.flatten() {
            Some(whole) => {
                let writer = whole.writer().context("cannot write to a new file")?;
                Ok(Self::to(Box::new(writer), false, top, Some(whole)))
            }
            None => Self::in_place(path, top),
        }
    }

    /// Stdout, or a file that grows under its name from now on, so that it can be followed (`tail -f`).
    pub(super) fn in_place(path: Option<&Path>, top: usize) -> Result<Self> {
        if let Some(path) = path {
            let file = File::create(path)
                .with_context(|| format!("cannot write to {}", path.display()))?;
            return Ok(Self::to(Box::new(file), false, top, None));
        }
        require_open()?;
        Ok(Self::to(Box::new(Stdout), io::stdout().is_terminal(), top, None))
    }

    fn to(writer: Box<dyn Write + Send>, terminal: bool, top: usize, whole: Option<Whole>) -> Self {
        let width = terminal_size::terminal_size().map_or(100, |(width, _)| width.0.clamp(60, 160));
        let style = Style {
            colour: terminal && no_color().is_none(),
            width: if terminal { width } else { 100 },
            top,
            weight: PinWeight::default(),
        };
        Self { writer: Writer::Direct(BufWriter::new(writer)), whole, terminal, style }
    }

    /// From now on, nothing waits for the reader but the end: what it is too slow for is dropped.
    pub(super) fn queued(self) -> Result<Self> {
        let writer = match self.writer {
            Writer::Direct(direct) => {
                let (writer, _) = direct.into_parts();
                let queue = Queue::start(writer).context("cannot start the thread that writes")?;
                Writer::Queued(queue)
            }
            queued @ Writer::Queued(_) => queued,
        };
        Ok(Self { writer, ..self })
    }

    /// What widths mean, in formats that have them.
    pub(super) const fn weigh(&mut self, weight: PinWeight) {
        self.style.weight = weight;
    }

    /// Whether a person examines it.
    pub(super) const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// How it looks.
    pub(super) const fn style(&self) -> Style {
        self.style
    }

    /// Clears the screen before the live table is drawn again.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.writer().write_all(b"\x1b[H\x1b[2J")
    }

    /// The writer.
    pub(super) fn writer(&mut self) -> &mut dyn Write {
        match &mut self.writer {
            Writer::Direct(writer) => writer,
            Writer::Queued(queue) => queue,
        }
    }

    /// One record of many is written; those that are not `due` may wait for others.
    pub(super) fn end_record(&mut self, due: bool) -> io::Result<()> {
        match &mut self.writer {
            Writer::Direct(writer) if due => writer.flush(),
            Writer::Direct(_) => Ok(()),
            Writer::Queued(queue) => queue.end_record(due),
        }
    }

    /// Only the result is still to be written: how many records the reader has lost.
    pub(super) fn settle(&mut self) -> Result<u64> {
        match &mut self.writer {
            Writer::Direct(_) => Ok(0),
            Writer::Queued(queue) => Ok(queue.settle()?),
        }
    }

    /// All is written: hands it on, and gives the file its name.
    pub(super) fn finish(&mut self) -> Result<()> {
        let written = match &mut self.writer {
            Writer::Direct(writer) => writer.flush(),
            Writer::Queued(queue) => queue.finish(),
        };
        let Some(whole) = self.whole.take() else { return Ok(written?) };
        let place = whole.place().display().to_string();
        written.and_then(|()| whole.commit()).with_context(|| format!("cannot write to {place}"))
    }
}

/// The time of day, for the live view.
pub(super) fn clock() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Colours pass, and nothing else that acts on a terminal.
    #[test]
    fn talk_is_escaped() {
        let mut talk = Talk(Vec::new());
        let line = "\u{1b}[33mWARN\u{1b}[0m a\u{1b}]0;x\u{7}b\u{1b}[2Jc\u{9b}31m\r\n";
        talk.write_all(line.as_bytes()).unwrap();
        let text = String::from_utf8(talk.0).unwrap();
        let shown = "\u{1b}[33mWARN\u{1b}[0m a\\u{1b}]0;x\\u{7}b\\u{1b}[2Jc\\u{9b}31m\\r\n";
        assert_eq!(text, shown);
    }
}
