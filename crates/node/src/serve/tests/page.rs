//! The page: what it shows of an empty daemon, of one with data, of a range, and to whom.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use drainprof_process::memory::MemoryReading;
use drainprof_profile::Level;
use drainprof_report::{Counts, Held};
use rusqlite::Connection;

use super::{Response, Running, TOKEN, get, get_all, labels, send, state};
use crate::{
    NodeState,
    serve::Limits,
    store::{Moment, Options, ProcessMoment, ProfileCounts, ProfileMoment, Writer},
};

/// The end of the history, as of the state.
const NOW: u64 = 1_700_000_060_000;
/// From one moment to the next.
const STEP: u64 = 10_000;

/// Half an hour of the process that the state has: each step opens ten granules, of which two are pinned.
pub(super) fn write_history(path: &Path) {
    let options =
        Options { path: path.to_owned(), boot: Some("a boot".to_owned()), ..Options::default() };
    let mut writer = Writer::open(&options).unwrap();
    for step in 0..=180 {
        let counts = ProfileCounts {
            granules: Counts {
                opened: 10 * step,
                drainable: 8 * step,
                pinned: 2 * step,
                unknown: 0,
            },
            held: Held {
                open_now: 3,
                retained_granules: Some(2 * step),
                retained_bytes: Some(2 * step * 4096),
            },
        };
        let memory = MemoryReading {
            rss_bytes: (10 << 20) + step * 8192,
            anon_bytes: 8 << 20,
            ..MemoryReading::default()
        };
        let process = ProcessMoment {
            pid: 4242,
            start_time: 99,
            comm: "svc".to_owned(),
            exe: "/usr/bin/svc".to_owned(),
            labels: labels(),
            level: Some(Level::Objects),
            memory: Some(memory),
            profiles: vec![ProfileMoment {
                profile: "epoch-demo".to_owned(),
                kind: "drain".to_owned(),
                counts,
            }],
            ..ProcessMoment::default()
        };
        let unix_ms = NOW - (180 - step) * STEP;
        writer
            .append(&Moment {
                unix_ms,
                complete: true,
                processes: vec![process],
                ..Moment::default()
            })
            .unwrap();
    }
}

/// A state without processes and windows.
fn nothing() -> NodeState {
    let mut state = state();
    (state.targets, state.windows, state.counts) = (Vec::new(), Vec::new(), Vec::new());
    state
}

