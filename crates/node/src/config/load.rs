//! Reads the sources and merges them: command line over environment over files over defaults.
//!
//! Later files win key by key; a list replaces a list. Everything is read and checked to the end, so that all
//! errors are told at once, also of values that a later source replaces.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use drainprof_process::printable;
use serde::Deserialize as _;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue, ValueDeserializer},
};

use super::{
    error::{ConfigError, ConfigErrors, Fault, Place},
    files::{files_in, text_of},
    model::{Config, Key, SECTIONS, Section},
    names::{nearest, unknown},
    page::table_of,
    policies::{Governor, Policy, Triggers},
};

/// The main file.
pub const FILE: &str = "/etc/drainprof/drainprof.toml";
/// The directory with further files, read in the order of their names.
pub const DIRECTORY: &str = "/etc/drainprof/conf.d";
/// What names of environment variables begin with.
const PREFIX: &str = "DRAINPROF_";

/// Where the configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The main file.
    pub file: Option<PathBuf>,
    /// Whether the main file must be there.
    pub required: bool,
    /// The directory with further files; it need not be there.
    pub directory: Option<PathBuf>,
    /// Environment variables; only those of keys (`DRAINPROF_STORE_PATH`) are looked at.
    pub environment: Vec<(String, String)>,
    /// `section.key=value`, from the command line.
    pub set: Vec<String>,
}

/// Who has set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, and the line in it.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// The command line.
    CommandLine,
}

/// The configuration, and how it came about.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What is in force.
    pub config: Config,
    /// Who has set which key (`section.key`); the others have their defaults.
    pub origins: BTreeMap<String, Origin>,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// What is no error, but looks like a mistake.
    pub notes: Vec<String>,
}

/// Reads and merges all sources.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigErrors> {
    let mut merge = Merge::default();
    if let Some(file) = &sources.file {
        merge.read(file, sources.required);
    }
    if let Some(directory) = &sources.directory {
        match files_in(directory) {
            Ok(files) => files.iter().for_each(|file| merge.read(file, true)),
            Err(message) => merge.fail(Place::Whole(directory.clone()), message, None),
        }
    }
    merge.environment(&sources.environment);
    for text in &sources.set {
        merge.set(text);
    }
    merge.finish()
}

/// Reads one text as if it were the only file; `name` is what errors call it.
pub fn parse(text: &str, name: &Path) -> Result<Config, ConfigErrors> {
    let mut merge = Merge::default();
    merge.file(name, text);
    merge.finish().map(|loaded| loaded.config)
}

/// What has been merged so far.
#[derive(Default)]
struct Merge {
    config: Config,
    triggers: Table,
    governor: Table,
    origins: BTreeMap<String, Origin>,
    files: Vec<PathBuf>,
    notes: Vec<String>,
    errors: Vec<ConfigError>,
}

impl Merge {
    fn fail(&mut self, place: Place, message: String, hint: Option<String>) {
        self.errors.push(ConfigError { place, message, hint });
    }

    fn read(&mut self, path: &Path, required: bool) {
        match text_of(path) {
            Ok(text) => {
                self.file(path, &text);
                self.files.push(path.to_owned());
            }
            Err(error) if !required && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("cannot read the configuration: {error}");
                self.fail(Place::Whole(path.to_owned()), message, None);
            }
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut faults: Vec<Fault> = errors.iter().map(fault_of).collect();
        // What the parser makes of broken text would lead to errors that nobody has written.
        if faults.is_empty() {
            for (key, value) in table.get_ref() {
                let origin = |at: usize| Origin::File(path.to_owned(), line_and_column(text, at).0);
                self.section(key, value, &origin, &mut faults);
            }
        }
        faults.sort_by_key(|fault| fault.at.start);
        for Fault { at, message, hint } in faults {
            let (line, column) = line_and_column(text, at.start);
            self.fail(Place::File { path: path.to_owned(), line, column }, message, hint);
        }
    }

