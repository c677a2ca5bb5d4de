//! The symbol helper, as a process: right names from good files, and no harm from hostile ones.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use drainprof_process::symbolize::{Helper, HelperError, Name, Part};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

const LIMIT: Duration = Duration::from_secs(20);

const SOURCE: &str = "static volatile int sink;
static inline __attribute__((always_inline)) void step(int x) {
    sink = x;
    sink = x + 1;
}
__attribute__((noinline)) static int helper(int x) {
    step(x);
    return sink;
}
__attribute__((noinline)) int entry(int x) {
    return helper(x) + 1;
}
";

fn helper() -> Helper {
    Helper::new(PathBuf::from(env!("CARGO_BIN_EXE_drainprof")))
}

fn compile(directory: &Path, flags: &[&str]) -> PathBuf {
    let (source, output) = (directory.join("sample.c"), directory.join("libsample.so"));
    fs::write(&source, SOURCE).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-nostdlib"])
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&output)
        .status()
        .unwrap();
    assert!(status.success());
    output
}

/// The addresses of all functions, and some in between.
fn addresses(path: &Path) -> Vec<u64> {
    let data = fs::read(path).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let functions = file.symbols().filter(|symbol| symbol.size() > 0);
    functions
        .flat_map(|symbol| {
            [0, symbol.size() / 2, symbol.size() - 1].map(|at| symbol.address() + at)
        })
        .collect()
}

fn of<'a>(names: &'a [Option<Name>], function: &str) -> Vec<&'a Name> {
    names.iter().flatten().filter(|name| name.function == function).collect()
}

/// Functions, offsets, lines and inlined functions are those of the source.
#[test]
fn names_are_right() {
    let directory = tempfile::tempdir().unwrap();
    let mut helper = helper();
    for flags in [&["-gdwarf-5"][..], &["-gdwarf-4", "-gz=zlib"]] {
        let path = compile(directory.path(), flags);
        let file = File::open(&path).unwrap();
        let names = helper.ask(&[(Part::Object, &file)], &addresses(&path), LIMIT).unwrap().names;
        let entry = of(&names, "entry");
        assert_eq!(entry.len(), 3, "{names:?}");
        assert_eq!(entry[0].offset, Some(0));
        assert!(entry.iter().all(|name| matches!(name.line, Some(10..=12))), "{entry:?}");
        assert!(entry[0].file.as_ref().is_some_and(|file| file.ends_with("/sample.c")));
        let inlined: Vec<_> =
            of(&names, "helper").into_iter().filter(|name| !name.inlined.is_empty()).collect();
        let name = inlined.first().expect("some of helper's code is step's");
        assert_eq!((name.line, name.inlined[0].0.as_str()), (Some(7), "step"), "{name:?}");
        assert!(matches!(name.inlined[0].2, Some(3 | 4)), "{name:?}");
        // A second question about the same object, and one about nothing.
        assert_eq!(helper.ask(&[(Part::Object, &file)], &[u64::MAX], LIMIT).unwrap().names, [None]);
    }
}

/// The debug file knows what the object does not.
#[test]
fn debug_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), &["-g"]);
    let [stripped, debug] = ["stripped", "debug"].map(|name| directory.path().join(name));
    for (flag, output) in [("--strip-all", &stripped), ("--only-keep-debug", &debug)] {
        assert!(
            Command::new("objcopy").arg(flag).arg(&path).arg(output).status().unwrap().success()
        );
    }
    let [file, debug] = [stripped, debug].map(|path| File::open(path).unwrap());
    let addresses = addresses(&path);
    let mut helper = helper();
    let alone = helper.ask(&[(Part::Object, &file)], &addresses, LIMIT).unwrap().names;
    assert!(of(&alone, "helper").is_empty(), "{alone:?}");
    assert_eq!(of(&alone, "entry").len(), 3, "exported");
    let both = helper
        .ask(&[(Part::Object, &file), (Part::Debug, &debug)], &addresses, LIMIT)
        .unwrap()
        .names;
    assert!(of(&both, "helper").iter().all(|name| name.line.is_some()), "{both:?}");
    assert_eq!(of(&both, "helper").len(), 3, "{both:?}");
}

