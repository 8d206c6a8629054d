//! What two configurations say differently, setting by setting: `file.size "20GiB" → "30GiB"`. It goes by the text, so it
//! shows values as their user wrote them, and it holds no secret, because no configuration does.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

/// Lists that are longer than this, in characters, are shown by what they lose and gain.
const LIST_MAX: usize = 120;

/// A configuration as it is written.
#[derive(Debug, Default)]
pub(crate) struct Written(Table);

impl Written {
    /// The configuration `text`, which is valid.
    pub(crate) fn of(text: &str) -> Written {
        Written(text.parse().unwrap_or_default())
    }

    /// What `next` says differently at `path`, a way of keys to a table or a setting: a line for each setting.
    pub(crate) fn differences(&self, next: &Written, path: &[&str]) -> Vec<String> {
        let (was, is) = (self.settings(path), next.settings(path));
        let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        let changed = keys.into_iter().filter(|key| was.get(*key) != is.get(*key));
        changed
            .map(|key| {
                format!(
                    "{key} {}",
                    from_to(was.get(key).copied(), is.get(key).copied())
                )
            })
            .collect()
    }

    /// What stands at `path`, by the keys below it; a value itself has the last key of its path.
    fn settings(&self, path: &[&str]) -> BTreeMap<String, &Value> {
        let mut found = BTreeMap::new();
        let Some((last, way)) = path.split_last() else {
            return found;
        };
        let mut table = Some(&self.0);
        for key in way {
            table = table.and_then(|table| table.get(*key)?.as_table());
        }
        match table.and_then(|table| table.get(*last)) {
            Some(Value::Table(inner)) => flatten(inner, "", &mut found),
            Some(value) => drop(found.insert((*last).to_owned(), value)),
            None => {}
        }
        found
    }
}

fn flatten<'a>(table: &'a Table, before: &str, found: &mut BTreeMap<String, &'a Value>) {
    for (key, value) in table {
        let name = format!("{before}{key}");
        match value {
            Value::Table(inner) => flatten(inner, &format!("{name}."), found),
            value => drop(found.insert(name, value)),
        }
    }
}

fn from_to(was: Option<&Value>, is: Option<&Value>) -> String {
    if let (Some(Value::Array(was)), Some(Value::Array(is))) = (was, is) {
        let shown = |list: &[Value]| Value::Array(list.to_vec()).to_string();
        if shown(was).len() + shown(is).len() > LIST_MAX {
            return gains(was, is);
        }
    }
    let shown = |value: Option<&Value>| value.map_or("(not set)".to_owned(), Value::to_string);
    format!("{} → {}", shown(was), shown(is))
}

/// What is in one list and not in the other.
fn gains(was: &[Value], is: &[Value]) -> String {
    let listed = |list: &[Value], other: &[Value]| -> String {
        let only = list.iter().filter(|value| !other.contains(value));
        let only: Vec<String> = only.map(Value::to_string).collect();
        only.join(", ")
    };
    let (lost, gained) = (listed(was, is), listed(is, was));
    match (lost.is_empty(), gained.is_empty()) {
        (false, false) => format!("loses {lost}, gains {gained}"),
        (false, true) => format!("loses {lost}"),
        (true, false) => format!("gains {gained}"),
        (true, true) => "has another order".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_that_differs_is_shown_as_it_was_and_as_it_is() {
        let names = |from: u32, to: u32| -> String {
            let names: Vec<_> = (from..to)
                .map(|n| format!("\"iqn.2026-11.io.sanstone:{n}\""))
                .collect();
            names.join(", ")
        };
        let text = |size: &str, allow: &str, more: &str| {
            Written::of(&format!(
                "connections = 7\n{more}[volume.db]\nfile = {{ path = \"a\", size = \"{size}\" }}\n\
                 [target.\"iqn.x:y\"]\nallow = [{allow}]\n"
            ))
        };
        let was = text("1GiB", "\"iqn.a:b\"", "");
        let is = text("2GiB", "\"iqn.a:c\"", "digests = false\n");
        let differences = |path: &[&str]| was.differences(&is, path);
        assert_eq!(
            differences(&["volume", "db"]),
            ["file.size \"1GiB\" → \"2GiB\""]
        );
        assert_eq!(
            differences(&["target", "iqn.x:y", "allow"]),
            ["allow [\"iqn.a:b\"] → [\"iqn.a:c\"]"]
        );
        assert_eq!(differences(&["digests"]), ["digests (not set) → false"]);
        for same in ["connections", "memory"] {
            assert!(differences(&[same]).is_empty());
        }
        let (was, is) = (
            text("1GiB", &names(0, 9), ""),
            text("1GiB", &names(1, 10), ""),
        );
        assert_eq!(
            was.differences(&is, &["target", "iqn.x:y", "allow"]),
            [format!(
                "allow loses {}, gains {}",
                names(0, 1),
                names(9, 10)
            )]
        );
    }
}
