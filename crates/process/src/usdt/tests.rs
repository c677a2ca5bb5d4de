//! Notes and operands, well-formed and hostile.

use proptest::prelude::*;

use super::*;

/// A note's contents: address, base, semaphore, then the texts.
fn note(words: [u64; 3], texts: &[u8]) -> Vec<u8> {
    let words = words.into_iter().flat_map(u64::to_le_bytes);
    words.chain(texts.iter().copied()).collect()
}

fn only(text: &str) -> Result<Argument, String> {
    let mut all = arguments(text);
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

fn argument(width: u8, signed: bool, location: Location) -> Argument {
    Argument { width, signed, location }
}

fn memory(
    base: Option<u8>,
    index: Option<(u8, u8)>,
    symbol: Option<&str>,
    offset: i64,
) -> Location {
    let (symbol, offset) = (symbol.map(str::to_owned), offset.cast_unsigned());
    Location::Memory { base, index, symbol, offset }
}

/// A note is read as it was written; without `.stapsdt.base` nothing is moved.
#[test]
fn a_note() {
    let contents = note([0x1234, 0x9000, 0x5678], b"pool\0open\0-4@%eax 8@$1\0");
    let expected = UsdtNote {
        provider: "pool".into(),
        name: "open".into(),
        vaddr: 0x1234,
        semaphore: Some(0x5678),
        arguments: "-4@%eax 8@$1".into(),
    };
    assert_eq!(decode(&contents, None), Ok(expected.clone()));
    assert_eq!(decode(&contents, Some(0x9000)), Ok(expected));
    let bare = decode(&note([1, 2, 0], b"p\0n\0\0"), None).unwrap();
    assert_eq!((bare.semaphore, bare.arguments.as_str()), (None, ""));
}

/// An object that was moved after it was linked: both addresses follow its base, in either direction.
#[test]
fn a_moved_object() {
    let contents = note([0x1000, 0x9000, 0x5000], b"p\0n\0\0");
    let up = decode(&contents, Some(0x1_0000_9000)).unwrap();
    assert_eq!((up.vaddr, up.semaphore), (0x1_0000_1000, Some(0x1_0000_5000)));
    let down = decode(&contents, Some(0x8800)).unwrap();
    assert_eq!((down.vaddr, down.semaphore), (0x800, Some(0x4800)));
}

/// What is cut off, unnamed or endless is refused.
#[test]
fn damaged_notes() {
    let whole = note([1, 2, 3], b"p\0n\0\0");
    for length in 0..whole.len() {
        assert!(decode(&whole[..length], None).is_err(), "{length}");
    }
    assert!(decode(&note([1, 2, 3], b"\0n\0\0"), None).is_err());
    assert!(decode(&note([1, 2, 3], b"p\0\0\0"), None).is_err());
    assert!(decode(&note([1, 2, 3], &vec![b'a'; 20_000]), None).is_err());
}

/// Every form of operand that x86-64 has.
#[test]
fn forms() {
    let register = |number, shift| Location::Register { number, shift };
    for (text, expected) in [
        ("8@%rax", argument(8, false, register(0, 0))),
        ("-8@%r15", argument(8, true, register(15, 0))),
        ("-4@%eax", argument(4, true, register(0, 0))),
        ("4@%r9d", argument(4, false, register(9, 0))),
        ("2@%bp", argument(2, false, register(5, 0))),
        ("-2@%r12w", argument(2, true, register(12, 0))),
        ("1@%sil", argument(1, false, register(6, 0))),
        ("-1@%r8b", argument(1, true, register(8, 0))),
        ("-1@%dh", argument(1, true, register(2, 8))),
        // A register that is narrower than the size says.
        ("4@%ax", argument(2, false, register(0, 0))),
        ("-4@$-5", argument(4, true, Location::Constant(0_u64.wrapping_sub(5)))),
        ("4@$-5", argument(4, false, Location::Constant(0xffff_fffb))),
        ("-4@$4294967291", argument(4, true, Location::Constant(0_u64.wrapping_sub(5)))),
        ("1@$0x1ff", argument(1, false, Location::Constant(0xff))),
        ("8@$table+8", argument(8, false, Location::Address { symbol: "table".into(), offset: 8 })),
        ("8@(%rdi)", argument(8, false, memory(Some(7), None, None, 0))),
        ("-4@-136(%rbp)", argument(4, true, memory(Some(5), None, None, -136))),
        ("4@0x10(%r13)", argument(4, false, memory(Some(13), None, None, 16))),
        ("8@(%rax,%rdx)", argument(8, false, memory(Some(0), Some((2, 1)), None, 0))),
        ("8@-8(%rax,%r10,8)", argument(8, false, memory(Some(0), Some((10, 8)), None, -8))),
        ("2@16(,%rcx,4)", argument(2, false, memory(None, Some((1, 4)), None, 16))),
        ("8@8( %rax , %rcx , 2 )", argument(8, false, memory(Some(0), Some((1, 2)), None, 8))),
        ("-4@NBuffers(%rip)", argument(4, true, memory(None, None, Some("NBuffers"), 0))),
        ("-4@40+Stats(%rip)", argument(4, true, memory(None, None, Some("Stats"), 40))),
        ("8@_ZL3abc-4+1(%rip)", argument(8, false, memory(None, None, Some("_ZL3abc"), -3))),
        ("8@.LANCHOR0(%rip)", argument(8, false, memory(None, None, Some(".LANCHOR0"), 0))),
        ("4@table(,%rax,4)", argument(4, false, memory(None, Some((0, 4)), Some("table"), 0))),
        ("4@counter", argument(4, false, memory(None, None, Some("counter"), 0))),
        // Without a size.
        ("%rbx", argument(8, false, register(3, 0))),
        ("8(%rsp)", argument(8, false, memory(Some(4), None, None, 8))),
    ] {
        assert_eq!(only(text), Ok(expected), "{text}");
    }
}

/// Every general register has its number and width, under each of its names.
#[test]
fn registers() {
    let old = ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"];
    for number in 0..16_u8 {
        let names = match old.get(usize::from(number)) {
            Some(name) => {
                let low = name.strip_suffix('x').unwrap_or(name);
                [format!("r{name}"), format!("e{name}"), (*name).to_owned(), format!("{low}l")]
            }
            None => ["", "d", "w", "b"].map(|width| format!("r{number}{width}")),
        };
        for (name, width) in names.iter().zip([8, 4, 2, 1]) {
            let expected = argument(width, false, Location::Register { number, shift: 0 });
            assert_eq!(only(&format!("8@%{name}")), Ok(expected), "{name}");
        }
    }
}

/// What cannot be followed says why, and spoils nothing but itself.
#[test]
fn refusals() {
    for (text, why) in [
        ("8f@%xmm0", "floating-point numbers"),
        ("4f@-4(%rbp)", "floating-point numbers"),
        ("8@%xmm3", "vector registers"),
        ("8@%st(0)", "vector registers"),
        ("8@%fs:0x28", "thread-local"),
        ("8@%gs:(%rax)", "thread-local"),
        ("8@%es:(%rdi)", "segment register"),
        ("16@%rax", "no size of 1, 2, 4 or 8"),
        ("@%rax", "no size of 1, 2, 4 or 8"),
        ("8@%rip", "no general register"),
        ("8@%ymm", "vector registers"),
        ("8@16(%rip)", "no symbol beside `%rip`"),
        ("8@errno@gottpoff(%rip)", "`@gottpoff`"),
        ("8@(%eax)", "an address has 64 bits"),
        ("8@(%rax,%rcx,3)", "scaled by"),
        ("8@(%rax,)", "an index is missing"),
        ("8@(%rax,%rcx,4,5)", "more parts"),
        ("8@()", "no base and no index"),
        ("8@(%rax", "parenthesis"),
        ("8@(rax)", "a register is expected"),
        ("8@a-b", "sums of symbols"),
        ("8@a+b(%rip)", "sums of symbols"),
        ("8@$", "neither a number nor a symbol"),
        ("8@", "neither a number nor a symbol"),
        ("8@1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1", "too many terms"),
        ("8@$99999999999999999999", "neither a number nor a symbol"),
        ("8@*%rax", "neither a number nor a symbol"),
    ] {
        let error = only(text).expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
    }
    let mixed = arguments("8@%rax 8f@%xmm0 -4@(%rbx, %rcx, 4)");
    assert_eq!(mixed.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(arguments("").is_empty() && arguments("  \t ").is_empty());
    assert_eq!(arguments(&"8@%rax ".repeat(40)).len(), MAX_ARGUMENTS);
}

proptest! {
    /// No bytes make the decoder or the parser panic, and what a note says comes back whole.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), base in any::<Option<u64>>()) {
        if let Ok(note) = decode(&bytes, base) {
            prop_assert!(!note.provider.is_empty() && !note.name.is_empty());
            prop_assert!(arguments(&note.arguments).len() <= MAX_ARGUMENTS);
        }
    }

    /// Nor does any text that is made of what operands are made of.
    #[test]
    fn any_words(words in prop::collection::vec(
        prop::sample::select(vec![
            "8", "-", "@", "%", "$", "(", ")", ",", " ", "rax", "ah", "0x", "f", "sym", "+", ":", "fs", "4", "é", "%rip",
        ]),
        0..24,
    )) {
        let text = words.concat();
        for argument in arguments(&text).into_iter().flatten() {
            prop_assert!(matches!(argument.width, 1 | 2 | 4 | 8), "{}", text);
        }
    }
}
