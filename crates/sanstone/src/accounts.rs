//! Accounts in the arguments of the call: a URL may have a secret, as in libiscsi's tools (`iscsi://USER%SECRET@HOST/…`), and
//! so may a text that was meant to be one. Whatever is printed or logged of an argument, that part of it is not.

use std::{borrow::Cow, ffi::OsStr, sync::OnceLock};

/// What an account is shown as.
const HIDDEN: &str = "(hidden)";

static ACCOUNTS: OnceLock<Vec<String>> = OnceLock::new();

/// Hides the accounts in these arguments from now on.
pub(crate) fn hide_those_in<S: AsRef<OsStr>>(arguments: impl Iterator<Item = S>) {
    let found = arguments.flat_map(|argument| {
        let found = account_in(&argument.as_ref().to_string_lossy());
        found.into_iter().flat_map(|account| {
            // As it is quoted.
            let quoted = format!("{account:?}").trim_matches('"').to_owned();
            [quoted, account]
        })
    });
    let _ = ACCOUNTS.set(found.collect());
}

/// The text without those accounts.
pub(crate) fn hidden(text: &str) -> Cow<'_, str> {
    let accounts = ACCOUNTS.get().map_or(&[][..], |accounts| accounts);
    let mut shown = Cow::Borrowed(text);
    for account in accounts {
        if shown.contains(account.as_str()) {
            shown = shown.replace(account.as_str(), HIDDEN).into();
        }
    }
    shown
}

/// The account in an argument: of a URL, whatever is before its host; of another text, what has the form of one.
fn account_in(argument: &str) -> Option<String> {
    let text = match argument.strip_prefix("--") {
        Some(option) => option.split_once('=')?.1,
        None => argument,
    };
    // A secret may contain any character; what follows it has no @.
    let (before, _) = text.rsplit_once('@')?;
    let scheme = before.split_once("://");
    let account = match scheme {
        Some((_, account)) => account,
        None => {
            let rest = before.split_once(":/").map_or(before, |(_, rest)| rest);
            rest.trim_start_matches('/')
        }
    };
    let is_one = scheme.is_some() || account.contains('%');
    (is_one && account.len() > 1).then(|| account.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_wherever_an_argument_may_have_one() {
        for (argument, account) in [
            ("iscsi://me%s3/c%r@t@10.0.0.1/iqn.a:b/0", "me%s3/c%r@t"),
            ("iscsi:/me%secret@10.0.0.1/iqn.a:b/0", "me%secret"),
            ("iscsi:///me%secret@10.0.0.1/iqn.a:b/0", "/me%secret"),
            ("--on=iscsi://me%secret@10.0.0.1", "me%secret"),
            ("--on=me%secret@10.0.0.1", "me%secret"),
            ("me%secret@10.0.0.1:3260", "me%secret"),
            ("http://me:secret@10.0.0.1", "me:secret"),
        ] {
            assert_eq!(account_in(argument).as_deref(), Some(account), "{argument}");
        }
        for argument in [
            "db",
            "--on",
            "./a@b.img",
            "--on=./a@b.img",
            "iscsi://10.0.0.1/iqn.a:b/0",
            "50%",
            "%@",
        ] {
            assert_eq!(account_in(argument), None, "{argument}");
        }
    }

    #[test]
    fn what_is_printed_has_no_account() {
        hide_those_in(["lab", "iscsi:/me%a \"secret@10.0.0.1"].iter());
        for text in ["me%a \"secret@10", "\"me%a \\\"secret@10\""] {
            let shown = hidden(text);
            assert!(
                !shown.contains("secret") && shown.contains("@10"),
                "{shown}"
            );
        }
        assert_eq!(hidden("nothing of it"), "nothing of it");
    }
}
