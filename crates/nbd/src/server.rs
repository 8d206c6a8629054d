//! The server's side of one connection: the handshake with its options, then the transmission with its requests.

use std::collections::VecDeque;

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    error::Violation,
    export::Export,
    option::{ContextRequest, InfoRequest, Malformed, push_refusal, push_reply},
    request::{Agreed, Meaning, NbdRequest, SKIP_MAX_BYTES, parse},
    wire::{
        INIT_MAGIC, OPTION_MAGIC, OptionHeader, RequestHeader, STRING_MAX_BYTES, context,
        handshake, option, option_reply,
    },
};

/// The longest option data that is parsed, in bytes: room for some names and many queries.
pub const OPTION_MAX_BYTES: usize = 16 << 10;
/// The maximum number of options that a client may send before the transmission.
pub const OPTIONS_MAX: u32 = 64;
/// The most that [`Server::receive`] ever needs at once, in bytes.
pub const RECEIVE_MAX_BYTES: usize = size_of::<OptionHeader>() + OPTION_MAX_BYTES;

/// The padding after the reply to NBD_OPT_EXPORT_NAME, unless the client negotiated NBD_FLAG_C_NO_ZEROES.
const PADDING: [u8; 124] = [0; 124];

/// What the driver must do, in order.
#[derive(Debug)]
pub enum NbdEvent {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Receive this many bytes and discard them.
    Skip(u32),
    /// NBD_OPT_INFO or NBD_OPT_GO for the export was refused because TLS was not on. Reported once.
    AskedWithoutTls,
    /// Once everything has been sent, start TLS as its server. Bytes received before that must not be treated as if
    /// they had arrived under TLS.
    StartTls,
    /// The handshake is over: the client has chosen the export.
    Transmission,
    /// Perform this request and answer it. The data of a write follows on the wire.
    Request(NbdRequest),
    /// The client disconnects: answer the open requests, then close.
    End,
}

