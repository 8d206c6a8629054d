//! The receiving end of a TCP stream in front of a machine, as the real drivers have it: a PDU
//! with a command's payload is handed over as soon as its headers are there, its payload finds
//! its place afterwards, and its data digest is checked last; every other PDU is handed over
//! whole. However the bytes are cut, the machine must see the same.

use iscsi::frame::{DataDigest, Frame, FrameLimits, frame};
use iscsi::{Error, RxData};

/// A machine with its driver.
pub(crate) trait Side {
    fn frame_limits(&self) -> FrameLimits;
    fn wants_read(&self) -> bool;
    fn receive(&mut self, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>);
    fn fail(&mut self, error: Error);
    /// Takes the events of the PDU just received.
    fn follow_events(&mut self);
    /// The payload of the PDU received last is there, all of it.
    fn take_payload(&mut self, payload: &[u8]);
}

/// Bytes that have arrived and are not yet used.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    bytes: Vec<u8>,
    /// The PDU in front has been handed over, up to its payload.
    begun: Option<Frame>,
}

impl Stream {
    /// Takes what has arrived and hands over all that is complete.
    pub(crate) fn arrive(&mut self, side: &mut impl Side, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while self.step(side) {}
    }

    /// What waits to be complete, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn step(&mut self, side: &mut impl Side) -> bool {
        if let Some(pdu) = self.begun {
            return self.finish(side, &pdu);
        }
        if !side.wants_read() {
            return false;
        }
        let limits = side.frame_limits();
        let pdu = match frame(&self.bytes, &limits) {
            Ok(None) => return false,
            Ok(Some(pdu)) => pdu,
            Err(error) => {
                fail(side, error);
                return true;
            }
        };
        let at_hand = match pdu.payload {
            true => pdu.data_offset,
            false => pdu.total_len,
        };
        if self.bytes.len() < at_hand {
            return false;
        }
        if let Err(error) = pdu.verify_header(&self.bytes) {
            fail(side, error);
            return true;
        }
        let bhs = self.bytes.first_chunk().expect("a frame has a header");
        let data = match self.bytes.get(pdu.data()) {
            Some(data) => RxData::Inline(data),
            None => RxData::Length(pdu.data_len as u32),
        };
        if !pdu.payload {
            if let Err(error) = check_data(&pdu, &self.bytes) {
                fail(side, error);
                return true;
            }
        }
        side.receive(bhs, &self.bytes[pdu.ahs()], data);
        side.follow_events();
        match pdu.payload {
            true => self.begun = Some(pdu),
            false => drop(self.bytes.drain(..pdu.total_len)),
        }
        true
    }

    /// Goes on with a PDU whose payload was on its way.
    fn finish(&mut self, side: &mut impl Side, pdu: &Frame) -> bool {
        if self.bytes.len() < pdu.total_len {
            return false;
        }
        match check_data(pdu, &self.bytes) {
            Ok(()) => side.take_payload(&self.bytes[pdu.data()]),
            Err(error) => fail(side, error),
        }
        self.bytes.drain(..pdu.total_len);
        self.begun = None;
        true
    }
}

fn fail(side: &mut impl Side, error: Error) {
    side.fail(error);
    side.follow_events();
}

fn check_data(pdu: &Frame, bytes: &[u8]) -> Result<(), Error> {
    let Some(at) = pdu.data_digest_offset else {
        return Ok(());
    };
    let mut digest = DataDigest::default();
    digest.update(&bytes[pdu.data()]);
    digest.verify(*bytes[at..].first_chunk().expect("the frame counts it"))
}
