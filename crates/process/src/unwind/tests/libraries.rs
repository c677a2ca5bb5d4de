//! Real libraries: at thousands of return addresses the rule says what the row of the table says.

use drainprof_common::unwind::{Rule, Stack, advance, step};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, EvaluationResult, LittleEndian,
    RegisterRule, UnwindContext, UnwindSection as _, UnwindTableRow, Value, X86_64,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::*;
use crate::unwind::cfi::{Context, Tables};

/// Those of them that exist are examined, besides what this process has mapped: itself, libc, libgcc.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libm.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
];
/// Functions of each that are examined.
const FUNCTIONS: usize = 1500;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A stack with a word at every address, none like the other.
struct Made;

impl Stack for Made {
    fn word(&mut self, address: u64) -> Option<u64> {
        Some(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x7fff_ffff_fff8 | 1 << 46)
    }
}

/// Registers of the frame that is unwound.
#[derive(Clone, Copy)]
struct Registers {
    pc: u64,
    sp: u64,
    bp: u64,
}

fn evaluate(
    expression: gimli::Expression<Bytes<'_>>,
    encoding: gimli::Encoding,
    at: Registers,
    first: Option<u64>,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(encoding);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = match register {
                    X86_64::RSP => at.sp,
                    X86_64::RBP => at.bp,
                    X86_64::RA => at.pc,
                    _ => return None,
                };
                evaluation.resume_with_register(Value::Generic(value)).ok()?
            }
            EvaluationResult::RequiresMemory { address, .. } => {
                evaluation.resume_with_memory(Value::Generic(Made.word(address)?)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.result()[0].location {
        gimli::Location::Address { address } => Some(address),
        _ => None,
    }
}

/// The caller's registers by the row itself: what a debugger would compute. `None` where more registers than
/// these three are needed.
fn by_row(
    row: &UnwindTableRow<usize>,
    section: &EhFrame<Bytes<'_>>,
    encoding: gimli::Encoding,
    at: Registers,
) -> Option<Registers> {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match *register {
            X86_64::RSP => at.sp.wrapping_add_signed(*offset),
            X86_64::RBP => at.bp.wrapping_add_signed(*offset),
            _ => return None,
        },
        CfaRule::Expression(expression) => {
            evaluate(expression.get(section).unwrap(), encoding, at, None)?
        }
    };
    let value = |rule: Option<RegisterRule<usize>>, now: u64| match rule {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => Some(now),
        Some(RegisterRule::Offset(offset)) => Made.word(cfa.wrapping_add_signed(offset)),
        Some(RegisterRule::Expression(expression)) => {
            let place = evaluate(expression.get(section).unwrap(), encoding, at, Some(cfa))?;
            Made.word(place)
        }
        Some(_) => None,
    };
    Some(Registers {
        pc: value(row.register(X86_64::RA), 0)?,
        sp: cfa,
        bp: value(row.register(X86_64::RBP), at.bp)?,
    })
}

/// The addresses behind the calls between two addresses.
fn returns(code: &[(u64, Vec<u8>)], start: u64, end: u64) -> Vec<u64> {
    let Some((base, bytes)) =
        code.iter().find(|(base, bytes)| (*base..base + bytes.len() as u64).contains(&start))
    else {
        return Vec::new();
    };
    let bytes = &bytes[(start - base) as usize..((end - base) as usize).min(bytes.len())];
    Decoder::with_ip(64, bytes, start, DecoderOptions::NONE)
        .iter()
        .filter(|found| {
            matches!(found.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
        })
        .map(|found| found.next_ip())
        .collect()
}

/// How many return addresses were examined, and how many of them have a rule.
fn compare(path: &Path) -> (usize, usize) {
    let read = || FrameSections::read(fs::File::open(path).unwrap(), "library", 1 << 30).unwrap();
    let (tables, raw) = (Tables::new(read()), read());
    let (frames, header) = (raw.eh_frame.unwrap(), raw.eh_frame_hdr.unwrap());
    let section = EhFrame::new(&frames.bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(frames.vaddr).set_eh_frame_hdr(header.vaddr);
    let header = EhFrameHdr::new(&header.bytes, LittleEndian).parse(&bases, 8).unwrap();
    let header = header.table().unwrap();
    let code = open(path, &[]).code().unwrap().read_all(1 << 30).unwrap();
    let (mut context, mut theirs) = (Context::default(), UnwindContext::new());
    let (mut asked, mut translated) = (0, 0);
    let functions = tables.functions();
    for start in functions.iter().step_by(functions.len().div_ceil(FUNCTIONS)) {
        let function =
            header.fde_for_address(&section, &bases, *start, EhFrame::cie_from_offset).unwrap();
        let end = function.end_address();
        // Calls, and places where a signal may come; in a PLT these are before and behind a push.
        let calls = returns(&code, *start, end).into_iter().map(|pc| (pc, 0));
        let within = [0, 1, 4, 11, 16, 27, 32, 43].map(|into| (start + into, 1));
        let interrupted = within.into_iter().filter(|(pc, _)| *pc < end);
        for (pc, interrupted) in calls.chain(interrupted) {
            let address = pc - 1 + interrupted;
            let encoding = function.cie().encoding();
            let row =
                function.unwind_info_for_address(&section, &bases, &mut theirs, address).unwrap();
            let rule = tables.rule(&mut context, address, pc).expect("the function covers it");
            let has_rule = rule != Rule::STOP;
            asked += usize::from(interrupted == 0);
            translated += usize::from(interrupted == 0 && has_rule);
            if !has_rule {
                continue;
            }
            if rule == Rule::START {
                assert_eq!(row.register(X86_64::RA), Some(RegisterRule::Undefined));
                continue;
            }
            if rule == Rule::SIGNAL {
                assert!(function.is_signal_trampoline());
                continue;
            }
            let at = Registers { pc, sp: 0x7000_0000_1000, bp: 0x7000_0000_2000 };
            let expected = by_row(row, &section, encoding, at)
                .expect("there is a rule only where the row needs no other register");
            let mut cursor = Cursor { pc, sp: at.sp, bp: at.bp, interrupted };
            assert_eq!(advance(rule, &mut cursor, &mut Made), step::CALLER, "{pc:x} {row:?}");
            assert_eq!(
                (cursor.pc, cursor.sp, cursor.bp),
                (expected.pc, expected.sp, expected.bp),
                "{pc:x} {rule:?} {row:?}"
            );
        }
    }
    (asked, translated)
}

/// Every rule does what its row says, and every return address has one, but for some in the assembly of OpenSSL
/// and of the dynamic linker, which keep the stack pointer in memory or in other registers.
#[test]
fn rules_are_what_rows_say() {
    let mapped = mapped_objects(std::process::id()).unwrap();
    let mut paths: Vec<PathBuf> = mapped.into_iter().map(|object| object.path).collect();
    assert!(paths.len() >= 2);
    paths.extend(LIBRARIES.map(PathBuf::from).into_iter().filter(|path| path.exists()));
    for path in paths {
        let (asked, translated) = compare(&path);
        let share = translated as f64 / asked as f64;
        println!("{}: {translated} of {asked}, {share:.5}", path.display());
        let name = path.to_string_lossy();
        let has_assembly = ["libcrypto", "/ld-"].iter().any(|part| name.contains(part));
        let least = if has_assembly { 0.98 } else { 0.999 };
        assert!(asked > 100 && share > least, "{name}: {translated} of {asked}");
    }
}
