//! The cases: which program runs in which worlds, and what of its census is compared with what it says of itself.

use super::case::{Case, Program};
use super::compare::{Check, Figure, Slack};
use super::world::World;
use super::{mariadb, servers};

const ROOTS: &[World] = &[World::Bookworm, World::Trixie, World::Sid];
const EACH: &[World] = &[World::Host, World::Bookworm, World::Trixie, World::Sid];
const HOST: &[World] = &[World::Host];

/// glibc counts what describes a thread's arena as in use: `heap_info` and `malloc_state`, at most so many bytes.
const ARENA: u64 = 2304;

const fn check(truth: &'static str, figure: Figure, slack: Slack) -> Check {
    Check { truth, figure, slack }
}

/// `mallinfo2`, with so many arenas of threads.
const fn glibc(threads: u64) -> [Check; 4] {
    let used = Figure::Sum(&["live_bytes", "cached_bytes"]);
    let used_slack = if threads == 0 { Slack::Exact } else { Slack::Fewer(threads * ARENA) };
    [
        check("used", used, used_slack),
        check("free", Figure::Sum(&["free_bytes"]), Slack::Exact),
        check("alone", Figure::Sum(&["mapped_alone_bytes"]), Slack::Exact),
        check("arenas", Figure::Arenas, Slack::Exact),
    ]
}

const GLIBC: &[Check] = &glibc(0);
const GLIBC_THREADS: &[Check] = &glibc(3);
const GLIBC_FULL: &[Check] = &glibc(4);
const JEMALLOC: &[Check] = &[check("classes", Figure::RoundedClasses, Slack::Exact)];
/// What the libraries of the program hold beside it.
const HELD: &[Check] = &[check("classes", Figure::Classes, Slack::More(64))];
const TCMALLOC: &[Check] = &[
    check("not_free", Figure::Sum(&["live_bytes", "cached_bytes"]), Slack::Percent(1)),
    // By class, what caches keep counts as live.
    check("classes", Figure::Classes, Slack::More(u64::MAX)),
];
const OBJECTS: &[Check] = &[check("held", Figure::Sum(&["live_objects"]), Slack::More(64))];
const CPYTHON: &[Check] = &[
    check("classes", Figure::Classes, Slack::Off(8)),
    check("pools", Figure::Granules, Slack::Off(1)),
    check("types", Figure::Types, Slack::Exact),
];
const RUBY: &[Check] = &[check("live", Figure::Sum(&["live_objects"]), Slack::Off(64))];
/// Threads that the runtime starts after the count have their descriptions in the heap, and take stacks.
const GO: &[Check] = &[
    check("classes", Figure::ListedClasses, Slack::More(16)),
    check("stacks", Figure::Type("(goroutine stacks)"), Slack::Percent(10)),
];
const REDIS: &[Check] = &[check("classes", Figure::RoundedClasses, Slack::Off(8))];
/// Its threads never all sleep; each thread's arena has a description that glibc counts as in use.
const MARIADB: &[Check] = &[
    check("used", Figure::Sum(&["live_bytes", "cached_bytes"]), Slack::Percent(1)),
    check("alone", Figure::Sum(&["mapped_alone_bytes"]), Slack::Percent(1)),
];
const POOLS: &[Check] = &[check("contexts", Figure::Contexts, Slack::Exact)];
const CONTEXTS: &[Check] = &[
    check("total", Figure::ContextSum("total_bytes"), Slack::Exact),
    check("blocks", Figure::ContextSum("blocks"), Slack::Exact),
    check("free", Figure::ContextSum("free_bytes"), Slack::Exact),
];

/// A case whose other fields are those of one thread of glibc's.
const USUAL: Case = Case {
    name: "glibc",
    worlds: EACH,
    quick: true,
    program: Program::Heap { arguments: &["1"], preload: None, environment: &[] },
    heap: "glibc",
    checks: GLIBC,
    trims: true,
    answer: Some("idle"),
};

/// A library that is preloaded into the program with four threads.
const fn preloaded(name: &'static str, prefix: &'static str, checks: &'static [Check]) -> Case {
    let program = Program::Heap { arguments: &["4"], preload: Some(prefix), environment: &[] };
    Case { name, heap: name, program, checks, trims: false, answer: None, ..USUAL }
}

const fn alone(
    name: &'static str,
    compiler: &'static [&'static str],
    threads: &'static str,
    checks: &'static [Check],
) -> Case {
    let program = Program::Alone { compiler, threads, package: None };
    Case { name, worlds: ROOTS, quick: false, program, checks, ..USUAL }
}

const fn go(name: &'static str, version: Option<&'static str>) -> Case {
    let worlds = if version.is_some() { HOST } else { ROOTS };
    let program = Program::Go { version, environment: &[] };
    Case { name, worlds, quick: false, program, heap: "go", checks: GO, trims: false, answer: None }
}

/// A profile on a library of an allocator. Only its probes are compared.
const fn profile(
    name: &'static str,
    library: &'static str,
    profile: &'static str,
    preload: &'static str,
    packages: &'static [&'static str],
) -> Case {
    let program = Program::Profile { profile, preload, library, packages };
    Case { name, quick: false, heap: "", program, checks: &[], trims: false, answer: None, ..USUAL }
}

