use std::cell::Cell;

use drainprof_common::spec::ProbeSpec;
use drainprof_process::{
    Implementation,
    testing::{ALLOCATOR, MAIN, cc, library, tool},
};
use drainprof_profile::{Address, MatchRule, Phase, Resolver as _};

use super::*;
use crate::plan::testing::{
    BIAS, by_symbols, compile, image, loaded, probe, profile, symbol, wanted,
};

fn plan_of(profile: &Arc<Profile>, image: &Image, level: Level) -> Result<AttachPlan, PlanError> {
    plan(
        Request {
            profile,
            level,
            allocator: 7,
            image,
            followed: &[],
            costs: &Costs::assumed(),
            sites: Sites::Cheapest,
        },
        &wanted,
        &compile,
    )
}

fn codes(plan: &AttachPlan) -> Vec<&str> {
    plan.findings.iter().map(|finding| finding.code.as_str()).collect()
}

fn symbols(plan: &AttachPlan) -> Vec<&str> {
    plan.probes.iter().map(|probe| probe.site.symbol.as_str()).collect()
}

/// A plan names object, offset and role of each probe of its level, what begins a thing last.
#[test]
fn levels_and_order() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &[]);
    let image = image(&[&pool]);
    let elf = image.objects[0].elf.as_ref().unwrap();
    let rule = by_symbols(&["pool_open"]);
    let profile = profile(
        rule,
        vec![
            probe(Role::Open, symbol("pool_open")),
            Probe { phase: Phase::Return, ..probe(Role::Alloc, symbol("helper")) },
            probe(Role::Close, symbol("pool_close")),
            probe(Role::Free, symbol("pool_close")),
        ],
    );
    let plan = plan_of(&profile, &image, Level::Objects).unwrap();
    let roles: Vec<Role> = plan.probes.iter().map(|probe| probe.role).collect();
    assert_eq!(roles, [Role::Free, Role::Alloc, Role::Close, Role::Open]);
    let codes: Vec<&str> = plan.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(codes, ["expensive_site"], "functions of one instruction have no other place");
    assert_eq!(plan.allocator, 7);
    for probe in &plan.probes {
        let hit = &elf.resolve(&probe.site.symbol)[0];
        assert_eq!(Some(probe.site.file_offset), hit.file_offset);
        assert_eq!(probe.site.inode, image.objects[0].mapped.inode);
        assert_eq!(probe.spec.role, probe.role as u32);
    }
    let rows = plan.rows();
    assert_eq!(
        (rows[1].symbol.as_str(), rows[1].role, rows[1].phase),
        ("helper", "alloc", "return")
    );

    let boundary = plan_of(&profile, &image, Level::Boundary).unwrap();
    assert_eq!(symbols(&boundary), ["pool_close", "pool_open"]);
}

/// Names of one place are one probe with aliases, in one table of the profile or in two.
#[test]
fn aliases_are_one_probe() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &[]);
    let image = image(&[&pool]);
    let rule = by_symbols(&["pool_open"]);
    let two = profile(
        rule.clone(),
        vec![probe(Role::Open, symbol("pool_open")), probe(Role::Open, symbol("pool_make"))],
    );
    let plan = plan_of(&two, &image, Level::Boundary).unwrap();
    assert_eq!(plan.probes.len(), 1);
    assert_eq!(plan.probes[0].site.aliases, ["pool_make"]);
    assert!(plan.findings.is_empty(), "they say the same");

    // Another role at the same place is another probe.
    let roles = profile(
        rule.clone(),
        vec![probe(Role::Open, symbol("pool_open")), probe(Role::Close, symbol("pool_make"))],
    );
    assert_eq!(plan_of(&roles, &image, Level::Boundary).unwrap().probes.len(), 2);

    // Two tables on one address that say different things are meant; on aliases they are not.
    let count = Cell::new(0);
    let differing = |_: &Profile, probe: &Probe, _: Level, _: u32, _: &ObjectResolver<'_>| {
        count.set(count.get() + 1);
        let spec: ProbeSpec = bytemuck::Zeroable::zeroed();
        Ok(ProbeSpec { role: probe.role as u32, granule_bytes: count.get(), ..spec })
    };
    for (second, probes, findings) in [("pool_open", 2, &[][..]), ("pool_make", 1, &["alias"])] {
        let profile = profile(
            rule.clone(),
            vec![probe(Role::Open, symbol("pool_open")), probe(Role::Open, symbol(second))],
        );
        let request = Request {
            profile: &profile,
            level: Level::Boundary,
            allocator: 0,
            image: &image,
            followed: &[],
            costs: &Costs::assumed(),
            sites: Sites::Cheapest,
        };
        let plan = super::plan(request, &wanted, &differing).unwrap();
        assert_eq!(plan.probes.len(), probes, "{second}");
        assert_eq!(codes(&plan), findings, "{second}");
    }
}

