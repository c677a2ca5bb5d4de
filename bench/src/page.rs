//! Results as docs/performance.md, and as a few lines for who waits for them.

use std::fmt::Write as _;

use crate::{
    bench::BENCHMARKS,
    model::{Benchmark, Bound, Compare, Goal, Results, Row, Table},
    stats::Summary,
};

/// Where lines of prose are broken.
const WIDTH: usize = 118;

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
- A **round** measures all variants in turn, bare at both ends. Figures are medians of rounds (lowest–highest); bare has
  two. *added* and *ratio* compare with bare, *÷* compares what two variants add, always within a round.
- Goals are judged by the median.
- Targets do nothing but what is probed: nanoseconds carry over to other programs, ratios do not.

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
        "## The machine\n\n{} ({kind}), {:.0} GiB.",
        machine.name(),
        machine.memory_gib
    );
    if results.quick {
        page.push_str("\n**One short round of each: these figures only show that it runs.**\n");
    }
    let versions: Vec<_> = machine.versions.iter().map(|(_, version)| cell(version)).collect();
    let _ = writeln!(page, "\n{}", wrapped(&format!("Versions: {}.", versions.join("; ")), ""));
    page.push('\n');
}

fn goals(page: &mut String, results: &Results) {
    page.push_str(
        "## Goals\n\n| benchmark | figure | measured (rounds) | goal |\n|---|---|---|---|\n",
    );
    for benchmark in &results.benchmarks {
        for goal in benchmark.goals.iter().filter(|goal| !stands_in_table(benchmark, goal)) {
            let [wanted, median, spread, verdict] = words(goal);
            let measured = if spread.is_empty() { median } else { format!("{median} ({spread})") };
            let goal_cell =
                if verdict.is_empty() { wanted } else { format!("{wanted}: {verdict}") };
            let what = cell(&goal.what);
            let _ = writeln!(page, "| `{}` | {what} | {measured} | {goal_cell} |", benchmark.name);
        }
        if let Some(why) = &benchmark.failed {
            let _ = writeln!(page, "| `{}` | | not available: {} | |", benchmark.name, cell(why));
        }
    }
    page.push('\n');
}

/// Whether a figure without a bound is one that a table shows anyway.
fn stands_in_table(benchmark: &Benchmark, goal: &Goal) -> bool {
    let Some(median) = goal.summary.map(|summary| summary.median) else { return false };
    let shown = |table: &Table, row: &Row| {
        let compared = Summary::of(&table.compared(&row.name));
        [row.summary, compared].iter().flatten().any(|summary| same(summary.median, median))
    };
    matches!(goal.bound, Bound::Stated)
        && benchmark.tables.iter().any(|table| table.rows.iter().any(|row| shown(table, row)))
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
    let _ = writeln!(page, "## {}\n\n{}\n", benchmark.title, wrapped(&benchmark.about, ""));
    if single_rounds(&benchmark.tables) {
        matrix(page, &benchmark.tables);
    } else {
        benchmark.tables.iter().for_each(|table| tabulate(page, table));
    }
    if let Some(why) = &benchmark.failed {
        let _ = writeln!(page, "Not available: {why}\n");
    }
    for note in &benchmark.notes {
        let _ = writeln!(page, "- {}", wrapped(note, "  "));
    }
    let elsewhere = benchmark.elsewhere.as_ref();
    let elsewhere = elsewhere.map_or_else(String::new, |machine| format!(", on {machine}"));
    let _ = writeln!(
        page,
        "{}*{}, {:.0} s, load {:.1}{elsewhere}*\n",
        if benchmark.notes.is_empty() { "" } else { "\n" },
        benchmark.date,
        benchmark.seconds,
        benchmark.load
    );
}

/// Whether there are several tables of the same variants, all measured once.
fn single_rounds(tables: &[Table]) -> bool {
    let names = |table: &Table| table.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    let once = |table: &Table| table.rows.iter().all(|row| row.samples.len() == 1);
    let [first, others @ ..] = tables else { return false };
    !others.is_empty()
        && tables.iter().all(once)
        && others.iter().all(|table| names(table) == names(first) && table.unit == first.unit)
}

/// Such tables as one, a line each.
fn matrix(page: &mut String, tables: &[Table]) {
    let rows = &tables[0].rows;
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    let (unit, names, rules) = (&tables[0].unit, names.join(" | "), "---|".repeat(rows.len()));
    let _ = writeln!(page, "| {unit} | {names} |\n|---|{rules}");
    for table in tables {
        let cell = |row: &Row| row.summary.as_ref().map_or("not available".to_owned(), figure);
        let figures: Vec<_> = table.rows.iter().map(cell).collect();
        let _ = writeln!(page, "| {} | {} |", table.title, figures.join(" | "));
    }
    page.push('\n');
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
    let _ = writeln!(page, "| variant | {} |{last}", table.unit);
    let _ = writeln!(page, "|---|---|{}", if last.is_empty() { "" } else { "---|" });
    // Bare is measured at both ends of a round: its later rows stand beside the first.
    let (bare, others): (Vec<_>, Vec<_>) = table.rows.iter().partition(|row| row.baseline);
    if let Some((first, again)) = bare.split_first() {
        let again: Vec<_> =
            again.iter().filter_map(|row| row.summary.as_ref()).map(figure).collect();
        let again = again.iter().fold(String::new(), |text, figure| text + "; " + figure);
        let line = line(table, first);
        let at = line.match_indices(" |").nth(1).map_or(line.len(), |(at, _)| at);
        let _ = writeln!(page, "{}{again}{}", &line[..at], &line[at..]);
    }
    for row in others {
        let _ = writeln!(page, "{}", line(table, row));
    }
    page.push('\n');
}

fn line(table: &Table, row: &Row) -> String {
    let compared = table.compare != Compare::Nothing;
    let Some(summary) = row.summary else {
        let why = row.unavailable.as_deref().unwrap_or("not measured");
        let tail = if compared { " |" } else { "" };
        return format!("| {} | not available: {} |{tail}", row.name, cell(why));
    };
    let mut line = format!("| {} | {} |", row.name, figure(&summary));
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

/// Text in lines that are not too long; all but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut width = indent.len();
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !lines.is_empty() && width + 1 + length > WIDTH {
            let _ = write!(lines, "\n{indent}");
            width = indent.len();
        } else if !lines.is_empty() {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
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

/// Whether two figures are one: nothing was computed between them.
fn same(one: f64, other: f64) -> bool {
    one.total_cmp(&other).is_eq()
}

/// A median and where the rounds lie.
fn figure(summary: &Summary) -> String {
    let (median, spread) = (number(summary.median), spread(summary));
    if spread.is_empty() { median } else { format!("{median} ({spread})") }
}

/// Lowest to highest; nothing where there is one round.
fn spread(summary: &Summary) -> String {
    if same(summary.lowest, summary.highest) {
        return String::new();
    }
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
            "| `malloc` | low | 4.50 ns (4–5) | ≤ 5 ns: reached |",
            "| `malloc` | lower | 4.50 ns (4–5) | ≤ 1 ns: **missed** |",
            "| peer | not available: not \\| installed | |",
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
