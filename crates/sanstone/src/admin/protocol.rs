//! The protocol between client and daemon: each connection carries one line from the client and one from the
//! daemon. Both are JSON objects that start with the protocol version. While it works on the answer, the
//! daemon sends spaces, which JSON ignores, as a sign of life.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Read, Write},
    path::PathBuf,
    time::Duration,
};

use node::{
    description::{CounterSnapshot, PathSession},
    health::Verdict,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// How long a daemon may take to answer a query; while stopping it answers nobody.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to apply a change, which opens volumes and ends what is no longer served.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Interval at which a working daemon sends a space.
pub(crate) const BEAT: Duration = Duration::from_secs(2);
/// A daemon that sends nothing for this long is considered hung.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// The protocol version.
const VERSION: u32 = 1;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum AdminCall {
    /// Everything there is to show. Answer: a [`Description`](node::description::Description).
    Show,
    /// The counters since the start. Answer: a [`Sample`].
    Counters,
    /// Compare the copies of the mirror at the path `mirror` of a tree, from `at_bytes` on. Answer: a [`Compared`].
    Compare { mirror: String, at_bytes: u64 },
    /// Log from here on what the filter says, if there is one. Answer: the filter before.
    Log { filter: Option<String> },
    /// Serve the configuration at the absolute path `path`. Answer: an [`Applied`].
    Apply {
        path: PathBuf,
        /// Only report what that would change.
        dry_run: bool,
    },
}

/// A part of a mirror whose copies were compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Compared {
    /// Where the next part begins, in bytes.
    pub(crate) next_bytes: u64,
    /// The length of the mirror in bytes: there is no next part.
    pub(crate) len_bytes: u64,
    /// Where the copies differ, in bytes: from, and up to but without.
    pub(crate) differ: Vec<(u64, u64)>,
}

/// What was changed, or would be in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    /// One line per change and warning; empty if there is none.
    pub(crate) changes: Vec<String>,
    /// How many of these lines are warnings. An older daemon does not say it.
    #[serde(default)]
    pub(crate) warnings: usize,
    /// Warnings about settings that work but may not be what was intended.
    pub(crate) notes: Vec<String>,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The moment in nanoseconds, on a monotonic clock.
    pub(crate) at_ns: u64,
    /// CPU time of the process, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// The part of it in which lanes looked for work in vain, in nanoseconds.
    #[serde(default)]
    pub(crate) looked_ns: u64,
    /// The sessions of each remote disk, by the path of its node.
    #[serde(default)]
    pub(crate) paths: BTreeMap<String, Vec<PathSession>>,
    pub(crate) counters: CounterSnapshot,
    /// How everything is.
    #[serde(default)]
    pub(crate) verdict: Verdict,
}

