//! Reads the sources and merges them: command line over environment over files over defaults.
//!
//! Later files win key by key; a list replaces a list. Each value is read and checked on its own, also one that a later
//! source replaces, so all errors show at once.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use drainprof_process::{printable, printable_lines};
use serde::Deserialize as _;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue, ValueDeserializer},
};

use super::{
    difference::insert,
    error::{ConfigError, ConfigErrors, Fault, Place},
    files::{files_in, text_of},
    model::Config,
    schema::{Node, join},
};

/// The main file.
pub const FILE: &str = "/etc/drainprof/drainprof.toml";
/// The directory with further files, read in the order of their names.
pub const DIRECTORY: &str = "/etc/drainprof/conf.d";
/// Errors of one file that are shown: finding the line of each goes through the file.
const MAX_FAULTS: usize = 100;
/// What names of environment variables begin with.
const VARIABLE_PREFIX: &str = "DRAINPROF_";

/// Where the configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The main file.
    pub file: Option<PathBuf>,
    /// Whether the main file must be there.
    pub required: bool,
    /// The directory with further files; it need not be there.
    pub directory: Option<PathBuf>,
    /// Environment variables; only those of keys (`DRAINPROF_STORE_PATH`) are examined.
    pub environment: Vec<(String, String)>,
    /// `section.key=value`, from the command line.
    pub set: Vec<String>,
}

/// The source of a value.
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
    /// The source of each key that is set (`section.key`); the other keys have their defaults.
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
    values: Table,
    origins: BTreeMap<String, Origin>,
    files: Vec<PathBuf>,
    notes: Vec<String>,
    errors: Vec<ConfigError>,
}

impl Merge {
    fn fail(&mut self, place: Place, message: String, hint: Option<String>) {
        // They quote what was written.
        let shown = |text: String| printable_lines(&text);
        let (message, hint) = (shown(message), hint.map(shown));
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
        if let Some(at) = drainprof_profile::too_deep(text) {
            let (line, column) = line_and_column(text, at);
            let place = Place::File { path: path.to_owned(), line, column };
            return self.fail(place, "brackets nest too deep".to_owned(), None);
        }
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut faults: Vec<Fault> = errors.iter().take(MAX_FAULTS + 1).map(fault_of).collect();
        // What the parser makes of broken text would lead to errors in lines that do not exist.
        if faults.is_empty() {
            self.table(path, text, "", table.get_ref(), &mut faults);
        }
        faults.sort_by_key(|fault| fault.at.start);
        if faults.len() > MAX_FAULTS {
            faults.truncate(MAX_FAULTS);
            let message = format!("there are more than {MAX_FAULTS} errors");
            self.fail(Place::Whole(path.to_owned()), message, None);
        }
        for Fault { at, message, hint } in faults {
            let (line, column) = line_and_column(text, at.start);
            self.fail(Place::File { path: path.to_owned(), line, column }, message, hint);
        }
    }

