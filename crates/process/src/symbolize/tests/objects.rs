//! Names of the kinds of objects that there are, beside addr2line's of the whole program, and those that drainprof's own
//! reader gave.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use object::{Object as _, ObjectSymbol as _, SymbolKind};

use super::{LIMIT, misbehaves};
use crate::{
    DebugSearch, Elf,
    symbolize::{
        parts,
        wire::{Name, Part},
    },
};

const C: &str = r"
static volatile int sink;
static inline __attribute__((always_inline)) void step(int x) {
    sink = x;
    sink = x + 1;
}
__attribute__((noinline)) static int helper(int x) {
    step(x);
    return sink;
}
__attribute__((cold, noinline)) static void fail(int x) { sink = x; }
__attribute__((noinline)) int entry(int x) {
    if (x == 7) { fail(x); fail(x + 1); __builtin_trap(); }
    return helper(x) + 1;
}
int main(int count, char **words) { return entry(count) + (words == 0); }
";

const CPP: &str = r"
#include <vector>
static volatile int sink;
namespace shop {
namespace { __attribute__((noinline)) int hidden(int x) { sink = x; return x + 1; } }
static __attribute__((noinline)) int local(int x) { sink = x; return hidden(x); }
template <typename T> struct Cart {
    std::vector<T> all;
    __attribute__((noinline)) void fill(T x) { all.push_back(x); }
};
__attribute__((noinline)) int visit(int x) {
    auto twice = [](int y) __attribute__((noinline)) { sink = y; return y * 2; };
    return twice(x) + local(x);
}
}
int main(int count, char **) {
    shop::Cart<unsigned long> cart;
    cart.fill(count);
    return shop::visit(count) + int(cart.all.size());
}
";

const RUST: &str = r"
use std::hint::black_box;
pub struct Server { pub served: Vec<u64> }
impl Server {
    #[inline(always)]
    fn note(&mut self, x: u64) { self.served.push(black_box(x)); }
    #[inline(never)]
    pub fn serve(&mut self, x: u64) { self.note(x); self.note(x + 1); }
}
#[inline(never)]
fn each<T: Copy>(all: &[T], mut f: impl FnMut(T)) { for one in all { f(black_box(*one)); } }
fn main() {
    let mut server = Server { served: Vec::new() };
    each(&[1, 2, 3], |x| server.serve(x));
    std::process::exit((server.served.len() != 6) as i32);
}
";

const GO: &str = r#"
package main

import "os"

type Cart struct{ all []int }

func twice(x int) int { return x * 2 }

//go:noinline
func (c *Cart) Fill(x int) { c.all = append(c.all, twice(x)) }

func main() {
	cart := &Cart{}
	cart.Fill(len(os.Args))
	os.Exit(len(cart.all) - 1)
}
"#;

/// How an object is made in a directory of its own: the last program to be written is `object`, or `whole` where that is
/// all. `truth` has the same code and all debug information, where `whole` has not.
struct Sample {
    name: &'static str,
    language: Language,
    steps: Vec<String>,
    knows: Knows,
    /// Addresses with a name, those with a line, and inlined functions, as drainprof's own reader gave them.
    old: &'static str,
}

#[derive(Clone, Copy)]
enum Language {
    C,
    Cpp,
    Rust,
    Go,
}

/// What is known of an object's addresses.
#[derive(Clone, Copy)]
enum Knows {
    /// Functions, inlined functions, and their lines.
    All,
    /// The innermost line.
    Lines,
    /// The functions of so many addresses.
    Functions(usize),
}

