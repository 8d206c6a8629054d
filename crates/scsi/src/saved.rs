//! How what outlives a restart is written in words: what all kinds of lines share.

/// The reason for a line that no release has written in this form.
pub(crate) const MALFORMED: &str = "is malformed";

/// A truth value as it is saved.
pub(crate) fn truth(word: &str) -> Result<bool, &'static str> {
    match word {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(MALFORMED),
    }
}
