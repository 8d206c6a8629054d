//! CHAP, the authentication of RFC 7143 §12.1.3 and RFC 1994. The authenticator sends an identifier and a random
//! challenge; the peer responds with a digest of these and the secret. The initiator always authenticates first; it
//! may then require the same of the target (mutual CHAP).
//!
//! `target` and `initiator` implement the two roles, `algorithm` the digests, and `value` the text encoding of bytes.
//! Nothing here generates randomness: the driver supplies fresh random bytes for each connection.

mod algorithm;
mod initiator;
mod target;
#[cfg(test)]
mod tests;
mod value;

use std::sync::Arc;

use subtle::ConstantTimeEq;

pub use algorithm::ChapAlgorithm;
pub(super) use initiator::{InitiatorChap, Next};
pub(super) use target::TargetChap;

use crate::error::Error;
use crate::text::number;
use algorithm::Digest;

/// Shortest secret in bytes: 96 bits (RFC 7143 §9.2.1).
const SECRET_LEN_MIN: usize = 12;
/// Longest secret in bytes: what initiators commonly accept.
const SECRET_LEN_MAX: usize = 255;
/// Longest name in bytes (RFC 7143 §6.1, text-value).
const USER_LEN_MAX: usize = 255;
/// Longest challenge in bytes (RFC 7143 §12.1.3).
const CHALLENGE_LEN_MAX: usize = 1024;

/// A CHAP secret: 12 to 255 bytes. `Debug` does not reveal it.
#[derive(Clone)]
pub struct ChapSecret(Arc<[u8]>);

impl ChapSecret {
    /// Makes a secret from its bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are fewer than 12 (RFC 7143 §9.2.1) or more than 255.
    pub fn new(bytes: &[u8]) -> Result<ChapSecret, Error> {
        if !(SECRET_LEN_MIN..=SECRET_LEN_MAX).contains(&bytes.len()) {
            return Err(Error::Argument {
                what: "the length of a CHAP secret",
                value: bytes.len() as u64,
                expected: "12 to 255 bytes (RFC 7143 §9.2.1)",
            });
        }
        Ok(ChapSecret(bytes.into()))
    }
}

impl PartialEq for ChapSecret {
    /// Takes constant time, wherever the secrets differ.
    fn eq(&self, other: &ChapSecret) -> bool {
        bool::from(self.0.ct_eq(&other.0))
    }
}

impl Eq for ChapSecret {}

impl std::fmt::Debug for ChapSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChapSecret(…)")
    }
}

/// A CHAP name and its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapAccount {
    user: String,
    secret: ChapSecret,
}

impl ChapAccount {
    /// The account of `user`, 1 to 255 bytes without a zero byte.
    ///
    /// # Errors
    /// [`Error::Key`] if `user` is not a valid name.
    pub fn new(user: impl Into<String>, secret: ChapSecret) -> Result<ChapAccount, Error> {
        let user = user.into();
        if user.is_empty() || user.len() > USER_LEN_MAX || user.contains('\0') {
            return Err(Error::Key {
                key: "CHAP_N".to_owned(),
                value: crate::text::truncated(&user),
                why: "a CHAP name has 1 to 255 bytes and no zero byte",
            });
        }
        Ok(ChapAccount { user, secret })
    }

    /// The name (CHAP_N).
    pub fn user(&self) -> &str {
        &self.user
    }
}

/// Who authenticates to whom, and with which account; the same for both roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    initiator: ChapAccount,
    /// One that a target accepts as well, while initiators change to the other.
    old: Option<ChapAccount>,
    target: Option<ChapAccount>,
    algorithms: Vec<ChapAlgorithm>,
}

impl Chap {
    /// The initiator authenticates with `initiator`. With `target`, the target can authenticate too: an initiator
    /// configured with it requires that, and a target does it on request.
    ///
    /// # Errors
    /// [`Error::Authentication`] if both use the same secret: anyone who obtained responses in one direction could
    /// then use them in the other (RFC 7143 §9.2.1).
    pub fn new(initiator: ChapAccount, target: Option<ChapAccount>) -> Result<Chap, Error> {
        if target
            .as_ref()
            .is_some_and(|target| target.secret == initiator.secret)
        {
            return Err(Error::Authentication(
                "both directions have the same secret; give each its own",
            ));
        }
        let algorithms = ChapAlgorithm::ALL.to_vec();
        Ok(Chap {
            initiator,
            old: None,
            target,
            algorithms,
        })
    }

    /// Has a target accept `old` in the place of the initiator's account as well: the account that it had before, until all
    /// initiators have changed to the new one.
    ///
    /// # Errors
    /// [`Error::Authentication`] if the target proves itself with the same secret (RFC 7143 §9.2.1), or if it is the account
    /// that is accepted anyway.
    pub fn with_old(mut self, old: ChapAccount) -> Result<Chap, Error> {
        if self
            .target
            .as_ref()
            .is_some_and(|target| target.secret == old.secret)
        {
            return Err(Error::Authentication(
                "both directions have the same secret; give each its own",
            ));
        }
        if old == self.initiator {
            return Err(Error::Authentication(
                "the old account is the new one; give the new one another secret, or remove the old one",
            ));
        }
        self.old = Some(old);
        Ok(self)
    }

    /// How this target takes the account with which an initiator has authenticated; `None`: without one.
    pub fn takes(&self, account: Option<&ChapAccount>) -> Taken {
        match account {
            Some(account) if *account == self.initiator => Taken::Current,
            Some(account) if Some(account) == self.old.as_ref() => Taken::Old,
            _ => Taken::No,
        }
    }

