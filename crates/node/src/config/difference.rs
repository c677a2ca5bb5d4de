//! What a reload would change.

use toml::{Table, Value};

use super::{
    model::{Applies, Config, SECTIONS},
    page::table_of,
};

/// One key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Section and key, with a dot between.
    pub key: String,
    /// The value before, as it would be written; null: it was not set.
    pub from: Option<String>,
    /// The value after.
    pub to: Option<String>,
    /// When it takes effect.
    pub applies: Applies,
}

impl Config {
    /// Which keys differ in `new`, in the order in which they are written.
    #[must_use]
    pub fn difference(&self, new: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for section in SECTIONS {
            for key in section.keys {
                let (from, to) = ((key.get)(self), (key.get)(new));
                if from != to {
                    changes.push(Change {
                        key: format!("{}.{}", section.name, key.name),
                        from: from.map(|value| value.to_string()),
                        to: to.map(|value| value.to_string()),
                        applies: key.applies,
                    });
                }
            }
        }
        let mut tables = |name: &str, from: &Table, to: &Table| {
            compare(name, from, to, &mut changes);
        };
        tables("triggers", &table_of(&self.triggers), &table_of(&new.triggers));
        tables("governor", &table_of(&self.governor), &table_of(&new.governor));
        changes
    }
}

impl Config {
    /// This configuration as far as it can be applied to a daemon that has begun with `before`: keys that need a
    /// restart stay as they are there.
    #[must_use]
    pub fn applied_to(mut self, before: &Self) -> Self {
        for key in SECTIONS.iter().flat_map(|section| section.keys) {
            if key.applies == Applies::Restart {
                (key.keep)(&mut self, before);
            }
        }
        self
    }
}

/// Compares two tables key by key, the tables in them too. What they say applies at once.
fn compare(prefix: &str, from: &Table, to: &Table, changes: &mut Vec<Change>) {
    let empty = Table::new();
    let added = to.keys().filter(|key| !from.contains_key(*key));
    for name in from.keys().chain(added) {
        let (before, after) = (from.get(name), to.get(name));
        if before == after {
            continue;
        }
        let key = format!("{prefix}.{name}");
        let table = |value: Option<&Value>| value.map(|value| value.as_table().cloned());
        match (table(before), table(after)) {
            (Some(None), _) | (_, Some(None)) => changes.push(Change {
                key,
                from: before.map(ToString::to_string),
                to: after.map(ToString::to_string),
                applies: Applies::AtOnce,
            }),
            (before, after) => {
                let before = before.flatten();
                let after = after.flatten();
                compare(
                    &key,
                    before.as_ref().unwrap_or(&empty),
                    after.as_ref().unwrap_or(&empty),
                    changes,
                );
            }
        }
    }
}
