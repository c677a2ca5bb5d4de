//! What a kernel writes into its log when something is wrong with it, or with what it runs.
//!
//! Reads the log that a machine's second serial line has left; knows nothing of tests.

/// How a line of the log begins, without its time, that no kernel writes while all is well.
const BEGINS: [&str; 9] = [
    "BUG: ",
    "Call Trace:",
    "INFO: task ",
    "Kernel panic - ",
    "Oops: ",
    "UBSAN: ",
    "WARNING: ",
    "general protection fault",
    "watchdog: BUG: ",
];

/// What others hold: the count of oopses, and a processor that RCU waits for in vain.
const HOLDS: [&str; 2] = [" [#", "detected stall"];

/// What every kernel writes last.
const POWER_OFF: &str = "reboot: Power down";

/// Lines that are shown from the first complaint on: an oops with its trace has about 60.
const LINES_SHOWN: usize = 120;

/// Lines that are shown before it: what led to it.
const LINES_BEFORE: usize = 5;

/// Something that the kernel complained of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Complaint<'a> {
    /// The line that says what it is, without its time.
    pub(super) what: &'a str,
    /// That line with those around it.
    pub(super) lines: Vec<&'a str>,
}

/// Begins what the init script writes into the log: which tests begin.
pub(super) const OURS: &str = "drainprof: ";

/// The first complaint of a log. What follows is mostly its consequence, and is among its lines.
pub(super) fn complaint(log: &str) -> Option<Complaint<'_>> {
    let lines: Vec<_> = log.lines().map(|line| line.trim_end_matches('\r')).collect();
    let at = lines.iter().position(|line| is_complaint(message(line)))?;
    Some(Complaint {
        what: message(lines[at]),
        lines: lines[at.saturating_sub(LINES_BEFORE)..]
            .iter()
            .take(LINES_BEFORE + LINES_SHOWN)
            .copied()
            .collect(),
    })
}

/// What the kernel has remarked while tests ran, each after what began before it. A healthy one has nothing to say.
pub(super) fn remarks(log: &str) -> Vec<String> {
    let (mut begun, mut remarks) = (None, Vec::new());
    for message in log.lines().map(|line| message(line.trim_end_matches('\r'))) {
        if let Some(what) = message.strip_prefix(OURS) {
            begun = Some(what);
        } else if let Some(begun) = begun.filter(|_| message != POWER_OFF && !message.is_empty()) {
            remarks.push(format!("{begun}: {message}"));
        }
    }
    remarks
}

/// A line without its time, `[   21.568777] `.
fn message(line: &str) -> &str {
    let timed = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    timed.map_or(line, |(_, message)| message)
}

fn is_complaint(message: &str) -> bool {
    BEGINS.iter().any(|begin| message.starts_with(begin))
        || HOLDS.iter().any(|part| message.contains(part))
}

#[cfg(test)]
mod tests {
    use super::{complaint, remarks};

    /// What drainprof 0.2 did to Linux 7.2.
    const OOPS: &str = "[    0.161215] tsc: Unable to calibrate against PIT\r\n\
        [   21.568777] BUG: unable to handle page fault for address: ffffd32a00000011\r\n\
        [   21.569750] Oops: Oops: 0000 [#1] SMP NOPTI\r\n\
        [   21.570357] RIP: 0010:bpf_prog_347888a9086a58d0_alloc_return+0xb23/0x1b68\r\n\
        [   21.572585] Call Trace:\r\n\
        [   21.572862]  __uprobe_perf_func+0x158/0x460\r\n\
        [   21.577078] Kernel panic - not syncing: Fatal exception\r\n";

    /// An oops is named by its first line, and shown with what came before and after it.
    #[test]
    fn oops() {
        let found = complaint(OOPS).unwrap();
        assert_eq!(found.what, "BUG: unable to handle page fault for address: ffffd32a00000011");
        assert_eq!(found.lines.len(), 7);
        assert!(found.lines[6].ends_with("Fatal exception"));
    }

    /// Every kind has its own first line.
    #[test]
    fn kinds() {
        for line in [
            "[   12.3] WARNING: CPU: 1 PID: 77 at kernel/events/uprobes.c:1234 uprobe_mmap+0x10/0x20",
            "[   12.3] general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP",
            "[   12.3] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [drainprof:88]",
            "[   12.3] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "[   12.3] INFO: task threads:91 blocked for more than 120 seconds.",
            "[   12.3] invalid opcode: 0000 [#1] PREEMPT SMP",
            "[   12.3] Kernel panic - not syncing: kernel: panic_on_warn set ...",
            "Call Trace:",
        ] {
            assert!(complaint(line).is_some(), "{line}");
        }
    }

    /// What healthy kernels say is no complaint.
    #[test]
    fn healthy() {
        let log = "[    0.000000] Linux version 6.1.0-56-cloud-amd64\n\
            [    0.161215] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable\n\
            [    1.612001] rcu: Hierarchical SRCU implementation.\n\
            [    2.000000] threads[91]: segfault at 0 ip 0000000000401136 sp 00007ffd\n";
        assert_eq!(complaint(log), None);
    }
    /// What a kernel logs while tests run is shown with what ran; boot and power-off are not.
    #[test]
    fn remarks_while_tests_run() {
        let log = "[    0.697018] mtrr: your CPUs had inconsistent fixed MTRR settings\r\n\
            [    9.000000] drainprof: lifecycle\r\n\
            [   15.813049] uprobe: detach:164 failed to unregister, leaking uprobe\r\n\
            [   16.000000] drainprof: losses\r\n\
            [   99.000000] reboot: Power down\r\n";
        let leak = "lifecycle: uprobe: detach:164 failed to unregister, leaking uprobe";
        assert_eq!(remarks(log), [leak]);
        assert_eq!(complaint(log), None);
    }
}
