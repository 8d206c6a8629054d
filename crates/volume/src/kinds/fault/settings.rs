//! The configuration section `fault = { rules = [ … ], of = … }`: which requests fail from the start, and how.

use std::{rc::Rc, sync::Arc};

use engine::LaneFuture;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::{FaultAction, FaultHandle, FaultOperation, Rule};
use crate::{
    ErrorKind, Result,
    kinds::{Node, Settings, VolumeIdentity},
    part::{Opening, Part},
    values::{ConfigError, Time},
};

/// `fault = { rules = [ { on = "write", fail = "medium", skip = 3, times = 1 } ], of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Checked in order; the first that matches decides.
    #[serde(default)]
    pub rules: Vec<Spanned<FaultRule>>,
    /// What fails.
    pub of: Node,
}

/// Which requests fail, and how. Exactly one of `fail`, `delay` and `hang` is given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The operation that it matches; all if omitted.
    pub on: Option<FaultOperation>,
    /// How many matching requests pass first.
    #[serde(default, deserialize_with = "count")]
    pub skip: u64,
    /// How many times it acts; unlimited if omitted.
    #[serde(default, deserialize_with = "some_count")]
    pub times: Option<u64>,
    /// The request fails with this error.
    pub fail: Option<FaultKind>,
    /// The request begins after this delay.
    pub delay: Option<Time>,
    /// The request never begins.
    #[serde(default)]
    pub hang: bool,
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let refused = |_| {
        de::Error::custom(format!(
            "{number} is not a number of requests; write 0 or more"
        ))
    };
    u64::try_from(number).map_err(refused)
}

fn some_count<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<u64>, D::Error> {
    count(deserializer).map(Some)
}

impl FaultRule {
    /// The rule for the layer; `None` unless exactly one action is given.
    fn rule(&self) -> Option<Rule> {
        let action = match (self.fail, self.delay, self.hang) {
            (Some(kind), None, false) => FaultAction::Fail(kind.into()),
            (None, Some(time), false) => FaultAction::Delay(time.duration()),
            (None, None, true) => FaultAction::Hang,
            _ => return None,
        };
        Some(Rule {
            on: self.on,
            skip: self.skip,
            times: self.times,
            ..Rule::always(action)
        })
    }
}

/// The error of a [`FaultRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The medium failed.
    Medium,
    /// No space left.
    NoSpace,
    /// The peer cannot be reached.
    Unreachable,
    /// No answer came in time.
    TimedOut,
}

impl From<FaultKind> for ErrorKind {
    fn from(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Medium => ErrorKind::Medium,
            FaultKind::NoSpace => ErrorKind::NoSpace,
            FaultKind::Unreachable => ErrorKind::Unreachable,
            FaultKind::TimedOut => ErrorKind::TimedOut,
        }
    }
}

impl Settings for Fault {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        let handle: FaultHandle = opening.handle();
        handle.clear();
        let rules = self.rules.iter().map(Spanned::get_ref);
        rules
            .filter_map(FaultRule::rule)
            .for_each(|rule| handle.add(rule));
        LaneFuture::new(async move {
            opening
                .layer_at_home(move |inner| Ok(Rc::new(super::Fault::new(inner, handle))))
                .await
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Child(&self.of)
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn over(&self, other: &Fault) -> Fault {
        Fault {
            of: other.of.clone(),
            ..self.clone()
        }
    }

    fn children(&self) -> &[Node] {
        std::slice::from_ref(&self.of)
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        match self
            .rules
            .iter()
            .find(|rule| rule.get_ref().rule().is_none())
        {
            None => Ok(()),
            Some(rule) => Err(ConfigError::at(
                rule,
                "a fault rule does exactly one thing; write one of fail = \"medium\", delay = \
                 \"5ms\" or hang = true",
            )),
        }
    }
}
