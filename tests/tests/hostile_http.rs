//! Other users of this machine, and web pages, against the daemon's web service.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{has_programs, requires_root},
    node::{Daemon, TOKEN, alone, ask, get},
    process::Process,
    target::Target,
};

/// Another user: `nobody`, without groups or privileges.
const NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "bash"];
/// What everybody may ask for.
const PAGES: [&str; 8] = [
    "/",
    "/metrics",
    "/healthz",
    "/readyz",
    "/status",
    "/api/v1/state",
    "/api/v1/targets",
    "/api/v1/windows",
];
/// Connections of one user.
const SLOW: usize = 500;

/// A shell of another user's.
fn as_nobody(script: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(NOBODY).arg("-c").arg(script);
    command
}

/// What another user gets for a request to a port: the whole answer.
fn asked_by_nobody(port: u16, request: &str) -> Result<String> {
    let script = "exec 3<>/dev/tcp/127.0.0.1/$0 && printf %s \"$1\" >&3 && cat <&3";
    let output = as_nobody(script).arg(port.to_string()).arg(request).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn request(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n")
}

/// Where a process has mapped anything.
fn mapped(pid: u32) -> Result<Vec<(u64, u64)>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    Ok(maps.lines().filter_map(range).collect())
}

/// The numbers in a text, in whatever base, that are addresses in one of these ranges.
fn addresses(text: &str, ranges: &[(u64, u64)]) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let is_address = |word: &&str| {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let numbers = [u64::from_str_radix(digits, 16).ok(), word.parse().ok()];
        numbers
            .into_iter()
            .flatten()
            .any(|number: u64| ranges.iter().any(|(from, to)| (*from..*to).contains(&number)))
    };
    words.filter(is_address).map(str::to_owned).collect()
}

/// Another user cannot read a mapping of root's process in any answer; with the token it is there.
#[test]
fn no_answer_has_an_address() -> Result<()> {
    if !requires_root() || !has_programs(&["setpriv", "bash"]) {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "daemon.level = \"stacks\"\ngovernor.enabled = false")?;
    let mut service = Target::start("psweep", &["closes=2000", "p=2500", "stops=1"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    service.reaches("half")?;
    daemon.fresh()?;
    let ranges = mapped(pid)?;
    let (status, state) = daemon.get("/api/v1/state")?;
    assert_eq!(status, 200);
    assert!(!addresses(&state, &ranges).is_empty(), "the state has addresses: {state}");
    let exe = fs::read_link(format!("/proc/{pid}/exe"))?;
    let directory = exe.parent().context("a directory")?.to_string_lossy().into_owned();
    assert!(state.contains(&directory), "{state}");
    let page = format!("/process/{pid}");
    let history = format!("/api/v1/targets/{pid}/history");
    for path in PAGES.into_iter().chain([page.as_str(), history.as_str()]) {
        let answer = asked_by_nobody(daemon.port(), &request(path, ""))?;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert_eq!(addresses(&answer, &ranges), Vec::<String>::new(), "{path}");
        assert!(!answer.contains(&directory), "{path}: {answer}");
    }
    let report = format!("/api/v1/targets/{pid}/report");
    let answer = asked_by_nobody(daemon.port(), &request(&report, ""))?;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let with_token = request(&report, &format!("Authorization: Bearer {TOKEN}\r\n"));
    let answer = asked_by_nobody(daemon.port(), &with_token)?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    service.kill()?;
    daemon.finish()?;
    Ok(())
}

/// Another user cannot have root's process traced: not without the token, not with a wrong one; with it, a window opens.
#[test]
fn windows_need_the_token() -> Result<()> {
    if !requires_root() || !has_programs(&["setpriv", "bash"]) {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    let service = Target::start("psweep", &["closes=10"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    let body = format!("{{\"pid\":{pid},\"seconds\":1}}");
    let post = |more: &str| {
        let length = body.len();
        asked_by_nobody(
            daemon.port(),
            &format!(
                "POST /api/v1/diagnose HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n{body}"
            ),
        )
    };
    let refused = post("")?;
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let wrong = post("Authorization: Bearer a-token-of-some-other-tests\r\n")?;
    assert!(wrong.starts_with("HTTP/1.1 401"), "{wrong}");
    let page = post(&format!("Authorization: Bearer {TOKEN}\r\nOrigin: http://localhost\r\n"))?;
    assert!(page.starts_with("HTTP/1.1 403"), "{page}");
    let windows = daemon.state()?["windows"].as_array().map(Vec::len);
    assert_eq!(windows, Some(0));
    let opened = post(&format!("Authorization: Bearer {TOKEN}\r\n"))?;
    assert!(opened.starts_with("HTTP/1.1 200"), "{opened}");
    service.kill()?;
    daemon.finish()?;
    Ok(())
}

/// A page whose name was made to resolve to this machine gets nothing, nor does another server's page.
#[test]
fn foreign_names_are_refused() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "listen.hosts = [\"node1.example\"]")?;
    for (headers, expected) in [
        ("Host: node1.example:9464", 200),
        ("Host: 127.0.0.1", 200),
        ("Host: rebound.example", 403),
        ("Host: localhost\r\nOrigin: http://rebound.example", 403),
        ("Host: localhost\r\nOrigin: null", 403),
        ("Accept: */*", 403),
    ] {
        for path in PAGES {
            let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n");
            let (status, body) = ask(daemon.port(), &request)?;
            assert_eq!(status, expected, "{headers} {path}: {body}");
        }
    }
    daemon.finish()?;
    Ok(())
}

/// One user's slow connections, as many as they like, keep nobody else from the metrics for a second.
#[test]
fn slow_connections_lock_nobody_out() -> Result<()> {
    if !requires_root() || !has_programs(&["setpriv", "bash"]) {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    let script = format!(
        "trap '' PIPE; for n in $(seq {SLOW}); do exec {{fd}}<>/dev/tcp/127.0.0.1/$0; \
         printf 'GET /metrics HTTP/1.1\\r\\nx: ' >&$fd; done 2>/dev/null; echo open; read -r end"
    );
    let mut command = as_nobody(&script);
    command.arg(daemon.port().to_string());
    let mut slow = Process::start("slow connections", command)?;
    slow.expect_out("open")?;
    for _ in 0..5 {
        let began = Instant::now();
        let (status, body) = get(daemon.port(), "/metrics")?;
        assert_eq!(status, 200, "{body}");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    slow.send_line("")?;
    slow.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A token that others can read is none: the daemon does not start.
#[test]
fn open_tokens_are_refused() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let directory = Daemon::start(&["arena"], "")?.stop()?;
    let mut command = Command::new("chmod");
    command.arg("644").arg(directory.path().join("token"));
    ensure!(command.status()?.success(), "chmod");
    let failed = Daemon::begin_in(directory).expect_err("it starts with a token that all can read");
    let text = format!("{failed:#}");
    assert!(text.contains("chmod it to 0600"), "{text}");
    Ok(())
}
