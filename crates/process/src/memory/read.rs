//! Reads the memory of processes from `/proc` and from their control groups.
//!
//! Two small files per process, three with its control group, and the group's own files once for all of its processes.
//! `smaps_rollup` is read only when asked for. Called by the loops of `cli` and by the daemon.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    GroupPressure, MemoryReading, MemoryShares, Pressure, PressureError,
    cgroup::{Groups, Mounts},
    parse, pressure as psi,
};
use crate::{
    guard::{self, Stuck},
    readers::{self, Asked},
};

/// `status`, `stat`, `cgroup` and `smaps_rollup` are a few KiB; what is longer is not read to its end.
const MAX_BYTES: u64 = 64 << 10;
/// A machine with many containers has thousands of mounts.
const MAX_MOUNTS: u64 = 16 << 20;

/// The memory of a process, and the pressure on its control group.
pub type WithPressure = (MemoryReading, Option<GroupPressure>);

/// Reads the memory of many processes, and each control group once.
#[derive(Clone, Debug)]
pub struct MemoryReader {
    proc: PathBuf,
    mounts: Mounts,
    groups: Groups,
}

impl Default for MemoryReader {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryReader {
    /// For the machine that we run on. Reads where control groups are mounted.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Path::new("/"))
    }

    /// The same below a directory that holds `proc`, and what is mounted.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let proc = root.join("proc");
        let mut mounts = Vec::new();
        let mountinfo = File::open(proc.join("self/mountinfo"));
        // Without it no control group is found, and its figures are null.
        let _ = mountinfo.and_then(|file| file.take(MAX_MOUNTS).read_to_end(&mut mounts));
        let mounts = Mounts::parse(&String::from_utf8_lossy(&mounts), root);
        Self { proc, mounts, groups: Groups::default() }
    }

    /// Begins another round: figures of control groups are read again.
    pub fn begin(&mut self) {
        self.groups.forget();
    }

    /// The memory of a process now; `None` where it is gone, or has none (a zombie, a thread of the kernel), or where
    /// its files cannot be read. `with_pss` reads `smaps_rollup` too, which takes the kernel a walk over its page tables;
    /// where that may not be read, its figures are null.
    ///
    /// A number can belong to another process by now: who keeps readings of one process compares its start time.
    pub fn read(&mut self, pid: u32, with_pss: bool) -> Option<MemoryReading> {
        self.read_with_pressure(pid, with_pss).map(|(reading, _)| reading)
    }

    /// The same, with the pressure on the process's own control group; `None` where the kernel does not report it.
    pub fn read_with_pressure(&mut self, pid: u32, with_pss: bool) -> Option<WithPressure> {
        let texts = MemoryTexts::read(&self.proc, pid)?;
        let (mut reading, pressure) = self.reading(&texts)?;
        if let Some(shares) = with_pss.then(|| shares(&self.proc, pid)).flatten() {
            (reading.pss_bytes, reading.uss_bytes) =
                (Some(shares.pss_bytes), Some(shares.uss_bytes));
        }
        Some((reading, pressure))
    }

    /// The memory of many processes, with the pressure on their control groups, for loops: a process that the kernel does
    /// not answer for is left out.
    pub fn read_each(
        &mut self,
        pids: impl IntoIterator<Item = u32>,
    ) -> Vec<(u32, Option<WithPressure>)> {
        let proc = self.proc.clone();
        let texts = move |pid, ()| MemoryTexts::read(&proc, pid);
        let all = readers::each(pids.into_iter().map(|pid| (pid, ())), texts);
        all.into_iter()
            .map(|(pid, texts)| (pid, texts.and_then(|texts| self.reading(&texts))))
            .collect()
    }

    /// What the texts of a process say.
    fn reading(&mut self, texts: &MemoryTexts) -> Option<WithPressure> {
        let status = parse::status(&texts.status)?;
        let [minor_faults, major_faults] = parse::faults(&texts.stat)?;
        let Self { mounts, groups, .. } = self;
        let group =
            texts.cgroup.as_deref().map(|text| groups.look(mounts, text)).unwrap_or_default();
        let reading = MemoryReading {
            rss_bytes: status.rss,
            anon_bytes: status.anon,
            file_bytes: status.file,
            shmem_bytes: status.shmem,
            swap_bytes: status.swap,
            vsz_bytes: status.vsz,
            pss_bytes: None,
            uss_bytes: None,
            minor_faults,
            major_faults,
            cgroup_bytes: group.used,
            cgroup_limit_bytes: group.limit,
            cgroup_room_bytes: group.room,
        };
        Some((reading, group.pressure))
    }

    /// Begins to read what these processes share of their memory, one after the other, for up to `budget`.
    ///
    /// # Errors
    ///
    /// Too many readers are left behind.
    pub fn begin_shares(
        &self,
        pids: Vec<u32>,
        budget: Duration,
    ) -> Result<Asked<SharesRead>, Stuck> {
        let proc = self.proc.clone();
        readers::start(move || {
            let mut all = Vec::new();
            let mut spent = Duration::ZERO;
            for pid in pids {
                if spent >= budget {
                    break;
                }
                if !readers::may_read(pid) {
                    continue;
                }
                let began = Instant::now();
                let found = guard::ask_process(pid, || shares(&proc, pid));
                let took = began.elapsed();
                spent += took;
                all.push((pid, found, took));
            }
            all
        })
    }

    /// Pressure on the machine's memory; `None` where the kernel has no PSI, or has it switched off.
    pub fn pressure(&self) -> Result<Option<Pressure>, PressureError> {
        psi::read(&self.proc)
    }
}

