//! The kernel's own description of its types (BTF), as far as `locks` needs it: where fields stand, and the numbers of
//! functions.
//!
//! What does not have the expected form is an error, never a guess.

use std::{fs, io};

/// Where the kernel has it.
const FILE: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
/// Structures within structures, or names for types, one in the other, that are followed.
const MAX_DEPTH: usize = 16;

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const TYPE_TAG: u32 = 18;

/// All types of a kernel.
pub(super) struct Types {
    bytes: Vec<u8>,
    /// Where the names begin.
    names: usize,
    /// Where each type stands, by its number; number 0 is none.
    at: Vec<usize>,
}

/// A type's first three words.
#[derive(Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    /// Members, as far as it has some.
    count: usize,
    /// Whether offsets of members share their word with sizes in bits.
    has_bits: bool,
    /// The type that it names.
    of: u32,
    /// Where the members begin.
    rest: usize,
}

fn broken() -> io::Error {
    io::Error::other(format!("{FILE} has an unknown form"))
}

impl Types {
    pub(super) fn read() -> io::Result<Self> {
        Self::parse(fs::read(FILE)?)
    }

    fn parse(bytes: Vec<u8>) -> io::Result<Self> {
        let magic = bytes.get(..2).and_then(|magic| magic.try_into().ok());
        if magic.map(u16::from_ne_bytes) != Some(MAGIC) {
            return Err(broken());
        }
        let mut all = Self { bytes, names: 0, at: vec![0] };
        let word = |at| all.word(at).map(|word| word as usize);
        let header = word(4)?;
        let (types, length, names) = (word(8)?, word(12)?, word(16)?);
        let (Some(begin), Some(names)) = (header.checked_add(types), header.checked_add(names))
        else {
            return Err(broken());
        };
        let end = begin.checked_add(length).ok_or_else(broken)?;
        let mut next = begin;
        let mut at = std::mem::take(&mut all.at);
        while next < end {
            at.push(next);
            let head = all.head(next)?;
            next = head.rest + rest(head).ok_or_else(broken)?;
        }
        (all.names, all.at) = (names, at);
        Ok(all)
    }

    fn word(&self, at: usize) -> io::Result<u32> {
        let bytes = self.bytes.get(at..at.saturating_add(4)).ok_or_else(broken)?;
        bytes.try_into().map(u32::from_ne_bytes).map_err(|_| broken())
    }

    fn head(&self, at: usize) -> io::Result<Head> {
        let (name, info, of) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
        Ok(Head {
            name,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            has_bits: info >> 31 != 0,
            of,
            rest: at + 12,
        })
    }

    fn is_named(&self, name: u32, wanted: &str) -> bool {
        let at = self.names.saturating_add(name as usize);
        let end = at.saturating_add(wanted.len());
        self.bytes.get(at..end) == Some(wanted.as_bytes()) && self.bytes.get(end) == Some(&0)
    }

    fn find(&self, wanted: &str, kind: u32) -> io::Result<u32> {
        for (number, at) in self.at.iter().enumerate().skip(1) {
            let head = self.head(*at)?;
            if head.kind == kind && self.is_named(head.name, wanted) {
                return u32::try_from(number).map_err(|_| broken());
            }
        }
        Err(io::Error::other(format!("{FILE} lacks {wanted}")))
    }

    /// The number of a function.
    pub(super) fn function(&self, name: &str) -> io::Result<u32> {
        self.find(name, FUNC)
    }

    /// At which byte of a structure a field stands, or a field of that, and so on.
    pub(super) fn offset(&self, structure: &str, fields: &[&str]) -> io::Result<i16> {
        let mut number = self.find(structure, STRUCT)?;
        let mut bits: u32 = 0;
        for field in fields {
            let lacking = || io::Error::other(format!("{FILE}: {structure} lacks {field}"));
            let (of, at) = self.member(number, field, 0)?.ok_or_else(lacking)?;
            bits = bits.checked_add(at).ok_or_else(broken)?;
            number = of;
        }
        match bits % 8 {
            0 => i16::try_from(bits / 8).map_err(|_| broken()),
            _ => Err(broken()),
        }
    }

