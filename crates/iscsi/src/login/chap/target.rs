//! The target's side of CHAP: it requires the initiator to authenticate, and authenticates itself on request.

use super::{Authentication, ChapAccount, ChapAlgorithm, Failure, Keys, value};
use crate::text;

/// The state of one exchange.
#[derive(Debug)]
pub(in crate::login) struct TargetChap {
    authentication: Authentication,
    state: TargetState,
    /// The initiator has authenticated with the old account.
    is_old: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    /// The initiator has not agreed on CHAP yet.
    Method,
    /// Waiting for CHAP_A.
    Algorithm,
    /// Waiting for CHAP_N and CHAP_R.
    Proof(ChapAlgorithm),
    /// The initiator has authenticated, and may have asked us to do the same.
    Done { has_proven: bool },
}

impl TargetChap {
    pub(in crate::login) fn new(authentication: Authentication) -> TargetChap {
        let state = TargetState::Method;
        TargetChap {
            authentication,
            state,
            is_old: false,
        }
    }

    /// AuthMethod=CHAP was agreed on.
    pub(in crate::login) fn agree(&mut self) {
        if self.state == TargetState::Method {
            self.state = TargetState::Algorithm;
        }
    }

    pub(in crate::login) fn is_agreed(&self) -> bool {
        self.state != TargetState::Method
    }

    pub(in crate::login) fn is_done(&self) -> bool {
        matches!(self.state, TargetState::Done { .. })
    }

    /// Whether we have responded to a challenge from the initiator.
    pub(in crate::login) fn has_proven(&self) -> bool {
        self.state == TargetState::Done { has_proven: true }
    }

    /// The account with which the initiator has authenticated.
    pub(in crate::login) fn account(&self) -> Option<&ChapAccount> {
        let chap = &self.authentication.chap;
        match (self.is_done(), self.is_old) {
            (false, _) => None,
            (true, false) => Some(&chap.initiator),
            (true, true) => chap.old.as_ref(),
        }
    }

    /// Handles the keys of one request and appends the answer to `reply`.
    pub(in crate::login) fn advance(
        &mut self,
        keys: &Keys,
        reply: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match self.state {
            TargetState::Method => Err("it sent CHAP keys without AuthMethod=CHAP"),
            TargetState::Algorithm => self.challenge(keys, reply),
            TargetState::Proof(algorithm) => self.verify(keys, algorithm, reply),
            TargetState::Done { .. } => Err("it sent CHAP keys after its authentication"),
        }
    }

    fn challenge(&mut self, keys: &Keys, reply: &mut Vec<u8>) -> Result<(), Failure> {
        let Keys {
            algorithm: Some(list),
            identifier: None,
            challenge: None,
            name: None,
            response: None,
        } = keys
        else {
            return Err("it must send CHAP_A first, and no other CHAP key");
        };
        // The first algorithm in the initiator's order that we allow (RFC 7143 §6.2.1).
        let allowed = &self.authentication.chap.algorithms;
        let chosen = list.split(',').find_map(|offered| {
            let offered = text::number(offered)?;
            allowed
                .iter()
                .find(|algorithm| algorithm.number() == offered)
        });
        let algorithm = *chosen.ok_or("none of the algorithms in its CHAP_A is allowed here")?;
        text::push(reply, "CHAP_A", &algorithm.number().to_string());
        text::push(reply, "CHAP_I", &self.authentication.identifier.to_string());
        text::push(
            reply,
            "CHAP_C",
            &value::encode(self.authentication.challenge(algorithm)),
        );
        self.state = TargetState::Proof(algorithm);
        Ok(())
    }

    fn verify(
        &mut self,
        keys: &Keys,
        algorithm: ChapAlgorithm,
        reply: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if keys.algorithm.is_some() {
            return Err("it sent CHAP_A twice");
        }
        let chap = &self.authentication.chap;
        let (user, digest) = keys.proof(algorithm)?;
        let challenge = keys.challenge()?;
        // A reflected challenge would make us compute the very response that the peer owes us (RFC 7143 §9.2.1).
        let own = self.authentication.challenge(algorithm);
        if challenge.as_ref().is_some_and(|theirs| theirs.bytes == own) {
            return Err("it sent our own challenge back");
        }
        let knows = |account| {
            self.authentication
                .verify(algorithm, account, user, &digest)
        };
        // Both are computed, so that the time says nothing.
        let is_new = knows(&chap.initiator);
        let is_old = chap.old.as_ref().is_some_and(knows);
        if !is_new && !is_old {
            return Err("its CHAP name or secret is wrong");
        }
        let has_proven = challenge.is_some();
        if let Some(challenge) = challenge {
            let Some(account) = &chap.target else {
                return Err(
                    "it wants the target to authenticate itself, but `mutual` is not configured",
                );
            };
            text::push(reply, "CHAP_N", &account.user);
            text::push(
                reply,
                "CHAP_R",
                &value::encode(&challenge.answer(algorithm, account)),
            );
        }
        self.is_old = !is_new;
        self.state = TargetState::Done { has_proven };
        Ok(())
    }
}
