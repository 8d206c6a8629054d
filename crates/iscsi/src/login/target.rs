//! The target's half of a login. Each Login Request is answered either immediately or after a question to the driver:
//! may this initiator use this target ([`TargetStep::Identify`]), and, once everything is negotiated, may the session begin
//! ([`TargetStep::Begin`])? In between, the initiator authenticates if the driver demands it
//! ([`TargetLogin::authenticate`]).

use super::chap::{self, Authentication, TargetChap};
use super::{
    CONTINUE, FULL_FEATURE, Isid, LOGIN_TEXT_LEN_MAX, LoginReport, LoginRequest, OPERATIONAL,
    SECURITY, SessionType, TRANSIT, Transition,
};
use crate::params::{Negotiation, OperationalConfig};
use crate::pdu;
use crate::status::LoginStatus;
use crate::text::{self, TextBuffer};

/// The most pairs in the text of one request. There are some forty keys; each pair costs time.
const PAIRS_MAX: usize = 256;

/// The next step after a Login Request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TargetStep {
    /// Send a Login Response with these flags and this text.
    Respond(u8, Vec<u8>),
    /// Ask the driver about the initiator, then call [`TargetLogin::identified`].
    Identify(LoginRequest),
    /// Ask the driver whether the session may begin, then call [`TargetLogin::begin`].
    Begin(LoginRequest),
    /// Send a Login Response that ends the login.
    Refuse(LoginStatus),
}

/// The state of one login.
#[derive(Debug)]
pub(crate) struct TargetLogin {
    /// Set by the first request; these values must not change afterwards.
    first: Option<First>,
    stage: u8,
    pdus_left: u32,
    text: TextBuffer,
    reply: Vec<u8>,
    requested: Transition,
    who: LoginRequest,
    identified: bool,
    /// AuthMethod as offered, while not answered.
    methods: Option<String>,
    chap_keys: chap::Keys,
    /// The authentication that the driver demands.
    chap: Option<TargetChap>,
    failure: Option<AuthenticationFailure>,
    complaint: Option<&'static str>,
    alias: Option<String>,
    negotiation: Negotiation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct First {
    isid: Isid,
    tsih: u16,
    cid: u16,
    initiator_task_tag: u32,
}

/// Why an initiator failed authentication; for the target's log only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthenticationFailure {
    pub(crate) user: Option<String>,
    pub(crate) why: &'static str,
}

impl TargetLogin {
    pub(crate) fn new(
        config: OperationalConfig,
        pdus_max: u32,
        text_len_max: usize,
        alias: Option<String>,
    ) -> TargetLogin {
        TargetLogin {
            first: None,
            stage: SECURITY,
            pdus_left: pdus_max,
            text: TextBuffer::new(text_len_max),
            reply: Vec::new(),
            requested: Transition {
                transit: false,
                next: OPERATIONAL,
            },
            who: LoginRequest {
                initiator_name: String::new(),
                initiator_alias: None,
                target_name: None,
                session_type: SessionType::Normal,
                isid: Isid::default(),
                tsih: 0,
                cid: 0,
            },
            identified: false,
            methods: None,
            chap_keys: chap::Keys::default(),
            chap: None,
            failure: None,
            complaint: None,
            alias,
            negotiation: Negotiation::new(config),
        }
    }

    pub(crate) fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    pub(crate) fn who(&self) -> &LoginRequest {
        &self.who
    }

