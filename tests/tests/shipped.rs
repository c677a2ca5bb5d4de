//! The shipped profiles whose programs are there wherever the tests run; `real_shipped.rs` has the others. The table
//! is `src/shipped.rs`.

use anyhow::Result;
use drainprof_profile::Library;
use drainprof_tests::{
    environment::requires_root,
    shipped::{ROWS, all_good, misfires, unresolved},
    tracer::trace,
};

/// Every built-in profile has one row, and every row a profile, in the order of their names.
#[test]
fn every_profile_has_a_row() -> Result<()> {
    let library = Library::built_in()?;
    let shipped: Vec<&str> = library.iter().map(|profile| profile.name.as_str()).collect();
    let rows: Vec<&str> = ROWS.iter().map(|row| row.profile).collect();
    assert_eq!(rows, shipped, "tests/src/shipped/rows.rs has a row for each file of profiles/");
    Ok(())
}

/// Every name that a profile has is in the file of its package, as it is installed, or the row says why not.
#[test]
fn symbols_resolve() -> Result<()> {
    all_good(false, unresolved)
}

/// The demonstration's profile is exact on a program with its layout: with all probes, and with the live count that it
/// reads from memory.
#[test]
fn demonstration_is_exact() -> Result<()> {
    if requires_root() {
        trace("epoch_demo", &["epochs=2000"], "epoch-demo", &["--level", "objects"])?.exact();
        let args = ["epochs=2000", "boundary=1"];
        trace("epoch_demo", &args, "epoch-demo", &["--level", "boundary"])?.exact();
    }
    Ok(())
}

/// On the live program every probe fires, or the row says why it does not.
#[test]
fn probes_fire() -> Result<()> {
    if requires_root() { all_good(false, misfires) } else { Ok(()) }
}
