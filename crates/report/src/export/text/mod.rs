//! `text`: the report as tables for people.
//!
//! Whatever comes from a target is escaped; colour is used only when the caller says so, and colour
//! alone says nothing.

mod allocator;
mod census;
mod family;
pub(super) mod frame;
pub(super) mod growth;
pub(super) mod heaps;
mod memory;
pub(super) mod page;
mod site;
mod system;

use std::io;

use drainprof_common::loss;
use drainprof_process::elf::readable;

use self::{
    family::{Part, parts},
    page::{BAD, DOUBTFUL, GOOD, PATH, Page, SYMBOL, cost},
};
use super::{Error, Exporter, Interval, SENTENCE, Style, escape, live, table::Rows};
use crate::{Began, Ended, Finding, Report, Severity, Target, health::Health, units};

#[derive(Debug)]
pub(super) struct Text;

impl Exporter for Text {
    fn report(&self, report: &Report, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        let mut page = Page { style, out };
        page.head(report)?;
        page.findings(&report.findings)?;
        if report.system {
            return page.system(report);
        }
        for part in parts(&report.targets) {
            match part {
                Part::One(target) => page.target(report, target)?,
                Part::Family(members) => page.family(report, &members)?,
            }
        }
        if report.targets.is_empty() {
            page.line("\nno process was observed")?;
        }
        Ok(())
    }

    fn interval(
        &self,
        interval: &Interval<'_>,
        _style: &Style,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        live::lines(interval, out)
    }
}

