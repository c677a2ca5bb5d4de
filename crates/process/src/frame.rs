//! What a code address is called, and why a call stack ends where it does. Reports hold them as they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of a code address; what is not known is null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Frame {
    /// The function whose code it is, demangled.
    pub function: Option<String>,
    /// Bytes from the function's first.
    pub offset: Option<u64>,
    /// Source file of the code, as the compiler was given it.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u64>,
    /// Name of the file that the code is mapped from, without its directory; or what else it lies in, in
    /// brackets.
    pub module: Option<String>,
    /// The address in the module's own address space, as `addr2line` takes it.
    pub module_offset: Option<String>,
    /// Functions whose code the compiler put into `function` here, the outermost first.
    pub inlined: Vec<Inlined>,
}

impl Frame {
    /// An address without a name, at this offset in its module.
    #[must_use]
    pub fn nameless(module: String, offset: Option<u64>) -> Self {
        let module_offset = offset.map(|offset| format!("{offset:#x}"));
        Self { module: Some(module), module_offset, ..Self::default() }
    }
}

/// A function that has no frame of its own, because its code stands in its caller's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inlined {
    /// Its name, demangled.
    pub function: String,
    /// Source file of the code.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u64>,
}

/// A file that code is mapped from.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Module {
    /// What frames call it: its name without the directory.
    pub name: String,
    /// Its path, as the process saw it.
    pub path: String,
    /// Its build id, in hexadecimal digits; null where it has none, or could not be read.
    pub build_id: Option<String>,
}

/// Why a call path ends where it does.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PathEnd {
    /// At the start of its thread or process: it is whole.
    Start,
    /// It is deeper than is followed.
    TooDeep,
    /// At code that has no unwind information.
    NoUnwindInfo,
    /// At a part of the stack that could not be read.
    Unreadable,
    /// The stack was not captured in time.
    #[default]
    NotCaptured,
}

impl PathEnd {
    /// Whether the path goes to the start of its thread.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Start)
    }
}
