//! Drafts a profile from the names, and where there are any the prototypes, of an object's functions.
//!
//! In running order: `words` reads what a name says, `group` finds functions that belong to one allocator,
//! `roles` decides what each of them means and where its values stand, `write` makes the text. Pure; the
//! caller (`observe::draft`) lists the functions. A draft is a beginning: what names do not show stands in its comments,
//! for a person to decide.

mod group;
mod members;
mod roles;
mod shown;
#[cfg(test)]
mod tests;
mod words;
mod write;

pub use members::Member;
pub use words::{is_interesting, says_something};

use super::{Kind, Level, Role, Source, parse};

/// Most functions that a draft probes.
pub const MAX_PROBES: usize = 40;

/// A function of the object.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its symbol, mangled where it is; hostile.
    pub symbol: String,
    /// Its name as people write it, without parameters; hostile.
    pub shown: String,
    /// How a profile names it (`at`); hostile.
    pub at: String,
    /// Its address in the file's own address space.
    pub address: u64,
    /// Why it cannot be probed, or should not be; `None`: it can.
    pub unfit: Option<String>,
    /// Other objects can see it: it is there in a stripped build, too.
    pub exported: bool,
    /// What the debug information says of it.
    pub signature: Option<Signature>,
    /// Addresses that it calls or jumps to, directly or through the object's linkage table.
    pub calls: Vec<u64>,
}

/// A function's prototype.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// What it returns; `None`: nothing.
    pub returns: Option<Type>,
}

/// A parameter.
#[derive(Clone, Debug, Default)]
pub struct Parameter {
    /// Its name; may be empty.
    pub name: String,
    /// Its type.
    pub kind: Type,
}

/// A type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Type {
    /// As the source names it.
    pub name: String,
    /// What is behind typedefs and pointers; empty for `void`.
    pub base: String,
    /// How many pointers lead there.
    pub pointers: u8,
    /// It is a record.
    pub record: bool,
}

/// What is to be drafted.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The object's file name, for comments.
    pub object: &'a str,
    /// The kind that is claimed. Members that are freed one by one may outlive their granule, or not: `bulk` claims least.
    pub kind: Kind,
    /// The profile's name; made from the object's or the prefix where there is none.
    pub name: Option<&'a str>,
    /// Only functions whose names begin with this.
    pub prefix: Option<&'a str>,
    /// Why there are no prototypes; `None`: there are.
    pub without_prototypes: Option<&'a str>,
    /// Names of functions that exist only inlined, as far as the debug information says.
    pub inlined_only: &'a [String],
    /// Integers in the records that [`granule_records`] names.
    pub members: &'a [Member],
    /// Whether a granule's own live count decides its close: then the profile has the level `boundary`.
    pub live: bool,
}

/// A draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its text; it parses.
    pub text: String,
    /// How many functions it probes.
    pub probes: usize,
    /// Whether it follows objects from alloc to free: what the kind `drain` needs.
    pub follows_objects: bool,
    /// The levels that it offers.
    pub levels: Vec<&'static str>,
    /// The members of granules that it reads for their live counts and their bytes: expressions.
    pub reads: Vec<String>,
}

/// Why there is no draft.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// No functions that open and close anything.
    #[error(
        "{object} has no functions that look like those of an allocator with granules{}: among {functions} \
         names that say what they do, none opens and closes the same thing{}", among(.prefix.as_deref()),
        besides(.others)
    )]
    Nothing {
        /// The object.
        object: String,
        /// The prefix that was asked for.
        prefix: Option<String>,
        /// How many functions were looked at.
        functions: usize,
        /// Groups that lack something.
        others: Vec<String>,
    },
    /// The draft does not parse: a defect here.
    #[error("the draft for {object} is not a profile ({why}); please report it")]
    Defect {
        /// The object.
        object: String,
        /// What the parser said.
        why: String,
    },
}

fn among(asked: Option<&str>) -> String {
    asked.map(|prefix| format!(" among those that begin with `{prefix}`")).unwrap_or_default()
}

fn besides(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(". Functions that allocate or free: {}", names.join(", "))
}

/// The records that closes of the best group take as their granule: as their prototypes name them, with what the names
/// of their functions say of namespaces.
#[must_use]
pub fn granule_records(functions: &[Function], prefix: Option<&str>) -> Vec<(String, String)> {
    let groups = group::groups(functions, prefix);
    groups.first().filter(|group| group.is_whole()).map(roles::granule_records).unwrap_or_default()
}

/// Drafts a profile.
pub fn draft(request: &Request<'_>, functions: &[Function]) -> Result<Draft, DraftError> {
    let groups = group::groups(functions, request.prefix);
    let Some(best) = groups.first().filter(|group| group.is_whole()) else {
        return Err(DraftError::Nothing {
            object: request.object.to_owned(),
            prefix: request.prefix.map(ToOwned::to_owned),
            functions: functions.len(),
            others: group::loose(functions, request.prefix),
        });
    };
    let mut chosen = roles::choose(best);
    let reads = roles::read_members(&mut chosen, request);
    let text = write::text(request, best, &chosen, &groups[1..]);
    let profile = match parse(&text, &Source::File("draft.toml".into())) {
        Ok(profile) => profile,
        // Names of types are whatever a compiler writes: an expression may not take them.
        Err(_) if !reads.is_empty() => {
            return draft(&Request { members: &[], ..*request }, functions);
        }
        Err(error) => {
            let why = error.to_string();
            return Err(DraftError::Defect { object: request.object.to_owned(), why });
        }
    };
    let levels: Vec<_> = super::levels(&profile).into_iter().map(Level::name).collect();
    let frees = profile.probes.iter().any(|probe| probe.role == Role::Free);
    Ok(Draft {
        text: write::with_levels(&text, &levels),
        probes: profile.probes.len(),
        reads,
        follows_objects: frees && levels.contains(&Level::Objects.name()),
        levels,
    })
}