impl AdminCall {
    /// How long the daemon may take to answer this request.
    pub(crate) fn timeout(&self) -> Duration {
        match self {
            AdminCall::Show
            | AdminCall::Counters
            | AdminCall::Compare { .. }
            | AdminCall::Log { .. } => ANSWER_TIMEOUT,
            AdminCall::Apply { .. } => CHANGE_TIMEOUT,
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdminRefusal {
    /// Whether the request itself is wrong; otherwise it was valid and failed.
    pub(crate) is_wrong: bool,
    /// The whole message for the user.
    pub(crate) message: String,
}

impl AdminRefusal {
    /// A valid request that failed.
    pub(crate) fn failed(message: impl Into<String>) -> AdminRefusal {
        AdminRefusal {
            is_wrong: false,
            message: message.into(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct AdminRequest {
    version: u32,
    #[serde(flatten)]
    asked: AdminCall,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct AdminReply<T> {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    answer: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    refused: Option<AdminRefusal>,
}

/// Encodes a request as a line.
pub(crate) fn request(asked: AdminCall) -> io::Result<Vec<u8>> {
    line(&AdminRequest {
        version: VERSION,
        asked,
    })
}

/// Decodes a request line.
///
/// # Errors
/// It is not a request of this version.
pub(crate) fn asked(line: &[u8]) -> Result<AdminCall, AdminRefusal> {
    let request: AdminRequest = versioned(line).map_err(|message| AdminRefusal {
        is_wrong: true,
        message,
    })?;
    Ok(request.asked)
}

/// Encodes an answer as a line.
pub(crate) fn reply(answer: Result<impl Serialize, AdminRefusal>) -> io::Result<Vec<u8>> {
    let (answer, refused) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(refusal) => (None, Some(refusal)),
    };
    line(&AdminReply {
        version: VERSION,
        answer,
        refused,
    })
}

/// Decodes an answer line.
///
/// # Errors
/// The daemon refused, or sent an answer that this program does not understand.
pub(crate) fn answer<T: DeserializeOwned>(line: &[u8]) -> Result<T, AdminRefusal> {
    let reply: AdminReply<T> = versioned(line).map_err(AdminRefusal::failed)?;
    match (reply.answer, reply.refused) {
        (Some(answer), None) => Ok(answer),
        (_, Some(refusal)) => Err(refusal),
        (None, None) => Err(AdminRefusal::failed("received a line without an answer")),
    }
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Checks the version before parsing the rest, whose meaning another version may have changed.
fn versioned<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| format!("received a line that is not a JSON object: {error}"))?;
    match value.get("version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(format!(
                "the other side speaks version {version} of the admin protocol, and this program \
                 version {VERSION}: use the `sanstone` that the daemon was started from"
            ));
        }
        None => return Err("received a line without the version of the admin protocol".to_owned()),
    }
    serde_json::from_value(value).map_err(|error| format!("cannot decode the line: {error}"))
}

/// Reads a line of at most `max` bytes; the newline is removed.
pub(crate) fn read_line(from: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    io::BufReader::new(from)
        .take(max + 1)
        .read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(line),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(_) if line.len() as u64 >= max => {
            let message = format!("received a line of more than {max} bytes");
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        }
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes a whole line.
pub(crate) fn write_line(mut to: impl Write, line: &[u8]) -> io::Result<()> {
    to.write_all(line)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_asked_and_answered_arrives() {
        let apply = AdminCall::Apply {
            path: "/etc/sanstone.toml".into(),
            dry_run: true,
        };
        let compare = AdminCall::Compare {
            mirror: "db/cache/mirror".to_owned(),
            at_bytes: 1 << 40,
        };
        let log = AdminCall::Log {
            filter: Some("debug".to_owned()),
        };
        for sent in [AdminCall::Show, AdminCall::Counters, compare, log, apply] {
            let line = request(sent.clone()).expect("it is JSON");
            assert_eq!(asked(&line).expect("ours"), sent);
        }
        let numbered = BTreeMap::from([(7, "seven".to_owned())]);
        let line = reply(Ok(&numbered)).expect("it is JSON");
        assert_eq!(answer(&line), Ok(numbered));
        let refusal = AdminRefusal::failed("no");
        let line = reply(Err::<u32, _>(refusal.clone())).expect("it is JSON");
        assert_eq!(answer::<u32>(&line), Err(refusal));
    }

    #[test]
    fn spaces_before_an_answer_mean_nothing() {
        let mut line = vec![b' '; 5];
        line.extend(reply(Ok(7)).expect("it is JSON"));
        assert_eq!(answer(&line), Ok(7));
    }

    #[test]
    fn what_is_not_ours_is_refused_with_the_reason() {
        for (line, part) in [
            (&b"GET / HTTP/1.1"[..], "not a JSON object"),
            (b"{}", "without the version"),
            (b"[1]", "without the version"),
            (b"{\"version\":\"1\"}", "without the version"),
            (b"{\"version\":2,\"request\":\"show\"}", "version 2"),
            (b"{\"version\":1,\"request\":\"dance\"}", "dance"),
            (b"{\"version\":1}", "request"),
        ] {
            let refusal = asked(line).expect_err("not ours");
            assert!(
                refusal.is_wrong && refusal.message.contains(part),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn a_line_has_an_end_and_a_bound() {
        assert_eq!(read_line(&b"abc\nd"[..], 3).expect("a line"), b"abc");
        let long = read_line(&b"abcd\n"[..], 3).expect_err("too long");
        assert_eq!(long.kind(), io::ErrorKind::InvalidData);
        for cut in [&b""[..], b"ab"] {
            let cut = read_line(cut, 3).expect_err("no end");
            assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