    /// Whether a Login Request has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// What is known about the login, for the target's log.
    pub(crate) fn report(&self) -> LoginReport<'_> {
        LoginReport {
            request: &self.who,
            has_begun: self.has_begun(),
            complaint: self.complaint,
            has_proven: self.chap.as_ref().is_some_and(TargetChap::has_proven),
            account: self.chap.as_ref().and_then(TargetChap::account),
        }
    }

    /// Records what the initiator did wrong.
    pub(crate) fn wrong(&mut self, why: &'static str) -> LoginStatus {
        self.complaint = Some(why);
        LoginStatus::INITIATOR_ERROR
    }

    /// Takes the authentication failure, if that is why the login was refused.
    pub(crate) fn take_failure(&mut self) -> Option<AuthenticationFailure> {
        self.failure.take()
    }

    /// Handles a Login Request with its data segment.
    pub(crate) fn receive(&mut self, request: &pdu::LoginRequest, data: &[u8]) -> TargetStep {
        self.step(request, data).unwrap_or_else(TargetStep::Refuse)
    }

    fn step(
        &mut self,
        request: &pdu::LoginRequest,
        data: &[u8],
    ) -> Result<TargetStep, LoginStatus> {
        self.check(request)?;
        self.text
            .append(data)
            .map_err(|_| LoginStatus::OUT_OF_RESOURCES)?;
        if request.flags & CONTINUE != 0 {
            return Ok(TargetStep::Respond(self.stage << 2, Vec::new()));
        }
        let text = self.text.take();
        self.take_text(&text)?;
        if self.identified {
            return self.advance();
        }
        let named = self.who.target_name.is_some();
        if self.who.initiator_name.is_empty()
            || (self.who.session_type == SessionType::Normal && !named)
        {
            return Err(LoginStatus::MISSING_PARAMETER);
        }
        Ok(TargetStep::Identify(self.who.clone()))
    }

    /// Checks the header by the rules of §11.12: version, stages, and fields that must not change.
    fn check(&mut self, request: &pdu::LoginRequest) -> Result<(), LoginStatus> {
        self.pdus_left = self
            .pdus_left
            .checked_sub(1)
            .ok_or(LoginStatus::OUT_OF_RESOURCES)?;
        if request.version_min > 0 {
            return Err(LoginStatus::UNSUPPORTED_VERSION);
        }
        let first = First {
            isid: Isid(request.isid),
            tsih: request.tsih.get(),
            cid: request.cid.get(),
            initiator_task_tag: request.initiator_task_tag.get(),
        };
        let (current, requested) = Transition::of(request.flags);
        if self.first.is_none() {
            self.stage = current;
            self.who.isid = first.isid;
            self.who.tsih = first.tsih;
            self.who.cid = first.cid;
        }
        let continued = request.flags & CONTINUE != 0;
        let legal_stage = current == self.stage
            && matches!(current, SECURITY | OPERATIONAL)
            && (!requested.transit || (requested.is_legal_after(current) && !continued));
        if *self.first.get_or_insert(first) != first {
            return Err(self.wrong("ISID, TSIH, CID or task tag changed between its requests"));
        }
        if !legal_stage {
            return Err(self.wrong("its request names a stage that is not allowed"));
        }
        self.requested = requested;
        Ok(())
    }

    fn take_text(&mut self, text: &[u8]) -> Result<(), LoginStatus> {
        let pairs: Result<Vec<_>, _> = text::pairs(text).take(PAIRS_MAX + 1).collect();
        let pairs = pairs.map_err(|_| self.wrong("its text is not KEY=VALUE pairs"))?;
        if pairs.len() > PAIRS_MAX {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        // SessionType determines the meaning of other keys, wherever it appears.
        if pairs.contains(&("SessionType", "Discovery")) && !self.identified {
            self.who.session_type = SessionType::Discovery;
            self.negotiation.set_discovery();
        }
        for (key, value) in pairs {
            self.take_pair(key, value)?;
        }
        match self.reply.len() > LOGIN_TEXT_LEN_MAX {
            true => Err(LoginStatus::OUT_OF_RESOURCES),
            false => Ok(()),
        }
    }

    fn take_pair(&mut self, key: &str, value: &str) -> Result<(), LoginStatus> {
        let leading = !self.identified;
        match key {
            // libiscsi repeats these keys in the operational stage (§13.4, §13.5, §13.21 allow them once); repeating
            // the same value does no harm.
            "InitiatorName" | "TargetName" if !text::is_name(value) => {
                return Err(self.wrong("its InitiatorName or TargetName is not an iSCSI name"));
            }
            "InitiatorName" => {
                let name = text::folded_name(value);
                if leading && self.who.initiator_name.is_empty() {
                    self.who.initiator_name = name;
                } else if self.who.initiator_name != name {
                    return Err(self.wrong("its InitiatorName changed"));
                }
            }
            "TargetName" => {
                let name = Some(text::folded_name(value));
                if leading && self.who.target_name.is_none() {
                    self.who.target_name = name;
                } else if self.who.target_name != name {
                    return Err(self.wrong("its TargetName changed or came late"));
                }
            }
            "InitiatorAlias" if value.len() <= 255 => {
                self.who.initiator_alias = Some(value.to_owned());
            }
            "SessionType" if leading => match value {
                "Normal" | "Discovery" => {}
                _ => return Err(LoginStatus::SESSION_TYPE_NOT_SUPPORTED),
            },
            "InitiatorAlias" => return Err(self.wrong("its InitiatorAlias is too long")),
            "SessionType" => {
                let is_discovery = self.who.session_type == SessionType::Discovery;
                if value != if is_discovery { "Discovery" } else { "Normal" } {
                    return Err(self.wrong("its SessionType changed"));
                }
            }
            "AuthMethod" if self.stage == SECURITY => {
                if self.methods.replace(value.to_owned()).is_some() {
                    return Err(self.wrong("it sent AuthMethod twice"));
                }
            }
            _ if self.take_chap_key(key, value)? => {}
            _ => match self.negotiation.take(key, value) {
                Ok(Some(answer)) => text::push(&mut self.reply, key, &answer),
                Ok(None) => {}
                Err(_) => return Err(self.wrong("a key has an invalid value")),
            },
        }
        Ok(())
    }

    fn take_chap_key(&mut self, key: &str, value: &str) -> Result<bool, LoginStatus> {
        let taken = self.chap_keys.take(key, value);
        taken.map_err(|why| self.fail(self.chap_keys.name(), why))
    }

    /// Demands that the initiator authenticate; call before [`TargetLogin::identified`].
    pub(crate) fn demand(&mut self, authentication: Authentication) {
        self.chap = Some(TargetChap::new(authentication));
    }

    /// The driver lets the initiator continue.
    pub(crate) fn identified(&mut self, portal_group_tag: u16) -> TargetStep {
        self.identified = true;
        if self.who.session_type == SessionType::Normal {
            // Must be in the first response (§13.9).
            let tag = portal_group_tag.to_string();
            text::push(&mut self.reply, "TargetPortalGroupTag", &tag);
        }
        self.advance().unwrap_or_else(TargetStep::Refuse)
    }

    fn advance(&mut self) -> Result<TargetStep, LoginStatus> {
        self.authenticate()?;
        let ends = self.requested.transit && self.requested.next == FULL_FEATURE;
        if self.stage == OPERATIONAL || ends {
            if let Some((key, value)) = self.negotiation.declaration() {
                text::push(&mut self.reply, key, &value);
                if let Some(alias) = &self.alias {
                    text::push(&mut self.reply, "TargetAlias", alias);
                }
            }
        }
        if ends {
            return Ok(TargetStep::Begin(self.who.clone()));
        }
        Ok(self.respond())
    }

    /// Handles the request's AuthMethod and CHAP keys. The login cannot leave the security stage until the required
    /// authentication has succeeded.
    fn authenticate(&mut self) -> Result<(), LoginStatus> {
        let methods = self.methods.take();
        let keys = std::mem::take(&mut self.chap_keys);
        let offers = |method| {
            methods
                .as_ref()
                .is_some_and(|m| m.split(',').any(|m| m == method))
        };
        let Some(chap) = &mut self.chap else {
            if !keys.is_empty() {
                return Err(self.wrong("it sent CHAP keys without AuthMethod=CHAP"));
            }
            if methods.is_some() {
                if !offers("None") {
                    return Err(
                        self.fail(None, "it requires authentication, but none is configured")
                    );
                }
                text::push(&mut self.reply, "AuthMethod", "None");
            }
            return Ok(());
        };
        let was_agreed = chap.is_agreed();
        if methods.is_some() {
            if was_agreed || !offers("CHAP") {
                return Err(self.fail(None, "it does not offer CHAP"));
            }
            text::push(&mut self.reply, "AuthMethod", "CHAP");
            chap.agree();
        }
        if !keys.is_empty() || (was_agreed && !chap.is_done()) {
            if let Err(why) = chap.advance(&keys, &mut self.reply) {
                return Err(self.fail(keys.name(), why));
            }
        }
        if chap.is_done() {
            return Ok(());
        }
        let leaves = self.stage != SECURITY || self.requested.transit;
        if leaves && !chap.is_agreed() {
            return Err(self.fail(None, "it tries to continue without authentication"));
        }
        self.requested.transit = false;
        Ok(())
    }

    fn fail(&mut self, user: Option<String>, why: &'static str) -> LoginStatus {
        self.failure = Some(AuthenticationFailure { user, why });
        LoginStatus::AUTHENTICATION_FAILURE
    }

    /// The final response, with which the session begins.
    pub(crate) fn begin(&mut self) -> TargetStep {
        self.respond()
    }

    fn respond(&mut self) -> TargetStep {
        let flags = self.stage << 2;
        let text = std::mem::take(&mut self.reply);
        if !self.requested.transit {
            return TargetStep::Respond(flags, text);
        }
        self.stage = self.requested.next;
        TargetStep::Respond(flags | TRANSIT | self.stage, text)
    }
}
