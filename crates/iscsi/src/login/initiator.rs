//! The initiator's half of a login: the security stage with CHAP or AuthMethod=None, one round of operational keys,
//! then full feature phase. If a target wants more rounds, the initiator sends empty requests, up to a limit.

use super::chap::{self, Authentication, InitiatorChap, Next};
use super::{CONTINUE, FULL_FEATURE, OPERATIONAL, SECURITY, SessionType, TRANSIT, Transition};
use crate::error::{CloseReason, Error};
use crate::params::Negotiation;
use crate::pdu::LoginResponse;
use crate::status::LoginStatus;
use crate::text::{self, TextBuffer};

/// The next step after a Login Response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InitiatorStep {
    /// Send another Login Request with these flags and this text.
    Request(u8, Vec<u8>),
    /// Full feature phase, in the session with this TSIH.
    Done(u16),
}

/// The state of one login.
#[derive(Debug)]
pub(crate) struct InitiatorLogin {
    stage: u8,
    session_type: SessionType,
    pdus: u32,
    pdus_max: u32,
    text: TextBuffer,
    negotiation: Negotiation,
    chap: Option<InitiatorChap>,
    /// AuthMethod and CHAP keys of the current response.
    method: Option<String>,
    chap_keys: chap::Keys,
    target_address: Option<String>,
    portal_group_tag: Option<u16>,
    /// Whether the last request asked to leave the stage.
    transit: bool,
}

impl InitiatorLogin {
    pub(crate) fn new(
        mut negotiation: Negotiation,
        session_type: SessionType,
        authentication: Option<Authentication>,
        pdus_max: u32,
        text_len_max: usize,
    ) -> InitiatorLogin {
        if session_type == SessionType::Discovery {
            negotiation.set_discovery();
        }
        InitiatorLogin {
            stage: SECURITY,
            session_type,
            pdus: 0,
            pdus_max,
            text: TextBuffer::new(text_len_max),
            negotiation,
            // With CHAP, the first request must stay in the security stage.
            transit: authentication.is_none(),
            chap: authentication.map(InitiatorChap::new),
            method: None,
            chap_keys: chap::Keys::default(),
            target_address: None,
            portal_group_tag: None,
        }
    }

    pub(crate) fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    /// TargetPortalGroupTag, if the target has declared it.
    pub(crate) fn portal_group_tag(&self) -> Option<u16> {
        self.portal_group_tag
    }

    /// Flags and text of the first request.
    pub(crate) fn start(&self, initiator: &str, target: Option<&str>) -> (u8, Vec<u8>) {
        let mut text = Vec::new();
        text::push(&mut text, "InitiatorName", initiator);
        if let Some(target) = target {
            text::push(&mut text, "TargetName", target);
        }
        let session_type = match self.session_type {
            SessionType::Normal => "Normal",
            SessionType::Discovery => "Discovery",
        };
        text::push(&mut text, "SessionType", session_type);
        // CHAP is not offered together with None: the target, or an attacker on the path, could choose None.
        if self.chap.is_some() {
            text::push(&mut text, "AuthMethod", "CHAP");
            return (SECURITY << 2, text);
        }
        text::push(&mut text, "AuthMethod", "None");
        (TRANSIT | SECURITY << 2 | OPERATIONAL, text)
    }

    /// Handles a Login Response with its data segment.
    pub(crate) fn receive(
        &mut self,
        response: &LoginResponse,
        data: &[u8],
    ) -> Result<InitiatorStep, CloseReason> {
        self.step(response, data).map_err(|error| match error {
            Stop::Refused(status) => CloseReason::LoginRefused {
                status,
                target_address: self.target_address.take(),
            },
            Stop::Error(error) => CloseReason::Protocol(error),
        })
    }

