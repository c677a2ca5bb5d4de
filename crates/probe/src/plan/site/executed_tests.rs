//! The planner's beliefs against the processor: generated code is executed up to every instruction of its
//! straight line, and whatever is believed of registers and stack there must be so.

mod machine;

use iced_x86::code_asm::{
    AsmRegister8, AsmRegister32, CodeAssembler, dword_ptr, qword_ptr,
    registers::{gpr8::*, gpr32::*, gpr64::*, xmm::*},
    xmmword_ptr,
};
use machine::{ALL, CODE, Machine, READABLE, STACK};

use super::{flow::Value, *};

const ALL32: [AsmRegister32; 16] =
    [eax, ecx, edx, ebx, esp, ebp, esi, edi, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d];
const ALL8: [AsmRegister8; 16] =
    [al, cl, dl, bl, ah, bpl, sil, dil, r8b, r9b, r10b, r11b, r12b, r13b, r14b, r15b];
/// What the code under test must leave alone: it points to memory that may be read.
const SCRATCH: usize = 15;

/// Generates numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A register that may be written.
    fn register(&mut self) -> usize {
        loop {
            let number = self.below(15) as usize;
            if number != 4 {
                return number;
            }
        }
    }

    /// One whose value matters: those of arguments more often than others.
    fn source(&mut self) -> usize {
        if self.below(3) > 0 { ARGUMENTS[self.below(6) as usize] as usize } else { self.register() }
    }

    /// A distance from the stack pointer: mostly words of a small frame.
    fn near(&mut self) -> i32 {
        let word = self.below(12) as i32 * 8 - 72;
        if self.below(6) == 0 { word + self.below(8) as i32 } else { word }
    }
}

/// One instruction, or two that belong together.
fn instruction(code: &mut CodeAssembler, random: &mut Random) -> Result<(), iced_x86::IcedError> {
    let (to, from) = (random.register(), random.source());
    let near = random.near();
    match random.below(52) {
        0..=5 => code.push(ALL[random.source()]),
        6 => code.pop(ALL[to]),
        // As compilers do it: an argument is kept elsewhere, its register used for something else.
        7 | 45..=50 => {
            let kept = ARGUMENTS[random.below(6) as usize] as usize;
            match random.below(3) {
                0 => code.push(ALL[kept])?,
                1 => code.mov(qword_ptr(rsp + near), ALL[kept])?,
                _ => code.mov(ALL[to], ALL[kept])?,
            }
            code.mov(ALL32[kept], 1)
        }
        8..=12 => code.mov(ALL[to], ALL[from]),
        13 => code.mov(ALL32[to], ALL32[from]),
        14 if to < 8 && from < 8 => code.mov(ALL8[to & 3], ALL8[from & 3]),
        14 => code.mov(ALL8[to | 8], ALL8[9]),
        15 => code.mov(ALL[to], random.next()),
        16 => code.xchg(ALL[to], ALL[random.register()]),
        17 => code.lea(ALL[to], qword_ptr(rsp + near)),
        18 => code.lea(ALL[to], qword_ptr(ALL[from] + 8)),
        19 | 20 => code.sub(rsp, random.below(12) as i32 * 8),
        21 => code.add(rsp, random.below(4) as i32 * 8),
        22 => code.lea(rsp, qword_ptr(rsp - 24)),
        23..=26 => code.mov(qword_ptr(rsp + near), ALL[from]),
        27 => code.mov(dword_ptr(rsp + near), ALL32[from]),
        28 | 29 => code.mov(ALL[to], qword_ptr(rsp + near)),
        30 => {
            code.mov(rbp, rsp)?;
            code.mov(ALL[if to == 5 { 3 } else { to }], qword_ptr(rbp + near))
        }
        31 => {
            code.mov(rbp, rsp)?;
            code.mov(qword_ptr(rbp + near), ALL[from])
        }
        32 => code.xor(ALL32[to], ALL32[to]),
        33 => code.test(ALL[from], ALL[from]),
        34 => code.cmp(ALL[from], qword_ptr(r15 + 16)),
        35 => code.cmove(ALL[to], ALL[from]),
        36 => code.sete(ALL8[to & 3]),
        37 => code.mul(ALL[from]),
        38 => match random.below(8) {
            0 => code.cqo(),
            1 => code.rdtsc(),
            2 => code.cmpxchg(ALL[to], ALL[from]),
            3 => code.xadd(ALL[to], ALL[random.register()]),
            4 => code.movzx(ALL32[to], ALL8[9]),
            5 => code.movsxd(ALL[to], ALL32[from]),
            6 => code.imul_3(ALL[to], ALL[from], 3),
            _ => code.bswap(ALL[to]),
        },
        39 => code.add(ALL[to], 1),
        40 => {
            code.movq(xmm0, ALL[from])?;
            code.movups(xmmword_ptr(rsp + near), xmm0)
        }
        41 => code.mov(qword_ptr(rsp + near), 7),
        42 => code.add(qword_ptr(rsp + near), 1),
        43 => code.movq(ALL[to], xmm0),
        44 => match random.below(8) {
            0 => code.mov(qword_ptr(r15 + 8), ALL[from]),
            1 => code.stosq(),
            2 => code.rep().stosq(),
            3 => code.and(rsp, -16),
            4 => code.pushfq(),
            5 => code.mov(rsp, ALL[from]),
            6 => code.leave(),
            _ => code.mov(qword_ptr(ALL[to]), ALL[from]),
        },
        _ => code.push(qword_ptr(r15)),
    }
}

