//! Where the time of a round's transactions went, from counters of the storage before and after it.
//!
//! Counters tell how long requests took at each place, but not which transaction waited for them. So the whole is the
//! time of all connections, each row is the time that requests spent at one place and not below it, and what no request
//! accounts for is the database's. Requests that run side by side count each; where they add up to more than the place
//! above them, they are scaled down to it, so that the rows add up to the whole. The time of one request is that of the
//! counters, never scaled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::layers::{MEDIUM, TARGET};
use crate::databases::{DEVICE_KINDS, IoSnapshot};

/// A layer of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TransactionLayer {
    Database,
    /// The database together with storage that shows nothing of itself.
    Undivided,
    Loop,
    Attach,
    Tree,
    Link,
    Target,
    Medium,
    /// An attached volume whose process could not be asked.
    UntoldAttach,
    /// A target that could not be asked, and the way to it.
    UntoldTarget,
}

impl TransactionLayer {
    pub(super) fn name(self) -> &'static str {
        match self {
            TransactionLayer::Database => "database and file system",
            TransactionLayer::Undivided => "database, file system and medium: not visible apart",
            TransactionLayer::Loop => "loop device",
            TransactionLayer::Attach => "attach",
            TransactionLayer::Tree => "tree",
            TransactionLayer::Link => "initiator and wire",
            TransactionLayer::Target => TARGET,
            TransactionLayer::Medium => MEDIUM,
            TransactionLayer::UntoldAttach => "attach and below: not visible",
            TransactionLayer::UntoldTarget => "initiator, wire and target: not visible",
        }
    }

    /// The colour class of its bars: the same as for a commit.
    pub(super) fn class(self) -> usize {
        match self {
            TransactionLayer::Database | TransactionLayer::Undivided => 0,
            TransactionLayer::Loop => 4,
            TransactionLayer::Attach => 2,
            TransactionLayer::Tree => 1,
            TransactionLayer::Link => 5,
            TransactionLayer::Target => 3,
            TransactionLayer::Medium => 6,
            TransactionLayer::UntoldAttach | TransactionLayer::UntoldTarget => 7,
        }
    }
}

/// A place with everything below it, over a whole round.
#[derive(Clone, Debug)]
struct SpentTree {
    layer: TransactionLayer,
    /// The node or volume, if the layer has several.
    place: String,
    requests: f64,
    us: f64,
    /// The time of each kind of request.
    kinds_us: BTreeMap<String, f64>,
    below: Vec<SpentTree>,
}

/// The time of one place, for each transaction.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct SpentRow {
    pub(super) layer: TransactionLayer,
    pub(super) place: String,
    /// Its share of the whole.
    pub(super) us: f64,
    /// What its requests took there, not below.
    pub(super) own_us: f64,
    pub(super) requests: f64,
    /// What each kind of request took, where nothing is below it.
    #[serde(default)]
    pub(super) kinds_us: BTreeMap<String, f64>,
}

/// Where the time of a round's transactions went.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Spent {
    pub(super) rows: Vec<SpentRow>,
    /// Whether more requests ran at a time than there are connections.
    pub(super) is_scaled: bool,
}

impl SpentRow {
    /// Whether both are about the same place.
    pub(super) fn is_same_place(&self, other: &SpentRow) -> bool {
        (self.layer, &self.place) == (other.layer, &other.place)
    }

    /// What one of its requests took there.
    pub(super) fn request_us(&self) -> f64 {
        self.own_us / self.requests.max(f64::MIN_POSITIVE)
    }

    pub(super) fn name(&self) -> String {
        match &*self.place {
            "" => self.layer.name().to_owned(),
            place => format!("{}: {place}", self.layer.name()),
        }
    }
}

impl Spent {
    /// Of a round in which connections had `whole_us` together, for this many transactions.
    pub(super) fn of(
        whole_us: f64,
        transactions: f64,
        before: &IoSnapshot,
        after: &IoSnapshot,
    ) -> Spent {
        let below = below_files(before, after);
        let whole = SpentTree {
            layer: match &below {
                Some(_) => TransactionLayer::Database,
                None => TransactionLayer::Undivided,
            },
            place: String::new(),
            requests: transactions,
            us: whole_us,
            kinds_us: BTreeMap::new(),
            below: below.into_iter().collect(),
        };
        let mut spent = Spent {
            is_scaled: whole.below.iter().any(|part| part.us > whole_us),
            ..Spent::default()
        };
        allot(&whole, whole_us, transactions, &mut spent.rows);
        spent
    }

