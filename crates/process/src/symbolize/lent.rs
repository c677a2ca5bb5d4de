//! Opens files by their paths, for a library, in a process that may open none.
//!
//! blazesym opens what it reads by path, and the helper has descriptors alone. To open one again through
//! `/proc/self/fd` needs rights that user `nobody` lacks, and a filter of system calls cannot compare paths. So calls
//! with a path end in a handler of SIGSYS, and never in the kernel. It answers for the files that are lent; any
//! other path is of no file. While nothing is lent, such a call ends the process. Set up by `sandbox`, used by `object`.

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_void},
    fs::File,
    io,
    os::fd::{AsRawFd, RawFd},
    path::PathBuf,
    ptr,
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

use nix::libc;

/// The calls that are answered here.
pub(super) const CALLS: &[c_long] = &[
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// The directory of debug files in which blazesym searches for the file that others share (`dwz`).
pub(super) const DEBUG_DIRECTORY: &str = "/lent";
/// How that file's path begins there.
const SHARED: &[u8] = b"/lent/.build-id/";
/// How the path of the file itself begins, before its number.
const DESCRIPTORS: &str = "/proc/self/fd/";
/// What blazesym adds to a file's path for its package of split DWARF.
const PACKAGE: &[u8] = b".dwp";

/// No descriptor.
const NONE: RawFd = -1;

/// The descriptors that are lent: a file, its package, and the file that it shares with others.
static LENT: [AtomicI32; 3] = [const { AtomicI32::new(NONE) }; 3];

/// Files that have paths for as long as this is held; one at a time.
pub(super) struct Lent(PathBuf);

impl Lent {
    pub(super) fn new(file: &File, package: Option<&File>, shared: Option<&File>) -> Self {
        for (slot, file) in LENT.iter().zip([Some(file), package, shared]) {
            slot.store(file.map_or(NONE, AsRawFd::as_raw_fd), Relaxed);
        }
        Self(format!("{DESCRIPTORS}{}", file.as_raw_fd()).into())
    }

    /// The path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        for slot in &LENT {
            slot.store(NONE, Relaxed);
        }
    }
}

/// Makes this process answer [`CALLS`] that are trapped.
pub(super) fn answer_calls() -> io::Result<()> {
    // SAFETY: all zeroes are an action without flags and without blocked signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_call as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler has the signature that goes with `SA_SIGINFO`, and does only what a signal handler may: it
    // reads atomics and the caller's memory, and makes system calls.
    let set = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_call(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives the handler the registers of the interrupted thread, and to no other code.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let (call, arguments) = call(context);
    *result(context) = answer(call, arguments);
}

/// The number of the trapped call, and its first five arguments.
#[cfg(target_arch = "x86_64")]
fn call(context: &libc::ucontext_t) -> (c_long, [i64; 5]) {
    let register = |number: c_int| context.uc_mcontext.gregs[number.cast_unsigned() as usize];
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8];
    (register(libc::REG_RAX), arguments.map(register))
}

/// Where the caller finds the result.
#[cfg(target_arch = "x86_64")]
fn result(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RAX.cast_unsigned() as usize]
}

#[cfg(target_arch = "aarch64")]
fn call(context: &libc::ucontext_t) -> (c_long, [i64; 5]) {
    let register = |number: usize| context.uc_mcontext.regs[number].cast_signed();
    (register(8), [0, 1, 2, 3, 4].map(register))
}

#[cfg(target_arch = "aarch64")]
fn result(context: &mut libc::ucontext_t) -> &mut i64 {
    // SAFETY: the two types differ in the sign alone.
    unsafe { &mut *(&raw mut context.uc_mcontext.regs[0]).cast() }
}

/// What the kernel would return.
fn answer(call: c_long, [first, second, third, _, fifth]: [i64; 5]) -> i64 {
    match call {
        libc::SYS_openat => open(second),
        libc::SYS_newfstatat => stat(at(first, second), third),
        libc::SYS_statx => statx(at(first, second), fifth),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => open(first),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat => stat(lent(path(first)), second),
        // No path leads on, and none can be made canonical.
        _ => {
            lent(b"");
            -i64::from(libc::EACCES)
        }
    }
}

/// The bytes of the path to which an argument points.
fn path<'a>(argument: i64) -> &'a [u8] {
    // SAFETY: the argument is that of a call with a path, which code of this process made just now and waits for.
    unsafe { CStr::from_ptr(argument as *const c_char) }.to_bytes()
}

/// The file of a call that takes a descriptor and a path: the descriptor's where the path is empty.
fn at(descriptor: i64, argument: i64) -> RawFd {
    match path(argument) {
        // A descriptor is what the caller passed, as 32 bits.
        b"" => descriptor as RawFd,
        path => lent(path),
    }
}

/// The lent file of this path, if there is one. Ends the process where nothing is lent.
fn lent(path: &[u8]) -> RawFd {
    let [file, package, shared] = LENT.each_ref().map(|slot| slot.load(Relaxed));
    if file == NONE {
        // SAFETY: it takes no arguments. The filter forbids this call, so the process ends as by any other such call.
        unsafe { libc::syscall(libc::SYS_getppid) };
        std::process::abort();
    }
    if path.starts_with(SHARED) {
        return shared;
    }
    let Some(rest) = path.strip_prefix(DESCRIPTORS.as_bytes()) else { return NONE };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&rest[..digits]).ok().and_then(|text| text.parse().ok());
    match &rest[digits..] {
        _ if number != Some(file) => NONE,
        b"" => file,
        PACKAGE => package,
        _ => NONE,
    }
}

fn open(argument: i64) -> i64 {
    let file = lent(path(argument));
    if file == NONE {
        return -i64::from(libc::ENOENT);
    }
    // SAFETY: it makes a new descriptor, which the caller owns.
    let copy = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 { -i64::from(libc::EMFILE) } else { copy.into() }
}

fn stat(file: RawFd, out: i64) -> i64 {
    // SAFETY: the caller passed a pointer to such a struct. The call itself is not trapped.
    let done = unsafe { libc::syscall(libc::SYS_fstat, file, out as *mut libc::stat) };
    if done < 0 { -i64::from(libc::EACCES) } else { 0 }
}

fn statx(file: RawFd, out: i64) -> i64 {
    // SAFETY: all zeroes are a value of this struct of numbers.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    let done = stat(file, &raw mut about as i64);
    if done == 0 {
        // SAFETY: all zeroes are a value of this struct of numbers, and the caller passed a pointer to such a struct.
        unsafe {
            let mut known: libc::statx = std::mem::zeroed();
            known.stx_mask = libc::STATX_TYPE | libc::STATX_SIZE;
            known.stx_mode = about.st_mode as u16;
            known.stx_size = about.st_size.cast_unsigned();
            (out as *mut libc::statx).write(known);
        }
    }
    done
}