/// What became of the bytes given to [`Server::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveOutcome {
    /// This many bytes from the front were consumed, and there may be events.
    Took(usize),
    /// Nothing was consumed: at least this many bytes are needed, at most [`RECEIVE_MAX_BYTES`].
    Needs(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NbdPhase {
    ClientFlags,
    Options,
    Transmission,
    Over,
}

/// The protocol machine of one connection.
#[derive(Debug)]
pub struct Server {
    export: Export,
    /// Whether TLS is offered, and therefore mandatory.
    has_tls: bool,
    /// Whether TLS is on.
    is_secure: bool,
    /// Whether the client asked for the export before TLS was on.
    has_asked_without_tls: bool,
    phase: NbdPhase,
    client_flags: u16,
    options: u32,
    agreed: Agreed,
    events: VecDeque<NbdEvent>,
}

impl Server {
    /// Starts serving `export` to a client. With `has_tls`, TLS is mandatory.
    pub fn new(export: Export, has_tls: bool) -> Server {
        let mut greeting = Vec::new();
        greeting.extend_from_slice(&INIT_MAGIC.to_be_bytes());
        greeting.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        greeting.extend_from_slice(&flags.to_be_bytes());
        Server {
            export,
            has_tls,
            is_secure: false,
            has_asked_without_tls: false,
            phase: NbdPhase::ClientFlags,
            client_flags: 0,
            options: 0,
            agreed: Agreed::default(),
            events: VecDeque::from([NbdEvent::Send(greeting)]),
        }
    }

    /// The next event to handle.
    pub fn poll_event(&mut self) -> Option<NbdEvent> {
        self.events.pop_front()
    }

    /// Whether the handshake is over.
    pub fn is_in_transmission(&self) -> bool {
        self.phase == NbdPhase::Transmission
    }

    /// Consumes the next message from the front of `bytes`, which holds everything received but not yet consumed. All
    /// events must be handled before the next call.
    ///
    /// # Errors
    /// [`Violation`]: the connection must be closed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<ReceiveOutcome, Violation> {
        debug_assert!(self.events.is_empty(), "what was said before is done");
        match self.phase {
            NbdPhase::ClientFlags => self.receive_flags(bytes),
            NbdPhase::Options => self.receive_option(bytes),
            NbdPhase::Transmission => self.receive_request(bytes),
            NbdPhase::Over => Ok(ReceiveOutcome::Took(bytes.len())),
        }
    }

    fn receive_flags(&mut self, bytes: &[u8]) -> Result<ReceiveOutcome, Violation> {
        let Some(flags) = bytes.first_chunk::<4>() else {
            return Ok(ReceiveOutcome::Needs(4));
        };
        let flags = u32::from_be_bytes(*flags);
        let known = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let unknown = flags & !u32::from(known);
        if unknown != 0 {
            return Err(Violation::ClientFlags(unknown));
        }
        self.client_flags = flags as u16;
        self.phase = NbdPhase::Options;
        Ok(ReceiveOutcome::Took(4))
    }

    fn receive_option(&mut self, bytes: &[u8]) -> Result<ReceiveOutcome, Violation> {
        let Ok((header, rest)) = OptionHeader::ref_from_prefix(bytes) else {
            return Ok(ReceiveOutcome::Needs(size_of::<OptionHeader>()));
        };
        if header.magic.get() != OPTION_MAGIC {
            return Err(Violation::OptionMagic(header.magic.get()));
        }
        let (option, len) = (header.option.get(), header.len.get() as usize);
        let whole = size_of::<OptionHeader>() + len;
        if len <= OPTION_MAX_BYTES && rest.len() < len {
            return Ok(ReceiveOutcome::Needs(whole));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Violation::TooManyOptions(OPTIONS_MAX));
        }
        if len <= OPTION_MAX_BYTES {
            self.act_on(option, &rest[..len])?;
            return Ok(ReceiveOutcome::Took(whole));
        }
        if header.len.get() > SKIP_MAX_BYTES || option == option::EXPORT_NAME {
            return Err(Violation::TooLong(header.len.get()));
        }
        self.refuse(
            option,
            option_reply::TOO_BIG,
            "the option has too much data",
        );
        self.events.push_back(NbdEvent::Skip(header.len.get()));
        Ok(ReceiveOutcome::Took(size_of::<OptionHeader>()))
    }

    fn act_on(&mut self, option: u32, data: &[u8]) -> Result<(), Violation> {
        let is_bare = self.has_tls && !self.is_secure;
        match option {
            option::EXPORT_NAME if is_bare => return Err(Violation::WithoutTls),
            option::ABORT => {
                self.accept(option);
                self.events.push_back(NbdEvent::End);
                self.phase = NbdPhase::Over;
            }
            option::STARTTLS => self.start_tls(data),
            _ if is_bare => {
                self.refuse(
                    option,
                    option_reply::TLS_REQUIRED,
                    "start TLS first (NBD_OPT_STARTTLS)",
                );
                if matches!(option, option::INFO | option::GO) && !self.has_asked_without_tls {
                    self.has_asked_without_tls = true;
                    self.events.push_back(NbdEvent::AskedWithoutTls);
                }
            }
            option::EXPORT_NAME => self.choose(data)?,
            option::LIST if !data.is_empty() => self.refuse_data(option),
            option::LIST => {
                let name = self.export.name.as_bytes();
                let mut server = (name.len() as u32).to_be_bytes().to_vec();
                server.extend_from_slice(name);
                let mut replies = Vec::new();
                push_reply(&mut replies, option, option_reply::SERVER, &server);
                push_reply(&mut replies, option, option_reply::ACK, &[]);
                self.events.push_back(NbdEvent::Send(replies));
            }
            option::INFO | option::GO => match InfoRequest::parse(data) {
                Ok(request) => self.inform(option, &request),
                Err(malformed) => self.refuse_malformed(option, malformed),
            },
            option::STRUCTURED_REPLY if !data.is_empty() => self.refuse_data(option),
            option::STRUCTURED_REPLY => {
                self.agreed.is_structured = true;
                self.accept(option);
            }
            option::SET_META_CONTEXT | option::LIST_META_CONTEXT => {
                if option == option::SET_META_CONTEXT {
                    // Even if this request fails: a new one replaces the previous selection.
                    self.agreed.has_allocation = false;
                }
                match ContextRequest::parse(data) {
                    Ok(request) => self.tell_contexts(option, &request),
                    Err(malformed) => self.refuse_malformed(option, malformed),
                }
            }
            _ => self.refuse(
                option,
                option_reply::UNSUPPORTED,
                "this option is not supported",
            ),
        }
        Ok(())
    }

    fn start_tls(&mut self, data: &[u8]) {
        let option = option::STARTTLS;
        let is_fixed = self.client_flags & handshake::FIXED_NEWSTYLE != 0;
        if !data.is_empty() {
            return self.refuse_data(option);
        }
        if self.is_secure {
            return self.refuse(option, option_reply::INVALID, "TLS is already active");
        }
        if !self.has_tls || !is_fixed {
            return self.refuse(option, option_reply::POLICY, "TLS is not configured");
        }
        self.is_secure = true;
        // Discards everything negotiated before TLS, which an attacker could have injected.
        self.agreed = Agreed::default();
        self.accept(option);
        self.events.push_back(NbdEvent::StartTls);
    }

    /// Handles NBD_OPT_EXPORT_NAME, which has no error reply.
    fn choose(&mut self, name: &[u8]) -> Result<(), Violation> {
        if !self.export.is_called(name) {
            let name = &name[..name.len().min(STRING_MAX_BYTES)];
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(Violation::NoSuchExport(name, self.export.name.clone()));
        }
        let mut reply = self.export.len_bytes.to_be_bytes().to_vec();
        reply.extend_from_slice(&self.flags().to_be_bytes());
        if self.client_flags & handshake::NO_ZEROES == 0 {
            reply.extend_from_slice(&PADDING);
        }
        self.events.push_back(NbdEvent::Send(reply));
        self.begin_transmission();
        Ok(())
    }

    fn inform(&mut self, option: u32, request: &InfoRequest<'_>) {
        if !self.export.is_called(request.name) {
            return self.refuse_unknown(option);
        }
        let mut replies = Vec::new();
        request.push_replies(&mut replies, option, &self.export, self.flags());
        push_reply(&mut replies, option, option_reply::ACK, &[]);
        self.events.push_back(NbdEvent::Send(replies));
        if option == option::GO {
            self.begin_transmission();
        }
    }

    fn tell_contexts(&mut self, option: u32, request: &ContextRequest<'_>) {
        if !self.agreed.is_structured {
            let why = "block status requires structured replies (NBD_OPT_STRUCTURED_REPLY)";
            return self.refuse(option, option_reply::INVALID, why);
        }
        if !self.export.is_called(request.name) {
            return self.refuse_unknown(option);
        }
        let (is_told, id) = match option == option::SET_META_CONTEXT {
            true => (request.names_allocation, context::ALLOCATION_ID),
            false => (
                request.names_allocation || request.names_base || request.is_empty,
                0,
            ),
        };
        self.agreed.has_allocation |= is_told && option == option::SET_META_CONTEXT;
        let mut replies = Vec::new();
        if is_told {
            let mut told = id.to_be_bytes().to_vec();
            told.extend_from_slice(context::ALLOCATION.as_bytes());
            push_reply(&mut replies, option, option_reply::META_CONTEXT, &told);
        }
        push_reply(&mut replies, option, option_reply::ACK, &[]);
        self.events.push_back(NbdEvent::Send(replies));
    }

    fn flags(&self) -> u16 {
        self.export.flags(self.agreed.is_structured)
    }

    fn begin_transmission(&mut self) {
        self.phase = NbdPhase::Transmission;
        self.events.push_back(NbdEvent::Transmission);
    }

    fn accept(&mut self, option: u32) {
        let mut reply = Vec::new();
        push_reply(&mut reply, option, option_reply::ACK, &[]);
        self.events.push_back(NbdEvent::Send(reply));
    }

    fn refuse(&mut self, option: u32, kind: u32, message: &str) {
        let mut reply = Vec::new();
        push_refusal(&mut reply, option, kind, message);
        self.events.push_back(NbdEvent::Send(reply));
    }

    fn refuse_data(&mut self, option: u32) {
        self.refuse(option, option_reply::INVALID, "the option takes no data");
    }

    fn refuse_malformed(&mut self, option: u32, malformed: Malformed) {
        self.refuse(option, option_reply::INVALID, malformed.0);
    }

    fn refuse_unknown(&mut self, option: u32) {
        let message = format!(
            "there is no such export; the only one is called {:?}",
            self.export.name
        );
        self.refuse(option, option_reply::UNKNOWN, &message);
    }

    fn receive_request(&mut self, bytes: &[u8]) -> Result<ReceiveOutcome, Violation> {
        let Ok((header, _)) = RequestHeader::ref_from_prefix(bytes) else {
            return Ok(ReceiveOutcome::Needs(size_of::<RequestHeader>()));
        };
        match parse(header, &self.export, self.agreed)? {
            Meaning::Do(request) => self.events.push_back(NbdEvent::Request(request)),
            Meaning::Answered(reply, follow) => {
                self.events.push_back(NbdEvent::Send(reply.to_vec()));
                if follow > 0 {
                    self.events.push_back(NbdEvent::Skip(follow));
                }
            }
            Meaning::Disconnect => {
                self.phase = NbdPhase::Over;
                self.events.push_back(NbdEvent::End);
            }
        }
        Ok(ReceiveOutcome::Took(header.as_bytes().len()))
    }
}

#[cfg(test)]
mod tests;