/// One pattern gives a probe for each function that it names.
#[test]
fn patterns_give_several_probes() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int a(void) __asm__(\"_ZN4pool4openEi\"); int a(void) { return 1; }\n\
                  int b(void) __asm__(\"_ZN4pool4openEl\"); int b(void) { return 2; }\n\
                  int c(void) __asm__(\"_ZN4pool4openEi.cold\"); int c(void) { return 3; }\n\
                  int d(void) __asm__(\"_ZN4pool4openEl.part.0\"); int d(void) { return 4; }\n";
    let path = cc(dir.path(), "libd.so", source, &["-shared", "-fPIC", "-nostdlib"]);
    let at = Address::Demangled("pool::open".into());
    let rule = MatchRule { symbols: vec![at.clone()], ..MatchRule::default() };
    let plan =
        plan_of(&profile(rule, vec![probe(Role::Open, at)]), &image(&[&path]), Level::Boundary)
            .unwrap();
    assert_eq!(symbols(&plan), ["_ZN4pool4openEi", "_ZN4pool4openEl"]);
    assert_eq!(codes(&plan), ["clones"]);
}

/// Clones beside a function are reported; a function that is only clones is probed with a warning, never
/// twice for one call, and never at its cold part.
#[test]
fn clones() {
    let dir = tempfile::tempdir().unwrap();
    let function = |name: &str, number: u32| {
        format!(
            "int f{number}(void) __asm__(\"{name}\"); int f{number}(void) {{ return {number}; }}\n"
        )
    };
    let source = [
        "whole",
        "whole.part.0",
        "copied.constprop.0",
        "copied.part.0",
        "copied.constprop.0.cold",
        "split.part.0",
        "private.lto_priv.0",
        "frozen.cold",
        "close",
    ]
    .iter()
    .zip(0..)
    .map(|(name, number)| function(name, number))
    .collect::<String>();
    let path = cc(dir.path(), "libk.so", &source, &["-shared", "-fPIC", "-nostdlib"]);
    let image = image(&[&path]);
    let open = |name: &str| {
        let rule = by_symbols(&["close"]);
        plan_of(&profile(rule, vec![probe(Role::Open, symbol(name))]), &image, Level::Boundary)
    };
    for (name, planned, finding) in [
        ("whole", "whole", "clones"),
        ("copied", "copied.constprop.0", "clone_only"),
        ("split", "split.part.0", "clone_only"),
        ("private", "private.lto_priv.0", "renamed"),
    ] {
        let plan = open(name).unwrap();
        assert_eq!(symbols(&plan), [planned]);
        assert_eq!(codes(&plan), [finding], "{name}");
        assert!(plan.findings[0].message.contains(name));
    }
    assert!(matches!(open("frozen"), Err(PlanError::NothingToProbe { .. })));
}

/// IFUNCs and data are not probed, and the plan says so.
#[test]
fn what_is_no_function() {
    let dir = tempfile::tempdir().unwrap();
    let source = "static int fast(int x) { return x; }\n\
                  static int (*choose(void))(int) { return fast; }\n\
                  int work(int) __attribute__((ifunc(\"choose\")));\nint data = 5; int close(void) { return 1; }\n";
    let path = cc(dir.path(), "libi.so", source, &["-shared", "-fPIC", "-nostdlib"]);
    let image = image(&[&path]);
    for (name, code) in [("work", "ifunc"), ("data", "not_a_function")] {
        let probes = vec![probe(Role::Init, symbol(name)), probe(Role::Close, symbol("close"))];
        let plan =
            plan_of(&profile(by_symbols(&["close"]), probes), &image, Level::Objects).unwrap();
        assert_eq!(symbols(&plan), ["close"]);
        assert_eq!(codes(&plan), [code, "missing_symbol"]);
    }
}

