//! How much a value holds: the length of its `Debug` text, which shows every field and every byte
//! of every buffer. That is a few times its size in memory, needs no allocator of our own, and is
//! the same on every machine.

use std::fmt::{self, Debug, Write};

struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// The length of `value` written out, in bytes.
pub(crate) fn held(value: &impl Debug) -> usize {
    let mut length = Length(0);
    write!(length, "{value:?}").expect("counting does not fail");
    length.0
}
