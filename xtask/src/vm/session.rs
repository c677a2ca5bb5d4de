//! What the tests' serial line says: marks of the init script and, between them, what a test binary prints.
//!
//! Sums up the tests, and adds a failure for what did not come to its end and for a machine that is not as it was
//! meant to be.

use std::fmt;

use super::lists::Run;
use crate::tally::{Reader, Style, Tally};

/// Begins a line that the init script writes for this side.
pub(super) const MARK: &str = "@@drainprof";

/// What a kernel remembers of things that went wrong, in bits of `/proc/sys/kernel/tainted`.
const TAINTS: [(u64, &str); 3] =
    [(1 << 7, "has oopsed"), (1 << 9, "has warned"), (1 << 14, "has locked up")];

/// What the serial line has said so far.
pub(super) struct Session<'a> {
    machine: &'a str,
    /// The preemption model that it must have, if it matters.
    preempt: Option<&'a str>,
    /// The kernel's release, preemption model and processors, once the script has begun.
    kernel: Option<String>,
    done: bool,
    reader: Option<Reader>,
    ended: usize,
    tally: Tally,
}

/// What has booted.
impl fmt::Display for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kernel.as_deref().unwrap_or("not yet up"))
    }
}

impl<'a> Session<'a> {
    pub(super) fn new(machine: &'a str, preempt: Option<&'a str>) -> Self {
        Self {
            machine,
            preempt,
            kernel: None,
            done: false,
            reader: None,
            ended: 0,
            tally: Tally::default(),
        }
    }

    /// Whether the script has begun.
    pub(super) const fn is_up(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether the script has come to its end.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn line(&mut self, line: &str) {
        // A test's last output may lack its line end, so a mark may stand anywhere.
        let Some((before, mark)) = line.split_once(MARK) else {
            if let Some(reader) = &mut self.reader {
                reader.line(line);
            }
            return;
        };
        if let Some(reader) = self.reader.as_mut().filter(|_| !before.is_empty()) {
            reader.line(before);
        }
        let words: Vec<&str> = mark.split_whitespace().collect();
        match words[..] {
            ["kernel", release, ..] => self.kernel(release, &words[2..]),
            ["begin", name] => {
                let name = format!("kernel {}: {name}", self.machine);
                self.reader = Some(Reader::new(name, Style::Sequential));
            }
            ["end", name, status] => self.end(name, status == "0"),
            ["tainted", bits] => self.tainted(bits),
            ["done"] => self.done = true,
            _ => {}
        }
    }

    /// Notes what has booted, which must be what was asked for.
    fn kernel(&mut self, release: &str, more: &[&str]) {
        let preempt = more.first().copied().unwrap_or("unknown");
        let processors = more.get(1).copied().unwrap_or("?");
        self.kernel = Some(format!("{release}, preemption {preempt}, {processors} processors"));
        if self.preempt.is_some_and(|wanted| wanted != preempt) {
            self.fail(&format!("booted with preemption {preempt}; check its command line"));
        }
    }

    fn end(&mut self, name: &str, ended_well: bool) {
        let Some(reader) = self.reader.take() else { return };
        let tally = reader.finish(ended_well);
        if tally.passed + tally.failed + tally.skipped == 0 {
            self.fail(&format!("{name}: no test ran; does the list name tests that exist?"));
        }
        self.tally.add(tally);
        self.ended += 1;
    }

    /// The kernel's own record catches what its console did not show.
    fn tainted(&mut self, bits: &str) {
        let Ok(bits) = bits.parse::<u64>() else {
            return self.fail(&format!("does not say whether it is tainted: {bits}"));
        };
        for (bit, what) in TAINTS {
            if bits & bit != 0 {
                self.fail(&format!("the kernel {what} (tainted: {bits})"));
            }
        }
    }

    fn fail(&mut self, what: &str) {
        self.tally.add(Tally::failure(format!("kernel {}: {what}", self.machine)));
    }

    /// Ends the session; what did not come to its end is a failure.
    pub(super) fn finish(mut self, runs: &[Run]) -> Tally {
        if let Some(reader) = self.reader.take() {
            self.tally.add(reader.finish(false));
            self.ended += 1;
        }
        for run in runs.iter().skip(self.ended) {
            let what = "never began: the machine stopped or ran out of time";
            self.fail(&format!("{}: {what}", run.binary.name));
        }
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::{Run, Session};
    use crate::artifacts::TestBinary;
    use crate::tally::Tally;

    fn session(text: &str, names: &[&str]) -> Tally {
        let mut session = Session::new("6.1", Some("full"));
        for line in text.lines() {
            session.line(line);
        }
        let runs: Vec<Run> = names
            .iter()
            .map(|name| Run {
                binary: TestBinary { name: (*name).to_owned(), ..TestBinary::default() },
                tests: Vec::new(),
            })
            .collect();
        session.finish(&runs)
    }

    fn failures(text: &str) -> Vec<String> {
        session(text, &[]).failures.into_iter().map(|failure| failure.what).collect()
    }

    /// Two binaries that end well are summed, a mark behind unfinished output included.
    #[test]
    fn sums_what_ran() {
        let text = "@@drainprof kernel 6.1.0 full 2\n@@drainprof begin a\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored\n@@drainprof end a 0\n\
                    @@drainprof begin b\ntest result: ok. 1 passed; 0 failed; 0 ignored\n\
                    noise@@drainprof end b 0\n@@drainprof tainted 0\n@@drainprof done";
        let tally = session(text, &["a", "b"]);
        assert_eq!((tally.passed, tally.failed), (3, 0));
    }

    /// A machine that dies in a binary fails that one and every later one.
    #[test]
    fn what_did_not_end_failed() {
        let tally = session(
            "@@drainprof kernel 6.1.0 full 2\n@@drainprof begin a\ntest x ... ",
            &["a", "b"],
        );
        assert_eq!((tally.passed, tally.failed), (0, 2));
    }

    /// A filter that fits no test is a failure, not an empty success.
    #[test]
    fn nothing_ran_is_a_failure() {
        let text = "@@drainprof begin a\ntest result: ok. 0 passed; 0 failed; 0 ignored\n@@drainprof end a 0";
        assert_eq!(session(text, &["a"]).failed, 1);
    }

    /// A kernel that has warned fails; modules that are not signed taint it, too, and do not.
    #[test]
    fn tainted_kernels() {
        assert_eq!(failures("@@drainprof tainted 12288"), Vec::<String>::new());
        let warned = failures("@@drainprof tainted 12800");
        assert_eq!(warned, ["kernel 6.1: the kernel has warned (tainted: 12800)"]);
        assert_eq!(failures("@@drainprof tainted cat:").len(), 1);
    }

    /// Another preemption model than was asked for would show nothing.
    #[test]
    fn preemption_as_asked_for() {
        assert!(failures("@@drainprof kernel 7.2.13 full 16").is_empty());
        let lazy = failures("@@drainprof kernel 7.2.13 lazy 16");
        assert_eq!(lazy, ["kernel 6.1: booted with preemption lazy; check its command line"]);
    }
}
