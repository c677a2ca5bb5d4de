//! Results as docs/performance.md, and as a few lines for who waits for them.

use std::fmt::Write as _;

use crate::{
    bench::BENCHMARKS,
    model::{Benchmark, Bound, Compare, Goal, Results, Row, Table},
    stats::Summary,
};

const INTRODUCTION: &str = "\
<!-- Made by `cargo xtask bench --page`; edit bench/src/page.rs instead. -->

# Performance

What drainprof costs the program that it looks at, measured side by side in one run: nothing attached (*bare*), an *empty* eBPF
program at the very sites where drainprof probes (the *floor*: what the kernel takes for a hit), drainprof itself, and other
tools that keep the same state or count the same calls. [overhead.md](overhead.md) explains where the cost comes from.

```sh
cargo xtask bench                       # all of it, about ten minutes; results in target/bench/results.json
cargo xtask bench --only malloc,objects
cargo xtask bench --page                # and renew this page
```

## How to read it

- Cost is **CPU time of the target's own threads**, which it measures of itself; so what else runs on the machine matters little.
  nginx and PostgreSQL are measured by what they get done per second.
- Programs work in batches between which they sleep; probes come and go only while they sleep. One batch after each attach is
  thrown away.
- A **round** measures all variants in turn and bare at both ends. A variant's value in a round is the median of its batches;
  the tables show the median of the rounds, and the lowest and highest round. *Added* and *ratio* are computed within each
  round against the mean of its bare measurements, and then the median is taken.
- A goal is judged by that median. One that is missed is shown as missed; what could not be measured says why.
- These programs do nothing but what is probed. The nanoseconds carry over to other programs, the ratios to bare do not.

";

