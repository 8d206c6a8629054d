//! Login text of both roles: our initiator logs in to our target, with CHAP or without, and the
//! input stands between them. It may send text on in pieces (C bit), which must change nothing;
//! and it may change, add, drop and repeat pairs and flags, which must not get anybody in who
//! could not prove who it is.

use std::sync::Arc;

use iscsi::{
    Authentication, Chap, ChapAccount, ChapAlgorithm, ChapSecret, LoginStatus, SessionParameters,
};

use crate::initiator_side::InitiatorSide;
use crate::input::Input;
use crate::peer::{TARGET, initiator_config, target_config};
use crate::stream::{Side, Stream};
use crate::target_side::{Policy, TargetSide};
use crate::wire::{self, Pdu};

/// Requests and responses after which a login has ended.
const PDUS_MAX: usize = 200;
const TRANSIT: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// A login with somebody in between.
pub fn login(input: &[u8]) {
    let mut input = Input::new(input);
    let setting = Setting::read(&mut input);
    let mut meddled = Exchange::new(&setting);
    meddled.run(&mut input);
    meddled.check(&setting);
    if !meddled.meddled {
        let mut honest = Exchange::new(&setting);
        honest.run(&mut Input::new(&[]));
        honest.check(&setting);
        let agreed = |exchange: &Exchange| exchange.initiator.logged_in.clone();
        assert_eq!(
            agreed(&meddled),
            agreed(&honest),
            "pieces of text mean something else"
        );
    }
    meddled.target.finish();
    meddled.initiator.finish();
}

/// Who wants what.
struct Setting {
    initiator: u8,
    target: u8,
    discovery: bool,
    offers: Option<Arc<Chap>>,
    demands: Option<Arc<Chap>>,
    /// The initiator knows what the target demands.
    proves_itself: bool,
    /// The target can prove itself to an initiator that demands it.
    target_is_right: bool,
    refused: Option<LoginStatus>,
}

impl Setting {
    fn read(input: &mut Input<'_>) -> Setting {
        let (initiator, target, choice) = (input.u8(), input.u8(), input.u8());
        let secret = |wrong: bool, which: &str| {
            let bytes = format!("{which}-secret-{}", u8::from(wrong));
            ChapAccount::new(
                which,
                ChapSecret::new(bytes.as_bytes()).expect("long enough"),
            )
            .expect("a name")
        };
        let algorithms = match input.u8() & 3 {
            0 => &ChapAlgorithm::ALL[..],
            n => &ChapAlgorithm::ALL[usize::from(n)..],
        };
        let (mutual, wrong, wrong_target) = (choice & 4 != 0, choice & 8 != 0, choice & 16 != 0);
        let chap = |wrong, wrong_target| {
            let target = mutual.then(|| secret(wrong_target, "target"));
            let chap = Chap::new(secret(wrong, "initiator"), target).expect("two secrets");
            chap.with_algorithms(algorithms)
                .expect("there are some")
                .into()
        };
        let (offers, demands) = (choice & 1 != 0, choice & 2 != 0);
        let refused = [
            None,
            Some(LoginStatus::NOT_FOUND),
            Some(LoginStatus::MOVED_TEMPORARILY),
        ];
        Setting {
            initiator,
            target,
            discovery: choice & 32 != 0,
            offers: offers.then(|| chap(false, false)),
            demands: demands.then(|| chap(wrong, wrong_target)),
            proves_itself: !demands || (offers && !wrong),
            target_is_right: !(offers && mutual) || (demands && !wrong_target),
            refused: refused.get(usize::from(choice >> 6)).cloned().flatten(),
        }
    }

    /// Whether they come to terms if nobody meddles.
    fn fits(&self) -> bool {
        let same = self.offers.is_some() == self.demands.is_some();
        same && self.proves_itself && self.target_is_right && self.refused.is_none()
    }
}

