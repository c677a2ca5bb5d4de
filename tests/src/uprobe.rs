//! The kernel's own trace of a function of one process: what drainprof says of it can be compared with.
//!
//! A trace event (`uprobe_events` of tracefs) in a ring buffer of its own. drainprof uses neither. Used where no
//! program knows the count that a test needs.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, ensure};

const TRACEFS: &str = "/sys/kernel/tracing";

/// Kilobytes of the buffer, per processor: room for some hundred thousand calls.
const BUFFER: &str = "32768";

/// A trace that goes on. Dropping it removes it.
#[derive(Debug)]
pub struct Trace {
    event: String,
    instance: PathBuf,
}

fn write(path: &Path, text: &str) -> Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(path);
    let written = file.as_mut().map(|file| file.write_all(text.as_bytes()));
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            Err(error).with_context(|| format!("write {text:?} to {}", path.display()))
        }
        Err(error) => anyhow::bail!("open {}: {error}", path.display()),
    }
}

impl Trace {
    /// Begins to trace the calls that process `pid` makes of the code at `offset` of the file `path`. Each is a line that
    /// ends in `fetch`, in the words of the kernel's uprobe events: `empty=+4(%di):u8`.
    ///
    /// # Errors
    /// If tracefs is not there, or the kernel does not understand it.
    pub fn begin(pid: u32, path: &Path, offset: u64, fetch: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("drainprof_test_{}_{number}", std::process::id());
        let tracefs = Path::new(TRACEFS);
        let trace =
            Self { event: format!("{name}/hit"), instance: tracefs.join("instances").join(&name) };
        let shown = path.display();
        let line = format!("p:{} {shown}:{offset:#x} {fetch}\n", trace.event);
        write(&tracefs.join("uprobe_events"), &line)?;
        fs::create_dir(&trace.instance)
            .with_context(|| format!("make {}", trace.instance.display()))?;
        write(&trace.instance.join("buffer_size_kb"), BUFFER)?;
        let event = trace.instance.join("events").join(&trace.event);
        write(&event.join("filter"), &format!("common_pid == {pid}"))?;
        write(&event.join("enable"), "1")?;
        Ok(trace)
    }

    /// Ends it, and returns the lines.
    ///
    /// # Errors
    /// If the buffer was too small for all of them.
    pub fn end(self) -> Result<Vec<String>> {
        write(&self.instance.join("events").join(&self.event).join("enable"), "0")?;
        let path = self.instance.join("trace");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        // "# entries-in-buffer/entries-written: 12/12   #P:2"
        let counts = text.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/"));
        let counts = counts.and_then(|rest| rest.split_whitespace().nth(1)).unwrap_or_default();
        let (kept, written) = counts.split_once('/').context("how many entries were written")?;
        ensure!(kept == written, "the trace has lost some of its lines: {counts}");
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Whatever of it is there; a test that failed has said so already.
        let _ = write(&self.instance.join("events").join(&self.event).join("enable"), "0");
        let _ = fs::remove_dir(&self.instance);
        let _ = write(&Path::new(TRACEFS).join("uprobe_events"), &format!("-:{}\n", self.event));
    }
}
