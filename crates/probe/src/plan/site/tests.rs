//! The planner on hand-written functions: which place, and why not a better one.

use super::*;

const ADDRESS: u64 = 0x1000;

fn needs(args: u8) -> Needs {
    Needs { args, caller: true, ..Needs::default() }
}

fn function(bytes: &[u8]) -> Function<'_> {
    Function { bytes, address: ADDRESS, before: &[], after: &[], symbols: &[] }
}

fn chosen(bytes: &[u8], args: u8) -> Choice {
    choose(function(bytes), needs(args), &Costs::assumed(), &|_, _| false)
}

/// `test rdi,rdi; je +1; push rbx; ret; ret`, as `free` begins: the jump is cheap and is taken by every
/// call; what comes after it is not.
#[test]
fn first_branch() {
    let choice = chosen(&[0x48, 0x85, 0xff, 0x74, 0x01, 0x53, 0xc3, 0xc3], 1);
    assert_eq!((choice.offset, choice.moved(), choice.stack_moved), (3, 0, 0));
    let (here, entry) = (choice.here.unwrap(), choice.entry.unwrap());
    assert_eq!((here.kind, entry.kind), (InstructionKind::Branch, InstructionKind::Compare));
    assert_eq!((here.instruction.as_str(), here.cost_ns), ("je 0x1006", 550.0));
    assert!(entry.cost_ns > 10_000.0);
}

/// `endbr64; push rbp; mov rbp,rsp; …`: the push, with the stack as it was at entry.
#[test]
fn marked_frame() {
    let choice = chosen(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3], 63);
    assert_eq!((choice.offset, choice.stack_moved, choice.moved()), (4, 0, 0));
}

fn chosen_at_return(bytes: &[u8], args: u8) -> Choice {
    let needs = Needs { at_return: true, ..needs(args) };
    choose(function(bytes), needs, &Costs::assumed(), &|_, _| false)
}

/// A probe at the return moves with the stack pointer where it was: behind `endbr64` to the push, the jump of `free`, and a
/// jump to another function; but not behind `sub rsp,8`, and not to where an argument has left its register.
#[test]
fn at_return() {
    let place = |bytes: &[u8], args: u8| {
        let choice = chosen_at_return(bytes, args);
        (choice.offset, choice.stop)
    };
    let framed = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
    assert_eq!(place(&framed, 63), (4, Stop::Cheapest));
    assert_eq!(place(&[0x48, 0x85, 0xff, 0x74, 0x01, 0x53, 0xc3, 0xc3], 1), (3, Stop::Branch));
    assert_eq!(place(&[0xf3, 0x0f, 0x1e, 0xfa, 0xe9, 0, 1, 0, 0], 1), (4, Stop::Branch));
    // sub rsp,8; push rax; pop rax; add rsp,8; ret
    let moved = [0x48, 0x83, 0xec, 8, 0x50, 0x58, 0x48, 0x83, 0xc4, 8, 0xc3];
    assert_eq!(place(&moved, 1), (0, Stop::ReturnProbe));
    assert_eq!(chosen(&moved, 1).offset, 4, "one at the entry moves on");
    // mov rax,rdi; xor edi,edi; push rbx; pop rbx; ret
    let elsewhere = [0x48, 0x89, 0xf8, 0x31, 0xff, 0x53, 0x5b, 0xc3];
    assert_eq!(place(&elsewhere, 1), (0, Stop::ArgumentLost(0)));
    assert_eq!((chosen(&elsewhere, 1).offset, place(&elsewhere, 2).0), (5, 5));
    // xor eax,eax; push rbx; pop rbx; ret, then a jump back to the push.
    assert_eq!(place(&[0x31, 0xc0, 0x53, 0x5b, 0xc3, 0xeb, 0xfb], 1), (0, Stop::JumpTarget));
}

/// `sub rsp,8; mov [rsp],rdi; xor edi,edi; push rax`: the argument is on the stack, the stack has moved.
#[test]
fn argument_on_the_stack() {
    let code = [
        0x48, 0x83, 0xec, 8, 0x48, 0x89, 0x3c, 0x24, 0x31, 0xff, 0x50, 0x58, 0x48, 0x83, 0xc4, 8,
        0xc3,
    ];
    let choice = chosen(&code, 1);
    assert_eq!((choice.offset, choice.stack_moved), (10, 8));
    assert_eq!(choice.locations[0], Some(Location::Stack(0)));
    assert_eq!(choice.moved_text(), ["arg0=[rsp+0x0]"]);
    // What is not needed is not looked for.
    assert_eq!(
        chosen(&code, 2).locations,
        [None, Some(Location::Register(6)), None, None, None, None]
    );
}

