//! Guards: what comes out of good ones, and where bad ones are refused.

use crate::{Address, Profile, Source, parse};

const GOOD: &str = r#"schema = 1
name   = "pool"
kind   = "bulk"

[match]
symbols = ["pool_new"]

[versions.new]
symbols = ["pool_tag", "pool_tag_2"]
build_id = "AB12"

[versions.old]
no_symbols = "pool_tag"

[[probe]]
role = "open"
at = "pool_new"
granule = "ret"
version = "new"

[[probe]]
role = "open"
at = "pool_new"
granule = "ret + 8"
version = ["old"]

[[probe]]
role = "close"
at = "pool_end"
granule = "arg0"
version = ["old", "new"]
"#;

fn read(from: &str, to: &str) -> Result<Profile, String> {
    assert!(GOOD.contains(from), "{from} is in the profile");
    let text = GOOD.replacen(from, to, 1);
    parse(&text, &Source::File("p.toml".into())).map_err(|error| error.to_string())
}

/// Guards are read with all their lines, probes with the names of theirs, and two probes at one address are
/// distinguished by them.
#[test]
fn guards_are_read() {
    let profile = read("pool", "pool").unwrap();
    let [new, old] = &profile.versions[..] else { panic!("{:?}", profile.versions) };
    let named = |name: &str| Address::Symbol(name.to_owned());
    assert_eq!((new.name.as_str(), &new.build_id[..]), ("new", &["ab12".to_owned()][..]));
    assert_eq!(new.symbols, [named("pool_tag"), named("pool_tag_2")]);
    assert_eq!((old.name.as_str(), &old.no_symbols[..]), ("old", &[named("pool_tag")][..]));
    let versions: Vec<_> = profile.probes.iter().map(|probe| probe.versions.join(" ")).collect();
    assert_eq!(versions, ["new", "old", "old new"]);
}

/// A guard that says nothing, has a wrong name or none that is used, or does not distinguish two probes, is refused with its
/// place.
#[test]
fn bad_guards_are_refused() {
    for (from, to, says) in [
        (
            "no_symbols = \"pool_tag\"",
            "",
            "p.toml:12:1: the guard `old` says nothing: it would hold everywhere; give at least one",
        ),
        ("[versions.old]", "[versions.Old]", "p.toml:12:1: `Old` cannot be a guard's name"),
        ("[versions.old]", "[versions.older]", "p.toml:25:11: there is no version `old`; expected"),
        ("no_symbols", "none", "p.toml:13:1: unknown key `none`"),
        ("\"AB12\"", "\"xyz\"", "p.toml:10:12: expected a build id in hexadecimal"),
        ("[\"old\"]", "\"new\"", "p.toml:23:6: a second `open` probe at `pool_new`"),
        ("version = \"new\"\n", "", "p.toml:22:6: a second `open` probe at `pool_new`"),
        (
            "[versions.old]",
            "[versions.other]\nsymbols = \"x\"\n[versions.old]",
            "p.toml:12:1: no probe is for the version `other`; write",
        ),
        (
            "version = \"new\"",
            "version = \"new\"\none_of = \"made\"",
            "p.toml:20:10: the group `made` has one probe only",
        ),
    ] {
        let error = read(from, to).err().unwrap_or_else(|| "accepted".to_owned());
        assert!(error.starts_with(says), "{from} → {to}:\n  is     {error}\n  wanted {says}");
    }
}

const TAIL: &str =
    "\n[not_measurable.cached]\nsymbols = \"cache_get\"\nbecause = \"objects lie in caches\"\n";

/// A build that cannot be measured has a guard and a reason; neither may be missing, and the reason is one line.
#[test]
fn builds_that_cannot_be_measured() {
    let read = |tail: &str| parse(&(GOOD.to_owned() + tail), &Source::File("p.toml".into()));
    let profile = read(TAIL).unwrap();
    let [cached] = &profile.not_measurable[..] else { panic!("{:?}", profile.not_measurable) };
    assert_eq!(cached.guard.symbols, [Address::Symbol("cache_get".to_owned())]);
    assert_eq!(
        (cached.guard.name.as_str(), cached.because.as_str()),
        ("cached", "objects lie in caches")
    );
    for (from, to, says) in [
        ("symbols = \"cache_get\"\n", "", "the guard `cached` says nothing"),
        ("because = \"objects lie in caches\"\n", "", "missing key `because`"),
        ("objects lie in caches", "", "`because` is no sentence for a report"),
        ("objects lie", "objects\\nlie", "`because` is no sentence for a report"),
        ("symbols", "version", "unknown key `version`"),
    ] {
        let error = read(&TAIL.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}
