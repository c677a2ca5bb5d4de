//! Chosen places in real, unmodified programs and libraries: what a probe would read there is what it
//! would have read at the function's first instruction, call by call.
//!
//! A real workload runs under ptrace with breakpoints at the first instruction and at the chosen place of
//! every function for which another place was chosen. At the first, registers and return address are
//! noted; the next breakpoint that is hit must be the chosen place of the same function, where everything
//! needed must be found where the planner says. drainprof is not involved, nor is eBPF.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, OpenOptions},
    os::unix::{fs::FileExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use drainprof_probe::plan::{
    Chooser,
    cost::Costs,
    site::{ARGUMENTS, Choice, Location, Needs},
};
use drainprof_process::{DebugSearch, Elf};
use drainprof_tests::environment::which;
use nix::{
    libc::user_regs_struct,
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Calls of one function that are looked at.
const CALLS: u32 = 30;
const INT3: u8 = 0xcc;

/// What is planned for one function.
struct Planned {
    path: PathBuf,
    /// Offset in the file of its first instruction.
    at: u64,
    choice: Choice,
    at_return: bool,
    calls: u32,
}

/// A breakpoint.
struct Breakpoint {
    function: usize,
    at_entry: bool,
    original: u8,
}

/// A call between its function's first instruction and the chosen place.
struct Call {
    function: usize,
    registers: [u64; 16],
    caller: u64,
}

/// What a workload showed.
#[derive(Debug, Default)]
struct Tally {
    planned: usize,
    moved: usize,
    calls: u64,
    /// Of them those that are judged at the return.
    returns: u64,
    arguments: u64,
    arguments_moved: u64,
}

/// Registers in the order in which x86 encodes them.
fn registers(regs: &user_regs_struct) -> [u64; 16] {
    [
        regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8,
        regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ]
}

/// The same numbers in every run.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// The machine's own ranking for half of the functions; for the others any, so that places of every kind
/// come up.
fn costs(seed: &mut u64) -> Costs {
    let mut costs = Costs::assumed();
    if random(seed).is_multiple_of(2) {
        for cost in &mut costs.entry_ns {
            *cost = Some(f64::from(100 << (random(seed) % 8) as u32));
        }
    }
    costs
}

/// A process under ptrace, stopped.
struct Traced {
    pid: Pid,
    memory: File,
}

impl Traced {
    /// Starts a command and stops it where its libraries are mapped and none of its own code has run.
    fn start(command: &[&str]) -> Result<Self> {
        let program = which(command[0]).with_context(|| {
            format!("{} is not installed (`cargo xtask setup` installs it)", command[0])
        })?;
        let mut built = Command::new(program);
        built.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        built.env_clear().env("LC_ALL", "C").env("PATH", "/usr/bin:/bin");
        // SAFETY: one system call, which is allowed between fork and exec.
        unsafe { built.pre_exec(|| ptrace::traceme().map_err(std::io::Error::from)) };
        let child = built.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        ensure!(matches!(waitpid(pid, None)?, WaitStatus::Stopped(_, Signal::SIGTRAP)));
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let traced = Self { pid, memory };
        let entry = traced.auxiliary(nix::libc::AT_ENTRY)?;
        let original = traced.put(entry)?;
        ptrace::cont(pid, None)?;
        let status = waitpid(pid, None)?;
        ensure!(matches!(status, WaitStatus::Stopped(_, Signal::SIGTRAP)), "{status:?}");
        traced.write(entry, original)?;
        let mut regs = ptrace::getregs(pid)?;
        ensure!(regs.rip == entry + 1, "stopped at {:#x}", regs.rip);
        regs.rip = entry;
        ptrace::setregs(pid, regs)?;
        Ok(traced)
    }

    fn auxiliary(&self, key: u64) -> Result<u64> {
        let bytes = fs::read(format!("/proc/{}/auxv", self.pid))?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes))
            .collect();
        let found = words.chunks_exact(2).find(|pair| pair[0] == key);
        found.map(|pair| pair[1]).context("no such entry in the auxiliary vector")
    }

    fn word(&self, address: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, address)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn write(&self, address: u64, byte: u8) -> Result<()> {
        Ok(self.memory.write_all_at(&[byte], address)?)
    }

    /// Puts a breakpoint; returns what was there.
    fn put(&self, address: u64) -> Result<u8> {
        let mut original = [0];
        self.memory.read_exact_at(&mut original, address)?;
        self.write(address, INT3)?;
        Ok(original[0])
    }

    /// The files that are mapped to be executed: path, address and file offset of each mapping.
    fn objects(&self) -> Result<Vec<(PathBuf, u64, u64)>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid))?;
        let mut objects = Vec::new();
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [range, rights, offset, _, _, path] = fields[..] else { continue };
            if rights.contains('x') && path.starts_with('/') {
                let start = range.split('-').next().unwrap_or_default();
                objects.push((
                    path.into(),
                    u64::from_str_radix(start, 16)?,
                    u64::from_str_radix(offset, 16)?,
                ));
            }
        }
        Ok(objects)
    }

    /// Executes the instruction at `address` from under its breakpoint; a signal that comes meanwhile is
    /// returned.
    fn step_over(&self, address: u64, original: u8) -> Result<Option<Signal>> {
        self.write(address, original)?;
        let mut later = None;
        loop {
            ptrace::step(self.pid, None)?;
            match waitpid(self.pid, None)? {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => break,
                WaitStatus::Stopped(_, signal) => later = Some(signal),
                other => bail!("{other:?} while stepping"),
            }
        }
        self.write(address, INT3)?;
        Ok(later)
    }
}