impl Page<'_> {
    fn head(&mut self, report: &Report) -> Result<(), Error> {
        for line in super::not_measurable(report) {
            self.wrapped("", &line)?;
        }
        let kernel = match report.host.kernel.as_str() {
            "" => String::new(),
            kernel => format!(", Linux {}", escape::shown(kernel, SYMBOL)),
        };
        let own = &report.self_use;
        let ratio = own.cpu_ratio.map_or_else(String::new, |r| format!(" ({})", units::percent(r)));
        self.title(&format!(
            "{} {}{kernel}, {} observed",
            escape::shown(&report.tool.name, SYMBOL),
            escape::shown(&report.tool.version, SYMBOL),
            units::duration(report.window.observed())
        ))?;
        if let Some(duty) = report.window.duty {
            self.line(&format!(
                "duty cycle: {} of every {}, {} windows in {}",
                units::duration(duty.on_seconds),
                units::duration(duty.period_seconds),
                duty.windows,
                units::duration(report.window.seconds)
            ))?;
        }
        let used = format!(
            "own use: CPU {}{ratio}, RSS {} (peak {}), kernel maps {}",
            units::duration(own.cpu_seconds),
            units::bytes(own.rss_bytes),
            units::bytes(own.peak_rss_bytes),
            units::bytes(own.map_bytes)
        );
        self.wrapped("", &used)?;
        if let Some(pressure) = &report.pressure {
            self.wrapped("", &memory::pressure(pressure))?;
        }
        let health = Health::from_names(&report.losses);
        let verdict = if report.complete {
            self.style.paint(GOOD, "complete: nothing that the counts need was lost")
        } else if health.complete() {
            self.style.paint(BAD, "INCOMPLETE: a profile is not measurable")
        } else {
            self.style.paint(BAD, "INCOMPLETE: something that the counts need was lost")
        };
        self.line(&verdict)?;
        // Those that make it incomplete are reported as findings, with their remedy.
        for line in health.lines.iter().filter(|line| line.severity == loss::Severity::Notice) {
            let name = escape::shown(&line.name, SYMBOL);
            self.wrapped("  ", &format!("{name} {}: {}", line.count, line.meaning))?;
        }
        Ok(())
    }

    fn target(&mut self, report: &Report, target: &Target) -> Result<(), Error> {
        let comm = escape::shown(&target.comm, SYMBOL);
        let exe = escape::shown(&target.exe, PATH);
        self.title(&format!("\n{comm}[{}] {exe}", target.pid))?;
        let rss = target.rss_bytes.map(|b| format!(", RSS {}", units::bytes(b)));
        let began = began(target.began, report);
        let ended = ended(target.ended);
        self.line(&format!("  {began}, {ended}{}", rss.unwrap_or_default()))?;
        if target.cost.hits > 0 {
            self.line(&format!("  {}", cost(&target.cost)))?;
        }
        if let Some(reported) = &target.memory {
            memory::lines(reported).iter().try_for_each(|line| self.wrapped("  ", line))?;
        }
        if let Some(census) = &target.census {
            heaps::lines(census).iter().try_for_each(|line| self.wrapped("  ", line))?;
        }
        self.findings(&target.findings)?;
        self.memory_growth(target)?;
        for allocator in &target.allocators {
            self.allocator(allocator)?;
        }
        self.probes(report, target)
    }

    fn findings(&mut self, findings: &[Finding]) -> Result<(), Error> {
        for finding in findings {
            let (mark, paint) = match finding.severity {
                Severity::Info => ("note", anstyle::Style::new()),
                Severity::Warning => ("warning", DOUBTFUL),
                Severity::Error => ("error", BAD),
            };
            let about = [&finding.profile, &finding.instance]
                .into_iter()
                .flatten()
                .fold(String::new(), |text, part| text + " " + &escape::shown(part, SYMBOL));
            let code = escape::shown(&finding.code, SYMBOL);
            let head = self.style.paint(paint, &format!("{mark} {code}{about}"));
            self.line(&format!("  {head}"))?;
            self.wrapped("    ", &escape::shown(&finding.message, SENTENCE))?;
        }
        Ok(())
    }

    fn probes(&mut self, report: &Report, target: &Target) -> Result<(), Error> {
        if target.probes.is_empty() {
            // Probes on files serve all processes, and stand at the first of them.
            let first = report.targets.iter().find(|other| !other.probes.is_empty());
            return match first.filter(|_| !target.allocators.is_empty()) {
                Some(other) => self.line(&format!(
                    "\n  the probes sit on files, and are listed at {} with the hits of all",
                    other.pid
                )),
                None => self.line("\n  no probe is in place"),
            };
        }
        let earlier = report.targets.iter().take_while(|other| other.target != target.target);
        if let Some(same) = earlier.into_iter().find(|other| other.probes == target.probes) {
            return self.line(&format!("\n  the probes are those of {}", same.pid));
        }
        let header =
            ["probe", "profile", "symbol", "object", "entries", "returns", "rejected", "faults"];
        let mut rows = Rows::new(&header, 4, self.style.width.saturating_sub(2));
        for probe in &target.probes {
            rows.push(vec![
                escape::shown(&probe.role, SYMBOL),
                escape::shown(&probe.profile, SYMBOL),
                escape::shown(&readable(&probe.symbol), SYMBOL),
                escape::shown(&probe.object, PATH),
                probe.entries.to_string(),
                if probe.at_return { probe.returns.to_string() } else { "-".to_owned() },
                probe.rejected.to_string(),
                probe.faults.to_string(),
            ]);
        }
        self.line("")?;
        self.rows(rows, "  ")
    }
}

fn began(began: Began, report: &Report) -> String {
    let pid = |number: u32| {
        let from = report.targets.iter().find(|target| target.target == number);
        from.map_or_else(|| "another process".to_owned(), |from| from.pid.to_string())
    };
    match began {
        Began::Attached => "attached to a running process".to_owned(),
        Began::FromStart => "observed from its start".to_owned(),
        Began::Forked { from_target } => format!("forked by {}", pid(from_target)),
        Began::Exec { from_target } => format!("made by exec in {}", pid(from_target)),
    }
}

