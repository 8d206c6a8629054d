//! The options of the handshake: parsing their data, and building the replies to them.

use zerocopy::IntoBytes;

use crate::{
    export::Export,
    reply::shortened,
    wire::{OPTION_REPLY_MAGIC, OptionReplyHeader, STRING_MAX_BYTES, context, info, option_reply},
};

/// What is wrong with an option's data, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Appends a reply to `option`.
pub(crate) fn push_reply(replies: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: (data.len() as u32).into(),
    };
    replies.extend_from_slice(header.as_bytes());
    replies.extend_from_slice(data);
}

/// Appends an error reply to `option`; `message` is the reason for people to read.
pub(crate) fn push_refusal(replies: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    push_reply(replies, option, kind, shortened(message).as_bytes());
}

/// The data of an option, consumed from the front.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(Malformed("its data is truncated"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        if len > STRING_MAX_BYTES {
            return Err(Malformed("a string of more than 4096 bytes"));
        }
        self.take(len)
    }

    fn end(self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed("it has trailing data")),
        }
    }
}

/// The data of NBD_OPT_INFO and NBD_OPT_GO.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct InfoRequest<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) wants_block_size: bool,
    pub(crate) wants_name: bool,
}

impl<'a> InfoRequest<'a> {
    pub(crate) fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut data = Data(data);
        let name = data.string()?;
        let mut request = InfoRequest {
            name,
            wants_block_size: false,
            wants_name: false,
        };
        for _ in 0..data.u16()? {
            match data.u16()? {
                info::BLOCK_SIZE => request.wants_block_size = true,
                info::NAME => request.wants_name = true,
                // Unknown kinds of information are ignored.
                _ => {}
            }
        }
        data.end()?;
        Ok(request)
    }

    /// Appends the information about `export` that the client asked for.
    pub(crate) fn push_replies(
        &self,
        replies: &mut Vec<u8>,
        option: u32,
        export: &Export,
        flags: u16,
    ) {
        let mut about = Vec::new();
        about.extend_from_slice(&info::EXPORT.to_be_bytes());
        about.extend_from_slice(&export.len_bytes.to_be_bytes());
        about.extend_from_slice(&flags.to_be_bytes());
        push_reply(replies, option, option_reply::INFO, &about);
        if self.wants_name {
            about.clear();
            about.extend_from_slice(&info::NAME.to_be_bytes());
            about.extend_from_slice(export.name.as_bytes());
            push_reply(replies, option, option_reply::INFO, &about);
        }
        if self.wants_block_size {
            about.clear();
            about.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
            let block = export.block;
            for size in [block.minimum, block.preferred, block.payload_max] {
                about.extend_from_slice(&size.to_be_bytes());
            }
            push_reply(replies, option, option_reply::INFO, &about);
        }
    }
}

/// The data of NBD_OPT_SET_META_CONTEXT and NBD_OPT_LIST_META_CONTEXT.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct ContextRequest<'a> {
    pub(crate) name: &'a [u8],
    /// Whether there were no queries.
    pub(crate) is_empty: bool,
    /// Whether a query names `base:allocation`.
    pub(crate) names_allocation: bool,
    /// Whether a query asks for everything in `base:`.
    pub(crate) names_base: bool,
}

impl<'a> ContextRequest<'a> {
    pub(crate) fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut data = Data(data);
        let name = data.string()?;
        let queries = data.u32()?;
        let mut request = ContextRequest {
            name,
            is_empty: queries == 0,
            names_allocation: false,
            names_base: false,
        };
        // Each query takes at least four bytes, so the data's length bounds the loop.
        for _ in 0..queries {
            let query = data.string()?;
            request.names_allocation |= query == context::ALLOCATION.as_bytes();
            request.names_base |= query == context::BASE.as_bytes();
        }
        data.end()?;
        Ok(request)
    }
}