impl Language {
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::C => ("sample.c", C),
            Self::Cpp => ("sample.cc", CPP),
            Self::Rust => ("sample.rs", RUST),
            Self::Go => ("sample.go", GO),
        }
    }

    /// Whether a symbol is one of the source's functions.
    fn has(self, symbol: &str) -> bool {
        let any = |names: &[&str]| names.iter().any(|name| symbol.contains(name));
        match self {
            Self::C => any(&["helper", "fail", "entry", "main"]) && !symbol.contains("__libc"),
            Self::Cpp => any(&["hidden", "local", "fill", "visit", "twice", "main"]),
            Self::Rust => symbol.contains("objects") && any(&["serve", "each", "main"]),
            Self::Go => ["main.main", "main.(*Cart).Fill"].contains(&symbol),
        }
    }
}

const GCC: &str = "gcc -O2 -freorder-blocks-and-partition sample.c -o whole";
const TRUTH: &str = "gcc -O2 -freorder-blocks-and-partition sample.c -o truth -g";
const GPP: &str = "g++ -O2 -g sample.cc -o whole";
const RUSTC: &str = "rustc --crate-name objects -g sample.rs -o whole";
const ID: &str = "-Wl,--build-id=0x0123456789abcdef";
const BY_ID: &str = "debug/.build-id/01/23456789abcdef.debug";
const STRIP: &str = "objcopy --strip-all whole object";
const LINKED: [&str; 2] = [
    "objcopy --only-keep-debug whole object.debug",
    "objcopy --strip-all --add-gnu-debuglink=object.debug whole object",
];

/// A sample that is made by `steps`.
fn sample(
    name: &'static str,
    language: Language,
    knows: Knows,
    old: &'static str,
    steps: &[&str],
) -> Sample {
    let steps = steps.iter().map(|step| (*step).to_owned()).collect();
    Sample { name, language, steps, knows, old }
}

/// A sample in C, compiled with `flags`, and made by more `steps`.
fn c(name: &'static str, flags: &str, knows: Knows, old: &'static str, steps: &[&str]) -> Sample {
    let build = format!("{GCC} {flags}");
    let steps: Vec<&str> = std::iter::once(&*build).chain(steps.iter().copied()).collect();
    sample(name, Language::C, knows, old, &steps)
}

fn samples() -> Vec<Sample> {
    use Knows::{All, Functions, Lines};
    use Language::{Cpp, Go, Rust};
    let debug_file = format!("objcopy --only-keep-debug whole {BY_ID}");
    let compressed =
        format!("objcopy --only-keep-debug --compress-debug-sections=zstd whole {BY_ID}");
    let with_id = format!("-g {ID}");
    let directory = "mkdir -p debug/.build-id/01";
    let mini = "objcopy -S --keep-symbol=helper --keep-symbol=fail --keep-symbol=entry \
                --keep-symbol=main whole mini";
    let package = "llvm-dwp -e whole -o whole.dwp";
    let cpp = |name, more: &[&str]| {
        let steps: Vec<&str> = std::iter::once(GPP).chain(more.iter().copied()).collect();
        sample(name, Cpp, All, "14/14/9", &steps)
    };
    let v0 = format!("{RUSTC} -Csymbol-mangling-version=v0");
    vec![
        c("C, DWARF 5, PIE", "-g -pie -fPIE", All, "10/10/1", &[]),
        c("C, DWARF 4, not PIE", "-gdwarf-4 -no-pie", All, "10/10/1", &[]),
        c("C, library", "-g -shared -fPIC", All, "10/10/1", &[]),
        c("C, zlib", "-g -gz=zlib", All, "10/10/1", &[]),
        c(
            "C, zstd",
            "-g",
            All,
            "10/10/1",
            &["objcopy --compress-debug-sections=zstd whole object"],
        ),
        c("C, debug link", "-g -Wl,--build-id=none", All, "10/10/1", &LINKED),
        c("C, build id", &with_id, All, "10/10/1", &[directory, &debug_file, STRIP]),
        c("C, debug file, zstd", &with_id, All, "10/10/1", &[directory, &compressed, STRIP]),
        c("C, split DWARF 5", "-g -gsplit-dwarf", All, "10/10/0", &[package, TRUTH]),
        c("C, split DWARF 4", "-gdwarf-4 -gsplit-dwarf", All, "10/10/0", &[package, TRUTH]),
        c("C, split DWARF, no package", "-g -gsplit-dwarf", Lines, "10/10/0", &[TRUTH]),
        c(
            "C, .gnu_debugdata",
            "",
            Functions(8),
            "0/0/0",
            &[mini, "xz mini", "objcopy -S --add-section .gnu_debugdata=mini.xz whole object"],
        ),
        c("C, symbols only", "", Functions(10), "10/0/0", &[]),
        c("C, exported only", "-shared -fPIC", Functions(4), "4/0/0", &[STRIP]),
        c(
            "C, GSYM",
            "-g",
            All,
            "0/0/0",
            &["llvm-gsymutil --convert whole --out-file object.gsym", STRIP],
        ),
        cpp("C++", &[]),
        cpp("C++, debug link", &LINKED),
        cpp("C++, dwz", &["dwz whole -o object"]),
        cpp(
            "C++, dwz, shared",
            &["cp whole object", "g++ -O1 -g sample.cc -o other", "dwz -m shared.dwz object other"],
        ),
        sample("Rust", Rust, All, "6/5/11", &[&format!("{RUSTC} -O")]),
        sample("Rust, v0, not optimized", Rust, All, "8/7/0", &[&v0]),
        sample("Go", Go, All, "4/4/0", &["env HOME=. GO111MODULE=off go build -o whole sample.go"]),
    ]
}

