//! Diagnostics of the kernel side, through aya-log: what was lost, in which thread, at which probe.
//!
//! Off unless user space raises the log level at load. The verifier then removes all of this, so a hit costs nothing
//! more. A loss is noted where it is counted, deep in nested calls. The program that the hit began with logs it,
//! because a log record needs more stack than is left down there.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use aya_log_ebpf::{
    debug,
    macro_support::{Level, level_enabled},
};
use drainprof_common::loss::{LOSS_NAME_BYTES, PADDED_LOSS_NAMES};

use crate::{global::global, maps};

/// Lines that one CPU logs in a second; more are counted and shown with the next line.
const LINES_PER_SECOND: u32 = 10;
const SECOND: u64 = 1_000_000_000;

/// One line to log.
struct Line {
    name: [u8; LOSS_NAME_BYTES],
    pid: u32,
    thread: u32,
    left_out: u32,
}

/// Notes a loss for the line that its program logs at its end.
#[inline(always)]
pub(crate) fn note(loss: u32) {
    if !level_enabled(Level::Debug) {
        return;
    }
    if let Some(noted) = maps::NOTED.get_ptr_mut(0) {
        // SAFETY: `noted` is map memory of this CPU.
        unsafe {
            (*noted).loss = loss + 1;
            (*noted).pid_tgid = bpf_get_current_pid_tgid();
        }
    }
}

/// Logs what a hit of `probe` has noted.
#[inline(always)]
pub(crate) fn report_hit(probe: u32) {
    if level_enabled(Level::Debug) {
        log_hit(probe);
    }
}

/// Logs what a tracepoint has noted.
#[inline(always)]
pub(crate) fn report_event() {
    if level_enabled(Level::Debug) {
        log_event();
    }
}

global! {
    fn log_hit(probe: u32) -> () = hit_line;
    fn log_event() -> () = event_line;
}

#[inline(always)]
fn hit_line(probe: u32) {
    let Some(Line { name, pid, thread, left_out }) = take() else { return };
    debug!(
        (),
        "pid {} thread {} probe {} left_out {} lost {}",
        pid,
        thread,
        probe,
        left_out,
        text(&name)
    );
}

#[inline(always)]
fn event_line() {
    let Some(Line { name, pid, thread, left_out }) = take() else { return };
    debug!((), "pid {} thread {} left_out {} lost {}", pid, thread, left_out, text(&name));
}

/// The noted loss, unless this CPU has logged enough in this second.
#[inline(always)]
fn take() -> Option<Line> {
    let noted = maps::NOTED.get_ptr_mut(0)?;
    // SAFETY: `noted` is map memory of this CPU; the helper takes no argument.
    unsafe {
        let loss = (*noted).loss.checked_sub(1)?;
        (*noted).loss = 0;
        let now = bpf_ktime_get_ns();
        if now - (*noted).since > SECOND {
            (*noted).since = now;
            (*noted).logged = 0;
        }
        if (*noted).logged >= LINES_PER_SECOND {
            (*noted).left_out += 1;
            return None;
        }
        (*noted).logged += 1;
        let left_out = (*noted).left_out;
        (*noted).left_out = 0;
        let name =
            PADDED_LOSS_NAMES[core::hint::black_box(loss) as usize % PADDED_LOSS_NAMES.len()];
        let pid_tgid = (*noted).pid_tgid;
        Some(Line { name, pid: (pid_tgid >> 32) as u32, thread: pid_tgid as u32, left_out })
    }
}

#[inline(always)]
fn text(name: &[u8; LOSS_NAME_BYTES]) -> &str {
    // SAFETY: names of losses are ASCII, padded with spaces (checked when they are made).
    unsafe { core::str::from_utf8_unchecked(name) }
}
