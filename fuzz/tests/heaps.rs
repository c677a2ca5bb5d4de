//! What readers make of the seeds of `heaps`: a whole world is read wholly by its reader, an attack does what its name
//! says, at a cost that is linear in its size. A seed that shows nothing any more fails.

use std::{fs, path::Path};

use drainprof_census::testing::Walked;
use drainprof_fuzz::targets::heaps::{SEEDS, walk};

/// Readers of heaps whose seeds begin with their names, and hold one heap.
const READERS: [&str; 8] =
    ["cpython", "glibc", "go", "jemalloc", "mimalloc", "musl", "ruby", "tcmalloc"];
/// Readers of contexts and pools.
const CONTEXTS: [&str; 3] = ["apr", "nginx", "postgres"];

type Check = fn(&Walked) -> bool;

/// What other seeds must lead to, by how their names begin.
const OTHERS: [(&str, Check); 15] = [
    ("broken", |walked| unknown(walked) > 0),
    ("circle-arenas", |walked| is_told(walked) && live(walked) > 0),
    // Bins are not followed.
    ("circle-bin", is_whole),
    ("circle", |walked| is_told(walked) && unknown(walked) > 0),
    ("extents", |walked| is_told(walked) && live(walked) > 0),
    // What fuzzing has found: panics, and reads without end.
    ("found", |walked| !walked.heaps.is_empty()),
    ("huge", |walked| is_told(walked) && is_whole(walked)),
    ("large-file", is_whole),
    ("more-free-than-regions", |walked| is_told(walked) && unknown(walked) > 0),
    ("parts-repeated", is_told),
    // An arena whose `top` makes no sense is none.
    ("refused", |walked| !walked.is_any()),
    // Where holes cost time, it is not looked at.
    ("reservation-slow", |walked| is_told(walked) && is_whole(walked)),
    ("reservation", is_whole),
    ("stacks", |walked| walked.stack_bytes > 0),
    ("torn", |walked| is_told(walked) && unknown(walked) > 0 && live(walked) > 0),
];

fn live(walked: &Walked) -> u64 {
    walked.heaps.iter().map(|heap| heap.live_objects).sum()
}

fn unknown(walked: &Walked) -> u64 {
    walked.heaps.iter().map(|heap| heap.unknown_bytes).sum()
}

fn is_told(walked: &Walked) -> bool {
    !walked.notes.is_empty()
}

fn is_whole(walked: &Walked) -> bool {
    live(walked) > 0 && unknown(walked) == 0
}

/// Each seed is one of a reader, or of what is about all of them, and each of these has some.
#[test]
fn seeds_have_readers() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/heaps");
    let entries = fs::read_dir(directory).expect("there are seeds");
    let names: Vec<String> = entries
        .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    let begins = |name: &str, seed: &str| {
        let rest = name.strip_prefix("refused-").unwrap_or(name).strip_prefix(seed);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    for name in &names {
        let of = SEEDS.iter().filter(|(_, seeds)| seeds.iter().any(|seed| begins(name, seed)));
        assert_eq!(of.count(), 1, "{name}");
    }
    for (_, seed) in
        SEEDS.iter().flat_map(|(reader, seeds)| seeds.iter().map(move |one| (reader, one)))
    {
        assert!(names.iter().any(|name| begins(name, seed)), "{seed}");
    }
}

/// Each seed, by its name.
#[test]
fn seeds_show_what_they_are_for() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/heaps");
    let entries = fs::read_dir(directory).expect("there are seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    let (mut wrong, mut seen) = (Vec::new(), Vec::new());
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let walked = walk(&fs::read_to_string(&path).expect("it can be read"));
        let family = name.split('-').next().unwrap_or_default().to_owned();
        let is_right = if READERS.contains(&family.as_str()) {
            let is_one = matches!(walked.heaps.as_slice(), [heap] if heap.allocator == family);
            is_one && is_whole(&walked)
        } else if CONTEXTS.contains(&family.as_str()) {
            let with_free = walked.contexts.iter().filter(|one| one.free_bytes.is_some()).count();
            with_free >= 3
        } else if family == "unlisted" {
            live(&walked) > 0 && unknown(&walked) > 0
        } else {
            OTHERS
                .iter()
                .find(|(begin, _)| name.starts_with(begin))
                .is_some_and(|(_, is_right)| is_right(&walked))
        };
        seen.push(family);
        if !is_right {
            wrong.push(format!("{name}: {walked:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let all = READERS.iter().chain(&CONTEXTS).copied();
    let missing: Vec<_> = all.filter(|reader| !seen.iter().any(|one| one == reader)).collect();
    assert!(missing.is_empty(), "{missing:?} have no seed");
}
