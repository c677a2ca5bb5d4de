//! Debian's Redis on Debian's jemalloc: the census of its pages beside what the allocator says of itself.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::sum_rule,
    environment::{has_programs, requires_root},
    redis::{Client, Place, READY, Small},
    tracer::Tracer,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

const KEYS: u64 = 100_000;
/// Keys in one command.
const MANY: u64 = 500;

/// One command for each `MANY` keys; `words` tells what it says of a key.
fn commands(name: &str, words: impl Fn(u64) -> Vec<String>) -> Vec<Vec<String>> {
    let command = |first: u64| {
        let words = (first..first + MANY).flat_map(&words);
        std::iter::once(name.to_owned()).chain(words).collect()
    };
    (0..KEYS / MANY).map(|number| command(number * MANY)).collect()
}

/// Before and after every other key was deleted.
struct Seen {
    full: Small,
    half: Small,
    report: Value,
}

fn scattered_delete() -> Result<Seen> {
    let place = Place::new()?;
    let more = ["--max-objects", "1048576"];
    let mut tracer = Tracer::run_command(&place.command()?, "malloc-jemalloc", &more)?;
    tracer.process().expect_out_containing(READY)?;
    let mut client = Client::new(&place.socket())?;
    client.ask_all(&commands("MSET", |key| {
        vec![format!("key:{key:08}"), format!("value-{key:024}")]
    }))?;
    let full = client.small()?;
    client.ask_all(&commands("DEL", |key| {
        if key % 2 == 0 { vec![format!("key:{key:08}")] } else { Vec::new() }
    }))?;
    assert_eq!(client.ask(&["DBSIZE"])?, (KEYS / 2).to_string());
    let half = client.small()?;
    // Its libraries would free a part of what is live if it were asked to end.
    kill(Pid::from_raw(client.pid()?.try_into()?), Signal::SIGKILL)?;
    let report = tracer.finish()?.report.context("a report")?;
    Ok(Seen { full, half, report })
}

/// 100,000 keys, of which every other one is deleted: half of the bytes are freed, and almost no page comes free.
/// The census agrees with the server's own statistics: with the number of objects up to what threads have cached,
/// and with the pages of its slabs up to those in which no object of the program begins.
#[test]
fn deleted_keys_free_no_pages() -> Result<()> {
    if !requires_root() || !has_programs(&["redis-server"]) {
        return Ok(());
    }
    let Seen { full, half, report } = scattered_delete()?;
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    let allocator = &report["targets"][0]["allocators"][0];
    assert_eq!(sum_rule(allocator), None);
    assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"slab".into(), &Value::Null));
    let census = &allocator["census"];
    let count = |key: &str| census[key].as_u64().with_context(|| format!("no {key} in {census}"));
    assert_eq!((count("unknown")?, count("unknown_frees")?, count("drainable_now")?), (0, 0, 0));

    // The allocator's own view: half of the bytes went, and no slab.
    assert!(half.bytes * 10 < full.bytes * 6, "{full:?} {half:?}");
    assert!(half.pages * 100 >= full.pages * 98, "{full:?} {half:?}");

    // The same seen from outside. What lies in a cache of a thread is free for the program, and not for the allocator.
    let (live, held) = (count("live_objects")?, count("granules_open")?);
    let cached = half.objects.checked_sub(live).with_context(|| format!("{half:?} {census}"))?;
    assert!(cached * 8 <= half.cached_bytes + 4096, "{cached} cached: {half:?} {census}");
    assert!(held <= half.pages, "{held} pages held: {half:?}");
    assert!(held * 100 >= half.pages * 95, "{held} pages held: {half:?}");
    let peak = allocator["granules"]["open_peak"].as_u64().context("a peak")?;
    assert!(held * 100 >= peak * 95, "{held} of {peak} pages held");
    let live_bytes = count("live_bytes")?;
    assert!(live_bytes <= half.bytes && live_bytes * 10 >= half.bytes * 6, "{live_bytes} {half:?}");

    // So most pages are about half full, and that is what is said.
    let fill = census["fill"].as_array().context("classes")?;
    let between = fill.iter().filter(|class| {
        class["percent_from"].as_u64() >= Some(10) && class["percent_to"].as_u64() <= Some(75)
    });
    let sparse: u64 = between.filter_map(|class| class["granules"].as_u64()).sum();
    assert!(sparse * 10 >= held * 9, "{sparse} of {held} pages are half empty: {fill:?}");
    assert!(count("compactable_granules")? * 10 >= held * 4, "{census}");
    let findings = report["targets"][0]["findings"].as_array().context("findings")?;
    assert!(findings.iter().any(|finding| finding["code"] == "sparse_granules"), "{findings:?}");
    println!("full {full:?}, half {half:?}, held {held}, live {live}, peak {peak}");
    Ok(())
}