    fn step(&mut self, response: &LoginResponse, data: &[u8]) -> Result<InitiatorStep, Stop> {
        self.pdus += 1;
        if self.pdus > self.pdus_max {
            let max = self.pdus_max as usize;
            return Err(Error::Limit {
                what: "Login Responses",
                max,
            }
            .into());
        }
        self.text.append(data)?;
        let status = LoginStatus(response.status.get());
        if status.class() != 0 {
            // A redirection carries an address; any other text in a refusal is irrelevant.
            let text = self.text.take();
            let mut pairs = text::pairs(&text).map_while(Result::ok);
            let address = pairs.find(|pair| pair.0 == "TargetAddress");
            self.target_address = address.map(|pair| pair.1.to_owned());
            return Err(Stop::Refused(status));
        }
        if response.version_active != 0 {
            return Err(field(
                "Version-active",
                response.version_active.into(),
                "0 was offered",
            ));
        }
        let (current, granted) = Transition::of(response.flags);
        let flags = u64::from(response.flags);
        if current != self.stage {
            return Err(field("CSG", flags, "it must be the stage of the request"));
        }
        if response.flags & CONTINUE != 0 {
            return match granted.transit {
                true => Err(field("flags", flags, "T and C must not both be set")),
                false => {
                    self.transit = false;
                    Ok(InitiatorStep::Request(self.stage << 2, Vec::new()))
                }
            };
        }
        let text = self.text.take();
        let mut reply = Vec::new();
        for pair in text::pairs(&text) {
            let (key, value) = pair?;
            self.take_pair(key, value, &mut reply)?;
        }
        let next = self.authenticate(granted.transit, &mut reply)?;
        if !granted.transit {
            self.transit = next == Next::Leave;
            if !self.transit {
                return Ok(InitiatorStep::Request(self.stage << 2, reply));
            }
            return Ok(InitiatorStep::Request(
                self.stage << 2 | TRANSIT | self.wanted_stage(),
                reply,
            ));
        }
        if !self.transit || granted.next != self.wanted_stage() {
            return Err(field(
                "NSG",
                flags,
                "it must be the stage that was asked for",
            ));
        }
        self.stage = granted.next;
        if self.stage == FULL_FEATURE {
            return Ok(InitiatorStep::Done(response.tsih.get()));
        }
        for (key, value) in self.negotiation.offers() {
            text::push(&mut reply, key, &value);
        }
        Ok(InitiatorStep::Request(
            self.stage << 2 | TRANSIT | self.wanted_stage(),
            reply,
        ))
    }

    /// Performs the CHAP step that is due.
    fn authenticate(&mut self, leaves: bool, reply: &mut Vec<u8>) -> Result<Next, Error> {
        let (method, keys) = (self.method.take(), std::mem::take(&mut self.chap_keys));
        match &mut self.chap {
            Some(chap) => chap
                .advance(method.as_deref(), &keys, leaves, reply)
                .map_err(Error::Authentication),
            None if method.is_some_and(|method| method != "None") || !keys.is_empty() => {
                Err(Error::Authentication(
                    "the target requires authentication, but none is configured; add `chap`",
                ))
            }
            None => Ok(Next::Leave),
        }
    }

    fn wanted_stage(&self) -> u8 {
        if self.stage == SECURITY {
            OPERATIONAL
        } else {
            FULL_FEATURE
        }
    }

    fn take_pair(&mut self, key: &str, value: &str, reply: &mut Vec<u8>) -> Result<(), Error> {
        match key {
            "AuthMethod" => {
                if self.method.replace(value.to_owned()).is_some() {
                    return Err(Error::Authentication("the target sent AuthMethod twice"));
                }
            }
            "TargetPortalGroupTag" => {
                let tag = text::number(value).and_then(|tag| u16::try_from(tag).ok());
                self.portal_group_tag = tag;
            }
            "TargetAlias" => {}
            "TargetAddress" => self.target_address = Some(value.to_owned()),
            _ if self
                .chap_keys
                .take(key, value)
                .map_err(Error::Authentication)? => {}
            _ => {
                if let Some(answer) = self.negotiation.take(key, value)? {
                    text::push(reply, key, &answer);
                }
            }
        }
        Ok(())
    }
}

/// Why a login cannot continue.
enum Stop {
    Refused(LoginStatus),
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

fn field(field: &'static str, value: u64, why: &'static str) -> Stop {
    Stop::Error(Error::Field {
        pdu: "Login Response",
        field,
        value,
        why,
    })
}
