//! ELF files made by the C compiler, for tests of this crate and of those above it.

pub mod parsers;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::{DebugSearch, Elf};

/// A small allocator in C: an exported interface, a static helper, an alias, and data.
pub const ALLOCATOR: &str = r#"
struct inner { int first; union { long whole; struct { int low, high; }; }; };
typedef struct pool {
    char *last;
    struct { long before; struct inner nested[3]; } d;
    unsigned bits : 3;
    unsigned live;
    struct pool *next;
} pool_t;
typedef struct pool pool_alias;
pool_t the_pool = { .live = 3 };
pool_alias second_pool;
unsigned long in_bss;
static volatile int hidden = 5;
__attribute__((noinline)) static int helper(int x) { __asm__ volatile("" ::: "memory"); return x * hidden; }
__attribute__((noinline)) pool_t *pool_open(int x) { the_pool.live += helper(x); return &the_pool; }
__attribute__((noinline)) void pool_close(pool_t *p) { p->live = 0; in_bss++; }
pool_t *pool_make(int x) __attribute__((alias("pool_open")));
"#;

/// A program without libc around [`ALLOCATOR`]; it would end at once.
pub const MAIN: &str = "\nint main(void) { pool_close(pool_open(2)); return 0; }\n\
     void _start(void) { main(); __asm__ volatile(\"mov $60,%eax; xor %edi,%edi; syscall\"); }\n";

/// Runs a tool of the C tool chain.
pub fn tool(name: &str, args: &[&str]) {
    let output = Command::new(name).args(args).output().expect("the C tool chain is installed");
    assert!(
        output.status.success(),
        "{name} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Compiles `source` to `dir/name`.
pub fn cc(dir: &Path, name: &str, source: &str, args: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let input = dir.join(format!("{name}.c"));
    std::fs::write(&input, source).unwrap();
    let mut all = vec![input.to_str().unwrap(), "-o", path.to_str().unwrap()];
    all.extend(args);
    tool("cc", &all);
    path
}

/// [`ALLOCATOR`] as a shared library with a soname and a build id.
pub fn library(dir: &Path, name: &str, args: &[&str]) -> PathBuf {
    let soname = format!("-Wl,-soname,{name}");
    let mut all =
        vec!["-shared", "-fPIC", "-O1", "-nostdlib", "-Wl,--build-id=sha1", soname.as_str()];
    all.extend(args);
    cc(dir, name, ALLOCATOR, &all)
}

/// Reads an object; its debug file is searched for beside it and in `debug_dirs`.
pub fn open(path: &Path, debug_dirs: &[PathBuf]) -> Elf {
    let search = DebugSearch {
        process_root: None,
        object_path: Some(path.to_owned()),
        debug_dirs: debug_dirs.to_vec(),
    };
    Elf::open(path, path.to_str().unwrap(), search).unwrap()
}

/// A child process that waits until its input is closed; ended when dropped.
pub struct Waiting(pub Child);

impl Waiting {
    /// Starts `program` with one handshake: it runs once it has echoed a line.
    pub fn start(program: &Path) -> Self {
        use std::io::{BufRead as _, BufReader, Write as _};
        let mut child =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"ready\n").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the child echoes");
        Self(child)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
