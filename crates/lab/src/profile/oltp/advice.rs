//! Advice from the rounds on one disk: about the place with the most of a transaction's time, if that surely is most of
//! it, and if a setting is known that changes it.

use super::{
    Round,
    layers::Breakdown,
    spent::{SpentRow, TransactionLayer},
};
use crate::{
    profile::{
        medium::Kinds,
        share::{LARGE, Proportion},
    },
    report::{short, time_us},
};

/// Processors busier than this are what everything waits for.
const BUSY: f64 = 0.9;

/// For the disk called `on`.
pub(super) fn advice(on: &str, rounds: &[Round], breakdown: &Breakdown) -> Option<String> {
    let row = breakdown.largest()?;
    let parts = rounds
        .iter()
        .map(|round| (round.spent.us_of(row), round.spent.total_us()));
    let told = Proportion::of(parts).told_above(LARGE)?;
    let mend = match row.layer {
        TransactionLayer::Database => {
            let busy = Proportion::of(rounds.iter().map(|round| (round.busy, 1.0)));
            format!(
                "the processors are busy for {} of the time, so a faster disk would not help; fewer connections \
                 (`threads`) wait less for a processor each, and more processors do more",
                busy.told_above(BUSY)?
            )
        }
        _ => mend(row)?,
    };
    let figure = match row.layer {
        TransactionLayer::Database => String::new(),
        _ => format!(
            ", {} for each of its {} requests{}",
            time_us(row.request_us()),
            short(row.requests),
            kinds(row).told()
        ),
    };
    Some(format!(
        "{on}: {told} of a transaction is {}{figure}: {mend}",
        row.name()
    ))
}

fn kinds(row: &SpentRow) -> Kinds<'_> {
    Kinds::of(row.kinds_us.iter().map(|(kind, us)| (kind.as_str(), *us)))
}

/// The setting that shortens the requests at this place, if there is one.
fn mend(row: &SpentRow) -> Option<String> {
    let place = &row.place;
    let kind = place.rsplit('/').next().unwrap_or_default();
    Some(match (row.layer, kind) {
        (TransactionLayer::Tree | TransactionLayer::Target, "throttle") => {
            format!("raise `rate` or lower `latency` of {place}")
        }
        (TransactionLayer::Tree | TransactionLayer::Target, "fault") => {
            format!("remove the rule with `delay` from {place}")
        }
        (TransactionLayer::Link, _) => format!(
            "look at the link to the `url` of {place} (ping, errors of the interface), or name a faster one with \
             `paths`"
        ),
        (TransactionLayer::Medium, _) if place.is_empty() => {
            format!("put the database's files (--on) on {}", kinds(row).disk())
        }
        (TransactionLayer::Medium, _) => {
            let node = place.trim_end_matches(" at the target");
            format!("put the `path` of {node} on {}", kinds(row).disk())
        }
        (TransactionLayer::UntoldTarget, _) => format!(
            "look at the target behind the `url` of {place}; if it is a `sanstone serve` on this machine, --pid with its \
             process divides this row"
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::spent::{
            Spent,
            tests::{after, before},
        },
        *,
    };

    /// Rounds whose connections had so much time together, in microseconds.
    fn rounds(whole_us: &[f64], busy: f64) -> Vec<Round> {
        let round = |whole_us: &f64| Round {
            busy,
            spent: Spent::of(*whole_us, 10.0, &before(), &after()),
            ..Round::default()
        };
        whole_us.iter().map(round).collect()
    }

    fn of(rounds: &[Round]) -> Option<String> {
        let breakdown = Breakdown::of(rounds.iter().map(|round| &round.spent))?;
        advice("db", rounds, &breakdown)
    }

    #[test]
    fn saturated_processors_are_told_with_both_intervals() {
        let told = of(&rounds(&[90_000.0; 6], 0.97)).expect("most of it");
        assert!(
            told.starts_with(
                "db: 89 % (95 % interval 89–89 %) of a transaction is database and file system: "
            ),
            "{told}"
        );
        let busy = "busy for 97 % (95 % interval 97–97 %)";
        assert!(told.contains(busy) && told.contains("`threads`"), "{told}");
    }

    #[test]
    fn without_a_figure_there_is_no_advice() {
        assert_eq!(of(&rounds(&[90_000.0; 5], 0.97)), None, "no interval");
        assert_eq!(of(&rounds(&[90_000.0; 6], 0.5)), None, "idle processors");
        assert_eq!(of(&rounds(&[12_000.0; 6], 0.97)), None, "a small part");
        let unsteady = [90_000.0, 11_000.0, 90_000.0, 11_000.0, 90_000.0, 11_000.0];
        assert_eq!(of(&rounds(&unsteady, 0.97)), None, "not surely");
        assert_eq!(of(&[]), None);
    }

    /// Rounds in which one place has most of the time.
    fn most_at(layer: TransactionLayer, place: &str) -> Option<String> {
        let mut rounds = rounds(&[20_000.0; 6], 0.1);
        for round in &mut rounds {
            let row = |layer, place: &str, us| SpentRow {
                layer,
                place: place.into(),
                us,
                own_us: us,
                requests: 2.0,
                kinds_us: match layer {
                    TransactionLayer::Medium => BTreeMap::from([
                        ("read".to_owned(), us * 0.9),
                        ("flush".to_owned(), us * 0.1),
                    ]),
                    _ => BTreeMap::new(),
                },
            };
            round.spent.rows = vec![
                row(TransactionLayer::Database, "", 200.0),
                row(layer, place, 800.0),
            ];
        }
        of(&rounds)
    }

    #[test]
    fn a_place_with_most_of_the_time_is_named_with_its_setting() {
        for (layer, place, words) in [
            (
                TransactionLayer::Tree,
                "db/throttle",
                "lower `latency` of db/throttle",
            ),
            (
                TransactionLayer::Target,
                "v/fault",
                "rule with `delay` from v/fault",
            ),
            (TransactionLayer::Link, "db/iscsi", "`url` of db/iscsi"),
            (TransactionLayer::Medium, "", "(--on)"),
            (
                TransactionLayer::Medium,
                "v/file at the target",
                "`path` of v/file on",
            ),
            (TransactionLayer::UntoldTarget, "db/iscsi", "--pid"),
        ] {
            let told = most_at(layer, place).expect("most of it");
            let figure = match layer {
                TransactionLayer::Medium => {
                    assert!(
                        told.contains("with faster reads") && !told.contains("faster flush"),
                        "{told}"
                    );
                    ", 400 µs for each of its 2 requests (read 90 %, flush 10 % of that): "
                }
                _ => ", 400 µs for each of its 2 requests: ",
            };
            assert!(told.contains("80 % (95 % interval"), "{told}");
            assert!(told.contains(figure) && told.contains(words), "{told}");
        }
        for (layer, place) in [
            (TransactionLayer::Loop, ""),
            (TransactionLayer::Tree, "db/stripe"),
        ] {
            assert_eq!(most_at(layer, place), None, "no setting is known");
        }
    }
}
