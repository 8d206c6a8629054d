//! What the log says of the health of everything: that requests hang, and that space runs out, when it begins and when it is
//! over. Whoever loses a session or a copy logs that where it happens. What comes and goes is logged once a minute, with
//! how often it was left out meanwhile.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use node::health::{About, Health, Reason, Verdict};

/// The same is not said more often.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Of what is over for so long nothing is kept.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// What a reason is known by, as long as it holds: its figures change.
type Topic = (About, String, Health);

/// What was said, and what holds.
#[derive(Default)]
pub(crate) struct Diary(BTreeMap<Topic, Entry>);

struct Entry {
    said: Instant,
    /// It holds; whether that was said.
    holds: Option<bool>,
    left_out: u64,
}

/// A line for the log.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Begins(&'a Reason, u64),
    Over(String),
}

impl Diary {
    /// Logs what has begun and what is over, according to the verdict at this moment.
    pub(crate) fn tell(&mut self, verdict: &Verdict, now: Instant) {
        for line in self.lines(verdict, now) {
            match line {
                Line::Begins(reason, left_out) => {
                    let Reason { of, what, mend, .. } = reason;
                    tracing::warn!(of, left_out, "{what}; {mend}");
                }
                Line::Over(of) => tracing::info!(of, "it is well again"),
            }
        }
    }

    fn lines<'a>(&mut self, verdict: &'a Verdict, now: Instant) -> Vec<Line<'a>> {
        let is_ours = |reason: &&Reason| matches!(reason.about, About::Request | About::Space);
        let topic = |reason: &Reason| (reason.about, reason.of.clone(), reason.health);
        let ours: Vec<&Reason> = verdict.reasons.iter().filter(is_ours).collect();
        let mut lines = Vec::new();
        for (topic_then, entry) in &mut self.0 {
            let holds = ours.iter().any(|reason| topic(reason) == *topic_then);
            if !holds && entry.holds.take() == Some(true) {
                lines.push(Line::Over(topic_then.1.clone()));
            }
        }
        for reason in ours {
            let known = self.0.get_mut(&topic(reason));
            match known {
                Some(entry) if entry.holds.is_some() => {}
                Some(entry) if now - entry.said < AGAIN_AFTER => {
                    entry.holds = Some(false);
                    entry.left_out += 1;
                }
                known => {
                    let left_out = known.map_or(0, |entry| entry.left_out);
                    let entry = Entry {
                        said: now,
                        holds: Some(true),
                        left_out: 0,
                    };
                    self.0.insert(topic(reason), entry);
                    lines.push(Line::Begins(reason, left_out));
                }
            }
        }
        self.0
            .retain(|_, entry| entry.holds.is_some() || now - entry.said < KEPT);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(figures: &[u64]) -> Verdict {
        let reason = |seconds: &u64| Reason {
            health: Health::Degraded,
            about: About::Request,
            of: "db/iscsi (iscsi://10.0.1.2/iqn.x:y/0)".to_owned(),
            what: format!("1 write in progress, the oldest for {seconds} s"),
            mend: "look at the disk".to_owned(),
        };
        Verdict {
            health: Health::Degraded,
            reasons: figures.iter().map(reason).collect(),
        }
    }

    #[test]
    fn what_begins_and_ends_is_said_once_and_what_comes_and_goes_is_counted() {
        let (mut diary, begin) = (Diary::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let is_over = |lines: &[Line<'_>]| matches!(lines, [Line::Over(_)]);
        let first = verdict(&[3]);
        assert_eq!(
            diary.lines(&first, at(0)),
            [Line::Begins(&first.reasons[0], 0)]
        );
        assert_eq!(diary.lines(&verdict(&[7]), at(4)), []);
        assert!(is_over(&diary.lines(&Verdict::default(), at(8))));
        // It comes back twice within the minute.
        for seconds in [12, 20] {
            assert_eq!(diary.lines(&verdict(&[3]), at(seconds)), []);
            assert_eq!(diary.lines(&Verdict::default(), at(seconds + 4)), []);
        }
        let last = verdict(&[3]);
        assert_eq!(
            diary.lines(&last, at(70)),
            [Line::Begins(&last.reasons[0], 2)]
        );
        assert!(is_over(&diary.lines(&Verdict::default(), at(74))));
    }

    #[test]
    fn what_others_log_is_left_to_them() {
        let mut lost = verdict(&[3]);
        lost.reasons[0].about = About::Path;
        assert_eq!(Diary::default().lines(&lost, Instant::now()), []);
    }
}
