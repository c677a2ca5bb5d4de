//! Level `stacks` at scale and beside other options: a thousand sites, samples, other kinds of allocators.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{requires_root, sweep_closes},
    paths::Sites,
    tracer::{Traced, trace, trace_from_start},
};
use serde_json::Value;

const STACKS: [&str; 4] = ["--level", "stacks", "--top", "2000"];
const MIB: u64 = 1 << 20;

fn allocator(traced: &Traced) -> &Value {
    &traced.outcome.report()["targets"][0]["allocators"][0]
}

fn number(value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("{value} is no count"))
}

/// A hundred thousand pinned closes from a thousand sites, with 600,000 pins: nothing is lost, the ranks are exact, and
/// drainprof needs less than 144 MiB of its own and 144 MiB of kernel memory with its default sizes.
#[test]
fn a_thousand_sites() -> Result<()> {
    if requires_root() {
        let closes = sweep_closes(100_000)?;
        let traced = trace("thousand", &[&format!("closes={closes}")], "paths", &STACKS)?;
        Sites::default().check(&traced);
        let allocator = allocator(&traced);
        assert_eq!(allocator["granules"]["pinned"], closes);
        if closes == 100_000 {
            assert_eq!(allocator["sites_total"], 1000);
            let sites = allocator["sites"].as_array().context("a list of sites")?;
            let ranks: Vec<u64> =
                sites.iter().filter_map(|site| site["granules_pinned"].as_u64()).collect();
            let expected: Vec<u64> = [100_000].into_iter().chain((1..1000).rev()).collect();
            assert_eq!(ranks, expected);
        }
        let own = &traced.outcome.report()["self"];
        let (peak, maps) = (number(&own["peak_rss_bytes"])?, number(&own["map_bytes"])?);
        // A third of it is the program itself, where it is built without optimisation.
        assert!(peak < 192 * MIB, "{own}");
        assert!(maps < 144 * MIB, "{own}");
    }
    Ok(())
}

/// A list is cut to what is asked for, the total is not; the first of the whole list are those of the short one.
#[test]
fn the_list_is_cut() -> Result<()> {
    if requires_root() {
        let args = ["closes=2000"];
        let traced = trace("thousand", &args, "paths", &["--level", "stacks", "--top", "7"])?;
        let allocator = allocator(&traced);
        let sites = allocator["sites"].as_array().context("a list of sites")?;
        assert_eq!(sites.len(), 7);
        assert!(number(&allocator["sites_total"])? > 900, "{}", allocator["sites_total"]);
        assert_eq!(sites[0]["granules_pinned"], 2000);
        // Twenty of a thousand are pinned by the busiest of the others.
        assert!((18..=20).contains(&number(&sites[1]["granules_pinned"])?), "{}", sites[1]);
    }
    Ok(())
}

/// Call paths beyond the number that is asked for are a counted loss, and the rest stays consistent.
#[test]
fn more_paths_than_room() -> Result<()> {
    if requires_root() {
        let more = [&STACKS[..], &["--max-call-paths", "64"]].concat();
        let traced = trace("thousand", &["closes=2000"], "paths", &more)?;
        let report = traced.outcome.report();
        let lost = number(&report["losses"]["site_table_full"])?;
        ensure!(lost > 0, "{}", report["losses"]);
        assert_eq!((&report["complete"], traced.outcome.code), (&Value::Bool(false), Some(5)));
        let sites = allocator(&traced)["sites"].as_array().context("a list of sites")?;
        let told: u64 = sites.iter().filter_map(|site| site["allocated"].as_u64()).sum();
        assert_eq!(told + lost, number(&allocator(&traced)["objects"]["allocated"])?);
    }
    Ok(())
}

/// Kinds without pins: what each path has allocated, and holds in the granules that are open.
#[test]
fn holders_of_other_kinds() -> Result<()> {
    if requires_root() {
        for kind in ["bulk", "slab"] {
            let option = format!("kind={kind}");
            let profile = format!("paths_{kind}");
            let args = [option.as_str(), "rounds=103"];
            Sites::default().check(&trace("paths", &args, &profile, &STACKS)?);
            Sites::default().check(&trace_from_start("paths", &args, &profile, &STACKS)?);
        }
    }
    Ok(())
}

/// Objects without ids: it is known who allocates, and null what of it is live.
#[test]
fn objects_without_ids() -> Result<()> {
    if requires_root() {
        let traced = trace("slab", &[], "slab", &STACKS)?;
        traced.exact();
        let sites = allocator(&traced)["sites"].as_array().context("a list of sites")?;
        assert_eq!(sites.len(), 1, "{sites:#?}");
        let told = (&sites[0]["allocated"], &sites[0]["live"], &sites[0]["path_end"]);
        assert_eq!(told, (&1024.into(), &Value::Null, &"start".into()));
        assert_eq!(sites[0]["frames"][0]["function"], "main");
    }
    Ok(())
}