    /// The type of a member and its place in bits; members without names are searched, too.
    fn member(&self, of: u32, name: &str, depth: usize) -> io::Result<Option<(u32, u32)>> {
        let Some(head) = self.plain(of)?.filter(|_| depth < MAX_DEPTH) else { return Ok(None) };
        for number in 0..head.count {
            let at = head.rest + number * 12;
            let (own, of) = (self.word(at)?, self.word(at + 4)?);
            let place = self.word(at + 8)? & if head.has_bits { 0xff_ffff } else { u32::MAX };
            if self.is_named(own, name) {
                return Ok(Some((of, place)));
            }
            if self.is_named(own, "")
                && let Some((of, inner)) = self.member(of, name, depth + 1)?
            {
                return Ok(Some((of, place.checked_add(inner).ok_or_else(broken)?)));
            }
        }
        Ok(None)
    }

    /// The structure or union that a type is, by whatever name.
    fn plain(&self, mut number: u32) -> io::Result<Option<Head>> {
        for _ in 0..MAX_DEPTH {
            let head = self.head(*self.at.get(number as usize).ok_or_else(broken)?)?;
            match head.kind {
                STRUCT | UNION => return Ok(Some(head)),
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => number = head.of,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// Bytes behind a type's first three words; `None`: a kind that is not known.
const fn rest(head: Head) -> Option<usize> {
    match head.kind {
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => Some(4),
        // Pointers, forward declarations, names, qualifiers, functions, floats, tags of types.
        2 | 7..=12 | 16 | 18 => Some(0),
        // Arrays.
        3 => Some(12),
        // Structures, unions, sections, wide enumerations.
        4 | 5 | 15 | 19 => Some(head.count * 12),
        // Enumerations, prototypes.
        6 | 13 => Some(head.count * 8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { long first; union { struct inner { int a; int b; } named; }; }` and the function `f`.
    fn sample() -> Vec<u8> {
        let names = b"\0outer\0first\0named\0inner\0a\0b\0f\0name\0";
        let name = |wanted: &str| {
            let wanted = [b"\0", wanted.as_bytes(), b"\0"].concat();
            names.windows(wanted.len()).position(|part| part == wanted).unwrap() as u32 + 1
        };
        let info = |kind: u32, count: u32| kind << 24 | count;
        let words = [
            // 1: an integer
            vec![0, info(1, 0), 4, 32],
            // 2: inner
            vec![name("inner"), info(STRUCT, 2), 8, name("a"), 1, 0, name("b"), 1, 32],
            // 3: a name for it
            vec![name("name"), info(TYPEDEF, 0), 2],
            // 4: the union
            vec![0, info(UNION, 1), 8, name("named"), 3, 0],
            // 5: outer
            vec![name("outer"), info(STRUCT, 2) | 1 << 31, 16, name("first"), 1, 0, 0, 4, 64],
            // 6: f
            vec![name("f"), info(FUNC, 1), 0],
        ]
        .concat();
        let types = words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, types.len() as u32, types.len() as u32, names.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(names);
        bytes
    }

    /// Fields of fields, in structures without names and behind other names, too.
    #[test]
    fn fields() {
        let types = Types::parse(sample()).unwrap();
        assert_eq!(types.offset("outer", &["first"]).unwrap(), 0);
        assert_eq!(types.offset("outer", &["named"]).unwrap(), 8);
        assert_eq!(types.offset("outer", &["named", "b"]).unwrap(), 12);
        assert_eq!(types.function("f").unwrap(), 6);
        for (structure, field) in [("outer", "b"), ("outer", "nam"), ("inne", "a"), ("name", "a")] {
            assert!(types.offset(structure, &[field]).is_err(), "{structure} {field}");
        }
        assert!(types.function("inner").is_err());
    }

    /// Whatever is cut or changed is refused or read, and nothing else happens.
    #[test]
    fn broken_types() {
        let whole = sample();
        for length in 0..whole.len() {
            let types = Types::parse(whole[..length].to_vec());
            let _ = types.and_then(|types| types.offset("outer", &["named", "b"]));
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let types = Types::parse(bytes);
                let _ = types.and_then(|types| types.offset("outer", &["named", "b"]));
            }
        }
    }
}