const fn python(name: &'static str, interpreter: &'static str, worlds: &'static [World]) -> Case {
    let program = Program::Script { interpreter, script: "objects.py", environment: &[] };
    Case {
        name,
        worlds,
        program,
        heap: "cpython",
        checks: CPYTHON,
        trims: false,
        answer: None,
        ..USUAL
    }
}

/// All cases.
pub(super) const CASES: &[Case] = &[
    USUAL,
    Case {
        name: "glibc-threads",
        quick: false,
        program: Program::Heap { arguments: &["4"], preload: None, environment: &[] },
        checks: GLIBC_THREADS,
        ..USUAL
    },
    // Most is live, in main's arena; what could be given back is in those of threads.
    Case {
        name: "glibc-full",
        program: Program::Heap {
            arguments: &["5", "11000", "full"],
            preload: None,
            environment: &[],
        },
        checks: GLIBC_FULL,
        ..USUAL
    },
    Case {
        name: "glibc-huge-pages",
        quick: false,
        program: Program::Heap {
            arguments: &["4"],
            preload: None,
            environment: &["GLIBC_TUNABLES=glibc.malloc.hugetlb=1"],
        },
        checks: GLIBC_THREADS,
        ..USUAL
    },
    alone("glibc-static", &["gcc", "-static", "-DALONE"], "4", GLIBC_THREADS),
    Case {
        program: Program::Alone {
            compiler: &["musl-gcc", "-DALONE"],
            threads: "4",
            package: Some("musl"),
        },
        heap: "musl",
        trims: false,
        answer: None,
        ..alone("musl", &[], "4", OBJECTS)
    },
    preloaded("jemalloc", "libjemalloc.so.", JEMALLOC),
    preloaded("mimalloc", "libmimalloc.so.", HELD),
    preloaded("tcmalloc", "libtcmalloc_minimal.so.", TCMALLOC),
    python("cpython", "/usr/bin/python3", ROOTS),
    python("cpython-3.11", "/usr/bin/python3.11", HOST),
    Case {
        quick: false,
        program: Program::Script {
            interpreter: "/usr/bin/ruby",
            script: "slots.rb",
            environment: &[],
        },
        heap: "ruby",
        checks: RUBY,
        trims: false,
        answer: None,
        name: "ruby",
        ..USUAL
    },
    Case { quick: true, ..go("go-1.27", Some("1.27.3")) },
    go("go-1.26", Some("1.26.6")),
    Case {
        program: Program::Go {
            version: Some("1.26.6"),
            environment: &["GOEXPERIMENT=norandomizedheapbase64,nogreenteagc"],
        },
        ..go("go-1.26-plain", Some("1.26.6"))
    },
    Case {
        program: Program::Go {
            version: Some("1.26.6"),
            environment: &["GOEXPERIMENT=norandomizedheapbase64"],
        },
        ..go("go-1.26-fixed", Some("1.26.6"))
    },
    go("go-1.25", Some("1.25.5")),
    go("go-1.24", Some("1.24.11")),
    go("go-1.21", Some("1.21.13")),
    go("go", None),
    Case {
        program: Program::Server { program: "/usr/bin/redis-server", start: servers::redis },
        heap: "jemalloc",
        checks: REDIS,
        trims: false,
        answer: None,
        name: "redis",
        ..USUAL
    },
    Case {
        program: Program::Server { program: "/usr/sbin/nginx", start: servers::nginx },
        checks: POOLS,
        trims: false,
        answer: None,
        name: "nginx",
        ..USUAL
    },
    Case {
        quick: false,
        worlds: EACH,
        program: Program::Server { program: "/usr/lib/postgresql", start: servers::postgresql },
        checks: CONTEXTS,
        trims: false,
        answer: None,
        name: "postgresql",
        ..USUAL
    },
    Case {
        quick: false,
        worlds: ROOTS,
        program: Program::Server { program: "/usr/sbin/mariadbd", start: mariadb::mariadb },
        checks: MARIADB,
        trims: false,
        answer: None,
        name: "mariadb",
        ..USUAL
    },
    profile(
        "profile-jemalloc",
        "jemalloc",
        "malloc-jemalloc",
        "libjemalloc.so.",
        &["libjemalloc2"],
    ),
    profile(
        "profile-mimalloc",
        "mimalloc",
        "malloc-mimalloc",
        "libmimalloc.so.",
        &["libmimalloc3", "libmimalloc2.0"],
    ),
    profile(
        "profile-tcmalloc",
        "gperftools",
        "malloc-tcmalloc",
        "libtcmalloc_minimal.so.",
        &["libtcmalloc-minimal4t64", "libtcmalloc-minimal4"],
    ),
    Case {
        name: "profile-bind",
        quick: false,
        program: Program::Bind,
        heap: "",
        checks: &[],
        trims: false,
        answer: None,
        ..USUAL
    },
];

#[cfg(test)]
mod tests {
    use super::CASES;

    /// No two cases have one name, each runs somewhere and compares something, and about a third is quick.
    #[test]
    fn cases_are_whole() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.iter().all(|case| !case.worlds.is_empty()));
        assert!(CASES.iter().all(|case| case.heap.is_empty() == case.checks.is_empty()));
        let quick = CASES.iter().filter(|case| case.quick).count();
        assert!((CASES.len() / 4..=CASES.len() * 2 / 3).contains(&quick), "{quick}");
    }
}
