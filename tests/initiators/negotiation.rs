//! Negotiation at its extremes: burst and segment lengths of 512 bytes and of 2^24 - 1, every combination of
//! unsolicited and immediate data, one R2T at a time or several, digests. The target must respect the negotiated values
//! in every PDU, and the data must survive unchanged.

use harness::directory::Directory;
use harness::noise;
use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Direction, Session, is_closed, opcode, read_10, write_10};
use std::collections::VecDeque;
use std::io::Write;

const LENGTH_MAX: u32 = (1 << 24) - 1;
const UNSOLICITED: u32 = u32::MAX;
/// The target's own MaxBurstLength; the smaller value wins (RFC 7143 §13.13, §13.14, §13.17).
const OWN_MAX_BURST: u32 = 1 << 20;
/// That of a server whose lane has room for so much of each command in a window.
const OWN_FIRST_BURST: u32 = 256 << 10;
/// The least that it comes down to beside other sessions.
const SHORTEST_FIRST_BURST: u32 = 64 << 10;
const OWN_OUTSTANDING_R2T: u32 = 4;
/// The longest data segment that the target sends to an initiator that accepts up to [`USUAL_SEGMENT`].
const OWN_DATA_IN_MAX: usize = 64 << 10;
const USUAL_SEGMENT: u32 = 256 << 10;

fn serve() -> Sanstone {
    let directory = Directory::new();
    let ram = "lanes = 1\n[volume.disk]\nram = { size = \"16MiB\" }\n";
    Sanstone::serve(directory.path(), ram, &["disk"]).owning(directory)
}

/// What an initiator offers.
#[derive(Clone, Copy, Debug)]
struct Offer {
    initial_r2t: bool,
    immediate_data: bool,
    first_burst: u32,
    max_burst: u32,
    /// Longest data segment that we take.
    segment: u32,
    outstanding_r2t: u32,
    digests: (bool, bool),
}

/// A session with that offer, and the values that must result from it.
struct Agreed {
    session: Session,
    offer: Offer,
    /// Longest data segment that the target takes.
    segment: usize,
    first_burst: usize,
    max_burst: usize,
    outstanding_r2t: usize,
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "Yes" } else { "No" }
}

fn crc32c_or_none(wanted: bool) -> &'static str {
    if wanted { "CRC32C,None" } else { "None" }
}

impl Agreed {
    fn login(server: &Sanstone, offer: Offer) -> Agreed {
        let Offer {
            first_burst,
            max_burst,
            segment,
            outstanding_r2t,
            digests,
            ..
        } = offer;
        let keys = [
            format!("HeaderDigest={}", crc32c_or_none(digests.0)),
            format!("DataDigest={}", crc32c_or_none(digests.1)),
            format!("InitialR2T={}", yes_or_no(offer.initial_r2t)),
            format!("ImmediateData={}", yes_or_no(offer.immediate_data)),
            format!("MaxBurstLength={max_burst}"),
            format!("FirstBurstLength={first_burst}"),
            format!("MaxRecvDataSegmentLength={segment}"),
            format!("MaxOutstandingR2T={outstanding_r2t}"),
            "DataPDUInOrder=No".to_owned(),
            "DataSequenceInOrder=No".to_owned(),
            "MaxConnections=8".to_owned(),
            "ErrorRecoveryLevel=2".to_owned(),
        ];
        let keys = keys.each_ref().map(String::as_str);
        let address = format!("127.0.0.1:{}", server.port());
        let mut session = Session::login(&address, IQN, 0, 1, &keys)
            .unwrap_or_else(|error| panic!("{offer:?}: {error}"));
        let max_burst = max_burst.min(OWN_MAX_BURST);
        // Beside others, and the last session may still be ending, it is shorter.
        let longest = first_burst.min(OWN_FIRST_BURST).min(max_burst);
        let told = session.answer("FirstBurstLength");
        let first_burst: u32 = told.and_then(|told| told.parse().ok()).expect("a length");
        assert!(
            (longest.min(SHORTEST_FIRST_BURST)..=longest).contains(&first_burst),
            "{first_burst} for {offer:?}"
        );
        let outstanding_r2t = outstanding_r2t.min(OWN_OUTSTANDING_R2T);
        let chosen = |wanted| if wanted { "CRC32C" } else { "None" };
        for (key, value) in [
            ("HeaderDigest", chosen(digests.0)),
            ("DataDigest", chosen(digests.1)),
            ("InitialR2T", yes_or_no(offer.initial_r2t)),
            ("ImmediateData", yes_or_no(offer.immediate_data)),
            ("MaxBurstLength", &max_burst.to_string()),
            ("MaxOutstandingR2T", &outstanding_r2t.to_string()),
            ("DataPDUInOrder", "Yes"),
            ("DataSequenceInOrder", "Yes"),
            ("MaxConnections", "1"),
            ("ErrorRecoveryLevel", "0"),
        ] {
            assert_eq!(session.answer(key), Some(value), "{key} of {offer:?}");
        }
        let segment = session.answer("MaxRecvDataSegmentLength");
        let segment = segment.and_then(|value| value.parse().ok());
        session.wait_until_ready().expect("the disk is ready");
        Agreed {
            segment: segment.expect("the target declares what it takes"),
            first_burst: first_burst as usize,
            max_burst: max_burst as usize,
            outstanding_r2t: outstanding_r2t as usize,
            session,
            offer,
        }
    }