/// The whole page.
pub(crate) fn text(results: &Results) -> String {
    let mut page = INTRODUCTION.to_owned();
    machine(&mut page, results);
    goals(&mut page, results);
    for known in BENCHMARKS {
        match results.benchmarks.iter().find(|benchmark| benchmark.name == known.name) {
            Some(benchmark) => section(&mut page, benchmark),
            None => {
                let _ = writeln!(page, "## `{}`\n\nNot run.\n", known.name);
            }
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn machine(page: &mut String, results: &Results) {
    let machine = &results.machine;
    let kind = if machine.is_virtual { "virtual machine" } else { "no virtual machine" };
    let _ = writeln!(
        page,
        "## The machine\n\nLinux {}, {} × {} ({kind}), {:.0} GiB.",
        machine.kernel, machine.cpus, machine.cpu, machine.memory_gib
    );
    if results.quick {
        page.push_str("\n**One short round of each: these figures only show that it runs.**\n");
    }
    page.push_str("\n| program | version |\n|---|---|\n");
    for (program, version) in &machine.versions {
        let _ = writeln!(page, "| {program} | {} |", cell(version));
    }
    page.push('\n');
}

fn goals(page: &mut String, results: &Results) {
    page.push_str(
        "## Goals\n\n| benchmark | figure | goal | measured | lowest–highest round | |\n",
    );
    page.push_str("|---|---|---|---|---|---|\n");
    for benchmark in &results.benchmarks {
        for goal in &benchmark.goals {
            let [wanted, median, spread, verdict] = words(goal);
            let _ = writeln!(
                page,
                "| `{}` | {} | {wanted} | {median} | {spread} | {verdict} |",
                benchmark.name,
                cell(&goal.what)
            );
        }
        if let Some(why) = &benchmark.failed {
            let _ =
                writeln!(page, "| `{}` | | | not available: {} | | |", benchmark.name, cell(why));
        }
    }
    page.push('\n');
}

/// Goal, median, spread, verdict.
fn words(goal: &Goal) -> [String; 4] {
    let unit = |value: f64| with_unit(value, &goal.unit);
    let wanted = match goal.bound {
        Bound::AtMost(limit) => format!("≤ {}", unit(limit)),
        Bound::AtLeast(limit) => format!("≥ {}", unit(limit)),
        Bound::Stated => "stated".to_owned(),
    };
    let Some(summary) = goal.summary else {
        let why = goal.unavailable.as_deref().unwrap_or("not measured");
        return [wanted, format!("not available: {}", cell(why)), String::new(), String::new()];
    };
    let verdict = match goal.reached {
        Some(true) => "reached",
        Some(false) => "**missed**",
        None => "",
    };
    [wanted, unit(summary.median), spread(&summary), verdict.to_owned()]
}

fn section(page: &mut String, benchmark: &Benchmark) {
    let _ = writeln!(page, "## {}\n\n{}\n", benchmark.title, benchmark.about);
    for table in &benchmark.tables {
        tabulate(page, table);
    }
    if let Some(why) = &benchmark.failed {
        let _ = writeln!(page, "Not available: {why}\n");
    }
    for note in &benchmark.notes {
        let _ = writeln!(page, "- {note}");
    }
    let _ = writeln!(
        page,
        "{}Measured on {} in {:.0} s; the machine's load average was {:.1} when it began.\n",
        if benchmark.notes.is_empty() { "" } else { "\n" },
        benchmark.date,
        benchmark.seconds,
        benchmark.load
    );
}

fn tabulate(page: &mut String, table: &Table) {
    let last = match table.compare {
        Compare::Added => " added |",
        Compare::Ratio => " ratio |",
        Compare::Nothing => "",
    };
    if !table.title.is_empty() {
        let _ = writeln!(page, "*{}*\n", capital(&table.title));
    }
    let _ = writeln!(page, "| variant | {} | lowest–highest |{last}", table.unit);
    let _ = writeln!(page, "|---|---|---|{}", if last.is_empty() { "" } else { "---|" });
    for row in &table.rows {
        let _ = writeln!(page, "{}", line(table, row));
    }
    page.push('\n');
}

fn line(table: &Table, row: &Row) -> String {
    let compared = table.compare != Compare::Nothing;
    let Some(summary) = row.summary else {
        let why = row.unavailable.as_deref().unwrap_or("not measured");
        let tail = if compared { " | |" } else { " |" };
        return format!("| {} | not available: {} |{tail}", row.name, cell(why));
    };
    let mut line = format!("| {} | {} | {} |", row.name, number(summary.median), spread(&summary));
    if compared {
        let against = match Summary::of(&table.compared(&row.name)) {
            Some(against) if !row.baseline => number(against.median),
            _ => String::new(),
        };
        let _ = write!(line, " {against} |");
        // Something that stopped working on the way has both samples and a reason.
        if let Some(why) = &row.unavailable {
            line = line.replacen(" |", &format!(" (stopped: {}) |", cell(why)), 1);
        }
    }
    line
}

/// The goals of one benchmark, for the terminal.
pub(crate) fn summary(benchmark: &Benchmark) -> String {
    let mut text = String::new();
    for goal in &benchmark.goals {
        let [wanted, median, spread, verdict] = words(goal);
        let verdict = verdict.replace("**", "");
        let _ = writeln!(
            text,
            "{}: {}: goal {wanted}: {median} ({spread}) {verdict}",
            benchmark.name, goal.what
        );
    }
    if let Some(why) = &benchmark.failed {
        let _ = writeln!(text, "{}: not available: {why}", benchmark.name);
    }
    text
}

fn spread(summary: &Summary) -> String {
    format!("{}–{}", number(summary.lowest), number(summary.highest))
}

fn with_unit(value: f64, unit: &str) -> String {
    let space = if unit.is_empty() || unit == "×" { "" } else { " " };
    format!("{}{space}{unit}", number(value))
}

/// Three or four digits that matter.
fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value.fract() == 0.0 && size < 1e9 => format!("{value:.0}"),
        _ if size >= 1000.0 => format!("{value:.0}"),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Text that may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('|', "\\|")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::{number, summary, text};
    use crate::model::{Benchmark, Bound, Compare, Goal, Machine, Results, Row, SCHEMA, Table};

    fn results() -> Results {
        let bare = Row::new("bare", true, vec![vec![10.0], vec![12.0]]);
        let ours = Row::new("ours", false, vec![vec![15.0], vec![16.0]]);
        let rows = vec![bare, ours, Row::unavailable("peer", "not | installed\nsecond line")];
        let table = Table {
            title: "some".to_owned(),
            unit: "ns".to_owned(),
            compare: Compare::Added,
            rows,
        };
        let goals = vec![
            Goal::new("low", "ns", Bound::AtMost(5.0), table.compared("ours")),
            Goal::new("lower", "ns", Bound::AtMost(1.0), table.compared("ours")),
            Goal::new("peer", "×", Bound::AtLeast(1.0), Vec::new()).because(table.why_not("peer")),
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
            "| `malloc` | low | ≤ 5 ns | 4.50 ns | 4–5 | reached |",
            "| `malloc` | lower | ≤ 1 ns | 4.50 ns | 4–5 | **missed** |",
            "| peer | not available: not \\| installed | | |",
            "| ours | 15.5 | 15–16 | 4.50 |",
            "| bare | 11 | 10–12 |  |",
            "## `nginx`\n\nNot run.",
        ] {
            assert!(page.contains(expected), "{expected:?} is not in:\n{page}");
        }
        assert!(summary(&results().benchmarks[0]).contains("malloc: lower: goal ≤ 1 ns: 4.50 ns"));
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
