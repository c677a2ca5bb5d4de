//! The shipped profiles and the programs that they are about: one row of [`ROWS`] for each.
//!
//! A row says in which file of which Debian package the profile's names are, and how to start that program and have
//! it do a little of everything. `tests/shipped.rs` and `tests/real_shipped.rs` walk the table: every name that a
//! profile has resolves in the file as it is installed, and on the live process every probe fires, or the row says
//! why it does not. A built-in profile without a row fails.
//!
//! To add one: a row here, in the order of the names, and a function that starts the program (its helper module
//! beside this one implements [`Live`]). The packages of a row that [`Needs::Real`] belong into the list of
//! `cargo xtask test --real`.

mod live;
mod servers;
mod symbols;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

pub use live::Live;
pub use symbols::{files, unresolved};

use crate::{process::Process, tracer};

/// What must be installed for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: the program is one of our own targets.
    Nothing,
    /// Debian packages that all tests may use.
    Usual(&'static [&'static str]),
    /// Debian packages that only `cargo xtask test --real` installs.
    Real(&'static [&'static str]),
}

/// An exception, and why it is one. One that has become untrue fails, so that the reasons stay true.
#[derive(Clone, Copy, Debug)]
pub struct Except {
    /// What it is about: `at` as the profile writes it, or role and symbol as `profile check` shows them.
    pub what: &'static str,
    /// Why, for whoever reads the table.
    pub why: &'static str,
}

/// A shipped profile.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name.
    pub profile: &'static str,
    /// What must be installed.
    pub needs: Needs,
    /// The files that it is about: absolute patterns (`*` and `?` within names), or names of our own targets.
    pub files: &'static [&'static str],
    /// Names that are in none of the files.
    pub absent: &'static [Except],
    /// Probes that do not fire in the workload.
    pub silent: &'static [Except],
    /// Starts the program, ready to work.
    pub start: fn() -> Result<Box<dyn Live>>,
}

/// The profiles, by name.
pub const ROWS: &[Row] = &[
    Row {
        profile: "apr",
        needs: Needs::Usual(&["subversion", "libapr1"]),
        files: &["/usr/lib/x86_64-linux-gnu/libapr-1.so.0"],
        absent: &[],
        silent: &[Except {
            what: "open apr_pool_create_unmanaged_ex",
            why: "pools outside of the tree, which Subversion does not make",
        }],
        start: live::svnserve,
    },
    Row {
        profile: "bind",
        needs: Needs::Real(&["bind9", "bind9-libs"]),
        files: &["/usr/lib/x86_64-linux-gnu/libisc-9*.so"],
        absent: &[],
        silent: &[
            Except {
                what: "open isc__mem_create_arena",
                why: "contexts for whole managers, which named makes at its start",
            },
            Except {
                what: "realloc isc__mem_reallocate",
                why: "no part of named that answers or loads a zone uses it",
            },
            Except {
                what: "realloc isc__mem_reget",
                why: "buffers that grow: large answers and transfers of zones",
            },
        ],
        start: servers::named,
    },
    Row {
        profile: "cxx-pmr",
        needs: Needs::Usual(&["libstdc++6"]),
        files: &["/usr/lib/x86_64-linux-gnu/libstdc++.so.6"],
        absent: &[],
        silent: &[],
        start: || live::target("pmr", &["rounds=20"]),
    },
    Row {
        profile: "epoch-demo",
        needs: Needs::Nothing,
        files: &["epoch_demo"],
        absent: &[],
        silent: &[],
        start: || live::target("epoch_demo", &["epochs=100"]),
    },
    Row {
        profile: "glibc-heap",
        needs: Needs::Usual(&["libc6", "libc6-dbg"]),
        files: &["/usr/lib/x86_64-linux-gnu/libc.so.6"],
        absent: &[],
        silent: &[],
        start: || live::target("heaps", &["mode=kinds"]),
    },
    Row {
        profile: "haproxy",
        needs: Needs::Real(&["haproxy"]),
        files: &["/usr/sbin/haproxy"],
        absent: &[],
        silent: &[],
        start: servers::haproxy,
    },
    Row {
        profile: "haproxy-pools",
        needs: Needs::Real(&["haproxy"]),
        files: &["/usr/sbin/haproxy"],
        absent: &[],
        silent: &[
            Except { what: "close pool_destroy", why: "pools live as long as the process" },
            Except { what: "open create_pool", why: "pools are made at the start" },
        ],
        start: servers::haproxy,
    },
    Row {
        profile: "libdrainprof",
        needs: Needs::Nothing,
        files: &["granule_calls"],
        absent: &[],
        silent: &[],
        start: || live::target("granule_calls", &[]),
    },
    Row {
        profile: "mariadb",
        needs: Needs::Real(&["mariadb-server"]),
        files: &["/usr/sbin/mariadbd"],
        absent: &[],
        silent: &[],
        start: servers::mariadb,
    },
    Row {
        profile: "nginx",
        needs: Needs::Usual(&["nginx-light", "apache2-utils"]),
        files: &["/usr/sbin/nginx"],
        absent: &[],
        silent: &[
            Except {
                what: "alloc ngx_pmemalign",
                why: "buffers of direct I/O, which is off unless configured",
            },
            Except {
                what: "reset ngx_reset_pool",
                why: "no part of nginx that a plain server uses resets a pool",
            },
        ],
        start: live::nginx,
    },
    Row {
        profile: "postgresql",
        needs: Needs::Usual(&["postgresql-15"]),
        files: &["/usr/lib/postgresql/15/bin/postgres"],
        absent: &[],
        silent: &[
            Except {
                what: "alloc MemoryContextAllocHuge",
                why: "for what may be larger than a gigabyte; a plain session has nothing such",
            },
            Except {
                what: "alloc palloc_extended",
                why: "for what may fail: recovery and logical decoding, not a plain session",
            },
        ],
        start: live::postgres,
    },
    Row {
        profile: "temporal-slab",
        needs: Needs::Nothing,
        files: &["temporal"],
        absent: &[],
        silent: &[],
        start: || live::target("temporal", &["destroy=1"]),
    },
    Row {
        profile: "varnish",
        needs: Needs::Real(&["varnish"]),
        files: &["/usr/sbin/varnishd"],
        absent: &[],
        silent: &[],
        start: servers::varnish,
    },
    Row {
        profile: "varnish-workspace",
        needs: Needs::Real(&["varnish"]),
        files: &["/usr/sbin/varnishd"],
        absent: &[],
        silent: &[],
        start: servers::varnish,
    },
];

