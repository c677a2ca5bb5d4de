//! The symbol helper of a real run, as the kernel sees it: it may do nothing, and holds nothing that is not its own.
//!
//! What a violation costs is tested beside the helper (`crates/process/src/symbolize/tests.rs`), where it can be made to
//! misbehave.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::Command,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    helper::helper_of,
    target::Target,
    tracer::{Tracer, command},
};

const NOBODY: &str = "65534";

/// A file of the helper in `/proc`.
struct Helper(String);

impl Helper {
    fn read(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/{name}", self.0);
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }

    /// The words behind a key of `status`.
    fn status(&self, key: &str) -> Result<Vec<String>> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
        let words = line.with_context(|| format!("status has {key}"))?.split_whitespace();
        Ok(words.map(str::to_owned).collect())
    }

    /// The soft and the hard limit of that name.
    fn limit(&self, name: &str) -> Result<[String; 2]> {
        let limits = self.read("limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let mut words = line.with_context(|| format!("limits has {name}"))?.split_whitespace();
        let mut next = || words.next().map(str::to_owned).context("a limit");
        Ok([next()?, next()?])
    }

    /// What its descriptors are, without the numbers of sockets.
    fn descriptors(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.0))? {
            let link = match fs::read_link(entry?.path()) {
                Ok(link) => link.display().to_string(),
                // Closed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context("read a descriptor of the helper"),
            };
            all.push(link.split_once(":[").map_or(link.clone(), |(kind, _)| kind.to_owned()));
        }
        all.sort();
        Ok(all)
    }
}

/// While drainprof runs, its helper is nobody, may nothing, and has neither environment nor files.
#[test]
fn it_may_nothing() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut target = Target::start("places", &["stops=1"])?;
    let mut attach = command()?;
    attach.args(["attach", "-p", &target.pid().to_string(), "-i", "50ms", "-o", "ndjson"]);
    attach.args(["--profile", &environment::profile("places")]).env("SECRET", "of the parent");
    let mut tracer = Tracer::spawn(attach)?;
    tracer.attached()?;
    target.go()?;
    target.reaches("end")?;
    tracer.process().expect_out("{\"record\":\"interval\"")?;
    let helper = Helper(helper_of(tracer.process().pid())?.as_raw_nonzero().to_string());
    // It is seen from its first moment on, when it is not confined yet. The filter comes last.
    let until = Instant::now() + environment::deadline();
    while helper.status("Seccomp")? != ["2"] {
        ensure!(Instant::now() < until, "it stays without a filter");
        thread::yield_now();
    }

    assert_eq!(helper.status("Uid")?, [NOBODY; 4]);
    assert_eq!(helper.status("Gid")?, [NOBODY; 4]);
    assert!(helper.status("Groups")?.is_empty());
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(helper.status(set)?, ["0000000000000000"], "{set}");
    }
    assert_eq!(helper.status("NoNewPrivs")?, ["1"]);
    assert_eq!(helper.status("Threads")?, ["1"]);
    assert_eq!(helper.read("environ")?, "", "its environment");
    // What is undumpable belongs to root.
    assert_eq!(fs::metadata(format!("/proc/{}/mem", helper.0))?.uid(), 0);
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", helper.0))?.as_os_str(), "/");
    for (name, limit) in [
        ("Max cpu time", ["60", "61"]),
        ("Max data size", ["2147483648"; 2]),
        ("Max file size", ["0"; 2]),
        ("Max core file size", ["0"; 2]),
        ("Max processes", ["0"; 2]),
        ("Max open files", ["16"; 2]),
        ("Max locked memory", ["0"; 2]),
    ] {
        assert_eq!(helper.limit(name)?, limit, "{name}");
    }
    // Stdin and its copy, stdout and stderr; and, as long as a question is read, the files that came with it.
    let own = ["/dev/null", "/dev/null", "socket", "socket"];
    while helper.descriptors()? != own {
        ensure!(Instant::now() < until, "it holds {:?}", helper.descriptors()?);
        thread::yield_now();
    }
    for space in ["net", "ipc", "uts"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{space}"));
        assert_ne!(of(&helper.0)?, of("self")?, "{space}");
    }

    target.go()?;
    target.finish()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    let report: serde_json::Value =
        serde_json::from_str(outcome.stdout.last().context("a last line")?)?;
    assert_eq!(report["report"]["symbols"]["given_up"], 0, "{}", report["report"]["symbols"]);
    Ok(())
}

/// An executable and its debug information that only root may read are named all the same: what the helper gets is
/// open already.
#[test]
fn files_that_nobody_may_read() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("places");
    fs::copy(environment::target("places")?, &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    let mut target = Target::start_command("places", Command::new(&path))?;
    let tracer = Tracer::attach(&[target.pid()], "places", &[])?;
    target.go()?;
    target.finish()?;
    let outcome = tracer.finish()?;
    let symbols = &outcome.report()["symbols"];
    assert_eq!((&symbols["places"], &symbols["named"]), (&3.into(), &3.into()));
    let places = &outcome.report()["targets"][0]["allocators"][0]["lifetimes"]["places"];
    for place in places.as_array().context("a list of places")? {
        assert!(place["line"].is_u64(), "{place:#}");
    }
    Ok(())
}
