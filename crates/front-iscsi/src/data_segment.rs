//! The rest of a PDU's data segment, after the parts that belong to a command: padding, the data digest, and
//! data that no command takes.

use engine::{net::FramedReader, spend};
use iscsi::frame::{DataDigest, Frame};

/// The rest of a PDU's data segment.
pub(crate) struct Tail {
    payload: bool,
    data_left: usize,
    padding: usize,
    digest: Option<DataDigest>,
}

impl Tail {
    pub(crate) fn new(pdu: &Frame) -> Tail {
        Tail {
            payload: pdu.payload,
            data_left: pdu.data_len,
            padding: iscsi::frame::padding(pdu.data_len),
            digest: pdu.data_digest_offset.map(|_| DataDigest::default()),
        }
    }

    /// Checks the digest of a PDU that is wholly at hand.
    pub(crate) fn check_inline(&mut self, pdu: &Frame, bytes: &[u8]) -> Result<(), iscsi::Error> {
        let (Some(digest), Some(at)) = (self.digest.take(), pdu.data_digest_offset) else {
            return Ok(());
        };
        let mut digest = digest;
        digest.update(&bytes[pdu.data()]);
        digest.verify(
            *bytes[at..]
                .first_chunk()
                .expect("the frame counts the digest"),
        )
    }

    /// Notes a part that has been received into its command's memory.
    pub(crate) fn take(&mut self, placed: &[u8]) {
        self.data_left -= placed.len();
        if let Some(digest) = &mut self.digest {
            digest.update(placed);
        }
    }

    /// Whether what is placed is also looked at, for the digest.
    pub(crate) fn is_digested(&self) -> bool {
        self.digest.is_some()
    }

    /// Whether nothing is left to read or check.
    pub(crate) fn is_done(&self) -> bool {
        !self.payload || self.digest.is_none() && self.data_left + self.padding == 0
    }

    /// Skips data that no command takes and the padding, and checks the digest. The outer error is
    /// the socket's.
    pub(crate) async fn finish(
        self,
        reader: &mut FramedReader,
    ) -> std::io::Result<Result<(), iscsi::Error>> {
        let Some(mut digest) = self.digest else {
            reader.skip(self.data_left + self.padding).await?;
            return Ok(Ok(()));
        };
        let mut unread = self.data_left;
        while unread > 0 {
            require(reader, 1).await?;
            let n = reader.bytes().len().min(unread);
            spend(n).await;
            digest.update(&reader.bytes()[..n]);
            reader.consume(n);
            unread -= n;
        }
        reader.skip(self.padding).await?;
        require(reader, 4).await?;
        let received = *reader
            .bytes()
            .first_chunk()
            .expect("four bytes are at hand");
        reader.consume(4);
        Ok(digest.verify(received))
    }
}

/// Receives until `len` bytes are at hand. An early end of the stream is an error.
pub(crate) async fn require(reader: &mut FramedReader, len: usize) -> std::io::Result<()> {
    match reader.fill(len).await? {
        true => Ok(()),
        false => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}