/// A function of random instructions.
fn function(machine: &Machine, random: &mut Random) -> Vec<u8> {
    let mut code = CodeAssembler::new(64).unwrap();
    for _ in 0..=random.below(14) {
        instruction(&mut code, random).unwrap();
    }
    code.ret().unwrap();
    code.assemble(machine.address(CODE)).unwrap()
}

fn inputs(machine: &Machine, random: &mut Random) -> [u64; 16] {
    let mut input = [0; 16];
    for register in &mut input {
        *register = random.next();
    }
    input[4] = machine.address(STACK);
    input[SCRATCH] = machine.address(READABLE);
    let return_address = random.next();
    machine.write(STACK, &return_address.to_le_bytes());
    input
}

/// How often what is believed after `prefix` is so, and how often not.
#[derive(Default, Debug)]
struct Tally {
    believed: usize,
    moved: usize,
    on_stack: usize,
    /// Probes at the return that are not at the first instruction.
    returns: usize,
    wrong: usize,
}

impl Tally {
    /// Compares `choice`, at the place after `prefix`, with the processor.
    fn check(
        &mut self,
        machine: &Machine,
        code: &[u8],
        (needs, choice): (Needs, &Choice),
        random: &mut Random,
    ) {
        let input = inputs(machine, random);
        let caller = machine.word(input[4]);
        let seen = machine.run(&code[..choice.offset as usize], &input);
        let sp = seen.registers[4];
        let entry = sp.wrapping_add(u64::from(choice.stack_moved));
        if entry != input[4] || machine.word(input[4]) != caller {
            self.wrong += 1;
        }
        if needs.at_return {
            // What the kernel does there: it swaps the word that the stack pointer points to.
            self.returns += usize::from(choice.offset > 0);
            self.wrong += usize::from(sp != input[4] || machine.word(sp) != caller);
        }
        for (argument, location) in choice.locations.iter().enumerate() {
            let Some(location) = location else { continue };
            let found = match location {
                Location::Register(number) => seen.registers[*number as usize],
                Location::Stack(offset) => {
                    self.on_stack += 1;
                    machine.word(sp.wrapping_add_signed(i64::from(*offset)))
                }
            };
            self.believed += 1;
            self.moved += usize::from(choice.moved() >> argument & 1 != 0);
            self.wrong += usize::from(found != input[ARGUMENTS[argument] as usize]);
        }
    }
}

fn random_costs(random: &mut Random) -> Costs {
    let mut costs = Costs::assumed();
    for cost in &mut costs.entry_ns {
        *cost = Some(f64::from(100 << random.below(8)));
    }
    costs
}