fn is_page(response: &Response) {
    assert!(response.head.contains("content-type: text/html; charset=utf-8"), "{}", response.head);
    assert!(response.head.contains(
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'"
    ));
    assert!(response.head.contains("x-content-type-options: nosniff"));
    let body = &response.body;
    assert_eq!(body.matches("<script").count(), 1, "only our own script: {body}");
    assert!(body.contains(r#"<script src="/page.js" defer></script>"#) && !body.contains("<style"));
    assert!(!body.contains(" style=") && !body.contains(" onclick="), "{body}");
    assert!(body.contains(r#"<html lang="en">"#) && body.matches("<h1>").count() == 1);
}

/// An empty daemon has pages, too, and says why they are empty.
#[tokio::test]
async fn an_empty_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start_in(directory, Limits::default(), None, true);
    running.state.send(nothing().into()).unwrap();
    let node = get(running.http, "/").await;
    is_page(&node);
    assert!(node.status == 200 && node.body.contains("No process is watched"), "{node:?}");
    let help = get(running.http, "/help").await;
    is_page(&help);
    assert!(help.body.contains("drainable closes / (drainable + pinned closes)"));
    for path in ["/process/4242", "/process/x", "/window/x"] {
        let missing = get(running.http, path).await;
        is_page(&missing);
        assert_eq!(missing.status, 404, "{path}");
    }
    assert_eq!(get(running.http, "/process/4242?from=x").await.status, 422);
    let script = get(running.http, "/page.js").await;
    assert!(
        script.head.contains("content-type: text/javascript") && script.head.contains("nosniff")
    );
    assert!(get(running.http, "/page.css").await.head.contains("content-type: text/css"));
    running.stop().await;
}

/// What a client without the token sees on a page is what the API gives it; names are text.
#[tokio::test]
async fn pages_show_no_more_than_the_api() {
    let running = Running::start(Limits::default(), None, true);
    let mut hostile = state();
    "<img src=x>\"'".clone_into(&mut hostile.targets[0].comm);
    hostile.targets[0].allocators[0].instance = Some("0x7f12deadb000".to_owned());
    "instance 0x7f12deadb000 in /srv/svc is worst"
        .clone_into(&mut hostile.targets[0].alerts[0].message);
    running.state.send(hostile.into()).unwrap();
    for path in ["/", "/process/4242", "/?q=0x7f12deadb000"] {
        let (bare, whole) = (get(running.http, path).await, get_all(running.http, path).await);
        is_page(&bare);
        assert_eq!((bare.status, whole.status), (200, 200), "{path}");
        for secret in ["7f12deadb000", "/usr/bin", "/srv/", "<img"] {
            assert!(!bare.body.contains(secret), "{path}: {secret}");
        }
        if path == "/process/4242" {
            assert!(whole.body.contains("0x7f12deadb000") && whole.body.contains("/usr/bin/svc"));
            assert!(bare.body.contains("&lt;img src=x&gt;") && bare.body.contains("dsr_low"));
        }
    }
    assert!(get(running.http, "/?q=nobody").await.body.contains("No process matches"));
    running.stop().await;
}

/// The cells of the row of a table that begins with this head.
fn row(body: &str, head: &str) -> Vec<String> {
    let (_, rest) = body
        .split_once(&format!("<th scope=\"row\">{head}</th>"))
        .unwrap_or_else(|| panic!("{body}"));
    let (cells, _) = rest.split_once("</tr>").unwrap();
    cells
        .split("</td>")
        .filter_map(|cell| cell.rsplit_once('>'))
        .map(|(_, text)| text.to_owned())
        .collect()
}

/// All numbers below the choice of a range are of that range: those that the API gives for it.
#[tokio::test]
async fn a_range_has_the_numbers_of_the_api() {
    let running = Running::start(Limits::default(), None, true);
    let mut seen = Vec::new();
    for range in [
        "",
        "?from=1699999460000&to=1699999760000",
        "?from=2023-11-14T22:04:20&to=2023-11-14T22:09:20",
        "?last=60",
    ] {
        let page = get(running.http, &format!("/process/4242{range}")).await;
        is_page(&page);
        let course =
            get(running.http, &format!("/api/v1/targets/4242/history{range}")).await.json();
        let points = course["processes"][0]["profiles"][0]["points"].as_array().unwrap().clone();
        let sum = |field: &str| {
            points
                .iter()
                .map(|point| point["added"][field].as_u64().unwrap())
                .sum::<u64>()
                .to_string()
        };
        let cells = row(&page.body, "epoch-demo");
        assert_eq!(cells[..4], ["opened", "drainable", "pinned", "unknown"].map(sum), "{range}");
        assert_eq!(cells[4], "0.8000", "{range}");
        let last = points.last().unwrap()["retained_bytes"].as_u64().unwrap();
        assert_eq!(cells[6], drainprof_report::units::bytes(last), "{range}");
        let memory: Vec<u64> = course["processes"][0]["memory"]
            .as_array()
            .unwrap()
            .iter()
            .map(|point| point["memory"]["rss_bytes"].as_u64().unwrap())
            .collect();
        let [first, last] =
            [memory[0], *memory.last().unwrap()].map(drainprof_report::units::bytes);
        assert!(
            page.body.contains(&format!(">RSS</dfn> {first} → {last}")),
            "{range}: {first} {last}"
        );
        seen.push((cells, points.len()));
    }
    assert_eq!(seen[1], seen[2], "a time has two forms");
    assert_eq!((seen[0].1, seen[1].1, seen[3].1), (181, 31, 7));
    running.stop().await;
}

async fn form(running: &Running, path: &str, more: &str, body: &str) -> Response {
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {length}\r\n{more}\r\n{body}"
    );
    send(running.http, text).await
}

/// Forms need the token, and the browser's word that they are of this page; with it a window begins, and reports are
/// shown, downloaded and compared.
#[tokio::test]
async fn forms_need_the_token() {
    let running = Running::start(Limits::default(), None, true);
    let window = get(running.http, "/window/7").await;
    assert!(
        window.status == 200
            && !window.body.contains("Who pins")
            && window.body.contains("name=\"token\"")
    );
    for (path, rest) in [
        ("/process/4242/window", "&seconds=5&growth="),
        ("/window/7", "&format="),
        ("/compare", "&before=7&after=7"),
    ] {
        for token in ["", "a-token-of-these-test", "x"] {
            let refused = form(&running, path, "", &format!("token={token}{rest}")).await;
            assert_eq!(refused.status, 403, "{path}: {refused:?}");
            is_page(&refused);
        }
        let body = format!("token={TOKEN}{rest}");
        for site in ["cross-site", "same-site", "none"] {
            let foreign = form(&running, path, &format!("sec-fetch-site: {site}\r\n"), &body).await;
            assert_eq!(foreign.status, 403, "{path}: {site}");
        }
        let done = form(&running, path, "sec-fetch-site: same-origin\r\n", &body).await;
        if path.starts_with("/process") {
            assert!(done.status == 303 && done.head.contains("location: /window/9"), "{done:?}");
        } else {
            is_page(&done);
            assert!(done.status == 200 && done.body.contains("make_session"), "{path}");
        }
    }
    let file = form(&running, "/window/7", "", &format!("token={TOKEN}&format=json")).await;
    assert!(file.head.contains("attachment; filename=\"window-7.json\""), "{}", file.head);
    assert_eq!(file.json()["schema"], "drainprof.report/1");
    assert_eq!(
        form(&running, "/window/7", "", &format!("token={TOKEN}&format=exe")).await.status,
        404
    );
    let bad =
        form(&running, "/process/4242/window", "", &format!("token={TOKEN}&seconds=nan")).await;
    assert_eq!(bad.status, 422);
    let busy = form(&running, "/process/1/window", "", &format!("token={TOKEN}&seconds=5")).await;
    assert!(busy.status == 503 && busy.body.contains("try again in 40 s"), "{busy:?}");
    running.stop().await;
}

/// News of a state come as an event.
#[tokio::test]
async fn new_states_are_events() {
    let running = Running::start(Limits::default(), None, true);
    let mut stream = TcpStream::connect(running.http).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let (told, headers) = tokio::sync::oneshot::channel();
    let reading = tokio::task::spawn_blocking(move || {
        let mut told = Some(told);
        let mut lines = Vec::new();
        for line in BufReader::new(stream).lines() {
            lines.push(line.unwrap());
            // The stream has begun once its headers are there.
            if lines.last().unwrap().is_empty()
                && let Some(told) = told.take()
            {
                told.send(()).unwrap();
            }
            if lines.last().unwrap().starts_with("data:") {
                break;
            }
        }
        lines
    });
    headers.await.unwrap();
    let next = NodeState { unix_ms: NOW + 5, ..state() };
    running.state.send(next.into()).unwrap();
    let lines = reading.await.unwrap();
    assert!(
        lines.iter().any(|line| line.to_lowercase() == "content-type: text/event-stream"),
        "{lines:?}"
    );
    assert_eq!(lines.last().unwrap(), "data: 1700000060005");
    running.stop().await;
}

/// 200 processes with a week of history: the node and a process of it, each in less than a second and 300 KB.
#[tokio::test]
async fn large_nodes_are_fast_and_small() {
    const PROCESSES: u32 = 200;
    const WEEK: u64 = 7 * 24 * 3_600_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.db");
    write_history(&path);
    // As a daemon leaves it: a day by ten seconds, six days by five minutes.
    Connection::open(&path)
        .unwrap()
        .execute_batch(&format!(
            "PRAGMA synchronous = OFF; BEGIN;
             DELETE FROM sample; DELETE FROM count; DELETE FROM moment; DELETE FROM process;
             INSERT INTO process WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {PROCESSES})
               SELECT i + 1, 'a boot', 4242 + i, 99 + i, '/usr/bin/svc', 'svc', '{{}}', NULL FROM n;
             INSERT INTO moment WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 8640 + 1728)
               SELECT i, 1, {NOW} - CASE WHEN i <= 1728 THEN 86400000 + (1728 - i) * 300000 ELSE (10368 - i) * 10000 END,
                 1, 0, NULL, NULL, 0.5, 1000000 FROM n;
             INSERT INTO sample SELECT m.id, p.id, 1, m.id, 0.0, 10000000 + m.id * 1000 + (m.id * p.id * 7919) % 100000, 8000000,
                 1000000, 0, 0, 90000000, NULL, 0, 0, NULL, NULL FROM moment m CROSS JOIN process p
                 WHERE p.id = 1 OR m.id % 16 = 0;
             INSERT INTO count SELECT id, 1, 1, 10 * id, 8 * id, 2 * id, 0, 3, id, 4096 * id FROM moment;
             COMMIT;"
        ))
        .unwrap();
    let running = Running::start_in(directory, Limits::default(), None, true);
    let mut many = state();
    let one = many.targets[0].clone();
    many.targets = (0..PROCESSES)
        .map(|at| {
            let mut target = one.clone();
            (target.pid, target.start_time) = (4242 + at, 99 + u64::from(at));
            target
        })
        .collect();
    running.state.send(many.into()).unwrap();
    for path in ["/?last=604800".to_owned(), format!("/process/4242?from={}&to={NOW}", NOW - WEEK)]
    {
        // The machine may be busy with other tests: the best of a few.
        let (mut page, mut took) = (None, Duration::MAX);
        for _ in 0..10 {
            let begin = Instant::now();
            page = Some(get(running.http, &path).await);
            took = took.min(begin.elapsed());
            if took <= Duration::from_secs(1) {
                break;
            }
        }
        let page = page.unwrap();
        is_page(&page);
        assert!(page.body.len() <= 300_000, "{path}: {} bytes", page.body.len());
        assert!(took <= Duration::from_secs(1), "{path}: {took:?}");
        assert!(page.body.contains("<path class=\"l"), "{path} has curves");
        println!("{path}: {took:?}, {} bytes", page.body.len());
    }
    running.stop().await;
}