/// A cheap generator of numbers, the same in every run, so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.next(256)).unwrap()
    }
}

/// Truncated files and flipped bytes give names or none, or cost the helper, in bounded time.
#[test]
fn truncated_and_flipped() {
    let directory = tempfile::tempdir().unwrap();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut current = helper();
    let (mut slowest, mut answered, mut died) = (Duration::ZERO, 0, 0);
    for flags in [&["-gdwarf-5"][..], &["-gdwarf-4", "-gz=zlib", "-fdebug-types-section"]] {
        let path = compile(directory.path(), flags);
        let (sample, addresses) = (fs::read(&path).unwrap(), addresses(&path));
        for round in 0..600 {
            let mut bytes = sample.clone();
            match round % 4 {
                0 => bytes.truncate(numbers.next(sample.len())),
                1 => bytes[numbers.next(64)] = numbers.byte(),
                _ => {
                    for _ in 0..=numbers.next(16) {
                        let at = numbers.next(bytes.len());
                        bytes[at] = numbers.byte();
                    }
                }
            }
            let damaged = directory.path().join("damaged");
            fs::remove_file(&damaged).ok();
            fs::write(&damaged, &bytes).unwrap();
            let began = Instant::now();
            match current.ask(&[(Part::Object, &File::open(&damaged).unwrap())], &addresses, LIMIT)
            {
                Ok(answer) => {
                    answered += 1;
                    assert_eq!(answer.names.len(), addresses.len());
                }
                Err(HelperError::Died { .. }) => {
                    died += 1;
                    current = helper();
                }
                Err(error) => panic!("{error}"),
            }
            slowest = slowest.max(began.elapsed());
        }
    }
    eprintln!("{answered} answers, {died} deaths, the slowest took {slowest:?}");
    assert!(slowest < LIMIT + Duration::from_secs(5), "{slowest:?} for one file");
    assert!(answered > 600, "{answered} answers, {died} deaths");
}

/// A section that claims to unfold to more than the machine has costs the lines, which is reported.
#[test]
fn decompression_bomb() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), &["-g", "-gz=zlib"]);
    let addresses = addresses(&path);
    let mut bytes = fs::read(&path).unwrap();
    let at = {
        let file = object::File::parse(&*bytes).unwrap();
        let section = file.section_by_name(".debug_info").unwrap();
        usize::try_from(section.file_range().unwrap().0).unwrap() + 8
    };
    for claimed in [8_u64 << 30, 1 << 40, u64::MAX] {
        bytes[at..at + 8].copy_from_slice(&claimed.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let mut helper = helper();
        let began = Instant::now();
        let answer = helper.ask(&[(Part::Object, &File::open(&path).unwrap())], &addresses, LIMIT);
        assert!(began.elapsed() < LIMIT, "{claimed}");
        let answer = answer.unwrap();
        assert!(answer.trouble.is_some_and(|why| why.contains("unfold")), "{claimed}");
        let names = answer.names;
        assert_eq!(of(&names, "helper").len(), 3, "{claimed}: {names:?}");
        assert!(names.iter().flatten().all(|name| name.line.is_none()), "{claimed}: {names:?}");
    }
}

/// A file that is cut while it is read costs the helper at most; the next one serves.
#[test]
fn cut_while_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), &["-g"]);
    let addresses = addresses(&path);
    let whole = fs::read(&path).unwrap();
    let mut helper = helper();
    let file = File::open(&path).unwrap();
    assert!(
        helper.ask(&[(Part::Object, &file)], &addresses[..1], LIMIT).unwrap().names[0].is_some()
    );
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    // Whatever comes of it, it comes.
    let _ = helper.ask(&[(Part::Object, &file)], &addresses, LIMIT);
    let other = directory.path().join("other");
    fs::write(&other, whole).unwrap();
    let names = helper
        .ask(&[(Part::Object, &File::open(&other).unwrap())], &addresses, LIMIT)
        .unwrap()
        .names;
    assert_eq!(of(&names, "entry").len(), 3);
}
