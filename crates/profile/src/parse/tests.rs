//! Whole profiles: what comes out of a good one, and where a bad one is refused.

use proptest::prelude::*;

use super::*;
use crate::{Address, BinaryOp, MAX_MATCHES};

const GOOD: &str = r#"schema  = 1
name    = "epoch-demo"
kind    = "drain"
summary = "ring of epochs"

[match]
symbols = ["epoch_close", "demangled:ring::Ring::*"]
soname = "libepoch.so.*"
exe = ["svc*", "server"]
build_id = "AB12"

[granule]
bytes = 0x1000

[[probe]]
role = "open"
at = "epoch_advance"
instance = "arg0"
granule = "(*(u32)(arg0 + 0xc80) + 1) % 16"
parent = "arg3"
label = "str(arg4)"

[[probe]]
role = "close"
at = "usdt:ring:close"
instance = "arg0"
granule = "arg1"
live = '*(u32)(arg0 + offsetof(struct ring, live.count))'

[[probe]]
role = "alloc"
at = "offset:0x1234"
instance = "arg0"
granule = "arg2"
object = "*(u64)(arg3)"
size = "arg1"
when = "ret != 0"

[[probe]]
role = "free"
at = "demangled:ring::Ring::free*"
object = "arg1"
phase = "return"
"#;

fn read(text: &str) -> Result<Profile, ProfileError> {
    parse(text, &Source::File("p.toml".into()))
}

