//! The lines about memory: the machine's pressure, and how a process grows.

use drainprof_process::memory::{Pressure, Waiting};

use crate::{
    Memory,
    export::{escape, exporter::SENTENCE},
    memory::MemoryVerdict,
    units,
};

/// One line on the machine.
pub(super) fn pressure(pressure: &Pressure) -> String {
    let shares = |waiting: &Waiting| {
        [waiting.avg10, waiting.avg60, waiting.avg300].map(units::percent).join(", ")
    };
    format!(
        "memory pressure over 10 s, 1 min, 5 min: some tasks waited {}; all tasks {}",
        shares(&pressure.some),
        shares(&pressure.full)
    )
}

/// Two or three lines on a process.
pub(super) fn lines(memory: &Memory) -> Vec<String> {
    let last = &memory.last;
    let reason = escape::shown(&memory.verdict_reason, SENTENCE);
    let verdict = match memory.verdict {
        MemoryVerdict::TooLittle => "too little was seen",
        MemoryVerdict::Growing => "growing",
        MemoryVerdict::Steady => "steady",
        MemoryVerdict::Settling => "settling",
        MemoryVerdict::Shrinking => "shrinking",
    };
    let mut lines = vec![
        format!(
            "memory: RSS {} → {} (anonymous {}, files {}, shared {}), swap {}, in {}",
            units::bytes(memory.first.rss_bytes),
            units::bytes(last.rss_bytes),
            units::bytes(last.anon_bytes),
            units::bytes(last.file_bytes),
            units::bytes(last.shmem_bytes),
            units::bytes(last.swap_bytes),
            units::duration(memory.seconds)
        ),
        format!("memory is {verdict}: {reason}"),
    ];
    if memory.verdict == MemoryVerdict::TooLittle {
        lines[1] = format!("memory: {verdict}: {reason}");
    }
    if let (Some(used), Some(limit)) = (last.cgroup_bytes, last.cgroup_limit_bytes) {
        let full = memory.seconds_to_limit.map_or_else(String::new, |seconds| {
            format!("; full in {} at this rate", units::duration(seconds))
        });
        let (used, limit) = (units::bytes(used), units::bytes(limit));
        lines.push(format!("control group: {used} used, limit {limit}{full}"));
    }
    lines
}
