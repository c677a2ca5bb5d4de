//! Damaged and malicious files: no panic, no hang, no memory without limit.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    contents::{Contents, MAX_NAME, Names, Strings},
    *,
};
use crate::testing::{library, open, parsers};

/// A cheap generator of numbers, the same in every run, so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }
}

fn samples(dir: &Path) -> Vec<Vec<u8>> {
    [&["-gdwarf-5"][..], &["-gdwarf-4", "-gz=zlib", "-fdebug-types-section"]]
        .iter()
        .map(|args| fs::read(library(dir, "libsample.so", args)).unwrap())
        .collect()
}

/// Every truncation and thousands of flipped bytes give an answer or an error, in bounded time.
#[test]
fn truncated_and_flipped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged");
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    for sample in samples(dir.path()) {
        let headers =
            usize::try_from(u64::from_le_bytes(sample[40..48].try_into().unwrap())).unwrap();
        for round in 0..2500 {
            let mut bytes = sample.clone();
            match round % 5 {
                0 => bytes.truncate(numbers.next(sample.len())),
                // The file header, the section headers: where counts and offsets are.
                1 => bytes[numbers.next(64)] = numbers.next(256) as u8,
                2 => {
                    let at = headers + numbers.next(sample.len() - headers);
                    bytes[at] = [0, 0xff, 0x7f, numbers.next(256) as u8][numbers.next(4)];
                }
                _ => {
                    for _ in 0..=numbers.next(16) {
                        let at = numbers.next(bytes.len());
                        bytes[at] = numbers.next(256) as u8;
                    }
                }
            }
            fs::write(&path, &bytes).unwrap();
            let start = Instant::now();
            parsers::elf(&path);
            slowest = slowest.max(start.elapsed());
        }
    }
    assert!(slowest < Duration::from_secs(10), "{slowest:?} for one file");
    assert!(started.elapsed() < Duration::from_secs(300));
}

fn section_header(bytes: &[u8], name: &str) -> usize {
    // The headers are 64 bytes each; the last section holds the names.
    let word = |at: usize| {
        usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
    };
    let half = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let (table, count, names) = (word(40), half(60), half(62));
    let names = word(table + names * 64 + 24);
    (0..count)
        .map(|index| table + index * 64)
        .find(|&at| {
            let start = names + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            bytes[start..].starts_with(format!("{name}\0").as_bytes())
        })
        .unwrap()
}

/// A compressed section that claims to be enormous is refused before anything is allocated.
#[test]
fn decompression_bomb() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "libbomb.so", &["-g", "-gz=zlib"]);
    let mut bytes = fs::read(&path).unwrap();
    let header = section_header(&bytes, ".debug_info");
    let offset = u64::from_le_bytes(bytes[header + 24..header + 32].try_into().unwrap());
    let size_at = usize::try_from(offset).unwrap() + 8;
    for claimed in [1_u64 << 40, u64::MAX] {
        bytes[size_at..size_at + 8].copy_from_slice(&claimed.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let error = open(&path, &[]).offset_of("pool_t", "live").unwrap_err();
        assert!(error.contains("section .debug_info of") && error.contains("128 MiB"), "{error}");
    }
    // One that is larger than it says is cut, not followed.
    bytes[size_at..size_at + 8].copy_from_slice(&16_u64.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    assert!(open(&path, &[]).offset_of("pool_t", "live").is_err());
}

/// Symbols and sections that claim more than the file has, or than is believed, are an error.
#[test]
fn huge_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "libhuge.so", &[]);
    let original = fs::read(&path).unwrap();
    let header = section_header(&original, ".symtab");
    for size in [u64::MAX, 1 << 62, 1 << 33, 24 * 1_000_000] {
        let mut bytes = original.clone();
        bytes[header + 32..header + 40].copy_from_slice(&size.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        assert!(Elf::open(&path, "huge", DebugSearch::default()).is_err(), "{size}");
    }
    // A sparse file makes room for the claim without having the bytes.
    let mut bytes = original.clone();
    bytes[header + 32..header + 40].copy_from_slice(&(4_u64 << 30).to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8 << 30).unwrap();
    let error = Elf::open(&path, "huge", DebugSearch::default()).unwrap_err().to_string();
    assert!(error.contains("symbol table"), "{error}");
}

/// Names in memory.
struct Bytes(Vec<u8>);

