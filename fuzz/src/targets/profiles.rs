//! Profiles and their expressions.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use drainprof_common::interp::Machine;
use drainprof_profile::{Expr, Resolver, Source, compile, eval_all, expr, levels, parse};

/// A binary and a process of which everything is known, and some of it wrong.
struct Answers;

impl Resolver for Answers {
    fn var(&self, symbol: &str) -> Option<u64> {
        (symbol.len() < 20).then_some(symbol.len() as u64)
    }

    fn offset_of(&self, type_name: &str, field: &str) -> Result<u64, String> {
        if field.len() < 20 { Ok(u64::MAX - type_name.len() as u64) } else { Err("none".into()) }
    }
}

impl Machine for Answers {
    fn arg(&self, index: u8) -> u64 {
        u64::from(index) << 60
    }

    fn ret(&self) -> u64 {
        u64::MAX
    }

    fn caller(&self) -> Option<u64> {
        Some(0x1234)
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        (!address.is_multiple_of(7)).then_some(address ^ u64::from(size))
    }
}

/// Parses a profile, and compiles it for each level.
pub(super) fn profile(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let profile = match parse(&text, &Source::File("fuzz.toml".into())) {
        Ok(profile) => profile,
        Err(error) => {
            let _ = error.to_string();
            return false;
        }
    };
    for level in levels(&profile) {
        for probe in &profile.probes {
            let _ = compile(&profile, probe, level, 0, &Answers);
        }
    }
    true
}

/// The profiles that are built in.
pub(super) fn built_in() -> Result<Vec<Vec<u8>>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles");
    let entries = fs::read_dir(&directory).context("list the profiles")?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().map(|path| fs::read(path).context("read a profile")).collect()
}

/// Parses an expression, prints it, parses that, and computes it.
pub(super) fn expression(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let parsers = [expr::parse, expr::parse_pages, expr::parse_label];
    let mut taken = false;
    for parse in parsers {
        match parse(&text) {
            Err(error) => assert!(error.at <= text.len(), "{error:?}"),
            Ok(found) => {
                taken = true;
                check(&found);
            }
        }
    }
    taken
}

fn check(found: &Expr) {
    let printed = found.to_string();
    if printed.len() <= expr::MAX_EXPR_BYTES {
        let again = expr::parse(&printed).map(|again| again.to_string());
        assert_eq!(again.as_ref(), Ok(&printed));
    }
    let _ = eval_all(found, &Answers, &Answers);
}
