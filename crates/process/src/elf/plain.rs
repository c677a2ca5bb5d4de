//! Demangled names without their generic arguments, so that one pattern finds all instances of a function.
//!
//! `bumpalo::Bump<_>::reset` (legacy mangling), `<bumpalo::Bump<8>>::reset` (v0) and a C++
//! `bumpalo::Bump<8>::reset` all become `bumpalo::Bump::reset`. Names are hostile: what cannot be taken
//! apart is left as it is, and depth is bounded. Called by `demangle`.

/// How deep self types (`<<A as B>::C as D>::f`) are taken apart.
const MAX_DEPTH: usize = 32;

/// The C++ operators that are written with angle brackets, longest first.
const OPERATORS: &[&str] = &["<<=", "<=>", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">"];

/// `name` without generic arguments, the brackets around a Rust self type, and C++ ABI tags.
pub(super) fn plain(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    strip(name, &mut out, 0);
    out
}

fn strip(name: &str, out: &mut String, depth: usize) {
    let begin = out.len();
    let mut rest = name;
    while let Some(at) = rest.find(['<', '>', '[']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let written = &out[begin..];
        // `operator<`, `operator->`: no brackets. What follows `operator<< ` may be arguments.
        let operator = written.ends_with("operator") || written.ends_with("operator-");
        if operator && let Some(sign) = OPERATORS.iter().find(|sign| rest.starts_with(**sign)) {
            out.push_str(sign);
            rest = &rest[sign.len()..];
            if let Some(arguments) = rest.strip_prefix(' ').filter(|rest| rest.starts_with('<')) {
                rest = arguments;
            }
            continue;
        }
        if let Some(tagged) = rest.strip_prefix("[abi:") {
            rest = tagged.find(']').map_or("", |end| &tagged[end + 1..]);
            continue;
        }
        let Some((inner, behind)) = bracketed(rest).filter(|_| depth < MAX_DEPTH) else {
            // An arrow, an array, or what has no end.
            let first = rest.len().min(1);
            out.push_str(&rest[..first]);
            rest = &rest[first..];
            continue;
        };
        rest = behind;
        let self_type = out.len() == begin;
        if (self_type && has_as(inner)) || inner.starts_with("impl ") {
            out.push('<');
            strip(inner, out, depth + 1);
            out.push('>');
        } else if self_type {
            strip(inner, out, depth + 1);
        } else if out.ends_with("::") {
            // The turbofish of the v0 mangling.
            out.truncate(out.len() - 2);
        }
    }
    out.push_str(rest);
}

/// What stands in the brackets with which `text` begins, and what comes behind them.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let mut open = 0_usize;
    let mut before = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => open += 1,
            // Not an arrow: `fn() -> u8`.
            b'>' if before != b'-' => {
                open = open.checked_sub(1)?;
                if open == 0 {
                    return Some((&text[1..at], &text[at + 1..]));
                }
            }
            _ if open == 0 => return None,
            _ => {}
        }
        before = byte;
    }
    None
}

/// Whether a self type names a trait: ` as ` outside of inner brackets.
fn has_as(inner: &str) -> bool {
    let mut open = 0_usize;
    let mut before = 0;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'<' => open += 1,
            b'>' if before != b'-' => open = open.saturating_sub(1),
            b' ' if open == 0 && inner[at..].starts_with(" as ") => return true,
            _ => {}
        }
        before = byte;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of both Rust manglings and of C++ come down to one path.
    #[test]
    fn arguments_are_left_out() {
        for (name, expected) in [
            ("bumpalo::Bump<_>::reset", "bumpalo::Bump::reset"),
            ("<bumpalo::Bump<8>>::reset", "bumpalo::Bump::reset"),
            ("<bumpalo::Bump>::alloc::<u64>", "bumpalo::Bump::alloc"),
            ("core::ptr::drop_in_place::<a::B<C>>", "core::ptr::drop_in_place"),
            ("<a::B<_> as core::ops::drop::Drop>::drop", "<a::B as core::ops::drop::Drop>::drop"),
            ("<<a::B as c::D<E>>::F as g::H>::i", "<<a::B as c::D>::F as g::H>::i"),
            ("a::<impl b::C<D> for e::F<G>>::h", "a::<impl b::C for e::F>::h"),
            ("<fn(u8) -> a::B<C> as d::E>::f", "<fn(u8) -> a::B as d::E>::f"),
            ("shop::Cart<std::vector<int> >::fill", "shop::Cart::fill"),
            ("shop::make<int, 3>", "shop::make"),
            ("pool::Arena<int>::operator<< <char>", "pool::Arena::operator<<"),
            ("pool::Arena<int>::operator->", "pool::Arena::operator->"),
            ("pool::Arena<int>::operator<", "pool::Arena::operator<"),
            ("pool::name[abi:cxx11]", "pool::name"),
            ("pool::Node::operator new[]", "pool::Node::operator new[]"),
            ("plain", "plain"),
        ] {
            assert_eq!(plain(name), expected, "{name}");
        }
    }

    /// What has no end, or is nested without one, comes back quickly and whole.
    #[test]
    fn hostile_names() {
        assert_eq!(plain("a<b"), "a<b");
        assert_eq!(plain("a>b::[abi:x"), "a>b::");
        let deep = format!("{}a{}", "<".repeat(8000), ">".repeat(8000));
        assert!(plain(&deep).len() <= deep.len());
        assert_eq!(plain(&"<".repeat(4000)), "<".repeat(4000));
    }
}
