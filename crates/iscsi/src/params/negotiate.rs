//! The negotiation of keys (RFC 7143 §6.2): making offers, answering the peer's offers, and evaluating its answers.
//! One [`Negotiation`] serves one login, in either role.

use super::keys::{ParameterKey, Rule};
use super::{OperationalConfig, SessionParameters};
use crate::error::Error;
use crate::text::{number, truncated};

/// The state of one login's parameter negotiation.
#[derive(Debug)]
pub(crate) struct Negotiation {
    config: OperationalConfig,
    discovery: bool,
    parameters: SessionParameters,
    /// One bit per key that the peer has sent.
    received: u32,
    /// One bit per key that we have offered.
    offered: u32,
}

impl Negotiation {
    pub(crate) fn new(config: OperationalConfig) -> Negotiation {
        let parameters = SessionParameters::default();
        Negotiation {
            config,
            discovery: false,
            parameters,
            received: 0,
            offered: 0,
        }
    }

    pub(crate) fn set_discovery(&mut self) {
        self.discovery = true;
    }

    /// The parameters agreed on so far.
    pub(crate) fn parameters(&self) -> SessionParameters {
        let mut parameters = self.parameters.clone();
        let declared = self.offered & bit(ParameterKey::MaxRecvDataSegmentLength) != 0;
        if declared {
            let wanted = ParameterKey::MaxRecvDataSegmentLength.wanted(&self.config);
            parameters.max_recv_data_segment_length = wanted;
        }
        // FirstBurstLength must not exceed MaxBurstLength (§13.14), in whichever order they arrived.
        let burst = parameters.max_burst_length;
        parameters.first_burst_length = parameters.first_burst_length.min(burst);
        parameters
    }

    /// Handles one pair. Returns the value to answer with, or `None` if it answers our own offer or needs no answer.
    ///
    /// # Errors
    /// [`Error::ParameterKey`] if a key comes twice or its value makes the negotiation fail.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<Option<String>, Error> {
        let Some(key) = ParameterKey::from_name(key) else {
            // An answer must never be answered with NotUnderstood (§6.2).
            return Ok((value != "NotUnderstood").then(|| "NotUnderstood".to_owned()));
        };
        if self.received & bit(key) != 0 {
            return Err(refused(
                key,
                value,
                "a key may be sent only once in a login",
            ));
        }
        self.received |= bit(key);
        if self.offered & bit(key) != 0 && !matches!(key.rule(), Rule::Declared(..)) {
            self.apply_answer(key, value)?;
            return Ok(None);
        }
        self.answer(key, value)
    }

    fn answer(&mut self, key: ParameterKey, value: &str) -> Result<Option<String>, Error> {
        if self.discovery && key.irrelevant_in_discovery() {
            return Ok(Some("Irrelevant".to_owned()));
        }
        let wanted = key.wanted(&self.config);
        let result = match key.rule() {
            Rule::Fixed(answer) => return Ok(Some(answer.to_owned())),
            Rule::Declared(low, high) => {
                let declared = number(value).filter(|n| (low..=high).contains(n));
                let declared =
                    declared.ok_or_else(|| refused(key, value, "a number in its range"))?;
                key.store(declared, &mut self.parameters);
                return Ok(None);
            }
            Rule::Digest => choose_digest(value, wanted != 0),
            Rule::Or => yes_or_no(value).map(|offered| offered | wanted),
            Rule::And => yes_or_no(value).map(|offered| offered & wanted),
            Rule::Minimum(low, high) => in_range(value, low, high).map(|n| n.min(wanted)),
            Rule::Maximum(low, high) => in_range(value, low, high).map(|n| n.max(wanted)),
        };
        let Some(mut result) = result else {
            return Ok(Some("Reject".to_owned()));
        };
        if key == ParameterKey::FirstBurstLength
            && self.received & bit(ParameterKey::MaxBurstLength) != 0
        {
            result = result.min(self.parameters.max_burst_length);
        }
        key.store(result, &mut self.parameters);
        Ok(Some(render(key, result)))
    }

    fn apply_answer(&mut self, key: ParameterKey, value: &str) -> Result<(), Error> {
        let wanted = key.wanted(&self.config);
        if matches!(value, "Reject" | "Irrelevant" | "NotUnderstood") {
            // The default applies, as far as we support it.
            return Ok(());
        }
        let allowed = match key.rule() {
            Rule::Digest => match value {
                "None" => Some(0),
                "CRC32C" => Some(1),
                _ => None,
            },
            Rule::Or => yes_or_no(value).filter(|answer| *answer >= wanted),
            Rule::And => yes_or_no(value).filter(|answer| *answer <= wanted),
            Rule::Minimum(low, high) => in_range(value, low, high).filter(|n| *n <= wanted),
            Rule::Maximum(low, high) => in_range(value, low, high).filter(|n| *n >= wanted),
            Rule::Declared(..) | Rule::Fixed(_) => None,
        };
        let answer =
            allowed.ok_or_else(|| refused(key, value, "not a possible answer to our offer"))?;
        key.store(answer, &mut self.parameters);
        Ok(())
    }

    /// Everything an initiator offers, once: pairs of key and value.
    pub(crate) fn offers(&mut self) -> Vec<(&'static str, String)> {
        let mut offers = Vec::new();
        for key in ParameterKey::OFFERED {
            let is_irrelevant = self.discovery && key.irrelevant_in_discovery();
            if is_irrelevant || !key.is_offered(&self.config) {
                continue;
            }
            self.offered |= bit(key);
            let wanted = key.wanted(&self.config);
            let value = match (key.rule(), wanted) {
                // In order of preference (RFC 7143 §6.2.1): a target may insist on either.
                (Rule::Digest, 0) => "None,CRC32C".to_owned(),
                (Rule::Digest, _) => "CRC32C,None".to_owned(),
                _ => render(key, wanted),
            };
            offers.push((key.name(), value));
        }
        // The values in force after a refusal must be ones we support.
        if !self.config.immediate_data {
            self.parameters.immediate_data = false;
        }
        offers
    }

    /// What a target declares unprompted, once.
    pub(crate) fn declaration(&mut self) -> Option<(&'static str, String)> {
        let key = ParameterKey::MaxRecvDataSegmentLength;
        let first = self.offered & bit(key) == 0;
        self.offered |= bit(key);
        first.then(|| (key.name(), key.wanted(&self.config).to_string()))
    }
}

fn bit(key: ParameterKey) -> u32 {
    1 << key as u32
}

fn refused(key: ParameterKey, value: &str, why: &'static str) -> Error {
    Error::Key {
        key: key.name().to_owned(),
        value: truncated(value),
        why,
    }
}

fn render(key: ParameterKey, value: u32) -> String {
    match (key.rule(), value) {
        (Rule::Digest, 0) => "None".to_owned(),
        (Rule::Digest, _) => "CRC32C".to_owned(),
        (Rule::Or | Rule::And, 0) => "No".to_owned(),
        (Rule::Or | Rule::And, _) => "Yes".to_owned(),
        _ => value.to_string(),
    }
}

fn yes_or_no(value: &str) -> Option<u32> {
    match value {
        "Yes" => Some(1),
        "No" => Some(0),
        _ => None,
    }
}

fn in_range(value: &str, low: u32, high: u32) -> Option<u32> {
    number(value).filter(|n| (low..=high).contains(n))
}

/// The first digest in the initiator's list that we support.
fn choose_digest(list: &str, crc32c: bool) -> Option<u32> {
    list.split(',').find_map(|method| match method {
        "None" => Some(0),
        "CRC32C" if crc32c => Some(1),
        _ => None,
    })
}
