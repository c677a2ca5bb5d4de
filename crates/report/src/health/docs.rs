//! The reference page of all losses, generated from the list itself.

use std::{fmt::Write as _, path::Path};

use drainprof_common::loss::{LOSSES, LossInfo, Severity};
use textwrap::{Options, WordSplitter::NoHyphenation, fill};

/// The text of `docs/losses.md`.
fn losses_markdown() -> String {
    let mut page = String::from(
        "# What can be lost, and what it means\n\n\
         <!-- Generated from drainprof-common/src/loss.rs. To renew it:\n\
         UPDATE_DOCS=1 cargo test -p drainprof-report --lib health -->\n\n\
         Every bounded thing in drainprof has a counter here. All counters are in every report (`losses`), zeros\n\
         included. The text output names those that are not zero.\n",
    );
    section(
        &mut page,
        "Losses that make a report incomplete",
        "Something that the counts need was not seen. The report says `\"complete\": false`, and the \
         exit code is 5.",
        Severity::Incomplete,
    );
    section(
        &mut page,
        "Notices",
        "A fact about the target, or about the moment of attaching. The counts are still exact.",
        Severity::Notice,
    );
    page
}

fn section(page: &mut String, title: &str, text: &str, severity: Severity) {
    let _ = write!(page, "\n## {title}\n\n{text}\n\n");
    let options = Options::new(119).initial_indent("- ").subsequent_indent("  ");
    let options = options.break_words(false).word_splitter(NoHyphenation);
    for info in LOSSES.iter().filter(|info| info.severity == severity) {
        let LossInfo { name, meaning, remedy, .. } = info;
        let _ =
            writeln!(page, "{}", fill(&format!("`{name}`: {meaning} Fix: {remedy}."), &options));
    }
}

/// The committed page is what the list says now (`UPDATE_DOCS=1` rewrites it).
#[test]
fn page_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/losses.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, losses_markdown()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page == losses_markdown(), "docs/losses.md is stale: run with UPDATE_DOCS=1");
}

/// Every loss has exactly one row.
#[test]
fn every_loss_has_a_row() {
    let page = losses_markdown();
    for info in LOSSES {
        let row = format!("- `{}`:", info.name);
        assert_eq!(page.matches(&row).count(), 1, "{}", info.name);
    }
}
