//! The configuration as text: the default file, what is in force, and the reference page.

use std::{collections::BTreeMap, fmt::Write as _};

use textwrap::{Options, WordSplitter::NoHyphenation, fill};

use super::{
    difference::find,
    load::{Loaded, Origin},
    model::Config,
    schema::{Applies, Node},
};

/// Width of comments in the default file.
const WIDTH: usize = 100;

/// The default file: every key with its meaning and its default. Read again, it gives `Config::default()`.
#[must_use]
pub fn default_file() -> String {
    let config = Config::default();
    let mut page = String::from(
        "# drainprof's configuration. These are the defaults. `drainprof config check` checks changes,\n\
         # `systemctl reload drainprof` applies them. Files in conf.d/ are read after this one, and win key by key.\n",
    );
    let values = config.table();
    for (path, node) in Node::all() {
        let name = path.rsplit('.').next().unwrap_or(&path);
        if node.is_section() {
            page.push('\n');
            comment(&mut page, &node.about());
            let _ = writeln!(page, "[{path}]");
            continue;
        }
        comment(
            &mut page,
            &match node.limit() {
                Some(limit) => format!("{} ({limit})", node.about()),
                None => node.about(),
            },
        );
        // An example stands where the default does not show how a value looks.
        if let Some(example) = node.example() {
            let _ = writeln!(page, "# {name} = {example}");
        }
        if let Some(value) = find(&values, &path) {
            let _ = writeln!(page, "{name} = {value}");
        }
    }
    page
}

/// Appends a text as comment lines.
fn comment(page: &mut String, text: &str) {
    let options = Options::new(WIDTH).initial_indent("# ").subsequent_indent("# ");
    let _ = writeln!(page, "{}", fill(text, options.word_splitter(NoHyphenation)));
}

/// The values in force, as a file with the same meaning; a comment names the source of each that is set.
#[must_use]
pub fn show(loaded: &Loaded) -> String {
    let mut page = String::new();
    for file in &loaded.files {
        let _ = writeln!(page, "# read: {}", file.display());
    }
    let values = loaded.config.table();
    for (path, node) in Node::all() {
        let name = path.rsplit('.').next().unwrap_or(&path);
        if node.is_section() {
            let _ = writeln!(page, "{}[{path}]", if page.is_empty() { "" } else { "\n" });
        } else if let Some(value) = find(&values, &path) {
            let _ = writeln!(page, "{name} = {value}{}", from(&loaded.origins, &path));
        } else {
            let _ = writeln!(page, "# {name} is not set");
        }
    }
    page
}

fn from(origins: &BTreeMap<String, Origin>, key: &str) -> String {
    match origins.get(key) {
        Some(Origin::File(path, line)) => format!("  # {}:{line}", path.display()),
        Some(Origin::Environment(name)) => format!("  # environment variable {name}"),
        Some(Origin::CommandLine) => "  # command line".to_owned(),
        None => String::new(),
    }
}

/// What the reference page says before its tables.
const INTRODUCTION: &str = r#"# Configuration

<!-- Generated from the structs in crates/node/src/config/model.rs. To renew it:
UPDATE_DOCS=1 cargo test -p drainprof-node --lib config::tests::page_is_fresh -->

The [daemon](daemon.md) reads `/etc/drainprof/drainprof.toml`, then `/etc/drainprof/conf.d/*.toml` in the order of
their names, if they exist. Later files win key by key; a list replaces a list. `--config FILE` reads only that file.
A file that every user can write to is refused.

```sh
drainprof config default        # the default file, with the meaning of every key
drainprof config check          # every error, with its line; exit code 78 if there is one
drainprof config show           # the values in force, and the source of each
drainprof config show --set store.max_age=7d
```

The command line (`--set`) wins over the environment, files and defaults, in this order. A key's environment variable is
`DRAINPROF_` with section and key: `DRAINPROF_STORE_MAX_AGE=7d`. There, commas separate the entries of a list.

Times, sizes, shares and addresses are strings: `"500ms"`, `"1h 30m"`, `"30d"`; `"64KiB"`, `"256MiB"`; `"20%"`.
Unknown keys and values out of range are refused. A reload (SIGHUP) with errors leaves the old configuration in force. A
key marked *restart* changes only then.

[triggers.md](triggers.md#the-rules) has the sections `[triggers.…]`, which have no variables.

## Keys
"#;

/// The reference page.
#[must_use]
pub fn reference() -> String {
    let values = Config::default().table();
    let mut page = String::from(INTRODUCTION);
    for (path, node) in Node::all() {
        // Rules have a page of their own.
        if path.matches('.').count() + usize::from(node.is_section()) > 1 {
            continue;
        }
        let name = path.rsplit('.').next().unwrap_or(&path);
        if node.is_section() {
            let about = fill(&node.about(), Options::new(PAGE_WIDTH).word_splitter(NoHyphenation));
            let _ = write!(page, "\n### `[{path}]`\n\n{about}\n\n");
            continue;
        }
        let default = find(&values, &path);
        let default = default.map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
        let example = node.example().map(|text| format!(" Example: `{text}`.")).unwrap_or_default();
        let restart = match node.applies() {
            Applies::AtOnce => "",
            Applies::Restart => " *Restart.*",
        };
        // Where there is a range, its ends show the type.
        let form = match (node.limit(), node.expected()) {
            (Some(range), _) if range.starts_with("from ") => format!(" ({})", &range[5..]),
            (Some(limit), expected) => format!(" ({expected}; {limit})"),
            (None, expected) if expected == "true or false" || expected == "a text" => {
                String::new()
            }
            (None, expected) => format!(" ({expected})"),
        };
        let text = format!("`{name}` = {default}{form}: {}{example}{restart}", node.about());
        page.push_str(&item(&text));
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// Width of pages, one character for the line's end.
const PAGE_WIDTH: usize = 119;

/// An item of a Markdown list.
pub(crate) fn item(text: &str) -> String {
    let options = Options::new(PAGE_WIDTH).initial_indent("- ").subsequent_indent("  ");
    fill(text, options.break_words(false).word_splitter(NoHyphenation)) + "\n"
}
