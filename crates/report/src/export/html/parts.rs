//! What all pages are made of: facts, tables, bars.

use maud::{Markup, Render, html};

use super::words;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its head: a word of the help where it is one.
    pub name: &'static str,
    /// Whether numbers stand in it.
    pub number: bool,
}

/// A column of text.
#[must_use]
pub const fn text(name: &'static str) -> Column {
    Column { name, number: false }
}

/// A column of numbers.
#[must_use]
pub const fn number(name: &'static str) -> Column {
    Column { name, number: true }
}

fn class(column: &Column) -> Option<&'static str> {
    column.number.then_some("n")
}

/// A table that scrolls by itself where it is wider than the page. The first cell of a row is its head.
#[must_use]
pub fn table(caption: &str, columns: &[Column], rows: &[Vec<Markup>]) -> Markup {
    html! {
        @if !rows.is_empty() {
            div.scroll tabindex="0" role="region" aria-label=(caption) {
                table {
                    caption { (caption) }
                    thead { tr {
                        @for column in columns {
                            th class=[class(column)] scope="col" { (words::word(column.name)) }
                        }
                    } }
                    tbody {
                        @for row in rows { tr {
                            @for (index, (cell, column)) in row.iter().zip(columns).enumerate() {
                                @if index == 0 { th class=[class(column)] scope="row" { (cell) } }
                                @else { td class=[class(column)] { (cell) } }
                            }
                        } }
                    }
                }
            }
        }
    }
}

/// Some text as a cell.
#[must_use]
pub fn cell(text: impl Render) -> Markup {
    html! { (text) }
}

/// A fact: a word, its value, and what the reader may want to know besides.
#[derive(Debug)]
pub struct Fact {
    /// The word.
    pub name: &'static str,
    /// Its value.
    pub value: Markup,
    /// More, in smaller letters.
    pub more: String,
}

/// A fact without more.
#[must_use]
pub fn fact(name: &'static str, value: impl Render) -> Fact {
    Fact { name, value: cell(value), more: String::new() }
}

impl Fact {
    /// With more.
    #[must_use]
    pub fn and(self, more: impl Into<String>) -> Self {
        Self { more: more.into(), ..self }
    }
}

/// Facts side by side.
#[must_use]
pub fn facts(facts: &[Fact]) -> Markup {
    html! {
        dl.facts {
            @for fact in facts {
                div {
                    dt { (words::word(fact.name)) }
                    dd { (fact.value) @if !fact.more.is_empty() { small { (fact.more) } } }
                }
            }
        }
    }
}

/// Parts of a whole as a bar, with their names below; parts of nothing are left out.
#[must_use]
pub fn bar(label: &str, parts: &[(String, u64)], shown: &dyn Fn(u64) -> String) -> Markup {
    let all = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.1));
    let parts: Vec<_> = parts.iter().filter(|part| part.1 > 0).collect();
    let mut from = 0.0;
    let mut place = |value: u64| {
        let share = value as f64 / all as f64 * 100.0;
        let place = (format!("{from:.3}%"), format!("{share:.3}%"));
        from += share;
        place
    };
    html! {
        @if all > 0 {
            svg.bar role="img" aria-label=(label) {
                @for (index, part) in parts.iter().enumerate() {
                    @let (x, width) = place(part.1);
                    rect.{ "p" (index.min(5)) } x=(x) width=(width) height="100%" {
                        title { (part.0) ": " (shown(part.1)) }
                    }
                }
            }
            p {
                small {
                    @for (index, part) in parts.iter().enumerate() {
                        @if index > 0 { " · " }
                        svg.swatch aria-hidden="true" { rect.{ "p" (index.min(5)) } width="100%" height="100%" {} }
                        " " (part.0) " " (shown(part.1))
                    }
                    " · together " (shown(all))
                }
            }
        }
    }
}
