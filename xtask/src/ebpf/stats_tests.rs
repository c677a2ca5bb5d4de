//! The table and the comparison with it.

use super::{Figures, Measured, Statistics};

fn object(programs: &[(&str, u64)]) -> Statistics {
    Statistics::of(programs.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect())
}

fn measured(series: &str, programs: &[(&str, u64)]) -> Measured {
    let figures = |verified| Figures { verified: Some(verified), jited_bytes: Some(7) };
    Measured {
        series: series.to_owned(),
        programs: programs.iter().map(|(name, n)| ((*name).to_owned(), figures(*n))).collect(),
    }
}

/// A table with one program that 6.18 verified in 10,000 instructions, one in 100, and a function.
fn table() -> Statistics {
    let mut table = object(&[("close", 50), ("exec", 10), ("step", 30)]);
    table.set_figures(&measured("6.18", &[("close", 10_000), ("exec", 100)]));
    table
}

/// What is written is read back the same, figures that are missing and a table of no kernel included.
#[test]
fn survives_a_round_trip() {
    for table in [table(), object(&[("close", 50)]), object(&[("<A as B>::step", 5)])] {
        assert_eq!(Statistics::parse(&table.to_string()).unwrap(), table);
    }
    assert!(
        table().to_string().ends_with(
            "\nstep                                       30            -            -\n"
        )
    );
}

/// Two functions of one name are one row with the instructions of both: none gets lost.
#[test]
fn namesakes_are_added_up() {
    assert_eq!(object(&[("f", 3), ("f", 4)]), object(&[("f", 7)]));
}

/// Another program adds one line and leaves the others as they are.
#[test]
fn is_friendly_to_diffs() {
    let (before, after) = (object(&[("a", 1)]), object(&[("a", 1), ("a_longer_name", 1_000_000)]));
    let after = after.to_string();
    assert!(before.to_string().lines().all(|line| after.lines().any(|other| other == line)));
}

/// What is no table, or half of one, is an error that shows the line.
#[test]
fn refuses_what_is_no_table() {
    assert!(Statistics::parse("").is_err());
    assert!(Statistics::parse("<<<<<<< HEAD\n").is_err());
    let good = table().to_string();
    for line in ["1 2 3", "x 1", "x - 1 1", "x 1 many 1", "x 1 -1 1", "close 1 1 1"] {
        let error = Statistics::parse(&format!("{good}{line}\n")).unwrap_err();
        assert!(format!("{error:#}").contains(line), "{error:#}");
    }
}

/// Instruction counts must be equal: one more, one less, a program too many or too few is a difference.
#[test]
fn instruction_counts_are_compared_exactly() {
    let same = object(&[("close", 50), ("exec", 10), ("step", 30)]);
    assert!(table().differences(&same).is_empty());
    let other = object(&[("close", 51), ("exec", 9), ("new", 1)]);
    assert_eq!(
        table().differences(&other),
        [
            "close has 51 instructions, 50 in the table",
            "exec has 9 instructions, 10 in the table",
            "new is not in the table",
            "step is in the table, but not in the object"
        ]
    );
}

/// On the same series a program that grew by more than a quarter and by more than 500 is a breach; less of
/// either is not, and neither is shrinking.
#[test]
fn growth_is_bounded() {
    let breaches = |close, exec| {
        table().compare(&measured("6.18", &[("close", close), ("exec", exec)])).breaches
    };
    assert_eq!(breaches(12_500, 600), [""; 0]);
    assert_eq!(breaches(1, 1), [""; 0]);
    assert_eq!(breaches(12_501, 600), ["close: 12501 verified instructions, 10000 in the table"]);
    assert_eq!(breaches(10_000, 601), ["exec: 601 verified instructions, 100 in the table"]);
}

/// Figures of another series, or of none, are shown and bind nothing.
#[test]
fn other_kernels_are_only_shown() {
    let huge = measured("6.19", &[("close", 900_000)]);
    let comparison = table().compare(&huge);
    assert_eq!(comparison.breaches, [""; 0]);
    assert!(comparison.lines[0].contains("6.19 here, on 6.18 in the table"));
    let line = &comparison.lines[1];
    assert!(
        line.contains("900000") && line.contains("10000") && line.contains("+8900 %"),
        "{line}"
    );
    assert_eq!(object(&[("close", 50)]).compare(&huge).breaches, [""; 0]);
}

/// A kernel that reports nothing, and a program without a figure in the table, show as a dash.
#[test]
fn missing_figures_are_shown_as_missing() {
    let mut silent = measured("6.18", &[("close", 1), ("new", 9)]);
    silent.programs.insert("close".to_owned(), Figures::default());
    let comparison = table().compare(&silent);
    assert_eq!(comparison.breaches, [""; 0]);
    let words = |line: usize| comparison.lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(1), ["close", "-", "10000"]);
    assert_eq!(words(2), ["new", "9", "-"]);
}

/// Where no kernel can be asked, the figures stay for the programs that are still there, with their series.
#[test]
fn figures_are_kept() {
    let mut renewed = object(&[("close", 60), ("new", 5)]);
    renewed.keep_figures(&table());
    let text = renewed.to_string();
    assert!(text.contains("# verifier: 6.18\n"), "{text}");
    let rows: Vec<Vec<_>> = text.lines().skip(5).map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows, [["close", "60", "10000", "7"], ["new", "5", "-", "-"]]);
}
