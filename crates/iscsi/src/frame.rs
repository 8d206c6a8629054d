//! Framing: finds where one PDU ends and the next begins in a TCP stream (RFC 7143 §11.2). The 48 bytes of the Basic
//! Header Segment determine all lengths, so an oversized PDU is refused before any of its data is received, and a
//! driver can receive a large data segment straight into its own aligned buffer. Digests (§13.1, CRC32C) are located
//! and checked here; the driver decides who computes them and over which chunks.
//! which chunks is the driver's choice.

use std::ops::Range;

use crate::error::Error;
use crate::pdu::{BHS_LEN, Bhs, opcode};

/// The longest additional header segments accepted: an extended CDB of 260 bytes (SPC-4's longest) and a
/// bidirectional read length.
pub const AHS_LEN_MAX: u32 = 272;

/// The digests that PDUs carry in one direction (RFC 7143 §13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Four bytes after the header segments.
    pub header: bool,
    /// Four bytes after a data segment that is not empty.
    pub data: bool,
}

/// What a receiver accepts at the moment; query the machine before each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// The digests that PDUs currently carry.
    pub digests: Digests,
    /// Our MaxRecvDataSegmentLength in bytes (RFC 7143 §13.12), 8192 during login.
    pub data_segment_len_max: u32,
    /// Limit for data segments that are delivered inline (login, text, ping, sense, reject).
    pub inline_len_max: u32,
}

/// The layout of the PDU at the front of a buffer, as byte offsets from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Length of all header segments, without digest: 48 plus the additional header segments.
    pub header_len: usize,
    /// Offset of the data segment: after the headers and their digest. This many bytes must have arrived before
    /// calling [`Frame::verify_header`] and `receive`.
    pub data_offset: usize,
    /// Length of the data segment without padding.
    pub data_len: usize,
    /// Offset of the data digest (after data and padding), if there is one.
    pub data_digest_offset: Option<usize>,
    /// Length of the whole PDU, which is the offset of the next one.
    pub total_len: usize,
    /// Whether the data is a command's payload (SCSI Command, Data-Out, Data-In), which may be delivered as
    /// [`RxData::Length`](crate::RxData::Length); other data is delivered inline.
    pub payload: bool,
}

/// Parses the front of a receive buffer. `None` if fewer than 48 bytes have arrived. Otherwise returns a [`Frame`],
/// whether or not the rest of the PDU has arrived.
///
/// # Errors
/// [`Error::AhsTooLong`] and [`Error::DataSegmentTooLong`]: the stream cannot be read any further.
pub fn frame(buf: &[u8], limits: &FrameLimits) -> Result<Option<Frame>, Error> {
    let Some(bytes) = buf.first_chunk::<BHS_LEN>() else {
        return Ok(None);
    };
    let bhs = Bhs::of(bytes);
    let ahs_len = u32::from(bhs.total_ahs_length_words) * 4;
    if ahs_len > AHS_LEN_MAX {
        return Err(Error::AhsTooLong {
            len: ahs_len,
            max: AHS_LEN_MAX,
        });
    }
    let payload = matches!(
        bhs.opcode(),
        opcode::SCSI_COMMAND | opcode::SCSI_DATA_OUT | opcode::SCSI_DATA_IN
    );
    let max = match payload {
        true => limits.data_segment_len_max,
        false => limits.data_segment_len_max.min(limits.inline_len_max),
    };
    let len = bhs.data_segment_length();
    if len > max {
        return Err(Error::DataSegmentTooLong {
            opcode: bhs.opcode(),
            len,
            max,
        });
    }
    let header_len = BHS_LEN + ahs_len as usize;
    let data_offset = header_len + if limits.digests.header { 4 } else { 0 };
    let data_len = len as usize;
    let padded_end = data_offset + data_len + padding(data_len);
    let data_digest_offset = (limits.digests.data && data_len > 0).then_some(padded_end);
    let total_len = padded_end + data_digest_offset.map_or(0, |_| 4);
    Ok(Some(Frame {
        header_len,
        data_offset,
        data_len,
        data_digest_offset,
        total_len,
        payload,
    }))
}

impl Frame {
    /// The range of the additional header segments; empty for most PDUs.
    pub fn ahs(&self) -> Range<usize> {
        BHS_LEN..self.header_len
    }

    /// The range of the data segment, without padding.
    pub fn data(&self) -> Range<usize> {
        self.data_offset..self.data_offset + self.data_len
    }

    /// Checks the header digest, if there is one. `buf` starts with the PDU and holds at least
    /// its first [`Frame::data_offset`] bytes.
    ///
    /// # Errors
    /// [`Error::HeaderDigest`]: even the PDU's length is unreliable, so the connection ends (RFC 7143 §7.7).
    pub fn verify_header(&self, buf: &[u8]) -> Result<(), Error> {
        if self.data_offset == self.header_len {
            return Ok(());
        }
        let Some(digest) = buf
            .get(self.header_len..self.data_offset)
            .and_then(<[u8]>::first_chunk)
        else {
            return Ok(());
        };
        let computed = crc32c::crc32c(&buf[..self.header_len]);
        match u32::from_le_bytes(*digest) {
            received if received == computed => Ok(()),
            received => Err(Error::HeaderDigest { received, computed }),
        }
    }

    /// Checks the data digest, if there is one. `buf` starts with the PDU and holds all of it.
    ///
    /// # Errors
    /// As [`DataDigest::verify`].
    pub fn verify_data(&self, buf: &[u8]) -> Result<(), Error> {
        let Some(at) = self.data_digest_offset else {
            return Ok(());
        };
        let mut digest = DataDigest::default();
        digest.update(&buf[self.data()]);
        digest.verify(*buf[at..].first_chunk().expect("the frame counts it"))
    }
}

/// The number of zero bytes after a data segment of `len` bytes, up to a multiple of four.
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// A CRC32C in wire order: least significant byte first (RFC 7143 §13.1, and the examples in its appendix).
pub fn digest_bytes(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

/// The data digest of data in several chunks; adds the padding by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataDigest {
    crc: u32,
    len: usize,
}

impl DataDigest {
    /// Adds the next chunk of the data segment.
    pub fn update(&mut self, chunk: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, chunk);
        self.len += chunk.len();
    }

    /// The digest of all chunks and the padding after them, in wire order.
    pub fn finish(self) -> [u8; 4] {
        digest_bytes(crc32c::crc32c_append(
            self.crc,
            &[0; 3][..padding(self.len)],
        ))
    }

    /// Compares the digest with the four bytes received.
    ///
    /// # Errors
    /// [`Error::DataDigest`]: at ErrorRecoveryLevel 0 the driver closes the connection.
    pub fn verify(self, received: [u8; 4]) -> Result<(), Error> {
        let computed = self.finish();
        match computed == received {
            true => Ok(()),
            false => Err(Error::DataDigest {
                received: u32::from_le_bytes(received),
                computed: u32::from_le_bytes(computed),
            }),
        }
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
