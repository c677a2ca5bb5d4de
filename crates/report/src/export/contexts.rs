//! PostgreSQL's memory contexts and servers' pools in a census, for people: added up by the path of names that leads to them.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    io::{self, Write},
};

use drainprof_census::{Context, ContextKind};

use super::{Style, escape::shown, table::Rows};
use crate::units;

/// Characters of a path.
const PATH: usize = 60;

#[derive(Default)]
struct Sum {
    contexts: u64,
    total: u64,
    free: u64,
}

/// Writes the contexts, the most bytes first.
pub(super) fn write_contexts(
    contexts: &[Context],
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut sums: BTreeMap<(&str, Option<&str>), Sum> = BTreeMap::new();
    let paths = paths(contexts);
    let mut all = Sum::default();
    for (context, path) in contexts.iter().zip(&paths) {
        for sum in [&mut all, sums.entry((path, context.ident.as_deref())).or_default()] {
            sum.contexts += 1;
            sum.total = sum.total.saturating_add(context.total_bytes);
            sum.free = sum.free.saturating_add(context.free_bytes.unwrap_or_default());
        }
    }
    let (what, column) = if contexts.iter().any(|own| own.kind == ContextKind::Pool) {
        (units::counted(all.contexts, "pool", "pools"), "pools")
    } else {
        let number = units::counted(all.contexts, "memory context", "memory contexts");
        (format!("{number} of PostgreSQL"), "contexts")
    };
    writeln!(
        out,
        "\n{what}: {}, of these {} free",
        units::bytes(all.total),
        units::bytes(all.free),
    )?;
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| Reverse(sum.total));
    let mut rows = Rows::new(&["name", column, "bytes", "free"], 1, style.width);
    for ((path, ident), sum) in sums.into_iter().take(style.top) {
        let ident = ident.map(|ident| format!(": {}", shown(ident, PATH))).unwrap_or_default();
        rows.push(vec![
            format!("{}{ident}", end_of(path)),
            sum.contexts.to_string(),
            units::bytes(sum.total),
            units::bytes(sum.free),
        ]);
    }
    rows.lines("  ").iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The names that lead to each context, without the root's, as long as a line can show them.
fn paths(contexts: &[Context]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::with_capacity(contexts.len());
    for context in contexts {
        // A parent comes before its children.
        let parent = context.parent.and_then(|parent| usize::try_from(parent).ok());
        let above = parent.filter(|parent| *parent > 0).and_then(|parent| paths.get(parent));
        let path = match above {
            Some(above) => format!("{}/{}", end_of(above), context.name),
            None => context.name.clone(),
        };
        paths.push(path);
    }
    paths
}

/// The end of a path, safe to show.
fn end_of(path: &str) -> String {
    let safe = shown(path, usize::MAX);
    match safe.chars().count().checked_sub(PATH) {
        None | Some(0) => safe,
        Some(over) => format!("…{}", safe.chars().skip(over + 1).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, parent: Option<u64>, total_bytes: u64) -> Context {
        Context {
            name: name.to_owned(),
            parent,
            total_bytes,
            free_bytes: Some(total_bytes / 2),
            ..Context::default()
        }
    }

    /// Contexts of one path are one row; idents, where they are known, are rows of their own.
    #[test]
    fn rows() {
        let mut contexts = vec![
            context("TopMemoryContext", None, 1000),
            context("CacheMemoryContext", Some(0), 4096),
            context("index info", Some(1), 2048),
            context("index info", Some(1), 3072),
            context(&"long ".repeat(30), Some(2), 10),
        ];
        let text = |contexts: &[Context]| {
            let mut out = Vec::new();
            write_contexts(contexts, &Style::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let page = text(&contexts);
        let row = |name: &str| page.lines().find(|line| line.trim_start().starts_with(name));
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let info = words(row("CacheMemoryContext/index info").expect("the row"));
        assert_eq!(info[2..], ["2", "5.0", "KiB", "2.5", "KiB"], "{page}");
        assert!(row("…").is_some_and(|line| line.contains("long long")), "{page}");
        contexts[3].ident = Some("select '\u{1b}[31m'".to_owned());
        let page = text(&contexts);
        assert!(page.contains("CacheMemoryContext/index info: select '\\u{1b}[31m'"), "{page}");
    }
}
