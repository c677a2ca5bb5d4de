//! Every check in every status that it can have.

use nix::libc;

use super::{ALL_CAPABILITIES, FakeHost, event_path};
use crate::kernel::{
    ADDRESS_SPACE_LOCKS, CHECK_NAMES, Capability, Check, Class, LiveHost, MemoryLimit,
    PRIVATE_STACKS, SELF_TEST, SYMBOL_HELPER, Status, Verdict, memory_limit, missing_privileges,
    run, verdict,
};

fn check(host: &FakeHost, name: &str) -> Check {
    run(host).into_iter().find(|check| check.name == name).expect("the check is run")
}

fn status(host: &FakeHost, name: &str) -> Status {
    check(host, name).status
}

fn without(capabilities: &[Capability]) -> FakeHost {
    let mask = capabilities.iter().fold(ALL_CAPABILITIES, |mask, c| mask & !(1 << c.number()));
    FakeHost::healthy().capabilities(mask)
}

/// On a machine where all is well every check says so, and their names are the ones that are promised.
#[test]
fn all_is_well() {
    let checks = run(&FakeHost::healthy());
    let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
    assert_eq!(names, CHECK_NAMES);
    for check in &checks {
        assert_eq!(check.status, Status::Ok, "{check:?}");
        assert!(!check.found.is_empty() && check.means.is_empty() && check.fix.is_empty());
    }
    assert_eq!(verdict(&checks), Verdict::Ready);
    assert_eq!(missing_privileges(&FakeHost::healthy()), None);
}

/// Whatever is not well is explained, and whatever restricts or fails comes with something to do.
#[test]
fn what_is_not_well_is_explained() {
    let mut nothing = FakeHost::healthy();
    nothing.files.clear();
    nothing.links.clear();
    let mut closed = FakeHost::healthy();
    closed.files.values_mut().for_each(|file| *file = Err(libc::EACCES));
    let mut junk = FakeHost::healthy();
    junk.files.values_mut().for_each(|file| *file = Ok("\u{1b}[2Jjunk".repeat(1000)));
    for host in [nothing, closed, junk] {
        for check in run(&host) {
            let (means, fix) = (!check.means.is_empty(), !check.fix.is_empty());
            match check.status {
                Status::Ok => assert!(!means && !fix, "{check:?}"),
                Status::Off => assert!(means && !fix, "{check:?}"),
                Status::Warn | Status::Fail => assert!(means && fix, "{check:?}"),
            }
            assert!(check.found.len() < 1000, "{check:?}");
        }
    }
}

