//! The version of glibc, by the sentence in its constants: for notes only.

use crate::space::{PAGE, RangeKind, Space};

/// What stands before the version.
const BANNER: &[u8] = b"GNU C Library (";
const VERSION: &[u8] = b"stable release version ";
/// Bytes of the sentence, and of a version.
const MAX_BANNER: usize = 200;
const MAX_VERSION: usize = 12;
/// Constants that are searched, at most, and at once.
const MAX_SEARCHED: u64 = 64 << 20;
const PIECE_BYTES: u64 = 1 << 20;

/// The version that the library names, such as `2.36`.
pub(super) fn version(space: &Space<'_>) -> Option<String> {
    let mut left = MAX_SEARCHED;
    let constants = space.ranges.iter().filter(|one| one.kind == RangeKind::File && !one.writable);
    for range in constants {
        let mut at = range.start;
        let mut piece = vec![0; (PIECE_BYTES + PAGE) as usize];
        while at < range.end && left > 0 {
            let wanted = piece.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
            let read = space.read_constant(at, &mut piece[..wanted]);
            if let Some(version) = in_bytes(&piece[..read]) {
                return Some(version);
            }
            at = at.saturating_add(PIECE_BYTES);
            left = left.saturating_sub(PIECE_BYTES);
        }
    }
    None
}

fn in_bytes(bytes: &[u8]) -> Option<String> {
    let found = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|at| at == what);
    let banner = &bytes[found(bytes, BANNER)?..];
    let banner = &banner[..banner.len().min(MAX_BANNER)];
    let version = &banner[found(banner, VERSION)? + VERSION.len()..];
    let digits =
        version.iter().take(MAX_VERSION).take_while(|byte| matches!(byte, b'0'..=b'9' | b'.'));
    let version: String = digits.map(|byte| char::from(*byte)).collect();
    let version = version.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}
