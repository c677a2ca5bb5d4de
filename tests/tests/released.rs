//! What one kernel side holds of processes that come and go.

use anyhow::{Context as _, Result};
use drainprof_probe::bpf::Sizes;
use drainprof_profile::Level;
use drainprof_tests::{environment::requires_root, session::observer, target::Target};

/// Processes that come after one another.
const PROCESSES: u64 = 5;
/// Granules that each opens and closes.
const OPENS: u64 = 10;

/// Each process is reported once with all that it has done. Then nothing of it is read any more: what is read in each
/// cycle does not grow with the processes that have been, and the places of its probes are the next one's, which counts from
/// zero.
#[test]
fn what_has_ended_is_read_no_more() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut observer = observer("arena", Level::Boundary)?;
    let (mut read, mut all_hits) = (Vec::new(), Vec::new());
    for number in 1..=PROCESSES {
        let mut target = Target::start("brief", &[&format!("opens={OPENS}"), "ms=1"])?;
        let pid = target.pid();
        observer.add(pid, false)?;
        target.go()?;
        target.finish()?;
        observer.ended(pid, None);
        let snapshot = observer.snapshot();
        let mut seen = snapshot.targets.iter();
        let one = seen.next().context("the process is reported")?;
        assert!(seen.next().is_none(), "process {number}: others are reported, too");
        let closes = one.allocators.iter().map(|facts| facts.totals.drainable).sum::<u64>();
        assert_eq!((one.pid, closes), (pid, OPENS));
        let hits: Vec<u64> = one.probes.iter().map(|probe| probe.entries + probe.returns).collect();
        all_hits.push(hits);
        let (leftover, pids) = observer.forget(|_| true);
        leftover.detach().wait();
        assert_eq!(pids, [pid]);
        assert!(observer.snapshot().targets.is_empty());
        read.push(observer.totals().len());
    }
    assert!(read.iter().all(|words| *words == read[0]), "words read after each: {read:?}");
    assert!(all_hits.iter().all(|hits| hits == &all_hits[0]), "hits of each: {all_hits:?}");
    // One instance and one histogram each; its probes, of which there may be half as many, would be more.
    let instances = f64::from(Sizes::default().instances);
    assert!(all_hits[0].len() > 1 && observer.wear() <= PROCESSES as f64 / instances);
    Ok(())
}