/// `xor edi,edi; push rax; ret` has lost its first argument where it would be cheap.
#[test]
fn argument_lost() {
    let choice = chosen(&[0x31, 0xff, 0x50, 0xc3], 1);
    assert_eq!((choice.offset, choice.stop), (0, Stop::ArgumentLost(0)));
    assert_eq!(chosen(&[0x31, 0xff, 0x50, 0xc3], 2).offset, 2, "the second is there");
}

/// `mov edi,edi` keeps half of the argument: that is not the argument.
#[test]
fn half_an_argument() {
    assert_eq!(chosen(&[0x89, 0xff, 0x50, 0xc3], 1).stop, Stop::ArgumentLost(0));
}

/// `mov [rdi],rsi; push rax`: what others can see has happened before the push. To the store itself, it
/// has not.
#[test]
fn effects_come_after() {
    let code = [0x48, 0x89, 0x37, 0x50, 0x58, 0xc3];
    assert_eq!((chosen(&code, 1).offset, chosen(&code, 1).stop), (0, Stop::Store));
    let mut costs = Costs::assumed();
    costs.entry_ns[InstructionKind::Memory as usize] = Some(100.0);
    let code = [0x48, 0x85, 0xff, 0x48, 0x89, 0x37, 0xc3];
    assert_eq!(choose(function(&code), needs(1), &costs, &|_, _| false).offset, 3);
}

/// `mov [rdi],rsi; push rax`, where nothing else reads it before the return: the push will do. What was on the
/// stack before a store that may have gone there is not believed.
#[test]
fn unless_nobody_looks() {
    let unshared = Needs { past_stores: true, ..needs(1) };
    let chosen = |code: &[u8]| choose(function(code), unshared, &Costs::assumed(), &|_, _| false);
    assert_eq!(chosen(&[0x48, 0x89, 0x37, 0x50, 0x58, 0xc3]).offset, 3);
    // mov [rsp-8],rdi; xor edi,edi; mov [rsi],rdx; push rax
    let spilled = [0x48, 0x89, 0x7c, 0x24, 0xf8, 0x31, 0xff, 0x48, 0x89, 0x16, 0x50, 0x58, 0xc3];
    assert_eq!((chosen(&spilled).offset, chosen(&spilled).stop), (0, Stop::ArgumentLost(0)));
}

/// Jumps behind the first instruction: by the function itself, by code right before and behind it, by code far away,
/// by name, and, where it is not known where to, only if the stack would not show it.
#[test]
fn jumped_to() {
    // xor eax,eax; push rbx; pop rbx; ret, then a jump back to the push.
    let back = [0x31, 0xc0, 0x53, 0x5b, 0xc3, 0xeb, 0xfb];
    assert_eq!((chosen(&back, 1).offset, chosen(&back, 1).stop), (0, Stop::JumpTarget));
    let code = [0x31, 0xc0, 0x53, 0x5b, 0xc3];
    assert_eq!(chosen(&code, 1).offset, 2);
    let far = |first: u64, last: u64| (first..=last).contains(&(ADDRESS + 2));
    let from_far = choose(function(&code), needs(1), &Costs::assumed(), &far);
    assert_eq!((from_far.offset, from_far.stop), (0, Stop::JumpTarget));
    let mut before = vec![0x90; 64];
    before.extend([0x75, 0x02]);
    let neighbour = Function { before: &before, ..function(&code) };
    let choice = choose(neighbour, needs(1), &Costs::assumed(), &|_, _| false);
    assert_eq!((choice.offset, choice.stop), (0, Stop::JumpTarget));
    let follower = Function { after: &[0xeb, 0xfb], ..function(&code) };
    let choice = choose(follower, needs(1), &Costs::assumed(), &|_, _| false);
    assert_eq!((choice.offset, choice.stop), (0, Stop::JumpTarget));
    let named = Function { symbols: &[ADDRESS + 2], ..function(&code) };
    let choice = choose(named, needs(1), &Costs::assumed(), &|_, _| false);
    assert_eq!((choice.offset, choice.stop), (0, Stop::JumpTarget));
    // xor eax,eax; nop; jmp rax, and xor eax,eax; push rbx; jmp rax.
    let unknown = chosen(&[0x31, 0xc0, 0x90, 0xff, 0xe0], 1);
    assert_eq!((unknown.offset, unknown.stop), (0, Stop::UnknownJump));
    assert_eq!(chosen(&[0x31, 0xc0, 0x53, 0xff, 0xe0], 1).offset, 2);
}

