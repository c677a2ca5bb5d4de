//! Paths as the runtimes write them.

use super::*;

const ID: &str = "8f2c1d3a4b5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8";
const OTHER: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const POD: &str = "2d7e3f1c-5c1a-4f0e-9a55-0b1c2d3e4f50";

fn unified(path: &str) -> Labels {
    Labels::parse("/usr/bin/svc", format!("0::{path}\n").as_bytes())
}

/// Unit, container and pod, in this order.
fn found(path: &str) -> (Option<String>, Option<String>, Option<String>) {
    let Labels { unit, container, pod, namespace, .. } = unified(path);
    assert_eq!(namespace, None);
    (unit, container, pod)
}

fn unit(path: &str) -> Option<String> {
    let (unit, container, pod) = found(path);
    assert_eq!((container, pod), (None, None), "{path}");
    unit
}

/// Services, scopes and what is below them are named after the unit that systemd knows.
#[test]
fn units_of_the_system() {
    let cases = [
        ("/system.slice/nginx.service", Some("nginx.service")),
        ("/system.slice/nginx.service/payload/worker.service", Some("nginx.service")),
        ("/system.slice/system-getty.slice/getty@tty1.service", Some("getty@tty1.service")),
        (
            "/system.slice/system-postgresql.slice/postgresql@15-main.service",
            Some("postgresql@15-main.service"),
        ),
        (
            "/system.slice/system-systemd\\x2dfsck.slice/systemd-fsck@dev-disk-by\\x2duuid-AB.service",
            Some("systemd-fsck@dev-disk-by\\x2duuid-AB.service"),
        ),
        ("/init.scope", Some("init.scope")),
        ("/machine.slice/machine-debian.scope", Some("machine-debian.scope")),
        ("/system.slice/_cgroup.service", Some("cgroup.service")),
        ("/", None),
        ("/system.slice", None),
        ("/user.slice/user-1000.slice", None),
        ("/system.slice/.service", None),
        ("/lxc.payload.web/x", None),
    ];
    for (path, wanted) in cases {
        assert_eq!(unit(path).as_deref(), wanted, "{path}");
    }
}

/// Of a user's service, the unit is the user's; what is in no service of the user's belongs to the manager.
#[test]
fn units_of_users() {
    let user = "/user.slice/user-1000.slice";
    let cases = [
        ("/session-2.scope", "session-2.scope"),
        ("/user@1000.service/init.scope", "init.scope"),
        ("/user@1000.service/app.slice/syncthing.service", "syncthing.service"),
        (
            "/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1.scope",
            "vte-spawn-1.scope",
        ),
        ("/user@1000.service/app.slice/syncthing.service/inner.scope", "syncthing.service"),
        ("/user@1000.service", "user@1000.service"),
    ];
    for (path, wanted) in cases {
        assert_eq!(unit(&format!("{user}{path}")).as_deref(), Some(wanted), "{path}");
    }
}

/// Containers of each runtime, under systemd and in plain control groups.
#[test]
fn containers() {
    let cases = [
        (format!("/system.slice/docker-{ID}.scope"), None),
        (format!("/docker/{ID}"), None),
        (format!("/system.slice/containerd.service/docker/{ID}"), Some("containerd.service")),
        (format!("/machine.slice/libpod-{ID}.scope"), None),
        (format!("/machine.slice/libpod-{ID}.scope/container"), None),
        (format!("/libpod_parent/libpod-{ID}"), None),
        (format!("/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope"), None),
        (format!("/system.slice/web.service/libpod-payload-{ID}"), Some("web.service")),
        (
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
            Some("user@1000.service"),
        ),
        (format!("/system.slice/nerdctl-{ID}.scope"), None),
        (format!("/system.slice/crio-{ID}.scope"), None),
        // A container with a systemd of its own, and one in a container.
        (format!("/system.slice/docker-{ID}.scope/init.scope"), Some("init.scope")),
        (
            format!("/system.slice/docker-{ID}.scope/system.slice/nginx.service"),
            Some("nginx.service"),
        ),
        (format!("/docker/{OTHER}/docker/{ID}"), None),
    ];
    for (path, unit) in cases {
        let wanted = (unit.map(str::to_owned), Some(ID.to_owned()), None);
        assert_eq!(found(&path), wanted, "{path}");
    }
}

/// What only looks like a container is none: the monitor beside one, a pod's slice, other long names.
#[test]
fn no_containers() {
    for path in [
        format!("/machine.slice/libpod-conmon-{ID}.scope"),
        format!("/system.slice/crio-conmon-{ID}.scope"),
        format!("/machine.slice/machine-libpod_pod_{ID}.slice"),
        format!("/docker/{}", &ID[1..]),
        format!("/docker/{ID}0"),
        format!("/docker/{}", ID.to_uppercase()),
        "/process_api/48c3e79ebb990f952f013246506fe254".to_owned(),
    ] {
        let (_, container, pod) = found(&path);
        assert_eq!((container, pod), (None, None), "{path}");
    }
}

