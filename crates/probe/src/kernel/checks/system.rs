//! What machine this is.

use super::super::host::word;
use crate::kernel::{Check, Class, HostView};

/// More processors than Linux supports.
const MAX_CPUS: u32 = 1 << 16;

pub(super) fn kernel(host: &dyn HostView) -> Check {
    const PATH: &str = "/proc/sys/kernel/osrelease";
    match word(host, PATH) {
        // Only shown: distributions port features back, so the number decides nothing.
        Ok(release) => Check::new("kernel", Class::Info).ok(format!("{release:.128}")),
        Err(error) => Check::unreadable("kernel", Class::Info, PATH, &error),
    }
}

pub(super) fn architecture(host: &dyn HostView) -> Check {
    let check = Check::new("architecture", Class::Feature).required();
    match host.architecture() {
        name @ "x86_64" => check.ok(name),
        name => check.fail(
            name,
            "the probes read arguments from x86-64 registers; nothing can be attached here",
            "use an x86-64 machine",
        ),
    }
}

pub(super) fn cpus(host: &dyn HostView) -> Check {
    let check = Check::new("cpus", Class::Info);
    match cpus_online(host) {
        Some(number) => check.ok(format!("{number} online")),
        None => check.warn(
            "the number of online processors cannot be found out",
            "the share of one processor that probing costs cannot be given as a share of the machine",
            "mount /sys",
        ),
    }
}

/// How many processors are online.
#[must_use]
pub fn cpus_online(host: &dyn HostView) -> Option<u32> {
    count(&word(host, "/sys/devices/system/cpu/online").ok()?)
}

/// Counts the members of a list such as `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let mut total = 0_u32;
    for range in list.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        total += to.checked_sub(from).filter(|&n| n < MAX_CPUS)? + 1;
        if total > MAX_CPUS {
            return None;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::count;

    /// Lists of processors are counted; what is no such list is not.
    #[test]
    fn processor_lists() {
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for odd in ["", "x", "3-1", "0-4294967295", "-", "0-", "0-65535,0-65535", "1,,2"] {
            assert_eq!(count(odd), None, "{odd:?}");
        }
    }
}