/// An IFUNC that was followed is probed where its implementation is, under both names; one that could
/// not be followed is reported with the reason.
#[test]
fn followed_ifuncs() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int fast(int x) { return x; }\n\
                  static int (*choose(void))(int) { return fast; }\n\
                  int work(int) __attribute__((ifunc(\"choose\"))); int close(void) { return 1; }\n";
    let path = cc(dir.path(), "libi.so", source, &["-shared", "-fPIC", "-nostdlib"]);
    let other = library(dir.path(), "libpool.so", &[]);
    let image = image(&[&path, &other]);
    let probes = vec![probe(Role::Init, symbol("work")), probe(Role::Close, symbol("close"))];
    let profile = profile(by_symbols(&["close"]), probes);
    let objects = match_objects(&profile, &image).unwrap();
    let keys = crate::plan::ifuncs(&profile, &objects);
    let elf = image.objects[0].elf.as_ref().unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].resolver, elf.resolve("choose")[0].vaddr);
    let planned = |outcome| {
        let followed = [Followed { key: keys[0], outcome }];
        let level = Level::Objects;
        let request = Request {
            profile: &profile,
            level,
            allocator: 7,
            image: &image,
            followed: &followed,
            costs: &Costs::assumed(),
            sites: Sites::Cheapest,
        };
        build(request, &objects, &wanted, &compile).unwrap()
    };
    for (object, name) in [(0, "fast"), (1, "pool_open")] {
        let object = &image.objects[object];
        let hit = &object.elf.as_ref().unwrap().resolve(name)[0];
        let plan = planned(Ok(vec![Implementation {
            inode: object.mapped.inode,
            file_offset: hit.file_offset.unwrap(),
            symbol: name.into(),
        }]));
        assert_eq!(symbols(&plan), ["close", name]);
        let site = &plan.probes[1].site;
        assert_eq!((site.inode, Some(site.file_offset)), (object.mapped.inode, hit.file_offset));
        assert_eq!(site.shown_path, object.mapped.shown_path);
        assert_eq!(site.aliases, ["work"]);
        assert_eq!(codes(&plan), ["ifunc"]);
        assert!(plan.findings[0].message.contains(&format!("uses {name}")));
    }
    let plan = planned(Err("the moon is full".into()));
    assert_eq!(symbols(&plan), ["close"]);
    assert_eq!(codes(&plan), ["ifunc", "missing_symbol"]);
    assert!(plan.findings[0].message.contains("the moon is full"));
}

/// A missing variant of a function is reported; a role that has no probe left is an error that names what
/// was tried where.
#[test]
fn missing_symbols() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &[]);
    tool("strip", &[pool.to_str().unwrap()]);
    let image = image(&[&pool]);
    let some =
        vec![probe(Role::Open, symbol("pool_open")), probe(Role::Open, symbol("pool_open_ex"))];
    let plan =
        plan_of(&profile(by_symbols(&["pool_open"]), some), &image, Level::Boundary).unwrap();
    assert_eq!(symbols(&plan), ["pool_open"]);
    assert_eq!(codes(&plan), ["missing_symbol"]);
    assert!(plan.findings[0].message.contains("pool_open_ex"));

    for (role, level) in [
        (Role::Close, Level::Boundary),
        (Role::Alloc, Level::Objects),
        (Role::Free, Level::Objects),
    ] {
        let none = vec![probe(Role::Open, symbol("pool_open")), probe(role, symbol("helper"))];
        let error = plan_of(&profile(by_symbols(&["pool_open"]), none), &image, level)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("none of its `{}` probes", role.name())), "{error}");
        assert!(error.contains("helper") && error.contains("stripped"), "{error}");
    }
    let usdt = Address::Usdt { provider: "pool".into(), name: "open".into() };
    let probes = vec![probe(Role::Open, symbol("pool_open")), probe(Role::Open, usdt)];
    let plan =
        plan_of(&profile(by_symbols(&["pool_open"]), probes), &image, Level::Boundary).unwrap();
    assert_eq!(codes(&plan), ["missing_symbol"]);
}

/// Several functions of one name are all probed, with a warning if they are hidden ones.
#[test]
fn several_functions_of_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.c");
    std::fs::write(&other, "static __attribute__((used, noinline)) int work(void) { return 1; }\n")
        .unwrap();
    let source = "static __attribute__((used, noinline)) int work(void) { return 2; }\n";
    let args = ["-shared", "-fPIC", "-nostdlib", other.to_str().unwrap()];
    let path = cc(dir.path(), "libw.so", source, &args);
    let probes = vec![probe(Role::Open, symbol("work"))];
    let plan = plan_of(&profile(by_symbols(&["work"]), probes), &image(&[&path]), Level::Boundary)
        .unwrap();
    assert_eq!(plan.probes.len(), 2);
    assert_eq!(codes(&plan), ["ambiguous"]);
}

