//! Reads what test binaries print and sums it up.
//!
//! A reader of libtest's plain output: it is given lines as they come and an exit status, and returns counts, what
//! failed tests printed, and how long tests took. A test that prints `SKIP: reason` and passes is a skipped one; a binary that ends without
//! its result line, or with a bad status and no failed test, is a failure of its own. Called by `test` and `vm`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::busy::Stretch;
use crate::work;

/// How many tests passed, failed, and were skipped, and which failed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) failures: Vec<Failure>,
    /// How long each test took, or a whole binary whose tests run at once.
    pub(crate) times: Vec<(String, Duration)>,
}

/// Something that failed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// One line: the test, after its binary's name.
    pub(crate) what: String,
    /// The last lines of what it printed; none where it is no test.
    pub(crate) said: Vec<String>,
}

/// Lines of a test that are kept: a panic with its backtrace has about 50.
const KEPT_LINES: usize = 120;

impl Tally {
    /// One failure that is no test's: a crash, a check, a machine that did not boot.
    pub(crate) fn failure(what: impl Into<String>) -> Self {
        Self::failure_that_said(what.into(), Vec::new())
    }

    /// One failure with the lines that explain it.
    pub(crate) fn failure_that_said(what: String, said: Vec<String>) -> Self {
        Self { failed: 1, failures: vec![Failure { what, said }], ..Self::default() }
    }

    /// What a run came to; what kept it from running is a failure like any other, which must not hide other results.
    pub(crate) fn of(what: &str, run: Result<Self>) -> Self {
        run.unwrap_or_else(|error| {
            eprintln!("xtask: {what}: {error:#}");
            Self::failure(format!("{what}: {error}"))
        })
    }

    /// Shows what came of one part: its numbers, and before them all that its failed tests printed.
    pub(crate) fn show(&self, name: &str, stretch: &Stretch) {
        for failure in &self.failures {
            // In one piece: another machine may print, too.
            println!("---- {failure}\n{}\n---- end of {}", failure.said.join("\n"), failure.what);
        }
        work::note(format!("{name}: {self} in {:.0} s", stretch.seconds()));
        if self.failed > 0
            && let Some(used) = stretch.use_of_processors()
        {
            work::note(used);
        }
    }

    /// Names the failures on stderr, prints the sum on stdout, and chooses the exit code.
    pub(crate) fn conclude(&self, slowest: usize) -> ExitCode {
        for (test, time) in self.slowest(slowest) {
            eprintln!("{:7.1} s  {test}", time.as_secs_f64());
        }
        for failure in &self.failures {
            eprintln!("{failure}");
        }
        println!("{self}");
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Adds another tally to this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.times.extend(other.times);
    }

    /// The tests that took longest, the slowest first.
    pub(crate) fn slowest(&self, number: usize) -> Vec<(String, Duration)> {
        let mut times = self.times.clone();
        times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        times.truncate(number);
        times
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// One line: what failed, and what a panic gave as the reason.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed: {}", self.what)?;
        let panic = self.said.iter().skip_while(|line| !line.contains(" panicked at "));
        panic.skip(1).take(1).try_for_each(|reason| write!(f, ": {reason:.200}"))
    }
}

/// How a run prints its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `--nocapture --test-threads=1`: a test's output stands between its name and its result.
    Sequential,
    /// `--show-output`: several tests at once; what each one printed comes after all results, and each `SKIP:` line
    /// is one test.
    Parallel,
}

/// Reads one test binary's output, line by line.
pub(crate) struct Reader {
    name: String,
    style: Style,
    result: Option<Counts>,
    skips: usize,
    skip_pending: bool,
    listing: bool,
    /// The test whose output the next lines are.
    current: String,
    /// The last lines of each test.
    said: HashMap<String, VecDeque<String>>,
    /// Names of tests.
    failures: Vec<String>,
    /// When the last line came.
    last: Instant,
    times: HashMap<String, Duration>,
}