/// The two, and how far they are.
struct Exchange {
    initiator: InitiatorSide,
    target: TargetSide,
    to_initiator: Stream,
    to_target: Stream,
    /// Something other than the cutting of text was done.
    meddled: bool,
    /// StatSN as the initiator sees it: it does not see the answers to pieces.
    stat_sn: u32,
    pdus: usize,
}

impl Exchange {
    fn new(setting: &Setting) -> Exchange {
        let authentication = |chap: &Arc<Chap>, seed| {
            let random = std::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ seed);
            Authentication::new(chap.clone(), random)
        };
        let target_name = if setting.discovery {
            None
        } else {
            Some(TARGET)
        };
        let mut initiator = initiator_config(setting.initiator, target_name);
        initiator.authentication = setting
            .offers
            .as_ref()
            .map(|chap| authentication(chap, 0x11));
        initiator.login_pdus_max = 32;
        let mut config = target_config(setting.target);
        config.login_pdus_max = 32;
        let mut target = TargetSide::new(config);
        target.may_begin = setting.proves_itself && setting.refused.is_none();
        target.policy = match (&setting.demands, setting.refused) {
            (_, Some(status)) => Policy::Reject(status),
            (Some(chap), None) => Policy::Authenticate(authentication(chap, 0x77)),
            (None, None) => Policy::Continue,
        };
        Exchange {
            initiator: InitiatorSide::new(initiator),
            target,
            to_initiator: Stream::default(),
            to_target: Stream::default(),
            meddled: false,
            stat_sn: 0,
            pdus: 0,
        }
    }

    /// Lets them talk until nobody has anything to say.
    fn run(&mut self, input: &mut Input<'_>) {
        loop {
            let request = self.initiator.transmit();
            let response = self.target.transmit();
            if request.is_none() && response.is_none() {
                return;
            }
            self.pdus += 1;
            assert!(self.pdus < PDUS_MAX, "a login without an end");
            if let Some((transmit, data)) = request {
                check_text(&transmit.header, &data);
                let pdu = Pdu {
                    bhs: transmit.header,
                    ahs: Vec::new(),
                    data,
                };
                self.request(input, pdu);
            }
            if let Some(transmit) = response {
                let data = match transmit.data {
                    iscsi::TransmitData::Inline(data) => data,
                    _ => Vec::new(),
                };
                check_text(&transmit.header, &data);
                let pdu = Pdu {
                    bhs: transmit.header,
                    ahs: Vec::new(),
                    data,
                };
                self.response(input, pdu);
            }
        }
    }

    /// A request on its way to the target.
    fn request(&mut self, input: &mut Input<'_>, pdu: Pdu) {
        let (pdu, pieces) = self.meddle(input, pdu);
        for piece in &pieces {
            self.deliver_request(piece);
            // The answer to a piece: the initiator knows nothing of it.
            if let Some(answer) = self.target.transmit() {
                check_answer(&piece.bhs, &answer.header);
            }
        }
        self.deliver_request(&pdu);
    }

    fn deliver_request(&mut self, pdu: &Pdu) {
        let bytes = pdu.bytes(self.target.frame_limits().digests);
        self.to_target.arrive(&mut self.target, &bytes);
    }

    /// A response on its way to the initiator.
    fn response(&mut self, input: &mut Input<'_>, pdu: Pdu) {
        let (pdu, pieces) = self.meddle(input, pdu);
        for piece in pieces {
            self.deliver_response(piece);
            if let Some((answer, data)) = self.initiator.transmit() {
                assert!(data.is_empty(), "an answer before all was said");
                assert_eq!(answer.header[1] & (TRANSIT | CONTINUE), 0);
            }
        }
        self.deliver_response(pdu);
    }

    fn deliver_response(&mut self, pdu: Pdu) {
        let pdu = pdu.word(24, self.stat_sn);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        // The last response still goes without digests.
        let bytes = pdu.bytes(self.initiator.frame_limits().digests);
        self.to_initiator.arrive(&mut self.initiator, &bytes);
    }

    /// What becomes of a PDU: the pieces that go before it, and what is left of it.
    fn meddle(&mut self, input: &mut Input<'_>, mut pdu: Pdu) -> (Pdu, Vec<Pdu>) {
        let mut pieces = Vec::new();
        let how = input.u8();
        match how {
            0..=0x9f => {}
            0xa0..=0xbf => {
                // Our initiator answers a piece without T, and then nobody may leave the stage.
                self.meddled |= wire::opcode(&pdu.bhs) == 0x23 && pdu.bhs[1] & TRANSIT != 0;
                let flags = pdu.bhs[1] & !TRANSIT & !3 | CONTINUE;
                for _ in 0..input.below(3) {
                    let at = usize::from(input.u8()).min(pdu.data.len());
                    let rest = pdu.data.split_off(at);
                    let mut piece = pdu.clone().data(std::mem::take(&mut pdu.data));
                    piece.bhs[1] = flags;
                    pieces.push(piece);
                    pdu = pdu.data(rest);
                }
            }
            _ => {
                self.meddled = true;
                match how & 7 {
                    0 => pdu.bhs[1] = input.u8(),
                    1 => input.harm(&mut pdu.bhs),
                    _ => {
                        let data = change_text(input, &pdu.data);
                        pdu = pdu.data(data);
                    }
                }
            }
        }
        (pdu, pieces)
    }

    fn check(&self, setting: &Setting) {
        if !setting.target_is_right {
            assert_eq!(self.initiator.logged_in, None, "the target proved nothing");
        }
        let (left, right) = (&self.initiator.logged_in, &self.target.logged_in);
        if self.meddled {
            return;
        }
        let fits = setting.fits();
        assert_eq!(
            (left.is_some(), right.is_some()),
            (fits, fits),
            "{:?}",
            self.initiator.closed
        );
        if let (Some(left), Some(right)) = (left, right) {
            let mut mirrored = SessionParameters {
                max_recv_data_segment_length: right.max_send_data_segment_length,
                max_send_data_segment_length: right.max_recv_data_segment_length,
                ..right.clone()
            };
            if setting.discovery {
                // Of no meaning there, and so each side has its own.
                mirrored.immediate_data = left.immediate_data;
            }
            assert_eq!(*left, mirrored, "they agreed on different things");
        }
    }
}

