use super::{Running, TOKEN, get, get_all, post, post_bare, send, state};
use crate::serve::Limits;

/// Health, readiness and status say what the state says.
#[tokio::test]
async fn pages_tell_the_state() {
    let running = Running::start(Limits::default(), None, true);
    let health = get(running.http, "/healthz").await;
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    assert_eq!(get(running.http, "/readyz").await.status, 200);
    let status = get(running.http, "/status").await;
    let targets = "targets   1 (memory only 0, no probe 0, close 0, boundary 1,";
    assert!(status.body.contains(targets), "{status:?}");
    assert!(status.body.contains("complete  no: ring_full 7: Events were lost"), "{status:?}");
    assert!(status.body.contains("4242 (svc): dsr_low: the DSR is 0.75"), "{status:?}");
    let mut unready = state();
    unready.ready = false;
    (unready.complete, unready.incomplete) = (true, Vec::new());
    unready.losses = [("unmatched_frees".to_owned(), 2_687), ("ring_full".to_owned(), 0)].into();
    running.state.send(unready.into()).unwrap();
    assert_eq!(get(running.http, "/readyz").await.status, 503);
    let status = get(running.http, "/status").await.body;
    assert!(!status.contains("lost"), "a notice is no loss: {status}");
    let words = "complete  yes\nnoticed   unmatched_frees 2687 (counts are exact all the same)\n";
    assert!(status.contains(words), "{status}");
    running.stop().await;
}

/// The format of the metrics is negotiated; no other site may read them into a web page.
#[tokio::test]
async fn metrics_are_negotiated() {
    let running = Running::start(Limits::default(), None, true);
    let plain = get(running.http, "/metrics").await;
    assert!(plain.head.contains("content-type: text/plain; version=0.0.4"), "{}", plain.head);
    assert!(!plain.body.contains("# EOF") && !plain.head.contains("access-control"));
    let accept =
        "accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let request = format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\n{accept}\r\n\r\n");
    let open = send(running.http, request).await;
    assert!(open.head.contains("content-type: application/openmetrics-text"), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"));
    for body in [&plain.body, &open.body] {
        let line = "outcome=\"pinned\"} 2474\n";
        assert!(
            body.contains("drainprof_granule_closes_total{exe=\"svc\",") && body.contains(line)
        );
    }
    running.stop().await;
}

/// Windows are opened with the token, not from web pages, and nonsense is refused.
#[tokio::test]
async fn orders_are_checked() {
    let running = Running::start(Limits::default(), None, true);
    let opened = post(running.http, "", r#"{"pid": 4242, "seconds": 5.5}"#).await;
    assert_eq!((opened.status, opened.json()["seconds"].as_f64()), (200, Some(5.5)), "{opened:?}");
    let busy = post(running.http, "", r#"{"pid": 1}"#).await;
    assert_eq!((busy.status, busy.json()["refused"].as_str()), (503, Some("not_now")));
    for more in ["origin: http://localhost\r\n", "sec-fetch-site: same-origin\r\n"] {
        let page = post(running.http, more, r#"{"pid": 4242}"#).await;
        assert_eq!((page.status, page.json()["refused"].as_str()), (403, Some("forbidden")));
    }
    let large = format!(r#"{{"pid": 4242, "seconds": {}1}}"#, " ".repeat(5_000));
    for (body, status) in [
        ("", 400),
        ("{", 400),
        (r#"{"pid": -1}"#, 422),
        (r#"{"pid": 4242, "second": 1}"#, 422),
        (r#"{"pid": 4242, "seconds": 0}"#, 422),
        (large.as_str(), 413),
    ] {
        let refused = post(running.http, "", body).await;
        assert_eq!(refused.status, status, "{body}: {refused:?}");
        assert!(refused.json()["message"].is_string());
    }
    let head = format!(
        "POST /api/v1/diagnose HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: text/plain"
    );
    let form =
        send(running.http, format!("{head}\r\ncontent-length: 13\r\n\r\n{{\"pid\": 4242}}")).await;
    assert_eq!(form.status, 415);
    running.stop().await;
}

/// Without the token there is no address and no directory in any answer, no report and no window; a wrong token gives
/// nothing at all, nor does another server's name.
#[tokio::test]
async fn strangers_see_no_address() {
    let running = Running::start(Limits::default(), None, true);
    let text = "instance 0x7f12deadb000 in /srv/svc is worst";
    let mut reported = state();
    let (instance, exe) = ("0x7f12deadb000", "/usr/bin/svc");
    reported.targets[0].allocators[0].instance = Some(instance.to_owned());
    text.clone_into(&mut reported.targets[0].alerts[0].message);
    running.state.send(reported.into()).unwrap();
    for path in ["/status", "/api/v1/state", "/api/v1/targets", "/api/v1/windows", "/metrics"] {
        let (bare, whole) = (get(running.http, path).await, get_all(running.http, path).await);
        assert_eq!((bare.status, whole.status), (200, 200), "{path}");
        for secret in ["7f12deadb000", exe, "/srv/"] {
            assert!(!bare.body.contains(secret), "{path}: {secret}");
        }
        if path.contains("targets") {
            assert!(whole.body.contains(instance) && whole.body.contains(exe));
            assert_eq!(bare.json()["targets"][0]["exe"], "svc");
            let again = get(running.http, path).await.json();
            assert_eq!(bare.json(), again, "one address has one name");
        }
    }
    let refused = post_bare(running.http, "", r#"{"pid": 4242}"#).await;
    assert_eq!((refused.status, refused.json()["refused"].as_str()), (401, Some("forbidden")));
    assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
    for (headers, status) in [
        ("host: localhost\r\nauthorization: Bearer wrong", 401),
        ("host: localhost\r\nauthorization: bearer a-token-of-these-test", 401),
        ("host: evil.example", 403),
        ("host: localhost\r\norigin: http://evil.example", 403),
        ("x: no host", 403),
    ] {
        for path in ["/metrics", "/status", "/api/v1/state", "/nowhere"] {
            let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\n\r\n");
            let answer = send(running.http, request).await;
            assert_eq!(answer.status, status, "{path} {headers}: {answer:?}");
        }
    }
    running.stop().await;
}

/// A daemon that does not answer, or has too much to do, makes no client wait for long.
#[tokio::test]
async fn busy_daemon_is_told() {
    let limits =
        Limits { answer_timeout: std::time::Duration::from_millis(50), ..Limits::default() };
    let running = Running::start(limits, None, false);
    // The queue has room for two; they are never taken.
    for word in ["not answered", "not answered", "too many requests"] {
        let refused = get(running.http, "/api/v1/windows").await;
        assert_eq!(refused.status, 503);
        assert!(refused.body.contains(word), "{refused:?}");
    }
    assert_eq!(get(running.http, "/api/v1/state").await.status, 200);
    running.stop().await;
}
