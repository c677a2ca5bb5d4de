//! One probe as the kernel's own event, and the link from it to a program: `perf_event_open` and `bpf`.
//!
//! aya 0.14 attaches such probes, too, but with its own hold on the program, so that it cannot be done on another thread,
//! and without a reference counter: the semaphore of a USDT probe, which the kernel raises while the probe is in place and
//! lowers when it goes, also where this process is killed. The kernel counts in the very processes that the probe is in,
//! and remembers the counter's offset in the file with the probe: all probes at one place must name the same one.
//! Called by `attach` and `empty`, through `placing`.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    sync::OnceLock,
};

use nix::libc;

use super::{location::Location, syscall};

/// Where the kernel describes its probes on functions.
const DEVICE: &str = "/sys/bus/event_source/devices/uprobe";
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// What the kernel calls `struct perf_event_attr`, in its first version that has `config2`; it takes shorter ones than its
/// own.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    /// The address of the file's path.
    config1: u64,
    /// The offset in it.
    config2: u64,
}
const _: () = assert!(size_of::<Event>() == 72, "PERF_ATTR_SIZE_VER1");

/// What the kernel says of its probes on functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    kind: u32,
    /// The bit of the configuration for a probe at a function's return.
    at_return: u32,
    /// The bit of the configuration from which on the counter's offset stands.
    counter_shift: u32,
}

impl Device {
    fn read() -> io::Result<Self> {
        static KNOWN: OnceLock<Device> = OnceLock::new();
        if let Some(known) = KNOWN.get() {
            return Ok(*known);
        }
        let read = |name: &str| fs::read_to_string(format!("{DEVICE}/{name}"));
        let counter = read("format/ref_ctr_offset")?;
        let found = Self::parse(&read("type")?, &read("format/retprobe")?, &counter)?;
        Ok(*KNOWN.get_or_init(|| found))
    }

    fn parse(kind: &str, at_return: &str, counter: &str) -> io::Result<Self> {
        let unknown =
            || io::Error::other(format!("{DEVICE} describes its probes in an unknown way"));
        let kind = kind.trim().parse().map_err(|_| unknown())?;
        let bits = counter.trim().strip_prefix("config:").ok_or_else(unknown)?;
        let (first, last) = bits.split_once('-').ok_or_else(unknown)?;
        let bit = |text: &str| text.parse::<u32>().map_err(|_| unknown());
        let at_return = bit(at_return.trim().strip_prefix("config:").ok_or_else(unknown)?)?;
        let (first, last) = (bit(first)?, bit(last)?);
        // Offsets have 32 bits.
        let are_known = first < 64 && last < 64 && last == first + 31 && at_return < first;
        are_known.then_some(()).ok_or_else(unknown)?;
        Ok(Self { kind, at_return, counter_shift: first })
    }
}

/// Puts `program` in its place, at the entry or at the return of the function that begins there. The probe goes when what
/// is returned is closed.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    at_return: bool,
    location: &Location,
) -> io::Result<OwnedFd> {
    let Location { ref path, offset, counter, cookie, pid } = *location;
    let device = Device::read()?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let event = Event {
        kind: device.kind,
        size: size_of::<Event>() as u32,
        config: u64::from(at_return) << device.at_return
            | u64::from(counter.unwrap_or_default()) << device.counter_shift,
        config1: path.as_ptr() as u64,
        config2: offset,
        ..Event::default()
    };
    // One process on whatever CPU, or all processes: then any CPU stands for all of them.
    let (pid, cpu) = pid.map_or((-1, 0), |pid| (pid.get().cast_signed(), -1));
    // SAFETY: the kernel reads the event, of the stated size, and the path in it, which ends with 0.
    let result = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const event, pid, cpu, -1, CLOSE_ON_EXEC)
    };
    let event = syscall::owned(result).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) if counter.is_some() => io::Error::other(format!(
            "{error}: the kernel refuses it, perhaps because another tool probes the same place without its semaphore"
        )),
        _ => error,
    })?;
    // The link keeps the event.
    syscall::link_event(program, event.as_fd(), cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel says where in the configuration a counter's offset stands; what it does not say is not guessed.
    #[test]
    fn device_is_parsed() {
        let device = Device::parse("8\n", "config:0\n", "config:32-63\n").unwrap();
        assert_eq!(device, Device { kind: 8, at_return: 0, counter_shift: 32 });
        for (kind, at_return, counter) in [
            ("", "config:0", "config:32-63"),
            ("8", "config:0", "config1:32-63"),
            ("8", "config:0", "config:32"),
            ("8", "config:0", "config:0-63"),
            ("8", "config:0", "config:40-71"),
            ("8", "config:0", "config:4294967295-30"),
            ("8", "config:32", "config:32-63"),
            ("8", "config1:0", "config:32-63"),
            ("8", "", "config:32-63"),
        ] {
            assert!(Device::parse(kind, at_return, counter).is_err(), "{kind} {counter}");
        }
    }
}