impl Sample {
    /// Makes it; `false` where there is no such program.
    fn make(&self, directory: &Path) -> bool {
        let (file, source) = self.language.source();
        fs::create_dir(directory).unwrap();
        fs::write(directory.join(file), source).unwrap();
        // Debian has some of LLVM's tools there alone.
        let mut path = std::env::var("PATH").unwrap();
        for entry in fs::read_dir("/usr/lib").unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("llvm-") {
                path.extend([":", entry.path().join("bin").to_str().unwrap()]);
            }
        }
        for step in &self.steps {
            let mut words = step.split_whitespace();
            let mut command = Command::new(words.next().unwrap());
            let output = command.args(words).current_dir(directory).env("PATH", &path).output();
            let Ok(output) = output else { return false };
            let error = String::from_utf8_lossy(&output.stderr);
            if error.contains("No such file or directory") && step.starts_with("env ") {
                return false;
            }
            assert!(output.status.success(), "{step}: {error}");
        }
        true
    }

    /// The middle and the last byte of each of the source's functions.
    fn addresses(&self, program: &Path) -> Vec<u64> {
        let data = fs::read(program).unwrap();
        let file = object::File::parse(&*data).unwrap();
        let own = file.symbols().filter(|symbol| {
            let name = symbol.name().unwrap_or_default();
            symbol.kind() == SymbolKind::Text && symbol.size() > 1 && self.language.has(name)
        });
        let mut all: Vec<u64> = own
            .flat_map(|symbol| {
                [symbol.size() / 2, symbol.size() - 1].map(|at| symbol.address() + at)
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Checks the frames at an address against addr2line's.
    fn check(&self, ours: &Frames, theirs: &Frames) {
        let innermost = |frames: &Frames| frames.last().map(|(_, line)| *line);
        let is_same = match self.knows {
            Knows::All => ours == theirs,
            Knows::Lines => !ours.is_empty() && innermost(ours) == innermost(theirs),
            Knows::Functions(_) => ours.is_empty() || ours == theirs,
        };
        assert!(is_same, "{}: {ours:?}, addr2line: {theirs:?}", self.name);
    }
}

/// Functions and lines, the outermost first.
type Frames = Vec<(String, u32)>;

fn frames(name: Option<&Name>) -> Frames {
    let Some(name) = name else { return Vec::new() };
    let outer = (name.function.clone(), name.line.unwrap_or_default());
    let inner = name.inlined.iter().map(|(name, _, line)| (name.clone(), line.unwrap_or_default()));
    std::iter::once(outer).chain(inner).collect()
}

/// What addr2line says of these addresses of a program.
fn addr2line(program: &Path, addresses: &[u64]) -> BTreeMap<u64, Frames> {
    let hex = addresses.iter().map(|address| format!("{address:#x}"));
    let mut command = Command::new("addr2line");
    let output = command.args(["-a", "-f", "-i", "-C", "-e"]).arg(program).args(hex).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut all: BTreeMap<u64, Frames> = BTreeMap::new();
    let (mut address, mut function) = (0, None);
    for line in text.lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            address = u64::from_str_radix(hex, 16).unwrap();
        } else if let Some(name) = function.take() {
            // `file:7 (discriminator 2)`
            let line = line.rsplit(':').next().unwrap_or_default();
            let line = line.split(' ').next().unwrap_or_default().parse().unwrap_or_default();
            all.entry(address).or_default().insert(0, (name, line));
        } else {
            // The remark of a part is none of the function's name.
            function = line.split(" [clone").next().map(str::to_owned);
        }
    }
    all
}

