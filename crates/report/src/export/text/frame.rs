//! Places in words: `handle_request+0x3c server.c:84 (svc)`.

use crate::{Frame, SiteFrame, export::escape};

/// Characters of a function's name in a line of its own, and in a table of granules.
const LONG: usize = 96;
const SHORT: usize = 32;
/// Characters of a file's name and of a module's.
const FILE: usize = 40;
/// Characters of an address.
const ADDRESS: usize = 20;

/// Function, file and line, and module, as far as they are known; else the bare address.
pub(in crate::export) fn long(frame: &Frame, place: Option<&str>) -> Option<String> {
    let Some(mut text) = function(frame, LONG) else { return bare(frame, place) };
    if let Some(source) = source(frame.file.as_deref(), frame.line) {
        text = format!("{text} {source}");
    }
    // What was inlined is where it really happened; the function around it is what has an address.
    for inlined in &frame.inlined {
        let name = escape::shown(&inlined.function, LONG);
        let source = source(inlined.file.as_deref(), inlined.line);
        let source = source.map(|source| format!(" {source}")).unwrap_or_default();
        text = format!("{name}{source}, inlined in {text}");
    }
    if let Some(module) = &frame.module {
        text = format!("{text} ({})", escape::shown(module, FILE));
    }
    Some(text)
}

/// One line per function of a frame of a call path, the innermost first.
pub(in crate::export) fn lines(at: &SiteFrame) -> Vec<String> {
    let frame = &at.frame;
    let mut lines = Vec::new();
    for inlined in frame.inlined.iter().rev() {
        let name = escape::shown(&inlined.function, LONG);
        let source = source(inlined.file.as_deref(), inlined.line);
        let source = source.map(|source| format!(" {source}")).unwrap_or_default();
        lines.push(format!("{name}{source} (inlined)"));
    }
    let outer = Frame { inlined: Vec::new(), ..frame.clone() };
    lines.push(long(&outer, at.address.as_deref()).unwrap_or_else(|| "?".to_owned()));
    lines
}

/// The function alone; else module and offset; else the bare address.
pub(super) fn short(frame: Option<&Frame>, place: Option<&str>) -> Option<String> {
    let Some(frame) = frame else { return bare(&Frame::default(), place) };
    let innermost = frame.inlined.last().map(|inlined| escape::shown(&inlined.function, SHORT));
    innermost.or_else(|| function(frame, SHORT)).or_else(|| bare(frame, place))
}

fn function(frame: &Frame, most: usize) -> Option<String> {
    let function = escape::shown(frame.function.as_deref()?, most);
    let offset = frame.offset.map(|offset| format!("+{offset:#x}")).unwrap_or_default();
    Some(format!("{function}{offset}"))
}

fn source(file: Option<&str>, line: Option<u64>) -> Option<String> {
    let file = file?;
    let name = escape::shown(file.rsplit('/').next().unwrap_or(file), FILE);
    Some(line.map_or_else(|| name.clone(), |line| format!("{name}:{line}")))
}

/// Module and offset, or the address.
fn bare(frame: &Frame, place: Option<&str>) -> Option<String> {
    let module = frame.module.as_ref().map(|module| escape::shown(module, FILE));
    let address = place.map(|place| escape::shown(place, ADDRESS));
    match (module, &frame.module_offset, address) {
        (Some(module), Some(offset), _) => {
            Some(format!("{module}+{}", escape::shown(offset, ADDRESS)))
        }
        (Some(module), None, Some(address)) => Some(format!("{address} ({module})")),
        (_, _, address) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Inlined;

    fn named() -> Frame {
        Frame {
            function: Some("handle_request".into()),
            offset: Some(0x3c),
            file: Some("/src/server.c".into()),
            line: Some(84),
            module: Some("svc".into()),
            module_offset: Some("0x123c".into()),
            inlined: Vec::new(),
        }
    }

    /// Each thing that is not known is left out, down to the bare address.
    #[test]
    fn forms() {
        let place = Some("0x7f00123c");
        let mut frame = named();
        assert_eq!(long(&frame, place).unwrap(), "handle_request+0x3c server.c:84 (svc)");
        assert_eq!(short(Some(&frame), place).unwrap(), "handle_request+0x3c");
        (frame.file, frame.line) = (None, None);
        assert_eq!(long(&frame, place).unwrap(), "handle_request+0x3c (svc)");
        (frame.function, frame.offset) = (None, None);
        assert_eq!(long(&frame, place).unwrap(), "svc+0x123c");
        frame.module_offset = None;
        assert_eq!(short(Some(&frame), place).unwrap(), "0x7f00123c (svc)");
        assert_eq!(long(&Frame::default(), place).unwrap(), "0x7f00123c");
        assert_eq!(long(&Frame::default(), None), None);
    }

    /// What was inlined comes first, the innermost before the others.
    #[test]
    fn inlined_functions() {
        let inlined = |function: &str, line| Inlined {
            function: function.into(),
            file: Some("a/pool.c".into()),
            line,
        };
        let frame = Frame { inlined: vec![inlined("f", Some(3)), inlined("g", None)], ..named() };
        assert_eq!(
            long(&frame, None).unwrap(),
            "g pool.c, inlined in f pool.c:3, inlined in handle_request+0x3c server.c:84 (svc)"
        );
        assert_eq!(short(Some(&frame), None).unwrap(), "g");
    }

    /// A symbol's name cannot act on a terminal, nor fill it.
    #[test]
    fn hostile_names() {
        let evil = "\u{1b}[2J".repeat(1000);
        let frame = Frame {
            function: Some(evil.clone()),
            file: Some(evil.clone()),
            module: Some(evil),
            ..named()
        };
        let text = long(&frame, None).unwrap();
        assert!(!text.contains('\u{1b}') && text.len() < 2000, "{text}");
    }
}
