//! Ages of granules in a few classes: of those that were closed their whole lives, of those that are open or retained
//! now how old they are.

use drainprof_report::Allocator;

/// Upper ends of the classes in seconds, and their names. What is older is in the last class.
const CLASSES: [(f64, &str); 9] = [
    (1e-6, "≤ 1 µs"),
    (1e-3, "≤ 1 ms"),
    (1e-2, "≤ 10 ms"),
    (1e-1, "≤ 100 ms"),
    (1.0, "≤ 1 s"),
    (60.0, "≤ 1 min"),
    (3_600.0, "≤ 1 h"),
    (86_400.0, "≤ 1 d"),
    (f64::INFINITY, "> 1 d"),
];

/// One class of ages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Its name.
    pub(super) name: &'static str,
    /// Granules that were closed at this age.
    pub(super) closed: u64,
    /// Listed open granules of this age.
    pub(super) open: u64,
    /// Listed retained granules that have been closed for so long.
    pub(super) retained: u64,
}

/// The classes in which there is anything, and those in between, the youngest first. Open granules from before the attach
/// have no known age: their class is the last one, `unknown`.
pub(super) fn ages(allocator: &Allocator) -> Vec<Class> {
    let mut classes = CLASSES.map(|(_, name)| Class { name, ..Class::default() });
    let mut unknown = Class { name: "unknown", ..Class::default() };
    let class = |seconds: f64| CLASSES.iter().position(|(end, _)| seconds <= *end);
    for bucket in &allocator.lifetimes.histogram {
        let at = class(bucket.le_seconds).map_or(&mut unknown, |index| &mut classes[index]);
        at.closed = at.closed.saturating_add(bucket.count);
    }
    for granule in &allocator.open_granules {
        let age = granule.age_seconds.and_then(class);
        age.map_or(&mut unknown, |index| &mut classes[index]).open += 1;
    }
    for granule in &allocator.pinned_granules {
        let age = granule.closed_for_seconds.and_then(class);
        age.map_or(&mut unknown, |index| &mut classes[index]).retained += 1;
    }
    let holds = |class: &Class| class.closed > 0 || class.open > 0 || class.retained > 0;
    let first = classes.iter().position(holds);
    let last = classes.iter().rposition(holds);
    let mut shown = match (first, last) {
        (Some(first), Some(last)) => classes[first..=last].to_vec(),
        _ => Vec::new(),
    };
    shown.extend(Some(unknown).filter(holds));
    shown
}

#[cfg(test)]
mod tests {
    use drainprof_report::Bucket;

    use super::*;
    use crate::ui::samples::{allocator, open, pinned};

    /// Every granule is in exactly one class; what has no known age is in a class of its own.
    #[test]
    fn classes() {
        let mut of = allocator("epoch");
        of.lifetimes.histogram = vec![
            Bucket { le_seconds: 0.000_9, count: 3 },
            Bucket { le_seconds: 0.01, count: 4 },
            Bucket { le_seconds: 1e9, count: 1 },
        ];
        of.open_granules = vec![open(Some(30.0)), open(None), open(Some(f64::NAN))];
        of.pinned_granules = vec![pinned(Some(7_200.0)), pinned(Some(7_200.0))];
        let got = ages(&of);
        let names: Vec<_> = got.iter().map(|class| class.name).collect();
        assert_eq!(
            names,
            [
                "≤ 1 ms",
                "≤ 10 ms",
                "≤ 100 ms",
                "≤ 1 s",
                "≤ 1 min",
                "≤ 1 h",
                "≤ 1 d",
                "> 1 d",
                "unknown"
            ]
        );
        let sums = got.iter().fold((0, 0, 0), |(closed, open, retained), class| {
            (closed + class.closed, open + class.open, retained + class.retained)
        });
        assert_eq!(sums, (8, 3, 2));
        assert_eq!((got[0].closed, got[1].closed, got[4].open, got[6].retained), (3, 4, 1, 2));
        assert_eq!(got[8], Class { name: "unknown", closed: 0, open: 2, retained: 0 });
        assert_eq!(ages(&allocator("empty")), []);
    }
}
