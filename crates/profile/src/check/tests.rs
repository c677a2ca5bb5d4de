//! Groups of probes that stand for one another, and implicit granules; the other rules are tested with `parse`.

use drainprof_common::spec::flags;

use super::Anything;
use crate::{Level, Profile, ProfileError, Source, compile::compile, parse::parse};

/// A profile whose group is in lines 14 and 23, changed by one replacement.
fn read(from: &str, to: &str) -> Result<Profile, ProfileError> {
    const GROUPED: &str = r#"schema = 1
name = "pool"
kind = "drain"
match = { symbols = "pool_close" }

[[probe]]
role = "close"
at = "pool_close"
granule = "arg0"

[[probe]]
role = "alloc"
at = "pool_alloc"
one_of = "made"
granule = "arg0"
object = "ret"
size = "arg1"
when = "ret != 0"

[[probe]]
role = "alloc"
at = "pool_note"
one_of = "made"
granule = "arg0"
object = "arg1"
size = "arg2"

[[probe]]
role = "free"
at = "pool_free"
object = "arg0"
"#;
    assert!(GROUPED.contains(from), "{from}");
    parse(&GROUPED.replacen(from, to, 1), &Source::File("p.toml".into()))
}

fn refusal(from: &str, to: &str) -> String {
    read(from, to).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

/// A group is one role and one set of values, and is more than one probe; a `when` may differ. What is wrong
/// is named with its place, and with the line of the probe that it is compared to.
#[test]
fn groups_must_agree() {
    assert_eq!(refusal("pool", "pool"), "accepted");
    for (from, to, says) in [
        (
            "role = \"free\"\nat = \"pool_free\"",
            "role = \"free\"\none_of = \"made\"\nat = \"pool_free\"",
            "p.toml:30:10: the group `made` is of `alloc` probes (line 11), and this is a `free` probe; its probes stand",
        ),
        (
            "size = \"arg2\"\n",
            "",
            "p.toml:23:10: no `size`, which the first probe of the group `made` (line 11) has; its probes stand",
        ),
        (
            "size = \"arg1\"\n",
            "",
            "p.toml:25:8: `size`, which the first probe of the group `made` (line 11) lacks; its probes stand",
        ),
        (
            "one_of = \"made\"\ngranule = \"arg0\"\nobject = \"ret\"",
            "granule = \"arg0\"\nobject = \"ret\"",
            "p.toml:22:10: the group `made` has one probe only; a group has two probes or more",
        ),
        (
            "\"made\"",
            "\"Made up\"",
            "p.toml:14:10: `Made up` cannot be a group's name; expected a-z",
        ),
        ("\"made\"", "1", "p.toml:14:10: invalid type: integer `1`; expected a string in quotes"),
        ("at = \"pool_note\"", "at = \"pool_alloc\"", "p.toml:22:6: a second `alloc` probe at"),
    ] {
        let error = refusal(from, to);
        assert!(error.starts_with(says), "{from} → {to}:\n  is     {error}\n  wanted {says}");
    }
}

/// Two of a group may be at one place if the first may drop out, because it names what may be unknown.
#[test]
fn the_last_resort_of_a_group() {
    let from = "when = \"ret != 0\"\n\n[[probe]]\nrole = \"alloc\"\nat = \"pool_note\"";
    let to = from.replace("pool_note", "pool_alloc");
    let refused = "p.toml:22:6: a second `alloc` probe at `pool_alloc`";
    assert!(refusal(from, &to).starts_with(refused), "{}", refusal(from, &to));
    for unknown in ["offsetof(pool, id)", "var('pool_of_zero')"] {
        let to = to.replace("ret != 0", &format!("ret != {unknown}"));
        assert_eq!(refusal(from, &to), "accepted");
    }
}

/// Of a group one is placed, so that its probes are not taken for functions that call one another; two of
/// them that are no group are.
#[test]
fn members_do_not_nest() {
    let may_nest = |profile: &Profile| {
        let specs = profile.probes.iter().map(|probe| {
            compile(profile, probe, Level::Objects, 0, &Anything).map(|spec| spec.flags)
        });
        let flags: Result<Vec<_>, _> = specs.collect();
        flags.map(|all| all.iter().all(|flags| flags & flags::MAY_NEST != 0))
    };
    let grouped = read("pool", "pool").expect("it is a good profile");
    assert_eq!(may_nest(&grouped), Ok(false));
    let mut apart = grouped;
    for probe in &mut apart.probes {
        probe.one_of = None;
    }
    assert_eq!(may_nest(&apart), Ok(true));
}

/// A profile of implicit granules, changed by one replacement.
fn read_pages(from: &str, to: &str) -> Result<Profile, ProfileError> {
    const PAGES: &str = r#"schema = 1
name = "pages"
kind = "slab"
on_request = true
match = { symbols = "take" }
granule = { implicit = true, bytes = 4096 }

[[probe]]
role = "alloc"
at = "take"
granule = "ret & ~0xfff"
object = "ret"
size = "arg0"

[[probe]]
role = "free"
at = "give"
object = "arg0"
"#;
    assert!(PAGES.contains(from), "{from}");
    parse(&PAGES.replacen(from, to, 1), &Source::File("p.toml".into()))
}

/// Implicit granules are of kind `slab`, of one size, and nothing but objects that are known by id and size begins or
/// ends them. All their probes carry the flag, and none examines boundaries alone.
#[test]
fn implicit_granules_have_their_objects() {
    let good = read_pages("pages", "pages").expect("it is a good profile");
    assert!(good.implicit && good.on_request);
    assert_eq!(crate::levels(&good), [Level::Objects, Level::Stacks]);
    for probe in &good.probes {
        let spec = compile(&good, probe, Level::Objects, 0, &Anything).expect("it compiles");
        assert_eq!(spec.flags & flags::IMPLICIT, flags::IMPLICIT);
    }
    let plain = read_pages("implicit = true, ", "").expect("lazy slabs are no census");
    assert!(!plain.implicit);
    for (from, to, says) in [
        ("\"slab\"", "\"bulk\"", "p.toml:6:24: only granules of kind `slab` can be implicit"),
        (", bytes = 4096", "", "p.toml:6:24: the size of an implicit granule is not given"),
        (
            "size = \"arg0\"\n",
            "",
            "p.toml:9:8: an object of an implicit granule needs its `granule`",
        ),
        ("object = \"ret\"\n", "", "p.toml:15:8: this free names no `granule`"),
        (
            "role = \"free\"\nat = \"give\"\nobject = \"arg0\"",
            "role = \"free\"\nat = \"give\"\ngranule = \"arg0\"",
            "p.toml:16:8: every object of an implicit granule must be known by its id",
        ),
        (
            "[[probe]]\nrole = \"free\"",
            "[[probe]]\nrole = \"close\"\nat = \"end\"\ngranule = \"arg0\"\n[[probe]]\nrole = \"free\"",
            "p.toml:16:8: nothing but objects begins or ends an implicit granule, and this is a `close`",
        ),
    ] {
        let error =
            read_pages(from, to).map_or_else(|error| error.to_string(), |_| "accepted".into());
        assert!(error.starts_with(says), "{from} → {to}:\n  is     {error}\n  wanted {says}");
    }
}
