//! How values are written: times, sizes, names and lists, as text and back.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use drainprof_process::printable;
use drainprof_profile::Level;
use jiff::{Span, SpanRelativeTo};
use toml::{
    Spanned, Value,
    de::{DeString, DeValue},
};

use super::error::Fault;
use crate::trigger::{Share, WindowGrowth};

/// A value of the configuration.
pub(super) trait Setting: Sized + Clone + PartialEq {
    /// What is written, in words.
    fn expected() -> String;

    /// From a file; all that is wrong with it.
    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>>;

    /// From an environment variable or the command line.
    fn from_text(text: &str) -> Result<Self, Vec<Fault>> {
        Self::read(&Spanned::new(0..text.len(), DeValue::String(DeString::Borrowed(text))))
    }

    /// As it would be written in a file; `None`: it is not set.
    fn show(&self) -> Option<Value>;
}

/// A value that is written as one string.
trait Text: Sized + Clone + PartialEq {
    fn expected() -> String;
    /// `None` if the text is no such value.
    fn parse(text: &str) -> Option<Self>;
    fn print(&self) -> String;
}

impl<T: Text> Setting for T {
    fn expected() -> String {
        <T as Text>::expected()
    }

    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>> {
        let Some(text) = value.get_ref().as_str() else { return Err(wrong::<T>(value)) };
        T::parse(text).ok_or_else(|| {
            let message = format!("`{}` cannot be read", printable(text));
            vec![Fault::new(value.span(), message).hint(format!("expected {}", T::expected()))]
        })
    }

    fn show(&self) -> Option<Value> {
        Some(Value::String(self.print()))
    }
}

/// The fault of a value that has another type.
pub(super) fn wrong<T: Setting>(value: &Spanned<DeValue<'_>>) -> Vec<Fault> {
    let found = match value.get_ref() {
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::String(_) => "a string",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    let fault = Fault::new(value.span(), format!("{found} cannot stand here"));
    vec![fault.hint(format!("expected {}", T::expected()))]
}

impl Text for Duration {
    fn expected() -> String {
        "a time in quotes with its unit: \"500ms\", \"5s\", \"10m\", \"2h\", \"30d\"".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let span: Span = text.parse().ok()?;
        // Months and years differ in length: a time in them is refused by the conversion.
        let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        Self::try_from(signed).ok()
    }

    fn print(&self) -> String {
        const UNITS: [(u128, &str); 5] =
            [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
        if !self.subsec_nanos().is_multiple_of(1_000_000) {
            return format!("{}ns", self.as_nanos());
        }
        let unit = UNITS.iter().find(|(unit, _)| self.as_millis().is_multiple_of(*unit));
        match unit {
            Some((unit, name)) if !self.is_zero() => format!("{}{name}", self.as_millis() / unit),
            _ => "0s".to_owned(),
        }
    }
}

impl Text for ByteSize {
    fn expected() -> String {
        "a size in quotes with its unit: \"64KiB\", \"256MiB\", \"1GiB\"".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut number, mut unit) = (self.as_u64(), 0);
        while number != 0 && number % 1024 == 0 && unit + 1 < UNITS.len() {
            number /= 1024;
            unit += 1;
        }
        format!("{number}{}", UNITS[unit])
    }
}

impl Text for Share {
    fn expected() -> String {
        "a share of one CPU in quotes: \"1%\", \"20%\"".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Text for String {
    fn expected() -> String {
        "a string in quotes".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= 4096 && !text.contains(char::is_control);
        fits.then(|| text.to_owned())
    }

    fn print(&self) -> String {
        self.clone()
    }
}

impl Text for PathBuf {
    fn expected() -> String {
        "an absolute path in quotes".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let fits = text.starts_with('/') && text.len() < 4096 && !text.contains(char::is_control);
        fits.then(|| Self::from(text))
    }

    fn print(&self) -> String {
        self.display().to_string()
    }
}

/// Where to listen, or not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Nowhere.
    Off,
    /// At this address and port.
    At(SocketAddr),
}

impl Text for Address {
    fn expected() -> String {
        "an address and port in quotes: \"127.0.0.1:9464\", \"[::1]:9464\"; or \"off\"".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "off" { Some(Self::Off) } else { text.parse().ok().map(Self::At) }
    }

    fn print(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::At(address) => address.to_string(),
        }
    }
}

/// What carries the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Only the processes that are wanted.
    Process,
    /// The files that they map: new processes are seen from their first instruction on, and every process that
    /// maps the file pays for its hits.
    File,
}

