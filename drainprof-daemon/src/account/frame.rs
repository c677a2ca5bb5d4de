//! What a code address is called.

use std::collections::BTreeMap;

/// The name of a code address; what is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The function whose code it is, demangled.
    pub function: Option<String>,
    /// Bytes from the function's first.
    pub offset: Option<u64>,
    /// Source file of the code, as the compiler was given it.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// Name of the file that the code is mapped from, without its directory; or what else it lies in, in
    /// brackets.
    pub module: Option<String>,
    /// The address in the module's own address space, as `addr2line` takes it.
    pub module_offset: Option<u64>,
    /// Functions whose code the compiler put into `function` here, the outermost first.
    pub inlined: Vec<Inlined>,
}

/// A function that has no frame of its own, because its code stands in its caller's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inlined {
    /// Its name, demangled.
    pub function: String,
    /// Source file of the code.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
}

/// A file that code is mapped from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// What frames call it: its name without the directory.
    pub name: String,
    /// Its path, as the process saw it.
    pub path: String,
    /// Its build id, in hexadecimal digits.
    pub build_id: Option<String>,
}

/// Names by address, of one process.
pub type Frames = BTreeMap<u64, Frame>;

/// How far naming has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolFacts {
    /// Places that were seen, over all targets.
    pub places: u64,
    /// How many of them have a function's name.
    pub named: u64,
    /// How many are not named yet.
    pub pending: u64,
    /// How many were left out, because so many names are not kept.
    pub left_out: u64,
    /// How many were given up: their object's symbols could not be read in bounded time and memory.
    pub given_up: u64,
    /// Why, one sentence per cause; bounded.
    pub troubles: Vec<String>,
}
