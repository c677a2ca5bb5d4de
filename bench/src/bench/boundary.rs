//! Level `boundary` on an arena: per object of a large granule, and per open and close.

use anyhow::Result;
use drainprof_profile::Level;

use super::{Known, costs};
use crate::{
    model::{Benchmark, Bound},
    probing::Probing,
    rounds::{BPFTRACE, Effort, FLOOR, Variant, interleave},
    worker::{Sample, Worker},
};

pub(super) const BENCHMARK: Known = Known {
    name: "boundary",
    title: "Level `boundary`: an arena's open and close",
    about: "The same arena: open and close are probed, the live count is read (`bench/peers/boundary.bt`).",
    run,
};

const PROFILE: &str = "arena";
const DRAINPROF: &str = "drainprof, boundary";
const SCRIPT: (&str, &str) = ("boundary.bt", include_str!("../../peers/boundary.bt"));

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let variants = [
        Variant::new(FLOOR, Probing::Floor(PROFILE, Level::Boundary)),
        Variant::new(DRAINPROF, Probing::Drainprof(PROFILE, Level::Boundary, &[])),
        Variant::new(BPFTRACE, Probing::Bpftrace(SCRIPT)),
    ];
    let mut measure = |objects: &str, value: fn(&Sample) -> f64| {
        let worker = Worker::of_itself("cost", &[objects.to_owned(), effort.ms()])?;
        interleave(vec![worker], &variants, effort, value, benchmark).map(|mut all| all.remove(0))
    };
    let rows = measure("objects=1000", Sample::per_object)?;
    let large = costs("granules of 1000 objects", "ns per object", rows);
    let rows = measure("objects=0", Sample::per_granule)?;
    let empty = costs("granules without objects", "ns per granule", rows);
    let what = "drainprof, per object, 1000 objects per granule";
    benchmark.goals.push(large.goal(what, "ns", Bound::AtMost(2.0), DRAINPROF));
    let what = "drainprof ÷ floor, per open and close";
    benchmark.goals.push(empty.goal_of_times(what, Bound::AtMost(1.3), DRAINPROF, FLOOR));
    benchmark.tables.extend([large, empty]);
    Ok(())
}
