//! A call path as folded text: names of functions, the outermost first, joined by `;`.
//!
//! The names come from a target, so what would mean something to a reader of folded stacks (or to a terminal)
//! is escaped. Called by `weigh`, and for single names by `pprof`.

use std::iter;

use super::escape;
use crate::{PathEnd, Site, SiteFrame};

/// Characters of a name; the longest names of C++ are longer, and differ before that.
const NAME: usize = 512;
/// Frames of a stack; live ones have 128 at most, without those that were inlined.
const FRAMES: usize = 1024;

/// What stands below the outermost function.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Root<'a> {
    pub(super) process: Option<&'a String>,
    pub(super) profile: Option<&'a String>,
}

/// The stack of a site, without its number.
pub(super) fn stack(root: Root<'_>, site: &Site) -> String {
    frames(root, site.path_end, &site.frames)
}

/// A call path's frames, the outermost first.
pub(super) fn frames(root: Root<'_>, end: PathEnd, path: &[SiteFrame]) -> String {
    let root = [root.process, root.profile].into_iter().flatten().cloned();
    // Where the callers are cut, our own words stand: they need no change.
    let frames = root.chain(names(end, path)).map(|name| folded(&name));
    frames.take(FRAMES).collect::<Vec<_>>().join(";")
}

/// The names of a call path, the outermost function first, as they are; at most so many as a stack has frames.
pub(super) fn names(end: PathEnd, path: &[SiteFrame]) -> impl Iterator<Item = String> + '_ {
    let frames = path.iter().rev().flat_map(|frame| {
        let inlined = frame.frame.inlined.iter().map(|inlined| inlined.function.clone());
        iter::once(outer(frame)).chain(inlined)
    });
    cut(end).map(str::to_owned).into_iter().chain(frames).take(FRAMES)
}

/// What stands where the callers of a path that is cut would stand.
pub(super) const fn cut(end: PathEnd) -> Option<&'static str> {
    match end {
        PathEnd::Start => None,
        PathEnd::TooDeep => Some("[cut: too deep]"),
        PathEnd::NoUnwindInfo => Some("[cut: no unwind information]"),
        PathEnd::Unreadable => Some("[cut: unreadable stack]"),
        PathEnd::NotCaptured => Some("[cut: not captured]"),
    }
}

/// The function that has a frame; else module and offset; else the address.
pub(super) fn outer(at: &SiteFrame) -> String {
    let frame = &at.frame;
    match (&frame.function, &frame.module, &frame.module_offset) {
        (Some(function), ..) => function.clone(),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        (None, Some(module), None) => format!("[{module}]"),
        (None, None, _) => at.address.clone().unwrap_or_else(|| "[unknown]".to_owned()),
    }
}

/// A name that any reader of folded stacks takes for one frame: a `;` would end it, a number at its end
/// would be taken for a count, and a `#` at its begin for a comment.
pub(super) fn folded(name: &str) -> String {
    let name = escape::shown(name, NAME).replace(';', ":");
    let name = name.trim();
    if name.is_empty() {
        return "[unknown]".to_owned();
    }
    let name = if name.starts_with('#') { format!("_{name}") } else { name.to_owned() };
    match name.rsplit_once(char::is_whitespace) {
        Some((rest, number)) if number.parse::<f64>().is_ok() => {
            format!("{}_{number}", rest.trim_end())
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Frame, Inlined};

    fn named(function: &str) -> SiteFrame {
        let frame = Frame { function: Some(function.to_owned()), ..Frame::default() };
        SiteFrame { address: Some("0x10".to_owned()), frame }
    }

    /// The outermost function comes first, and what was inlined follows the function that it stands in.
    #[test]
    fn order() {
        let inlined =
            |function: &str| Inlined { function: function.to_owned(), ..Inlined::default() };
        let mut middle = named("b");
        middle.frame.inlined = vec![inlined("b1"), inlined("b2")];
        let frames = vec![named("c"), middle, named("a")];
        let mut site = Site { frames, path_end: PathEnd::Start, ..Site::default() };
        assert_eq!(stack(Root::default(), &site), "a;b;b1;b2;c");
        site.path_end = PathEnd::TooDeep;
        let (process, profile) = ("svc (1)".to_owned(), "p".to_owned());
        let root = Root { process: Some(&process), profile: Some(&profile) };
        assert_eq!(stack(root, &site), "svc (1);p;[cut: too deep];a;b;b1;b2;c");
    }

    /// What has no name is reported by module and offset, by address, or as unknown.
    #[test]
    fn without_a_name() {
        let mut frame = SiteFrame { address: Some("0x10".to_owned()), frame: Frame::default() };
        assert_eq!(outer(&frame), "0x10");
        frame.frame.module = Some("libx.so".to_owned());
        assert_eq!(outer(&frame), "[libx.so]");
        frame.frame.module_offset = Some("0x7".to_owned());
        assert_eq!(outer(&frame), "libx.so+0x7");
        assert_eq!(outer(&SiteFrame::default()), "[unknown]");
    }

    /// Names that would mean something else to a reader of folded stacks are changed so that they do not.
    #[test]
    fn hostile_names() {
        assert_eq!(folded("f<[u8; 4]>"), "f<[u8: 4]>");
        assert_eq!(folded("a\nb 3"), "a\\nb_3");
        assert_eq!(folded("# f"), "_# f");
        assert_eq!(folded(" \u{a0}"), "[unknown]");
        assert_eq!(folded("f 1e3"), "f_1e3");
        assert_eq!(folded("operator new"), "operator new");
    }

    proptest! {
        /// Whatever a name is, it is one frame of one line, and its end is no number.
        #[test]
        fn one_frame(name in any::<String>()) {
            let text = folded(&name);
            prop_assert!(!text.is_empty() && !text.contains([';', '\n', '\r']));
            prop_assert_eq!(text.trim(), &text);
            let last = text.rsplit_once(char::is_whitespace);
            prop_assert!(last.is_none_or(|(_, last)| last.parse::<f64>().is_err()), "{}", text);
        }
    }
}