    /// Sends as much unsolicited data as allowed, then only what R2Ts ask for. Returns the number of R2Ts.
    fn write(&mut self, lba: u32, data: &[u8]) -> usize {
        let offer = self.offer;
        let blocks = (data.len() / 512) as u16;
        let unsolicited_max = data.len().min(self.first_burst);
        let immediate = match offer.immediate_data {
            true => unsolicited_max.min(self.segment),
            false => 0,
        };
        let unsolicited = match offer.initial_r2t {
            true => immediate,
            false => unsolicited_max,
        };
        let session = &mut self.session;
        let cdb = write_10(lba, blocks);
        let all = unsolicited == immediate;
        let (length, first) = (data.len() as u32, &data[..immediate]);
        let task = session.command_and_data(&cdb, Direction::Write, length, first, all);
        let task = task.expect("the target reads");
        if !all {
            let range = immediate..unsolicited;
            let sent = session.data_out(task, UNSOLICITED, data, range, self.segment);
            sent.expect("the target reads");
        }
        // Before any R2T is answered, exactly as many as allowed are outstanding.
        let expected = (data.len() - unsolicited).div_ceil(self.max_burst);
        let open_at_once = expected.min(self.outstanding_r2t);
        let (mut asked, mut seen, mut open) = (unsolicited, 0, VecDeque::new());
        let mut take = |session: &mut Session| {
            let pdu = session.receive().expect("an R2T");
            assert_eq!(pdu.opcode(), opcode::R2T, "{offer:?}: {pdu:?}");
            let (offset, length) = (pdu.word(40) as usize, pdu.word(44) as usize);
            assert_eq!(
                (pdu.word(36), offset),
                (seen, asked),
                "R2TSN, offset: {offer:?}"
            );
            assert!(
                length > 0 && length <= self.max_burst,
                "{length}: {offer:?}"
            );
            seen += 1;
            asked += length;
            pdu
        };
        for _ in 0..open_at_once {
            open.push_back(take(session));
        }
        session
            .nop_out(0x7777, UNSOLICITED)
            .expect("the target reads");
        let pong = session.receive().expect("a NOP-In");
        if expected > 0 {
            let what = (pong.opcode(), pong.task());
            assert_eq!(
                what,
                (opcode::NOP_IN, 0x7777),
                "one R2T too many: {offer:?}"
            );
        }
        let mut left = expected - open_at_once;
        while let Some(r2t) = open.pop_front() {
            let (offset, length) = (r2t.word(40) as usize, r2t.word(44) as usize);
            let (range, tag) = (offset..offset + length, r2t.word(20));
            let sent = session.data_out(task, tag, data, range, self.segment);
            sent.expect("the target reads");
            if left > 0 {
                left -= 1;
                open.push_back(take(session));
            }
        }
        // A write that was entirely unsolicited may be answered before the ping.
        let end = match pong.opcode() {
            opcode::NOP_IN => session.receive().expect("a response"),
            _ => {
                session.receive().expect("a NOP-In");
                pong
            }
        };
        assert_eq!(
            (end.opcode(), end.task()),
            (opcode::SCSI_RESPONSE, task),
            "{offer:?}"
        );
        assert_eq!(end.status(), 0, "{offer:?}: {end:?}");
        expected
    }

