//! The handshake and the transmission checked byte by byte against the specification, and arbitrary bytes in
//! arbitrary segments.

use proptest::prelude::*;

use super::*;
use crate::{AllocationExtent, BlockSizes, ErrorCode, NbdCommand, wire};

const LEN_BYTES: u64 = 1 << 20;
const GO: u32 = option::GO;

fn export() -> Export {
    Export {
        name: "db".into(),
        len_bytes: LEN_BYTES,
        block: BlockSizes {
            minimum: 512,
            preferred: 4096,
            payload_max: 64 << 10,
        },
        is_read_only: false,
        can_trim: true,
    }
}

/// A client that sends bytes and records the server's output.
struct Client {
    server: Server,
    /// Bytes from the server that have not been examined.
    received: Vec<u8>,
    requests: Vec<NbdRequest>,
    /// The other events that the driver saw.
    told: Vec<&'static str>,
    skip: usize,
}

impl Client {
    /// A connected client that has consumed the greeting.
    fn of(export: Export, has_tls: bool) -> Client {
        let mut client = Client {
            server: Server::new(export, has_tls),
            received: Vec::new(),
            requests: Vec::new(),
            told: Vec::new(),
            skip: 0,
        };
        client.follow();
        assert_eq!(client.take(8), b"NBDMAGIC");
        assert_eq!(client.take(8), b"IHAVEOPT");
        assert_eq!(client.take(2), [0, 3]);
        client
    }

    fn new() -> Client {
        let mut client = Client::of(export(), false);
        client.send(&[0, 0, 0, 3]);
        client
    }

    /// A client in transmission, with structured replies and block status if `is_structured`.
    fn in_transmission(is_structured: bool) -> Client {
        let mut client = Client::new();
        if is_structured {
            client.option(option::STRUCTURED_REPLY, &[]);
            client.option(
                option::SET_META_CONTEXT,
                &contexts("db", &["base:allocation"]),
            );
        }
        client.option(GO, &info("", &[]));
        assert_eq!(client.told, ["transmission"]);
        client.received.clear();
        client
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut left = bytes;
        loop {
            let skipped = self.skip.min(left.len());
            self.skip -= skipped;
            left = &left[skipped..];
            match self.server.receive(left)? {
                ReceiveOutcome::Took(len) => {
                    left = &left[len..];
                    self.follow();
                }
                ReceiveOutcome::Needs(len) => {
                    assert!(len > left.len() && len <= RECEIVE_MAX_BYTES);
                    assert!(left.is_empty(), "whole messages are sent");
                    return Ok(());
                }
            }
            if left.is_empty() {
                return Ok(());
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("it keeps to the protocol");
    }

    fn follow(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                NbdEvent::Send(bytes) => self.received.extend(bytes),
                NbdEvent::Skip(len) => self.skip += len as usize,
                NbdEvent::AskedWithoutTls => self.told.push("without tls"),
                NbdEvent::StartTls => self.told.push("tls"),
                NbdEvent::Transmission => self.told.push("transmission"),
                NbdEvent::Request(request) => self.requests.push(request),
                NbdEvent::End => self.told.push("end"),
            }
        }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        self.received.drain(..len).collect()
    }