/// Where a profile is refused, as it is shown.
fn refusal(text: &str) -> String {
    match read(text) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Everything that a profile can say arrives in the model.
#[test]
fn a_whole_profile() {
    let profile = read(GOOD).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((profile.name.as_str(), profile.kind), ("epoch-demo", Kind::Drain));
    assert_eq!((profile.summary.as_str(), profile.granule_bytes), ("ring of epochs", Some(4096)));
    let rule = &profile.rule;
    assert_eq!(
        rule.symbols,
        [Address::Symbol("epoch_close".to_owned()), Address::Demangled("ring::Ring::*".to_owned())]
    );
    assert_eq!(
        (&*rule.soname[0], rule.exe.len(), &*rule.build_id[0]),
        ("libepoch.so.*", 2, "ab12")
    );
    let phases: Vec<_> = profile.probes.iter().map(|probe| probe.phase).collect();
    assert_eq!(phases, [Phase::Entry, Phase::Entry, Phase::Return, Phase::Return]);
    let roles: Vec<_> = profile.probes.iter().map(|probe| probe.role).collect();
    assert_eq!(roles, [Role::Open, Role::Close, Role::Alloc, Role::Free]);
    assert_eq!(profile.probes[0].expression(Key::Label), Some(&Expr::Arg(4)));
    assert_eq!(
        profile.probes[1].at,
        Address::Usdt { provider: "ring".to_owned(), name: "close".to_owned() }
    );
    assert_eq!(profile.probes[2].at, Address::Offset(0x1234));
    assert!(GOOD[profile.probes[3].span.clone()].contains("[[probe]]"));
    let Some(Expr::Read(_, sum)) = profile.probes[1].expression(Key::Live) else {
        panic!("a read")
    };
    let Expr::Binary(BinaryOp::Add, _, offset) = &**sum else { panic!("a sum") };
    let Expr::OffsetOf { span, .. } = &**offset else { panic!("an offset") };
    assert_eq!(&GOOD[span.clone()], "offsetof(struct ring, live.count)");
}

/// What is changed in the good profile, into what, and how the refusal begins.
const REFUSALS: &[(&str, &str, &str)] = &[
    // Shape.
    (
        "schema  = 1",
        "schema  = 2",
        "p.toml:1:11: schema 2 is not known to this version; expected 1",
    ),
    ("schema  = 1", "schema = \"1\"", "p.toml:1:10: invalid type: string \"1\"; expected i64"),
    ("schema  = 1\n", "", "p.toml:1:1: missing key `schema`"),
    ("name    = \"epoch-demo\"\n", "", "p.toml:1:1: missing key `name`"),
    (
        "summary",
        "sumary",
        "p.toml:4:1: unknown key `sumary`; expected one of `schema`, `name`, `kind`, `summary`, `on_request`, `match`, `granule`, `versions`, `not_measurable`, `walk`, `probe`",
    ),
    ("[granule]", "[variants]\n[granule]", "p.toml:12:2: unknown key `variants`"),
    (
        "exe =",
        "exec =",
        "p.toml:9:1: unknown key `exec`; expected one of `symbols`, `soname`, `exe`, `build_id`",
    ),
    (
        "size =",
        "sizes =",
        "p.toml:36:1: unknown key `sizes`; expected one of `role`, `at`, `one_of`, `version`, `phase`",
    ),
    ("\"arg2\"", "2", "p.toml:34:11: invalid type: integer `2`; expected a string in quotes"),
    (
        "\"libepoch.so.*\"",
        "7",
        "p.toml:8:10: invalid type: integer `7`; expected a string or an array of strings",
    ),
    ("0x1000", "-1", "p.toml:13:9: invalid value: integer `-1`; expected u64"),
    ("0x1000", "0", "p.toml:13:9: a granule of 0 bytes; leave `bytes` out"),
    ("[granule]", "[granule", "p.toml:12:9: "),
    ("summary =", "name =", "p.toml:4:1: duplicate key"),
    ("at = \"epoch_advance\"\n", "", "p.toml:15:1: missing key `at`"),
    // Words.
    (
        "\"drain\"",
        "\"drian\"",
        "p.toml:3:11: unknown kind `drian`; expected one of `drain`, `bulk`, `slab`",
    ),
    (
        "\"open\"",
        "\"opens\"",
        "p.toml:16:8: unknown role `opens`; expected one of `open`, `close`, `reset`",
    ),
    ("\"open\"", "\"migrate\"", "p.toml:20:10: `parent` means nothing on the role `migrate`"),
    ("\"open\"", "\"reparent\"", "p.toml:21:9: `label` means nothing on the role `reparent`"),
    ("\"open\"", "\"label\"", "p.toml:20:10: `parent` means nothing on the role `label`"),
    ("bytes = 0x1000", "nested = 1", "p.toml:13:10: invalid type: integer `1`"),
    (
        "bytes = 0x1000",
        "nested = true",
        "p.toml:13:10: `nested` on the kind `drain`; only a `bulk`",
    ),
    ("parent = \"arg3\"\n", "version = \"v2\"\n", "p.toml:20:11: there is no version `v2`"),
    ("\"epoch-demo\"", "\"Epoch demo\"", "p.toml:2:11: `Epoch demo` cannot be a profile's name"),
    (
        "role = \"close\"",
        "unshared = true\nrole = \"close\"",
        "p.toml:24:12: `unshared` is for an `open` that is evaluated at entry; leave it out",
    ),
    (
        "at = \"epoch_advance\"",
        "at = \"epoch_advance\"\nunshared = true",
        "p.toml:20:11: `granule` reads memory, which the function may have written by then; leave `unshared` out, or do without the read",
    ),
    ("\"return\"", "\"exit\"", "p.toml:43:9: unknown phase `exit`; expected `entry` or `return`"),
    ("\"AB12\"", "\"xyz\"", "p.toml:10:12: expected a build id in hexadecimal, found `xyz`"),
    ("\"server\"", "\"a[\"", "p.toml:9:16: `a[` is not a pattern"),
    ("[\"svc*\", \"server\"]", "[]", "p.toml:9:7: 0 entries; expected 1 to 64"),
    ("\"epoch_close\"", "\"offset:1\"", "p.toml:7:12: an offset is not a symbol"),
    // Places.
    ("\"epoch_advance\"", "\"\"", "p.toml:17:6: expected a symbol"),
    ("\"epoch_advance\"", "\"two words\"", "p.toml:17:6: expected a symbol"),
    (
        "\"epoch_advance\"",
        "\"a::b\"",
        "p.toml:17:6: `a::b` is not a mangled name; write `demangled:a::b`",
    ),
    ("\"epoch_advance\"", "\"uprobe:x\"", "p.toml:17:6: expected a symbol"),
    ("\"epoch_advance\"", "\"usdt:x\"", "p.toml:17:6: expected `usdt:provider:name`"),
    ("\"epoch_advance\"", "\"offset:x\"", "p.toml:17:6: expected a number after `offset:`"),
    ("\"epoch_advance\"", "\"demangled:\"", "p.toml:17:6: expected a pattern, found nothing"),
    (
        "build_id = \"AB12\"\n",
        "",
        "p.toml:31:6: an offset holds for one build only; name the build",
    ),
    ("granule = \"arg1\"", "granule = \"ret\"", "p.toml:25:6: a USDT probe has no return;"),
    (
        "granule = \"arg1\"",
        "granule = \"caller\"",
        "p.toml:25:6: a USDT probe has no return address",
    ),
    // Expressions, at the byte.
    ("% 16\"", "% 16x\"", "p.toml:19:43: `x` is no digit"),
    ("\"arg2\"", "\"arg2 +\"", "p.toml:34:18: expected a number"),
    ("\"str(arg4)\"", "\"arg4\"", "p.toml:21:10: expected `str(address)`"),
    (
        "\"ret != 0\"",
        "\"var(\\\"x\\\") = 1\"",
        "p.toml:37:20: expected an operator or the end of the expression, found a single `=`",
    ),
    ("\"ret != 0\"", "\"\"\"\nret !=\n 0 1\"\"\"", "p.toml:39:4: expected an operator"),
    (
        "\"arg2\"",
        "\"walk(arg0, *(u64)(it), it) + it\"",
        "p.toml:34:41: `it` is the node of a list: it is known only in",
    ),
    // The whole.
    (
        "\"return\"",
        "\"entry\"\nwhen = \"ret\"",
        "p.toml:44:8: `when` names `ret`, but the probe says `phase = \"entry\"`",
    ),
    (
        "size = \"arg1\"",
        "live = \"arg1\"",
        "p.toml:36:8: `live` means nothing on the role `alloc`; this role takes instance, granule, object, size, when",
    ),
    ("granule = \"arg1\"\n", "", "p.toml:24:8: the role `close` needs `granule`"),
    ("object = \"arg1\"\n", "", "p.toml:40:8: the role `free` needs `granule` or `object`"),
    (
        "object = \"*(u64)(arg3)\"\n",
        "",
        "p.toml:39:8: this free names no `granule`, and no `alloc` probe names an `object`",
    ),
    (
        "instance = \"arg0\"\ngranule = \"arg2\"",
        "granule = \"arg2\"",
        "p.toml:31:8: some probes with a `granule` name an `instance` and some do not",
    ),
    (
        "\"close\"\nat = \"usdt:ring:close\"",
        "\"open\"\nat = \"epoch_advance\"",
        "p.toml:28:8: `live` means nothing on the role `open`",
    ),
];

/// One change to a good profile at a time: every refusal names line, column, what is wrong and what was
/// expected.
#[test]
fn refusals_name_place_and_expectation() {
    for (from, to, shown) in REFUSALS {
        assert!(GOOD.contains(from), "{from}");
        let error = refusal(&GOOD.replacen(from, to, 1));
        assert!(error.starts_with(shown), "{from} → {to}:\n  is     {error}\n  wanted {shown}");
    }
}

fn small(kind: &str, probes: &str) -> String {
    format!("schema = 1\nname = \"t\"\nkind = \"{kind}\"\nmatch = {{ symbols = \"s\" }}\n{probes}")
}

fn probe(role: &str, at: &str, more: &str) -> String {
    format!("[[probe]]\nrole = \"{role}\"\nat = \"{at}\"\n{more}\n")
}

/// What only several probes together get wrong.
#[test]
fn profiles_must_make_sense_as_a_whole() {
    let open = probe("open", "a", "granule = \"ret\"");
    let close = probe("close", "b", "granule = \"arg0\"");
    let alloc = probe("alloc", "c", "granule = \"arg0\"");
    let free = probe("free", "d", "granule = \"arg0\"");
    for (kind, probes, says) in [
        ("drain", open.clone() + &alloc, ":3:8: a `drain` profile needs a `close` probe"),
        ("drain", open.clone() + &close, ":3:8: nothing says whether a close is drainable"),
        ("drain", close.clone() + &alloc, "but no `free`"),
        ("slab", close.clone() + &alloc, "but no `free`"),
        ("bulk", close.clone() + &alloc, "accepted"),
        ("drain", close.clone() + &alloc + &free, "accepted"),
        ("slab", close.clone(), "accepted"),
        ("bulk", String::new(), "the profile has no probe"),
        ("bulk", close.clone() + &close, ":11:6: a second `close` probe at `b`; join the two"),
        ("bulk", open.clone() + &probe("alloc", "c", ""), "the role `alloc` needs `granule`"),
        ("bulk", probe("realloc", "c", "size = \"arg1\""), "the role `realloc` needs `object`"),
        (
            "bulk",
            probe("realloc", "c", "object = \"arg0\"\nphase = \"entry\""),
            ":9:9: a realloc is evaluated at its return",
        ),
        ("bulk", probe("realloc", "usdt:p:n", "object = \"arg0\""), "a USDT probe has no return"),
        ("bulk", probe("destroy", "c", "granule = \"arg0\""), "this role takes instance, when"),
        ("bulk", probe("init", "c", "new_object = \"arg0\""), "`new_object` means nothing"),
    ] {
        let shown = refusal(&small(kind, &probes));
        assert!(shown.contains(says), "{kind}\n{probes}\n  is     {shown}\n  wanted {says}");
    }
    let nothing = small("bulk", &close).replace("{ symbols = \"s\" }", "{}");
    assert!(refusal(&nothing).contains(":4:9: `match` says nothing"), "{}", refusal(&nothing));
}

/// What can never be compiled is refused with the place of the expression.
#[test]
fn what_cannot_compile_is_refused_with_its_place() {
    let sum = vec!["arg0"; 80].join("+");
    let text = small("bulk", &probe("close", "b", &format!("granule = \"{sum}\"")));
    assert!(refusal(&text).starts_with("p.toml:8:11: the probe's expressions need more than 120"));
    // Names count as constants of their own, because nothing is known of the binary yet.
    let vars: Vec<_> = (0..25).map(|n| format!("var(\"s{n}\")*arg0")).collect();
    let text = small("bulk", &probe("close", "b", &format!("granule = '{}'", vars.join("+"))));
    let shown = refusal(&text);
    assert!(shown.starts_with("p.toml:8:11: the probe's expressions have more than 24"), "{shown}");
}

/// Files, lists and nesting beyond the bounds are refused, not worked on.
#[test]
fn hostile_files_are_bounded() {
    let text = "#".repeat(MAX_PROFILE_BYTES + 1);
    assert!(refusal(&text).starts_with("p.toml:1:1: the file has 262145 bytes; at most 262144"));
    let probes: String =
        (0..=MAX_PROBES).map(|n| probe("close", &format!("f{n}"), "granule = \"arg0\"")).collect();
    let shown = refusal(&small("bulk", &probes));
    assert!(shown.contains("65 probes; at most 64"), "{shown}");
    assert!(shown.starts_with(&format!("p.toml:{}:", 5 + 4 * MAX_PROBES)), "{shown}");
    let names = vec!["\"a\""; MAX_MATCHES + 1].join(",");
    let text = small("bulk", "").replace("\"s\"", &format!("[{names}]"));
    assert!(refusal(&text).contains("65 entries; expected 1 to 64"));
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        let deep = format!("x = {}1{}", open.repeat(20_000), close.repeat(20_000));
        assert!(refusal(&deep).starts_with("p.toml:1:"), "{open}");
    }
    let torn = "rules = [{ acbc\"]\n[select]\n".repeat(5000);
    assert!(refusal(&torn).contains("brackets nest too deep"));
    let deep = format!("{}x = 1", "a.".repeat(20_000));
    assert!(refusal(&deep).starts_with("p.toml:1:"));
    let long = small("bulk", &probe("close", &"s".repeat(5000), "granule = \"arg0\""));
    assert!(refusal(&long).contains("a symbol of 5000 bytes"));
}

