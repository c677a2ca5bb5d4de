//! `docs/versions.md`: which version of which library was proven when, by which cases, on which distribution.
//!
//! The page is the table of known versions as well: it is read before it is written, so that what an earlier run has
//! proven stays, and a version that it does not list is new.

use std::collections::{BTreeMap, BTreeSet};

/// A library's version on a distribution.
pub(super) type Version = (String, String, String);

/// Cases that passed, and the day of the last run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proof {
    cases: BTreeSet<String>,
    day: String,
}

/// What the page lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    rows: BTreeMap<Version, Proof>,
}

/// All but the rows.
const HEAD: &str = "# Versions that are proven

`cargo xtask worlds --all --page` writes this page. Each row is a library as a distribution has it: a program that
prints its allocator's own numbers ran with it, and a census from outside was [compared](census.md) with these. In all
cases no byte of the heap was unknown, and at least 75 % of resident memory was read. Cases `profile-…` are of
[profiles](profiles.md): drainprof counted what the program counted of itself.

A version that is not here was not tested; its heap is read if its structures validate, else reported as unknown.
[What is compared](development.md#worlds), and by how much it may differ, is in `xtask/src/worlds/cases.rs`.

| Library | Version | Distribution | Cases | Proven on |
|---|---|---|---|---|
";

impl Page {
    /// Reads the rows of the page.
    pub(super) fn read(text: &str) -> Self {
        let rows = text.lines().filter_map(|line| {
            let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
            let cells: Vec<&str> = cells.split(" | ").collect();
            let [library, version, distribution, cases, day] = cells[..] else { return None };
            let cases = cases.split(", ").map(str::to_owned).collect();
            let key = (library.to_owned(), version.to_owned(), distribution.to_owned());
            (library != "Library").then(|| (key, Proof { cases, day: day.to_owned() }))
        });
        Self { rows: rows.collect() }
    }

    /// Whether a version of a library is listed, on whatever distribution.
    pub(super) fn knows(&self, library: &str, version: &str) -> bool {
        self.rows.keys().any(|(own, number, _)| own == library && number == version)
    }

    /// Notes a case that has passed, or takes away one that has not.
    pub(super) fn note(&mut self, version: &Version, case: &str, day: &str, passed: bool) {
        let proof = self.rows.entry(version.clone()).or_default();
        if passed {
            proof.cases.insert(case.to_owned());
            day.clone_into(&mut proof.day);
        } else {
            proof.cases.remove(case);
        }
        if proof.cases.is_empty() {
            self.rows.remove(version);
        }
    }

    /// The page.
    pub(super) fn text(&self) -> String {
        let rows = self.rows.iter().map(|((library, version, distribution), proof)| {
            let cases: Vec<_> = proof.cases.iter().map(String::as_str).collect();
            let cases = cases.join(", ");
            format!("| {library} | {version} | {distribution} | {cases} | {} |\n", proof.day)
        });
        HEAD.chars().chain(rows.collect::<String>().chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Page;

    fn version(number: &str) -> super::Version {
        ("glibc".to_owned(), number.to_owned(), "Debian 13".to_owned())
    }

    /// What is written is what is read; what fails is taken away, what an earlier run has proven stays.
    #[test]
    fn page_is_its_own_table() {
        let mut page = Page::default();
        page.note(&version("2.41"), "glibc", "2026-11-01", true);
        page.note(&version("2.41"), "glibc-static", "2026-11-02", true);
        page.note(&version("2.43"), "glibc", "2026-11-02", true);
        assert_eq!(Page::read(&page.text()), page);
        assert!(
            page.knows("glibc", "2.43")
                && !page.knows("glibc", "2.44")
                && !page.knows("musl", "2.43")
        );
        assert!(page.text().ends_with("| glibc | 2.43 | Debian 13 | glibc | 2026-11-02 |\n"));
        page.note(&version("2.43"), "glibc", "2026-11-03", false);
        assert!(page.knows("glibc", "2.41") && !page.knows("glibc", "2.43"));
    }

    /// The committed page is what its own rows make, and names cases that there are.
    #[test]
    fn page_is_fresh() {
        let path = crate::work::root().unwrap().join("docs/versions.md");
        let text = std::fs::read_to_string(path).unwrap();
        let page = Page::read(&text);
        assert!(!page.rows.is_empty() && page.text() == text, "run `cargo xtask worlds --page`");
        let is_case =
            |name: &String| super::super::cases::CASES.iter().any(|case| case.name == name);
        for ((library, version, _), proof) in &page.rows {
            let gone = proof.cases.iter().find(|name| !is_case(name));
            assert!(gone.is_none(), "{library} {version} was proven by {gone:?}, which is no case");
        }
    }
}
