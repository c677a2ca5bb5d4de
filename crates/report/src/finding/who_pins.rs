//! `who_pins`: the call path that pins most, in one sentence.

use super::{Case, Found, Rule, Subject};
use crate::{Severity, Site, SiteFrame, units};

pub(super) const RULE: Rule = Rule { code: "who_pins", check };

/// Characters of a function's name.
const NAME: usize = 80;

fn check(case: &Case<'_>) -> Vec<Found> {
    case.subjects().filter_map(|subject| judge(&subject)).collect()
}

fn judge(subject: &Subject<'_>) -> Option<Found> {
    let site = subject.shown.sites.as_ref()?.first().filter(|site| site.granules_pinned > 0)?;
    let share = units::percent(site.share?);
    let held = match site.retained_bytes {
        Some(bytes) => format!(" ({})", units::bytes(bytes)),
        None => String::new(),
    };
    let retained = if subject.shown.destroyed {
        "what they retained went with the allocator".to_owned()
    } else if subject.shown.retention.is_cut() {
        "what it retains now was not seen".to_owned()
    } else {
        format!("{} granules{held} are retained by it now", site.granules_retained)
    };
    let mut message = format!(
        "{share} of the pinned closes are pinned by {}: {} granules by {} objects, {retained}",
        path(site),
        site.granules_pinned,
        site.pins
    );
    message += &lateness(subject, site);
    Some(subject.found(RULE.code, Severity::Warning, message))
}

/// How late its pins are freed; in lifetimes of its granules where these are known.
fn lateness(subject: &Subject<'_>, site: &Site) -> String {
    let freed = site.pins.saturating_sub(site.pins_live);
    let Some(delay) = site.pin_delay_seconds.p50.filter(|_| freed > 0) else {
        return "; none of its pins was freed".to_owned();
    };
    let places = &subject.shown.lifetimes.places;
    let lifetime = places.iter().find(|place| place.place == site.opened_at.place);
    let times = match lifetime.and_then(|place| place.p50).filter(|&lifetime| lifetime > 0.0) {
        Some(lifetime) => format!(", {:.1}× the granules' lifetime", delay / lifetime),
        None => String::new(),
    };
    let part = if site.pins_live > 0 {
        format!("{freed} of its pins were freed, ")
    } else {
        "its pins were freed ".to_owned()
    };
    format!("; {part}{} after the close (median){times}", units::duration(delay))
}

/// The allocating function and its caller, the caller first.
pub(crate) fn path(site: &Site) -> String {
    frames(&site.frames)
}

/// The same of any frames, the innermost first.
pub(crate) fn frames(frames: &[SiteFrame]) -> String {
    let mut names: Vec<String> = Vec::new();
    for frame in frames {
        for inlined in frame.frame.inlined.iter().rev() {
            let (file, first) = (inlined.file.as_deref(), names.is_empty());
            names.push(name(&inlined.function, file, inlined.line, first));
        }
        names.push(outer(frame, names.is_empty()));
        if names.len() >= 2 {
            break;
        }
    }
    names.truncate(2);
    names.reverse();
    if names.is_empty() {
        "a call path that was not captured".to_owned()
    } else {
        names.join(" → ")
    }
}

/// The function that has the frame; without a name what there is instead.
fn outer(frame: &SiteFrame, with_line: bool) -> String {
    let named = &frame.frame;
    match (&named.function, &named.module, &named.module_offset) {
        (Some(function), ..) => name(function, named.file.as_deref(), named.line, with_line),
        (None, Some(module), Some(offset)) => format!("{}+{offset}", cut(module)),
        _ => frame.address.clone().unwrap_or_else(|| "?".to_owned()),
    }
}

fn name(function: &str, file: Option<&str>, line: Option<u64>, with_line: bool) -> String {
    let function = cut(function);
    match (file, line) {
        (Some(file), Some(line)) if with_line => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{function} ({}:{line})", cut(file))
        }
        _ => function,
    }
}

fn cut(text: &str) -> String {
    if text.chars().count() <= NAME {
        return text.to_owned();
    }
    text.chars().take(NAME).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    fn message(change: impl FnOnce(&mut crate::facts::SiteFacts)) -> String {
        let mut snapshot = samples::stacks_snapshot();
        // The one that pins most.
        change(&mut snapshot.targets[0].allocators[0].sites[3]);
        reported(&RULE, &snapshot)[0].message.clone()
    }

    /// The path is named by the allocating function and its caller, inlined ones too, with the numbers.
    #[test]
    fn names_the_path() {
        assert_eq!(
            message(|_| {}),
            "80.8 % of the pinned closes are pinned by log_in → make_session (session.c:31): 2000 \
             granules by 2000 objects, 2000 granules (7.8 MiB) are retained by it now; none of its \
             pins was freed"
        );
    }

    /// How late pins are freed is reported as a time and in lifetimes of the granules; unknown names are offsets.
    #[test]
    fn lateness_in_lifetimes() {
        let late = message(|site| {
            (0..100).for_each(|_| site.delays.record(51_200_000));
            site.pins_live -= 100;
        });
        assert!(late.contains("; 100 of its pins were freed, "), "{late}");
        assert!(late.contains("after the close (median), 3.2× the granules' lifetime"), "{late}");
        let mut snapshot = samples::stacks_snapshot();
        snapshot.targets[0].allocators[0].sites.drain(2..);
        let message = reported(&RULE, &snapshot)[0].message.clone();
        assert!(message.contains("pinned by libplugin.so+0x777: 50 granules"), "{message}");
        assert!(message.contains("; its pins were freed "), "{message}");
    }

    /// A destroyed allocator retains nothing, and neither do its sites.
    #[test]
    fn destroyed_retains_nothing() {
        let mut snapshot = samples::stacks_snapshot();
        let facts = &mut snapshot.targets[0].allocators[0];
        facts.destroyed = true;
        (facts.retained_granules, facts.retained_bytes) = (0, 0);
        facts.sites.iter_mut().for_each(crate::facts::SiteFacts::end_with_instance);
        let message = reported(&RULE, &snapshot)[0].message.clone();
        assert!(
            message.contains("2000 objects, what they retained went with the allocator"),
            "{message}"
        );
    }

    /// Without pins, without paths, and at other levels there is nothing to say.
    #[test]
    fn silent_without_pins() {
        assert!(reported(&RULE, &samples::drain_snapshot()).is_empty());
        assert!(reported(&RULE, &samples::holders_snapshot()).is_empty());
        let mut snapshot = samples::stacks_snapshot();
        snapshot.targets[0].allocators[0].sites.truncate(1);
        assert!(reported(&RULE, &snapshot).is_empty());
    }
}
