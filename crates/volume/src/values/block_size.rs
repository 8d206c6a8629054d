//! The unit of a volume's addresses, and checks for sizes in whole blocks.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::{ConfigError, Size};

/// The unit of a volume's addresses: 512 (the default, which every initiator supports) or 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(u32);

impl BlockSize {
    /// 512 or 4096.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// Rejects a size that is zero or not a whole number of blocks.
    pub(crate) fn check(self, size: &Spanned<Size>) -> Result<(), ConfigError> {
        let bytes = size.get_ref().bytes();
        let block = u64::from(self.0);
        if bytes == 0 || bytes % block != 0 {
            let above = Size::from_bytes(bytes.next_multiple_of(block).max(block));
            let below = bytes / block * block;
            return Err(ConfigError::at(
                size,
                match bytes {
                    0 => format!("a volume of 0 bytes cannot hold data; write \"{above}\" or more"),
                    _ if below == 0 => format!(
                        "a size of {bytes} bytes is not a whole number of blocks of {block} bytes; write \
                         \"{above}\""
                    ),
                    _ => format!(
                        "a size of {bytes} bytes is not a whole number of blocks of {block} bytes; write \
                         \"{above}\", or \"{}\", which leaves out the last {} bytes of a file of that \
                         length",
                        Size::from_bytes(below),
                        bytes - below
                    ),
                },
            ));
        }
        Ok(())
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        BlockSize(512)
    }
}

impl<'de> Deserialize<'de> for BlockSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlockSizeVisitor;

        impl de::Visitor<'_> for BlockSizeVisitor {
            type Value = BlockSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block size: 512 or 4096, without quotes")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<BlockSize, E> {
                match bytes {
                    512 | 4096 => Ok(BlockSize(bytes as u32)),
                    _ => Err(E::custom(format!(
                        "a block size of {bytes} is not supported; write 512 or 4096"
                    ))),
                }
            }
        }

        deserializer.deserialize_i64(BlockSizeVisitor)
    }
}
