//! Where a probe goes, as profiles write it: a symbol, `demangled:…`, `usdt:…` or `offset:…`.
//!
//! Called by `parse` for `at` and `match.symbols`. Whether the place exists is for `plan` to find out.

use std::fmt::{self, Display, Formatter};

use super::{
    expr,
    model::{Address, Expr},
};

/// Longest address that is taken, bytes. Mangled C++ names of real programs stay below.
const MAX_ADDRESS_BYTES: usize = 4096;

impl Display for Address {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(name) => out.write_str(name),
            Self::Demangled(pattern) => write!(out, "demangled:{pattern}"),
            Self::Usdt { provider, name } => write!(out, "usdt:{provider}:{name}"),
            Self::Offset(offset) => write!(out, "offset:{offset:#x}"),
        }
    }
}

/// Parses an address; the error is the message, without a place.
pub(super) fn parse(text: &str) -> Result<Address, String> {
    if text.len() > MAX_ADDRESS_BYTES {
        return Err(format!(
            "a symbol of {} bytes; at most {MAX_ADDRESS_BYTES} are taken",
            text.len()
        ));
    }
    if text.chars().any(char::is_control) {
        return Err("a symbol has no control characters".to_owned());
    }
    let plain = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    if let Some(pattern) = text.strip_prefix("demangled:") {
        check_glob(pattern)?;
        return Ok(Address::Demangled(pattern.to_owned()));
    }
    if let Some(rest) = text.strip_prefix("usdt:") {
        return match rest.split_once(':') {
            Some((provider, name)) if plain(provider) && plain(name) && !name.contains(':') => {
                Ok(Address::Usdt { provider: provider.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("expected `usdt:provider:name`, found `{text}`")),
        };
    }
    if let Some(offset) = text.strip_prefix("offset:") {
        return match expr::parse(offset) {
            Ok(Expr::Const(offset)) => Ok(Address::Offset(offset)),
            _ => Err(format!(
                "expected a number after `offset:`, as in `offset:0x1234`, found `{text}`"
            )),
        };
    }
    if text.contains("::") {
        return Err(format!("`{text}` is not a mangled name; write `demangled:{text}`"));
    }
    if !plain(text) || text.contains(':') {
        return Err(format!(
            "expected a symbol, `demangled:pattern`, `usdt:provider:name` or `offset:0x…`, found `{text}`"
        ));
    }
    Ok(Address::Symbol(text.to_owned()))
}

/// Longest pattern that is taken, bytes: matching takes the product of its length and a name's.
const MAX_PATTERN_BYTES: usize = 1024;

/// Checks a pattern; the error is the message, without a place.
pub(super) fn check_glob(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("expected a pattern, found nothing".to_owned());
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        let bytes = pattern.len();
        return Err(format!("a pattern of {bytes} bytes; at most {MAX_PATTERN_BYTES} are taken"));
    }
    // Compiled too: not every pattern that can be read can be used.
    globset::Glob::new(pattern)
        .and_then(|glob| globset::GlobSet::builder().add(glob).build())
        .map(|_| ())
        .map_err(|error| format!("`{pattern}` is not a pattern: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::check_glob;

    /// A pattern that can be read and cannot be compiled is refused where it is written.
    #[test]
    fn nested_too_deep() {
        assert_eq!(check_glob("svc*"), Ok(()));
        let glob = format!("{}a{}", "{".repeat(251), "}".repeat(251));
        assert!(check_glob(&glob).unwrap_err().contains("is not a pattern"));
        assert!(check_glob(&"*:".repeat(513)).unwrap_err().contains("1026 bytes"));
    }
}