/// Offsets in the file are taken where they are code.
#[test]
fn offsets() {
    let dir = tempfile::tempdir().unwrap();
    let program = cc(dir.path(), "svc", &format!("{ALLOCATOR}{MAIN}"), &["-static", "-nostdlib"]);
    let image = image(&[&program]);
    let offset =
        image.objects[0].elf.as_ref().unwrap().resolve("pool_open")[0].file_offset.unwrap();
    let at = |offset: u64| {
        let probes = vec![probe(Role::Open, Address::Offset(offset))];
        plan_of(&profile(by_symbols(&["pool_close"]), probes), &image, Level::Boundary)
    };
    let plan = at(offset).unwrap();
    assert_eq!(plan.probes[0].site.symbol, format!("offset:{offset:#x}"));
    assert_eq!(plan.probes[0].site.file_offset, offset);
    assert!(at(1 << 40).unwrap_err().to_string().contains("no executable segment"));
}

/// Objects that were deleted or replaced under the process are planned, and reported.
#[test]
fn deleted_and_replaced_objects() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &[]);
    let mut image = image(&[&pool]);
    let profile = profile(by_symbols(&["pool_open"]), vec![probe(Role::Open, symbol("pool_open"))]);
    image.objects[0].mapped.deleted = true;
    assert_eq!(codes(&plan_of(&profile, &image, Level::Boundary).unwrap()), ["deleted"]);
    image.objects[0].mapped.replaced = true;
    assert_eq!(codes(&plan_of(&profile, &image, Level::Boundary).unwrap()), ["replaced"]);
}

/// A compile error names the profile, the probe and the object; absent probes are not compiled.
#[test]
fn compile_errors() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &[]);
    let image = image(&[&pool]);
    let fails = |_: &Profile, probe: &Probe, _: Level, _: u32, _: &ObjectResolver<'_>| {
        assert_ne!(probe.at, symbol("absent"), "nothing to compile for");
        Err::<ProbeSpec, _>("no type `x`".to_owned())
    };
    let probes = vec![probe(Role::Open, symbol("absent")), probe(Role::Open, symbol("pool_open"))];
    let profile = profile(by_symbols(&["pool_open"]), probes);
    let request = Request {
        profile: &profile,
        level: Level::Boundary,
        allocator: 0,
        image: &image,
        followed: &[],
        costs: &Costs::assumed(),
        sites: Sites::Cheapest,
    };
    let error = plan(request, &wanted, &fails).unwrap_err().to_string();
    assert!(
        error.contains("profile pool: probe pool_open in") && error.contains("no type `x`"),
        "{error}"
    );
}

/// The resolver gives addresses in the running process, and offsets of members, by the object's own
/// debug information; a variable that the main program copied is the main program's.
#[test]
fn resolver() {
    let dir = tempfile::tempdir().unwrap();
    let pool = library(dir.path(), "libpool.so", &["-g"]);
    let object = loaded(&pool, false);
    let elf = object.elf.as_ref().unwrap();
    let resolver = ObjectResolver::new(&object, None);
    assert_eq!(resolver.var("the_pool"), Some(BIAS + elf.resolve("the_pool")[0].vaddr));
    assert_eq!(
        resolver.var("hidden"),
        Some(BIAS + elf.resolve("hidden")[0].vaddr),
        "static data too"
    );
    assert_eq!(resolver.var("pool_open"), Some(BIAS + elf.resolve("pool_open")[0].vaddr));
    assert_eq!(resolver.var("nothing"), None);
    assert_eq!(resolver.offset_of("pool_t", "live"), Ok(0x44));
    assert!(resolver.offset_of("pool_t", "gone").unwrap_err().contains("gone"));
    assert!(resolver.into_findings().is_empty());

    // A program at a fixed address that uses the library's variable holds the only copy in use.
    let source = "extern struct { int x[24]; } the_pool; int main(void) { return the_pool.x[3]; }\n\
                  void _start(void) { main(); }";
    let args = ["-no-pie", "-fno-pie", "-nostdlib", pool.to_str().unwrap()];
    let program = cc(dir.path(), "svc", source, &args);
    let main = loaded(&program, true);
    let copied = main.elf.as_ref().unwrap().exported_data("the_pool").unwrap();
    let resolver = ObjectResolver::new(&object, Some(&main));
    assert_eq!(resolver.var("the_pool"), Some(BIAS + copied));
    assert_ne!(resolver.var("in_bss"), None);

    // Loaded twice: the first one's, with a warning.
    let mut twice = object.clone();
    let again: Vec<_> = twice
        .mapped
        .mappings
        .iter()
        .map(|mapping| drainprof_process::Mapping {
            start: mapping.start + 0x1000_0000,
            end: mapping.end + 0x1000_0000,
            ..*mapping
        })
        .collect();
    twice.mapped.mappings.extend(again);
    let resolver = ObjectResolver::new(&twice, None);
    assert_eq!(resolver.var("the_pool"), Some(BIAS + elf.resolve("the_pool")[0].vaddr));
    assert_eq!(resolver.into_findings()[0].code, "loaded_twice");
}