    /// What the place of this row has in this round.
    pub(super) fn us_of(&self, row: &SpentRow) -> f64 {
        let it = self.rows.iter().find(|it| it.is_same_place(row));
        it.map_or(0.0, |it| it.us)
    }

    pub(super) fn total_us(&self) -> f64 {
        self.rows.iter().map(|row| row.us).sum()
    }
}

/// Divides what a part has of the whole between itself and what is below it.
fn allot(part: &SpentTree, allotted_us: f64, transactions: f64, rows: &mut Vec<SpentRow>) {
    let below_us: f64 = part.below.iter().map(|part| part.us).sum();
    let scale = match part.us.max(below_us) {
        0.0 => 0.0,
        whole_us => allotted_us / whole_us,
    };
    let own_us = (part.us - below_us).max(0.0) / transactions;
    let kinds = part.kinds_us.iter().filter(|_| part.below.is_empty());
    rows.push(SpentRow {
        layer: part.layer,
        place: part.place.clone(),
        us: own_us * scale,
        own_us,
        requests: part.requests / transactions,
        kinds_us: kinds
            .map(|(kind, us)| (kind.clone(), us / transactions))
            .collect(),
    });
    for below in part.below.iter().filter(|part| part.requests > 0.0) {
        allot(below, below.us * scale, transactions, rows);
    }
}

/// What is below the file system, if anything of it is visible.
fn below_files(before: &IoSnapshot, after: &IoSnapshot) -> Option<SpentTree> {
    let (Some(began), Some(ended)) = (before.device, after.device) else {
        return None;
    };
    let kind_us = |kind: usize| {
        let ms = ended.kinds_ms[kind].saturating_sub(began.kinds_ms[kind]);
        (DEVICE_KINDS[kind].to_owned(), 1e3 * ms as f64)
    };
    let device = |layer, below| SpentTree {
        layer,
        place: String::new(),
        requests: ended.requests.saturating_sub(began.requests) as f64,
        us: 1e3 * ended.ms.saturating_sub(began.ms) as f64,
        kinds_us: (0..DEVICE_KINDS.len()).map(kind_us).collect(),
        below,
    };
    if !after.is_attached {
        return Some(device(TransactionLayer::Medium, Vec::new()));
    }
    let attach = Sight::of(before.attach.as_ref(), after.attach.as_ref());
    let target = Sight::of(before.target.as_ref(), after.target.as_ref());
    let volume = attach.and_then(|attach| {
        let volume = attach.after["attached"]["volume"].as_str()?;
        attach.volume(volume, TransactionLayer::Attach, "", target.as_ref())
    });
    Some(match volume {
        Some(volume) => device(TransactionLayer::Loop, vec![volume]),
        None => device(TransactionLayer::UntoldAttach, Vec::new()),
    })
}

/// What `sanstone show` told of a process before and after.
struct Sight<'a> {
    after: &'a Value,
    /// What each node and each volume had done before.
    before: BTreeMap<&'a str, Sum>,
}

