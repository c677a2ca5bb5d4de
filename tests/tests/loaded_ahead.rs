//! Programs that are loaded while it is still planned where they go.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use drainprof_probe::bpf::{Session, can_check};
use drainprof_profile::{Level, Library};
use drainprof_tests::{
    environment::{self, deadline, requires_root},
    session::session_config,
};

/// How many descriptors of this process are programs or maps.
fn held() -> Result<(usize, usize)> {
    let mut held = (0, 0);
    for entry in fs::read_dir("/proc/self/fd")? {
        match fs::read_link(entry?.path()) {
            Ok(link) if link.ends_with("anon_inode:bpf-prog") => held.0 += 1,
            Ok(link) if link.ends_with("anon_inode:bpf-map") => held.1 += 1,
            _ => {}
        }
    }
    Ok(held)
}

/// Whether programs are still being loaded.
fn are_loading() -> Result<bool> {
    for entry in fs::read_dir("/proc/self/task")? {
        let name = fs::read_to_string(entry?.path().join("comm")).unwrap_or_default();
        if name.trim_end() == "loading" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a profile needs at a level is loaded without being asked for, and nothing else. A session that ends meanwhile
/// waits for it, and leaves nothing.
#[test]
fn what_the_level_needs() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let library = Library::load(&[environment::profile("arena").into()], &[])?;
    let profile = library.get("test-arena").expect("the file names it");
    // Loads programs once for all sessions.
    assert!(can_check());
    let before = held()?;
    // An alloc is judged at its return: that takes a program at its entry, too.
    for (level, programs) in [(Level::Close, 1), (Level::Boundary, 2), (Level::Objects, 5)] {
        for ends_at_once in [true, false] {
            let mut session = Session::load_for_window(&session_config()?)?;
            let (others, maps) = held()?;
            ensure!(maps > before.1, "the session has maps");
            session.load_ahead(profile, level);
            session.load_ahead(profile, level);
            let begun = Instant::now();
            while !ends_at_once && (held()?.0 < others + programs || are_loading()?) {
                ensure!(
                    begun.elapsed() < deadline(),
                    "{level:?}: {:?} programs",
                    held()?.0 - others
                );
                thread::sleep(Duration::from_millis(1));
            }
            let loaded = held()?.0 - others;
            ensure!(ends_at_once || loaded == programs, "{level:?}: {loaded} programs");
            drop(session);
            ensure!(held()? == before, "{level:?}: {:?}, was {before:?}", held()?);
        }
    }
    Ok(())
}
