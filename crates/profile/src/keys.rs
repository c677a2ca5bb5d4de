//! The keys of a `[[probe]]` table: one table of them.
//!
//! Parsing, checking, compiling and error texts follow from it, and a test holds the table in `docs/profiles.md`
//! against it. A probe keeps its expressions by key, so nothing else lists keys.

use std::fmt::{self, Display, Formatter};

use drainprof_common::spec::{Role, flags, value};
use serde::Deserialize;

/// A key of a `[[probe]]` table; values are computed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
pub enum Key {
    /// What a hit means.
    Role,
    /// Where the probe goes.
    At,
    /// The group of probes that stand for one another.
    OneOf,
    /// The versions of which one must hold.
    Version,
    /// When the expressions are computed.
    Phase,
    /// Which allocator instance.
    Instance,
    /// Which granule.
    Granule,
    /// Which object; for a realloc the old one.
    Object,
    /// For a realloc the object's id afterwards.
    NewObject,
    /// For a move the granule's id afterwards.
    NewGranule,
    /// The object's size.
    Size,
    /// Bytes that the granule retains.
    Bytes,
    /// Objects live now, read from the target's memory.
    Live,
    /// The parent granule.
    Parent,
    /// Address of the label's text; profiles write `str(address)`.
    Label,
    /// Only hits for which this holds count.
    When,
    /// Only the calling thread knows the granule before the call returns.
    Unshared,
}

/// What holds of a key.
struct Row {
    key: Key,
    name: &'static str,
    /// The roles that use it.
    roles: &'static [Role],
    /// The roles that cannot do without it.
    required: &'static [Role],
    holds: Holds,
}

/// What a key's value is.
#[derive(Clone, Copy)]
enum Holds {
    /// No expression, but something about the probe itself.
    Setting,
    /// The expression that guards all values.
    Guard,
    /// The expression of one value of the spec.
    Value {
        index: u8,
        /// The flag that says that it is computed; 0: none.
        flag: u32,
        /// It is `ret` where the profile says nothing.
        or_ret: bool,
    },
}

const ALL: &[Role] = &Role::ALL;
const WITH_GRANULE: &[Role] = &[
    Role::Open,
    Role::Close,
    Role::Reset,
    Role::Alloc,
    Role::Free,
    Role::Realloc,
    Role::Reparent,
    Role::Migrate,
    Role::Label,
    Role::Move,
];
const OF_ONE_GRANULE: &[Role] =
    &[Role::Open, Role::Close, Role::Reset, Role::Reparent, Role::Migrate, Role::Label, Role::Move];
const OF_OBJECTS: &[Role] = &[Role::Alloc, Role::Free, Role::Realloc];

static TABLE: [Row; 17] = [
    setting(Key::Role, "role", ALL),
    setting(Key::At, "at", ALL),
    setting(Key::OneOf, "one_of", ALL),
    setting(Key::Version, "version", ALL),
    setting(Key::Phase, "phase", ALL),
    computed(Key::Instance, "instance", value::INSTANCE, 0).on(ALL),
    computed(Key::Granule, "granule", value::GRANULE, flags::HAS_GRANULE)
        .on(WITH_GRANULE)
        .required_on(OF_ONE_GRANULE),
    computed(Key::Object, "object", value::OBJECT, flags::HAS_OBJECT)
        .on(OF_OBJECTS)
        .required_on(&[Role::Realloc]),
    computed(Key::NewObject, "new_object", value::NEW_OBJECT, 0).or_ret().on(&[Role::Realloc]),
    computed(Key::NewGranule, "new_granule", value::NEW_OBJECT, 0).or_ret().on(&[Role::Move]),
    computed(Key::Size, "size", value::SIZE, flags::HAS_SIZE).on(OF_OBJECTS),
    computed(Key::Bytes, "bytes", value::BYTES, flags::HAS_BYTES).on(&[
        Role::Open,
        Role::Close,
        Role::Reset,
        Role::Move,
    ]),
    computed(Key::Live, "live", value::LIVE, flags::HAS_LIVE).on(&[Role::Close, Role::Reset]),
    computed(Key::Parent, "parent", value::PARENT, flags::HAS_PARENT)
        .on(&[Role::Open, Role::Reparent, Role::Move])
        .required_on(&[Role::Reparent]),
    computed(Key::Label, "label", value::LABEL, flags::HAS_LABEL)
        .on(&[Role::Open, Role::Label, Role::Move])
        .required_on(&[Role::Label]),
    Row { holds: Holds::Guard, ..setting(Key::When, "when", ALL) },
    setting(Key::Unshared, "unshared", &[Role::Open]),
];

// A key's row is found by its number.
const _: () = {
    let mut at = 0;
    while at < TABLE.len() {
        assert!(TABLE[at].key as usize == at, "the table has the keys in their order");
        at += 1;
    }
};

const fn setting(key: Key, name: &'static str, roles: &'static [Role]) -> Row {
    Row { key, name, roles, required: &[], holds: Holds::Setting }
}

const fn computed(key: Key, name: &'static str, index: u8, flag: u32) -> Row {
    Row { holds: Holds::Value { index, flag, or_ret: false }, ..setting(key, name, &[]) }
}

impl Row {
    const fn on(self, roles: &'static [Role]) -> Self {
        Self { roles, ..self }
    }

    const fn required_on(self, required: &'static [Role]) -> Self {
        Self { required, ..self }
    }

    const fn or_ret(self) -> Self {
        let Holds::Value { index, flag, .. } = self.holds else { return self };
        Self { holds: Holds::Value { index, flag, or_ret: true }, ..self }
    }
}

impl Key {
    /// All keys.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.key)
    }

    /// Those whose expressions are values of the spec, in the order in which they are computed.
    pub(super) fn values() -> impl Iterator<Item = Self> {
        Self::all().filter(|key| key.value().is_some())
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// How profiles write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether its value is an expression.
    pub(super) fn is_expression(self) -> bool {
        !matches!(self.row().holds, Holds::Setting)
    }

    /// Whether a role uses it.
    #[must_use]
    pub fn is_used_by(self, role: Role) -> bool {
        self.row().roles.contains(&role)
    }

    /// Whether a role cannot do without it.
    pub(super) fn is_required_by(self, role: Role) -> bool {
        self.row().required.contains(&role)
    }

    /// The value of the spec that its expression computes.
    pub(super) fn value(self) -> Option<u8> {
        match self.row().holds {
            Holds::Value { index, .. } => Some(index),
            Holds::Setting | Holds::Guard => None,
        }
    }

    /// The flag of the spec that says that the value is computed; 0: none.
    pub(super) fn flag(self) -> u32 {
        match self.row().holds {
            Holds::Value { flag, .. } => flag,
            Holds::Setting | Holds::Guard => 0,
        }
    }

    /// Whether its value is `ret` where the profile says nothing.
    pub(super) fn defaults_to_ret(self) -> bool {
        matches!(self.row().holds, Holds::Value { or_ret: true, .. })
    }
}

impl Display for Key {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