/// The memory of one process now; see [`MemoryReader::read`], which is cheaper for many.
#[must_use]
pub fn read(pid: u32, with_pss: bool) -> Option<MemoryReading> {
    MemoryReader::new().read(pid, with_pss)
}

/// Pressure on the machine's memory now; see [`MemoryReader::pressure`].
pub fn pressure() -> Result<Option<Pressure>, PressureError> {
    psi::read(Path::new("/proc"))
}

/// What was read of processes' shares: the process, its shares if they could be read, and what the reading took.
pub type SharesRead = Vec<(u32, Option<MemoryShares>, Duration)>;

/// A process's part of memory that it shares, and what is its alone: the kernel walks all of its page tables for that.
/// `None` where they cannot be read.
fn shares(proc: &Path, pid: u32) -> Option<MemoryShares> {
    let path = proc.join(pid.to_string()).join("smaps_rollup");
    let [pss_bytes, uss_bytes] = parse::rollup(&text(&path)?)?;
    Some(MemoryShares { pss_bytes, uss_bytes })
}

/// What the files of a process say.
struct MemoryTexts {
    status: String,
    stat: String,
    cgroup: Option<String>,
}

impl MemoryTexts {
    fn read(proc: &Path, pid: u32) -> Option<Self> {
        let directory = proc.join(pid.to_string());
        let all = || {
            let status = text(&directory.join("status"))?;
            let stat = text(&directory.join("stat"))?;
            Some(Self { status, stat, cgroup: text(&directory.join("cgroup")) })
        };
        guard::ask_process(pid, all)
    }
}

/// A file's text. Bytes that are no UTF-8, which a process's name may have, become `?`.
fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::with_capacity(2048);
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| {
        let mut bytes = error.into_bytes();
        bytes.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        String::from_utf8_lossy(&bytes).into_owned()
    }))
}