impl<'a> Sight<'a> {
    fn of(before: Option<&'a Value>, after: Option<&'a Value>) -> Option<Sight<'a>> {
        let mut sums = BTreeMap::new();
        let volumes = before?["volumes"].as_object()?;
        for (name, volume) in volumes {
            sums.insert(name.as_str(), commands(volume));
            note_nodes(&volume["tree"], &mut sums);
        }
        Some(Sight {
            after: after?,
            before: sums,
        })
    }

    fn part(&self, key: &str, layer: TransactionLayer, place: String, now: Sum) -> SpentTree {
        let none = Sum::default();
        let before = self.before.get(key).unwrap_or(&none);
        let kinds = now.kinds_us.into_iter().map(|(kind, us)| {
            let before_us = before.kinds_us.get(&kind).copied().unwrap_or(0.0);
            (kind, (us - before_us).max(0.0))
        });
        SpentTree {
            layer,
            place,
            requests: (now.requests - before.requests).max(0.0),
            us: (now.us - before.us).max(0.0),
            kinds_us: kinds.collect(),
            below: Vec::new(),
        }
    }

    /// A volume as its users see it, with its tree. `None` if the process does not have it.
    fn volume(
        &self,
        name: &str,
        layer: TransactionLayer,
        place: &str,
        target: Option<&Sight<'_>>,
    ) -> Option<SpentTree> {
        let volume = &self.after["volumes"][name];
        volume["commands"].as_object()?;
        let tree = self.node(&volume["tree"], layer == TransactionLayer::Target, target);
        Some(SpentTree {
            below: vec![tree],
            ..self.part(name, layer, place.to_owned(), commands(volume))
        })
    }

    /// A node with all below it.
    fn node(&self, node: &Value, is_targets: bool, target: Option<&Sight<'_>>) -> SpentTree {
        let path = node["path"].as_str().unwrap_or_default();
        let children = node["children"].as_array().map_or(&[][..], |all| all);
        let below = children.iter();
        let mut below: Vec<SpentTree> = below
            .map(|child| self.node(child, is_targets, target))
            .collect();
        let layer = match node["kind"].as_str() {
            Some("iscsi") => {
                let served = target.and_then(|target| target.served(node["place"].as_str()?));
                below.extend(served);
                match below.is_empty() {
                    true => TransactionLayer::UntoldTarget,
                    false => TransactionLayer::Link,
                }
            }
            _ if below.is_empty() => TransactionLayer::Medium,
            _ if is_targets => TransactionLayer::Target,
            _ => TransactionLayer::Tree,
        };
        let place = match (is_targets, layer) {
            (true, TransactionLayer::Medium) => format!("{path} at the target"),
            _ => path.to_owned(),
        };
        SpentTree {
            below,
            ..self.part(path, layer, place, requests(node))
        }
    }

    /// The volume that this process serves at the URL of an `iscsi` volume.
    fn served(&self, url: &str) -> Option<SpentTree> {
        let mut words = url.rsplit('/');
        let (lun, target) = (words.next()?, words.next()?);
        let volume = self.after["targets"][target]["luns"][lun]["volume"].as_str()?;
        self.volume(volume, TransactionLayer::Target, volume, None)
    }
}

fn note_nodes<'a>(node: &'a Value, sums: &mut BTreeMap<&'a str, Sum>) {
    if let Some(path) = node["path"].as_str() {
        sums.insert(path, requests(node));
    }
    for child in node["children"].as_array().into_iter().flatten() {
        note_nodes(child, sums);
    }
}

/// What has been done since the process began.
#[derive(Clone, Debug, Default)]
struct Sum {
    requests: f64,
    us: f64,
    kinds_us: BTreeMap<String, f64>,
}

/// The requests of a node.
fn requests(node: &Value) -> Sum {
    sum(&node["requests"], |kind| {
        (&kind["requests"], &kind["sum_us"])
    })
}

/// The commands of a volume.
fn commands(volume: &Value) -> Sum {
    sum(&volume["commands"], |kind| {
        (&kind["commands"], &kind["sum_us"]["total"])
    })
}

