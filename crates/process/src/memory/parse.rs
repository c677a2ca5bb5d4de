//! Reading the text of `/proc/PID/status`, `stat` and `smaps_rollup`. Pure: text in, numbers out.
//!
//! The texts are the kernel's, but a process chooses its own name, which stands in two of them. Called by `read`.

/// What `/proc/PID/status` says of memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) rss: u64,
    pub(super) anon: u64,
    pub(super) file: u64,
    pub(super) shmem: u64,
    pub(super) swap: u64,
    pub(super) vsz: u64,
}

/// The lines about memory; `None` where `VmRSS` is not among them, as of zombies and kernel threads.
pub(super) fn status(text: &str) -> Option<Status> {
    let mut status = Status::default();
    let mut resident = false;
    // A name cannot make lines of its own: the kernel escapes a newline in it.
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let field = match name {
            "VmRSS" => {
                resident = true;
                &mut status.rss
            }
            "RssAnon" => &mut status.anon,
            "RssFile" => &mut status.file,
            "RssShmem" => &mut status.shmem,
            "VmSwap" => &mut status.swap,
            "VmSize" => &mut status.vsz,
            _ => continue,
        };
        *field = kib(value)?;
    }
    resident.then_some(status)
}

/// Minor and major faults from `/proc/PID/stat`.
pub(super) fn faults(text: &str) -> Option<[u64; 2]> {
    // The name is in parentheses, and may hold spaces and parentheses itself: the last one ends it.
    let (_, rest) = text.rsplit_once(')')?;
    // From the state on, which is field 3: minflt is field 10, majflt field 12.
    let mut words = rest.split_ascii_whitespace().skip(7);
    let minor = words.next()?.parse().ok()?;
    let major = words.nth(1)?.parse().ok()?;
    Some([minor, major])
}

/// PSS and USS from `/proc/PID/smaps_rollup`, bytes.
pub(super) fn rollup(text: &str) -> Option<[u64; 2]> {
    let (mut pss, mut uss) = (None, None::<u64>);
    // The first line is a range of addresses with `[rollup]`.
    for line in text.lines().skip(1) {
        let Some((name, value)) = line.split_once(':') else { continue };
        match name {
            "Pss" => pss = Some(kib(value)?),
            "Private_Clean" | "Private_Dirty" | "Private_Hugetlb" => {
                uss = Some(uss.unwrap_or(0).saturating_add(kib(value)?));
            }
            _ => {}
        }
    }
    Some([pss?, uss?])
}

/// `"   1234 kB"` in bytes.
fn kib(value: &str) -> Option<u64> {
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tsvc\nUmask:\t0022\nVmPeak:\t  9000 kB\nVmSize:\t    8000 kB\nVmRSS:\t    4024 kB\n\
        RssAnon:\t    1000 kB\nRssFile:\t    3000 kB\nRssShmem:\t      24 kB\nVmSwap:\t       8 kB\nThreads:\t1\n";
    const ROLLUP: &str = "55d0c0a00000-7ffd3b3fe000 ---p 00000000 00:00 0  [rollup]\nRss:                4024 kB\n\
        Pss:                1200 kB\nPss_Dirty:           900 kB\nShared_Clean:       2000 kB\nPrivate_Clean:       100 kB\n\
        Private_Dirty:       900 kB\nPrivate_Hugetlb:    2048 kB\n";

    /// Each figure stands in its own field, in bytes.
    #[test]
    fn figures() {
        let found = status(STATUS).unwrap();
        let expected = Status {
            rss: 4024 << 10,
            anon: 1000 << 10,
            file: 3000 << 10,
            shmem: 24 << 10,
            swap: 8 << 10,
            vsz: 8000 << 10,
        };
        assert_eq!(found, expected);
        assert_eq!(rollup(ROLLUP), Some([1200 << 10, (100 + 900 + 2048) << 10]));
    }

    /// Zombies and kernel threads have no memory of their own, and kernels before 4.5 do not report the parts.
    #[test]
    fn without_memory() {
        assert_eq!(status("Name:\tkthreadd\nState:\tS (sleeping)\nThreads:\t1\n"), None);
        let old = status("VmSize:\t 8 kB\nVmRSS:\t 4 kB\n").unwrap();
        assert_eq!((old.rss, old.anon), (4096, 0));
    }

    /// A process that calls itself `) R 1 (` does not change its faults.
    #[test]
    fn hostile_names() {
        let rest = "S 1 42 42 0 -1 4194560 777 8 5 2 10 3";
        for name in ["svc", ") R 1 2 3 4 5 6 7 8 9 10 11 12 (", "a b\t)c", "", "((((", "))))"] {
            assert_eq!(faults(&format!("42 ({name}) {rest}")), Some([777, 5]), "{name}");
        }
        assert_eq!(status(&STATUS.replace("svc", "VmRSS: 1 kB")), status(STATUS));
    }

    /// Texts that are cut off, too large or no numbers give nothing, not a wrong figure.
    #[test]
    fn broken_texts() {
        for text in [
            "",
            ")",
            "1 (x)",
            "1 (x) S 1 1 1 0 -1 0 7",
            "1 (x) S 1 1 1 0 -1 0 7 0",
            "1 (x) S 1 1 1 0 -1 0 -7 0 1",
        ] {
            assert_eq!(faults(text), None, "{text}");
        }
        for value in [
            "",
            "kB",
            "4",
            "-4 kB",
            "4 MB",
            "18446744073709551615 kB",
            "99999999999999999999999 kB",
            "4 kB x",
        ] {
            assert_eq!(status(&format!("VmRSS:\t{value}\n")), None, "{value}");
            assert_eq!(rollup(&format!("x\nPss: {value}\nPrivate_Clean: 1 kB\n")), None, "{value}");
        }
        assert_eq!(rollup("x [rollup]\nPss: 1 kB\n"), None, "no private memory told");
    }

    /// However a text is cut off, reading it neither fails badly nor invents a larger figure.
    #[test]
    fn every_prefix() {
        let whole = status(STATUS).unwrap();
        for end in 0..STATUS.len() {
            let cut = status(&STATUS[..end]).unwrap_or_default();
            assert!(cut.rss <= whole.rss && cut.anon <= whole.anon && cut.swap <= whole.swap);
        }
        for end in 0..ROLLUP.len() {
            if let Some([pss, uss]) = rollup(&ROLLUP[..end]) {
                assert!(pss == 1200 << 10 && uss <= (3048 << 10));
            }
        }
    }
}
