//! What `doctor` shows.

use super::FakeHost;
use crate::kernel::{
    Check, Class, ProgramStatistics, render_json, render_programs, render_text, run,
};

fn sample() -> Vec<Check> {
    vec![
        Check::new("kernel", Class::Info).ok("6.1.0"),
        Check::new("btf", Class::Info).off("absent", "not needed"),
        Check::new("psi", Class::Info).warn("switched off", "no trigger", "boot with psi=1"),
        Check::new("cap_bpf", Class::Privilege).required().fail("missing", "no probes", "sudo"),
    ]
}

/// A program whose figures are reported, and one of a kernel that reports none.
fn programs() -> Vec<ProgramStatistics> {
    let program = |name: &str, verified_instructions, jited_bytes| ProgramStatistics {
        name: name.to_owned(),
        verified_instructions,
        jited_bytes,
    };
    vec![program("close_entry", Some(12_345), Some(6_789)), program("exec", None, None)]
}

fn text(checks: &[Check]) -> String {
    let mut out = Vec::new();
    render_text(checks, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The table has a mark, a name and a finding per check, explanations below, and a verdict at the end.
#[test]
fn table() {
    insta::assert_snapshot!(text(&sample()), @r"
    ok    kernel   6.1.0
    -     btf      absent
                   not needed
    warn  psi      switched off
                   no trigger
                   to fix: boot with psi=1
    FAIL  cap_bpf  missing
                   no probes
                   to fix: sudo

    1 ok, 1 not there, 1 with restrictions, 1 failed
    drainprof cannot attach here: a privilege is missing.
    ");
}

/// Escape sequences from files of the system do not reach the terminal.
#[test]
fn text_is_tame() {
    let shown = text(&[Check::new("kernel", Class::Info).ok("6.1\u{1b}[2J\n\u{9b}x")]);
    assert!(shown.contains("6.1?[2J??x"), "{shown:?}");
    assert!(!shown.contains('\u{1b}'));
}

/// Every program has a line; a figure that the kernel does not report is a dash, not a zero.
#[test]
fn table_of_programs() {
    let mut out = Vec::new();
    render_programs(&programs(), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"

    program        verified    JITed, B
    close_entry       12345        6789
    exec                  -           -
    ");
}

/// Where nothing could be loaded, there is no heading over nothing.
#[test]
fn no_programs_no_table() {
    let mut out = Vec::new();
    render_programs(&[], &mut out).unwrap();
    assert!(out.is_empty());
}

/// The JSON document names its schema, the verdict, every check and program with all their fields.
#[test]
fn json() {
    let mut out = Vec::new();
    render_json(&sample(), &programs(), &mut out).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(document["schema"], "drainprof.doctor/1");
    assert_eq!(document["verdict"], "privilege");
    assert_eq!(
        document["checks"][3],
        serde_json::json!({
            "name": "cap_bpf", "status": "fail", "class": "privilege", "required": true,
            "found": "missing", "means": "no probes", "mend": "sudo"
        })
    );
    assert_eq!(
        document["programs"],
        serde_json::json!([
            { "name": "close_entry", "verified_instructions": 12_345, "jited_bytes": 6_789 },
            { "name": "exec", "verified_instructions": null, "jited_bytes": null }
        ])
    );
    assert!(out.ends_with(b"\n"));
}

/// A machine where all is well gets one line per check and the good news.
#[test]
fn good_news() {
    let checks = run(&FakeHost::healthy());
    let shown = text(&checks);
    assert_eq!(shown.lines().count(), checks.len() + 3);
    assert!(shown.ends_with("drainprof can attach here.\n"));
}
