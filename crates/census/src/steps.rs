//! The next steps of a census: what would go back now, and which objects hold the rest.

use std::cmp::Reverse;

use crate::model::{Census, Heap, Step};

/// What is less than this, and less than a share of 1/16 of resident memory, is not worth a step.
const MIN_STEP_BYTES: u64 = 1 << 20;
const MIN_RSS_PART: u64 = 16;
/// Steps, at most.
const MAX_STEPS: usize = 5;
/// Heaps whose granules live by arenas, and whose objects no probe sees one by one.
const RUNTIMES: [&str; 3] = ["cpython", "ruby", "go"];

/// What to do, the most bytes first.
pub(crate) fn steps(census: &Census) -> Vec<Step> {
    let least = MIN_STEP_BYTES.max(census.rss_bytes / MIN_RSS_PART);
    let of_heap = |heap: &Heap| [free(heap), held(heap, least, census.pid)];
    let mut steps: Vec<Step> = census.heaps.iter().flat_map(of_heap).flatten().collect();
    steps.retain(|step| step.bytes >= least);
    steps.sort_by_key(|step| Reverse(step.bytes));
    steps.truncate(MAX_STEPS);
    steps
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// What would go back now.
fn free(heap: &Heap) -> Option<Step> {
    let bytes = heap.trimmable_bytes?;
    let text = format!(
        "{} are free, and malloc_trim(0) would give them back now: call it after a peak, or lower \
         MALLOC_ARENA_MAX or M_TRIM_THRESHOLD",
        mib(bytes)
    );
    Some(Step { bytes, text, command: None })
}

/// Which objects alone hold most that is not live.
fn held(heap: &Heap, least: u64, pid: u32) -> Option<Step> {
    let of_type = heap.types.iter().filter(|one| one.alone_bytes >= least + one.bytes);
    let of_class = heap.classes.iter().filter(|one| one.alone_bytes >= least + one.bytes);
    let of_type = of_type.max_by_key(|one| one.alone_bytes).map(|one| {
        (one.alone_bytes, format!("{} `{}` objects ({})", one.objects, one.name, mib(one.bytes)))
    });
    let of_class = of_class.max_by_key(|one| one.alone_bytes).map(|one| {
        let what =
            format!("{} objects of up to {} bytes ({})", one.objects, one.size, mib(one.bytes));
        (one.alone_bytes, what)
    });
    // A type says more than a size, unless it holds much less.
    let (bytes, what) = match (of_type, of_class) {
        (Some(named), Some(sized)) if named.0 < sized.0 / 2 => sized,
        (named, sized) => named.or(sized)?,
    };
    let is_runtime = RUNTIMES.contains(&heap.allocator.as_str());
    let (text, command) = if is_runtime {
        ("make what lives long before what lives short, or apart from it".to_owned(), None)
    } else {
        let command = format!("drainprof growth -p {pid} --view allocations --sample 1/64 -d 1m");
        ("find who makes them, and allocate them apart or earlier".to_owned(), Some(command))
    };
    let text = format!("{}: {what} alone hold {}: {text}", heap.allocator, mib(bytes));
    Some(Step { bytes, text, command })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Class, Type};

    fn heap(alone: u64, of_type: u64) -> Heap {
        let class = Class {
            size: 96,
            objects: 1310,
            bytes: 125_760,
            alone_bytes: alone,
            ..Class::default()
        };
        let session = Type {
            name: "Session".to_owned(),
            objects: 1310,
            bytes: 125_760,
            alone_bytes: of_type,
            ..Type::default()
        };
        Heap {
            allocator: "glibc".to_owned(),
            classes: vec![class],
            types: vec![session],
            trimmable_bytes: Some(30 << 20),
            ..Heap::default()
        }
    }

    /// The holder is the type where it holds about as much as its size, else the size; free memory is a step; what is
    /// little is none.
    #[test]
    fn holders() {
        let census =
            |heap| Census { pid: 7, rss_bytes: 100 << 20, heaps: vec![heap], ..Census::default() };
        let found = steps(&census(heap(42 << 20, 40 << 20)));
        assert!(
            found[0]
                .text
                .starts_with("glibc: 1310 `Session` objects (0.1 MiB) alone hold 40.0 MiB"),
            "{found:?}"
        );
        assert!(found[0].command.as_ref().is_some_and(|command| command.contains("-p 7")));
        assert!(found[1].text.starts_with("30.0 MiB are free"), "{found:?}");
        let found = steps(&census(heap(42 << 20, 8 << 20)));
        assert!(found[0].text.contains("1310 objects of up to 96 bytes"), "{found:?}");
        let little = Heap { trimmable_bytes: Some(4 << 20), ..heap(1 << 20, 0) };
        assert_eq!(steps(&census(little)), []);
    }
}
