//! Which tests run on a machine.
//!
//! Reads a list: one `binary` or `binary::test` per line, `#` begins a comment. A name that is not built is
//! an error, so that a renamed test cannot silently leave the matrix.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::artifacts::TestBinary;

/// One test binary and which of its tests to run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) binary: TestBinary,
    /// Exact names; none means all.
    pub(super) tests: Vec<String>,
}

/// Reads the list called `name`; the runs come in the order of the binaries' names.
pub(super) fn runs(name: &str, list: &str, binaries: &[TestBinary]) -> Result<Vec<Run>> {
    let mut wanted: BTreeMap<&str, Option<Vec<String>>> = BTreeMap::new();
    for line in list.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        match line.split_once("::") {
            None => {
                wanted.insert(line, None);
            }
            Some((binary, test)) => {
                if let Some(tests) = wanted.entry(binary).or_insert_with(|| Some(Vec::new())) {
                    tests.push(test.to_owned());
                }
            }
        }
    }
    if wanted.is_empty() {
        bail!("{name} is empty; name a test in it");
    }
    let mut runs = Vec::new();
    for (wanted, tests) in wanted {
        let Some(binary) = binaries.iter().find(|binary| binary.name == wanted) else {
            let known: Vec<&str> = binaries.iter().map(|binary| binary.name.as_str()).collect();
            bail!(
                "{name} names the test binary `{wanted}`, which is not built (there are: {})",
                known.join(", ")
            );
        };
        runs.push(Run { binary: binary.clone(), tests: tests.unwrap_or_default() });
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::runs;
    use crate::artifacts::TestBinary;

    fn binaries() -> Vec<TestBinary> {
        ["counts", "losses"]
            .map(|name| TestBinary { name: name.into(), ..TestBinary::default() })
            .to_vec()
    }

    /// A binary's name alone means all its tests, whatever else is said of it.
    #[test]
    fn whole_binary_wins_over_single_tests() {
        let text = "# first\ncounts::a\ncounts\ncounts::b # more\n\nlosses::x::y\n";
        let runs = runs("list", text, &binaries()).unwrap();
        assert_eq!(runs.len(), 2);
        assert!(runs[0].tests.is_empty());
        assert_eq!(runs[1].tests, ["x::y"]);
    }

    /// A list that names what is not there, or nothing at all, is refused.
    #[test]
    fn unknown_names_and_empty_lists_are_errors() {
        assert!(runs("list", "gone::a", &binaries()).unwrap_err().to_string().contains("gone"));
        assert!(runs("list", "# nothing\n", &binaries()).is_err());
    }
}
