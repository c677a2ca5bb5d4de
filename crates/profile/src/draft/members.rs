//! What a granule's own counters say: its live objects, and the bytes that it holds.
//!
//! Names are a guess. `observe` proves them on the process; a person decides.

/// An integer in a granule's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The record, as its functions' prototypes name it.
    pub of: String,
    /// The record as `offsetof` takes it: with its namespace.
    pub path: String,
    /// Its name; hostile.
    pub name: String,
    /// Its size in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
}

/// Names of counts of live objects, the likeliest first. Whole names, or their last or first words.
const LIVE: &[&str] = &[
    "live",
    "outstanding",
    "inuse",
    "in_use",
    "active",
    "refs",
    "refcount",
    "refcnt",
    "ref_count",
    "ref_cnt",
    "nrefs",
    "references",
    "objects",
    "nobjects",
];
/// Names of sums of bytes that a granule holds.
const BYTES: &[&str] = &[
    "bytes",
    "capacity",
    "reserved",
    "committed",
    "mapped",
    "total_size",
    "total_bytes",
    "block_size",
    "size",
];
/// With one of these words it is something else.
const OTHERS: &[&str] = &["max", "peak", "total_allocs", "freed", "next", "min", "used", "free"];

/// The member that is most likely a count of live objects.
pub(super) fn live<'m>(members: &'m [Member], of: &str) -> Option<&'m Member> {
    likeliest(members, of, LIVE, 2)
}

/// The member that is most likely the number of bytes that a granule holds.
pub(super) fn bytes<'m>(members: &'m [Member], of: &str) -> Option<&'m Member> {
    likeliest(members, of, BYTES, 4)
}

fn likeliest<'m>(
    members: &'m [Member],
    of: &str,
    names: &[&str],
    least_bytes: u8,
) -> Option<&'m Member> {
    let is_word = |name: &str, known: &str| {
        name == known
            || name.strip_suffix(known).is_some_and(|rest| rest.ends_with('_'))
            || name.strip_prefix(known).is_some_and(|rest| rest.starts_with('_'))
    };
    let fits = |member: &&Member, known: &str| {
        let name = member.name.trim_matches('_').to_ascii_lowercase();
        let other = name.split('_').any(|word| OTHERS.contains(&word));
        member.of == of && member.bytes >= least_bytes && !other && is_word(&name, known)
    };
    // Only what an expression can name.
    let plain = |member: &&Member| {
        member.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    names.iter().find_map(|known| members.iter().filter(plain).find(|member| fits(member, known)))
}

impl Member {
    /// The expression that reads it from a granule.
    pub(super) fn read(&self, granule: &str) -> String {
        let bits = 8 * u32::from(self.bytes);
        format!("*(u{bits})({granule} + offsetof({}, {}))", self.path, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, bytes: u8) -> Member {
        Member { of: "arena".into(), path: "ns::arena".into(), name: name.into(), bytes }
    }

    /// The likeliest name wins, words count, and what is too small, of another type or something else is passed over.
    #[test]
    fn names() {
        let found = |names: &[(&str, u8)]| {
            let members: Vec<Member> =
                names.iter().map(|(name, bytes)| member(name, *bytes)).collect();
            let name = |found: Option<&Member>| found.map(|found| found.name.clone());
            (name(live(&members, "arena")), name(bytes(&members, "arena")))
        };
        let both = found(&[("refs_", 4), ("live", 8), ("used", 8), ("capacity", 8), ("size", 8)]);
        assert_eq!(both, (Some("live".into()), Some("capacity".into())));
        assert_eq!(found(&[("n_live", 4), ("live_max", 8)]), (Some("n_live".into()), None));
        assert_eq!(
            found(&[("alive", 4), ("live", 1), ("size", 2), ("peak_bytes", 8)]),
            (None, None)
        );
        assert_eq!(live(&[member("live", 8)], "other"), None);
        assert_eq!(live(&[member("live(x)", 8)], "arena"), None);
        assert_eq!(member("live", 4).read("arg0"), "*(u32)(arg0 + offsetof(ns::arena, live))");
    }
}
