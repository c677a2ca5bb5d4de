//! What values of a key are taken.

use toml::Value;

use super::setting::Setting;

/// A limit on a key's values.
pub(super) trait Check<T> {
    /// Why this value is not taken.
    fn check(&self, value: &T) -> Result<(), String>;
    /// The limit in words, for the reference page.
    fn words(&self) -> String;
}

/// From the first to the second, both included.
pub(super) struct Between<T>(pub(super) T, pub(super) T);

impl<T: Setting + PartialOrd> Check<T> for Between<T> {
    fn check(&self, value: &T) -> Result<(), String> {
        if (&self.0..=&self.1).contains(&value) {
            return Ok(());
        }
        Err(format!("{} is not {}", plain(value), Check::<T>::words(self)))
    }

    fn words(&self) -> String {
        format!("from {} to {}", plain(&self.0), plain(&self.1))
    }
}

impl<T: Setting + PartialOrd> Check<Option<T>> for Between<T> {
    fn check(&self, value: &Option<T>) -> Result<(), String> {
        value.as_ref().map_or(Ok(()), |value| self.check(value))
    }

    fn words(&self) -> String {
        Check::<T>::words(self)
    }
}

/// A list of at most so many entries, none of them twice.
pub(super) struct AtMost(pub(super) usize);

impl<T: PartialEq> Check<Vec<T>> for AtMost {
    fn check(&self, value: &Vec<T>) -> Result<(), String> {
        if value.len() > self.0 {
            return Err(format!("{} entries; at most {} are taken", value.len(), self.0));
        }
        let twice = value.iter().enumerate().position(|(at, entry)| value[..at].contains(entry));
        match twice {
            Some(at) => Err(format!("entry {} stands there twice", at + 1)),
            None => Ok(()),
        }
    }

    fn words(&self) -> String {
        format!("at most {} entries", self.0)
    }
}

/// The address of a web service.
pub(super) struct Url;

impl Check<Option<String>> for Url {
    fn check(&self, value: &Option<String>) -> Result<(), String> {
        let Some(url) = value else { return Ok(()) };
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map_or("", |rest| rest.split(['/', '?', '#']).next().unwrap_or(""));
        if host.is_empty() || url.contains(char::is_whitespace) {
            return Err(format!("`{url}` is not {}", self.words()));
        }
        if host.contains('@') {
            return Err("a name or password does not belong into the endpoint".to_owned());
        }
        Ok(())
    }

    fn words(&self) -> String {
        "an address that begins with http:// or https://".to_owned()
    }
}

/// A value as it reads in a sentence.
fn plain<T: Setting>(value: &T) -> String {
    match value.show() {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => "nothing".to_owned(),
    }
}