/// What the planner chooses in a function that stands by itself.
fn chosen(machine: &Machine, code: &[u8], needs: Needs, costs: &Costs) -> Choice {
    let address = machine.address(CODE);
    let whole = Function { bytes: code, address, before: &[], after: &[], symbols: &[] };
    choose(whole, needs, costs, &|_, _| false)
}

/// For thousands of functions, needs and costs: where the planner puts a probe, every needed argument is
/// where it says, and so is the return address.
#[test]
fn chosen_places_hold() {
    let machine = Machine::new();
    let mut random = Random(1);
    let mut tally = Tally::default();
    let mut later = 0;
    for _ in 0..30_000 {
        let code = function(&machine, &mut random);
        let needs = Needs {
            args: (random.below(64) & random.below(64)) as u8,
            caller: true,
            at_return: random.below(3) == 0,
            // Stores to wherever a register points would have to be let happen.
            past_stores: false,
        };
        let costs = random_costs(&mut random);
        let choice = chosen(&machine, &code, needs, &costs);
        later += usize::from(choice.offset > 0);
        tally.check(&machine, &code, (needs, &choice), &mut random);
    }
    assert_eq!(tally.wrong, 0, "{tally:?}");
    assert!(later > 7000 && tally.moved > 400 && tally.on_stack > 200, "{later} {tally:?}");
    assert!(tally.returns > 1000, "{tally:?}");
}

/// Whatever is believed of any register and any word of the stack, at any instruction of a straight line,
/// is so: not only of what a choice happens to use.
#[test]
fn every_belief_holds() {
    let machine = Machine::new();
    let mut random = Random(2);
    let mut believed = 0;
    for _ in 0..8_000 {
        let code = function(&machine, &mut random);
        let input = inputs(&machine, &mut random);
        let caller = machine.word(input[4]);
        let meant = |value: Value| match value {
            Value::Argument(argument) => input[ARGUMENTS[argument as usize] as usize],
            Value::Stack(offset) => input[4].wrapping_add_signed(offset),
        };
        for step in straight_line(&code, machine.address(CODE), false).steps {
            let length = (step.instruction.ip() - machine.address(CODE)) as usize;
            let seen = machine.run(&code[..length], &input);
            assert_eq!(machine.word(input[4]), caller, "the return address stays");
            for (number, value) in step.before.known_registers() {
                assert_eq!(seen.registers[number], meant(value), "{number}: {:02x?}", &code);
                believed += 1;
            }
            for (at, value) in step.before.known_slots() {
                let found = machine.word(input[4].wrapping_add_signed(at));
                assert_eq!(found, meant(value), "slot {at}: {code:02x?}");
                believed += 1;
            }
        }
    }
    assert!(believed > 100_000, "{believed}");
}

/// The check can fail: who believes that arguments stay where they were, or that the stack pointer does,
/// is found out.
#[test]
fn wrong_beliefs_are_caught() {
    let machine = Machine::new();
    let mut random = Random(3);
    let mut naive = Tally::default();
    let mut still = Tally::default();
    let mut returns = Tally::default();
    for _ in 0..500 {
        let code = function(&machine, &mut random);
        let needs = Needs { args: 63, caller: true, ..Needs::default() };
        let costs = random_costs(&mut random);
        let choice = chosen(&machine, &code, needs, &costs);
        let home =
            Choice { locations: Choice::blind(Stop::Asked, needs).locations, ..choice.clone() };
        naive.check(&machine, &code, (needs, &home), &mut random);
        let still_choice = Choice { stack_moved: 0, ..choice.clone() };
        still.check(&machine, &code, (needs, &still_choice), &mut random);
        let needs = Needs { at_return: true, ..needs };
        returns.check(&machine, &code, (needs, &choice), &mut random);
    }
    assert!(naive.wrong > 10 && still.wrong > 50, "{naive:?} {still:?}");
    assert!(
        returns.wrong > 50,
        "a return address elsewhere than at the stack pointer: {returns:?}"
    );
}
