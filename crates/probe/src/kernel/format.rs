//! The kernel's description of a tracepoint record: which field lies where.
//!
//! The text comes from the kernel, but through a file system that anything may be mounted over, so it is
//! bounded and checked like any other input. Pure.

/// No tracepoint comes near these.
const MAX_TEXT_BYTES: usize = 64 * 1024;
const MAX_FIELDS: usize = 256;
/// A record fits a page; a perf sample cannot be larger than 64 KiB.
const MAX_RECORD_BYTES: u32 = 64 * 1024;

/// A tracepoint's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The event's name.
    pub name: String,
    /// The event's number, by which it is attached to.
    pub id: u32,
    /// Its fields, the common ones included.
    pub fields: Vec<Field>,
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its C type, without the name and without `[N]`.
    pub type_name: String,
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub offset: u32,
    /// Its length in bytes.
    pub size: u32,
    /// Whether it is signed; the kernels disagree about `char`.
    pub signed: bool,
    /// Elements, for a field declared `type name[N]`.
    pub elements: Option<u32>,
}

/// What is wrong with a format text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Longer than any real one.
    #[error("it is longer than {MAX_TEXT_BYTES} bytes")]
    TooLong,
    /// A line with a name, number or field that is not one.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What was expected.
        what: &'static str,
    },
    /// A part that every format has.
    #[error("it has no `{0}`")]
    Lacks(&'static str),
}

impl Format {
    /// Parses the text of an `events/CATEGORY/EVENT/format` file.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(FormatError::TooLong);
        }
        let (mut name, mut id, mut fields) = (None, None, Vec::<Field>::new());
        for (index, line) in text.lines().enumerate() {
            let wrong = |what| FormatError::Line { line: index + 1, what };
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("name:") {
                let rest = rest.trim();
                if !is_identifier(rest) {
                    return Err(wrong("expected an event name"));
                }
                name = Some(rest.to_owned());
            } else if let Some(rest) = line.strip_prefix("ID:") {
                id = Some(rest.trim().parse().map_err(|_| wrong("expected an event number"))?);
            } else if line.starts_with("field:") {
                let field = parse_field(line).map_err(wrong)?;
                if fields.iter().any(|known| known.name == field.name) {
                    return Err(wrong("a field of this name came before"));
                }
                if fields.len() == MAX_FIELDS {
                    return Err(wrong("more fields than any event has"));
                }
                fields.push(field);
            } else if line.starts_with("print fmt:") {
                break;
            }
        }
        if fields.is_empty() {
            return Err(FormatError::Lacks("field:"));
        }
        Ok(Self {
            name: name.ok_or(FormatError::Lacks("name:"))?,
            id: id.ok_or(FormatError::Lacks("ID:"))?,
            fields,
        })
    }

    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// Parses `field:TYPE NAME[N]; offset:O; size:S; signed:F;`.
fn parse_field(line: &str) -> Result<Field, &'static str> {
    let (mut declaration, mut offset, mut size, mut signed) = (None, None, None, false);
    for part in line.split(';') {
        let Some((key, value)) = part.trim().split_once(':') else { continue };
        let number = || value.parse::<u32>().ok().filter(|&n| n <= MAX_RECORD_BYTES);
        match key {
            "field" => declaration = Some(value.trim()),
            "offset" => offset = Some(number().ok_or("expected an offset within a record")?),
            "size" => size = Some(number().ok_or("expected a size within a record")?),
            "signed" => {
                signed = match value {
                    "0" => false,
                    "1" => true,
                    _ => return Err("expected signed:0 or signed:1"),
                }
            }
            _ => {}
        }
    }
    let offset = offset.ok_or("a field without an offset")?;
    let size = size.ok_or("a field without a size")?;
    if offset + size > MAX_RECORD_BYTES {
        return Err("a field that ends beyond its record");
    }
    let (type_name, name, elements) =
        parse_declaration(declaration.ok_or("expected a declaration")?)?;
    Ok(Field { type_name, name, offset, size, signed, elements })
}

fn parse_declaration(text: &str) -> Result<(String, String, Option<u32>), &'static str> {
    // `char comm[16]` is an array; in `__data_loc char[] filename` the brackets belong to the type.
    let (text, elements) = match text.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
        // The kernel writes some lengths as the expression they are in its source.
        Some((rest, count)) => (rest.trim_end(), count.parse().ok()),
        None => (text, None),
    };
    let begin = text.rfind(|c: char| !is_identifier_char(c)).map_or(0, |at| at + 1);
    let (type_name, name) = text.split_at_checked(begin).ok_or("expected a declaration")?;
    if !is_identifier(name) || type_name.trim().is_empty() {
        return Err("expected a type and a name");
    }
    Ok((type_name.trim().to_owned(), name.to_owned(), elements))
}

fn is_identifier_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether a word can be the name of an event, a category or a field, and so is no path either.
pub(super) fn is_identifier(word: &str) -> bool {
    (1..=128).contains(&word.len()) && word.chars().all(is_identifier_char)
}
