//! The draft's text.

use std::fmt::Write as _;

use super::{
    Request, Signature, Type,
    group::Group,
    roles::{Choice, Chosen},
    shown::clean,
    words::Deed,
};

/// Most functions and groups that comments list.
const MAX_LEFT_OUT: usize = 40;
const MAX_GROUPS: usize = 8;
/// Longest name of a profile.
const MAX_NAME: usize = 48;
/// Where the levels are reported, once they are known.
const LEVELS: &str = "@levels@";

/// A string of TOML.
fn string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

const fn role(deed: Deed) -> &'static str {
    match deed {
        Deed::Open => "open",
        Deed::Close => "close",
        Deed::Reset => "reset",
        Deed::Alloc => "alloc",
        Deed::Free => "free",
        Deed::Realloc => "realloc",
    }
}

/// A profile's name from what there is.
fn name(request: &Request<'_>, group: &Group<'_>) -> String {
    let from = request.name.or(request.prefix).unwrap_or(if group.title.contains("::") {
        &group.title
    } else {
        request.object
    });
    let from = from.split(".so").next().unwrap_or(from);
    let from = if request.name.is_none() { from.strip_prefix("lib").unwrap_or(from) } else { from };
    let mut made = String::new();
    for c in from.chars() {
        let c = c.to_ascii_lowercase();
        match c {
            'a'..='z' | '0'..='9' => made.push(c),
            _ if !made.is_empty() && !made.ends_with('-') => made.push('-'),
            _ => {}
        }
        if made.len() == MAX_NAME {
            break;
        }
    }
    let made = made.trim_matches('-');
    if made.is_empty() { "draft".to_owned() } else { made.to_owned() }
}

