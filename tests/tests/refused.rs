//! Places that the kernel refuses, as the kernel says it. The planner never chooses one that it knows to be
//! refused, so the test puts a chosen place where it should not be.

use std::{fs::File, num::NonZeroU32, os::unix::fs::FileExt as _};

use anyhow::{Context as _, Result, ensure};
use drainprof_probe::{
    bpf::{Arming, OpenFiles, Session},
    plan::fall_back,
};
use drainprof_process::Process;
use drainprof_profile::Level;
use drainprof_tests::{
    environment::requires_root,
    session::{observer, session_config},
    target::Target,
};

/// Where the atomic instruction of `refused_open` is, and how it begins.
const LOCK: (u64, u8) = (5, 0xf0);

/// The kernel's answer is known for a refusal of the place; on its function's first instruction the same
/// probe is taken, and sees every call.
#[test]
fn the_first_instruction_is_taken_instead() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut target = Target::start("refused", &[])?;
    let mut observer = observer("refused", Level::Boundary)?;
    let (plans, _) = observer.plan(&Process::open(target.pid())?)?;
    let mut planned = plans.iter().flat_map(|plan| &plan.probes);
    let planned = planned.find(|probe| probe.site.symbol == "refused_open");
    let mut misplaced = planned.context("the open is planned")?.clone();
    ensure!(misplaced.choice.offset == 3, "the push is the cheapest: {:?}", misplaced.choice);
    misplaced.site.file_offset = misplaced.site.entry_offset + LOCK.0;
    let mut byte = [0];
    File::open(&misplaced.site.open_path)?.read_exact_at(&mut byte, misplaced.site.file_offset)?;
    ensure!(byte[0] == LOCK.1, "{:#x} is no prefix of an atomic instruction", byte[0]);

    let mut session = Session::load(&session_config()?)?;
    let (pid, mut files) = (NonZeroU32::new(target.pid()), OpenFiles::default());
    let error = session.attach(&misplaced, pid, &mut files).err();
    let error = error.context("the kernel lets an atomic instruction be probed")?;
    ensure!(error.is_place_refused(), "{error}: {:?}", std::error::Error::source(&error));
    let at_entry = fall_back(&misplaced).context("there is another place")?;
    let spec = session.attach(&at_entry, pid, &mut files)?;
    let number = session.next_target();
    session.arm(target.pid(), number, Arming::default())?;
    target.go()?;
    let truths = target.finish()?.truths;
    let opened =
        truths[0].pointer("/allocators/0/granules/opened").and_then(serde_json::Value::as_u64);
    assert_eq!((opened, session.read_probe(spec).entries), (Some(100), 100));
    Ok(())
}