fn sum(kinds: &Value, of: fn(&Value) -> (&Value, &Value)) -> Sum {
    let mut sum = Sum::default();
    for (name, kind) in kinds.as_object().into_iter().flatten() {
        let (requests, us) = of(kind);
        let us = us.as_f64().unwrap_or(0.0);
        sum.requests += requests.as_f64().unwrap_or(0.0);
        sum.us += us;
        sum.kinds_us.insert(name.clone(), us);
    }
    sum
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::databases::DeviceTimes;

    fn part(layer: TransactionLayer, us: f64, below: Vec<SpentTree>) -> SpentTree {
        SpentTree {
            layer,
            place: String::new(),
            requests: 1.0,
            us,
            kinds_us: BTreeMap::new(),
            below,
        }
    }

    fn requests_of(count: u64, sum_us: f64) -> Value {
        json!({ "write": { "requests": count, "sum_us": sum_us } })
    }

    /// What `attach` shows of a throttle over a disk of a target after this many requests.
    fn attach(count: u64, [whole_us, throttle_us, disk_us]: [f64; 3]) -> Value {
        let disk = json!({
            "path": "db/throttle/iscsi", "kind": "iscsi", "requests": requests_of(count, disk_us),
            "place": "iscsi://127.0.0.1:3260/iqn.2026-11.io.sanstone:t/7",
        });
        let throttle = json!({
            "path": "db/throttle", "kind": "throttle", "requests": requests_of(count, throttle_us),
            "children": [disk],
        });
        let commands = json!({ "write": { "commands": count, "sum_us": { "total": whole_us } } });
        json!({
            "attached": { "volume": "db" },
            "volumes": { "db": { "tree": throttle, "commands": commands } },
        })
    }

    fn target(count: u64, [whole_us, file_us]: [f64; 2]) -> Value {
        let file =
            json!({ "path": "v/file", "kind": "file", "requests": requests_of(count, file_us) });
        let commands = json!({ "write": { "commands": count, "sum_us": { "total": whole_us } } });
        json!({
            "targets": { "iqn.2026-11.io.sanstone:t": { "luns": { "7": { "volume": "v" } } } },
            "volumes": { "v": { "tree": file, "commands": commands } },
        })
    }

    fn counted(count: u64, ms: u64, us: [f64; 3], target_us: [f64; 2]) -> IoSnapshot {
        IoSnapshot {
            device: Some(DeviceTimes {
                requests: count,
                ms,
                kinds_ms: [0, ms, 0, 0],
            }),
            is_attached: true,
            attach: Some(attach(count, us)),
            target: Some(target(count, target_us)),
        }
    }

    fn rows_of(spent: &Spent) -> Vec<(String, f64)> {
        let rows = spent.rows.iter();
        rows.map(|row| (row.name(), row.us)).collect()
    }

    pub(in super::super) fn before() -> IoSnapshot {
        counted(5, 1, [900.0, 800.0, 700.0], [600.0, 500.0])
    }

    pub(in super::super) fn after() -> IoSnapshot {
        counted(15, 11, [9900.0, 8800.0, 6700.0], [4600.0, 3500.0])
    }

    #[test]
    fn each_place_has_the_time_between_it_and_what_is_below() {
        let spent = Spent::of(30_000.0, 10.0, &before(), &after());
        let rows = [
            ("database and file system", 2000.0),
            ("loop device", 100.0),
            ("attach", 100.0),
            ("tree: db/throttle", 200.0),
            ("initiator and wire: db/throttle/iscsi", 200.0),
            ("target: v", 100.0),
            ("medium: v/file at the target", 300.0),
        ];
        assert_eq!(
            rows_of(&spent),
            rows.map(|(name, us)| (name.to_owned(), us))
        );
        let kinds = |row: usize| spent.rows[row].kinds_us.clone();
        assert_eq!(kinds(6), BTreeMap::from([("write".to_owned(), 300.0)]));
        assert_eq!(kinds(3), BTreeMap::new(), "it has something below");
        assert!(
            !spent.is_scaled && spent.rows[3].requests == 1.0,
            "{spent:?}"
        );
    }

    #[test]
    fn what_cannot_be_seen_is_named_and_keeps_its_time() {
        let names = |change: fn(&mut IoSnapshot)| {
            let mut ends = [before(), after()];
            ends.iter_mut().for_each(change);
            let rows = rows_of(&Spent::of(30_000.0, 10.0, &ends[0], &ends[1]));
            let total_us: f64 = rows.iter().map(|(_, us)| us).sum();
            assert_eq!(total_us, 3000.0, "{rows:?}");
            rows.last().cloned().expect("a row")
        };
        let told = |name: &str, us| (name.to_owned(), us);
        let target = "initiator, wire and target: not visible: db/throttle/iscsi";
        assert_eq!(names(|all| all.target = None), told(target, 600.0));
        let attach = "attach and below: not visible";
        assert_eq!(names(|all| all.attach = None), told(attach, 1000.0));
        assert_eq!(names(|all| all.is_attached = false), told("medium", 1000.0));
        let all = "database, file system and medium: not visible apart";
        assert_eq!(names(|all| all.device = None), told(all, 3000.0));
    }

    #[test]
    fn more_requests_at_a_time_than_connections_are_scaled_down() {
        let spent = Spent::of(5000.0, 10.0, &before(), &after());
        assert!(spent.is_scaled);
        assert_eq!(spent.rows[0].us, 0.0);
        assert_eq!(spent.rows[3].us, 100.0, "half of it: {spent:?}");
        assert_eq!(spent.rows[3].request_us(), 200.0, "as long as it is");
        assert_eq!(spent.total_us(), 500.0);
    }

    proptest! {
        #[test]
        fn the_rows_add_up_to_the_whole(
            whole_us in 1.0..1e9,
            us in prop::collection::vec(0.0..1e9, 5),
        ) {
            let leaf = |us| part(TransactionLayer::Medium, us, Vec::new());
            let stripe = part(TransactionLayer::Tree, us[0], vec![leaf(us[1]), leaf(us[2])]);
            let attach = part(TransactionLayer::Attach, us[3], vec![stripe]);
            let whole = part(TransactionLayer::Database, whole_us, vec![part(TransactionLayer::Loop, us[4], vec![attach])]);
            let mut rows = Vec::new();
            allot(&whole, whole_us, 7.0, &mut rows);
            let sum: f64 = rows.iter().map(|row| row.us).sum();
            prop_assert!((sum * 7.0 / whole_us - 1.0).abs() < 1e-6, "{rows:?}");
        }
    }
}
