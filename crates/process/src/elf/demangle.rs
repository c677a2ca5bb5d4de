//! Matching demangled names: Rust (legacy and v0) and C++ (Itanium).
//!
//! Used by `Elf::resolve_demangled`. Names are hostile: the demanglers' output is cut, since a few
//! bytes of mangled name can unfold to gigabytes.

use std::{
    cell::Cell,
    fmt::{self, Write as _},
};

use globset::{Glob, GlobSet};

use super::{error::ElfError, plain::plain};
use crate::careful::careful;

/// Longest mangled name that is demangled.
const MAX_MANGLED: usize = 8 * 1024;
/// Longest demangled name; matching is done on what fits.
const MAX_DEMANGLED: usize = 16 * 1024;
/// More template arguments than names with a conversion operator have.
const MANY_LISTS: usize = 8;
/// How deep the parser goes into such a name, where the usual depth takes hours.
const SHALLOW: u32 = 40;
/// Template arguments, one in the other, that fit in this depth.
const SHALLOW_LISTS: usize = 7;
/// Most bytes that the parser reads of one name, again and again where it is ambiguous.
const MAX_WORK: u64 = 2 << 20;
/// Most bytes that are read and written for all names of a file that a pattern is compared with.
const MAX_TOTAL: u64 = 256 << 20;
/// What a name takes of this where a demangler panics, which is logged.
const PANIC_WORK: u64 = MAX_TOTAL >> 6;
/// Digits of a number that may be too large to add one to.
const MANY_DIGITS: usize = 19;
/// Shortest word of a pattern that is worth searching for in mangled names.
const MIN_WORD: usize = 4;
/// Words that mangling abbreviates, so that they are not found in mangled names.
const ABBREVIATED: &str = "allocator anonymous basic_iostream basic_istream basic_ostream basic_string bool char \
    char8_t char16_t char32_t closure const construction decltype delete double false float \
    extern guard i128 impl iostream isize istream lambda long namespace operator ostream \
    restrict shim short signed sizeof string thunk true typeinfo u128 unnamed unsafe unsigned \
    usize virtual void volatile vtable wchar_t";

/// Compiles a pattern. `Glob::compile_matcher` panics where the regular expression of a valid pattern is nested too
/// deep or too large; this is an error instead.
pub fn compile_glob(glob: Glob) -> Result<GlobSet, globset::Error> {
    GlobSet::builder().add(glob).build()
}

/// A glob over demangled names.
pub(super) struct Pattern {
    glob: GlobSet,
    /// A word that every match has in its mangled name too: it spares demangling all the others.
    word: Option<String>,
    text: String,
    /// What remains of [`MAX_TOTAL`].
    left: Cell<u64>,
}

impl Pattern {
    /// Compiles `glob`; `*` matches anything, `::` included.
    pub(super) fn new(glob: &str) -> Result<Self, ElfError> {
        let compiled = Glob::new(glob).and_then(compile_glob).map_err(|error| {
            ElfError::Pattern { pattern: crate::printable(glob), cause: error.kind().to_string() }
        })?;
        let left = Cell::new(MAX_TOTAL);
        Ok(Self { glob: compiled, word: rare_word(glob), text: crate::printable(glob), left })
    }

    /// Fails where not all names could be compared.
    pub(super) fn check(&self) -> Result<(), ElfError> {
        if self.left.get() > 0 {
            return Ok(());
        }
        let cause = "too many or too complex names have to be demangled for it; a longer word in it spares the others";
        Err(ElfError::Pattern { pattern: self.text.clone(), cause: cause.to_owned() })
    }

    /// Whether `mangled` demangles to a name that matches in one of its forms: as it is (C++ with parameters,
    /// legacy Rust with its hash), without these, or without generic arguments too.
    pub(super) fn matches(&self, mangled: &[u8]) -> bool {
        if mangled.len() > MAX_MANGLED || self.left.get() == 0 {
            return false;
        }
        let Ok(mangled) = std::str::from_utf8(mangled) else { return false };
        if self.word.as_deref().is_some_and(|word| !mangled.contains(word)) {
            return false;
        }
        let forms = careful(|| Some(forms(mangled)));
        let written = forms.as_ref().map_or(PANIC_WORK, |forms| {
            let lengths = forms.iter().map(|form| form.len() as u64);
            lengths.sum()
        });
        self.left.set(self.left.get().saturating_sub(work(mangled) + written));
        forms.unwrap_or_default().iter().any(|name| self.glob.is_match(name))
    }
}

