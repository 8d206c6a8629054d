//! What the peers of both roles share: how the choices of an input become limits and parameters,
//! and what becomes of a PDU on its way: mostly nothing, sometimes harm.

use std::fmt::Debug;

use iscsi::frame::Digests;
use iscsi::{InitiatorConfig, OperationalConfig, SessionParameters, StageTimes, TargetConfig};

use crate::input::{Input, Sizes};
use crate::stream::{Side, Stream};
use crate::wire::Pdu;

pub(crate) const TARGET: &str = "iqn.2026-11.io.sanstone:t0";
pub(crate) const INITIATOR: &str = "iqn.2026-11.io.sanstone:host";

/// What our target tells of each command where that was agreed.
pub(crate) const STAGE_TIMES: StageTimes = StageTimes {
    queue_ns: 1,
    volume_ns: 2 << 40,
    medium_ns: None,
    reply_ns: 3,
};

/// Parameters as the bits of one choice want them. All lengths are small, so that a short input
/// reaches every limit.
pub(crate) fn operational(choice: u8) -> OperationalConfig {
    let bit = |at: u8| choice >> at & 1 != 0;
    OperationalConfig {
        header_digest: bit(0),
        data_digest: bit(1),
        initial_r2t: bit(2),
        immediate_data: !bit(3),
        max_recv_data_segment_length: if bit(4) { 512 } else { 4096 },
        max_burst_length: if bit(5) { 1024 } else { 8192 },
        first_burst_length: if bit(6) { 512 } else { 2048 },
        max_outstanding_r2t: if bit(7) { 3 } else { 1 },
        // No bit is left; with every mixture of two of the others.
        stage_times: choice.count_ones() % 2 == 1,
        ..OperationalConfig::default()
    }
}

pub(crate) fn target_config(choice: u8) -> TargetConfig {
    TargetConfig {
        operational: operational(choice),
        command_window: 4,
        command_window_first: if choice & 1 == 0 { 4 } else { 2 },
        immediate_max: 3,
        promises: false,
        queued_replies_max: 4,
        queued_bytes_max: usize::MAX,
        inline_len_max: 8192,
        login_pdus_max: 8,
        text_len_max: 2048,
        target_alias: None,
    }
}

pub(crate) fn initiator_config(choice: u8, target_name: Option<&str>) -> InitiatorConfig {
    InitiatorConfig {
        operational: operational(choice),
        tasks_max: 6,
        inline_len_max: 8192,
        login_pdus_max: 8,
        text_len_max: 2048,
        ..InitiatorConfig::new(INITIATOR, target_name.map(str::to_owned))
    }
}

/// A PDU's bytes as they arrive: as they should, or with a header, data or digests that were
/// changed, cut short or doubled.
pub(crate) fn spoil(input: &mut Input<'_>, mut pdu: Pdu, digests: Digests) -> Vec<u8> {
    let harm = input.u8();
    match harm {
        0xd0..=0xef => input.harm(&mut pdu.bhs),
        0xf0..=0xf3 => input.harm(&mut pdu.ahs),
        0xf4..=0xf7 => input.harm(&mut pdu.data),
        _ => {}
    }
    let mut bytes = pdu.bytes(digests);
    match harm {
        0xf8 | 0xf9 => input.harm(&mut bytes),
        0xfa => bytes.truncate(usize::from(input.u8())),
        0xfb => bytes.extend_from_within(..),
        0xfc => drop(bytes.drain(..usize::from(input.u8()).min(bytes.len()))),
        _ => {}
    }
    bytes
}

/// The way of bytes to a machine: all that a step sends at once, or cut anywhere.
#[derive(Default)]
pub(crate) struct Way {
    stream: Stream,
    cuts: Option<Sizes>,
}

impl Way {
    pub(crate) fn cut(seed: u64) -> Way {
        Way {
            cuts: Some(Sizes::new(seed)),
            ..Way::default()
        }
    }

    pub(crate) fn arrive(&mut self, side: &mut impl Side, mut bytes: &[u8]) {
        let Some(sizes) = &mut self.cuts else {
            return self.stream.arrive(side, bytes);
        };
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(sizes.next(96).min(bytes.len()));
            self.stream.arrive(side, piece);
            bytes = rest;
        }
        // What came before may be wanted only now.
        self.stream.arrive(side, &[]);
    }

    pub(crate) fn waiting_len(&self) -> usize {
        self.stream.len()
    }
}

/// Runs a session on `input` twice, its bytes arriving whole and cut anywhere: all that is seen of
/// it, step by step, is the same.
pub(crate) fn whole_and_cut<T: PartialEq + Debug>(
    input: &[u8],
    run: impl Fn(&[u8], Way) -> Vec<T>,
) {
    let whole = run(input, Way::default());
    let seed = input.iter().fold(1, |seed: u64, byte| {
        seed.wrapping_mul(31) + u64::from(*byte)
    });
    let cut = run(input, Way::cut(seed));
    for (at, (whole, cut)) in whole.iter().zip(&cut).enumerate() {
        assert_eq!(whole, cut, "step {at} depends on how the bytes were cut");
    }
    assert_eq!(
        whole.len(),
        cut.len(),
        "the end depends on how the bytes were cut"
    );
}

/// What both sides agreed on keeps to the standard and to what we want.
pub(crate) fn check_parameters(agreed: &SessionParameters, wanted: &OperationalConfig) {
    let segment = 512..1 << 24;
    assert!(segment.contains(&agreed.max_send_data_segment_length));
    assert!(segment.contains(&agreed.max_burst_length));
    assert!((1..=agreed.max_burst_length).contains(&agreed.first_burst_length));
    assert!(agreed.max_outstanding_r2t >= 1);
    assert!(
        agreed.initial_r2t || !wanted.initial_r2t,
        "one No against our Yes"
    );
    assert!(
        !agreed.stage_times || wanted.stage_times,
        "one Yes against our No"
    );
}
