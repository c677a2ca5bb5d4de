//! Texts of processes, and names in their files.

use drainprof_process::{compile_glob, testing::parsers, usdt};
use globset::Glob;

/// `/proc/PID/maps` and `smaps`.
pub(super) fn mappings(bytes: &[u8]) -> bool {
    parsers::mappings(bytes)
}

/// The other files of `/proc/PID`.
pub(super) fn process_texts(bytes: &[u8]) -> bool {
    parsers::process_texts(bytes)
}

/// What JIT compilers write.
pub(super) fn perf_map(bytes: &[u8]) -> bool {
    parsers::perf_map(bytes)
}

/// A line with a pattern, and a mangled name.
pub(super) fn demangle(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (pattern, name) = text.split_once('\n').unwrap_or(("*", &text));
    let shown = parsers::demangled(name);
    // As long as profiles and configurations may have them.
    let set = (pattern.len() <= 1024).then(|| Glob::new(pattern).and_then(compile_glob));
    let is_match = |shown: &str| set.is_some_and(|set| set.is_ok_and(|set| set.is_match(shown)));
    shown.is_some_and(|shown| is_match(&shown) || shown != name)
}

/// Where the arguments of USDT probes are.
pub(super) fn usdt(bytes: &[u8]) -> bool {
    usdt::arguments(&String::from_utf8_lossy(bytes)).iter().any(Result::is_ok)
}