/// The rows of the tests that run everywhere, or of those that need further packages.
pub fn rows(real: bool) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| matches!(row.needs, Needs::Real(_)) == real)
}

/// What is wrong with a row on the live program: probes that are silent without a reason, and reasons that do not
/// hold.
///
/// # Errors
/// If the program cannot be started or does not do what it should, or drainprof does not attach.
pub fn misfires(row: &Row) -> Result<Vec<String>> {
    let mut live = (row.start)()?;
    let mut command = tracer::command()?;
    command.args(["profile", "check", row.profile, "-p", &live.pid().to_string()]);
    // Ended as soon as the work is done.
    command.args(["--for", "10m"]);
    let mut check = Process::start("drainprof", command)?;
    check.expect_err("drainprof: attached ")?;
    live.work()?;
    check.signal(Signal::SIGINT)?;
    let checked = check.finish()?;
    live.end()?;
    ensure!(
        checked.status.success(),
        "profile check: {} {:?} {:?}",
        checked.status,
        checked.stderr,
        checked.stdout
    );
    let hits = hits(&checked.stdout);
    ensure!(!hits.is_empty(), "profile check shows no probe: {:?}", checked.stdout);
    let silent = |probe: &str| hits.get(probe).is_some_and(|hits| *hits == 0);
    let excused = |probe: &str| row.silent.iter().any(|except| except.what == probe);
    let mut wrong: Vec<String> = hits
        .keys()
        .filter(|probe| silent(probe) && !excused(probe))
        .map(|probe| {
            format!("{}: `{probe}` never fired, and the row does not say why", row.profile)
        })
        .collect();
    wrong.extend(row.silent.iter().filter(|except| !silent(except.what)).map(|except| {
        format!(
            "{}: `{}` is no silent probe; it was to be so: {}",
            row.profile, except.what, except.why
        )
    }));
    Ok(wrong)
}

/// How often each probe fired, by role and symbol, as `profile check --for` prints it.
fn hits(lines: &[String]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in lines {
        // `  alloc    ngx_palloc                       1163 hits, 1163 returns`
        let Some((probe, count)) = line
            .split_once(" hits")
            .and_then(|(before, _)| before.trim().rsplit_once(' '))
            .and_then(|(probe, count)| Some((probe, count.parse::<u64>().ok()?)))
        else {
            continue;
        };
        let words: Vec<&str> = probe.split_whitespace().collect();
        *found.entry(words.join(" ")).or_default() += count;
    }
    found
}

/// Judges rows two at a time, and fails with everything that is wrong with any of them.
///
/// # Errors
/// What is wrong, or could not be judged, row by row.
pub fn all_good(real: bool, judge: fn(&Row) -> Result<Vec<String>>) -> Result<()> {
    let rows: Vec<&Row> = rows(real).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            match judge(row).with_context(|| format!("{} cannot be judged", row.profile)) {
                Ok(found) => wrong.extend(found),
                Err(error) => wrong.push(format!("{error:?}")),
            }
        }
        wrong
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        let died = || vec!["a worker panicked".to_owned()];
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|_| died())).collect()
    });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts are read from the lines that `profile check` prints, of symbols with spaces too; other lines are none.
    #[test]
    fn lines_of_hits() {
        let lines = [
            "in 1.0 s:",
            "  alloc    ngx_palloc                       1163 hits, 1163 returns",
            "  open     pool::Arena<unsigned long>::Arena() 0 hits",
            "  instance 0x0: 5 opened, 5 closed; 7 allocated, 7 freed, 0 unmatched frees",
        ];
        let found = hits(&lines.map(str::to_owned));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found["alloc ngx_palloc"], 1163);
        assert_eq!(found["open pool::Arena<unsigned long>::Arena()"], 0);
    }
}