    /// Restricts CHAP to these algorithms, in order of preference for an initiator.
    ///
    /// # Errors
    /// [`Error::Authentication`] if the list is empty.
    pub fn with_algorithms(mut self, algorithms: &[ChapAlgorithm]) -> Result<Chap, Error> {
        if algorithms.is_empty() {
            return Err(Error::Authentication("CHAP needs an algorithm; allow one"));
        }
        self.algorithms = algorithms.to_vec();
        Ok(self)
    }
}

/// How a target takes an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is the initiator's.
    Current,
    /// It is the one that is still accepted beside it.
    Old,
    /// It is not accepted (any more).
    No,
}

/// Everything CHAP needs for one login.
#[derive(Clone, PartialEq, Eq)]
pub struct Authentication {
    chap: Arc<Chap>,
    identifier: u8,
    challenge: [u8; 32],
}

impl Authentication {
    /// The number of random bytes that [`Authentication::new`] takes.
    pub const RANDOM_LEN: usize = 33;

    /// `random` must come from an unpredictable source, fresh for every connection.
    pub fn new(chap: Arc<Chap>, random: [u8; Self::RANDOM_LEN]) -> Authentication {
        let [identifier, challenge @ ..] = random;
        Authentication {
            chap,
            identifier,
            challenge,
        }
    }

    /// Our challenge, of the same length as the algorithm's digest.
    fn challenge(&self, algorithm: ChapAlgorithm) -> &[u8] {
        &self.challenge[..algorithm.digest_len()]
    }

    /// Whether `digest` is the correct response to our challenge with `account`'s secret. Takes constant time,
    /// wherever it differs.
    fn verify(
        &self,
        algorithm: ChapAlgorithm,
        account: &ChapAccount,
        user: &str,
        digest: &[u8],
    ) -> bool {
        let challenge = self.challenge(algorithm);
        let expected = algorithm.respond(self.identifier, &account.secret.0, challenge);
        let user_is_right = user.as_bytes().ct_eq(account.user.as_bytes());
        bool::from(expected.ct_eq(digest) & user_is_right)
    }
}

impl std::fmt::Debug for Authentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authentication")
            .field("chap", &self.chap)
            .finish_non_exhaustive()
    }
}

/// The keys of CHAP (RFC 7143 §12.1.3).
pub(crate) const KEYS: [&str; 5] = ["CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"];

/// The CHAP keys of one exchange, as received.
#[derive(Debug, Default)]
pub(super) struct Keys {
    algorithm: Option<String>,
    identifier: Option<String>,
    challenge: Option<String>,
    name: Option<String>,
    response: Option<String>,
}

/// What is wrong with the peer's CHAP, for this end's log only.
pub(super) type Failure = &'static str;

impl Keys {
    /// Stores a pair if its key belongs to CHAP; returns whether it does.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        let places = [
            &mut self.algorithm,
            &mut self.identifier,
            &mut self.challenge,
            &mut self.name,
            &mut self.response,
        ];
        let mut known = KEYS.iter().zip(places);
        let Some((_, place)) = known.find(|(known, _)| **known == key) else {
            return Ok(false);
        };
        match place.replace(value.to_owned()) {
            None => Ok(true),
            Some(_) => Err("it sent a CHAP key twice"),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let Keys {
            algorithm,
            identifier,
            challenge,
            name,
            response,
        } = self;
        [algorithm, identifier, challenge, name, response]
            .iter()
            .all(|key| key.is_none())
    }

    /// The peer's CHAP_N, truncated for logs.
    pub(super) fn name(&self) -> Option<String> {
        self.name.as_deref().map(crate::text::truncated)
    }

    /// The peer's challenge, if it sent one.
    fn challenge(&self) -> Result<Option<Challenge>, Failure> {
        let (identifier, challenge) = match (&self.identifier, &self.challenge) {
            (None, None) => return Ok(None),
            (Some(identifier), Some(challenge)) => (identifier, challenge),
            _ => return Err("CHAP_I and CHAP_C belong together"),
        };
        let identifier = number(identifier).and_then(|number| u8::try_from(number).ok());
        let identifier = identifier.ok_or("CHAP_I is not a number from 0 to 255")?;
        let bytes = value::decode(challenge, CHALLENGE_LEN_MAX)
            .filter(|bytes| !bytes.is_empty())
            .ok_or("CHAP_C is not a hexadecimal or base64 value of 1 to 1024 bytes")?;
        Ok(Some(Challenge { identifier, bytes }))
    }

    /// The peer's name and its response to our challenge.
    fn proof(&self, algorithm: ChapAlgorithm) -> Result<(&str, Vec<u8>), Failure> {
        let (Some(name), Some(response)) = (&self.name, &self.response) else {
            return Err("CHAP_N and CHAP_R are missing");
        };
        let len = algorithm.digest_len();
        let digest = value::decode(response, len)
            .filter(|digest| digest.len() == len)
            .ok_or("CHAP_R is not a hexadecimal or base64 value of the digest's length")?;
        Ok((name, digest))
    }
}

/// A challenge from the peer.
struct Challenge {
    identifier: u8,
    bytes: Vec<u8>,
}

impl Challenge {
    fn answer(&self, algorithm: ChapAlgorithm, account: &ChapAccount) -> Digest {
        algorithm.respond(self.identifier, &account.secret.0, &self.bytes)
    }
}
