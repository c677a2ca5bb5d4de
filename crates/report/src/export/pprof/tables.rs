//! The tables of a profile: each string, function, address and object once, referred to by number.

use std::collections::HashMap;

use super::{
    super::{escape, stack},
    proto::{Function, Label, Line, Location, Mapping, signed},
};
use crate::{OpenedAt, Site, SiteFrame, Target};

/// Characters of a text from a target.
const TEXT: usize = 1_000;
/// Frames of a path; live ones have 128 at most.
const FRAMES: usize = 1_024;

/// Strings by number; the first is empty.
#[derive(Debug)]
pub(super) struct Strings {
    numbers: HashMap<String, i64>,
    list: Vec<String>,
}

impl Default for Strings {
    fn default() -> Self {
        Self { numbers: HashMap::from([(String::new(), 0)]), list: vec![String::new()] }
    }
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = signed(self.list.len() as u64);
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    pub(super) fn into_list(self) -> Vec<String> {
        self.list
    }
}

/// All tables while they grow.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) strings: Strings,
    pub(super) function: Vec<Function>,
    pub(super) location: Vec<Location>,
    pub(super) mapping: Vec<Mapping>,
    /// By name and file.
    functions: HashMap<(i64, i64), u64>,
    /// By target and address.
    locations: HashMap<(u32, String), u64>,
    /// By target, name and where the object's address 0 is.
    mappings: HashMap<(u32, i64, u64), u64>,
}

impl Tables {
    /// The number of our own text.
    pub(super) fn string(&mut self, text: &str) -> i64 {
        self.strings.number(text)
    }

    /// The number of a text from a target, made harmless.
    pub(super) fn text(&mut self, text: &str) -> i64 {
        self.strings.number(&escape::shown(text, TEXT))
    }

    pub(super) fn label(&mut self, key: &str, text: &str) -> Label {
        Label { key: self.string(key), str: self.text(text) }
    }

    /// Enters the program that a process runs.
    pub(super) fn executable(&mut self, target: &Target) {
        let name = target.exe.rsplit('/').next().unwrap_or_default();
        let frames = target
            .allocators
            .iter()
            .flat_map(|allocator| allocator.sites.iter().flatten())
            .flat_map(|site| &site.frames);
        for frame in frames.filter(|frame| frame.frame.module.as_deref() == Some(name)) {
            self.mapped(target, frame);
        }
    }

    /// The locations of a path, the innermost first.
    pub(super) fn path(&mut self, target: &Target, site: &Site) -> Vec<u64> {
        let frames = site.frames.iter().take(FRAMES);
        let mut path: Vec<u64> = frames.map(|frame| self.located(target, frame)).collect();
        if let Some(cut) = stack::cut(site.path_end) {
            path.push(self.named(target, cut));
        }
        path
    }

    /// Where a path is cut: a location without an address.
    fn named(&mut self, target: &Target, name: &str) -> u64 {
        let key = (target.target, name.to_owned());
        if let Some(&id) = self.locations.get(&key) {
            return id;
        }
        let function_id = self.function(name, None);
        self.locate(key, 0, 0, vec![Line { function_id, line: 0 }])
    }

    fn located(&mut self, target: &Target, at: &SiteFrame) -> u64 {
        // In a report without addresses, a frame is what it is called.
        let name = stack::outer(at);
        let key = match &at.address {
            Some(address) => (target.target, address.clone()),
            None => (target.target, format!("{name} {:?} {:?}", at.frame.line, at.frame.inlined)),
        };
        if let Some(&id) = self.locations.get(&key) {
            return id;
        }
        let frame = &at.frame;
        let mut line: Vec<Line> = Vec::with_capacity(frame.inlined.len() + 1);
        for inlined in frame.inlined.iter().rev() {
            let function_id = self.function(&inlined.function, inlined.file.as_deref());
            line.push(Line { function_id, line: line_number(inlined.line) });
        }
        let function_id = self.function(&name, frame.file.as_deref());
        line.push(Line { function_id, line: line_number(frame.line) });
        let mapping_id = self.mapped(target, at);
        // The call is before the address that it returns to; it may be the last of its function.
        let address = address(at.address.as_deref()).map_or(0, |address| address.saturating_sub(1));
        self.locate(key, mapping_id, address, line)
    }

    fn locate(
        &mut self,
        key: (u32, String),
        mapping_id: u64,
        address: u64,
        line: Vec<Line>,
    ) -> u64 {
        let id = self.location.len() as u64 + 1;
        self.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(key, id);
        id
    }

    fn function(&mut self, name: &str, file: Option<&str>) -> u64 {
        let (name, filename) = (self.text(name), file.map_or(0, |file| self.text(file)));
        let next = self.function.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            self.function.push(Function { id, name, system_name: name, filename });
        }
        id
    }

    /// The object of a frame; grows so that the frame lies in it. 0 where it is not known.
    fn mapped(&mut self, target: &Target, at: &SiteFrame) -> u64 {
        let Some(module) = &at.frame.module else { return 0 };
        let filename = self.text(module);
        let place = address(at.address.as_deref()).unwrap_or_default();
        let offset = address(at.frame.module_offset.as_deref());
        let start = offset.map_or(0, |offset| place.saturating_sub(offset));
        let next = self.mapping.len() as u64 + 1;
        let id = *self.mappings.entry((target.target, filename, start)).or_insert(next);
        if id == next {
            let build_id = build_id(target, module).map_or(0, |build_id| self.text(build_id));
            self.mapping.push(Mapping {
                id,
                memory_start: start,
                memory_limit: 0,
                filename,
                build_id,
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            });
        }
        if let Some(mapping) = self.mapping.get_mut(id as usize - 1) {
            mapping.memory_limit = mapping.memory_limit.max(place.saturating_add(1));
        }
        id
    }
}

/// The build id of a module, if no other has its name.
fn build_id<'a>(target: &'a Target, name: &str) -> Option<&'a str> {
    let mut named = target.modules.iter().filter(|module| module.name == name);
    let first = named.next()?;
    named.next().is_none().then_some(first.build_id.as_deref()).flatten()
}

/// The place of opening in words.
pub(super) fn place(opened_at: &OpenedAt) -> Option<String> {
    let OpenedAt { place, frame } = opened_at;
    let at = SiteFrame { address: place.clone(), frame: frame.clone() };
    if let Some(inlined) = frame.inlined.last() {
        return Some(inlined.function.clone());
    }
    (place.is_some() || frame.function.is_some()).then(|| stack::outer(&at))
}

fn address(text: Option<&str>) -> Option<u64> {
    u64::from_str_radix(text?.strip_prefix("0x")?, 16).ok()
}

fn line_number(line: Option<u64>) -> i64 {
    signed(line.unwrap_or_default())
}
