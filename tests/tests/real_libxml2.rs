//! Debian's libxml2 as it is: dictionaries of `xmllint`, and of a program of our own that shares them.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::only_allocator,
    environment::{has_programs, requires_root, which},
    runtimes::{closed_bytes, granules, hits},
    tracer::{Tracer, trace},
};
use tempfile::TempDir;

/// One dictionary per file, shared by its parser and its document: of two references that are given back the
/// last is the close, the other is none.
#[test]
fn xmllint_is_exact() -> Result<()> {
    if requires_root() && has_programs(&["xmllint"]) {
        let directory = TempDir::new()?;
        for files in [1, 5] {
            let mut command = Command::new(which("xmllint").context("xmllint is installed")?);
            command.arg("--noout");
            for n in 0..files {
                let path = directory.path().join(format!("{n}.xml"));
                fs::write(&path, format!("<items><item id=\"{n}\">text</item></items>\n"))?;
                command.arg(path);
            }
            let outcome = Tracer::run_command(&command, "libxml2", &[])?.finish()?;
            assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
            let allocator = only_allocator(&outcome)?;
            assert_eq!(allocator["kind"], "bulk");
            assert_eq!(granules(&allocator), [files, 0, files, 0], "{allocator}");
            assert_eq!(hits(&outcome, "xmlDictCreate")?, [files, 0]);
            assert_eq!(hits(&outcome, "xmlDictFree")?, [2 * files, files]);
        }
    }
    Ok(())
}

/// Dictionaries that are shared, stand over one another, or are kept by one reference: every life is seen,
/// and their bytes are what the library says of them just before it frees them.
#[test]
fn shared_dictionaries_are_exact() -> Result<()> {
    if requires_root() && has_programs(&["xmllint"]) {
        let traced = trace("xml_dicts", &["documents=200"], "libxml2", &[])?;
        traced.exact();
        let truth = &traced.truths[0];
        let allocator = only_allocator(&traced.outcome)?;
        assert_eq!(Some(closed_bytes(&allocator)?), truth["closed_bytes"].as_u64());
        let requests = truth["requests"].as_u64().context("a count of requests")?;
        let closes = allocator["granules"]["closed"].as_u64().context("a count of closes")?;
        assert_eq!(hits(&traced.outcome, "xmlDictFree")?, [closes + requests, requests]);
        let open = allocator["granules"]["open_now"].as_u64();
        assert!(open > Some(40), "one of five documents is kept: {open:?}");
    }
    Ok(())
}
