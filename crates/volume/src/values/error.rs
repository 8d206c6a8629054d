//! An error in the configuration, with its place in the text.

use std::{fmt, ops::Range, path::Path};

use toml::Spanned;

/// What is wrong with a configuration, where, and what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    span: Option<Range<usize>>,
    message: String,
}

impl ConfigError {
    /// An error about the bytes `span` of the configuration's text.
    pub fn new(span: impl Into<Option<Range<usize>>>, message: impl Into<String>) -> Self {
        ConfigError {
            span: span.into(),
            message: message.into(),
        }
    }

    /// An error about `value`.
    pub(crate) fn at<T>(value: &Spanned<T>, message: impl Into<String>) -> Self {
        ConfigError::new(value.span(), message)
    }

    /// The bytes of the text that it is about.
    pub fn span(&self) -> Option<Range<usize>> {
        self.span.clone()
    }

    /// What is wrong and what to write instead, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Line and column of the place in `text`, both from 1, the column in characters. The empty range at the start of
    /// the text stands for values that are not in it, such as a default or a name from the command line.
    pub fn line_column(&self, text: &str) -> Option<(usize, usize)> {
        let at = self.span.as_ref().filter(|span| **span != (0..0))?.start;
        let before = text.get(..at)?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Some((
            before.matches('\n').count() + 1,
            before[line_start..].chars().count() + 1,
        ))
    }

    /// The message with its place in front: `FILE:LINE:COLUMN: message`.
    pub fn located<'a>(&'a self, path: &'a Path, text: &'a str) -> impl fmt::Display + 'a {
        struct Located<'a>(&'a ConfigError, &'a Path, &'a str);
        impl fmt::Display for Located<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.1.display())?;
                if let Some((line, column)) = self.0.line_column(self.2) {
                    write!(f, ":{line}:{column}")?;
                }
                write!(f, ": {}", self.0.message)
            }
        }
        Located(self, path, text)
    }
}

impl From<toml::de::Error> for ConfigError {
    fn from(error: toml::de::Error) -> Self {
        ConfigError::new(error.span(), error.message())
    }
}