/// What was planned for the functions of one object for which another place than the first was chosen: the
/// offset of their first instructions, the choice, and whether it is for a probe at the return.
type Object = Vec<(u64, Choice, bool)>;

/// Plans and results of all workloads.
#[derive(Default)]
struct Session {
    objects: HashMap<PathBuf, Object>,
    hit: HashSet<(PathBuf, u64)>,
    tally: Tally,
}

impl Session {
    /// Plans all functions of an object.
    fn plan(&mut self, path: &Path) -> Result<&Object> {
        if !self.objects.contains_key(path) {
            let search = DebugSearch { object_path: Some(path.into()), ..DebugSearch::default() };
            let elf = Elf::open(path, &path.display().to_string(), search)?;
            let chooser = Chooser::new(&elf);
            let mut seed = 3;
            let mut object = Object::new();
            for (vaddr, size) in elf.code_symbols() {
                let Some(at) = elf.file_offset(vaddr).filter(|_| size > 0) else { continue };
                let arguments = random(&mut seed) % 7;
                let needs = Needs {
                    args: (1_u8 << arguments) - 1,
                    caller: true,
                    at_return: random(&mut seed).is_multiple_of(2),
                    ..Needs::default()
                };
                let choice = chooser.choose(at, needs, &costs(&mut seed), None);
                self.tally.planned += 1;
                if choice.offset > 0 {
                    object.push((at, choice, needs.at_return));
                }
            }
            self.tally.moved += object.len();
            self.objects.insert(path.into(), object);
        }
        self.objects.get(path).context("it was planned")
    }

    /// Puts breakpoints into everything that a process has mapped.
    fn arm(&mut self, traced: &Traced) -> Result<(Vec<Planned>, HashMap<u64, Breakpoint>)> {
        let (mut planned, mut breakpoints) = (Vec::new(), HashMap::new());
        for (path, start, offset) in traced.objects()? {
            for (at, choice, at_return) in self.plan(&path)?.clone() {
                let Some(into) = at.checked_sub(offset) else { continue };
                let (entry, function) = (start + into, planned.len());
                let place = entry + u64::from(choice.offset);
                for (address, at_entry) in [(entry, true), (place, false)] {
                    let original = traced.put(address)?;
                    let other =
                        breakpoints.insert(address, Breakpoint { function, at_entry, original });
                    ensure!(
                        other.is_none(),
                        "{}+{at:#x} shares its place with another one",
                        path.display()
                    );
                }
                planned.push(Planned { path: path.clone(), at, choice, at_return, calls: 0 });
            }
        }
        Ok((planned, breakpoints))
    }
}

/// Runs a command to its end, and compares at every call of every function.
fn run(command: &[&str], session: &mut Session) -> Result<()> {
    let traced = Traced::start(command)?;
    let (mut planned, breakpoints) = session.arm(&traced)?;
    let mut call: Option<Call> = None;
    let mut signal = None;
    loop {
        ptrace::cont(traced.pid, signal.take())?;
        let stopped = match waitpid(traced.pid, None)? {
            WaitStatus::Stopped(_, signal) => signal,
            WaitStatus::Exited(_, code) => {
                ensure!(code == 0, "{command:?} ended with {code}");
                break;
            }
            other => bail!("{command:?}: {other:?}"),
        };
        let mut regs = ptrace::getregs(traced.pid)?;
        let address = regs.rip.wrapping_sub(1);
        let Some(at) = breakpoints.get(&address).filter(|_| stopped == Signal::SIGTRAP) else {
            ensure!(stopped != Signal::SIGTRAP, "a trap at {address:#x}, where no breakpoint is");
            signal = Some(stopped);
            continue;
        };
        let function = &mut planned[at.function];
        regs.rip = address;
        ptrace::setregs(traced.pid, regs)?;
        if at.at_entry {
            if let Some(open) = &call {
                let open = &planned[open.function];
                bail!("{}+{:#x} was left before its place", open.path.display(), open.at);
            }
            function.calls += 1;
            call = Some(Call {
                function: at.function,
                registers: registers(&regs),
                caller: traced.word(regs.rsp)?,
            });
        } else {
            let name = || format!("{}+{:#x}", function.path.display(), function.at);
            let call = call.take().filter(|call| call.function == at.function);
            let call = call.with_context(|| format!("{}: its place without its entry", name()))?;
            compare(&traced, function, &call, &regs, &mut session.tally).with_context(name)?;
        }
        if function.calls >= CALLS {
            // Enough seen: this call's place is still to come if this is its entry.
            traced.write(address, at.original)?;
        } else {
            signal = traced.step_over(address, at.original)?;
        }
    }
    ensure!(call.is_none(), "a call that never came to its place");
    let hit = planned.into_iter().filter(|function| function.calls > 0);
    session.hit.extend(hit.map(|function| (function.path, function.at)));
    Ok(())
}