/// A place inside a string is found behind escapes, line continuations and letters of several bytes.
#[test]
fn places_inside_strings() {
    for (raw, value) in [
        (r#""abcX""#, "abcX"),
        (r"'a\bX'", r"a\bX"),
        (r#""a\"b\\X""#, "a\"b\\X"),
        (r#""\u00e9\U0001F600X""#, "é😀X"),
        (r#""é😀X""#, "é😀X"),
        ("\"\"\"\nab\\\n   cX\"\"\"", "abcX"),
        ("\"\"\"ab\ncX\"\"\"", "ab\ncX"),
        ("'''\nab\ncX'''", "ab\ncX"),
    ] {
        let text = format!("key = {raw}\n");
        let parsed: toml::Table = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parsed["key"].as_str(), Some(value), "the case itself: {raw}");
        let source = Source::BuiltIn("x");
        let place = Text { text: &text, source: &source };
        let at = place.inside(&(6..6 + raw.len()), value.len() - 1);
        assert_eq!(&text[at..=at], "X", "{raw}");
    }
}

/// docs/profiles.md mentions every key that the parser knows, as the parser itself lists them.
#[test]
fn every_key_is_documented() {
    let docs = include_str!("../../../../docs/profiles.md");
    let mut keys = 0;
    for text in [
        "schema = 1\nunknown = 1",
        "schema = 1\n[match]\nunknown = 1",
        "schema = 1\n[granule]\nunknown = 1",
        "schema = 1\n[versions.new]\nunknown = 1",
        "schema = 1\n[not_measurable.new]\nunknown = 1",
        "schema = 1\n[[walk]]\nunknown = 1",
        "schema = 1\n[[probe]]\nunknown = 1",
    ] {
        let shown = refusal(text);
        let (_, known) = shown.split_once("; expected ").unwrap_or_else(|| panic!("{shown}"));
        for key in known.split('`').skip(1).step_by(2) {
            assert!(docs.contains(&format!("`{key}`")), "{key} is not in docs/profiles.md");
            keys += 1;
        }
    }
    assert_eq!(keys, 11 + 4 + 5 + 3 + 4 + 6 + 17);
    for word in Role::ALL.map(Role::name).iter().chain(&["drain", "bulk", "slab"]) {
        assert!(docs.contains(&format!("`{word}`")), "{word} is not in docs/profiles.md");
    }
}

/// docs/profiles.md lists the keys of a probe with the roles that use them, as the table of keys has it.
#[test]
fn documented_roles_of_keys() {
    let docs = include_str!("../../../../docs/profiles.md");
    let section = docs.split("\n### ").find(|section| section.starts_with("`[[probe]]`")).unwrap();
    let names = |roles: &[Role]| roles.iter().map(|role| role.name()).collect::<Vec<_>>();
    for key in Key::all() {
        let prefix = format!("- `{key}`");
        let line = section.lines().find_map(|line| line.strip_prefix(&prefix));
        let line = line.unwrap_or_else(|| panic!("no line for `{key}`"));
        let said = line.strip_prefix(" (").and_then(|line| line.split_once(')'));
        let (used, unused): (Vec<_>, Vec<_>) =
            Role::ALL.into_iter().partition(|role| key.is_used_by(*role));
        match said.map(|(roles, _)| roles.split(", at ").next().unwrap_or(roles)) {
            None => assert!(unused.is_empty(), "{key}"),
            Some(roles) if roles.starts_with("all but ") => {
                assert_eq!(roles, format!("all but {}", names(&unused).join(", ")), "{key}");
            }
            Some(roles) => assert_eq!(roles, names(&used).join(" "), "{key}"),
        }
    }
}

/// The profiles in the documentation are profiles.
#[test]
fn profiles_in_the_documentation_parse() {
    let docs = include_str!("../../../../docs/profiles.md");
    let examples: Vec<_> = docs.split("```toml\n").skip(1).collect();
    let whole = examples.iter().filter(|text| text.starts_with("schema"));
    let mut count = 0;
    for text in whole {
        let text = text.split("```").next().unwrap_or("");
        assert_eq!(refusal(text), "accepted", "{text}");
        count += 1;
    }
    assert!(count > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// A good profile with any few bytes replaced is accepted or refused with a place inside it.
    #[test]
    fn damaged_profiles_do_not_hurt(
        at in 0..GOOD.len(),
        length in 0usize..20,
        with in "[\\[\\]{}=\"'\\\\#.\n a-z0-9é()*]{0,12}",
    ) {
        prop_assume!(GOOD.is_char_boundary(at));
        let end = (at + length).min(GOOD.len());
        let text = format!("{}{with}{}", &GOOD[..at], &GOOD[end..]);
        if let Err(error) = read(&text) {
            prop_assert!(error.line <= text.matches('\n').count() + 1, "{}", error);
            let line = text.split('\n').nth(error.line - 1).unwrap_or("");
            prop_assert!(error.column <= line.chars().count() + 1, "{}", error);
        }
    }
}

/// Pages of granules: walks may stand inside one another there, and only the instance and the id are known.
#[test]
fn pages_of_granules() {
    let profile = |pages: &str| {
        let text = format!(
            "schema = 1\nname = \"p\"\nkind = \"bulk\"\n[match]\nsymbols = \"f\"\n[granule]\n{pages}\n\
             [[probe]]\nrole = \"open\"\nat = \"f\"\ngranule = \"arg0\"\n"
        );
        parse(&text, &Source::File("p.toml".into())).map_err(|error| error.to_string())
    };
    let nested =
        "pages = \"walk(arg0, it + 8, walk(*(u64)(it), *(u64)(it + arg1), it), end = arg0 + 64)\"";
    let pages = profile(&format!("{nested}\npage_bytes = 4096")).unwrap().granule_pages.unwrap();
    assert_eq!((pages.at.len(), pages.bytes), (1, 4096));
    for (pages, says) in [
        (nested, "`pages` without `page_bytes`"),
        ("page_bytes = 4096", "`page_bytes` without pages"),
        ("pages = \"ret\"\npage_bytes = 1", "only `arg0` (the instance)"),
        ("pages = \"arg2\"\npage_bytes = 1", "only `arg0` (the instance)"),
        ("pages = \"arg0\"\npage_bytes = 1\nbytes = 1", "`bytes` beside `pages`"),
    ] {
        let error = profile(pages).unwrap_err();
        assert!(error.contains(says), "{says}: {error}");
    }
}
