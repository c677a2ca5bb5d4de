use std::sync::Arc;

use drainprof_process::testing::cc;
use drainprof_profile::{Level, Probe, Profile, Role, Version};

use crate::plan::{
    AttachPlan, PlanError, Request, Sites,
    cost::Costs,
    plan,
    testing::{by_symbols, compile, image, probe, profile, symbol, wanted},
};

const SOURCE: &str =
    "void pool_new(void) {} void pool_tag(void) {} void pool_end(void) {} void pool_drop(void) {}";

fn version(name: &str, symbols: &[&str], no_symbols: &[&str]) -> Version {
    let all = |names: &[&str]| names.iter().map(|name| symbol(name)).collect();
    Version {
        name: name.into(),
        symbols: all(symbols),
        no_symbols: all(no_symbols),
        build_id: Vec::new(),
    }
}

fn guarded(role: Role, at: &str, versions: &[&str]) -> Probe {
    let versions = versions.iter().map(ToString::to_string).collect();
    Probe { versions, ..probe(role, symbol(at)) }
}

fn planned(versions: Vec<Version>, probes: Vec<Probe>) -> Result<AttachPlan, PlanError> {
    let dir = tempfile::tempdir().unwrap();
    let path = cc(dir.path(), "libpool.so", SOURCE, &["-shared", "-fPIC", "-nostdlib"]);
    let image = image(&[&path]);
    let plain = profile(by_symbols(&["pool_new"]), probes);
    let profile: Arc<Profile> = Arc::new(Profile { versions, ..Profile::clone(&plain) });
    let request = Request {
        profile: &profile,
        level: Level::Objects,
        allocator: 0,
        image: &image,
        followed: &[],
        costs: &Costs::assumed(),
        sites: Sites::Cheapest,
    };
    plan(request, &wanted, &compile)
}

fn symbols(plan: &AttachPlan) -> Vec<&str> {
    plan.probes.iter().map(|probe| probe.site.symbol.as_str()).collect()
}

/// Probes go where one of their versions holds; of the others the plan says why they are left out.
#[test]
fn guards_choose_probes() {
    let versions = vec![
        version("new", &["pool_tag"], &[]),
        version("old", &["pool_gone"], &[]),
        version("bare", &[], &["pool_tag"]),
    ];
    let probes = vec![
        guarded(Role::Close, "pool_end", &["old", "new"]),
        guarded(Role::Close, "pool_drop", &["old", "bare"]),
        guarded(Role::Open, "pool_new", &[]),
    ];
    let plan = planned(versions, probes).unwrap();
    assert_eq!(symbols(&plan), ["pool_end", "pool_new"]);
    let found: Vec<_> = plan.findings.iter().filter(|found| found.code == "version").collect();
    let [finding] = found[..] else { panic!("{:?}", plan.findings) };
    for says in [
        "no `close` probe",
        "pool_drop: it is not the version old: missing pool_gone",
        "it is not the version bare: it has pool_tag",
    ] {
        assert!(finding.message.contains(says), "{says}: {}", finding.message);
    }
}

/// An object that is two versions at once has the probe that the profile names first.
#[test]
fn first_of_two_versions() {
    let versions = vec![version("one", &["pool_tag"], &[]), version("two", &["pool_end"], &[])];
    let probes = vec![
        guarded(Role::Close, "pool_end", &["one"]),
        guarded(Role::Close, "pool_end", &["two"]),
        guarded(Role::Open, "pool_new", &[]),
    ];
    let plan = planned(versions, probes).unwrap();
    assert_eq!(symbols(&plan), ["pool_end", "pool_new"]);
    assert!(
        plan.findings
            .iter()
            .any(|found| found.message.contains("several of the profile's versions"))
    );
}

/// Where no version leaves a close, the counts would be wrong: there is no plan, and the reason is named.
#[test]
fn needed_role_left_out() {
    let versions = vec![version("old", &["pool_gone"], &[])];
    let probes =
        vec![guarded(Role::Close, "pool_end", &["old"]), guarded(Role::Open, "pool_new", &[])];
    let error = planned(versions, probes).unwrap_err().to_string();
    assert!(error.contains("none of its `close` probes can be placed"), "{error}");
    assert!(error.contains("it is not the version old: missing pool_gone"), "{error}");
}
