//! What a verb found out, on standard output, which can be full or closed like any other file.

use std::{
    fmt::Display,
    io::{self, Write},
};

use anyhow::Context;

/// Writes all of `text`.
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .context("writing to standard output")
}