fn ended(ended: Option<Ended>) -> String {
    match ended {
        None => "still running".to_owned(),
        Some(Ended::Exec) => "ended by exec".to_owned(),
        Some(Ended::Exit { signal: Some(signal), .. }) => format!("killed by signal {signal}"),
        Some(Ended::Exit { code: Some(code), .. }) => format!("exited with {code}"),
        Some(Ended::Exit { .. }) => "exited".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Options, samples};

    fn text(name: &str, style: &Style) -> String {
        let (_, snapshot) = samples::all().into_iter().find(|(n, _)| *n == name).unwrap();
        let options = Options { kernel: "6.18.5".to_owned(), ..Options::default() };
        let mut out = Vec::new();
        let mut report = Report::build(&snapshot, &options);
        report.tool.version = "1.2.3".to_owned();
        Text.report(&report, style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The page as a whole, for each kind, level and corner.
    #[test]
    fn pages() {
        for (name, _) in samples::all() {
            insta::assert_snapshot!(format!("text_{name}"), text(name, &Style::default()));
        }
    }

    /// Colour adds escape sequences and nothing else.
    #[test]
    fn colour_is_only_colour() {
        let plain = text("incomplete", &Style::default());
        let coloured = text("incomplete", &Style { colour: true, ..Style::default() });
        assert!(!plain.contains('\u{1b}') && coloured.contains('\u{1b}'));
        let mut stripped = String::new();
        let mut parts = coloured.split('\u{1b}');
        stripped += parts.next().unwrap();
        for part in parts {
            stripped += part.split_once('m').unwrap().1;
        }
        assert_eq!(stripped, plain);
    }

    /// No line is wider than the page, unless a single word is.
    #[test]
    fn pages_keep_their_width() {
        for (name, _) in samples::all() {
            for line in text(name, &Style::default()).lines() {
                assert!(line.chars().count() <= 100, "{name}: {line}");
            }
        }
    }

    /// Prices that are another machine's are called so.
    #[test]
    fn prices_of_other_machines() {
        let measured =
            Cost { hits: 1_000, cpu_seconds: 0.01, cpu_ratio: Some(0.02), measured: true };
        let text = cost(&measured);
        assert_eq!(
            text,
            "probing took at least 10.0 ms of its time (2.00 % of one CPU) for 1000 hits"
        );
        let other = cost(&Cost { measured: false, ..measured });
        assert_eq!(other, format!("{text}, by costs measured on other machines"));
    }

    /// An allocator without a decided close has no number for its DSR.
    #[test]
    fn no_dsr_is_no_data() {
        let page = text("undecided", &Style::default());
        assert!(page.contains("no data"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("DSR 0"), "{page}");
    }

    /// How each process began and ended is said, as far as it is known.
    #[test]
    fn beginnings_and_ends() {
        let report = Report::build(&samples::lifecycle_snapshot(), &Options::default());
        let page = |targets: &[Target]| {
            let mut out = Vec::new();
            let part = Report { targets: targets.to_vec(), ..report.clone() };
            Text.report(&part, &Style::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        for (page, sentences) in [
            (
                page(&report.targets[..3]),
                ["forked by 4242, exited with 3", "forked by 4242, killed by signal 9"],
            ),
            (
                page(&report.targets[3..]),
                ["forked by another process, ended by exec", "made by exec in 4245, exited"],
            ),
        ] {
            assert!(sentences.iter().all(|sentence| page.contains(sentence)), "{page}");
        }
    }

    /// Probes on files are listed once, and the others of a family say where.
    #[test]
    fn families_share_their_probes() {
        let mut report =
            Report::build(&samples::drain_snapshot(), &Options { top: 1, ..Options::default() });
        let worker =
            Target { target: 7, pid: 4711, probes: Vec::new(), ..report.targets[0].clone() };
        let idle = Target { target: 8, allocators: Vec::new(), ..worker.clone() };
        report.targets.extend([worker, idle]);
        let mut out = Vec::new();
        Text.report(&report, &Style::default(), &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        assert!(page.contains("the probes sit on files, and are listed at 4242"), "{page}");
        assert_eq!(page.matches("no probe is in place").count(), 1, "{page}");
    }
}