/// Pods of both drivers of the kubelet, all classes of service, and runtimes.
#[test]
fn pods() {
    let under = POD.replace('-', "_");
    let paths = [
        format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{ID}.scope"
        ),
        format!(
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice/crio-{ID}.scope"
        ),
        format!("/kubepods.slice/kubepods-pod{under}.slice/docker-{ID}.scope"),
        format!("/kubepods/burstable/pod{POD}/{ID}"),
        format!("/kubepods/pod{POD}/{ID}"),
        format!("/kubepods/besteffort/pod{POD}/crio-{ID}"),
        format!("/system.slice/kubepods-burstable-pod{under}.slice:cri-containerd:{ID}"),
        // kind: a node that is itself a container.
        format!("/docker/{OTHER}/kubelet/kubepods/burstable/pod{POD}/{ID}"),
        format!(
            "/system.slice/docker-{OTHER}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{under}.slice/cri-containerd-{ID}.scope"
        ),
        // Seen from another control group namespace.
        format!(
            "/../../kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{ID}.scope"
        ),
    ];
    for path in paths {
        let wanted = (None, Some(ID.to_owned()), Some(POD.to_owned()));
        assert_eq!(found(&path), wanted, "{path}");
    }
    let fixed = "0123456789abcdef0123456789abcdef";
    let (_, _, pod) = found(&format!("/kubepods/burstable/pod{fixed}/{ID}"));
    assert_eq!(pod.as_deref(), Some(fixed), "a static pod");
    for path in ["/kubepods/podsandbox", "/tripod2d7e3f1c", "/kubepods/pod2d7e3f1c-5c1a", "/pod"] {
        assert_eq!(found(path).2, None, "{path}");
    }
}

/// Version 1 has a line per hierarchy, and a hybrid both; the one that tells is taken.
#[test]
fn versions_of_control_groups() {
    let v1 = format!(
        "12:pids:/docker/{ID}\n11:cpu,cpuacct:/docker/{ID}\n9:name=systemd:/docker/{ID}\n4:memory:/docker/{ID}\n"
    );
    let labels = Labels::parse("/bin/svc", v1.as_bytes());
    assert_eq!(labels.container.as_deref(), Some(ID));
    assert_eq!(labels.cgroup, Some(format!("/docker/{ID}")));

    let hybrid = "5:memory:/limits/a\n1:name=systemd:/system.slice/cron.service\n0::/\n";
    let labels = Labels::parse("/bin/svc", hybrid.as_bytes());
    assert_eq!(labels.unit.as_deref(), Some("cron.service"));
    assert_eq!(labels.cgroup.as_deref(), Some("/system.slice/cron.service"));

    let elsewhere = "9:name=systemd:/\n4:memory:/api/48c3\n1:cpu:/\n0::/\n";
    assert_eq!(Labels::parse("x", elsewhere.as_bytes()).cgroup.as_deref(), Some("/api/48c3"));
    assert_eq!(unified("/").cgroup.as_deref(), Some("/"));
    assert_eq!(Labels::parse("x", b"").cgroup, None);
}

/// A path may have colons, and a group may be gone.
#[test]
fn odd_lines() {
    assert_eq!(unified("/a:b/c:d.service").unit.as_deref(), Some("c:d.service"));
    assert_eq!(unified("/system.slice/x.service (deleted)").unit.as_deref(), Some("x.service"));
    assert_eq!(Labels::parse("/usr/bin/svc (deleted)", b"").exe, "svc");
    for garbage in ["", "\n\n", "0", "0:", "0::", "0::relative", "::::", "0:\0:/x"] {
        let _ = Labels::parse("", garbage.as_bytes());
    }
    assert_eq!(Labels::parse("x", b"0::relative\n").cgroup, None);
}

/// Whatever a name holds: a label is bounded, one line, and says nothing to a terminal.
#[test]
fn hostile_names() {
    let long = format!("/{}", "a".repeat(100_000));
    let cgroup = unified(&long).cgroup.unwrap();
    assert_eq!(cgroup.chars().count(), MAX_LABEL_CHARS + 1);
    assert!(cgroup.ends_with('…'));

    let labels = Labels::parse("/tmp/\x1b[2Jevil", b"0::/a\x1b[31m\xff\x07.service\n");
    for text in [Some(&labels.exe), labels.cgroup.as_ref()].into_iter().flatten() {
        assert!(text.chars().all(|c| c.is_ascii_graphic()), "{text}");
    }
    assert_eq!(labels.unit, None);
    assert_eq!(unit(&format!("/{}.service", "u".repeat(250))), None, "no unit is so long");
    // systemd's escapes stay readable; names that differ stay different.
    assert_eq!(unified("/dev-disk\\x2duuid.slice").cgroup.unwrap(), "/dev-disk\\x2duuid.slice");
    let byte = Labels::parse("x", b"0::/\xff\n").cgroup;
    assert_ne!(byte, unified("/\\xff").cgroup);
    assert_ne!(unified("/\u{1b}").cgroup, unified("/\\u{1b}").cgroup);
}

/// The reader takes a process's own file, and says when the process is gone.
#[test]
fn reads_from_procfs() {
    let proc = tempfile::tempdir().unwrap();
    std::fs::create_dir(proc.path().join("42")).unwrap();
    std::fs::write(proc.path().join("42/cgroup"), "0::/system.slice/cron.service\n").unwrap();
    let labels = Labels::read(proc.path(), 42, "/usr/sbin/cron").unwrap();
    assert_eq!((labels.exe.as_str(), labels.unit.as_deref()), ("cron", Some("cron.service")));
    let gone = Labels::read(proc.path(), 43, "/usr/sbin/cron").unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
}

proptest::proptest! {
    /// No bytes make the parser fail, and every label is bounded.
    #[test]
    fn any_bytes(exe in ".{0,64}", text in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let labels = Labels::parse(&exe, &text);
        let all = [Some(labels.exe), labels.cgroup, labels.unit, labels.container, labels.pod];
        for label in all.into_iter().flatten() {
            proptest::prop_assert!(label.chars().count() <= MAX_LABEL_CHARS + 1);
            proptest::prop_assert!(!label.contains(char::is_control));
        }
    }
}