    /// Takes in the keys of a section, and of the sections in it.
    fn table(
        &mut self,
        file: &Path,
        text: &str,
        section: &str,
        table: &DeTable<'_>,
        faults: &mut Vec<Fault>,
    ) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let full = join(section, name);
            let Some(node) = Node::find(section).and_then(|node| node.child(name)) else {
                faults.push(unknown(key.span(), section, name));
                continue;
            };
            match value.get_ref().as_table() {
                Some(table) if node.is_section() => self.table(file, text, &full, table, faults),
                None if node.is_section() => {
                    let fault = Fault::new(key.span(), format!("`{full}` is a section"));
                    faults.push(
                        fault.hint(format!(
                            "write [{full}] on a line of its own, and its keys below"
                        )),
                    );
                }
                _ => match typed(&full, node, value) {
                    Ok(read) => {
                        let line = line_and_column(text, key.span().start).0;
                        self.accept(&full, read, Origin::File(file.to_owned(), line));
                    }
                    Err(all) => faults.extend(all.into_iter().map(|fault| named(&full, fault))),
                },
            }
        }
    }

    fn accept(&mut self, full: &str, value: Value, origin: Origin) {
        insert(&mut self.values, full, value);
        self.origins.insert(full.to_owned(), origin);
    }

    /// Takes in a value that is written as a text.
    fn text(&mut self, full: &str, node: Node, text: &str, origin: Origin) -> Result<(), Fault> {
        let value = node.value(text);
        let mut table = Table::new();
        insert(&mut table, full, value.clone());
        Config::deserialize(table).map_err(|error| named(full, fault_of(&error)))?;
        node.check(&value).map_err(|why| named(full, Fault::new(0..0, why)))?;
        self.accept(full, value, origin);
        Ok(())
    }

    /// Reads the variables of keys. A variable that is close to a key and is none is noted; it may belong to others.
    fn environment(&mut self, variables: &[(String, String)]) {
        for (name, text) in variables {
            let Some(rest) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
            let found = Node::root().names().find_map(|section| {
                let key = rest.strip_prefix(&section.to_uppercase())?.strip_prefix('_')?;
                Some((section, key.to_lowercase()))
            });
            let Some((section, key)) = found else { continue };
            let full = join(section, &key);
            let Some(node) = Node::find(&full).filter(|node| !node.is_section()) else {
                let name = printable(name);
                self.notes
                    .push(format!("environment variable {name}: [{section}] has no such key"));
                continue;
            };
            if let Err(fault) = self.text(&full, node, text, Origin::Environment(name.clone())) {
                self.fail(Place::Environment(name.clone()), fault.message, fault.hint);
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
        let set = if let Some(node) = Node::find(full).filter(|node| !node.is_section()) {
            self.text(full, node, text, Origin::CommandLine)
        } else {
            let split = full.rsplit_once('.');
            let known = split.filter(|(section, _)| Node::find(section).is_some());
            let (section, key) = known.unwrap_or(("", full));
            Err(unknown(0..0, section, key))
        };
        if let Err(fault) = set {
            self.fail(place, fault.message, fault.hint);
        }
    }

    fn finish(mut self) -> Result<Loaded, ConfigErrors> {
        // Values that were refused are missing here; what is in their place contradicts nothing.
        let mut config = Config::default();
        if self.errors.is_empty() {
            match Config::deserialize(self.values.clone()) {
                Ok(read) => config = read,
                Err(error) => self.fail(Place::Nowhere, error.message().to_owned(), None),
            }
            for (key, message) in config.contradictions() {
                let place = match self.origins.get(&key) {
                    Some(Origin::File(path, line)) => {
                        Place::File { path: path.clone(), line: *line, column: 1 }
                    }
                    Some(Origin::Environment(name)) => Place::Environment(name.clone()),
                    Some(Origin::CommandLine) => Place::CommandLine(key.clone()),
                    None => Place::Nowhere,
                };
                self.fail(place, format!("{key}: {message}"), None);
            }
        }
        if !self.errors.is_empty() {
            return Err(ConfigErrors(self.errors));
        }
        let Self { origins, files, notes, .. } = self;
        Ok(Loaded { config, origins, files, notes })
    }
}

fn named(key: &str, mut fault: Fault) -> Fault {
    fault.message = format!("{key}: {}", fault.message);
    fault
}

/// A name that is no section, or no key of its section, and what may have been meant.
fn unknown(at: Range<usize>, section: &str, name: &str) -> Fault {
    let shown = printable(name);
    let names: Vec<_> = Node::find(section).unwrap_or_else(Node::root).names().collect();
    let all = Node::all();
    let elsewhere = all.iter().find_map(|(full, node)| {
        let (section, key) = full.rsplit_once('.')?;
        (key == name && !node.is_section() && !section.contains('.')).then_some(section)
    });
    let near = nearest(name, names.iter().copied());
    let (what, quote): (_, fn(&str) -> String) = match section {
        "" => (format!("unknown section `{shown}`"), |name| format!("[{name}]")),
        _ => (format!("unknown key `{shown}` in [{section}]"), |name| format!("`{name}`")),
    };
    Fault::new(at, what).hint(match (elsewhere, near) {
        (Some(section), _) => format!("it belongs in [{section}]"),
        (None, Some(near)) => format!("did you mean {}?", quote(near)),
        (None, None) => {
            let all: Vec<_> = names.into_iter().map(quote).collect();
            format!("there are {}", all.join(", "))
        }
    })
}

/// The known name that is most like this one, if one is alike.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The comparison takes the product of the lengths; no key is this long.
    if name.len() > 64 {
        return None;
    }
    let rated = known.into_iter().map(|known| (strsim::jaro_winkler(name, known), known));
    let best = rated.max_by(|(left, _), (right, _)| left.total_cmp(right));
    best.filter(|(likeness, _)| *likeness > 0.75).map(|(_, known)| known)
}

/// An error of the `toml` crate: the message, and as the hint what was expected or meant.
fn fault_of(error: &toml::de::Error) -> Fault {
    let message = error
        .message()
        .trim()
        .replace('\n', ", ")
        .replace("unknown field", "unknown key")
        .replace("missing field", "missing key");
    let at = error.span().unwrap_or(0..0);
    let Some((message, expected)) = message.split_once(", expected ") else {
        return Fault::new(at, message);
    };
    // "unknown key `a`, expected one of `b`, `c`"
    let name = message.strip_prefix("unknown key").map(|rest| rest.trim().trim_matches('`'));
    let near = name.and_then(|name| nearest(name, expected.split('`').skip(1).step_by(2)));
    Fault::new(at, message).hint(match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("expected {expected}"),
    })
}

/// Reads one value as the key's type, and gives it as it is written. Entries of a list are read one by one, so that all
/// their faults show.
fn typed(full: &str, node: Node, value: &Spanned<DeValue<'_>>) -> Result<Value, Vec<Fault>> {
    let one = |value: Spanned<DeValue<'_>>| {
        let mut whole = value;
        for name in full.rsplit('.') {
            let (span, mut table) = (whole.span(), DeTable::new());
            table.insert(Spanned::new(span.clone(), name.into()), whole);
            whole = Spanned::new(span, DeValue::Table(table));
        }
        let error = Config::deserialize(ValueDeserializer::from(whole)).err()?;
        // What `toml` says of any type that is no name.
        if error.message() == "wanted string or table" {
            let fault = Fault::new(error.span().unwrap_or_default(), "wrong type");
            return Some(fault.hint(format!("expected {}", node.expected())));
        }
        Some(fault_of(&error))
    };
    let faults: Vec<Fault> = match value.get_ref() {
        DeValue::Array(entries) if !entries.is_empty() => {
            let alone = |entry: &Spanned<_>| {
                let list = DeValue::Array([entry.clone()].into_iter().collect());
                one(Spanned::new(entry.span(), list))
            };
            entries.iter().filter_map(alone).collect()
        }
        _ => one(value.clone()).into_iter().collect(),
    };
    if !faults.is_empty() {
        return Err(faults);
    }
    let read = Value::deserialize(ValueDeserializer::from(value.clone()));
    let read = read.map_err(|error| vec![fault_of(&error)])?;
    node.check(&read).map_err(|why| vec![Fault::new(value.span(), why)])?;
    Ok(read)
}

/// Line and column (in characters) of a byte, both from 1.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = (0..=at.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or("");
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}
