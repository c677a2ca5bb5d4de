//! The truth of the Rust targets: the same naive model, and the same line of JSON, as
//! `targets/truth.h` has for those in C.

use std::io::{BufRead as _, Write as _};

use serde_json::{Value, json};

/// Prints `READY <pid>` and waits for a line on stdin; not under `DRAINPROF_GO`, where the observation
/// began before the first instruction.
///
/// # Panics
/// If stdin ends while it waits: the test is gone.
pub fn ready() {
    if from_start() {
        return;
    }
    println!("READY {}", std::process::id());
    let mut line = String::new();
    let got = std::io::stdin().lock().read_line(&mut line);
    assert!(matches!(got, Ok(1..)), "stdin ended while the target waited");
}

fn from_start() -> bool {
    std::env::var_os("DRAINPROF_GO").is_some()
}

/// One life of a granule.
#[derive(Debug, Default)]
pub struct Granule {
    live: u64,
    bytes: u64,
    open: bool,
    closed: bool,
    pinned: bool,
    before: bool,
}

/// The truth of one allocator instance.
#[derive(Debug, Default)]
pub struct Truth {
    kind: &'static str,
    instance: u64,
    opened: u64,
    opened_before: u64,
    closed: u64,
    drainable: u64,
    pinned: u64,
    unknown: u64,
    open_now: u64,
    open_peak: u64,
    allocated: u64,
    freed: u64,
    allocated_bytes: u64,
    freed_bytes: u64,
    retained: u64,
    retained_bytes: u64,
    bytes_known: bool,
    late_drained: u64,
}

impl Truth {
    /// Starts at nothing; `instance` 0: the profile names none.
    #[must_use]
    pub fn new(kind: &'static str, instance: u64) -> Self {
        Self { kind, instance, ..Self::default() }
    }

    fn now_open(&mut self) {
        self.open_now += 1;
        self.open_peak = self.open_peak.max(self.open_now);
    }

    /// A granule is opened.
    pub fn open(&mut self, bytes: u64) -> Granule {
        self.opened += 1;
        self.bytes_known |= bytes != 0;
        self.now_open();
        Granule { open: true, bytes, ..Granule::default() }
    }

    /// A granule that was never opened in sight.
    pub fn lazy(&mut self) -> Granule {
        self.opened_before += 1;
        self.now_open();
        Granule { open: true, before: !from_start(), ..Granule::default() }
    }

    /// An object is allocated.
    pub fn alloc(&mut self, granule: &mut Granule, size: u64) {
        self.allocated += 1;
        self.allocated_bytes += size;
        granule.live += 1;
    }

    /// An object is freed.
    pub fn free(&mut self, granule: &mut Granule, size: u64) {
        self.freed += 1;
        self.freed_bytes += size;
        granule.live -= 1;
        if granule.live == 0 && granule.closed && granule.pinned {
            granule.pinned = false;
            self.retained -= 1;
            self.retained_bytes -= granule.bytes;
            self.late_drained += 1;
        }
    }

    /// A granule is closed.
    ///
    /// # Panics
    /// If it is not open: the Rust targets close each granule once.
    pub fn close(&mut self, granule: &mut Granule) {
        assert!(granule.open, "closed twice");
        granule.open = false;
        granule.closed = true;
        self.closed += 1;
        self.open_now -= 1;
        if self.kind != "drain" {
        } else if granule.before {
            self.unknown += 1;
        } else if granule.live == 0 {
            self.drainable += 1;
        } else {
            self.pinned += 1;
            self.retained += 1;
            self.retained_bytes += granule.bytes;
            granule.pinned = true;
        }
    }

    /// Prints the line.
    ///
    /// # Panics
    /// If stdout is gone.
    pub fn print(&self) {
        let mut allocator = json!({
            "kind": self.kind,
            "granules": {
                "opened": self.opened, "opened_before": self.opened_before, "closed": self.closed,
                "drainable": self.drainable, "pinned": self.pinned, "unknown": self.unknown,
                "open_now": self.open_now, "open_peak": self.open_peak,
            },
            "objects": {
                "allocated": self.allocated, "freed": self.freed,
                "allocated_bytes": self.allocated_bytes,
                "live": self.allocated - self.freed,
                "live_bytes": self.allocated_bytes - self.freed_bytes,
            },
        });
        if self.kind == "drain" {
            allocator["retention"] =
                json!({"granules": self.retained, "late_drained": self.late_drained});
            if self.bytes_known {
                allocator["retention"]["bytes"] = json!(self.retained_bytes);
            }
        }
        if self.instance != 0 {
            allocator["instance"] = Value::String(format!("{:#x}", self.instance));
        }
        let line = json!({
            "truth": 1, "role": "main", "pid": std::process::id(), "allocators": [allocator], "losses": {},
        });
        let mut out = std::io::stdout().lock();
        assert!(writeln!(out, "{line}").is_ok(), "stdout is gone");
    }
}
