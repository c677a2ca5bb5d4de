//! What a reload changes, by the values as they are written.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::{
    model::Config,
    schema::{Applies, Node},
};

/// One key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Section and key, with a dot between.
    pub key: String,
    /// The value before, as it is written; null: it was not set.
    pub from: Option<String>,
    /// The value after.
    pub to: Option<String>,
    /// When it takes effect.
    pub applies: Applies,
}

impl Config {
    /// All keys that have a value, by section.
    pub(super) fn table(&self) -> Table {
        Table::try_from(self).unwrap_or_default()
    }

    /// The keys that differ in `new`, in the order in which they are written.
    #[must_use]
    pub fn difference(&self, new: &Self) -> Vec<Change> {
        let (before, after) = (self.table(), new.table());
        let keys = Node::all().into_iter().filter(|(_, node)| !node.is_section());
        keys.filter_map(|(key, node)| {
            let (from, to) = (find(&before, &key), find(&after, &key));
            let text = |value: Option<&Value>| value.map(ToString::to_string);
            (from != to).then(|| Change {
                from: text(from),
                to: text(to),
                applies: node.applies(),
                key,
            })
        })
        .collect()
    }

    /// This configuration, with the values of `before` where a change needs a restart.
    #[must_use]
    pub fn applied_to(self, before: &Self) -> Self {
        let (mut values, kept) = (self.table(), before.table());
        for change in before.difference(&self) {
            match find(&kept, &change.key) {
                _ if change.applies == Applies::AtOnce => {}
                Some(value) => insert(&mut values, &change.key, value.clone()),
                None => remove(&mut values, &change.key),
            }
        }
        Self::deserialize(values).unwrap_or(self)
    }
}

/// The value of a key.
pub(super) fn find<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        None => table.get(key),
        Some((section, key)) => find(table.get(section)?.as_table()?, key),
    }
}

/// Sets the value of a key.
pub(super) fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => _ = table.insert(key.to_owned(), value),
        Some((section, key)) => {
            let section = table.entry(section).or_insert_with(|| Table::new().into());
            if let Value::Table(section) = section {
                insert(section, key, value);
            }
        }
    }
}

fn remove(table: &mut Table, key: &str) {
    match key.split_once('.') {
        None => _ = table.remove(key),
        Some((section, key)) => {
            if let Some(Value::Table(section)) = table.get_mut(section) {
                remove(section, key);
            }
        }
    }
}