/// The numbers of one `test result:` line.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Reader {
    pub(crate) fn new(name: impl Into<String>, style: Style) -> Self {
        Self {
            name: name.into(),
            style,
            result: None,
            skips: 0,
            skip_pending: false,
            listing: false,
            current: String::new(),
            said: HashMap::new(),
            failures: Vec::new(),
            last: Instant::now(),
            times: HashMap::new(),
        }
    }

    /// Takes one line, without its line end.
    pub(crate) fn line(&mut self, line: &str) {
        let line = line.trim_end_matches('\r');
        if let Some(counts) = Counts::parse(line) {
            self.settle_skip();
            self.listing = false;
            // A test may itself print such a line, so of one binary only the last one counts.
            self.result = Some(counts);
            return;
        }
        if line.trim_end() == "failures:" {
            // It comes twice, with the outputs and with the names; names are indented by four.
            self.listing = true;
            self.failures.clear();
        } else if self.listing
            && let Some(name) = line.strip_prefix("    ").filter(|name| !name.contains(' '))
        {
            self.failures.push(name.to_owned());
        }
        let text = match line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
            Some((name, rest)) => {
                self.settle_skip();
                name.clone_into(&mut self.current);
                rest
            }
            None => line,
        };
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            name.clone_into(&mut self.current);
        }
        self.keep(line);
        self.clock();
        if text.trim_start().starts_with("SKIP:") {
            self.skip_pending = true;
            if self.style != Style::Sequential {
                self.settle_skip();
            }
        }
        if self.style == Style::Sequential && line.trim_end().ends_with("FAILED") {
            self.skip_pending = false;
        }
    }

    /// Counts the time since the last line to the test whose line this is.
    fn clock(&mut self) {
        let now = Instant::now();
        let of = if self.style == Style::Sequential { &self.current } else { "" };
        *self.times.entry(of.to_owned()).or_default() += now.duration_since(self.last);
        self.last = now;
    }

    /// Keeps a line of the test at hand, and forgets that one's oldest.
    fn keep(&mut self, line: &str) {
        let said = self.said.entry(self.current.clone()).or_default();
        if said.len() == KEPT_LINES {
            said.pop_front();
        }
        said.push_back(line.to_owned());
    }

    /// Ends the reading with the binary's fate.
    pub(crate) fn finish(mut self, ended_well: bool) -> Tally {
        self.settle_skip();
        let Some(counts) = self.result else {
            let what = format!("{}: ended without a result (crash or timeout)", self.name);
            return Tally::failure_that_said(what, take(&mut self.said, &self.current));
        };
        let skips = self.skips.min(counts.passed);
        let failures = self.failures.iter().map(|name| Failure {
            what: format!("{}: {name}", self.name),
            said: take(&mut self.said, name),
        });
        let failures = failures.collect();
        let mut tally = Tally {
            passed: counts.passed - skips,
            failed: counts.failed,
            skipped: counts.ignored + skips,
            failures,
            times: self
                .times
                .into_iter()
                .map(|(test, time)| (label(&self.name, &test), time))
                .collect(),
        };
        if !ended_well && tally.failed == 0 {
            let what = format!("{}: failed after its tests had passed", self.name);
            tally.add(Tally::failure_that_said(what, take(&mut self.said, &self.current)));
        }
        tally
    }

    fn settle_skip(&mut self) {
        self.skips += usize::from(std::mem::take(&mut self.skip_pending));
    }
}

/// A test after its binary's name.
fn label(binary: &str, test: &str) -> String {
    if test.is_empty() { binary.to_owned() } else { format!("{binary}: {test}") }
}

fn take(said: &mut HashMap<String, VecDeque<String>>, test: &str) -> Vec<String> {
    said.remove(test).unwrap_or_default().into()
}

