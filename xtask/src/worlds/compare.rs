//! Compares a census with what the program says of itself.
//!
//! A census is JSON, as drainprof prints it; the truth is JSON, as the program prints it. Whatever the case compares,
//! nothing of the heap may be unknown, and most of resident memory must have been read.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The part of resident memory that must have been read.
const MIN_READ_PERCENT: u64 = 75;

/// One number, or one table, of both.
pub(super) struct Check {
    /// The key in the truth.
    pub(super) truth: &'static str,
    pub(super) figure: Figure,
    pub(super) slack: Slack,
}

/// What of a census is compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum Figure {
    /// The sum of these fields of the heap.
    Sum(&'static [&'static str]),
    /// How many arenas the heap has.
    Arenas,
    /// Live objects by size class.
    Classes,
    /// The same, of the classes that the truth lists.
    ListedClasses,
    /// The same, each size rounded up to one that the truth lists: from 5.3.1 on jemalloc rounds large objects to pages,
    /// and counts them by class all the same.
    RoundedClasses,
    /// Granules by size class.
    Granules,
    /// Live objects of the types that the truth lists.
    Types,
    /// Bytes of the objects of one type.
    Type(&'static str),
    /// Contexts of the names that the truth lists.
    Contexts,
    /// The sum of one field over all contexts.
    ContextSum(&'static str),
}

/// By how much a census may differ.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slack {
    Exact,
    /// In either direction; of a table, over all its rows.
    Off(u64),
    /// The census may have so many more.
    More(u64),
    /// The census may have so many fewer.
    Fewer(u64),
    Percent(u64),
}

impl Slack {
    fn allows(self, truth: u64, missing: u64, extra: u64) -> bool {
        match self {
            Self::Exact => missing + extra == 0,
            Self::Off(most) => missing + extra <= most,
            Self::More(most) => missing == 0 && extra <= most,
            Self::Fewer(most) => extra == 0 && missing <= most,
            Self::Percent(percent) => (missing + extra) * 100 <= truth * percent,
        }
    }
}

/// What one check has found.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) what: String,
    pub(super) truth: u64,
    pub(super) census: u64,
    /// What is missing and what is too much, over the rows of a table.
    pub(super) apart: (u64, u64),
    pub(super) holds: bool,
    /// Rows of a table that differ, some of them.
    pub(super) rows: Vec<String>,
}

/// Rows that differ and are named, at most.
const MAX_NAMED_ROWS: usize = 6;

impl Outcome {
    /// Compares one number.
    pub(super) fn number(what: &str, truth: u64, census: u64, slack: Slack) -> Self {
        let apart = (truth.saturating_sub(census), census.saturating_sub(truth));
        let holds = slack.allows(truth, apart.0, apart.1);
        Self { what: what.to_owned(), truth, census, apart, holds, rows: Vec::new() }
    }

    /// Something without which nothing can be compared.
    fn missing(what: String) -> Self {
        Self { what, truth: 1, census: 0, apart: (1, 0), holds: false, rows: Vec::new() }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "what": self.what, "truth": self.truth, "census": self.census,
            "missing": self.apart.0, "extra": self.apart.1, "holds": self.holds, "rows": self.rows,
        })
    }

    /// One line.
    pub(super) fn text(&self) -> String {
        let Self { what, truth, census, apart: (missing, extra), holds, rows } = self;
        let wrong = if rows.is_empty() { String::new() } else { format!(": {}", rows.join(", ")) };
        let sign = if *holds { String::new() } else { format!(" WRONG{wrong}") };
        let apart =
            if missing + extra == 0 { String::new() } else { format!(" (-{missing} +{extra})") };
        format!("{what} {truth}, census {census}{apart}{sign}")
    }
}

/// All checks of a case, and those of all cases.
pub(super) fn compare(checks: &[Check], heap: &str, truth: &Value, census: &Value) -> Vec<Outcome> {
    let Some(own) = heap_of(census, heap) else {
        return vec![Outcome::missing(format!("a heap of {heap}"))];
    };
    let mut outcomes: Vec<_> = checks.iter().map(|check| check.judge(truth, own, census)).collect();
    let unknown = own["unknown_bytes"].as_u64().unwrap_or(u64::MAX);
    outcomes.push(Outcome::number("unknown bytes", 0, unknown, Slack::Exact));
    let percent = read_percent(census);
    let what = "percent of resident memory read, at least".to_owned();
    let holds = percent >= MIN_READ_PERCENT;
    outcomes.push(Outcome {
        what,
        truth: MIN_READ_PERCENT,
        census: percent,
        apart: (0, 0),
        holds,
        rows: Vec::new(),
    });
    outcomes
}

