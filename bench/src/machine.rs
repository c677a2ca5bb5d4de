//! What the figures were measured on.

use std::{fs, process::Command};

use drainprof_tests::{
    environment::{drainprof, kernel_release, which},
    postgresql,
};

use crate::model::Machine;

/// Programs and how to ask for their versions.
const PROGRAMS: [(&str, &[&str]); 6] = [
    ("bpftrace", &["--version"]),
    ("perf", &["--version"]),
    ("heaptrack", &["--version"]),
    ("valgrind", &["--version"]),
    ("nginx", &["-v"]),
    ("gcc", &["--version"]),
];

/// The machine and the versions of what is compared.
pub(crate) fn describe() -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let mut versions = vec![("drainprof".to_owned(), own_version())];
    for (program, args) in PROGRAMS {
        let version = which(program)
            .and_then(|path| first_line(Command::new(path).args(args)))
            .unwrap_or_else(|| "not installed".to_owned());
        versions.push((program.to_owned(), version));
    }
    let server = postgresql::binaries().map(|directory| directory.join("postgres"));
    let version = server.and_then(|path| first_line(Command::new(path).arg("--version")));
    versions.push(("postgres".to_owned(), version.unwrap_or_else(|| "not installed".to_owned())));
    let libc = first_line(Command::new("ldd").arg("--version"));
    versions.push(("glibc".to_owned(), libc.unwrap_or_else(|| "unknown".to_owned())));
    Machine {
        kernel: kernel_release(),
        cpu: field("model name").unwrap_or_else(|| "unknown".to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        is_virtual: field("flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        memory_gib: memory_gib(),
        versions,
    }
}

fn own_version() -> String {
    drainprof()
        .ok()
        .and_then(|path| first_line(Command::new(path).arg("--version")))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn memory_gib() -> f64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1_048_576.0
}

/// Load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Today, in UTC.
pub(crate) fn date() -> String {
    first_line(Command::new("date").args(["-u", "+%Y-%m-%d"])).unwrap_or_default()
}

/// The first line of what a program prints, on stdout or (nginx) on stderr.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
}
