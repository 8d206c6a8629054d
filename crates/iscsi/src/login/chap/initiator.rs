//! The initiator's side of CHAP: it offers only CHAP, authenticates itself, and with mutual CHAP continues only if
//! the target does too.

use super::{Authentication, ChapAlgorithm, Failure, Keys, value};
use crate::text;

/// The state of one exchange.
#[derive(Debug)]
pub(in crate::login) struct InitiatorChap {
    authentication: Authentication,
    state: InitiatorState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitiatorState {
    /// Waiting for AuthMethod.
    Method,
    /// Waiting for CHAP_A, CHAP_I and CHAP_C.
    Challenge,
    /// With mutual CHAP, waiting for CHAP_N and CHAP_R.
    Verdict(ChapAlgorithm),
    Done,
}

/// Whether the next request may ask to leave the security stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::login) enum Next {
    Stay,
    Leave,
}

impl InitiatorChap {
    pub(in crate::login) fn new(authentication: Authentication) -> InitiatorChap {
        let state = InitiatorState::Method;
        InitiatorChap {
            authentication,
            state,
        }
    }

    /// Handles the keys of a response and appends the next request's keys to `reply`. `leaves` says that the target
    /// has let us leave the stage.
    pub(in crate::login) fn advance(
        &mut self,
        method: Option<&str>,
        keys: &Keys,
        leaves: bool,
        reply: &mut Vec<u8>,
    ) -> Result<Next, Failure> {
        if (method.is_some() && self.state != InitiatorState::Method)
            || (self.state == InitiatorState::Done && !keys.is_empty())
        {
            return Err("the target sent AuthMethod or CHAP keys out of turn");
        }
        match self.state {
            InitiatorState::Method => {
                if method != Some("CHAP") || !keys.is_empty() {
                    return Err(
                        "the target does not accept CHAP; configure it there, or remove `chap` \
                         here",
                    );
                }
                let numbers = self.authentication.chap.algorithms.iter();
                let numbers: Vec<_> = numbers.map(|a| a.number().to_string()).collect();
                text::push(reply, "CHAP_A", &numbers.join(","));
                self.state = InitiatorState::Challenge;
                Ok(Next::Stay)
            }
            InitiatorState::Challenge => {
                let algorithm = self.answer(keys, reply)?;
                self.state = InitiatorState::Verdict(algorithm);
                Ok(Next::Leave)
            }
            InitiatorState::Verdict(algorithm) => {
                if self.authentication.chap.target.is_some() {
                    if keys.is_empty() && !leaves {
                        return Ok(Next::Leave);
                    }
                    self.verify(keys, algorithm)?;
                } else if !keys.is_empty() {
                    return Err("the target sent CHAP keys that were not asked for");
                }
                self.state = InitiatorState::Done;
                Ok(Next::Leave)
            }
            InitiatorState::Done => Ok(Next::Leave),
        }
    }

    fn answer(&self, keys: &Keys, reply: &mut Vec<u8>) -> Result<ChapAlgorithm, Failure> {
        let chap = &self.authentication.chap;
        let (Some(chosen), None, None) = (&keys.algorithm, &keys.name, &keys.response) else {
            return Err("the target did not send CHAP_A, CHAP_I and CHAP_C");
        };
        let chosen = text::number(chosen);
        let algorithm = chap
            .algorithms
            .iter()
            .find(|algorithm| Some(algorithm.number()) == chosen);
        let algorithm =
            *algorithm.ok_or("the target accepts none of the algorithms that we offer")?;
        let challenge = keys
            .challenge()?
            .ok_or("the target did not send CHAP_I and CHAP_C")?;
        let own = self.authentication.challenge(algorithm);
        if challenge.bytes == own {
            return Err("the target's challenge is our own, reflected");
        }
        text::push(reply, "CHAP_N", &chap.initiator.user);
        text::push(
            reply,
            "CHAP_R",
            &value::encode(&challenge.answer(algorithm, &chap.initiator)),
        );
        if chap.target.is_some() {
            text::push(reply, "CHAP_I", &self.authentication.identifier.to_string());
            text::push(reply, "CHAP_C", &value::encode(own));
        }
        Ok(algorithm)
    }

    fn verify(&self, keys: &Keys, algorithm: ChapAlgorithm) -> Result<(), Failure> {
        let Keys {
            algorithm: None,
            identifier: None,
            challenge: None,
            ..
        } = keys
        else {
            return Err("the target sent more than CHAP_N and CHAP_R");
        };
        let Ok((user, digest)) = keys.proof(algorithm) else {
            return Err("the target did not authenticate itself, as mutual CHAP requires");
        };
        let Some(account) = &self.authentication.chap.target else {
            return Ok(());
        };
        match self
            .authentication
            .verify(algorithm, account, user, &digest)
        {
            true => Ok(()),
            false => Err("the target's CHAP name or secret is not that of `mutual`"),
        }
    }
}