/// A label of a process that metrics can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// The file name of the executable.
    Exe,
    /// The control group's path.
    Cgroup,
    /// The container's id.
    Container,
    /// The systemd unit.
    Unit,
    /// The Kubernetes pod.
    Pod,
    /// The Kubernetes namespace.
    Namespace,
}

impl Label {
    /// All of them, with their names.
    pub const ALL: [(Self, &str); 6] = [
        (Self::Exe, "exe"),
        (Self::Cgroup, "cgroup"),
        (Self::Container, "container"),
        (Self::Unit, "unit"),
        (Self::Pod, "pod"),
        (Self::Namespace, "namespace"),
    ];
}

/// Values that are one of a few words.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// All of them, with their names.
    const WORDS: &'static [(Self, &'static str)];
}

impl Word for Level {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Boundary, Self::Boundary.name()),
        (Self::Objects, Self::Objects.name()),
        (Self::Stacks, Self::Stacks.name()),
    ];
}

impl Word for Attach {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Process, "process"), (Self::File, "file")];
}

impl Word for WindowGrowth {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Memory, "memory"), (Self::Always, "always"), (Self::Never, "never")];
}

impl Word for Label {
    const WORDS: &'static [(Self, &'static str)] = &Self::ALL;
}

impl<T: Word> Text for T {
    fn expected() -> String {
        let names: Vec<_> = T::WORDS.iter().map(|(_, name)| format!("\"{name}\"")).collect();
        format!("one of {}", names.join(", "))
    }

    fn parse(text: &str) -> Option<Self> {
        T::WORDS.iter().find(|(_, name)| *name == text).map(|(word, _)| *word)
    }

    fn print(&self) -> String {
        let row = T::WORDS.iter().find(|(word, _)| word == self);
        row.map_or_else(String::new, |(_, name)| (*name).to_owned())
    }
}

impl Setting for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>> {
        value.get_ref().as_bool().ok_or_else(|| wrong::<Self>(value))
    }

    fn from_text(text: &str) -> Result<Self, Vec<Fault>> {
        text.parse().map_err(|_| {
            let message = format!("`{}` cannot be read", printable(text));
            vec![Fault::new(0..0, message).hint("expected true or false")]
        })
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Boolean(*self))
    }
}

impl Setting for u32 {
    fn expected() -> String {
        "a whole number".to_owned()
    }

    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>> {
        let Some(number) = value.get_ref().as_integer() else { return Err(wrong::<Self>(value)) };
        Self::from_str_radix(number.as_str(), number.radix()).map_err(|_| {
            let message = format!("{} cannot be read", printable(number.as_str()));
            vec![Fault::new(value.span(), message).hint("expected a whole number below 4294967296")]
        })
    }

    fn from_text(text: &str) -> Result<Self, Vec<Fault>> {
        text.parse().map_err(|_| {
            let message = format!("`{}` cannot be read", printable(text));
            vec![Fault::new(0..0, message).hint("expected a whole number")]
        })
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Integer(i64::from(*self)))
    }
}

impl<T: Setting> Setting for Option<T> {
    fn expected() -> String {
        T::expected()
    }

    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>> {
        T::read(value).map(Some)
    }

    fn from_text(text: &str) -> Result<Self, Vec<Fault>> {
        T::from_text(text).map(Some)
    }

    fn show(&self) -> Option<Value> {
        self.as_ref().and_then(T::show)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn expected() -> String {
        format!("a list, each entry {}", T::expected())
    }

    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>> {
        let Some(array) = value.get_ref().as_array() else { return Err(wrong::<Self>(value)) };
        let (mut all, mut faults) = (Self::new(), Vec::new());
        for element in array {
            match T::read(element) {
                Ok(element) => all.push(element),
                Err(more) => faults.extend(more),
            }
        }
        if faults.is_empty() { Ok(all) } else { Err(faults) }
    }

    /// Entries are separated by commas; no text is no entry.
    fn from_text(text: &str) -> Result<Self, Vec<Fault>> {
        let entries = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        let (mut all, mut faults) = (Self::new(), Vec::new());
        for entry in entries {
            match T::from_text(entry) {
                Ok(entry) => all.push(entry),
                Err(more) => faults.extend(more),
            }
        }
        if faults.is_empty() { Ok(all) } else { Err(faults) }
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Array(self.iter().filter_map(T::show).collect()))
    }
}