    fn section(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        origin: &dyn Fn(usize) -> Origin,
        faults: &mut Vec<Fault>,
    ) {
        let name = key.get_ref().as_ref();
        let section = SECTIONS.iter().find(|section| section.name == name);
        let Some(table) = value.get_ref().as_table() else {
            let known = section.is_some() || is_policy(name);
            faults.push(if known {
                Fault::new(key.span(), format!("`{name}` is a section"))
                    .hint(format!("write [{name}] on a line of its own, and its keys below"))
            } else {
                unknown(key.span(), name, None)
            });
            return;
        };
        if let Some(section) = section {
            for (key, value) in table {
                let name = key.get_ref().as_ref();
                let Some(known) = section.keys.iter().find(|known| known.name == name) else {
                    faults.push(unknown(key.span(), name, Some(section)));
                    continue;
                };
                let full = full_name(section, known);
                match (known.set)(&mut self.config, value) {
                    Ok(()) => _ = self.origins.insert(full, origin(key.span().start)),
                    Err(more) => faults.extend(more.into_iter().map(|fault| named(&full, fault))),
                }
            }
            return;
        }
        let read = match name {
            "triggers" => read_policy::<Triggers>(value).map(|table| (&mut self.triggers, table)),
            "governor" => read_policy::<Governor>(value).map(|table| (&mut self.governor, table)),
            _ => Err(unknown(key.span(), name, None)),
        };
        match read {
            Ok((into, from)) => {
                merge_tables(into, from);
                leaves(name, table, &mut |leaf, at| _ = self.origins.insert(leaf, origin(at)));
            }
            Err(fault) if is_policy(name) => faults.push(named(name, fault)),
            Err(fault) => faults.push(fault),
        }
    }

    /// Looks at the variables of keys; what is alike and no key is noted, but may be somebody else's.
    fn environment(&mut self, variables: &[(String, String)]) {
        for (name, text) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else { continue };
            let found = SECTIONS.iter().find_map(|section| {
                let key = rest.strip_prefix(&section.name.to_uppercase())?.strip_prefix('_')?;
                Some((section, key.to_lowercase()))
            });
            let Some((section, key)) = found else { continue };
            let Some(known) = section.keys.iter().find(|known| known.name == key) else {
                let name = printable(name);
                self.notes.push(format!(
                    "environment variable {name}: [{}] has no such key",
                    section.name
                ));
                continue;
            };
            let full = full_name(section, known);
            match (known.set_text)(&mut self.config, text) {
                Ok(()) => _ = self.origins.insert(full, Origin::Environment(name.clone())),
                Err(faults) => {
                    for Fault { message, hint, .. } in faults {
                        let message = format!("{full}: {message}");
                        self.fail(Place::Environment(name.clone()), message, hint);
                    }
                }
            }
        }
    }

    /// One `section.key=value` of the command line.
    fn set(&mut self, argument: &str) {
        let place = Place::CommandLine(argument.to_owned());
        let Some((full, text)) = argument.split_once('=') else {
            let hint = "expected section.key=value, for example store.max_age=7d".to_owned();
            return self.fail(place, "there is no `=`".to_owned(), Some(hint));
        };
        let (full, text) = (full.trim(), text.trim());
        let (section, key) = full.split_once('.').unwrap_or((full, ""));
        let found = SECTIONS.iter().find(|known| known.name == section);
        let faults = match found {
            Some(section) => match section.keys.iter().find(|known| known.name == key) {
                Some(known) => (known.set_text)(&mut self.config, text),
                None => Err(vec![unknown(0..0, key, Some(section))]),
            },
            None if is_policy(section) && !key.is_empty() => self.set_policy(section, key, text),
            None => Err(vec![unknown(0..0, section, None)]),
        };
        match faults {
            Ok(()) => _ = self.origins.insert(full.to_owned(), Origin::CommandLine),
            Err(faults) => {
                for Fault { message, hint, .. } in faults {
                    self.fail(place.clone(), message, hint);
                }
            }
        }
    }

    /// A key of a policy; its text is TOML, or else a string.
    fn set_policy(&mut self, section: &str, key: &str, text: &str) -> Result<(), Vec<Fault>> {
        let value = format!("value = {text}").parse::<Table>().ok();
        let value = value.and_then(|mut table| table.remove("value"));
        let mut value = value.unwrap_or_else(|| Value::String(text.to_owned()));
        for name in key.rsplit('.') {
            value = Value::Table(Table::from_iter([(name.to_owned(), value)]));
        }
        let Value::Table(table) = value else { return Ok(()) };
        let (into, read) = if section == "triggers" {
            (&mut self.triggers, typed::<Triggers>(&table).map(drop))
        } else {
            (&mut self.governor, typed::<Governor>(&table).map(drop))
        };
        read.map_err(|error| vec![named(section, fault_of(&error))])?;
        merge_tables(into, table);
        Ok(())
    }

    fn finish(mut self) -> Result<Loaded, ConfigErrors> {
        match policy(&self.triggers) {
            Ok(triggers) => self.config.triggers = triggers,
            Err(message) => self.fail(Place::Nowhere, format!("triggers: {message}"), None),
        }
        match policy(&self.governor) {
            Ok(governor) => self.config.governor = governor,
            Err(message) => self.fail(Place::Nowhere, format!("governor: {message}"), None),
        }
        // Values that were refused are not in the configuration; what is in their place contradicts nobody.
        if self.errors.is_empty() {
            for (key, message) in self.config.contradictions() {
                let place = match self.origins.get(key) {
                    Some(Origin::File(path, line)) => {
                        Place::File { path: path.clone(), line: *line, column: 1 }
                    }
                    Some(Origin::Environment(name)) => Place::Environment(name.clone()),
                    Some(Origin::CommandLine) => Place::CommandLine(key.to_owned()),
                    None => Place::Nowhere,
                };
                self.fail(place, format!("{key}: {message}"), None);
            }
        }
        if !self.errors.is_empty() {
            return Err(ConfigErrors(self.errors));
        }
        let Self { config, origins, files, notes, .. } = self;
        Ok(Loaded { config, origins, files, notes })
    }
}