impl Names for Bytes {
    fn at(&mut self, at: u32) -> Result<Option<&[u8]>, String> {
        let rest = self.0.get(at as usize..).unwrap_or_default();
        let end = rest.iter().take(MAX_NAME).position(|&byte| byte == 0);
        Ok(end.map(|end| &rest[..end]))
    }
}

/// A million symbols that share one long name are found or refused quickly, and it is not copied.
#[test]
fn shared_long_names() {
    use symbols::{Entry, Unnamed};
    let held = Arc::<Held>::default();
    let table = |strings: Vec<u8>, places: &mut dyn Iterator<Item = u32>| {
        let mut symbols = Unnamed::new(&held);
        for (index, name_at) in places.enumerate() {
            symbols.push(Entry {
                name_at,
                name_length: 0,
                vaddr: index as u64,
                size: 1,
                kind: SymbolKind::Func,
                global: true,
            })?;
        }
        symbols.name(&mut Bytes(strings), &held)
    };
    let mut strings = vec![b'a'; MAX_NAME - 1];
    strings.push(0);
    let started = Instant::now();
    let error = table(strings.clone(), &mut std::iter::repeat_n(0, 4_000_000)).unwrap_err();
    assert!(error.contains("512 MiB"), "{error}");
    let error = table(strings.clone(), &mut std::iter::repeat_n(0, 5_000_000)).unwrap_err();
    assert!(error.contains("128 MiB"), "{error}");
    // The ends of one name are names.
    let found = table(strings, &mut (0..1000)).unwrap();
    assert_eq!(found.all().map(|symbol| symbol.name.len()).max(), Some(MAX_NAME - 1));
    assert_eq!(found.starting_with(&"a".repeat(MAX_NAME - 10)).count(), 10);
    drop(found);
    // Without an end, a name is passed over.
    let endless = vec![b'a'; 1 << 20];
    assert_eq!(table(endless, &mut (0..10)).unwrap().all().count(), 0);
    assert!(!held.is_tight(), "all is given back");
    assert!(started.elapsed() < Duration::from_secs(60));
}

/// Where a string table is far larger than its window, names are found wherever they are, and each is read once.
#[test]
fn names_in_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strings");
    let mut bytes = vec![b'x'; 1 << 20];
    for at in (99..bytes.len()).step_by(100) {
        bytes[at] = 0;
    }
    fs::write(&path, &bytes).unwrap();
    let contents = Contents::new(File::open(&path).unwrap());
    let mut strings = Strings::new(&contents, 100, (1 << 20) - 100);
    for at in [0_u32, 98, 99, 65_400, 65_535, 65_536, 1_000_000, 5, 1_048_300] {
        let length = 99 - (at as usize % 100);
        assert_eq!(strings.at(at).unwrap().map(<[u8]>::len), Some(length), "{at}");
    }
    // The last one has no end, and nothing is behind it.
    for at in [1_048_470_u32, (1 << 20) - 100, u32::MAX] {
        assert_eq!(strings.at(at).unwrap(), None, "{at}");
    }
    // A gibibyte of holes is not walked for ever.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(2 << 30).unwrap();
    let mut strings = Strings::new(&contents, 1 << 20, 1 << 30);
    let error = (0..).step_by(1 << 16).find_map(|at| strings.at(at).err()).unwrap();
    assert!(error.contains("512 MiB"), "{error}");
}

/// A debug link that tries to lead elsewhere is not followed.
#[test]
fn debug_links_are_plain_names() {
    let search = DebugSearch {
        process_root: None,
        object_path: Some(PathBuf::from("/usr/lib/x.so")),
        debug_dirs: vec![PathBuf::from("/extra")],
    };
    for name in ["../../etc/shadow", "/etc/shadow", "..", ""] {
        let found =
            debug::find(&search, None, Some(&(name.as_bytes().to_vec(), 0)), 0, &Arc::default());
        assert!(found.file.is_none() && found.tried.is_empty(), "{name}");
    }
    let found = debug::find(&search, None, Some(&(b"x.debug".to_vec(), 0)), 0, &Arc::default());
    for wanted in [
        "/usr/lib/x.debug",
        "/usr/lib/.debug/x.debug",
        "/extra/usr/lib/x.debug",
        "/usr/lib/debug/lib/x.debug",
    ] {
        assert!(found.tried.iter().any(|tried| tried == wanted), "{wanted}: {:?}", found.tried);
    }
    // A build id too short to have a directory.
    assert!(debug::find(&search, Some("a"), None, 0, &Arc::default()).file.is_none());
}