/// Every login text that we send is zero-terminated pairs.
fn check_text(bhs: &[u8; 48], text: &[u8]) {
    if !matches!(wire::opcode(bhs), 0x03 | 0x23) {
        return;
    }
    assert!(
        text.is_empty() || text.ends_with(b"\0"),
        "{text:?} does not end"
    );
    for pair in text
        .split(|byte| *byte == 0)
        .filter(|pair| !pair.is_empty())
    {
        let at = pair.iter().position(|byte| *byte == b'=');
        assert!(
            at.is_some_and(|at| (1..=63).contains(&at)),
            "{pair:?} is no pair"
        );
    }
}

/// The answer to a piece says nothing, unless the login has failed or is over, and keeps to what
/// the request asked for (RFC 7143 §11.13).
fn check_answer(request: &[u8; 48], answer: &[u8; 48]) {
    if wire::opcode(answer) != 0x23 || wire::word(answer, 36) >> 16 != 0 {
        return;
    }
    assert_eq!(wire::length(answer), 0, "an answer before all was said");
    assert_eq!(request[1] & 0x0c, answer[1] & 0x0c, "CSG");
    assert_eq!(
        answer[1] & (TRANSIT | CONTINUE),
        0,
        "nobody leaves the stage yet"
    );
}

/// Keys that mean something somewhere.
const KEYS: [&str; 26] = [
    "AuthMethod",
    "CHAP_A",
    "CHAP_C",
    "CHAP_I",
    "CHAP_N",
    "CHAP_R",
    "DataDigest",
    "DefaultTime2Wait",
    "ErrorRecoveryLevel",
    "FirstBurstLength",
    "HeaderDigest",
    "IFMarker",
    "ImmediateData",
    "InitialR2T",
    "InitiatorName",
    "MaxBurstLength",
    "MaxConnections",
    "MaxOutstandingR2T",
    "MaxRecvDataSegmentLength",
    "SessionType",
    "TargetAddress",
    "TargetName",
    "X-io.sanstone.StageTimes",
    "X-io.sanstone.StageTimesX",
    "X-unknown",
    "iSCSIProtocolLevel",
];

