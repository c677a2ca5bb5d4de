//! A terminal that a test types into and looks at: tmux, with a server of its own.

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::environment::deadline;

/// What its shell prints when it waits for a command.
pub const PROMPT: &str = "ready>";
/// Between two looks at the screen. A terminal has no other way to say that it has changed.
const CHECK_INTERVAL: Duration = Duration::from_millis(30);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A shell on a terminal of some size. Dropping it ends both.
#[derive(Debug)]
pub struct Screen {
    server: String,
}

impl Screen {
    /// Starts an interactive bash, and waits for its prompt.
    pub fn start(width: u16, height: u16) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let screen = Self { server: format!("drainprof-test-{}-{number}", std::process::id()) };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = format!("exec env PS1='{PROMPT} ' LC_ALL=C.UTF-8 bash --noprofile --norc -i");
        screen.tmux(&["new-session", "-d", "-x", &width, "-y", &height, &shell])?;
        screen.shows(PROMPT)?;
        Ok(screen)
    }

    /// Presses keys, by tmux's names: `Enter`, `Down`, `C-z`, `q`.
    pub fn press(&self, keys: &[&str]) -> Result<()> {
        let mut args = vec!["send-keys"];
        args.extend(keys);
        self.tmux(&args).map(drop)
    }

    /// Types text as it is.
    pub fn types(&self, text: &str) -> Result<()> {
        self.tmux(&["send-keys", "-l", text]).map(drop)
    }

    /// Types a command, and Enter.
    pub fn command(&self, text: &str) -> Result<()> {
        self.types(text)?;
        self.press(&["Enter"])
    }

    /// Types a command that takes the whole screen, and another that shows what it leaves: see
    /// [`Screen::is_restored`].
    pub fn full_screen(&self, command: &str) -> Result<()> {
        self.command(&format!("{command}; code=$?; stty -a; echo LEFT:$code"))
    }

    /// Waits for the end of such a command, which must be well, and looks whether the terminal is as a program finds
    /// it: one screen, a cursor, lines and an echo.
    pub fn is_restored(&self) -> Result<()> {
        let left = |text: &str| text.lines().any(|line| line == "LEFT:0");
        let text = self.until("the good end of a command", left)?;
        for mode in ["icanon", "echo", "isig", "opost"] {
            ensure!(text.split_whitespace().any(|word| word == mode), "{mode} is off:\n{text}");
        }
        ensure!(self.modes()? == (false, true), "a second screen, or no cursor");
        Ok(())
    }

    /// The screen as it is.
    pub fn text(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen shows this text, and returns the screen.
    pub fn shows(&self, text: &str) -> Result<String> {
        self.until(&format!("{text:?}"), |screen| screen.contains(text))
    }

    /// Waits until the screen is as wanted, and returns it.
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let limit = deadline();
        let until = Instant::now() + limit;
        loop {
            let text = self.text()?;
            if wanted(&text) {
                return Ok(text);
            }
            if Instant::now() >= until {
                bail!("the screen did not show {what} within {limit:?}; it shows:\n{text}");
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Gives the terminal another size.
    pub fn resize(&self, width: u16, height: u16) -> Result<()> {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]).map(drop)
    }

    /// Whether a program uses the second screen, which does not scroll; and whether the cursor is to be seen.
    pub fn modes(&self) -> Result<(bool, bool)> {
        let text = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"])?;
        match text.trim().split_once(' ') {
            Some((alternate, cursor)) => Ok((alternate == "1", cursor == "1")),
            None => bail!("tmux said {text:?} of its modes"),
        }
    }

    /// The processes that the shell has started and that have not ended.
    pub fn children(&self) -> Result<Vec<u32>> {
        let text = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        let shell: u32 = text.trim().parse().with_context(|| format!("tmux said {text:?}"))?;
        let path = format!("/proc/{shell}/task/{shell}/children");
        let children =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        children.split_whitespace().map(|pid| pid.parse().context("a child has a pid")).collect()
    }

    fn tmux(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.server, "-f", "/dev/null"]).args(args);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output =
            command.output().context("cannot run tmux; `cargo xtask setup` installs it")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tmux {args:?} failed: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The line of `drainprof top` that is about a process.
#[must_use]
pub fn line(screen: &str, pid: u32) -> Option<&str> {
    let pid = pid.to_string();
    screen.lines().find(|line| {
        let line = line.trim_start_matches(['>', '!', '?', ' ']);
        line.split(' ').next() == Some(&pid)
    })
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It has gone already: then there is nothing to end.
        let _ = self.tmux(&["kill-server"]);
    }
}
