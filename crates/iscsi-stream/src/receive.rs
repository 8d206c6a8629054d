//! PDUs from a stream: of each first the head, then the payload, part by part.

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

/// Why no PDU could be received. The connection cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer has ended the stream, between two PDUs or within one.
    #[error("the peer has closed it")]
    Ended,
    /// The connection was lost.
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    /// What came is no PDU that may be taken, or was damaged on its way. In a box, for every PDU is
    /// received by way of a result that has room for it.
    #[error(transparent)]
    Protocol(Box<iscsi::Error>),
}

/// What came of receiving.
pub type Result<T> = std::result::Result<T, Error>;

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Ended,
            _ => Error::Lost(error),
        }
    }
}

impl From<iscsi::Error> for Error {
    fn from(error: iscsi::Error) -> Error {
        Error::Protocol(Box::new(error))
    }
}

/// Receives PDUs, one after the other: [`next`](Self::next) takes the head of one, which is all of it, or its
/// headers if the rest is a command's payload. That follows with [`place`](Self::place), as often as the
/// machine says, and [`finish`](Self::finish).
#[derive(Debug)]
pub struct Receiver {
    reader: FramedReader,
    /// The PDU whose head was received last.
    pdu: Frame,
    /// The length of its head, while the reader holds that.
    head_len: usize,
    /// Bytes of its payload that have no place yet.
    payload_left: usize,
    /// Bytes that follow them, without the digest.
    padding: usize,
    /// Of the payload, as far as that was placed; `None`: there is none to check.
    digest: Option<DataDigest>,
}

impl Receiver {
    /// Receives from `stream` by way of a buffer of `capacity` bytes.
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

    /// Makes the buffer one of `capacity` bytes, if it is smaller.
    pub fn reserve(&mut self, capacity: usize) {
        self.reader.reserve(capacity);
    }

    /// Receives the head of the next PDU.
    ///
    /// # Errors
    /// The stream's, and what is wrong with the PDU: its lengths, its header digest, the digest of data that
    /// are part of the head.
    pub async fn next(&mut self, limits: &FrameLimits) -> Result<()> {
        self.consume_head();
        // What is at hand needs no wait, which is nearly always.
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

    /// The head, as a machine's `receive` takes it: header, additional headers, data. To be asked for before
    /// anything is placed.
    pub fn head(&self) -> (&[u8; BHS_LEN], &[u8], RxData<'_>) {
        let bytes = self.reader.bytes();
        let header = bytes.first_chunk().expect("the head begins with it");
        let data = match self.payload_left {
            0 => RxData::Inline(&bytes[self.pdu.data()]),
            len => RxData::Length(len as u32),
        };
        (header, &bytes[self.pdu.ahs()], data)
    }

    /// Receives all of the next PDU, and gives its header, additional headers and data.
    ///
    /// # Errors
    /// As those of [`next`](Self::next), also for a payload.
    pub async fn next_whole(
        &mut self,
        limits: &FrameLimits,
    ) -> Result<(&[u8; BHS_LEN], &[u8], &[u8])> {
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
    /// The stream's.
    ///
    /// # Panics
    /// When less of the payload is left: a machine asks for no more than it was told of.
    pub async fn place(&mut self, buf: Buf, range: Range<usize>) -> Result<Buf> {
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

    /// The same into all of `to`, without a wait; false when it is not at hand or has to be checked, and
    /// then nothing was taken.
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

    /// Whether anything is left of the PDU that was not [placed](Self::place).
    pub fn has_rest(&self) -> bool {
        self.digest.is_some() || self.payload_left + self.padding > 0
    }

    /// Receives what [is left](Self::has_rest) of the PDU: payload that nobody wanted, padding, the digest.
    ///
    /// # Errors
    /// The stream's, and a wrong digest: what was placed is not what was sent.
    pub async fn finish(&mut self) -> Result<()> {
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

    /// Drops the head from the reader, once.
    fn consume_head(&mut self) {
        if self.head_len > 0 {
            self.reader.consume(self.head_len);
            self.head_len = 0;
        }
    }

    /// Receives until `len` bytes are at hand.
    async fn require(&mut self, len: usize) -> Result<()> {
        match self.reader.fill(len).await? {
            true => Ok(()),
            false => Err(Error::Ended),
        }
    }
}
