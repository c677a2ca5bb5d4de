//! Probes at chosen places, with the kernel: the counts are those of the first instruction, and the places
//! are really taken.

use std::{fs::File, os::unix::fs::FileExt as _};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    elf,
    environment::{self, requires_root},
    target::Target,
    tracer::{self, Tracer, trace},
};
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];
const INT3: u8 = 0xcc;

/// What `--dry-run -o json` says of a profile's probes in a target.
fn plan(target: &Target, profile: &str, sites: &str) -> Result<Vec<Value>> {
    let (pid, profile) = (target.pid().to_string(), environment::profile(profile));
    let mut args = vec!["attach", "-p", &pid, "--profile", &profile, "--dry-run", "-o", "json"];
    args.extend(OBJECTS.iter().chain(&["--sites", sites]));
    let outcome = tracer::run_to_end(&args)?;
    ensure!(outcome.code == Some(0), "{}", outcome.talk());
    let document: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
    let probes = document.pointer("/processes/0/plans/0/probes").and_then(Value::as_array);
    probes.cloned().context("a list of probes")
}

fn row<'a>(plan: &'a [Value], symbol: &str) -> Result<&'a Value> {
    plan.iter().find(|row| row["symbol"] == symbol).with_context(|| format!("{symbol} is planned"))
}

/// Awkward functions are counted to the last call, probed at chosen places and at their first
/// instructions; granules are opened from the same place in both.
#[test]
fn shapes_are_counted() -> Result<()> {
    if requires_root() {
        let mut opened_from = Vec::new();
        for sites in ["cheapest", "entry"] {
            let more = ["--level", "objects", "--sites", sites];
            let traced = trace("shapes", &["times=300"], "shapes", &more)?;
            traced.exact();
            let report = traced.outcome.report();
            let places = report.pointer("/targets/0/allocators/0/lifetimes/places");
            let places = places.and_then(Value::as_array).context("places of opening")?;
            ensure!(places.len() == 1, "one call opens all: {places:?}");
            let place = places[0]["place"].as_str().context("the place is known")?;
            // The program is loaded at another page in every run.
            opened_from.push(u64::from_str_radix(place.trim_start_matches("0x"), 16)? & 0xfff);
        }
        ensure!(opened_from[0] == opened_from[1], "{opened_from:x?}");
    }
    Ok(())
}

/// Each shape is probed where it can be, and nowhere else; `--sites entry` leaves all at the first
/// instruction.
#[test]
fn shapes_are_planned() -> Result<()> {
    if requires_root() {
        let target = Target::start("shapes", &[])?;
        let cheapest = plan(&target, "shapes", "cheapest")?;
        for (symbol, instruction, moved, stop) in [
            ("shape_moved", "push rbx", &["arg1=r10", "arg2=r11"][..], ""),
            (
                "shape_pushed",
                "push rbp",
                &["arg0=[rsp+0x0]", "arg1=[rsp+0x10]", "arg2=[rsp+0x8]"],
                "",
            ),
            (
                "shape_stored",
                "push rax",
                &["arg0=[rsp+0x8]", "arg1=[rsp+0x10]", "arg2=[rsp+0x18]"],
                "",
            ),
            ("shape_framed", "push rbp", &[], ""),
            ("shape_early_exit", "jne", &[], ""),
            ("shape_open", "push rbx", &["arg0=rax"], ""),
            ("shape_close", "je", &[], ""),
            ("shape_free", "je", &[], ""),
            ("shape_recursive", "je", &[], ""),
            ("shape_loop", "mov ecx", &[], "jumps behind"),
            ("shape_jump_back", "mov ecx", &[], "jumps behind"),
            ("shape_table", "mov ecx", &[], "unknown targets"),
            ("shape_two_ways", "mov rax", &[], "jumps behind"),
        ] {
            let row = row(&cheapest, symbol)?;
            let text = row["instruction"].as_str().unwrap_or_default();
            assert!(text.starts_with(instruction), "{row:#}");
            assert_eq!(row["moved"], serde_json::json!(moved), "{row:#}");
            assert_eq!(row["offset"] == 0, !stop.is_empty(), "{row:#}");
            assert!(row["stop"].as_str().unwrap_or_default().contains(stop), "{row:#}");
            assert!(row["cost_ns"].as_f64() <= row["entry_cost_ns"].as_f64(), "{row:#}");
        }
        for row in plan(&target, "shapes", "entry")? {
            assert_eq!(row["offset"], 0, "{row:#}");
        }
    }
    Ok(())
}

/// Functions that are judged at their returns are counted to the last call, with longjmp, signals, exceptions, tail calls
/// and recursion: probed behind their first instructions where the return address is still on top, or at them.
#[test]
fn returns_are_counted() -> Result<()> {
    if requires_root() {
        for sites in ["cheapest", "entry"] {
            trace("returns", &[], "returns", &["--level", "objects", "--sites", sites])?.exact();
        }
    }
    Ok(())
}

/// Return probes stand where they can, and nowhere else.
#[test]
fn returns_are_planned() -> Result<()> {
    if requires_root() {
        let target = Target::start("returns", &[])?;
        let planned = plan(&target, "returns", "cheapest")?;
        for (symbol, offset, stop) in [
            ("return_open", 4, ""),
            ("return_close", 7, ""),
            ("return_free", 7, ""),
            ("return_framed", 4, ""),
            ("return_early", 9, ""),
            ("return_tail", 4, ""),
            ("return_recursive", 7, ""),
            ("return_busy", 4, ""),
            ("return_spoilt", 0, "arg0 is not kept"),
            ("return_moved", 0, "stack pointer"),
            ("return_loop", 0, "jumps behind"),
        ] {
            let row = row(&planned, symbol)?;
            assert_eq!(
                (&row["offset"], &row["phase"]),
                (&offset.into(), &"return".into()),
                "{row:#}"
            );
            assert!(row["stop"].as_str().unwrap_or_default().contains(stop), "{row:#}");
        }
    }
    Ok(())
}

/// While attached, the breakpoint stands at the chosen place and the first instruction is untouched; and
/// it is hit there.
#[test]
fn places_are_taken() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("shapes", &["times=50"])?;
        let planned = plan(&target, "shapes", "cheapest")?;
        let path = environment::target("shapes")?;
        let tracer = Tracer::attach(&[target.pid()], "shapes", &OBJECTS)?;
        let memory = File::open(format!("/proc/{}/mem", target.pid()))?;
        let mut taken = Vec::new();
        for symbol in
            ["shape_moved", "shape_pushed", "shape_early_exit", "shape_open", "shape_free"]
        {
            let offset = row(&planned, symbol)?["offset"].as_u64().context("an offset")?;
            let entry = elf::address_in(target.pid(), &path, symbol)?;
            let mut bytes = [0; 2];
            memory.read_exact_at(&mut bytes[..1], entry)?;
            memory.read_exact_at(&mut bytes[1..], entry + offset)?;
            assert!(
                offset > 0 && bytes[0] != INT3 && bytes[1] == INT3,
                "{symbol}+{offset}: {bytes:x?}"
            );
            taken.push(symbol);
        }
        target.go()?;
        target.finish()?;
        let outcome = tracer.finish()?;
        let probes = outcome.report().pointer("/targets/0/probes").and_then(Value::as_array);
        for symbol in taken {
            let probe = probes.into_iter().flatten().find(|probe| probe["symbol"] == symbol);
            let hits = probe.and_then(|probe| probe["entries"].as_u64());
            assert!(hits >= Some(50), "{symbol}: {hits:?}");
        }
    }
    Ok(())
}
