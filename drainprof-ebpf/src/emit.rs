//! The one way into the ring buffer: reserve, fill, submit, or count the loss.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use drainprof_common::{
    event::{EVENT_BYTES, Event, EventKind},
    loss::Loss,
};

use crate::{losses, maps, series};

/// Sends one record: zeroed, then filled.
#[inline(always)]
pub(crate) fn send(kind: EventKind, target: u32, ns: u64, fill: impl FnOnce(*mut Event)) {
    let Some(mut entry) = maps::EVENTS.reserve::<Event>(0) else {
        losses::count(Loss::RingFull);
        return;
    };
    let event = entry.as_mut_ptr();
    let pid_tgid = bpf_get_current_pid_tgid();
    // SAFETY: the record is reserved for us and as large as `Event`, a multiple of eight bytes.
    unsafe {
        for word in 0..EVENT_BYTES / 8 {
            event.cast::<u64>().add(word).write_volatile(0);
        }
        (*event).kind = kind as u32;
        (*event).target = target;
        (*event).ns = ns;
        (*event).tgid = (pid_tgid >> 32) as u32;
        (*event).tid = pid_tgid as u32;
    }
    fill(event);
    entry.submit(0);
}

/// Sends a record about a granule of the series.
#[inline(always)]
pub(crate) fn granule(kind: EventKind, series: u32, ns: u64, fill: impl FnOnce(*mut Event)) {
    // SAFETY: map memory; the key is written before the series is handed out.
    let target = series::state(series).map_or(0, |state| unsafe { (*state).key.target });
    send(kind, target, ns, |event| {
        // SAFETY: the record that `send` has reserved.
        unsafe { (*event).series = series };
        fill(event);
    });
}
