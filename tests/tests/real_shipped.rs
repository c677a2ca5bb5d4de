//! The shipped profiles whose programs come with further packages (`cargo xtask test --real` installs them). The
//! table is `src/shipped.rs`.

use anyhow::Result;
use drainprof_tests::{
    environment::requires_root,
    shipped::{all_good, misfires, unresolved},
};

/// Every name that a profile has is in the file of its package, as it is installed, or the row says why not.
#[test]
fn symbols_resolve() -> Result<()> {
    all_good(true, unresolved)
}

/// On the live program every probe fires, or the row says why it does not.
#[test]
fn probes_fire() -> Result<()> {
    if requires_root() { all_good(true, misfires) } else { Ok(()) }
}
