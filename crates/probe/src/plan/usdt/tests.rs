//! What rewritten probes compute, held against a plain model of registers and memory; and what is refused.

use drainprof_common::{
    interp::{self, INPUTS, Machine, Outcome, Registers, Values, run, run_simple},
    spec::{ArgLocation, value},
};
use drainprof_process::testing::{library, open};
use drainprof_profile::{self as profile, Level, Resolver, Role, parse};
use proptest::prelude::*;

use super::*;

/// Where the sample's variable is in the made-up process.
const VARIABLE: u64 = 0x7000_1234_5000;

struct Knows;

impl Resolver for Knows {
    fn var(&self, symbol: &str) -> Option<u64> {
        (symbol == "the_pool").then_some(VARIABLE)
    }

    fn offset_of(&self, _: &str, _: &str) -> Result<u64, String> {
        Err("no types".to_owned())
    }
}

/// What stands in memory: any bytes will do, if they are the same for both.
fn byte(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u8
}

fn word(address: u64, size: u8) -> u64 {
    (0..u64::from(size))
        .fold(0, |word, at| word | u64::from(byte(address.wrapping_add(at))) << (8 * at))
}

/// The inputs of a hit, as the kernel side fetches them.
struct Hit([u64; INPUTS]);

impl Hit {
    fn of(spec: &ProbeSpec, registers: &[u64; 16]) -> Self {
        let mut inputs = [0; INPUTS];
        for (slot, home) in ARGUMENTS.iter().enumerate() {
            let moved = spec.moved >> slot & 1 != 0;
            assert!(!moved || spec.arg_locations[slot].register < ArgLocation::ON_STACK);
            let register = if moved { spec.arg_locations[slot].register } else { u16::from(*home) };
            inputs[slot] = registers[usize::from(register)];
        }
        Self(inputs)
    }
}

impl Machine for Hit {
    fn arg(&self, index: u8) -> u64 {
        self.0[usize::from(index)]
    }

    fn ret(&self) -> u64 {
        unreachable!("a USDT probe has no return")
    }

    fn caller(&self) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        Some(word(address, size))
    }
}

/// The spec of a probe at a place with these arguments: `probe` is its role and its keys, as profiles write them.
fn spec_of(elf: &Elf, role: Role, keys: &str, arguments: &str) -> Result<ProbeSpec, String> {
    // A granule with objects cannot move: where the probe is a `move`, there is no `alloc`.
    let (kind, alloc) = match role {
        Role::Move => ("bulk", ""),
        _ => {
            ("drain", "[[probe]]\nrole = 'alloc'\nat = 'make'\ngranule = 'arg0'\nobject = 'arg1'\n")
        }
    };
    let text = format!(
        "schema = 1\nname = 't'\nkind = '{kind}'\n[match]\nsymbols = ['usdt:p:n']\n[[probe]]\nrole = 'close'\nat = \
         'shut'\ngranule = 'arg0'\n{alloc}[[probe]]\nrole = '{}'\nat = 'usdt:p:n'\n{keys}",
        role.name()
    );
    let profile = parse(&text, &profile::Source::File("t.toml".into())).unwrap();
    let probe = profile.probes.iter().find(|probe| probe.role == role).unwrap();
    let site = UsdtSite { semaphore: None, arguments: arguments.to_owned() };
    let compile = |probe: &Probe| {
        profile::compile(&profile, probe, Level::Objects, 0, &Knows)
            .map_err(|error| error.to_string())
    };
    at_place(elf, probe, &site, &compile)
}

/// The spec of a `free` of `object`.
fn spec(elf: &Elf, object: &str, arguments: &str) -> Result<ProbeSpec, String> {
    spec_of(elf, Role::Free, &format!("object = '{object}'"), arguments)
}

/// What both roads of the kernel side, the byte code and the simple forms, make of one of a spec's values.
fn computed(spec: &ProbeSpec, value: u8, registers: &[u64; 16]) -> u64 {
    let hit = Hit::of(spec, registers);
    let mut values: Values = [0; value::COUNT];
    assert_eq!(run(spec, spec.entry_start, &hit, &mut values), Outcome::Accepted);
    let seen = values[usize::from(value)];
    if spec.is_simple != 0 {
        let mut registers = Registers { inputs: hit.0, values: [0; value::COUNT] };
        for simple in &spec.simple[..usize::from(spec.entry_simple)] {
            assert_eq!(run_simple(simple, &hit, &mut registers.values), None);
        }
        let words: &[u64; interp::REGISTER_WORDS] = bytemuck::cast_ref(&registers);
        let location = usize::from(spec.locations[usize::from(value)]);
        assert_eq!(words[location], seen, "the simple form");
    }
    seen
}