/// A loop over the first instruction cannot be helped, and is reported.
#[test]
fn entered_again() {
    let choice = chosen(&[0x31, 0xc0, 0x75, 0xfc, 0xc3], 1);
    assert!(choice.entered_again);
    assert!(!chosen(&[0x31, 0xc0, 0x75, 0x00, 0xc3], 1).entered_again);
}

const NOP5: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
const NOP10: &[u8] = &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];

/// Costs of a kernel that replaces nops of five bytes by calls, or of ten.
fn with_calls(nop5: Option<f64>, nop10: Option<f64>) -> Costs {
    let mut costs = Costs::assumed();
    costs.entry_ns[InstructionKind::Nop5 as usize] = nop5;
    costs.entry_ns[InstructionKind::Nop10 as usize] = nop10;
    costs
}

/// A 5-byte nop is taken at the first instruction, and behind `endbr64` and other nops, where the function has nothing
/// below its stack pointer yet; behind anything else it never is, however cheap.
#[test]
fn nop5_only_first() {
    let costs = with_calls(Some(100.0), None);
    let place = |before: &[u8]| {
        let code = [before, NOP5, &[0x53, 0x5b, 0xc3]].concat();
        let choice = choose(function(&code), needs(1), &costs, &|_, _| false);
        (choice.offset, choice.here.unwrap().kind)
    };
    assert_eq!(place(&[]), (0, InstructionKind::Nop5));
    assert_eq!(place(&[0xf3, 0x0f, 0x1e, 0xfa]), (4, InstructionKind::Nop5));
    assert_eq!(place(&[0xf3, 0x0f, 0x1e, 0xfa, 0x66, 0x90]), (6, InstructionKind::Nop5));
    assert_eq!(place(&[0x31, 0xc0]), (7, InstructionKind::Push));
    assert_eq!(place(&[0x48, 0x89, 0x7c, 0x24, 0xf8]), (10, InstructionKind::Push));
}

/// A 10-byte nop is taken anywhere on the line where it has a cost, all of it in one page.
#[test]
fn nop10_anywhere() {
    // mov [rsp-8],rdi; nop10; ret.
    let code = [&[0x48, 0x89, 0x7c, 0x24, 0xf8], NOP10, &[0xc3]].concat();
    let chosen = |address: u64, costs: &Costs| {
        let function = Function { address, ..function(&code) };
        let choice = choose(function, needs(1), costs, &|_, _| false);
        (choice.offset, choice.here.unwrap().kind)
    };
    let call = with_calls(Some(600.0), Some(250.0));
    assert_eq!(chosen(ADDRESS, &call), (5, InstructionKind::Nop10));
    assert_eq!(chosen(0x1ff7 - 5, &call), (0, InstructionKind::Memory), "in two pages");
    assert_eq!(chosen(0x1ff6 - 5, &call), (5, InstructionKind::Nop10), "at a page's end");
    assert_eq!(chosen(ADDRESS, &with_calls(Some(250.0), None)), (0, InstructionKind::Memory));
}

/// Where no probe may sit on the first instruction, any other that has a cost is taken; where there is none, the choice
/// says so by its cost.
#[test]
fn unusable_first() {
    let costs = with_calls(None, None);
    for first in [NOP5, NOP10] {
        let code = [first, &[0x31, 0xc0, 0xc3]].concat();
        let choice = choose(function(&code), needs(1), &costs, &|_, _| false);
        assert_eq!(choice.offset as usize, first.len());
        assert_eq!(choice.here.unwrap().kind, InstructionKind::Arithmetic);
        assert!(choice.entry.unwrap().cost_ns.is_infinite());
        // A function of nothing else: the loop behind it is jumped to.
        let code = [first, &[0x75, 0xfe, 0xc3]].concat();
        let choice = choose(function(&code), needs(1), &costs, &|_, _| false);
        assert_eq!((choice.offset, choice.stop), (0, Stop::JumpTarget));
        assert!(choice.here.unwrap().cost_ns.is_infinite());
    }
}

/// A gain that measuring may err by is none, and of equals the first is taken.
#[test]
fn small_gains() {
    let mut costs = Costs::assumed();
    costs.entry_ns = [Some(1000.0); InstructionKind::ALL.len()];
    costs.entry_ns[InstructionKind::Push as usize] = Some(600.0);
    let code = [0x31, 0xc0, 0x53, 0x5b, 0xc3];
    assert_eq!(choose(function(&code), needs(0), &costs, &|_, _| false).offset, 0);
    costs.entry_ns[InstructionKind::Push as usize] = Some(400.0);
    assert_eq!(choose(function(&code), needs(0), &costs, &|_, _| false).offset, 2);
    let pushes = [0x31, 0xc0, 0x53, 0x55, 0x5d, 0x5b, 0xc3];
    assert_eq!(chosen(&pushes, 0).offset, 2);
}