/// A file that may not be read is a restriction of what is known, not a failure of the thing.
#[test]
fn unreadable_files_are_warned_of() {
    for (name, path) in [
        ("kernel", "/proc/sys/kernel/osrelease"),
        ("cpus", "/sys/devices/system/cpu/online"),
        ("lockdown", "/sys/kernel/security/lockdown"),
        ("perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
        ("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
        ("bpf_syscall", "/proc/sys/kernel/unprivileged_bpf_disabled"),
        ("bpf_jit", "/proc/sys/net/core/bpf_jit_enable"),
        ("bpf_stats", "/proc/sys/kernel/bpf_stats_enabled"),
        ("uprobe_pmu", "/sys/bus/event_source/devices/uprobe/type"),
        ("psi", "/proc/pressure/memory"),
    ] {
        let host = FakeHost::healthy().error(path, libc::EACCES);
        let check = check(&host, name);
        assert_eq!(check.status, Status::Warn, "{check:?}");
        assert_eq!(verdict(&run(&host)), Verdict::Ready, "{name}");
    }
}

/// Another architecture cannot be served.
#[test]
fn architecture() {
    let host = FakeHost::healthy().architecture("aarch64");
    assert_eq!(status(&host, "architecture"), Status::Fail);
    assert_eq!(verdict(&run(&host)).exit_code(), 69);
}

/// Namespaces other than the initial ones fail as a matter of privilege; unknown ones are warned of.
#[test]
fn namespaces() {
    for (name, path, other) in [
        ("pid_namespace", "/proc/self/ns/pid", "pid:[4026532177]"),
        ("user_namespace", "/proc/self/ns/user", "user:[4026532176]"),
    ] {
        let host = FakeHost::healthy().link(path, other);
        assert_eq!(status(&host, name), Status::Fail);
        assert_eq!(verdict(&run(&host)).exit_code(), 77);
        assert_eq!(status(&FakeHost::healthy().without_link(path), name), Status::Warn);
    }
    let host = FakeHost::healthy().link("/proc/self/ns/pid", "pid:[4026532177]");
    assert!(check(&host, "pid_namespace").fix.contains("host's PID namespace"));
}

/// A missing capability weighs what it is needed for, and `CAP_SYS_ADMIN` stands for the young ones.
#[test]
fn capabilities() {
    use Capability::{
        Bpf, CheckpointRestore, DacReadSearch, Perfmon, SetGid, SetUid, SysAdmin, SysPtrace,
        SysResource,
    };
    for (missing, expected) in [
        (Bpf, Status::Fail),
        (Perfmon, Status::Fail),
        (SysPtrace, Status::Warn),
        (CheckpointRestore, Status::Off),
        (DacReadSearch, Status::Warn),
        (SysAdmin, Status::Warn),
        (SetUid, Status::Warn),
        (SetGid, Status::Warn),
        (SysResource, Status::Off),
    ] {
        let host = without(&[missing, SysAdmin]);
        assert_eq!(status(&host, missing.name()), expected, "{missing:?}");
        let verdict = verdict(&run(&host));
        assert_eq!(verdict == Verdict::Privilege, expected == Status::Fail, "{missing:?}");
    }
    for replaced in [Bpf, Perfmon, CheckpointRestore] {
        let check = check(&without(&[replaced]), replaced.name());
        assert_eq!((check.status, check.found.as_str()), (Status::Ok, "through CAP_SYS_ADMIN"));
    }
    assert_eq!(status(&without(&[SysPtrace]), "cap_sys_ptrace"), Status::Warn);
    let unknown = FakeHost::healthy().without("/proc/self/status");
    assert_eq!(status(&unknown, "cap_bpf"), Status::Warn);
}

/// What is missing for attaching is named, with a line that gets it.
#[test]
fn missing_privileges_are_named() {
    use Capability::{Bpf, Perfmon, SysAdmin, SysPtrace};
    assert_eq!(missing_privileges(&without(&[Bpf, Perfmon])), None);
    assert_eq!(missing_privileges(&without(&[SysAdmin, SysPtrace])), None);
    let one = missing_privileges(&without(&[SysAdmin, Perfmon])).unwrap();
    assert!(one.starts_with("missing CAP_SYS_ADMIN: run it with sudo"), "{one}");
    let setcap = "cap_sys_admin,cap_sys_ptrace,cap_dac_read_search,cap_setuid,cap_setgid=ep";
    assert!(one.ends_with(&format!("sudo setcap {setcap} /usr/bin/drainprof")), "{one}");
    let user = missing_privileges(&FakeHost::healthy().capabilities(0)).unwrap();
    assert!(user.starts_with("missing CAP_SYS_ADMIN: "), "{user}");
    let inside = FakeHost::healthy().link("/proc/self/ns/user", "user:[4026532176]");
    assert!(missing_privileges(&inside).unwrap().contains("user namespace"));
    let blind = FakeHost::healthy().without("/proc/self/status");
    assert!(missing_privileges(&blind).unwrap().contains("/proc/self/status"));
}

/// A path that a shell would not take literally is not put into the line that is made for a shell.
#[test]
fn setcap_line_is_safe_to_copy() {
    let host = FakeHost::healthy().capabilities(0).link("/proc/self/exe", "/tmp/a; rm -rf $HOME");
    let line = missing_privileges(&host).unwrap();
    assert!(!line.contains("rm -rf") && line.contains("command -v drainprof"), "{line}");
}

/// Lockdown binds in its confidentiality mode only.
#[test]
fn lockdown() {
    let with = |text: &str| FakeHost::healthy().file("/sys/kernel/security/lockdown", text);
    assert_eq!(status(&with("none [integrity] confidentiality\n"), "lockdown"), Status::Ok);
    let full = with("none integrity [confidentiality]\n");
    assert_eq!(status(&full, "lockdown"), Status::Fail);
    assert_eq!(verdict(&run(&full)), Verdict::Feature);
    assert_eq!(status(&with("none"), "lockdown"), Status::Warn);
    let absent = FakeHost::healthy().without("/sys/kernel/security/lockdown");
    assert_eq!(status(&absent, "lockdown"), Status::Ok);
}

/// The levels of distributions bind those without `CAP_SYS_ADMIN`; no file means no performance events.
#[test]
fn perf_event_paranoid() {
    const PATH: &str = "/proc/sys/kernel/perf_event_paranoid";
    let debian = FakeHost::healthy().file(PATH, "3\n");
    assert_eq!(status(&debian, "perf_event_paranoid"), Status::Ok);
    let narrow = without(&[Capability::SysAdmin]).file(PATH, "3\n");
    assert_eq!(status(&narrow, "perf_event_paranoid"), Status::Warn);
    assert_eq!(status(&narrow.file(PATH, "-1\n"), "perf_event_paranoid"), Status::Ok);
    assert_eq!(status(&FakeHost::healthy().file(PATH, "?"), "perf_event_paranoid"), Status::Warn);
    let absent = FakeHost::healthy().without(PATH);
    assert_eq!(status(&absent, "perf_event_paranoid"), Status::Fail);
    assert_eq!(verdict(&run(&absent)), Verdict::Feature);
}

/// Yama restricts `run` from level 2 on, and nothing else.
#[test]
fn ptrace_scope() {
    const PATH: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let with = |text: &str| FakeHost::healthy().file(PATH, text);
    let user = |text: &str| without(&[Capability::SysPtrace]).file(PATH, text);
    for (host, expected) in [
        (with("0\n"), Status::Ok),
        (user("1\n"), Status::Ok),
        (with("2\n"), Status::Ok),
        (user("2\n"), Status::Warn),
        (with("3\n"), Status::Warn),
        (with("9\n"), Status::Warn),
        (FakeHost::healthy().without(PATH), Status::Ok),
    ] {
        assert_eq!(status(&host, "ptrace_scope"), expected);
    }
}

/// BPF, its compiler and its statistics: on, off, and not in this kernel.
#[test]
fn bpf() {
    const SYSCALL: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";
    const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";
    const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
    let host = FakeHost::healthy();
    let open = check(&host.clone().file(SYSCALL, "0\n"), "bpf_syscall");
    assert_eq!((open.status, open.found.as_str()), (Status::Ok, "there, for everybody"));
    assert_eq!(status(&host.clone().without(SYSCALL), "bpf_syscall"), Status::Fail);
    assert_eq!(status(&host.clone().file(JIT, "2\n"), "bpf_jit"), Status::Ok);
    assert_eq!(status(&host.clone().file(JIT, "0\n"), "bpf_jit"), Status::Fail);
    assert_eq!(status(&host.clone().without(JIT), "bpf_jit"), Status::Off);
    assert_eq!(status(&host.clone().file(STATS, "1\n"), "bpf_stats"), Status::Warn);
    assert_eq!(status(&host.clone().without(STATS), "bpf_stats"), Status::Off);
}

/// Without the user probe unit nothing can be placed.
#[test]
fn uprobe_pmu() {
    const PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
    for host in [FakeHost::healthy().without(PATH), FakeHost::healthy().file(PATH, "x\n")] {
        assert_eq!(status(&host, "uprobe_pmu"), Status::Fail);
        assert_eq!(verdict(&run(&host)), Verdict::Feature);
    }
}

/// Without tracefs the tracepoints are not looked at; with it, a missing event or field fails.
#[test]
fn tracing() {
    const MARK: &str = "/sys/kernel/tracing/events/header_page";
    for host in [FakeHost::healthy().without(MARK), FakeHost::healthy().error(MARK, libc::EACCES)] {
        assert_eq!(status(&host, "tracefs"), Status::Fail);
        assert_eq!(status(&host, "tracepoints"), Status::Off);
        assert_eq!(status(&host, "growth_tracepoints"), Status::Off);
        assert_eq!(verdict(&run(&host)), Verdict::Privilege);
    }
    let path = event_path("task", "task_newtask");
    let gone = FakeHost::healthy().without(&path);
    let changed = FakeHost::healthy().file(&path, super::formats::ANY);
    for (host, told) in [(gone, "no tracepoint task:"), (changed, "no field clone_flags")] {
        let check = check(&host, "tracepoints");
        assert_eq!(check.status, Status::Fail);
        assert!(check.found.contains(told), "{check:?}");
        assert_eq!(verdict(&run(&host)), Verdict::Feature);
    }
    let less = FakeHost::healthy().without(&event_path("kmem", "rss_stat"));
    let check = check(&less, "growth_tracepoints");
    assert_eq!((check.status, check.found.as_str()), (Status::Warn, "missing: kmem:rss_stat"));
}

/// Pressure information is there, switched off, or not built in.
#[test]
fn psi() {
    const PATH: &str = "/proc/pressure/memory";
    let host = FakeHost::healthy();
    assert_eq!(status(&host.clone().error(PATH, libc::EOPNOTSUPP), "psi"), Status::Warn);
    assert_eq!(status(&host.clone().file(PATH, "none"), "psi"), Status::Warn);
    assert_eq!(status(&host.without(PATH), "psi"), Status::Off);
}

const GIB: u64 = 1 << 30;

/// The narrowest limit on the way up binds, in both versions of control groups.
#[test]
fn memory_limits() {
    let v2 = FakeHost::healthy()
        .file("/sys/fs/cgroup/user.slice/session-1.scope/memory.max", &format!("{}\n", 4 * GIB))
        .file("/sys/fs/cgroup/user.slice/session-1.scope/memory.current", "4096\n")
        .file("/sys/fs/cgroup/user.slice/memory.max", &format!("{GIB}\n"))
        .file("/sys/fs/cgroup/user.slice/memory.current", "1048576\n");
    let group = "/sys/fs/cgroup/user.slice".into();
    assert_eq!(memory_limit(&v2), Some(MemoryLimit { group, limit: GIB, used: 1 << 20 }));

    let v1 = FakeHost::healthy()
        .file("/proc/self/cgroup", "4:memory:/svc\n3:cpuset:/\n0::/\n")
        .file(
            "/proc/self/mounts",
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
             cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
             cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        )
        .file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .file("/sys/fs/cgroup/memory/svc/memory.limit_in_bytes", "268435456\n")
        .file("/sys/fs/cgroup/memory/svc/memory.usage_in_bytes", "200000000\n");
    let limit = memory_limit(&v1).unwrap();
    assert_eq!(limit.group.to_str(), Some("/sys/fs/cgroup/memory/svc"));
    assert_eq!(limit.room(), 268_435_456 - 200_000_000);
    let check = check(&v1, "memory");
    assert_eq!((check.status, check.class), (Status::Warn, Class::Resource));
    assert!(check.found.contains("limit 256 MiB"), "{check:?}");
}

/// A group that lies outside of our view is not followed out of the mount.
#[test]
fn groups_outside_are_not_followed() {
    let host = FakeHost::healthy()
        .file("/proc/self/cgroup", "0::/../../elsewhere\n")
        .file("/sys/fs/cgroup/../../elsewhere/memory.max", "1\n")
        .file("/sys/fs/cgroup/memory.max", &format!("{GIB}\n"));
    let limit = memory_limit(&host).unwrap();
    assert_eq!((limit.group.to_str(), limit.limit), (Some("/sys/fs/cgroup"), GIB));
}

/// Without a limit the machine's available memory counts; little of it is warned of, none known too.
#[test]
fn memory_without_limits() {
    assert_eq!(memory_limit(&FakeHost::healthy()), None);
    let tight = FakeHost::healthy().file("/proc/meminfo", "MemAvailable:  65536 kB\n");
    assert_eq!(status(&tight, "memory"), Status::Warn);
    assert_eq!(status(&FakeHost::healthy().without("/proc/meminfo"), "memory"), Status::Warn);
}

/// The locked memory limit is shown and never held against anybody.
#[test]
fn memlock() {
    const PATH: &str = "/proc/self/limits";
    let low = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  65536  65536  bytes\n";
    let check = check(&FakeHost::healthy().file(PATH, low), "memlock");
    assert_eq!((check.status, check.found.as_str()), (Status::Off, "65536 bytes"));
    assert!(check.means.contains("5.11"));
    assert_eq!(status(&FakeHost::healthy().without(PATH), "memlock"), Status::Off);
}

/// A missing privilege outweighs a missing feature, and only what is required counts.
#[test]
fn verdicts() {
    let failed = |class| Check::new("x", class).required().fail("f", "m", "m");
    let all = [failed(Class::Resource), failed(Class::Feature), failed(Class::Privilege)];
    assert_eq!(verdict(&all), Verdict::Privilege);
    assert_eq!(verdict(&all[..2]), Verdict::Feature);
    assert_eq!(verdict(&all[..1]), Verdict::Resource);
    assert_eq!(verdict(&[Check { required: false, ..failed(Class::Privilege) }]), Verdict::Ready);
    assert_eq!(
        verdict(&[Check::new("x", Class::Feature).required().warn("f", "m", "m")]),
        Verdict::Ready
    );
    let codes = [Verdict::Ready, Verdict::Privilege, Verdict::Feature, Verdict::Resource];
    assert_eq!(codes.map(Verdict::exit_code), [0, 77, 69, 1]);
}

/// The checks can be run on the real machine, whatever it is, and all of them answer.
#[test]
fn real_machine_answers() {
    let checks = run(&LiveHost);
    assert_eq!(checks.len(), CHECK_NAMES.len());
    let kernel = checks.iter().find(|check| check.name == "kernel").unwrap();
    assert!(kernel.found.starts_with(|c: char| c.is_ascii_digit()), "{kernel:?}");
}

/// The page about `doctor` has a section on every check.
#[test]
fn every_check_is_documented() {
    const ADDED: [&str; 4] = [SYMBOL_HELPER, PRIVATE_STACKS, ADDRESS_SPACE_LOCKS, SELF_TEST];
    let page = include_str!("../../../../../docs/doctor.md");
    for name in CHECK_NAMES.into_iter().chain(ADDED) {
        assert!(page.contains(&format!("\n### `{name}`\n")), "docs/doctor.md lacks {name}");
    }
    let sections = page.lines().filter(|line| line.starts_with("### `")).count();
    assert_eq!(
        sections,
        CHECK_NAMES.len() + ADDED.len(),
        "docs/doctor.md has sections on checks that are none"
    );
}
