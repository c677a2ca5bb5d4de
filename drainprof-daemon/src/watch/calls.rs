//! Calls whose thread has ended: abandoned, or cut off by the end of the whole process?

/// A process that is alive this long after one of its threads ended inside a call was not ending then.
const GRACE_NS: u64 = 500_000_000;

#[derive(Debug)]
struct Cut {
    pid: u32,
    calls: u64,
    ns: u64,
    process_ended: bool,
}

/// Cut calls that are not judged yet.
#[derive(Debug, Default)]
pub(super) struct CutCalls(Vec<Cut>);

impl CutCalls {
    /// A thread has ended inside `calls` calls.
    pub(super) fn thread_ended(&mut self, pid: u32, calls: u64, ns: u64) {
        self.0.push(Cut { pid, calls, ns, process_ended: false });
    }

    /// The process has ended, so what its threads were doing last was cut off by that.
    pub(super) fn process_ended(&mut self, pid: u32) {
        for cut in self.0.iter_mut().filter(|cut| cut.pid == pid) {
            cut.process_ended = true;
        }
    }

    /// The numbers of abandoned and of cut calls that can be told by now, or, at the `last` time, of all.
    pub(super) fn settle(&mut self, now_ns: u64, last: bool) -> (u64, u64) {
        let (mut abandoned, mut by_end) = (0, 0);
        self.0.retain(|cut| {
            let old = now_ns.saturating_sub(cut.ns) > GRACE_NS;
            if cut.process_ended {
                by_end += cut.calls;
            } else if old || last {
                abandoned += cut.calls;
            }
            !(cut.process_ended || old || last)
        });
        (abandoned, by_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call is abandoned if its process lives on, and cut off if it ends soon after.
    #[test]
    fn the_process_decides() {
        let mut calls = CutCalls::default();
        calls.thread_ended(1, 2, 1_000);
        calls.thread_ended(2, 3, 1_000);
        assert_eq!(calls.settle(2_000, false), (0, 0));
        calls.process_ended(2);
        assert_eq!(calls.settle(3_000, false), (0, 3));
        assert_eq!(calls.settle(GRACE_NS + 1_001, false), (2, 0));
        assert_eq!(calls.settle(u64::MAX, true), (0, 0));
    }

    /// At the end every call is judged.
    #[test]
    fn nothing_stays_unjudged() {
        let mut calls = CutCalls::default();
        calls.thread_ended(1, 2, 1_000);
        assert_eq!(calls.settle(1_001, true), (2, 0));
    }
}