    /// Sends an option; returns the types and data of the replies to it.
    fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&option_bytes(option, data));
        let mut replies = Vec::new();
        while !self.received.is_empty() {
            let header = self.take(20);
            assert_eq!(header[..8], wire::OPTION_REPLY_MAGIC.to_be_bytes());
            assert_eq!(header[8..12], option.to_be_bytes());
            let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            let data = self.take(number(16) as usize);
            replies.push((number(12), data));
        }
        replies
    }

    fn kinds(&mut self, option: u32, data: &[u8]) -> Vec<u32> {
        let replies = self.option(option, data).into_iter();
        replies.map(|(kind, _)| kind).collect()
    }

    /// Sends a request that the machine answers by itself; returns the answer.
    fn refused(&mut self, request: &[u8]) -> Vec<u8> {
        self.send(request);
        assert!(self.requests.is_empty(), "{:?}", self.requests);
        std::mem::take(&mut self.received)
    }

    /// Sends a request that the driver must perform; returns it.
    fn request(&mut self, request: &[u8]) -> NbdRequest {
        self.send(request);
        assert_eq!(self.received, [], "it has no answer yet");
        self.requests.pop().expect("it is to be done")
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn info(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|info| info.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

const COOKIE: u64 = 0x0102_0304_0506_0708;

fn request(kind: u16, flags: u16, at: u64, len: u32) -> Vec<u8> {
    let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(COOKIE.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

fn simple(error: u32) -> Vec<u8> {
    let mut bytes = wire::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(COOKIE.to_be_bytes());
    bytes
}

/// The error code of an error chunk.
fn error_of(chunk: &[u8]) -> u32 {
    assert_eq!(chunk[..4], wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
    assert_eq!(chunk[4..8], [0, 1, 0x80, 1], "the last chunk, an error");
    assert_eq!(chunk[8..16], COOKIE.to_be_bytes());
    let len = u32::from_be_bytes(chunk[16..20].try_into().unwrap()) as usize;
    let message = u16::from_be_bytes(chunk[24..26].try_into().unwrap()) as usize;
    assert_eq!((chunk.len(), len), (20 + len, 6 + message));
    assert!(message > 10, "people are told");
    u32::from_be_bytes(chunk[20..24].try_into().unwrap())
}

#[test]
fn the_old_way_into_the_transmission() {
    for (flags, padding) in [(0u8, 124), (1, 124), (3, 0)] {
        let mut client = Client::of(export(), false);
        client.send(&[0, 0, 0, flags]);
        client.send(&option_bytes(option::EXPORT_NAME, b"db"));
        assert_eq!(client.take(8), LEN_BYTES.to_be_bytes());
        // HAS_FLAGS, flush, FUA, trim, write zeroes, multi-conn, cache.
        assert_eq!(client.take(2), 0b101_0110_1101u16.to_be_bytes());
        assert_eq!(client.received, vec![0; padding]);
        assert_eq!(client.told, ["transmission"]);
    }
}

#[test]
fn who_names_another_export_is_refused() {
    let mut client = Client::new();
    assert_eq!(
        client.kinds(GO, &info("other", &[])),
        [option_reply::UNKNOWN]
    );
    assert_eq!(client.told, [""; 0]);
    let named = client.try_send(&option_bytes(option::EXPORT_NAME, b"other"));
    let error = named.expect_err("it has no other answer").to_string();
    assert!(error.contains("other") && error.contains("db"), "{error}");
}

#[test]
fn go_tells_what_is_asked_for() {
    let mut client = Client::new();
    let wanted = [wire::info::BLOCK_SIZE, wire::info::NAME, 2, 99];
    for option in [option::INFO, GO] {
        let replies = client.option(option, &info("", &wanted));
        let kinds: Vec<u32> = replies.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [3, 3, 3, option_reply::ACK]);
        let flags = 0b101_0110_1101u16.to_be_bytes();
        let export = [&[0, 0][..], &LEN_BYTES.to_be_bytes(), &flags].concat();
        assert_eq!(replies[0].1, export);
        assert_eq!(replies[1].1, b"\0\x01db");
        let sizes = [[0, 0, 2, 0], [0, 0, 16, 0], [0, 1, 0, 0]].concat();
        assert_eq!(replies[2].1, [&[0, 3][..], &sizes].concat());
        let is_in = option == GO;
        assert_eq!(client.server.is_in_transmission(), is_in);
    }
}

#[test]
fn an_export_says_what_it_cannot_do() {
    let flags = |change: fn(&mut Export)| {
        let mut export = export();
        change(&mut export);
        export.flags(true)
    };
    assert_eq!(flags(|export| export.is_read_only = true), 0b101_1000_1111);
    assert_eq!(flags(|export| export.can_trim = false), 0b101_1100_1101);
}

#[test]
fn options_are_refused_with_their_reason() {
    let mut client = Client::new();
    for (option, data, reply) in [
        (option::LIST, vec![1], option_reply::INVALID),
        (option::STRUCTURED_REPLY, vec![1], option_reply::INVALID),
        (option::STARTTLS, vec![1], option_reply::INVALID),
        (option::STARTTLS, vec![], option_reply::POLICY),
        (4, vec![], option_reply::UNSUPPORTED),
        (11, vec![], option_reply::UNSUPPORTED),
        (GO, vec![], option_reply::INVALID),
        (GO, vec![0xff; 6], option_reply::INVALID),
        (
            GO,
            [info("db", &[]), vec![0]].concat(),
            option_reply::INVALID,
        ),
        (GO, info(&"n".repeat(4097), &[]), option_reply::INVALID),
        // Structured replies must be negotiated first.
        (
            option::SET_META_CONTEXT,
            contexts("db", &[]),
            option_reply::INVALID,
        ),
    ] {
        let replies = client.option(option, &data);
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].0, reply, "option {option} with {data:?}");
        assert!(replies[0].1.len() > 10, "people are told");
    }
    let listed = client.option(option::LIST, &[]);
    assert_eq!(listed[0], (option_reply::SERVER, string("db")));
    assert_eq!(listed[1], (option_reply::ACK, vec![]));
    assert_eq!(client.kinds(option::ABORT, b"bye"), [option_reply::ACK]);
    assert_eq!(client.told, ["end"]);
}

#[test]
fn what_is_too_much_is_bounded() {
    let mut client = Client::new();
    let long = vec![0; OPTION_MAX_BYTES + 1];
    assert_eq!(client.kinds(option::LIST, &long), [option_reply::TOO_BIG]);
    for _ in 1..OPTIONS_MAX {
        client.option(option::LIST, &[]);
    }
    let many = client.try_send(&option_bytes(option::LIST, &[]));
    assert_eq!(many, Err(Violation::TooManyOptions(OPTIONS_MAX)));
    let mut client = Client::new();
    let mut header = option_bytes(option::LIST, &[]);
    header[12..].fill(0xff);
    assert_eq!(client.try_send(&header), Err(Violation::TooLong(u32::MAX)));
}

#[test]
fn a_client_that_speaks_something_else_is_sent_away() {
    let mut client = Client::of(export(), false);
    assert_eq!(
        client.try_send(b"GET "),
        Err(Violation::ClientFlags(0x4745_5420))
    );
    let mut client = Client::new();
    let garbage = client.try_send(&[7; 16]);
    assert_eq!(garbage, Err(Violation::OptionMagic(0x0707_0707_0707_0707)));
    let mut client = Client::in_transmission(false);
    assert_eq!(
        client.try_send(&[7; 28]),
        Err(Violation::RequestMagic(0x0707_0707))
    );
}

#[test]
fn contexts_are_selected_for_the_transmission() {
    let mut client = Client::new();
    client.option(option::STRUCTURED_REPLY, &[]);
    let told = [&[0; 4][..], b"base:allocation"].concat();
    for queries in [&[][..], &["base:"], &["other:x", "base:allocation"]] {
        let listed = client.option(option::LIST_META_CONTEXT, &contexts("db", queries));
        assert_eq!(listed[0], (option_reply::META_CONTEXT, told.clone()));
    }
    for queries in [&[][..], &["base:"], &["other:x"]] {
        let set = client.kinds(option::SET_META_CONTEXT, &contexts("db", queries));
        assert_eq!(set, [option_reply::ACK], "{queries:?}");
    }
    let query = contexts("", &["base:allocation"]);
    let set = client.option(option::SET_META_CONTEXT, &query);
    assert_eq!(set[0].1, [&[0, 0, 0, 1][..], b"base:allocation"].concat());
    assert!(client.server.agreed.has_allocation);
    // Only the last request counts, even if it fails.
    let other = contexts("other", &["base:allocation"]);
    let set = client.kinds(option::SET_META_CONTEXT, &other);
    assert_eq!(set, [option_reply::UNKNOWN]);
    assert!(!client.server.agreed.has_allocation);
}

#[test]
fn tls_comes_first_and_takes_back_what_was_agreed_before() {
    let mut client = Client::of(export(), true);
    client.send(&[0, 0, 0, 3]);
    for option in [
        option::LIST,
        GO,
        GO,
        option::INFO,
        option::STRUCTURED_REPLY,
        99,
    ] {
        assert_eq!(client.kinds(option, &[]), [option_reply::TLS_REQUIRED]);
    }
    assert_eq!(client.told.drain(..).as_slice(), ["without tls"]);
    let named = client.try_send(&option_bytes(option::EXPORT_NAME, b"db"));
    assert_eq!(named, Err(Violation::WithoutTls));
    client.server.agreed.is_structured = true;
    assert_eq!(client.kinds(option::STARTTLS, &[]), [option_reply::ACK]);
    assert_eq!(client.told, ["tls"]);
    assert_eq!(client.server.agreed, Agreed::default());
    assert_eq!(client.kinds(option::STARTTLS, &[]), [option_reply::INVALID]);
    assert_eq!(client.kinds(GO, &info("db", &[])), [3, option_reply::ACK]);
}

#[test]
fn requests_are_handed_over_as_they_are_meant() {
    for is_structured in [false, true] {
        let mut client = Client::in_transmission(is_structured);
        let (at, len) = (1024, 512);
        for (kind, flags, command) in [
            (0, 1, NbdCommand::Read { at, len }),
            (
                1,
                0,
                NbdCommand::Write {
                    at,
                    len,
                    fua: false,
                },
            ),
            (1, 1, NbdCommand::Write { at, len, fua: true }),
            (3, 1, NbdCommand::Flush),
            (
                4,
                0,
                NbdCommand::Trim {
                    at,
                    len,
                    fua: false,
                },
            ),
            (6, 0, zeroes(at, len, false, true)),
            (6, 3, zeroes(at, len, true, false)),
        ] {
            let request = client.request(&request(kind, flags, at, len));
            assert_eq!(request.command(), command);
        }
        client.send(&request(2, 0, 0, 0));
        assert_eq!(client.told.last(), Some(&"end"));
        client.send(b"anything");
    }
}

fn zeroes(at: u64, len: u32, fua: bool, may_discard: bool) -> NbdCommand {
    NbdCommand::WriteZeroes {
        at,
        len,
        fua,
        may_discard,
    }
}

#[test]
fn what_the_export_cannot_do_is_refused_by_number() {
    const INVALID: u32 = ErrorCode::Invalid as u32;
    const NO_SPACE: u32 = ErrorCode::NoSpace as u32;
    let end = LEN_BYTES;
    for is_structured in [false, true] {
        let too_long = match is_structured {
            true => ErrorCode::Overflow as u32,
            false => INVALID,
        };
        for (kind, flags, at, len, error) in [
            (0, 0, 0, 0, INVALID),
            (0, 0, 100, 512, INVALID),
            (0, 0, 512, 100, INVALID),
            (0, 0, end, 512, INVALID),
            (0, 0, end - 512, 1024, INVALID),
            (0, 0, u64::MAX, 512, INVALID),
            (0, 0, 0, (64 << 10) + 512, too_long),
            (0, 8, 0, 512, INVALID),
            (1, 2, 0, 512, INVALID),
            (1, 0, end, 512, NO_SPACE),
            (1, 0, 0, (64 << 10) + 512, INVALID),
            (3, 4, 0, 0, INVALID),
            (4, 0, end, 512, INVALID),
            // NBD_CMD_FLAG_FAST_ZERO is not offered.
            (6, 16, 0, 512, INVALID),
            (6, 0, end, 512, NO_SPACE),
            (7, 16, 0, 512, INVALID),
            (8, 0, 0, 512, INVALID),
            (99, 0, 0, 512, INVALID),
        ] {
            let mut client = Client::in_transmission(is_structured);
            let mut bytes = request(kind, flags, at, len);
            if kind == 1 {
                bytes.resize(bytes.len() + len as usize, 0xee);
            }
            let answer = client.refused(&bytes);
            match is_structured {
                true => assert_eq!(error_of(&answer), error, "{kind} {flags} {at} {len}"),
                false => assert_eq!(answer, simple(error), "{kind} {flags} {at} {len}"),
            }
            assert_eq!(
                client.refused(&request(5, 0, 0, 512)),
                simple(0),
                "it goes on"
            );
        }
    }
    let mut client = Client::in_transmission(false);
    assert_eq!(
        client.refused(&request(0, 4, 0, 512)),
        simple(INVALID),
        "no chunks, no DF"
    );
    assert_eq!(
        client.refused(&request(7, 0, 0, 512)),
        simple(INVALID),
        "no context"
    );
    let long = client.try_send(&request(1, 0, 0, (32 << 20) + 1));
    assert_eq!(long, Err(Violation::TooLong((32 << 20) + 1)));
}

#[test]
fn a_read_only_export_takes_no_changes() {
    let mut export = export();
    export.is_read_only = true;
    let mut client = Client::of(export, false);
    client.send(&[0, 0, 0, 3]);
    client.option(GO, &info("", &[]));
    for kind in [1, 4, 6] {
        let mut bytes = request(kind, 0, 0, 512);
        if kind == 1 {
            bytes.extend([0; 512]);
        }
        assert_eq!(client.refused(&bytes), simple(ErrorCode::Permission as u32));
    }
    assert_eq!(
        client.request(&request(3, 0, 0, 0)).command(),
        NbdCommand::Flush
    );
}

#[test]
fn replies_have_chunks_where_that_was_agreed() {
    let mut client = Client::in_transmission(true);
    let chunk = |kind: u8, len: u8| {
        let mut chunk = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
        chunk.extend([0, 1, 0, kind]);
        chunk.extend(COOKIE.to_be_bytes());
        chunk.extend([0, 0, 0, len]);
        chunk
    };
    let read = client.request(&request(0, 4, 1024, 512));
    let mut expected = chunk(1, 0);
    expected[18] = 2; // 512 bytes ...
    expected[19] = 8; // ... after their offset.
    expected.extend(1024u64.to_be_bytes());
    assert_eq!(read.data()[..], expected);
    let status = client.request(&request(7, 8, 1024, 4096));
    let one = true;
    let (at, len) = (1024, 4096);
    assert_eq!(status.command(), NbdCommand::BlockStatus { at, len, one });
    let extents = [(512, false), (1024, true)].map(|(len_bytes, is_hole)| AllocationExtent {
        len_bytes,
        is_hole,
        is_zero: is_hole,
    });
    let mut expected = chunk(5, 20);
    expected.extend([0, 0, 0, 1]);
    expected.extend([0, 0, 2, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 4, 0, 0, 0, 0, 3]);
    assert_eq!(status.extents(&extents)[..], expected);
    let flush = client.request(&request(3, 0, 0, 0));
    assert_eq!(flush.done()[..], simple(0));
    let write = client.request(&request(1, 0, 0, 512));
    let failed = write.fail(ErrorCode::Io, "the medium failed");
    assert_eq!(error_of(&failed), 5);
}

#[test]
fn replies_are_simple_where_nothing_was_agreed() {
    let mut client = Client::in_transmission(false);
    let read = client.request(&request(0, 0, 0, 512));
    assert_eq!(read.data()[..], simple(0));
    let read = client.request(&request(0, 0, 0, 512));
    assert_eq!(read.fail(ErrorCode::Shutdown, "over")[..], simple(108));
}

/// Messages that a client may send, most of them valid.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let names = prop_oneof![Just("db".to_owned()), Just(String::new()), "[a-z]{0,9}"];
    let option = (0..13u32, prop::collection::vec(any::<u8>(), 0..40), names).prop_map(
        |(option, data, name)| match option {
            6 | 7 => option_bytes(option, &info(&name, &[0, 3])),
            9 | 10 => option_bytes(option, &contexts(&name, &["base:allocation"])),
            _ => option_bytes(option, &data),
        },
    );
    let request = (0..9u16, 0..32u16, 0..2100u64, 0..140u32).prop_map(|(kind, flags, at, len)| {
        let mut bytes = request(kind, flags, at * 512, len * 512);
        if kind == 1 {
            bytes.resize(bytes.len() + len as usize * 512, 0);
        }
        bytes
    });
    let garbage = prop::collection::vec(any::<u8>(), 0..64);
    let message = prop_oneof![4 => option, 6 => request, 1 => garbage];
    prop::collection::vec(message, 0..20).prop_map(|messages| {
        let flags = vec![0, 0, 0, 3];
        [vec![flags], messages].concat().concat()
    })
}

/// Everything that results from `bytes` arriving in segments that end at `cuts`.
fn outcome(bytes: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut server = Server::new(export(), false);
    let mut said = Vec::new();
    let (mut taken, mut arrived, mut skip) = (0, 0, 0usize);
    let mut cuts = cuts.iter().copied().chain([bytes.len()]);
    loop {
        while let Some(event) = server.poll_event() {
            match event {
                NbdEvent::Skip(len) => skip += len as usize,
                NbdEvent::Request(request) => {
                    said.push(format!("{:?}", request.command()));
                    if let NbdCommand::Write { len, .. } = request.command() {
                        skip += len as usize;
                    }
                }
                other => said.push(format!("{other:?}")),
            }
        }
        let skipped = skip.min(arrived - taken);
        (skip, taken) = (skip - skipped, taken + skipped);
        match server.receive(&bytes[taken..arrived]) {
            Ok(ReceiveOutcome::Took(len)) if len > 0 => {
                assert_eq!(skip, 0);
                taken += len;
            }
            Ok(received) => {
                if let ReceiveOutcome::Needs(len) = received {
                    assert!(len > arrived - taken && len <= RECEIVE_MAX_BYTES);
                }
                let Some(cut) = cuts.next() else { return said };
                arrived = arrived.max(cut.min(bytes.len()));
            }
            Err(violation) => {
                said.push(violation.to_string());
                return said;
            }
        }
    }
}

proptest! {
    #[test]
    fn it_does_not_matter_in_which_segments_bytes_come(
        bytes in messages(),
        cuts in prop::collection::vec(0..40_000usize, 0..40),
    ) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        prop_assert_eq!(outcome(&bytes, &cuts), outcome(&bytes, &[]));
    }

    #[test]
    fn whatever_is_handed_over_lies_within_the_export(bytes in messages()) {
        for said in outcome(&bytes, &[]) {
            prop_assert!(!said.contains("len: 0"), "{}", said);
        }
    }
}
