//! Results as docs/performance.md, and as a few lines for the terminal.

use std::fmt::Write as _;

use textwrap::{Options, WordSplitter};

use crate::{
    bench::BENCHMARKS,
    model::{Benchmark, Bound, Compare, Goal, Results, Row, Table},
    stats::Summary,
};

/// Where lines of prose are broken.
const LINE_WIDTH: usize = 118;

const INTRODUCTION: &str = "\
<!-- Made by `cargo xtask bench --page`; edit bench/src/page.rs instead. -->

# Performance

What drainprof costs the observed program, measured in one run: *bare* (nothing attached), the *floor* (empty eBPF
programs at drainprof's probe sites: the kernel's part), drainprof, and tools that keep the same state or counts.
[overhead.md](overhead.md) explains the costs.

```sh
cargo xtask bench                       # all of it, three hours; results in target/bench/results.json
cargo xtask bench --only malloc,objects --page    # and renew this page
```

## How to read it

- Cost is **CPU time of the target's own threads**, so other load matters little. nginx and PostgreSQL: work per second.
- Targets work in batches and sleep while probes come and go. The first batch after an attach is dropped.
- A **round** measures all variants in turn, bare at both ends. Figures are medians of rounds (lowest–highest). *added*
  and *ratio* compare with bare, *÷* compares what two variants add, always within a round.
- Goals are judged by the median.
- Targets do nothing but what is probed: nanoseconds carry over to other programs, ratios do not.

";

/// The whole page.
pub(crate) fn text(results: &Results) -> String {
    let mut page = INTRODUCTION.to_owned();
    let machine = &results.machine;
    let kind = if machine.is_virtual { "virtual machine" } else { "no virtual machine" };
    let (name, memory) = (machine.name(), machine.memory_gib);
    let _ = writeln!(page, "## The machine\n\n{name} ({kind}), {memory:.0} GiB.\n");
    if results.quick {
        page.push_str("**One short round of each: these figures only show that it runs.**\n\n");
    }
    let versions: Vec<_> = machine.versions.iter().map(|(_, version)| cell(version)).collect();
    let _ = writeln!(
        page,
        "{}\n\n## Goals\n",
        wrapped(&format!("Versions: {}.", versions.join("; ")), "")
    );
    let goals = results.benchmarks.iter().flat_map(|benchmark| {
        benchmark.goals.iter().map(|goal| {
            let [measured, wanted, verdict] = words(goal);
            let verdict = if verdict.is_empty() { verdict } else { format!(": {verdict}") };
            [format!("`{}`", benchmark.name), cell(&goal.what), measured, wanted + &verdict]
        })
    });
    table(&mut page, ["benchmark", "figure", "measured (rounds)", "goal"], goals);
    for known in BENCHMARKS {
        match results.benchmarks.iter().find(|benchmark| benchmark.name == known.name) {
            Some(benchmark) => section(&mut page, benchmark),
            None => {
                let _ = writeln!(page, "## `{}`\n\nNot run.\n", known.name);
            }
        }
    }
    page.trim_end().to_owned() + "\n"
}

/// The goals of one benchmark, for the terminal.
pub(crate) fn summary(benchmark: &Benchmark) -> String {
    let mut text = String::new();
    for goal in &benchmark.goals {
        let [measured, wanted, verdict] = words(goal);
        let (name, what, verdict) = (&benchmark.name, &goal.what, verdict.replace("**", ""));
        let _ = writeln!(text, "{name}: {what}: goal {wanted}: {measured} {verdict}");
    }
    if let Some(why) = &benchmark.failed {
        let _ = writeln!(text, "{}: not available: {why}", benchmark.name);
    }
    text
}

/// What was measured, the goal, and the verdict.
fn words(goal: &Goal) -> [String; 3] {
    let space = if ["", "×"].contains(&goal.unit.as_str()) { "" } else { " " };
    let unit = |value: f64| format!("{}{space}{}", number(value), goal.unit);
    let measured = match goal.summary {
        Some(summary) => unit(summary.median) + &spread(&summary),
        None => not_available(goal.unavailable.as_deref()),
    };
    let wanted = match goal.bound {
        Bound::AtMost(limit) => format!("≤ {}", unit(limit)),
        Bound::AtLeast(limit) => format!("≥ {}", unit(limit)),
        Bound::Stated => "stated".to_owned(),
    };
    let verdict = goal.reached.map_or("", |reached| if reached { "reached" } else { "**missed**" });
    [measured, wanted, verdict.to_owned()]
}

fn section(page: &mut String, benchmark: &Benchmark) {
    let _ = writeln!(page, "## {}\n\n{}\n", benchmark.title, wrapped(&benchmark.about, ""));
    for measured in &benchmark.tables {
        if !measured.title.is_empty() {
            let _ = writeln!(page, "*{}*\n", measured.title);
        }
        let rows = measured.rows.iter().map(|row| cells(measured, row));
        match measured.compare {
            Compare::Added => table(page, ["variant", &measured.unit, "added"], rows),
            Compare::Ratio => table(page, ["variant", &measured.unit, "ratio"], rows),
            Compare::Nothing => {
                table(
                    page,
                    ["variant", &measured.unit],
                    rows.map(|[name, figure, _]| [name, figure]),
                );
            }
        }
    }
    if let Some(why) = &benchmark.failed {
        let _ = writeln!(page, "Not available: {why}\n");
    }
    for note in &benchmark.notes {
        let _ = writeln!(page, "- {}", wrapped(note, "  "));
    }
    let Benchmark { date, seconds, load, .. } = benchmark;
    let elsewhere = benchmark.elsewhere.iter().map(|machine| format!(", on {machine}"));
    let before = if benchmark.notes.is_empty() { "" } else { "\n" };
    let elsewhere: String = elsewhere.collect();
    let _ = writeln!(page, "{before}*{date}, {seconds:.0} s, load {load:.1}{elsewhere}*\n");
}

