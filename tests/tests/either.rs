//! Probes that stand for one another: the one that is placed sees what the others would.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    target::Target,
    tracer::{self, Outcome, trace},
};
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// Symbol and phase of the report's probes that see allocations.
fn alloc_probes(outcome: &Outcome) -> Result<Vec<(&str, bool)>> {
    let probes = outcome.report().pointer("/targets/0/probes").and_then(Value::as_array);
    let probes = probes.context("a list of probes")?.iter();
    let allocs = probes.filter(|probe| probe["role"] == "alloc");
    allocs
        .map(|probe| {
            let symbol = probe["symbol"].as_str().context("a symbol")?;
            Ok((symbol, probe["at_return"].as_bool().context("a phase")?))
        })
        .collect()
}

/// Where the hook is there, it alone is probed, at its entry; where its symbol is stripped, the function
/// around it is, at its return. Counts are the truth in both.
#[test]
fn the_hook_or_the_function() -> Result<()> {
    if requires_root() {
        for (target, expected) in
            [("hooked", ("hooked_note", false)), ("hooked_stripped", ("hooked_alloc", true))]
        {
            for args in [&[][..], &["watch=1"]] {
                let traced = trace(target, args, "hooked", &OBJECTS)?;
                traced.exact();
                assert_eq!(alloc_probes(&traced.outcome)?, [expected], "{target}");
            }
        }
    }
    Ok(())
}

/// On first instructions prices may say otherwise, and counts are the truth all the same, with either.
#[test]
fn on_first_instructions() -> Result<()> {
    if requires_root() {
        for target in ["hooked", "hooked_stripped"] {
            let more = ["--level", "objects", "--sites", "entry"];
            let traced = trace(target, &[], "hooked", &more)?;
            traced.exact();
            let probes = alloc_probes(&traced.outcome)?;
            ensure!(probes.len() == 1, "one of the two is placed: {probes:?}");
        }
    }
    Ok(())
}

/// `--dry-run` lists the probes that stand for one another with their prices, says which is used, and why
/// another cannot be.
#[test]
fn the_choice_is_listed() -> Result<()> {
    if requires_root() {
        for (name, used) in [("hooked", "hooked_note"), ("hooked_stripped", "hooked_alloc")] {
            let target = Target::start(name, &[])?;
            let (pid, profile) = (target.pid().to_string(), environment::profile("hooked"));
            let mut args = vec!["attach", "-p", &pid, "--profile", &profile, "--dry-run"];
            args.extend(OBJECTS);
            let shown = tracer::run_to_end(&args)?.stdout.join("\n");
            ensure!(shown.contains("one of made: alloc probes of"), "{shown}");
            ensure!(shown.contains(&format!("used     {used} at ")), "{shown}");

            args.extend(["-o", "json"]);
            let document: Value =
                serde_json::from_str(&tracer::run_to_end(&args)?.stdout.join("\n"))?;
            let group = document.pointer("/processes/0/plans/0/groups/0").context("a group")?;
            assert_eq!((&group["group"], &group["role"]), (&"made".into(), &"alloc".into()));
            let members = group["members"].as_array().context("members")?;
            let costs: Vec<_> = members.iter().map(|member| member["cost_ns"].as_f64()).collect();
            for member in members {
                assert_eq!(member["used"], member["at"] == used, "{group:#}");
            }
            if name == "hooked" {
                ensure!(costs[1] < costs[0] && costs[1].is_some(), "{group:#}");
            } else {
                ensure!(costs[0].is_some() && costs[1].is_none(), "{group:#}");
                assert_eq!(members[1]["drawback"], "no such symbol", "{group:#}");
            }
        }
    }
    Ok(())
}