fn is_policy(name: &str) -> bool {
    matches!(name, "triggers" | "governor")
}

fn full_name(section: &Section, key: &Key) -> String {
    format!("{}.{}", section.name, key.name)
}

fn named(key: &str, mut fault: Fault) -> Fault {
    fault.message = format!("{key}: {}", fault.message);
    fault
}

/// An error of the `toml` crate in our words.
fn fault_of(error: &toml::de::Error) -> Fault {
    let message = error.message().trim().replace('\n', ", ");
    let message = message.replace("unknown field", "unknown key");
    let fault = Fault::new(error.span().unwrap_or(0..0), message.clone());
    // "unknown key `a`, expected one of `b`, `c`"
    let mut names = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown key"), names.next()) {
        (true, Some(name)) => match nearest(name, names) {
            Some(near) => {
                let hint = format!("did you mean `{near}`?");
                fault.hint(hint)
            }
            None => fault,
        },
        _ => fault,
    }
}

/// Reads a section that another module defines, to find its errors where they stand.
pub(super) fn read_policy<T: Policy>(value: &Spanned<DeValue<'_>>) -> Result<Table, Fault> {
    T::deserialize(ValueDeserializer::from(value.clone())).map_err(|error| fault_of(&error))?;
    Table::deserialize(ValueDeserializer::from(value.clone())).map_err(|error| fault_of(&error))
}

fn typed<T: Policy>(table: &Table) -> Result<T, toml::de::Error> {
    table.clone().try_into()
}

/// What a policy's merged keys say, laid over its defaults.
pub(super) fn policy<T: Policy>(table: &Table) -> Result<T, String> {
    let mut whole = table_of(&T::default());
    merge_tables(&mut whole, table.clone());
    let read: T = typed(&whole).map_err(|error| error.message().to_owned())?;
    read.check()?;
    Ok(read)
}

/// Lays one table over another, key by key.
fn merge_tables(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge_tables(into, from),
            (_, value) => _ = into.insert(key, value),
        }
    }
}

/// Calls `each` with the full name and the place of every value that is no table.
fn leaves(prefix: &str, table: &DeTable<'_>, each: &mut dyn FnMut(String, usize)) {
    for (key, value) in table {
        let name = format!("{prefix}.{}", key.get_ref());
        match value.get_ref().as_table() {
            Some(table) => leaves(&name, table, each),
            None => each(name, key.span().start),
        }
    }
}

/// Line and column (in characters) of a byte, both from 1.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = (0..=at.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or("");
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}
