//! Names that nobody knows, and the known ones that may have been meant.

use std::ops::Range;

use drainprof_process::printable;

use super::{
    error::Fault,
    model::{SECTIONS, Section},
};

/// The known name that is most like this one, if one is alike.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The comparison takes the product of the lengths; no key is this long.
    if name.len() > 64 {
        return None;
    }
    let rated = known.into_iter().map(|known| (strsim::jaro_winkler(name, known), known));
    let best = rated.max_by(|(left, _), (right, _)| left.total_cmp(right));
    best.filter(|(likeness, _)| *likeness > 0.75).map(|(_, known)| known)
}

/// The fault of a name that is no section, or no key of its section.
pub(super) fn unknown(at: Range<usize>, name: &str, section: Option<&'static Section>) -> Fault {
    let shown = printable(name);
    let elsewhere = SECTIONS.iter().find(|section| section.keys.iter().any(|key| key.name == name));
    let Some(section) = section else {
        let sections =
            || SECTIONS.iter().map(|section| section.name).chain(["triggers", "governor"]);
        let fault = Fault::new(at, format!("unknown section `{shown}`"));
        return match (elsewhere, nearest(name, sections())) {
            (Some(section), _) => fault.hint(format!("`{shown}` belongs into [{}]", section.name)),
            (None, Some(near)) => fault.hint(format!("did you mean [{near}]?")),
            (None, None) => {
                let all: Vec<_> = sections().map(|name| format!("[{name}]")).collect();
                fault.hint(format!("there are {}", all.join(", ")))
            }
        };
    };
    let keys = || section.keys.iter().map(|key| key.name);
    let fault = Fault::new(at, format!("unknown key `{shown}` in [{}]", section.name));
    match (nearest(name, keys()), elsewhere) {
        (_, Some(section)) => fault.hint(format!("it belongs into [{}]", section.name)),
        (Some(near), None) => fault.hint(format!("did you mean `{near}`?")),
        (None, None) => {
            let all: Vec<_> = keys().map(|name| format!("`{name}`")).collect();
            fault.hint(format!("there are {}", all.join(", ")))
        }
    }
}