/// Values that mean something for some of them.
const VALUES: [&str; 26] = [
    "a b\nc",
    "",
    "0",
    "1",
    "5",
    "8",
    "512",
    "65536",
    "16777215",
    "16777216",
    "0x0",
    "0x1ff",
    "0b",
    "Yes",
    "No",
    "None",
    "CRC32C,None",
    "CHAP",
    "CHAP,None",
    "Discovery",
    "NotUnderstood",
    "Irrelevant",
    "Reject",
    "Yes,No",
    "yes",
    "Yes\n",
];

/// The text with one of its pairs changed, dropped, repeated or added, or another text.
fn change_text(input: &mut Input<'_>, text: &[u8]) -> Vec<u8> {
    let mut pairs: Vec<Vec<u8>> = text
        .split_inclusive(|byte| *byte == 0)
        .map(<[u8]>::to_vec)
        .collect();
    let (how, which) = (input.u8(), usize::from(input.u8()));
    let at = which.checked_rem(pairs.len());
    match (how % 6, at) {
        (0, Some(at)) => drop(pairs.remove(at)),
        (1, Some(at)) => pairs.push(pairs[at].clone()),
        (2, Some(at)) => input.harm(&mut pairs[at]),
        (3, Some(at)) => {
            let mut key = pairs[at].split_inclusive(|byte| *byte == b'=');
            let key = key.next().unwrap_or_default().to_vec();
            pairs[at] = [&key, &value(input)[..], b"\0"].concat();
        }
        (4, _) => {
            let len = usize::from(input.u16());
            return input.bytes(len).to_vec();
        }
        _ => {
            let key = input.pick(&KEYS).expect("there are some");
            pairs.push([key.as_bytes(), b"=", &value(input)[..], b"\0"].concat());
        }
    }
    pairs.concat()
}

fn value(input: &mut Input<'_>) -> Vec<u8> {
    match input.u8() {
        which @ 0..=0xdf => VALUES[usize::from(which) % VALUES.len()].into(),
        len => input.bytes(usize::from(len & 0x1f)).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "X-io.sanstone.StageTimes";

    /// Our own key with each value, said by somebody in between to a target that knows it, while the
    /// initiator does not ask for it.
    #[test]
    fn our_own_key_agrees_to_nothing_that_was_not_said() {
        let key = KEYS.iter().position(|key| *key == KEY).expect("there") as u8;
        for (number, value) in VALUES.iter().enumerate() {
            for honest in 0..3 {
                // The target's configuration has one bit, and so it knows the key.
                let mut input = vec![0, 1, 0, 0];
                input.extend(vec![0; honest]);
                input.extend([0xc7, 5, 0, key, number as u8]);
                login(&input);
                let mut input = Input::new(&input);
                let mut exchange = Exchange::new(&Setting::read(&mut input));
                exchange.run(&mut input);
                let agreed = |side: &Option<SessionParameters>| {
                    side.as_ref().is_some_and(|agreed| agreed.stage_times)
                };
                let said = *value == "Yes";
                assert!(!agreed(&exchange.target.logged_in) || said, "{value:?}");
                assert!(!agreed(&exchange.initiator.logged_in), "{value:?}");
            }
        }
    }
}
