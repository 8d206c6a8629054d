//! What a run has measured so far, by name. The journal is part of the run's JSON, so that an interrupted run
//! can continue where it stopped: anything in the journal is not measured again.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::Profile;
use crate::{LabError, LabResult};

/// The completed measurements.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    before: Map<String, Value>,
    now: Map<String, Value>,
    /// How often each name has occurred, because rounds repeat the same loads.
    seen: BTreeMap<String, usize>,
    /// Set while a measurement runs inside another one, which records both.
    pub(super) is_within: bool,
}

impl Journal {
    /// The journal of an earlier run of the same profile, from its JSON.
    ///
    /// # Errors
    /// The JSON is of another run.
    pub(crate) fn of(json: &Value, profile: &Profile) -> LabResult<Journal> {
        let is_same = json["profile"] == profile.name && json["settings"] == profile.text;
        let steps = json["steps"].as_object().filter(|_| is_same);
        let Some(steps) = steps else {
            return Err(LabError::Call(format!(
                "--resume: the --json file is of another run (profile {}, on {}), or its profile has \
                 changed: name another file, or leave out --resume to start again",
                json["profile"], json["on"]
            )));
        };
        Ok(Journal {
            before: steps.clone(),
            ..Journal::default()
        })
    }

    /// The journal's key for `name`, unique even if the name repeats.
    pub(super) fn key(&mut self, name: &str) -> String {
        let seen = self.seen.entry(name.to_owned()).or_default();
        *seen += 1;
        match *seen {
            1 => name.to_owned(),
            times => format!("{name} #{times}"),
        }
    }

    /// Whether it has measurements of an earlier run.
    pub(super) fn is_resumed(&self) -> bool {
        !self.before.is_empty()
    }

    /// An earlier measurement with this key.
    pub(super) fn recall<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        T::deserialize(self.before.get(key)?).ok()
    }

    /// Records a measurement.
    pub(super) fn keep<T: Serialize>(&mut self, key: &str, value: &T) {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.now.insert(key.to_owned(), value);
    }

    /// Everything, for the JSON, including earlier measurements that have not come up again.
    pub(crate) fn steps(&self) -> Value {
        let mut all = self.before.clone();
        all.extend(self.now.clone());
        Value::Object(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_measured_is_recalled_in_its_order_and_nothing_of_another_run() {
        let profile = Profile::load("queue", true).expect("it is there");
        let json = json!({
            "profile": "queue", "settings": profile.text, "steps": { "a": 1, "a #2": 2 },
        });
        let mut journal = Journal::of(&json, &profile).expect("the same");
        let mut recall = |name| {
            let key = journal.key(name);
            journal.recall::<u32>(&key)
        };
        assert_eq!(
            [recall("a"), recall("a"), recall("a"), recall("b")],
            [Some(1), Some(2), None, None]
        );
        journal.keep("b", &7);
        assert_eq!(journal.steps(), json!({ "a": 1, "a #2": 2, "b": 7 }));
        let full = Profile::load("queue", false).expect("it is there");
        for other in [&full, &Profile::load("commit", true).expect("it is there")] {
            let error = Journal::of(&json, other).expect_err("another").to_string();
            assert!(
                error.contains("--resume") && error.contains("\"queue\""),
                "{error}"
            );
        }
    }
}