/// A row of a table: its name, its figure, and how that compares with the baseline.
fn cells(table: &Table, row: &Row) -> [String; 3] {
    let compared = match Summary::of(&table.compared(&row.name)) {
        Some(compared) if !row.baseline => number(compared.median),
        _ => String::new(),
    };
    let why = row.unavailable.as_deref();
    match (row.summary, why) {
        // Something that stopped working on the way has both samples and a reason.
        (Some(summary), Some(why)) => {
            [format!("{} (stopped: {})", row.name, cell(why)), figure(&summary), compared]
        }
        (Some(summary), None) => [row.name.clone(), figure(&summary), compared],
        (None, why) => [row.name.clone(), not_available(why), String::new()],
    }
}

fn table<const N: usize>(
    page: &mut String,
    columns: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) {
    let _ = writeln!(page, "| {} |\n|{}", columns.join(" | "), "---|".repeat(N));
    for row in rows {
        let _ = writeln!(page, "| {} |", row.join(" | "));
    }
    page.push('\n');
}

fn not_available(why: Option<&str>) -> String {
    format!("not available: {}", cell(why.unwrap_or("not measured")))
}

/// Text in lines that are not too long; all but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let options = Options::new(LINE_WIDTH).subsequent_indent(indent);
    textwrap::fill(text, options.word_splitter(WordSplitter::NoHyphenation))
}

/// A median and where the rounds lie.
fn figure(summary: &Summary) -> String {
    number(summary.median) + &spread(summary)
}

/// Lowest to highest; nothing where there is one round.
fn spread(summary: &Summary) -> String {
    let Summary { lowest, highest, .. } = summary;
    if lowest.total_cmp(highest).is_eq() {
        return String::new();
    }
    format!(" ({}–{})", number(*lowest), number(*highest))
}

/// Three or four digits that matter.
fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value.fract() == 0.0 && size < 1e9 || size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Text that may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Machine, SCHEMA};

    fn results() -> Results {
        let bare = Row::new("bare", true, vec![vec![10.0], vec![12.0]]);
        let ours = Row::new("ours", false, vec![vec![15.0], vec![16.0]]);
        let rows = vec![bare, ours, Row::unavailable("peer", "not | installed\nsecond line")];
        let table = Table::new("some", "ns", Compare::Added, rows);
        let goals = vec![
            table.goal("low", "ns", Bound::AtMost(5.0), "ours"),
            table.goal("lower", "ns", Bound::AtMost(1.0), "ours"),
            table.goal_of_times("peer", Bound::AtLeast(1.0), "peer", "ours"),
        ];
        let benchmark = Benchmark {
            name: "malloc".to_owned(),
            tables: vec![table],
            goals,
            ..Benchmark::default()
        };
        Results {
            schema: SCHEMA.to_owned(),
            quick: false,
            machine: Machine {
                kernel: "6.18".to_owned(),
                cpu: "a CPU".to_owned(),
                cpus: 2,
                is_virtual: true,
                memory_gib: 24.0,
                versions: vec![("gcc".to_owned(), "12".to_owned())],
            },
            benchmarks: vec![benchmark],
        }
    }

    /// What was reached, missed, unavailable and not run all stand on the page.
    #[test]
    fn nothing_is_left_out() {
        let page = text(&results());
        for expected in [
            "| `malloc` | low | 4.50 ns (4–5) | ≤ 5 ns: reached |",
            "| `malloc` | lower | 4.50 ns (4–5) | ≤ 1 ns: **missed** |",
            "| peer | not available: not \\| installed |  |",
            "| ours | 15.5 (15–16) | 4.50 |",
            "| bare | 11 (10–12) |  |",
            "## `nginx`\n\nNot run.",
        ] {
            assert!(page.contains(expected), "{expected:?} is not in:\n{page}");
        }
        assert!(summary(&results().benchmarks[0]).contains("malloc: lower: goal ≤ 1 ns: 4.50 ns"));
    }

    /// What another machine yielded says so, wherever it is taken over to.
    #[test]
    fn machines_are_told_apart() {
        let old = results();
        let mut new = results();
        new.machine.cpu = "a faster CPU".to_owned();
        let there = "Linux 6.18, 2 × a CPU";
        assert_eq!(old.of("malloc", false, &old.machine).unwrap().elsewhere, None);
        new.benchmarks = vec![old.of("malloc", false, &new.machine).unwrap()];
        assert!(text(&new).contains(&format!(", load 0.0, on {there}*")), "{}", text(&new));
        assert_eq!(new.of("malloc", false, &old.machine).unwrap().elsewhere, None);
        assert!(new.of("malloc", true, &new.machine).is_none());
    }

    /// Results survive being written and read.
    #[test]
    fn results_are_kept() {
        let written = serde_json::to_string(&results()).unwrap();
        let read: Results = serde_json::from_str(&written).unwrap();
        assert_eq!(text(&read), text(&results()));
    }

    /// Numbers are as long as they mean something.
    #[test]
    fn numbers() {
        assert_eq!(
            [0.98, 3.456, 23.45, 234.5, 45_678.9].map(number),
            ["0.98", "3.46", "23.4", "234", "45679"]
        );
    }
}