/// Compares what the planner says with what was noted at the entry.
fn compare(
    traced: &Traced,
    function: &Planned,
    call: &Call,
    regs: &user_regs_struct,
    tally: &mut Tally,
) -> Result<()> {
    let choice = &function.choice;
    let now = registers(regs);
    let entry_stack = regs.rsp + u64::from(choice.stack_moved);
    ensure!(entry_stack == call.registers[4], "the stack pointer moved otherwise: {choice:?}");
    ensure!(traced.word(entry_stack)? == call.caller, "another return address: {choice:?}");
    if function.at_return {
        ensure!(regs.rsp == call.registers[4], "the return address is not on top: {choice:?}");
        tally.returns += 1;
    }
    tally.calls += 1;
    for (argument, location) in choice.locations.iter().enumerate() {
        let Some(location) = location else { continue };
        let found = match location {
            Location::Register(number) => now[*number as usize],
            Location::Stack(offset) => {
                traced.word(regs.rsp.wrapping_add_signed(i64::from(*offset)))?
            }
        };
        let meant = call.registers[ARGUMENTS[argument] as usize];
        ensure!(found == meant, "arg{argument} is {found:#x}, was {meant:#x}: {choice:?}");
        tally.arguments += 1;
        tally.arguments_moved += u64::from(choice.moved() >> argument & 1);
    }
    Ok(())
}

/// Programs that run in one thread and start no others.
const WORKLOADS: [&[&str]; 7] = [
    &[
        "/usr/bin/python3",
        "-S",
        "-c",
        "import re, json, hashlib, decimal, random, collections, functools, zlib\n\
         d = {str(i): [i, i * 1.5, None] for i in range(300)}\n\
         assert json.loads(json.dumps(d)) == d\n\
         assert re.sub(r'(a+)(b*)', r'\\2\\1', 'aabb' * 50)\n\
         print(hashlib.sha256(zlib.compress(repr(d).encode())).hexdigest(), sorted(d, key=len)[:3])\n\
         print(decimal.Decimal(2).sqrt(), 3 ** 400 % 1234567, '%s %r' % ('x', b'y'), f'{2.5:8.3f}')\n\
         class A:\n  def __init__(self): self.x = {1, 2}\n  def __iter__(self): yield from self.x\n\
         try:\n  [].pop()\nexcept IndexError as e: print(list(A()), e)\n",
    ],
    &[
        "/usr/bin/perl",
        "-e",
        "my %h = map { $_ => [1..$_ % 7] } 1..300; my $s = join ',', sort { $a <=> $b } keys %h; \
         $s =~ s/(\\d)(\\d)/$2$1/g; my @w = split /,/, $s; local $_ = sprintf '%s %d %.3f', @w[0..2]; \
         print pack('NnA4', 1, 2, 'abcd'), length $s, reverse @w; eval { die { code => 3 } }; \
         print ref $@, lc uc $_, substr $s, 3, 5;",
    ],
    &["/usr/bin/openssl", "genpkey", "-algorithm", "ED25519"],
    &["/usr/bin/openssl", "dhparam", "-dsaparam", "-out", "/dev/null", "512"],
    &[
        "/usr/bin/sqlite3",
        ":memory:",
        "create table t(a integer primary key, b text, c real); create index i on t(b); \
         with recursive n(x) as (select 1 union all select x + 1 from n where x < 400) \
         insert into t select x, printf('%05d', x * 7 % 401), x / 3.0 from n; \
         select count(*), sum(c), group_concat(distinct substr(b, 1, 2)) from t where b between '00100' and '00300'; \
         update t set c = c * 2 where a % 3 = 0; delete from t where b like '%7'; \
         select a, upper(b), round(c, 2), date('now') from t order by c desc limit 20; \
         explain query plan select * from t join t u on t.b = u.b; pragma integrity_check;",
    ],
    &["/usr/bin/xz", "-T1", "-9e", "-c", "/etc/services"],
    &["/usr/bin/objdump", "-d", "-x", "/usr/bin/env"],
];

/// For thousands of functions of stock programs, hundreds of which run: arguments and return address are
/// where the planner says, call by call, and each entry is followed by exactly one hit of the place.
#[test]
fn real_programs() -> Result<()> {
    let mut session = Session::default();
    for workload in WORKLOADS {
        run(workload, &mut session)?;
    }
    let Session { tally, hit, .. } = session;
    println!("{tally:?}, {} functions hit", hit.len());
    assert!(tally.planned > 10_000 && tally.moved > 4000, "{tally:?}");
    assert!(tally.returns > 3000, "{tally:?}");
    assert!(hit.len() > 500, "{} functions hit", hit.len());
    assert!(tally.calls > 12_000 && tally.arguments_moved > 300, "{tally:?}");
    Ok(())
}
