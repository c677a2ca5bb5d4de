//! Steps and commands: how every task says what it does and runs other programs.
//!
//! One line per step on stderr; a failing program is reported with the step's name, its command line and
//! what to do. Decides nothing; every other module calls it.

use std::ffi::OsStr;
use std::fmt::{Display, Write as _};
use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fs_err as fs;

/// Says which step begins.
pub(crate) fn step(text: impl Display) {
    eprintln!("==> {text}");
}

/// Adds a detail to the current step.
pub(crate) fn note(text: impl Display) {
    eprintln!("    {text}");
}

/// The workspace's root directory.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&manifest)
        .parent()
        .with_context(|| format!("{} has no parent directory", Path::new(&manifest).display()))?;
    root.canonicalize().with_context(|| {
        format!("find the workspace at {}; run this through `cargo xtask`", root.display())
    })
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A command that runs as root: directly, or through `sudo env` with `env` passed on.
///
/// `sudo` drops the environment, so what the program needs must be named.
pub(crate) fn as_root<S: AsRef<OsStr>>(program: S, env: &[(&str, &OsStr)]) -> Command {
    if is_root() {
        let mut command = Command::new(program);
        command.envs(env.iter().copied());
        return command;
    }
    let mut command = Command::new("sudo");
    command.arg("env");
    for (key, value) in env {
        let mut pair = std::ffi::OsString::from(key);
        pair.push("=");
        pair.push(value);
        command.arg(pair);
    }
    command.arg(program);
    command
}

/// The cargo that runs this task, free of the variables which `cargo run` adds for one package only:
/// they would make nested builds look different from the user's own and rebuild everything.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    scrub(&mut command);
    command
}

/// Removes the variables that `cargo run` set for this program.
pub(crate) fn scrub(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command.env_remove("LD_LIBRARY_PATH");
}

/// Runs a command with its output streamed.
pub(crate) fn run(what: &str, advice: &str, command: &mut Command) -> Result<()> {
    let line = describe(command);
    let status =
        command.status().with_context(|| format!("{what}: cannot run `{line}`; {advice}"))?;
    if !status.success() {
        bail!("{what} failed: `{line}` ended with {status}; {advice}");
    }
    Ok(())
}

/// Runs a command and returns what it wrote to stdout; its stderr is part of the error.
pub(crate) fn read(what: &str, advice: &str, command: &mut Command) -> Result<String> {
    let line = describe(command);
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("{what}: cannot run `{line}`; {advice}"))?;
    if !status.success() {
        let reported = String::from_utf8_lossy(&stderr);
        bail!("{what} failed: `{line}` ended with {status}: {}; {advice}", reported.trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// The command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        let arg = arg.to_string_lossy();
        if arg.is_empty() || arg.contains([' ', '"', '\'', '*']) {
            line.push('\'');
            line.push_str(&arg);
            line.push('\'');
        } else {
            line.push_str(&arg);
        }
    }
    line
}

/// Where a program is: on `PATH`, or in cargo's `bin` directory, where `cargo install` puts it.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(cargo_home().map(|home| home.join("bin")))
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Cargo's home directory.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))
}

/// All files below `dir` whose extension is `extension`, in a stable order; build directories and
/// hidden ones are left out.
pub(crate) fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        let entries = fs::read_dir(&dir)?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            // Cargo marks its build directories; a module may well be called `target`.
            let built = entry.path().join("CACHEDIR.TAG").exists();
            if kind.is_dir() && !built && !name.to_string_lossy().starts_with('.') {
                todo.push(entry.path());
            } else if kind.is_file() && entry.path().extension().is_some_and(|e| e == extension) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Does `job` for each item, for `lanes` of them at the same time; what came of each, or nothing where it panicked.
pub(crate) fn at_once<T: Sync, R: Send>(
    items: &[T],
    lanes: usize,
    job: impl Fn(&T) -> R + Sync,
) -> Vec<Option<R>> {
    let queue = Mutex::new(items.iter().enumerate());
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let lane = || {
        let done = std::iter::from_fn(take)
            .map(|(at, item)| (at, catch_unwind(AssertUnwindSafe(|| job(item))).ok()));
        done.collect::<Vec<_>>()
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes.max(1)).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().filter_map(|lane| lane.join().ok()).flatten().collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// An empty directory in place of what was there.
pub(crate) fn emptied(path: &Path) -> Result<PathBuf> {
    remove(path)?;
    fs::create_dir_all(path)?;
    Ok(path.to_path_buf())
}

/// Writes a file, and makes the directories that lead to it.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, bytes)?;
    Ok(path.to_owned())
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The lines of a pipe, as they come.
pub(crate) fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(pipe).split(b'\n').map_while(Result::ok);
        for line in lines.map(|line| String::from_utf8_lossy(&line).into_owned()) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// A time of the command line: a number with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration> {
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).unwrap_or_default();
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => bail!("expected a time with its unit: 90s, 10m, 2h"),
    };
    let number: u32 = number.parse().with_context(|| format!("`{number}` is no whole number"))?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// Removes a directory with all that is in it, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::{at_once, duration};

    /// Two lanes run at the same time: each item waits for a word that the other says. The results keep their order, and
    /// an item that panics takes no other with it.
    #[test]
    fn lanes_at_the_same_time() {
        type Line = Mutex<(Sender<()>, Receiver<()>)>;
        let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
        let items: [(usize, Line); 4] = [
            (1, Mutex::new((to_second, from_second))),
            (2, Mutex::new((to_first, from_first))),
            (3, Mutex::new(channel())),
            (4, Mutex::new(channel())),
        ];
        let job = |(number, line): &(usize, Line)| {
            match number {
                // Without the hook: the words of a panic that is wanted would mislead.
                3 => std::panic::resume_unwind(Box::new("this one panics")),
                4 => return 4,
                _ => {}
            }
            let line = line.lock().unwrap_or_else(PoisonError::into_inner);
            line.0.send(()).unwrap();
            line.1.recv_timeout(Duration::from_secs(30)).unwrap();
            *number
        };
        assert_eq!(at_once(&items, 2, job), [Some(1), Some(2), None, Some(4)]);
    }

    /// Times are whole numbers with a unit, and nothing else.
    #[test]
    fn times() {
        assert_eq!(duration("10m").unwrap().as_secs(), 600);
        for text in ["", "5", "m", "-1s", "1.5h", "é"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
