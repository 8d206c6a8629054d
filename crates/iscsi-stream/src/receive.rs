//! Receives PDUs from a stream: first the head of each, then its payload, part by part.

use std::{io, ops::Range};

use engine::{
    Buf,
    net::{FramedReader, TcpStream},
    spend,
};
use iscsi::{
    RxData,
    frame::{DataDigest, Frame, FrameLimits, frame, padding},
    pdu::BHS_LEN,
};

/// Why no PDU could be received. Nothing more can be read from the connection.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The peer has closed the stream, between two PDUs or within one.
    #[error("the peer closed the connection")]
    Ended,
    /// The connection was lost.
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    /// The PDU is malformed, exceeds the limits or was damaged in transit. Boxed to keep the
    /// `Result` of every receive small.
    #[error(transparent)]
    Protocol(Box<iscsi::Error>),
}

/// The result of receiving.
pub type ReceiveResult<T> = std::result::Result<T, ReceiveError>;

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> ReceiveError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ReceiveError::Ended,
            _ => ReceiveError::Lost(error),
        }
    }
}

impl From<iscsi::Error> for ReceiveError {
    fn from(error: iscsi::Error) -> ReceiveError {
        ReceiveError::Protocol(Box::new(error))
    }
}

/// Receives PDUs one after the other. [`next`](Self::next) reads the head of a PDU: all of it, or just its
/// headers if it carries a command's payload. The payload follows with calls of [`place`](Self::place), as
/// the state machine says, and then [`finish`](Self::finish).
#[derive(Debug)]
pub struct Receiver {
    reader: FramedReader,
    /// The PDU whose head was received last.
    pdu: Frame,
    /// The length of its head while the reader still holds it, else zero.
    head_len: usize,
    /// Payload bytes not yet placed.
    payload_left: usize,
    /// Padding bytes that follow the payload, before the digest.
    padding: usize,
    /// The data digest of the payload placed so far; `None`: there is none to check.
    digest: Option<DataDigest>,
}

impl Receiver {
    /// Receives from `stream` through a buffer of `capacity` bytes.
    pub fn new(stream: TcpStream, capacity: usize) -> Receiver {
        Receiver {
            reader: FramedReader::new(stream, capacity),
            pdu: Frame::default(),
            head_len: 0,
            payload_left: 0,
            padding: 0,
            digest: None,
        }
    }

    /// Grows the buffer to `capacity` bytes if it is smaller.
    pub fn reserve(&mut self, capacity: usize) {
        self.reader.reserve(capacity);
    }

    /// Receives the head of the next PDU.
    ///
    /// # Errors
    /// Stream errors, and errors in the PDU: bad lengths, a wrong header digest, a wrong digest of data that
    /// is part of the head.
    pub async fn next(&mut self, limits: &FrameLimits) -> ReceiveResult<()> {
        self.consume_head();
        // Almost always the header is buffered already, and no wait is needed.
        if self.reader.len() < BHS_LEN {
            self.require(BHS_LEN).await?;
        }
        let Some(pdu) = frame(self.reader.bytes(), limits)? else {
            unreachable!("its header is at hand");
        };
        (self.head_len, self.payload_left, self.padding) = match pdu.payload {
            true => (pdu.data_offset, pdu.data_len, padding(pdu.data_len)),
            false => (pdu.total_len, 0, 0),
        };
        self.pdu = pdu;
        if self.reader.len() < self.head_len {
            self.reader.reserve(self.head_len);
            self.require(self.head_len).await?;
        }
        self.pdu.verify_header(self.reader.bytes())?;
        self.digest = None;
        if self.pdu.data_digest_offset.is_some() {
            match self.payload_left {
                0 => self.pdu.verify_data(self.reader.bytes())?,
                _ => self.digest = Some(DataDigest::default()),
            }
        }
        Ok(())
    }

    /// The head in the form a machine's `receive` takes: header, additional header segments, data. Must be
    /// called before anything is placed.
    pub fn head(&self) -> (&[u8; BHS_LEN], &[u8], RxData<'_>) {
        let bytes = self.reader.bytes();
        let header = bytes.first_chunk().expect("the head begins with it");
        let data = match self.payload_left {
            0 => RxData::Inline(&bytes[self.pdu.data()]),
            len => RxData::Length(len as u32),
        };
        (header, &bytes[self.pdu.ahs()], data)
    }

