//! The configuration as text: the default file, what is in force, and the reference page.

use std::{collections::BTreeMap, fmt::Write as _};

use toml::{Table, Value};

use super::{
    load::{Loaded, Origin},
    model::{Applies, Config, Key, SECTIONS},
    policies::Policy,
};

/// Width of comments in the default file.
const WIDTH: usize = 100;

/// The default file: every key with its meaning and its default. Read again, it gives `Config::default()`.
#[must_use]
pub fn default_file() -> String {
    let config = Config::default();
    let mut page = String::from(
        "# drainprof's configuration. What stands here are the defaults; `drainprof config check` looks at changes,\n\
         # `systemctl reload drainprof` applies them. Files in conf.d/ are read after this one, and win key by key.\n",
    );
    for section in SECTIONS {
        page.push('\n');
        comment(&mut page, section.about);
        let _ = writeln!(page, "[{}]", section.name);
        for key in section.keys {
            comment(&mut page, &words(key));
            // An example stands where the default says nothing of how a value looks.
            if let Some(example) = key.example {
                let _ = writeln!(page, "# {} = {example}", key.name);
            }
            if let Some(value) = (key.get)(&config) {
                let _ = writeln!(page, "{} = {value}", key.name);
            }
        }
    }
    policy(&mut page, "triggers", &config.triggers, "When a process is looked at more deeply.");
    policy(&mut page, "governor", &config.governor, "What the probes may cost.");
    page
}

/// Appends a section that another module defines.
fn policy(page: &mut String, name: &str, policy: &impl Policy, about: &str) {
    page.push('\n');
    comment(page, about);
    let mut table = Table::new();
    table.insert(name.to_owned(), Value::Table(table_of(policy)));
    // Numbers, texts and tables can always be written.
    page.push_str(&toml::to_string(&table).unwrap_or_default());
}

/// A policy's keys.
pub(super) fn table_of(policy: &impl Policy) -> Table {
    Table::try_from(policy).unwrap_or_default()
}

/// Meaning and limits of a key.
fn words(key: &Key) -> String {
    let meaning = key.meaning.trim();
    match (key.limit)() {
        Some(limit) => format!("{meaning} ({limit})"),
        None => meaning.to_owned(),
    }
}

/// Appends a text as comment lines.
fn comment(page: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line != "#" {
            let _ = writeln!(page, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(page, "{line}");
}

/// What is in force, as a file that says the same; behind each value that is not the default, who has set it.
#[must_use]
pub fn show(loaded: &Loaded) -> String {
    let mut page = String::new();
    for file in &loaded.files {
        let _ = writeln!(page, "# read: {}", file.display());
    }
    for section in SECTIONS {
        let _ = writeln!(page, "{}[{}]", if page.is_empty() { "" } else { "\n" }, section.name);
        for key in section.keys {
            let full = format!("{}.{}", section.name, key.name);
            match (key.get)(&loaded.config) {
                Some(value) => {
                    let _ =
                        writeln!(page, "{} = {value}{}", key.name, from(&loaded.origins, &full));
                }
                None => _ = writeln!(page, "# {} is not set", key.name),
            }
        }
    }
    show_policy(&mut page, "triggers", &table_of(&loaded.config.triggers), &loaded.origins);
    show_policy(&mut page, "governor", &table_of(&loaded.config.governor), &loaded.origins);
    page
}

/// Appends a table: its values first, then the tables in it.
fn show_policy(page: &mut String, name: &str, table: &Table, origins: &BTreeMap<String, Origin>) {
    let _ = writeln!(page, "\n[{name}]");
    let is_table = |value: &Value| value.is_table();
    for (key, value) in table.iter().filter(|(_, value)| !is_table(value)) {
        let written = written_key(key);
        let _ = writeln!(page, "{written} = {value}{}", from(origins, &format!("{name}.{key}")));
    }
    for (key, value) in table {
        if let Value::Table(table) = value {
            show_policy(page, &format!("{name}.{}", written_key(key)), table, origins);
        }
    }
}

/// A key as it is written: in quotes if it is no plain word.
fn written_key(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !key.is_empty() && key.bytes().all(plain) {
        key.to_owned()
    } else {
        Value::String(key.to_owned()).to_string()
    }
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

<!-- Generated from the list of keys. To renew it:
UPDATE_DOCS=1 cargo test -p drainprof-daemon --lib config::tests::page_is_fresh -->

The [daemon](daemon.md) reads `/etc/drainprof/drainprof.toml`, then the files in `/etc/drainprof/conf.d/` whose names end in `.toml`, in
the order of their names. None of them has to be there. Later files win key by key; a list replaces a list. `--config FILE` reads this one file instead.

```sh
drainprof config default        # the default file, with the meaning of every key
drainprof config check          # every error, with its line; exit code 78 if there is one
drainprof config show           # what is in force, and where each value comes from
drainprof config show --set store.max_age=7d
```

The command line (`--set section.key=value`) wins over the environment, that over files, and those over defaults. The environment variable of a key is
`DRAINPROF_` with section and key: `DRAINPROF_STORE_MAX_AGE=7d`. Entries of lists are separated by commas there. `[triggers]` and `[governor]` have no variables.

Times, sizes and addresses are strings: `"500ms"`, `"5s"`, `"1h 30m"`, `"30d"`; `"64KiB"`, `"256MiB"`. Unknown keys are refused, as is every value
that cannot be meant; all errors are told at once. A reload (SIGHUP) of a configuration with errors leaves the old one in force. The last
column says whether a reload applies a changed key, or only a restart does.

The keys of `[triggers]` and `[governor]` are in `drainprof config default` too.

## Keys

"#;

/// The reference page.
#[must_use]
pub fn reference() -> String {
    let config = Config::default();
    let mut page = String::from(INTRODUCTION);
    for section in SECTIONS {
        let _ = write!(page, "### `[{}]`\n\n{}\n\n", section.name, joined(section.about));
        page.push_str("| key | default | takes | meaning | changed by |\n|---|---|---|---|---|\n");
        for key in section.keys {
            let default = (key.get)(&config)
                .map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
            let limit = (key.limit)().map(|limit| format!("; {limit}")).unwrap_or_default();
            let example =
                key.example.map(|text| format!(" Example: `{text}`.")).unwrap_or_default();
            let applies = match key.applies {
                Applies::AtOnce => "reload",
                Applies::Restart => "restart",
            };
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {applies} |",
                key.name,
                cell(&default),
                cell(&format!("{}{limit}", (key.expected)())),
                cell(&format!("{}{example}", joined(key.meaning))),
            );
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
