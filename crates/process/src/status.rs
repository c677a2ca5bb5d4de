//! The words of `/proc/PID/status`. Text alone.

/// The words of the line that begins with `key`.
fn words<'a>(status: &'a str, key: &str) -> Option<std::str::SplitAsciiWhitespace<'a>> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(str::split_ascii_whitespace)
}

pub(crate) fn number(status: &str, key: &str, index: usize) -> Option<u32> {
    words(status, key)?.nth(index)?.parse().ok()
}

pub(crate) fn last_number(status: &str, key: &str) -> Option<u32> {
    words(status, key)?.next_back()?.parse().ok()
}