fn object(spec: &ProbeSpec, registers: &[u64; 16]) -> u64 {
    computed(spec, value::OBJECT, registers)
}

/// Every expression of a probe is rewritten for its place, the new id of a `move` included.
#[test]
fn moved_granule() {
    let directory = tempfile::tempdir().unwrap();
    let keys = "granule = 'arg0'\nnew_granule = 'arg1'\nbytes = 'arg2'";
    let spec = spec_of(&elf(&directory), Role::Move, keys, "8@%rbx 8@%r12 8@%rdi").unwrap();
    let registers = std::array::from_fn(|number| 1000 + number as u64);
    let ids = [value::GRANULE, value::NEW_OBJECT, value::BYTES]
        .map(|value| computed(&spec, value, &registers));
    assert_eq!(ids, [1003, 1012, 1007]);
}

fn elf(directory: &tempfile::TempDir) -> Elf {
    open(&library(directory.path(), "libusdt.so", &[]), &[])
}

/// Names by number and width, as in the manuals.
fn name(number: u8, width: u8) -> String {
    let old = ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"];
    let Some(old) = old.get(usize::from(number)) else {
        let suffix = match width {
            8 => "",
            4 => "d",
            2 => "w",
            _ => "b",
        };
        return format!("r{number}{suffix}");
    };
    match width {
        8 => format!("r{old}"),
        4 => format!("e{old}"),
        2 => (*old).to_owned(),
        _ => format!("{}l", old.strip_suffix('x').unwrap_or(old)),
    }
}

/// The low bytes of a word, as a C compiler would convert them.
fn converted(word: u64, width: u8, signed: bool) -> u64 {
    match (width, signed) {
        (1, true) => i64::from(word as i8).cast_unsigned(),
        (2, true) => i64::from(word as i16).cast_unsigned(),
        (4, true) => i64::from(word as i32).cast_unsigned(),
        (1, false) => u64::from(word as u8),
        (2, false) => u64::from(word as u16),
        (4, false) => u64::from(word as u32),
        _ => word,
    }
}

/// What an operand is worth on these registers.
type Value = fn(&Operand, &[u64; 16]) -> u64;

/// An operand in the assembler's words, and what it is worth on these registers.
#[derive(Clone, Debug)]
struct Operand {
    text: String,
    value: Value,
    registers: [u8; 2],
    scale: u8,
    offset: i32,
    width: u8,
    signed: bool,
}

impl Operand {
    fn address(&self, registers: &[u64; 16], has: [bool; 2]) -> u64 {
        let of = |which: usize| registers[usize::from(self.registers[which])];
        let base = if has[0] { of(0) } else { 0 };
        let index = if has[1] { of(1).wrapping_mul(u64::from(self.scale)) } else { 0 };
        base.wrapping_add(index).wrapping_add(i64::from(self.offset).cast_unsigned())
    }

    fn read(&self, address: u64) -> u64 {
        converted(word(address, self.width), self.width, self.signed)
    }
}