    fn read(&mut self, lba: u32, length: usize) -> Vec<u8> {
        let offer = self.offer;
        let cdb = read_10(lba, (length / 512) as u16);
        let session = &mut self.session;
        let task = session.command(&cdb, Direction::Read, length as u32, &[]);
        let task = task.expect("the target reads");
        let (mut data, mut burst, mut data_sn) = (Vec::new(), 0, 0);
        loop {
            let pdu = session.receive().expect("data or a response");
            assert_eq!(pdu.task(), task, "{offer:?}");
            if pdu.opcode() == opcode::DATA_IN {
                assert_eq!(pdu.word(36), data_sn, "DataSN: {offer:?}");
                assert_eq!(pdu.word(40) as usize, data.len(), "offset: {offer:?}");
                let segment_max = match offer.segment {
                    usual @ ..=USUAL_SEGMENT => OWN_DATA_IN_MAX.min(usual as usize),
                    long => long as usize,
                };
                assert!(pdu.data.len() <= segment_max, "{offer:?}");
                data_sn += 1;
                burst += pdu.data.len();
                assert!(burst <= self.max_burst, "a burst of {burst}: {offer:?}");
                if pdu.header[1] & 0x80 != 0 {
                    burst = 0;
                }
                data.extend_from_slice(&pdu.data);
                if pdu.header[1] & 1 == 0 {
                    continue;
                }
            }
            assert_eq!((pdu.status(), burst), (0, 0), "{offer:?}: {pdu:?}");
            return data;
        }
    }
}

#[test]
fn the_target_keeps_to_what_was_agreed_at_every_extreme() {
    let server = serve();
    let mut most_r2ts = 0;
    for (first_burst, max_burst, segment, length) in [
        (512, 512, 512, 16 << 10),
        (LENGTH_MAX, 512, 512, 16 << 10),
        (512, LENGTH_MAX, LENGTH_MAX, 3 << 20),
        (LENGTH_MAX, LENGTH_MAX, LENGTH_MAX, 3 << 20),
        (LENGTH_MAX, LENGTH_MAX, USUAL_SEGMENT, 3 << 20),
        (LENGTH_MAX, 8192, 1000, 128 << 10),
        (4096, 8192, LENGTH_MAX, 4096),
    ] {
        let data = noise(u64::from(first_burst) + length as u64, length);
        for way in 0..8 {
            let offer = Offer {
                initial_r2t: way & 1 != 0,
                immediate_data: way & 2 != 0,
                first_burst,
                max_burst,
                segment,
                outstanding_r2t: if way & 4 == 0 { 1 } else { 65535 },
                digests: (false, false),
            };
            let mut agreed = Agreed::login(&server, offer);
            most_r2ts = most_r2ts.max(agreed.write(way * 8, &data));
            assert!(
                agreed.read(way * 8, length) == data,
                "{offer:?}: other data"
            );
        }
    }
    assert_eq!(most_r2ts, 32, "the shortest bursts cut a write into blocks");
}

#[test]
fn digests_are_right_in_every_combination() {
    let server = serve();
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let offer = Offer {
            initial_r2t: false,
            immediate_data: true,
            first_burst: 4096,
            max_burst: 8192,
            // Not a multiple of four, so that the digest covers padding.
            segment: 1001,
            outstanding_r2t: 4,
            digests,
        };
        let mut agreed = Agreed::login(&server, offer);
        let data = noise(7, 32 << 10);
        agreed.write(0, &data);
        assert!(
            agreed.read(0, data.len()) == data,
            "{digests:?}: other data"
        );
    }
}

#[test]
fn damaged_data_never_reach_the_disk() {
    let server = serve();
    let offer = Offer {
        initial_r2t: true,
        immediate_data: true,
        first_burst: 512,
        max_burst: 8192,
        segment: 8192,
        outstanding_r2t: 1,
        digests: (true, true),
    };
    let before = noise(1, 512);
    Agreed::login(&server, offer).write(0, &before);
    for damaged_byte in [20, 60] {
        // First in the header, then in the data.
        let mut agreed = Agreed::login(&server, offer);
        let mut header = [0; 48];
        header[..2].copy_from_slice(&[0x01, 0xa1]);
        header[16..20].copy_from_slice(&9u32.to_be_bytes());
        header[20..24].copy_from_slice(&512u32.to_be_bytes());
        header[24..28].copy_from_slice(&agreed.session.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&agreed.session.exp_stat_sn.to_be_bytes());
        header[32..42].copy_from_slice(&write_10(0, 1));
        let mut pdu = harness::wire::with_digests(&mut header, &[7; 512], true, true);
        pdu[damaged_byte] ^= 1;
        let sent = agreed.session.stream().write_all(&pdu);
        sent.expect("the target reads");
        loop {
            match agreed.session.receive() {
                Ok(pdu) => assert_ne!(pdu.opcode(), opcode::SCSI_RESPONSE, "{pdu:?}"),
                Err(error) => {
                    assert!(is_closed(&error), "{error}");
                    break;
                }
            }
        }
        let after = Agreed::login(&server, offer).read(0, 512);
        assert!(
            after == before,
            "byte {damaged_byte}: damaged data were written"
        );
    }
}
