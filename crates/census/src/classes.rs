//! Size classes of a malloc without size classes of its own: exact to 1 KiB, then four to each power of two.

/// Chunks up to this size have a class for each multiple of 16.
const EXACT: u64 = 1024;

/// The class of a chunk of so many bytes.
pub(crate) fn class_of(bytes: u64) -> u16 {
    if bytes <= EXACT {
        return (bytes.div_ceil(16)) as u16;
    }
    // The position of the highest bit, and the two bits below it, rounded up.
    let last = bytes - 1;
    let power = last.ilog2();
    let quarter = last >> (power - 2) & 3;
    (EXACT / 16 + u64::from(power - 10) * 4 + quarter + 1) as u16
}

/// The largest chunk of a class.
pub(crate) fn largest(class: u16) -> u64 {
    let class = u64::from(class);
    if class <= EXACT / 16 {
        return class * 16;
    }
    let (power, quarter) = ((class - EXACT / 16 - 1) / 4 + 10, (class - EXACT / 16 - 1) % 4);
    (1 << power) + ((quarter + 1) << (power - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every size lies in a class whose largest member is at least as large, and within a quarter of it.
    #[test]
    fn covers_all() {
        for bytes in (16..40_000).chain((1..60).map(|power| 1 << power)).chain([u64::MAX >> 2]) {
            let most = largest(class_of(bytes));
            assert!(most >= bytes && most - bytes < (bytes / 4).max(16), "{bytes}: {most}");
            assert_eq!(class_of(most), class_of(bytes));
            assert_ne!(class_of(most + 1), class_of(bytes));
        }
    }
}
