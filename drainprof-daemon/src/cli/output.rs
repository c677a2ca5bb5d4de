//! Where output goes and how it looks: stdout or a file, a terminal or not.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal as _, Write},
    path::Path,
};

use anyhow::{Context as _, Result};
use drainprof_report::export::{Format, PinWeight, Style};
use tracing_subscriber::{EnvFilter, fmt};

use super::exit::{Failure, code};

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
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && no_color().is_none())
        .without_time()
        .with_target(false)
        .init();
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

/// The place that output goes to.
pub(super) struct Output {
    writer: BufWriter<Box<dyn Write>>,
    terminal: bool,
    style: Style,
}

impl Output {
    /// Stdout, or a file that is made now, so that a wrong path is told before anything is attached.
    pub(super) fn open(path: Option<&Path>, top: usize) -> Result<Self> {
        let (writer, terminal): (Box<dyn Write>, bool) = match path {
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write to {}", path.display()))?;
                (Box::new(file), false)
            }
            None => (Box::new(io::stdout()), io::stdout().is_terminal()),
        };
        let width = terminal_size::terminal_size().map_or(100, |(width, _)| width.0.clamp(60, 160));
        let style = Style {
            colour: terminal && no_color().is_none(),
            width: if terminal { width } else { 100 },
            top,
            weight: PinWeight::default(),
        };
        Ok(Self { writer: BufWriter::new(writer), terminal, style })
    }

    /// What widths mean, in formats that have them.
    pub(super) const fn weigh(&mut self, weight: PinWeight) {
        self.style.weight = weight;
    }

    /// Whether a person looks at it.
    pub(super) const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// How it looks.
    pub(super) const fn style(&self) -> Style {
        self.style
    }

    /// Clears the screen before the live table is drawn again.
    pub(super) fn clear(&mut self) -> Result<()> {
        Ok(self.writer.write_all(b"\x1b[H\x1b[2J")?)
    }

    /// The writer.
    pub(super) fn writer(&mut self) -> &mut dyn Write {
        &mut self.writer
    }

    /// Hands on what was written.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.writer.flush()?)
    }
}

/// The time of day, for the live view.
pub(super) fn clock() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}