/// Whether an answer calls memory healthy of which too little was read.
pub(super) fn is_blind(answer: &str, census: &Value) -> bool {
    answer == "healthy" && read_percent(census) < MIN_READ_PERCENT
}

/// The heap of an allocator in a census.
pub(super) fn heap_of<'a>(census: &'a Value, heap: &str) -> Option<&'a Value> {
    census["heaps"].as_array()?.iter().find(|own| own["allocator"] == heap)
}

/// How much of resident memory is no unclaimed anonymous memory and no unknown part of a heap, rounded down.
pub(super) fn read_percent(census: &Value) -> u64 {
    let parts = rows(census, "parts").iter();
    let is_unread = |part: &&Value| part["kind"] == "anonymous" || part["kind"] == "heap_unknown";
    let unread: u64 = parts.filter(is_unread).filter_map(|part| part["bytes"].as_u64()).sum();
    let resident = census["rss_bytes"].as_u64().unwrap_or_default().max(1);
    let parted: u64 = rows(census, "parts").iter().filter_map(|part| part["bytes"].as_u64()).sum();
    // Without parts nothing was read.
    if parted == 0 { 0 } else { resident.saturating_sub(unread) * 100 / resident }
}

impl Check {
    fn judge(&self, truth: &Value, heap: &Value, census: &Value) -> Outcome {
        let truth = &truth[self.truth];
        if truth.is_null() {
            return Outcome::missing(format!("{} in the truth", self.truth));
        }
        let number = |found: u64| {
            Outcome::number(self.truth, truth.as_u64().unwrap_or_default(), found, self.slack)
        };
        let field = |value: &Value, key: &str| value[key].as_u64().unwrap_or_default();
        match self.figure {
            Figure::Sum(keys) => number(keys.iter().map(|key| field(heap, key)).sum()),
            Figure::Arenas => number(rows(heap, "arenas").len() as u64),
            Figure::Type(name) => {
                let own = rows(heap, "types").iter().find(|row| row["name"] == name);
                number(own.map_or(0, |row| field(row, "bytes")))
            }
            Figure::ContextSum(key) => {
                number(rows(census, "contexts").iter().map(|row| field(row, key)).sum())
            }
            Figure::Classes => self.table(truth, table(heap, "classes", "size", "objects"), false),
            Figure::ListedClasses => {
                self.table(truth, table(heap, "classes", "size", "objects"), true)
            }
            Figure::RoundedClasses => {
                let own = table(heap, "classes", "size", "objects");
                self.table(truth, rounded(own, truth), false)
            }
            Figure::Granules => {
                self.table(truth, table(heap, "classes", "size", "granules"), false)
            }
            Figure::Types => self.table(truth, table(heap, "types", "name", "objects"), true),
            Figure::Contexts => self.table(truth, table(census, "contexts", "name", ""), true),
        }
    }