fn operands() -> impl Strategy<Value = Operand> {
    let width = prop::sample::select(vec![1_u8, 2, 4, 8]);
    let scale = prop::sample::select(vec![1_u8, 2, 4, 8]);
    let parts = (0..9_u8, width, any::<bool>(), 0..16_u8, 0..16_u8, scale, -70_000..70_000_i32);
    parts.prop_map(|(form, width, signed, base, index, scale, offset)| {
        let (b, i) = (name(base, 8), name(index, 8));
        let (part, high) = (name(base, width), ["ah", "ch", "dh", "bh"][usize::from(base) % 4]);
        let (text, width, value): (String, u8, Value) = match form {
            0 => (format!("%{part}"), width, |of, all| {
                converted(all[usize::from(of.registers[0])], of.width, of.signed)
            }),
            1 => (format!("%{high}"), 1, |of, all| {
                converted(all[usize::from(of.registers[0]) % 4] >> 8, 1, of.signed)
            }),
            2 => (format!("${offset}"), width, |of, _| {
                converted(i64::from(of.offset).cast_unsigned(), of.width, of.signed)
            }),
            3 => (format!("(%{b})"), width, |of, all| {
                of.read(Operand { offset: 0, ..of.clone() }.address(all, [true, false]))
            }),
            4 => (format!("{offset}(%{b})"), width, |of, all| {
                of.read(of.address(all, [true, false]))
            }),
            5 => (format!("{offset}(%{b},%{i},{scale})"), width, |of, all| {
                of.read(of.address(all, [true, true]))
            }),
            6 => (format!("{offset}(,%{i},{scale})"), width, |of, all| {
                of.read(of.address(all, [false, true]))
            }),
            7 => (format!("{offset}+the_pool(%rip)"), width, |of, all| {
                of.read(VARIABLE.wrapping_add(of.address(all, [false, false])))
            }),
            _ => (format!("the_pool(,%{i},{scale})"), width, |of, all| {
                let at = Operand { offset: 0, ..of.clone() }.address(all, [false, true]);
                of.read(VARIABLE.wrapping_add(at))
            }),
        };
        let sign = if signed { "-" } else { "" };
        Operand {
            text: format!("{sign}{width}@{text}"),
            value,
            registers: [base, index],
            scale,
            offset,
            width,
            signed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// An argument of any form, width and sign is what a compiler would have passed: in byte code and in simple forms, alone and
    /// in an expression with another one.
    #[test]
    fn arguments_are_what_was_passed(
        operands in prop::collection::vec(operands(), 2..=6),
        registers in prop::array::uniform16(any::<u64>()),
        first in any::<prop::sample::Index>(),
        second in any::<prop::sample::Index>(),
    ) {
        thread_local!(static ELF: Elf = elf(&tempfile::tempdir().unwrap()));
        let arguments: Vec<&str> = operands.iter().map(|operand| operand.text.as_str()).collect();
        let arguments = arguments.join(" ");
        let (first, second) = (first.index(operands.len()), second.index(operands.len()));
        let value = |index: usize| (operands[index].value)(&operands[index], &registers);
        for (text, expected) in [
            (format!("arg{first}"), value(first)),
            (format!("*(u64)(arg{first} + 8)"), word(value(first).wrapping_add(8), 8)),
            (format!("arg{first} ^ arg{second} + 1"), value(first) ^ value(second).wrapping_add(1)),
        ] {
            let spec = ELF.with(|elf| spec(elf, &text, &arguments)).unwrap();
            prop_assert_eq!(object(&spec, &registers), expected, "{} of {}", text, arguments);
        }
    }
}

/// What is in the registers of the calling convention is fetched as such; anything else is fetched from where it is, and the
/// probe stands for its own place.
#[test]
fn registers_are_fetched() {
    let directory = tempfile::tempdir().unwrap();
    let elf = elf(&directory);
    let plain = spec(&elf, "arg1", "8@$1 8@%rdx").unwrap();
    assert_eq!((plain.moved, plain.is_simple), (0, 1));
    let moved = spec(&elf, "arg0 + arg1", "8@%r14 8@(%rsi)").unwrap();
    assert_eq!(moved.moved.count_ones(), 1);
    let slot = moved.moved.trailing_zeros() as usize;
    assert_eq!(moved.arg_locations[slot], ArgLocation { register: 14, offset: 0 });
    assert!(plain.stack_moved == AT_SITE && moved.stack_moved == AT_SITE);
}

/// Six registers are fetched, not seven; only what the probe names counts.
#[test]
fn six_registers() {
    let directory = tempfile::tempdir().unwrap();
    let elf = elf(&directory);
    let arguments = "8@(%rax,%rbx) 8@(%r10,%r11) 8@(%r12,%r13) 8@(%r14,%r15) 8f@%xmm0";
    assert!(spec(&elf, "arg0 + arg1 + arg2", arguments).is_ok());
    let error = spec(&elf, "arg0 + arg1 + arg2 + arg3", arguments).unwrap_err();
    assert!(error.contains("need 8 registers, more than 6"), "{error}");
    let error = spec(&elf, "arg4", arguments).unwrap_err();
    assert!(error.contains("arg4 is `8f@%xmm0`: floating-point"), "{error}");
    let error = spec(&elf, "arg5", arguments).unwrap_err();
    assert!(error.contains("there is no arg5, the probe has 5 arguments here"), "{error}");
    let error = spec(&elf, "arg0", "8@gone(%rip)").unwrap_err();
    assert!(error.contains("`gone`, a symbol that"), "{error}");
}
