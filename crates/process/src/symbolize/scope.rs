//! The full name of a function that DWARF knows by its short name alone.
//!
//! Compilers give C++ functions with internal linkage (in an unnamed namespace, `static`, lambdas) no linkage name,
//! so that DWARF says `trying` where the symbol table says `shop::trying()`. Text alone; called by `worker`.

use super::wire::Name;

/// Whether a name from DWARF may lack its scope. C has no scopes, and Rust always has linkage names where there are any.
pub(super) fn may_be_missing(name: &Name) -> bool {
    let file = name.file.as_deref().unwrap_or_default();
    let plain = [".c", ".rs"].iter().any(|extension| file.ends_with(extension));
    !plain && !name.function.contains("::")
}

/// The symbol's name, if it is `short` with its scope; without the remark of a part that was split off, as names from
/// DWARF are. `None` if it is another function's.
pub(super) fn of<'a>(symbol: &'a str, short: &str) -> Option<&'a str> {
    let symbol = symbol.split_once(" [clone ").map_or(symbol, |(name, _)| name);
    // Template arguments are written in other ways by compilers and demanglers.
    let base = match short.split_once('<') {
        Some((base, _)) if !base.is_empty() && !base.ends_with("operator") => base,
        _ => short,
    };
    let rest = &symbol[last_scope(symbol)?..];
    let rest = rest.strip_prefix(base)?;
    let ends = rest.is_empty() || rest.starts_with(['(', '<', ' ', '[']);
    (!base.is_empty() && ends).then_some(symbol)
}

/// Where the function's own name begins: behind the last `::` outside of brackets.
fn last_scope(symbol: &str) -> Option<usize> {
    let (mut depth, mut last) = (0_u32, None);
    // Bytes, since text is not to be cut within its characters.
    let bytes = symbol.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            // `operator<`, `operator->` and the like: what follows is no bracket, and the name's end.
            b'<' | b'>' | b'-' if depth == 0 && bytes[..at].ends_with(b"::operator") => break,
            b'(' | b'<' | b'{' | b'[' => depth += 1,
            b')' | b'>' | b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes[..at].ends_with(b":") => last = Some(at + 1),
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short name gets the scope of the symbol that it belongs to, with arguments, in lambdas, operators and templates.
    #[test]
    fn belongs() {
        for (symbol, short) in [
            ("shop::trying()", "trying"),
            ("(anonymous namespace)::less(int, shop::Item const&)", "less"),
            ("shop::with_lambda()::{lambda()#1}::operator()() const", "operator()"),
            ("shop::{lambda(std::map<int, x::y>)#2}::_FUN(int)", "_FUN"),
            ("std::vector<int> shop::make<unsigned long>(int)", "make<long unsigned int>"),
            ("shop::operator<<(std::ostream&, shop::Item)", "operator<<"),
            ("shop::operator< <int>(shop::Item, shop::Item)", "operator< <int>"),
            ("shop::Item::operator->() const", "operator->"),
            ("shop::Cart<shop::Item>::~Cart()", "~Cart"),
            ("größe::über(int)", "über"),
        ] {
            assert_eq!(of(symbol, short), Some(symbol));
        }
        assert_eq!(of("shop::trying() [clone .cold]", "trying"), Some("shop::trying()"));
    }

    /// A scope, an argument, part of a name, or another function is not the function; a name without scope gains nothing.
    #[test]
    fn does_not_belong() {
        for (symbol, short) in [
            ("shop::with_lambda()::{lambda()#1}::operator()() const", "with_lambda"),
            ("shop::apply(shop::trying)", "trying"),
            ("shop::trying_hard()", "trying"),
            ("shop::not_trying()", "trying"),
            ("trying", "trying"),
            ("trying.part.0", "trying"),
            ("shop::", "trying"),
            ("shop::", ""),
            ("é::é→é", "é"),
            (">>::)]:::", ":"),
        ] {
            assert_eq!(of(symbol, short), None, "{symbol}");
        }
    }

    /// C and Rust are as they were; what has a scope has it.
    #[test]
    fn others_are_left_alone() {
        let name = |function: &str, file: Option<&str>| Name {
            function: function.to_owned(),
            offset: Some(0),
            file: file.map(str::to_owned),
            line: None,
            inlined: Vec::new(),
        };
        assert!(may_be_missing(&name("trying", Some("a/shop.cc"))));
        assert!(may_be_missing(&name("trying", None)));
        assert!(!may_be_missing(&name("shop::trying()", Some("shop.cc"))));
        assert!(!may_be_missing(&name("trying", Some("shop.c"))));
        assert!(!may_be_missing(&name("main", Some("main.rs"))));
    }
}