/// When the next look is due, in seconds, if looks are `period` apart on average: between half and one and a half of it,
/// by a fixed sequence of numbers without a pattern.
///
/// Looks at equal distances see a saw-tooth whose period is nearly theirs as one that rises for hours.
#[must_use]
pub fn next_look(looks: u64, period: f64) -> f64 {
    // SplitMix64 (Steele, Lea and Flood, 2014): consecutive numbers in, independent ones out.
    let mut mixed = looks.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let part = (mixed >> 11) as f64 / (1u64 << 53) as f64;
    period * (0.5 + part)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STATUS: &str = "Name:\tsvc\nVmSize:\t 80 kB\nVmRSS:\t 40 kB\nRssAnon:\t 10 kB\nRssFile:\t 30 kB\nRssShmem:\t 0 kB\nVmSwap:\t 8 kB\n";
    const STAT: &str = "42 (svc) S 1 42 42 0 -1 4194560 777 8 5 2 10 3 0 0";

    const PRESSURE: &str = "some avg10=50.00 avg60=0.00 avg300=0.00 total=1\n\
        full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

    fn fixture() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n"),
            ("proc/42/status", STATUS),
            ("proc/42/stat", STAT),
            ("proc/42/cgroup", "0::/svc\n"),
            (
                "proc/42/smaps_rollup",
                "0-1 [rollup]\nPss: 20 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 9 kB\n",
            ),
            ("cg/svc/memory.current", "1000\n"),
            ("cg/svc/memory.max", "3000\n"),
            ("cg/svc/memory.pressure", PRESSURE),
        ];
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// All files of a process come together in one reading.
    #[test]
    #[allow(clippy::float_cmp, reason = "a half is exact")]
    fn one_reading() {
        let root = fixture();
        let mut reader = MemoryReader::at(root.path());
        let expected = MemoryReading {
            rss_bytes: 40 << 10,
            anon_bytes: 10 << 10,
            file_bytes: 30 << 10,
            shmem_bytes: 0,
            swap_bytes: 8 << 10,
            vsz_bytes: 80 << 10,
            pss_bytes: None,
            uss_bytes: None,
            minor_faults: 777,
            major_faults: 5,
            cgroup_bytes: Some(1000),
            cgroup_limit_bytes: Some(3000),
            cgroup_room_bytes: Some(2000),
        };
        assert_eq!(reader.read(42, false), Some(expected));
        let with =
            MemoryReading { pss_bytes: Some(20 << 10), uss_bytes: Some(10 << 10), ..expected };
        assert_eq!(reader.read(42, true), Some(with));
        assert_eq!(reader.pressure().unwrap(), None);
        let (_, pressure) = reader.read_with_pressure(42, false).unwrap();
        assert_eq!(pressure.unwrap().pressure.some.avg10, 0.5);
        fs::write(root.path().join("cg/svc/memory.current"), "2000\n").unwrap();
        assert_eq!(reader.read(42, false), Some(expected), "the same look");
        reader.begin();
        let later = reader.read(42, false).unwrap();
        assert_eq!((later.cgroup_bytes, later.cgroup_room_bytes), (Some(2000), Some(1000)));
    }

    /// Whichever file goes first when a process ends, there is no reading, or one without what could not be read.
    #[test]
    fn gone_in_the_middle() {
        for (file, reading) in
            [("status", false), ("stat", false), ("cgroup", true), ("smaps_rollup", true)]
        {
            let root = fixture();
            fs::remove_file(root.path().join("proc/42").join(file)).unwrap();
            let found = MemoryReader::at(root.path()).read(42, true);
            assert_eq!(found.is_some(), reading, "{file}");
        }
        let root = fixture();
        let mut reader = MemoryReader::at(root.path());
        assert_eq!(reader.read(43, false), None);
        fs::write(root.path().join("proc/42/status"), "Name:\tsvc\nState:\tZ (zombie)\n").unwrap();
        assert_eq!(reader.read(42, false), None, "a zombie");
    }

    /// Without mounts, names in UTF-8 or an end, the rest is still read, and no more than its bound.
    #[test]
    fn hostile_files() {
        let root = fixture();
        fs::remove_file(root.path().join("proc/self/mountinfo")).unwrap();
        let mut status = b"Name:\t\xff\xfe\n".to_vec();
        status.extend_from_slice(STATUS.as_bytes());
        status.extend(vec![b'x'; 4 << 20]);
        fs::write(root.path().join("proc/42/status"), status).unwrap();
        let mut reader = MemoryReader::at(root.path());
        let found = reader.read(42, false).unwrap();
        assert_eq!((found.rss_bytes, found.cgroup_bytes), (40 << 10, None));
    }

    /// The real files of this very process are understood, and agree with each other.
    #[test]
    fn own_memory() {
        let found = read(std::process::id(), true).unwrap();
        assert!(found.rss_bytes > 0 && found.vsz_bytes > found.rss_bytes, "{found:?}");
        assert_eq!(found.rss_bytes, found.anon_bytes + found.file_bytes + found.shmem_bytes);
        assert!(found.pss_bytes > Some(0) && found.uss_bytes <= found.pss_bytes, "{found:?}");
        assert!(found.minor_faults > 0);
        pressure().unwrap();
    }

    /// Looks are a period apart on average, never less than half of it, and meet all parts of a saw-tooth of that period.
    #[test]
    fn looks_do_not_keep_step() {
        let mut at = 0.0;
        let mut parts = [0u32; 10];
        for look in 0..1_000 {
            let step = next_look(look, 5.0);
            assert!((2.5..=7.5).contains(&step));
            at += step;
            #[allow(clippy::cast_sign_loss, reason = "time is positive")]
            let part = ((at / 5.0_f64).fract() * 10.0) as usize;
            parts[part.min(9)] += 1;
        }
        assert!((at - 5_000.0).abs() < 200.0, "{at}");
        assert!(parts.iter().all(|&part| (50..200).contains(&part)), "{parts:?}");
    }
}
