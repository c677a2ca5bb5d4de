//! What a client without the token may read: addresses and directories are taken out of every answer.
//!
//! An address becomes a keyed hash of itself. The key lives as long as the daemon, so that one answer can be compared to
//! the next, and no client can compute it. Module names and offsets stay: they are the same in every process.

use std::hash::{BuildHasher as _, RandomState};

use serde_json::Value;

/// The least number that is taken for an address: nothing is mapped below (`vm.mmap_min_addr`).
const MIN_ADDRESS: u64 = 0x1_0000;
/// Keys whose values stay: a control group's path, which is a label of metrics, too; and offsets in modules.
const KEPT_KEYS: [&str; 2] = ["cgroup", "module_offset"];

/// Takes addresses and directories out of answers.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    key: RandomState,
}

impl Redactor {
    /// Takes them out of every text of a JSON document.
    pub(super) fn json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.json(one)),
            Value::Object(fields) => {
                let hidden =
                    fields.iter_mut().filter(|(key, _)| !KEPT_KEYS.contains(&key.as_str()));
                hidden.for_each(|(_, value)| self.json(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Takes them out of a text. Of a path, the last part stays; a number after `+` is an offset.
    pub(super) fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = ' ';
        while let Some(c) = rest.chars().next() {
            let length = if let Some(digits) = hex(rest).filter(|_| !before.is_alphanumeric()) {
                out.push_str(&self.number(digits, before));
                2 + digits.len()
            } else if c == '/' && begins_path(before) {
                let path = &rest[..rest.find(ends_path).unwrap_or(rest.len())];
                out.push_str(path.trim_end_matches('/').rsplit('/').next().unwrap_or_default());
                path.len()
            } else {
                out.push(c);
                c.len_utf8()
            };
            before = rest[..length].chars().next_back().unwrap_or(' ');
            rest = &rest[length..];
        }
        out
    }

    /// A number in hexadecimal digits, as it is shown.
    fn number(&self, digits: &str, before: char) -> String {
        let small = u64::from_str_radix(digits, 16).is_ok_and(|number| number < MIN_ADDRESS);
        if small || before == '+' {
            return format!("0x{digits}");
        }
        let digits = digits.trim_start_matches('0').to_ascii_lowercase();
        // Twelve digits, as addresses have; never one of a process, which end below 0x8000….
        format!("0xf{:011x}", self.key.hash_one(digits) >> 20)
    }
}

/// The digits of the hexadecimal number that a text begins with.
fn hex(text: &str) -> Option<&str> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    (end > 0).then(|| &digits[..end])
}

/// Whether a path can begin after this character: a slash inside of a word is a fraction, a unit or an alternative.
const fn begins_path(before: char) -> bool {
    before.is_whitespace() || matches!(before, '"' | '\'' | '(' | '[' | '=' | '`' | ',' | ':')
}

const fn ends_path(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | ')' | ']' | '`' | ',' | ';' | ':')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Addresses get another name, always the same one; offsets, small ids and counts stay as they are.
    #[test]
    fn addresses_go() {
        let redactor = Redactor::default();
        let hidden = redactor.text("instance 0x7f12deadb000 of svc+0x12345, granule 0x17");
        assert!(!hidden.contains("7f12deadb000"), "{hidden}");
        assert!(hidden.ends_with(" of svc+0x12345, granule 0x17"), "{hidden}");
        assert_eq!(hidden, redactor.text("instance 0x7f12deadb000 of svc+0x12345, granule 0x17"));
        assert_eq!(redactor.text("0x7F12DEADB000"), redactor.text("0x00007f12deadb000"));
        assert_ne!(redactor.text("0x7f12deadb000"), redactor.text("0x7f12deadb010"));
        let other = Redactor::default();
        assert_ne!(redactor.text("0x7f12deadb000"), other.text("0x7f12deadb000"), "a key each");
        assert_eq!(redactor.text("é 1.5 s, 0x, 0xg"), "é 1.5 s, 0x, 0xg");
    }

    /// Of paths the last part stays, wherever they stand; what only has a slash in it is no path.
    #[test]
    fn directories_go() {
        let redactor = Redactor::default();
        for (text, shown) in [
            ("/usr/bin/svc", "svc"),
            ("cannot read \"/srv/a b/c\": no", "cannot read \"a b/c\": no"),
            ("object=/opt/x/lib.so.1 (deleted)", "object=lib.so.1 (deleted)"),
            ("12 bytes/s, and/or", "12 bytes/s, and/or"),
            ("/", ""),
        ] {
            assert_eq!(redactor.text(text), shown);
        }
    }

    /// Every text of a document, however deep; the control group's path stays, and offsets do.
    #[test]
    fn documents() {
        let mut value = json!({"a": [{"exe": "/bin/x", "id": "0x7f0000001000", "n": 5}],
            "frame": {"module": "x", "module_offset": "0x123456"},
            "labels": {"cgroup": "/system.slice/x"}});
        Redactor::default().json(&mut value);
        assert_eq!((&value["a"][0]["exe"], &value["a"][0]["n"]), (&json!("x"), &json!(5)));
        assert_eq!(value["labels"]["cgroup"], "/system.slice/x");
        assert_eq!(value["frame"]["module_offset"], "0x123456");
        assert!(!value.to_string().contains("7f0000001000"));
    }
}