/// Nothing at all, bytes that are no code, an instruction cut short, and a function larger than is decoded
/// are left at their first byte.
#[test]
fn hostile_bytes() {
    assert_eq!(chosen(&[], 1).stop, Stop::Size);
    assert_eq!(chosen(&[0x06, 0x90], 1).stop, Stop::Undecodable);
    assert_eq!(chosen(&[0x31, 0xc0, 0x53, 0xe9, 0x00], 1).stop, Stop::Undecodable);
    let large = vec![0x90; MAX_FUNCTION + 1];
    assert_eq!((chosen(&large, 1).offset, chosen(&large, 1).stop), (0, Stop::Size));
    let endless = vec![0x90; 4096];
    assert_eq!(chosen(&endless, 1).offset, 0);
}

/// Whatever the bytes, planning ends, and what it says fits the function.
#[test]
fn any_bytes() {
    proptest::proptest!(|(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64), args in 0_u8..64)| {
        let choice = chosen(&bytes, args);
        assert!((choice.offset as usize) < bytes.len().max(1));
        assert_eq!(choice.moved() & !args, 0);
        assert!(choice.stack_moved <= 1 << 20);
        let choice = chosen_at_return(&bytes, args);
        assert!((choice.offset as usize) < bytes.len().max(1));
        assert_eq!((choice.moved(), choice.stack_moved), (0, 0));
    });
}

/// Only exact shapes have a kind: a prefix changes what kernels do with an instruction.
#[test]
fn kinds() {
    let kind = |bytes: &[u8]| {
        let instruction = Decoder::with_ip(64, bytes, ADDRESS, DecoderOptions::NONE).decode();
        kind::of(&instruction, bytes)
    };
    for (bytes, expected) in [
        (&[0x55][..], InstructionKind::Push),
        (&[0x41, 0x54], InstructionKind::Push),
        (&[0x66, 0x55], InstructionKind::Other),
        (&[0xff, 0x37], InstructionKind::Other),
        (&[0x6a, 0x00], InstructionKind::Other),
        (&[0x90], InstructionKind::Nop),
        (&[0x66, 0x90], InstructionKind::Nop),
        (&[0x0f, 0x1f, 0x00], InstructionKind::LongNop),
        (&[0x0f, 0x1f, 0x40, 0x00], InstructionKind::LongNop),
        (&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], InstructionKind::LongNop),
        (NOP5, InstructionKind::Nop5),
        (NOP10, InstructionKind::Nop10),
        // The operands do not matter, but one prefix more or another one does.
        (&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0xe8, 1, 2, 3, 4], InstructionKind::Nop10),
        (&[0x66, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], InstructionKind::Other),
        (&[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], InstructionKind::Other),
        (&[0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], InstructionKind::Other),
        (&[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00], InstructionKind::Other),
        (&[0xf3, 0x0f, 0x1e, 0xfa], InstructionKind::Endbr),
        (&[0xeb, 0x00], InstructionKind::Branch),
        (&[0x3e, 0x75, 0x00], InstructionKind::Other),
        (&[0xe3, 0x00], InstructionKind::Other),
        (&[0xe2, 0x00], InstructionKind::Other),
        (&[0xe8, 0, 0, 0, 0], InstructionKind::Branch),
        (&[0xff, 0xe0], InstructionKind::Other),
        (&[0xc3], InstructionKind::Return),
        (&[0xf3, 0xc3], InstructionKind::Other),
        (&[0x48, 0x89, 0xe5], InstructionKind::Move),
        (&[0x48, 0x8b, 0x07], InstructionKind::Memory),
        (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], InstructionKind::Memory),
        (&[0x48, 0x83, 0xec, 0x08], InstructionKind::Arithmetic),
        (&[0xf0, 0x48, 0x01, 0x07], InstructionKind::Other),
        (&[0x48, 0x85, 0xff], InstructionKind::Compare),
        (&[0x48, 0x8d, 0x47, 0x08], InstructionKind::Lea),
        (&[0x0f, 0x05], InstructionKind::Other),
    ] {
        assert_eq!(kind(bytes), expected, "{bytes:02x?}");
    }
}
