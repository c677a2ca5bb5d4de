//! A process's memory and the machine's pressure, as far as two small files tell.

use std::fs;

use crate::growth::MemoryReading;

/// What `/proc/PID/status` and `stat` say; `None` once the process is gone.
pub(super) fn read(pid: u32) -> Option<MemoryReading> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&status, &String::from_utf8_lossy(&stat))
}

fn parse(status: &str, stat: &str) -> Option<MemoryReading> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    // The name may hold anything, blanks and parentheses too: the fields begin after the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some(MemoryReading {
        rss_bytes: bytes("VmRSS")?,
        anon_bytes: bytes("RssAnon")?,
        file_bytes: bytes("RssFile")?,
        shmem_bytes: bytes("RssShmem")?,
        swap_bytes: bytes("VmSwap")?,
        vsz_bytes: bytes("VmSize")?,
        minor_faults: minor,
        major_faults: major,
        ..MemoryReading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both files as the kernel writes them, with a name that looks like fields; a zombie has no memory.
    #[test]
    fn files() {
        let status = "Name:\tsvc\nVmSize:\t  9000 kB\nVmRSS:\t    2048 kB\nRssAnon:\t 1024 kB\n\
                      RssFile:\t 1000 kB\nRssShmem:\t 24 kB\nVmSwap:\t 0 kB\n";
        let stat = "7 (a) R 1 2) S 1 7 7 0 -1 4194304 321 0 5 0 1 2 0 0 20 0 1 0 99";
        let reading = parse(status, stat).unwrap();
        assert_eq!((reading.rss_bytes, reading.anon_bytes), (2 << 20, 1 << 20));
        assert_eq!((reading.minor_faults, reading.major_faults), (321, 5));
        assert_eq!(parse("Name:\tsvc\n", stat), None);
        assert_eq!(parse(status, "7 (svc"), None);
        assert!(read(std::process::id()).unwrap().rss_bytes > 0);
    }
}