/// The name as people write it: demangled, or as it is.
#[must_use]
pub fn readable(mangled: &str) -> String {
    careful(|| demangled(mangled)).unwrap_or_else(|| mangled.to_owned())
}

/// The demangled name, if `mangled` is one and short enough. Panics where a demangler does.
pub(crate) fn demangled(mangled: &str) -> Option<String> {
    (mangled.len() <= MAX_MANGLED).then(|| forms(mangled).into_iter().next()).flatten()
}

/// The demangled forms of `mangled`; none for what is not mangled.
fn forms(mangled: &str) -> Vec<String> {
    // The clones' suffixes are not part of the mangled name for either demangler; a clone is not the
    // function itself, and `Elf::clones` finds it.
    if let Ok(name) = rustc_demangle::try_demangle(mangled) {
        let mut text = Bounded::default();
        // `{:#}` leaves out the hash of legacy names. A cut name is still worth matching.
        let _ = write!(text, "{name:#}");
        let short = text.0;
        let mut hashed = Bounded::default();
        let _ = write!(hashed, "{name}");
        let plain = plain(&short);
        return vec![short, hashed.0, plain];
    }
    if !mangled.starts_with("_Z") || work(mangled) > MAX_WORK || has_endless_index(mangled) {
        return Vec::new();
    }
    cpp_forms(mangled)
}

/// The demangled forms of a C++ name.
fn cpp_forms(mangled: &str) -> Vec<String> {
    let options = parse_options(mangled);
    let symbol = cpp_demangle::Symbol::new_with_options(mangled.as_bytes(), &options);
    let Ok(symbol) = symbol else { return Vec::new() };
    let full = cpp_demangle::DemangleOptions::new();
    let [full, short] = [full, full.no_params().no_return_type()].map(|options| {
        let mut text = Bounded::default();
        let _ = symbol.structured_demangle(&mut text, &options);
        text.0
    });
    let plain = plain(&short);
    vec![full, short, plain]
}

/// Within a conversion operator (`cv`), what follows a type can be its template arguments (`I`) or the operator's: the
/// parser tries both, at each level again. So such names may not nest deep.
fn parse_options(mangled: &str) -> cpp_demangle::ParseOptions {
    let options = cpp_demangle::ParseOptions::default();
    let is_ambiguous = lists(mangled) > MANY_LISTS && mangled.contains("cv");
    if is_ambiguous { options.recursion_limit(SHALLOW) } else { options }
}

/// Whether a template parameter may have an index that the parser cannot add one to (`T9223372036854775807_`).
fn has_endless_index(mangled: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    mangled.split('T').skip(1).any(|index| digits(index) >= MANY_DIGITS)
}

/// Lists of template arguments in a name, at most.
fn lists(mangled: &str) -> usize {
    mangled.bytes().filter(|byte| *byte == b'I').count()
}

/// Bytes of a name that the parser reads, at most: behind a conversion operator, twice as many for each list in a list.
fn work(mangled: &str) -> u64 {
    let (length, lists) = (mangled.len() as u64, lists(mangled));
    let operators = mangled.matches("cv").count() as u64;
    let nested = if lists > MANY_LISTS { SHALLOW_LISTS } else { lists };
    length * (1 + (operators << nested))
}