impl Counts {
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`, wherever on the line it begins:
    /// a test's last output may lack its line end.
    fn parse(line: &str) -> Option<Self> {
        let (_, result) = line.rsplit_once("test result: ")?;
        let (_, numbers) = result.split_once(". ")?;
        let mut counts = Self::default();
        for field in numbers.split("; ") {
            let Some((number, what)) = field.trim().split_once(' ') else { continue };
            match what {
                "passed" => counts.passed = number.parse().ok()?,
                "failed" => counts.failed = number.parse().ok()?,
                "ignored" => counts.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{KEPT_LINES, Reader, Style, Tally};

    fn read(style: Style, ended_well: bool, text: &str) -> Tally {
        let mut reader = Reader::new("bin", style);
        for line in text.lines() {
            reader.line(line);
        }
        reader.finish(ended_well)
    }

    /// The plain case: numbers are those of the result line, ignored tests count as skipped.
    #[test]
    fn result_line_is_summed() {
        let tally = read(
            Style::Parallel,
            true,
            "running 4 tests\ntest a ... ok\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s",
        );
        assert_eq!((tally.passed, tally.failed, tally.skipped), (3, 0, 1));
    }

    /// A test that says SKIP, even twice, is one skipped test, wherever its line begins.
    #[test]
    fn skip_line_turns_a_pass_into_a_skip() {
        let tally = read(
            Style::Sequential,
            true,
            "test a ... SKIP: no nginx\nSKIP: really\nok\ntest b ... noise\nSKIP: no psql\r\nok\ntest c ... ok\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 0, 2));
    }

    /// A test that says SKIP and then fails is a failure, and takes no pass away from another test.
    #[test]
    fn skip_of_a_failing_test_is_not_counted() {
        let tally = read(
            Style::Sequential,
            false,
            "test a ... SKIP: no nginx\nFAILED\ntest b ... ok\n\nfailures:\n\nfailures:\n    a\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 1, 0));
        assert_eq!(tally.failures[0].what, "bin: a");
    }

    /// What a failed test printed is kept, and no other test's lines: where tests run one by one, from its name on;
    /// where they run together, its block after the results.
    #[test]
    fn failed_tests_are_heard() {
        let sequential = read(
            Style::Sequential,
            false,
            "test a ... noise\nok\ntest b ... seed 7\nthread 'b' panicked at x.rs:1:1:\nleft: 1\nFAILED\ntest c ... ok\n\nfailures:\n\nfailures:\n    b\n\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured",
        );
        let said = &sequential.failures[0].said;
        assert_eq!(said[..3], ["test b ... seed 7", "thread 'b' panicked at x.rs:1:1:", "left: 1"]);
        assert_eq!((said.len(), said.last().map(String::as_str)), (4, Some("FAILED")));
        assert_eq!(sequential.failures[0].to_string(), "failed: bin: b: left: 1");
        let parallel = read(
            Style::Parallel,
            false,
            "test b ... FAILED\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\nnoise\n\nfailures:\n\n---- b stdout ----\nwhy\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured",
        );
        assert!(parallel.failures[0].said.iter().any(|line| line == "why"), "{parallel:?}");
        assert!(!parallel.failures[0].said.iter().any(|line| line == "noise"), "{parallel:?}");
    }

    /// A test that prints without end costs no memory without end.
    #[test]
    fn only_the_last_lines_are_kept() {
        let noise: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
        let text = format!("test a ... begins\n{}", noise.join("\n"));
        let tally = read(Style::Sequential, false, &text);
        let said = &tally.failures[0].said;
        assert_eq!((said.len(), said.last().map(String::as_str)), (KEPT_LINES, Some("999")));
    }

    /// A binary that dies before its result line is one failure.
    #[test]
    fn crash_is_a_failure() {
        let tally = read(Style::Sequential, false, "running 2 tests\ntest a ... ok\ntest b ... ");
        assert_eq!((tally.passed, tally.failed), (0, 1));
    }

    /// A binary that claims success and then ends badly is a failure as well.
    #[test]
    fn bad_status_after_success_is_a_failure() {
        let tally = read(Style::Parallel, false, "test result: ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!((tally.passed, tally.failed), (1, 1));
    }

    /// A result line that a test prints itself does not count beside the real, last one.
    #[test]
    fn only_the_last_result_of_a_binary_counts() {
        let tally = read(
            Style::Parallel,
            true,
            "test result: ok. 90 passed; 0 failed; 0 ignored\ntest result: ok. 2 passed; 0 failed; 0 ignored",
        );
        assert_eq!(tally.passed, 2);
    }

    /// The time between two lines is that of the test whose line ends it.
    #[test]
    fn times_are_those_of_tests() {
        let mut reader = Reader::new("bin", Style::Sequential);
        for line in ["test a ... ok", "test b ... noise"] {
            reader.line(line);
        }
        std::thread::sleep(Duration::from_millis(20));
        for line in ["ok", "test result: ok. 2 passed; 0 failed; 0 ignored"] {
            reader.line(line);
        }
        let slowest = reader.finish(true).slowest(1);
        assert_eq!(slowest[0].0, "bin: b");
        assert!(slowest[0].1 >= Duration::from_millis(20));
    }
}