/// The text, with a place for the levels.
pub(super) fn text(
    request: &Request<'_>,
    group: &Group<'_>,
    choice: &Choice<'_>,
    others: &[Group<'_>],
) -> String {
    let mut text = String::new();
    head(&mut text, request, group, choice);
    let _ = writeln!(
        text,
        "\nschema  = 1\nname    = {}\nkind    = \"{}\"\nsummary = {}\n",
        string(&name(request, group)),
        request.kind.name(),
        string(&format!("{} in {} (draft)", clean(&group.title), clean(request.object)))
    );
    rule(&mut text, choice);
    for probe in &choice.probes {
        table(&mut text, probe);
    }
    tail(&mut text, request, choice, others);
    text
}

/// The levels that the draft offers, reported in its head.
pub(super) fn with_levels(text: &str, levels: &[&str]) -> String {
    text.replacen(LEVELS, &levels.join(", "), 1)
}

/// What a person finds first: what it is, and what to decide.
fn head(text: &mut String, request: &Request<'_>, group: &Group<'_>, choice: &Choice<'_>) {
    let _ =
        writeln!(text, "# DRAFT for {}, functions {}.", clean(request.object), clean(&group.title));
    let _ = writeln!(text, "#");
    match request.without_prototypes {
        None => {
            let _ = writeln!(
                text,
                "# Arguments are reported by the prototypes in its debug information."
            );
        }
        Some(why) => {
            let _ = writeln!(text, "# Arguments are GUESSED from names alone: {}.", clean(why));
        }
    }
    if let Some(granule) = &choice.granule {
        let _ = writeln!(text, "# A granule is a {}.", clean(granule));
    }
    let _ = writeln!(text, "# Levels that it offers: {LEVELS}.");
    text.push_str(
        "#\n\
         # TO DECIDE:\n\
         # 1. `kind`: \"bulk\" if the close frees every member (a pool, an arena that is freed whole);\n\
         #    \"drain\" if members can outlive the close (an epoch, a pool whose close waits for them);\n\
         #    \"slab\" if the allocator closes a granule only once it is empty. It decides what is reported.\n\
         # 2. `granule`: is that value the same at the open, at the close and at every alloc?\n\
         # 3. Wrappers: a function that calls another one of its role counts twice. Calls inside of\n\
         #    this object were looked for, those through pointers were not.\n\
         # 4. `when`: failed allocs, rejected frees and closes of nothing must not count.\n\
         # 5. Does the allocator keep a live count? `live` on the close gives the level `boundary`.\n\
         # Then: drainprof profile check FILE -p PID --for 5s\n",
    );
}

fn rule(text: &mut String, choice: &Choice<'_>) {
    let mut names: Vec<&str> = Vec::new();
    for deed in [Deed::Open, Deed::Close, Deed::Reset, Deed::Alloc] {
        if let Some(probe) = choice.probes.iter().find(|probe| probe.deed == deed) {
            names.push(&probe.function.at);
        }
    }
    let names: Vec<_> = names.into_iter().map(string).collect();
    let _ = writeln!(text, "[match]\nsymbols = [{}]", names.join(", "));
}

fn table(text: &mut String, probe: &Chosen<'_>) {
    let function = probe.function;
    let _ = write!(text, "\n# {}", clean(&function.shown));
    if let Some(signature) = &function.signature {
        let _ = write!(text, "{}", prototype(signature));
    }
    text.push('\n');
    for remark in &probe.remarks {
        let _ = writeln!(text, "# TO DECIDE: {remark}");
    }
    if !function.exported {
        text.push_str("# Not exported: a stripped build has no such name.\n");
    }
    let _ =
        writeln!(text, "[[probe]]\nrole = \"{}\"\nat = {}", role(probe.deed), string(&function.at));
    for (key, value) in &probe.keys {
        let _ = writeln!(text, "{key} = {}", string(value));
    }
    // Nothing is read where there may be no such word: a person adds it.
    if probe.deed == Deed::Close && !probe.keys.iter().any(|(key, _)| *key == "live") {
        text.push_str("# live = \"*(u32)(arg0 + 0x..)\"\n");
    }
}

fn prototype(signature: &Signature) -> String {
    let parameters: Vec<_> = signature
        .parameters
        .iter()
        .map(|parameter| format!("{} {}", shown(&parameter.kind), clean(&parameter.name)))
        .collect();
    let returns = signature.returns.as_ref().map_or_else(|| "void".to_owned(), shown);
    format!("({}) -> {returns}", parameters.join(", "))
}

fn shown(kind: &Type) -> String {
    let name = if kind.name.is_empty() { "void" } else { &kind.name };
    // A typedef may have the pointers in itself; what is behind them says more.
    format!("{}{}", clean(name), "*".repeat(usize::from(kind.pointers.min(4))))
}

/// What is not in it, and why.
fn tail(text: &mut String, request: &Request<'_>, choice: &Choice<'_>, others: &[Group<'_>]) {
    if !choice.left_out.is_empty() {
        text.push_str("\n# Left out:\n");
        for (function, why) in choice.left_out.iter().take(MAX_LEFT_OUT) {
            let _ = writeln!(text, "# - {}: {}", clean(&function.symbol), clean(why));
        }
        let more = choice.left_out.len().saturating_sub(MAX_LEFT_OUT);
        if more > 0 {
            let _ = writeln!(text, "# - and {more} more");
        }
    }
    if !request.inlined_only.is_empty() {
        text.push_str("\n# Inlined everywhere, so there is nothing to probe:\n");
        for name in request.inlined_only.iter().take(MAX_LEFT_OUT) {
            let _ = writeln!(text, "# - {}", clean(name));
        }
    }
    let whole: Vec<_> = others.iter().filter(|group| group.is_whole()).take(MAX_GROUPS).collect();
    if !whole.is_empty() {
        text.push_str(
            "\n# Other functions that open and close something (--prefix chooses them):\n",
        );
        for group in whole {
            let names: Vec<_> = group
                .candidates
                .iter()
                .take(6)
                .map(|candidate| clean(&candidate.function.shown))
                .collect();
            let _ = writeln!(text, "# - {}: {}", clean(&group.title), names.join(", "));
        }
    }
}