/// Text that refuses to grow beyond its bound, which stops the demangler.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The longest word of a glob that must appear literally in the mangled names that can match.
fn rare_word(glob: &str) -> Option<String> {
    // Alternatives and classes make no part of the pattern certain.
    if glob.contains(['[', '{', '\\']) {
        return None;
    }
    glob.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.len() >= MIN_WORD && !ABBREVIATED.contains(word))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
        .max_by_key(|word| word.len())
        .map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, mangled: &str) -> bool {
        Pattern::new(glob).unwrap().matches(mangled.as_bytes())
    }

    /// A pattern whose regular expression cannot be compiled is an error, not a panic.
    #[test]
    fn nested_too_deep() {
        let glob = format!("{}a{}", "{".repeat(251), "}".repeat(251));
        assert!(matches!(Pattern::new(&glob), Err(ElfError::Pattern { .. })));
        assert!(Pattern::new("{{{a,b}}}").unwrap().glob.is_match("b"));
    }

    /// Rust names of both manglings match without their hash, and only the right ones.
    #[test]
    fn rust_names() {
        let legacy = "_ZN7bumpalo4Bump5reset17h0123456789abcdefE";
        assert!(matches("bumpalo::Bump::reset*", legacy));
        assert!(matches("bumpalo::Bump::reset", legacy), "the hash is not part of the name");
        assert!(!matches("bumpalo::Bump::alloc*", legacy));
        let v0 = "_RNvMs_Cs4fqI2P2rA04_7bumpaloNtB4_4Bump5reset";
        assert!(matches("*bumpalo::Bump*::reset", v0), "{:?}", forms(v0));
    }

    /// All instances of a generic function match one pattern, whichever way they are mangled.
    #[test]
    fn instances() {
        for mangled in [
            "_ZN7bumpalo13Bump$LT$_$GT$5reset17hb15cc148eeff4ef1E",
            "_RNvMs9_CshTjU8V30eta_7bumpaloNtB5_4Bump5resetCsb1KSCxvKkad_12rust_bumpalo",
            "_RNvMs9_CshTjU8V30eta_7bumpaloINtB5_4BumpKj8_E5resetCsb1KSCxvKkad_12rust_bumpalo",
        ] {
            assert!(matches("bumpalo::Bump::reset", mangled), "{:?}", forms(mangled));
        }
        let drop = "<bumpalo::Bump as core::ops::drop::Drop>::drop";
        assert!(matches(
            drop,
            "_ZN64_$LT$bumpalo..Bump$LT$_$GT$$u20$as$u20$core..ops..drop..Drop$GT$4drop17h2e20a584d5e7c247E"
        ));
        assert!(matches(
            drop,
            "_RNvXs6_CshTjU8V30eta_7bumpaloINtB5_4BumpKj8_ENtNtNtCsgEmfK2I1SDS_4core3ops4drop4Drop4dropCsb1KSCxvKkad_12rust_bumpalo"
        ));
        assert!(matches("a::reset::h0123456789abcdef", "_ZN1a5reset17h0123456789abcdefE"));
        for mangled in ["_ZN4pool5ArenaImEC1Ev", "_ZN4pool5ArenaIcEC1Em"] {
            assert!(matches("pool::Arena::Arena", mangled), "{:?}", forms(mangled));
        }
        assert!(matches("pool::Arena<char>::Arena", "_ZN4pool5ArenaIcEC1Em"));
        assert!(!matches("pool::Arena<char>::Arena", "_ZN4pool5ArenaImEC1Ev"));
        assert!(matches(
            "(anonymous namespace)::Scratch::Scratch",
            "_ZN12_GLOBAL__N_17ScratchC1Ev"
        ));
        assert!(matches("pool::Node::operator new", "_ZN4pool4NodenwEmRNS_6RegionE"));
    }

    /// C++ names match with their parameters and without.
    #[test]
    fn cpp_names() {
        let new = "_ZN8tcmalloc8PageHeap3NewEm";
        assert!(matches("tcmalloc::PageHeap::New", new));
        assert!(matches("tcmalloc::PageHeap::New(unsigned long)", new));
        assert!(matches("*::New*", new));
        assert!(!matches("tcmalloc::PageHeap::Delete", new));
        let in_std = "_ZNSs6appendEPKc";
        assert!(matches("std::*string*::append*", in_std), "{:?}", forms(in_std));
    }

    /// Names are shown demangled, with parameters; what is not mangled, or too long, as it is.
    #[test]
    fn readable_names() {
        assert_eq!(
            readable("_ZN8tcmalloc8PageHeap3NewEm"),
            "tcmalloc::PageHeap::New(unsigned long)"
        );
        assert_eq!(readable("_ZN7bumpalo4Bump5reset17h0123456789abcdefE"), "bumpalo::Bump::reset");
        for plain in ["malloc", "_Zunfinished", &"_Z".repeat(MAX_MANGLED)] {
            assert_eq!(readable(plain), plain);
        }
    }

    /// What is not mangled matches nothing: plain symbols have an address form of their own.
    #[test]
    fn plain_names_do_not_match() {
        assert!(!matches("*", "malloc"));
    }

    /// A name whose index is too large is left as it is; the parser panics on it, which costs no more than the name.
    #[test]
    fn endless_indices() {
        let name = |index: u64| format!("_Z1fIiJidEEvDpT{index}_");
        let endless = name(i64::MAX as u64);
        assert_eq!(readable(&endless), endless);
        assert!(!matches("*", &endless));
        assert_eq!(readable("_Z1fIiJidEEvDpT0_"), "void f<int, int, double>(int, double)");
        let library = careful(|| Some(cpp_forms(&endless)));
        assert_eq!(library.is_none(), cfg!(debug_assertions), "the library has changed");
        assert!(!has_endless_index(&name(999_999_999_999_999_999)));
        // Neither literals nor the names of types are indices.
        for name in ["_Z1fILm18446744073709551615EEvv", "_Z1f3T12"] {
            assert_ne!(readable(name), name);
        }
    }

    /// A malformed pattern is an error that names it.
    #[test]
    fn malformed_pattern() {
        let error = Pattern::new("a[").err().unwrap().to_string();
        assert!(error.contains("`a[`"), "{error}");
    }

    /// Names nested as deep as their length allows end, in a quarter of a thread's stack.
    #[test]
    fn deep_names_end() {
        let deep = |before: &str, part: &str, behind: &str| {
            let room = MAX_MANGLED - before.len() - behind.len();
            format!("{before}{}{behind}", part.repeat(room / part.len()))
        };
        for name in [
            deep("_Z1f", "P", "i"),
            deep("_Z1f", "1aI", ""),
            deep("_ZN", "1aI", ""),
            deep("_Z1fIX", "ad", ""),
            deep("_Z1fIXcv", "F", ""),
            deep("_Z", "Z1fvE", "1f"),
            deep("_RC", "R", "u"),
            deep("_RI", "NtC1a1b", ""),
            deep("_RMC1a", "T", "E"),
            deep("_RMC1a", "A", "j0_"),
        ] {
            let small = std::thread::Builder::new().stack_size(512 << 10);
            let forms = small.spawn(move || forms(&name)).unwrap().join().unwrap();
            assert!(forms.iter().all(|form| form.len() <= MAX_DEMANGLED));
        }
    }

    /// A name that unfolds exponentially is cut, quickly.
    #[test]
    fn bombs_are_cut() {
        // f(A<int, int>, A<1, 1>, A<2, 2>, …), where a number stands for the parameter before.
        let mut bomb = String::from("_Z1f1AIiiE");
        for digit in "0123456789ABCDEFGHIJKLMNOPQRSTUVWX".chars() {
            let _ = write!(bomb, "S_IS{digit}_S{digit}_E");
        }
        let unfolded = forms(&bomb);
        assert!(unfolded.iter().any(|form| form.len() > MAX_DEMANGLED / 2), "it does unfold");
        assert!(unfolded.iter().all(|form| form.len() <= MAX_DEMANGLED));
        assert!(!matches("never", &"_Z".repeat(1 << 20)));
        // Each level doubled the time.
        for levels in 1..40 {
            let name = format!("_ZNK1AcvT_{}i{}Ev", "IT_".repeat(levels), "E".repeat(levels));
            assert!(forms(&name).len() == 3 || levels > 4, "{name}");
        }
        // Each operator reads the rest again.
        let operators = |count| format!("_Z1f{}", "N1AcvT_IT_IT_IT_IT_IT_iEEEEEE".repeat(count));
        assert_eq!(forms(&operators(6)).len(), 3);
        assert_eq!(forms(&operators(200)).len(), 0);
    }

    /// For all names of a file there is so much work and no more, the same each time; that some are left out is an error.
    #[test]
    fn work_is_bounded() {
        let name = format!("_Z1f{}", "N1AcvT_IT_IT_IT_IT_IT_iEEEEEE".repeat(6));
        let count = |most: u64, name: &str| {
            let pattern = Pattern::new("f*").unwrap();
            pattern.left.set(most);
            let matched = (0..2000).filter(|_| pattern.matches(name.as_bytes())).count();
            (matched, pattern.check().err().map(|error| error.to_string()))
        };
        assert_eq!(count(u64::MAX, &name), (2000, None));
        let written: usize = forms(&name).iter().map(String::len).sum();
        let each = work(&name) + written as u64;
        let (matched, error) = count(10 * each, &name);
        assert_eq!(matched, 10);
        let error = error.unwrap();
        assert!(error.starts_with("the pattern `f*` cannot be used: too many"), "{error}");
        // Ordinary names take no more than they and their forms are long.
        assert_eq!(count(2000 * 50, "_ZN1f3NewEm").0, 2000);
    }
}