    /// Compares row by row; with `listed`, only those that the truth has.
    fn table(&self, truth: &Value, mut found: BTreeMap<String, u64>, listed: bool) -> Outcome {
        let wanted: BTreeMap<String, u64> = truth
            .as_object()
            .map(|rows| {
                rows.iter().map(|(key, own)| (key.clone(), own.as_u64().unwrap_or(0))).collect()
            })
            .unwrap_or_default();
        if listed {
            found.retain(|key, _| wanted.contains_key(key));
        }
        let side = |from: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| -> u64 {
            let of = |key: &String| other.get(key).copied().unwrap_or_default();
            from.iter().map(|(key, own)| own.saturating_sub(of(key))).sum()
        };
        let apart = (side(&wanted, &found), side(&found, &wanted));
        let (own, census) = (wanted.values().sum(), found.values().sum());
        let holds = self.slack.allows(own, apart.0, apart.1) && own > 0;
        let keys: BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
        let of = |rows: &BTreeMap<String, u64>, key| rows.get(key).copied().unwrap_or_default();
        let differ = keys.into_iter().filter(|key| of(&wanted, *key) != of(&found, *key));
        let rows =
            differ.map(|key| format!("{key}: {}, not {}", of(&found, key), of(&wanted, key)));
        let rows = rows.take(MAX_NAMED_ROWS).collect();
        Outcome { what: self.truth.to_owned(), truth: own, census, apart, holds, rows }
    }
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The rows of a table by their names, without those of nothing; without a number's key, how many rows have the name.
fn table(value: &Value, rows_key: &str, name: &str, number: &str) -> BTreeMap<String, u64> {
    let mut table = BTreeMap::new();
    for row in rows(value, rows_key) {
        let key = row[name].as_str().map_or_else(|| row[name].to_string(), str::to_owned);
        let own = if number.is_empty() { 1 } else { row[number].as_u64().unwrap_or_default() };
        if own > 0 {
            *table.entry(key).or_default() += own;
        }
    }
    table
}

/// Sizes of the census as those of the truth; what is larger than any of these stays.
fn rounded(found: BTreeMap<String, u64>, truth: &Value) -> BTreeMap<String, u64> {
    let listed = truth.as_object().into_iter().flatten();
    let listed: BTreeSet<u64> = listed.filter_map(|(key, _)| key.parse().ok()).collect();
    let mut sums = BTreeMap::new();
    for (key, objects) in found {
        let size = key.parse().ok().and_then(|size: u64| listed.range(size..).next());
        *sums.entry(size.map_or(key, u64::to_string)).or_default() += objects;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(figure: Figure, slack: Slack, truth: &Value) -> Vec<bool> {
        let census = json!({
            "rss_bytes": 1000,
            "parts": [{"kind": "anonymous", "bytes": 250}, {"kind": "file", "bytes": 750}],
            "contexts": [{"name": "a", "blocks": 2}, {"name": "a", "blocks": 3}],
            "heaps": [{
                "allocator": "x", "live_bytes": 90, "cached_bytes": 10, "unknown_bytes": 0,
                "classes": [{"size": 16, "objects": 7}, {"size": 32, "objects": 0}, {"size": 64, "objects": 1}],
            }],
        });
        let check = Check { truth: "own", figure, slack };
        let outcomes = compare(&[check], "x", &json!({ "own": truth }), &census);
        outcomes.iter().map(|outcome| outcome.holds).collect()
    }

    /// Numbers, within each kind of slack; what is not unknown and read by three quarters passes beside them.
    #[test]
    fn numbers() {
        let sum = Figure::Sum(&["live_bytes", "cached_bytes"]);
        for (slack, lowest, highest) in [
            (Slack::Exact, 100, 100),
            (Slack::Off(3), 97, 103),
            (Slack::More(3), 97, 100),
            (Slack::Fewer(3), 100, 103),
            (Slack::Percent(5), 96, 105),
        ] {
            for truth in 90..=110 {
                let holds = (lowest..=highest).contains(&truth);
                let all = judged(sum, slack, &json!(truth));
                assert_eq!(all, [holds, true, true], "{slack:?} {truth}");
            }
        }
    }

    /// Tables row by row: a sum that is right over rows that are not is wrong; what is not listed is left out if asked.
    #[test]
    fn tables() {
        let classes = |slack, truth: &_| judged(Figure::Classes, slack, truth)[0];
        assert!(classes(Slack::Exact, &json!({"16": 7, "64": 1})));
        assert!(!classes(Slack::Exact, &json!({"16": 6, "64": 2})));
        assert!(
            !classes(Slack::Exact, &json!({"16": 7})) && classes(Slack::More(1), &json!({"16": 7}))
        );
        assert!(judged(Figure::ListedClasses, Slack::Exact, &json!({"16": 7}))[0]);
        let rounded = |truth: &_| judged(Figure::RoundedClasses, Slack::Exact, truth)[0];
        assert!(rounded(&json!({"16": 7, "80": 1})) && !rounded(&json!({"16": 7, "48": 1})));
        assert!(judged(Figure::Contexts, Slack::Exact, &json!({"a": 2}))[0]);
        assert!(judged(Figure::ContextSum("blocks"), Slack::Exact, &json!(5))[0]);
        // A truth that says nothing proves nothing.
        assert!(!judged(Figure::ListedClasses, Slack::Exact, &json!({}))[0]);
        assert!(!judged(Figure::Classes, Slack::Exact, &json!(null))[0]);
    }

    /// Healthy is only what was read, by three quarters at least.
    #[test]
    fn blind_answers() {
        for (unread, is_read) in [(250, true), (251, false)] {
            let parts = json!([{"kind": "heap_unknown", "bytes": 50},
                               {"kind": "anonymous", "bytes": unread - 50}, {"kind": "file", "bytes": 500}]);
            let census = json!({"rss_bytes": 1000, "parts": parts});
            assert_eq!(is_blind("healthy", &census), !is_read);
            assert!(!is_blind("idle", &census) && !is_blind("unknown", &census));
        }
        // Without parts nothing was read.
        assert!(is_blind("healthy", &json!({"rss_bytes": 1000, "parts": []})));
    }

    /// A heap that is not found fails whatever is compared.
    #[test]
    fn missing_heap() {
        let outcomes = compare(&[], "x", &json!({}), &json!({"heaps": []}));
        assert!(outcomes.len() == 1 && !outcomes[0].holds);
    }
}