    /// Receives the whole next PDU; returns its header, additional header segments and data.
    ///
    /// # Errors
    /// As for [`next`](Self::next), including the payload.
    pub async fn next_whole(
        &mut self,
        limits: &FrameLimits,
    ) -> ReceiveResult<(&[u8; BHS_LEN], &[u8], &[u8])> {
        self.next(limits).await?;
        if self.payload_left > 0 {
            self.head_len = self.pdu.total_len;
            self.reader.reserve(self.head_len);
            self.require(self.head_len).await?;
            self.pdu.verify_data(self.reader.bytes())?;
            (self.payload_left, self.padding, self.digest) = (0, 0, None);
        }
        let bytes = self.reader.bytes();
        let header = bytes.first_chunk().expect("it begins with its header");
        Ok((header, &bytes[self.pdu.ahs()], &bytes[self.pdu.data()]))
    }

    /// Receives the next part of the payload into `range` of `buf`.
    ///
    /// # Errors
    /// Stream errors.
    ///
    /// # Panics
    /// If less payload is left: a machine asks for no more than it was told of.
    pub async fn place(&mut self, buf: Buf, range: Range<usize>) -> ReceiveResult<Buf> {
        let len = range.len();
        assert!(
            len <= self.payload_left,
            "{len} bytes of {}",
            self.payload_left
        );
        self.payload_left -= len;
        self.consume_head();
        let (result, buf) = self.reader.read_into(buf, range.clone()).await;
        result?;
        if let Some(digest) = &mut self.digest {
            spend(len).await;
            digest.update(&buf[range]);
        }
        Ok(buf)
    }

    /// Copies the next part of the payload into all of `to` without waiting. Returns false, having taken
    /// nothing, if it is not buffered yet or needs a digest check.
    ///
    /// # Panics
    /// As [`place`](Self::place).
    pub fn place_at_hand(&mut self, to: &mut [u8]) -> bool {
        let len = to.len();
        assert!(
            len <= self.payload_left,
            "{len} bytes of {}",
            self.payload_left
        );
        self.consume_head();
        let is_placed = self.digest.is_none() && self.reader.take_at_hand(to);
        if is_placed {
            self.payload_left -= len;
        }
        is_placed
    }

    /// Whether any part of the PDU has not been [placed](Self::place).
    pub fn has_rest(&self) -> bool {
        self.digest.is_some() || self.payload_left + self.padding > 0
    }

    /// Receives the [rest](Self::has_rest) of the PDU: unwanted payload, padding and digest.
    ///
    /// # Errors
    /// Stream errors, and a wrong digest: the placed data is not what was sent.
    pub async fn finish(&mut self) -> ReceiveResult<()> {
        if !self.has_rest() {
            return Ok(());
        }
        self.consume_head();
        let Some(mut digest) = self.digest.take() else {
            let rest = self.payload_left + self.padding;
            return Ok(self.reader.skip(rest).await?);
        };
        while self.payload_left > 0 {
            self.require(1).await?;
            let len = self.reader.len().min(self.payload_left);
            spend(len).await;
            digest.update(&self.reader.bytes()[..len]);
            self.reader.consume(len);
            self.payload_left -= len;
        }
        self.reader.skip(self.padding).await?;
        self.require(4).await?;
        let received = self.reader.bytes().first_chunk();
        digest.verify(*received.expect("four bytes are at hand"))?;
        self.reader.consume(4);
        Ok(())
    }

    /// Removes the head from the reader, unless that was done already.
    fn consume_head(&mut self) {
        if self.head_len > 0 {
            self.reader.consume(self.head_len);
            self.head_len = 0;
        }
    }

    /// Receives until at least `len` bytes are buffered.
    async fn require(&mut self, len: usize) -> ReceiveResult<()> {
        match self.reader.fill(len).await? {
            true => Ok(()),
            false => Err(ReceiveError::Ended),
        }
    }
}
