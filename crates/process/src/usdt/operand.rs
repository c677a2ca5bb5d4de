//! Where an argument of a USDT probe is: `-4@%eax`, `8@-8(%rbp)`, `4@40+counters(%rip)`.
//!
//! Pure: text in, places out. Each argument stands for itself, so that one that cannot be followed (a
//! floating-point register, thread-local memory) spoils only the probes that name it.

use iced_x86::Register;

use crate::printable;

/// Most arguments that are examined: `<sys/sdt.h>` has no more.
pub const MAX_ARGUMENTS: usize = 12;
/// Most terms of one displacement.
const MAX_TERMS: usize = 16;

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Bytes that it has: 1, 2, 4 or 8.
    pub width: u8,
    /// Whether it is a signed number.
    pub signed: bool,
    /// Where it is.
    pub location: Location,
}

/// Where an argument is. All arithmetic wraps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Nowhere: it is this number.
    Constant(u64),
    /// Nowhere: it is the address of a symbol, plus a number.
    Address {
        /// The symbol, as the assembler wrote it; hostile.
        symbol: String,
        /// What is added.
        offset: u64,
    },
    /// In a register, from bit `shift` on.
    Register {
        /// Its number, as x86 encodes it.
        number: u8,
        /// 8 for the second byte, else 0.
        shift: u8,
    },
    /// In memory, at the sum of what is there.
    Memory {
        /// The number of the base register.
        base: Option<u8>,
        /// The number of the index register, and what it is multiplied with: 1, 2, 4 or 8.
        index: Option<(u8, u8)>,
        /// A symbol, as the assembler wrote it; hostile.
        symbol: Option<String>,
        /// A number.
        offset: u64,
    },
}

/// The arguments of a note, in order; each with the reason if it cannot be followed. Past the twelfth they are not
/// examined.
#[must_use]
pub fn arguments(text: &str) -> Vec<Result<Argument, String>> {
    words(text).into_iter().take(MAX_ARGUMENTS).map(argument).collect()
}

/// The arguments as they are worded: splits at blanks, but for those within parentheses.
#[must_use]
pub fn words(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if character.is_whitespace() && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + character.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

fn argument(text: &str) -> Result<Argument, String> {
    let refused = |why: &str| format!("`{}`: {why}", printable(text));
    let (size, operand) = match text.split_once('@') {
        Some((size, operand)) if !size.contains(['%', '(', '$']) => (size, operand),
        // Without a size it is a word of the machine.
        _ => ("8", text),
    };
    let (signed, digits) = match size.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, size),
    };
    let width = match digits {
        "1" => 1,
        "2" => 2,
        "4" => 4,
        "8" => 8,
        _ if digits.ends_with('f') => {
            return Err(refused("floating-point numbers are not followed"));
        }
        _ => return Err(refused("it has no size of 1, 2, 4 or 8 bytes")),
    };
    let (location, at_most) = location(operand).map_err(|why| refused(&why))?;
    let width = width.min(at_most);
    let location = match location {
        Location::Constant(value) => Location::Constant(narrow(value, width, signed)),
        location => location,
    };
    Ok(Argument { width, signed, location })
}

/// The low bytes of a word, extended.
fn narrow(value: u64, width: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(width);
    if signed {
        ((value << unused).cast_signed() >> unused).cast_unsigned()
    } else {
        value << unused >> unused
    }
}

/// Where an operand is, and how many bytes it can have.
fn location(operand: &str) -> Result<(Location, u8), String> {
    let compact: String = operand.chars().filter(|character| !character.is_whitespace()).collect();
    let operand = compact.as_str();
    if let Some(constant) = operand.strip_prefix('$') {
        return Ok(match displacement(constant)? {
            (None, value) => (Location::Constant(value), 8),
            (Some(symbol), offset) => (Location::Address { symbol, offset }, 8),
        });
    }
    if let Some((segment, _)) = operand.strip_prefix('%').and_then(|rest| rest.split_once(':')) {
        return Err(match segment {
            "fs" | "gs" => "thread-local memory (a segment register) is not followed".to_owned(),
            _ => "a segment register is not followed".to_owned(),
        });
    }
    if let Some(name) = operand.strip_prefix('%') {
        let (number, width, shift) = register(name)?;
        return Ok((Location::Register { number, shift }, width));
    }
    let Some((before, inside)) = operand.split_once('(') else {
        let (symbol, offset) = displacement(operand)?;
        return Ok((Location::Memory { base: None, index: None, symbol, offset }, 8));
    };
    let inside = inside.strip_suffix(')').ok_or("its parenthesis does not end the operand")?;
    let (symbol, offset) = if before.is_empty() { (None, 0) } else { displacement(before)? };
    if inside == "%rip" {
        if symbol.is_none() {
            return Err("it names no symbol beside `%rip`".to_owned());
        }
        return Ok((Location::Memory { base: None, index: None, symbol, offset }, 8));
    }
    let mut parts = inside.split(',');
    let base = match parts.next() {
        None | Some("") => None,
        Some(name) => Some(address_register(name)?),
    };
    let index = match (parts.next(), parts.next()) {
        (None, _) => None,
        (Some(""), None) => return Err("an index is missing".to_owned()),
        (Some(name), scale) => Some((address_register(name)?, self::scale(scale)?)),
    };
    if parts.next().is_some() {
        return Err("it has more parts than a base, an index and a scale".to_owned());
    }
    if base.is_none() && index.is_none() {
        return Err("it has no base and no index".to_owned());
    }
    Ok((Location::Memory { base, index, symbol, offset }, 8))
}