/// How many addresses have a name, how many a line, and how many functions are inlined.
fn counts<'a>(all: impl Iterator<Item = &'a Frames>) -> String {
    let (mut named, mut lines, mut inlined) = (0, 0, 0);
    for frames in all {
        named += usize::from(frames.first().is_some_and(|(name, _)| name != "??"));
        lines += usize::from(frames.first().is_some_and(|(_, line)| *line > 0));
        inlined += frames.len().saturating_sub(1);
    }
    format!("{named}/{lines}/{inlined}")
}

/// Names by blazesym are those of addr2line, and no fewer than drainprof's own reader gave.
#[test]
fn names_of_objects() {
    let directory = tempfile::tempdir().unwrap();
    let mut helper = misbehaves(directory.path(), "serve");
    eprintln!("object | addresses | own reader | blazesym | addr2line: named/lines/inlined");
    for (number, sample) in samples().iter().enumerate() {
        let room = directory.path().join(number.to_string());
        if !sample.make(&room) {
            // Installed by `cargo xtask setup --real`.
            assert!(matches!(sample.language, Language::Go), "{}", sample.name);
            eprintln!("{} | skipped: no program `go`", sample.name);
            continue;
        }
        let either = |one: &str, other: &str| -> PathBuf {
            let one = room.join(one);
            if one.exists() { one } else { room.join(other) }
        };
        let path = either("object", "whole");
        let search = DebugSearch {
            object_path: Some(path.clone()),
            debug_dirs: vec![room.join("debug")],
            process_root: None,
        };
        let more = parts::of(&Elf::open(&path, sample.name, search).unwrap());
        let file = File::open(&path).unwrap();
        let more = more.iter().map(|(part, file)| (*part, file));
        let files: Vec<_> = std::iter::once((Part::Object, &file)).chain(more).collect();
        let addresses = sample.addresses(&room.join("whole"));
        let names = helper.ask(&files, &addresses, LIMIT).unwrap().names;
        let ours: Vec<Frames> = names.iter().map(|name| frames(name.as_ref())).collect();
        let theirs = addr2line(&either("truth", "whole"), &addresses);
        let (name, old) = (sample.name, sample.old);
        let (own, other) = (counts(ours.iter()), counts(theirs.values()));
        eprintln!("{name} | {} | {old} | {own} | {other}", addresses.len());
        for (address, ours) in addresses.iter().zip(&ours) {
            sample.check(ours, &theirs[address]);
        }
        let found = ours.iter().filter(|frames| !frames.is_empty()).count();
        let expected = match sample.knows {
            Knows::All | Knows::Lines => addresses.len(),
            Knows::Functions(count) => count,
        };
        assert_eq!(found, expected, "{name}");
    }
}
