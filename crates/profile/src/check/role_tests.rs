//! Roles of granules that move or hand over: in which profiles they mean something.

use crate::{Source, parse};

fn refusal(kind: &str, granule: &str, probes: &str) -> String {
    let text = format!(
        "schema = 1\nname = \"pool\"\nkind = \"{kind}\"\n[match]\nsymbols = \"new\"\n{granule}\n[[probe]]\nrole = \"open\"\nat = \"new\"\n\
         granule = \"ret\"\n[[probe]]\nrole = \"close\"\nat = \"end\"\ngranule = \"arg0\"\n{probes}"
    );
    match parse(&text, &Source::File("p.toml".into())) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

const MIGRATE: &str = "[[probe]]\nrole = \"migrate\"\nat = \"delete\"\ngranule = \"arg0\"\n";
const MOVE: &str = "[[probe]]\nrole = \"move\"\nat = \"grow\"\ngranule = \"arg0\"\n";
const ALLOC: &str =
    "[[probe]]\nrole = \"alloc\"\nat = \"get\"\ngranule = \"arg0\"\nobject = \"ret\"\n";
const FREE: &str = "[[probe]]\nrole = \"free\"\nat = \"put\"\nobject = \"arg0\"\n";
const FREE_COUNTED: &str = "[[probe]]\nrole = \"free\"\nat = \"put\"\ngranule = \"arg1\"\n";

/// What hands its objects over must have them followed by id, what moves must have none, and what is nested must say in
/// what.
#[test]
fn roles_fit_the_profile() {
    for (kind, granule, probes, says) in [
        ("bulk", "", &[MIGRATE][..], "accepted"),
        ("bulk", "", &[MIGRATE, ALLOC, FREE], "accepted"),
        ("drain", "", &[MIGRATE, ALLOC, FREE], "accepted"),
        ("bulk", "", &[MIGRATE, ALLOC, FREE_COUNTED], "must be followed by id; give `object`"),
        ("slab", "", &[MIGRATE], "closed only once it is empty; there is nothing"),
        ("bulk", "", &[MOVE], "accepted"),
        ("bulk", "", &[MOVE, ALLOC, FREE], "a granule with objects cannot get another id"),
        ("bulk", "[granule]\nnested = true", &[], "`nested`, but no `open` probe names a `parent`"),
        ("bulk", "[granule]\nnested = false", &[], "accepted"),
    ] {
        let found = refusal(kind, granule, &probes.concat());
        assert!(
            found.contains(says),
            "{kind} {granule} {probes:?}:\n  is     {found}\n  wanted {says}"
        );
    }
}
