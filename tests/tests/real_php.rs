//! Debian's PHP as it is: requests of its development server, and scripts on the command line.
//!
//! The client knows how many requests there were, and each script says how much memory PHP has for it.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::only_allocator,
    environment::{has_programs, requires_root},
    php::{self, Php},
    runtimes::{closed_bytes, granules, hits},
    tracer::Tracer,
};
use tempfile::TempDir;

fn ready() -> bool {
    requires_root() && has_programs(&["php"])
}

/// As many granules as requests, none left, and their bytes are what PHP itself had for each at its end;
/// requests of scripts that fail end as the others do.
#[test]
fn requests_are_exact() -> Result<()> {
    if ready() {
        let php = Php::start()?;
        let tracer = Tracer::attach(&[php.process.pid()], "php", &[])?;
        let mut said = 0;
        for n in [10, 1000, 5000, 20_000] {
            said += php.get(&format!("/gather.php?n={n}"))?.parse::<u64>().context("a size")?;
        }
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let allocator = only_allocator(&outcome)?;
        assert_eq!((&allocator["kind"], &allocator["level"]), (&"bulk".into(), &"boundary".into()));
        assert_eq!(granules(&allocator), [4, 0, 4, 0], "{allocator}");
        assert_eq!(closed_bytes(&allocator)?, said);
        for symbol in ["php_request_startup", "zend_mm_shutdown"] {
            assert_eq!(hits(&outcome, symbol)?, [4, 0], "{symbol}");
        }

        let tracer = Tracer::attach(&[php.process.pid()], "php", &[])?;
        for _ in 0..3 {
            php.get("/fail.php")?;
        }
        tracer.interrupt()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        assert_eq!(granules(&allocator), [3, 0, 3, 0], "{allocator}");
    }
    Ok(())
}

/// A request that is held in the middle is the one that is open, by its address on the server; the next look,
/// which finds it there, sees its end.
#[test]
fn held_request_is_open() -> Result<()> {
    if ready() {
        let php = Php::start()?;
        let tracer = Tracer::attach(&[php.process.pid()], "php", &[])?;
        php.get("/gather.php?n=1")?;
        let held = php.hold("/hold.php?who=me")?;
        tracer.interrupt()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        assert_eq!(granules(&allocator), [2, 0, 1, 1], "{allocator}");
        let open = allocator["open_granules"].as_array().context("a list of open requests")?;
        assert_eq!(open.len(), 1, "{open:?}");
        assert_eq!(open[0]["label"], "/hold.php?who=me", "{open:?}");

        let tracer = Tracer::attach(&[php.process.pid()], "php", &[])?;
        php.release(held)?;
        php.get("/gather.php?n=1")?;
        tracer.interrupt()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        assert_eq!(granules(&allocator), [1, 1, 2, 0], "{allocator}");
    }
    Ok(())
}

/// A script on the command line is one request, whether it fails or not; what the modules had used before it
/// goes as a granule that was open before, and the end of the process closes nothing.
#[test]
fn scripts_are_requests() -> Result<()> {
    if ready() {
        let directory = TempDir::new()?;
        php::scripts(directory.path())?;
        for (script, status) in [("gather.php", 0), ("fail.php", 255)] {
            let mut command = php::command()?;
            command.arg(directory.path().join(script));
            let outcome = Tracer::run_command(&command, "php", &[])?.finish()?;
            assert_eq!(outcome.code, Some(status), "{}", outcome.talk());
            let allocator = only_allocator(&outcome)?;
            assert_eq!(granules(&allocator), [1, 1, 2, 0], "{allocator}");
            assert_eq!(hits(&outcome, "zend_mm_shutdown")?, [3, 1]);
        }
    }
    Ok(())
}