fn scale(text: Option<&str>) -> Result<u8, String> {
    match text {
        None | Some("1") => Ok(1),
        Some("2") => Ok(2),
        Some("4") => Ok(4),
        Some("8") => Ok(8),
        Some(_) => Err("an index is scaled by 1, 2, 4 or 8 only".to_owned()),
    }
}

/// A register that addresses are computed with.
fn address_register(text: &str) -> Result<u8, String> {
    match text.strip_prefix('%').map(register) {
        Some(Ok((number, 8, 0))) => Ok(number),
        Some(Ok(_)) => Err("an address has 64 bits".to_owned()),
        Some(Err(why)) => Err(why),
        None => Err("a register is expected within the parentheses".to_owned()),
    }
}

/// The number of a register, its size in bytes, and the bit at which it begins.
fn register(name: &str) -> Result<(u8, u8, u8), String> {
    // The decoder calls `r8b` `R8L`.
    let known =
        name.strip_suffix('b').filter(|rest| rest.starts_with('r')).map(|rest| format!("{rest}l"));
    let known = known.as_deref().unwrap_or(name);
    let found =
        Register::values().find(|register| format!("{register:?}").eq_ignore_ascii_case(known));
    match found {
        Some(high @ (Register::AH | Register::CH | Register::DH | Register::BH)) => {
            Ok((high.full_register().number() as u8, 1, 8))
        }
        Some(register) if register.is_gpr() => {
            Ok((register.full_register().number() as u8, register.size() as u8, 0))
        }
        _ if ["xmm", "ymm", "zmm", "mm", "st"].iter().any(|kind| name.starts_with(kind)) => {
            Err("floating-point and vector registers are not followed".to_owned())
        }
        _ => Err(format!("no general register is called `%{}`", printable(name))),
    }
}

/// A displacement: a sum of numbers and at most one symbol.
fn displacement(text: &str) -> Result<(Option<String>, u64), String> {
    let mut symbol = None;
    let mut sum = 0_u64;
    let mut rest = text;
    for _ in 0..MAX_TERMS {
        let negative = rest.starts_with('-');
        rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        let end = rest.find(['-', '+']).unwrap_or(rest.len());
        let (term, behind) = rest.split_at(end);
        match number(term) {
            Some(value) if negative => sum = sum.wrapping_sub(value),
            Some(value) => sum = sum.wrapping_add(value),
            None => {
                name(term)?;
                if negative || symbol.is_some() {
                    return Err("differences and sums of symbols are not followed".to_owned());
                }
                symbol = Some(term.to_owned());
            }
        }
        if behind.is_empty() {
            return Ok((symbol, sum));
        }
        rest = behind;
    }
    Err("it has too many terms".to_owned())
}

fn number(text: &str) -> Option<u64> {
    // `from_str_radix` would take a sign.
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    digits.starts_with(|digit: char| digit.is_digit(radix)).then_some(())?;
    u64::from_str_radix(digits, radix).ok()
}

/// Checks the name of a symbol.
fn name(text: &str) -> Result<(), String> {
    if let Some((_, how)) = text.split_once('@') {
        return Err(format!("what is found through `@{}` is not followed", printable(how)));
    }
    let first = text.chars().next().is_some_and(|first| !first.is_ascii_digit());
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '$');
    if first && text.chars().all(plain) {
        Ok(())
    } else {
        Err(format!("`{}` is neither a number nor a symbol", printable(text)))
    }
}
