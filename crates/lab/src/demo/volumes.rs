//! The set-ups as configurations: what each share serves, and what the client builds from it. Both are text
//! as a user would write it, opened by the same code.
//!
//! Each set-up keeps its own copy of the database, so it has its own LUN on each share it uses, and each LUN
//! has its own throttle. On a real share all LUNs would use one link together. Here only one set-up runs at a
//! time and the others are idle by then ([`Client::settle`]), so a throttle for each LUN has the same effect
//! as one for all.

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::SocketAddr,
    path::Path,
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use engine::{Lane, LaneConfig, time};
use serde::Deserialize;
use uuid::Uuid;
use volume::{
    SharedVolume,
    claim::{Owner, name_of},
    config::Volumes,
    graph::{Graph, NewStripe},
    layer::stats::{RequestKind, StatsHandle},
};

use super::{Directory, share::RunningShare};
use crate::{
    IN_FLIGHT_BYTES, LabError, LabResult, VolumeDisk,
    sqlite::DatabaseStore,
    statements::{MeasuredShare, SetUp, Traffic},
};

/// The client's memory for read-ahead, in the set-ups without a significant cache.
pub(super) const SMALL_CACHE_BYTES: u64 = 16 << 20;
/// Maximum read-ahead of a scan, in all set-ups.
pub(super) const READ_AHEAD_BYTES: u64 = 2 << 20;
/// The caching mode of the shares' files.
pub(super) const CACHING: &str = "write-back";

const INITIATOR: &str = "iqn.2026-11.io.sanstone:demo";

/// One set-up.
#[derive(Debug, Clone)]
struct SetUpPlan {
    /// The name of its volume in the configurations.
    volume: &'static str,
    name: String,
    lun: usize,
    shares: usize,
    striped: bool,
    cache_bytes: u64,
}

/// All set-ups and their sizes.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    shares: usize,
    stripe_unit_bytes: u32,
    database_bytes: u64,
    set_ups: Vec<SetUpPlan>,
}

impl Plan {
    /// The three set-ups of the experiment.
    pub(super) fn experiment(shares: usize, stripe_unit_bytes: u32, database_bytes: u64) -> Plan {
        let striped = |volume, lun, name, cache_bytes| SetUpPlan {
            volume,
            name,
            lun,
            shares,
            striped: true,
            cache_bytes,
        };
        let one = SetUpPlan {
            striped: false,
            shares: 1,
            ..striped("one", 0, "one share".into(), SMALL_CACHE_BYTES)
        };
        let large = large_cache_bytes(database_bytes);
        let set_ups = vec![
            one,
            striped(
                "stripe",
                1,
                format!("stripe of {shares}"),
                SMALL_CACHE_BYTES,
            ),
            striped("cached", 2, format!("stripe of {shares} + cache"), large),
        ];
        Plan {
            shares,
            stripe_unit_bytes,
            database_bytes,
            set_ups,
        }
    }

    /// The stripe alone.
    pub(super) fn stripe(shares: usize, stripe_unit_bytes: u32, database_bytes: u64) -> Plan {
        let mut plan = Plan::experiment(shares, stripe_unit_bytes, database_bytes);
        plan.set_ups.retain(|set_up| set_up.volume == "stripe");
        plan
    }

    /// Maximum size of the shares' files plus the image of the database, in bytes.
    pub(super) fn disk_bytes(&self) -> u64 {
        // For each set-up the database, its journals and VACUUM's copy: 3.4 times the database, measured.
        let databases = 4 * self.set_ups.len() as u64 + 1;
        databases * self.database_bytes + (16 << 20)
    }

    /// Shares in the stripe.
    pub(super) fn shares(&self) -> usize {
        self.shares
    }

    /// A note if the table is too small for measuring links.
    pub(super) fn note(&self) -> Option<String> {
        (self.database_bytes < 2 * SMALL_CACHE_BYTES).then(|| {
            format!(
                "TOO FEW ROWS: the table of {} MiB fits, or nearly fits, into the client's memory of \
                 {} MiB: its scans measure that memory, not the links",
                self.database_bytes >> 20,
                SMALL_CACHE_BYTES >> 20,
            )
        })
    }

    /// The memory of the set-up with the large cache, in bytes.
    pub(super) fn large_cache_bytes(&self) -> u64 {
        large_cache_bytes(self.database_bytes)
    }

    /// The configuration that share number `share` serves.
    fn share_configuration(&self, share: usize, link: Option<u64>) -> String {
        let mut text = format!("state = \"share-{share}.state\"\nlanes = 1\n\n");
        let mut luns = Vec::new();
        for set_up in self.set_ups.iter().filter(|set_up| share < set_up.shares) {
            let name = set_up.volume;
            let size = self.lun_bytes(set_up);
            let file = format!(
                "file = {{ path = \"share-{share}-{name}.img\", size = \"{size}B\", cache = \
                 \"{CACHING}\" }}"
            );
            let volume = match link {
                None => file,
                Some(bits) => {
                    format!("throttle = {{ rate = \"{bits}bit/s\", of = {{ {file} }} }}")
                }
            };
            let _ = writeln!(text, "[volume.{name}]\n{volume}\n");
            luns.push(format!("{} = \"{name}\"", set_up.lun));
        }
        let _ = writeln!(
            text,
            "[target.\"{}\"]\nportals = [\"127.0.0.1:0\"]\nluns = {{ {} }}\nallow = \
             [\"{INITIATOR}\"]",
            target(share),
            luns.join(", "),
        );
        text
    }

    fn lun_bytes(&self, set_up: &SetUpPlan) -> u64 {
        let unit = u64::from(self.stripe_unit_bytes);
        let disk = DatabaseStore::disk_bytes_for(self.database_bytes);
        if !set_up.striped {
            return disk.next_multiple_of(4096);
        }
        // The superblock's MiB, followed by a whole number of units.
        (1 << 20) + disk.div_ceil(set_up.shares as u64).next_multiple_of(unit)
    }

    /// The client's configuration for the shares at `portals`.
    fn client_configuration(&self, portals: &[SocketAddr]) -> String {
        let mut text = String::new();
        for set_up in &self.set_ups {
            let disks: Vec<String> = portals[..set_up.shares]
                .iter()
                .enumerate()
                .map(|(share, portal)| {
                    format!(
                        "{{ stats = {{ of = {{ iscsi = {{ url = \"iscsi://{portal}/{}/{}\", \
                         initiator = \"{INITIATOR}\" }} }} }} }}",
                        target(share),
                        set_up.lun
                    )
                })
                .collect();
            // Only the demo logs in to its own shares.
            let (only_writer, below) = if set_up.striped {
                let unit = self.stripe_unit_bytes;
                let disks = disks.join(", ");
                let stripe = format!("{{ stripe = {{ unit = \"{unit}B\", of = [{disks}] }} }}");
                ("", stripe)
            } else {
                ("only_writer = true, ", disks.concat())
            };
            let _ = writeln!(
                text,
                "[volume.{}]\ncache = {{ size = \"{}B\", read_ahead = \"{READ_AHEAD_BYTES}B\", \
                 {only_writer}of = {below} }}\n",
                set_up.volume, set_up.cache_bytes,
            );
        }
        text
    }
}

/// Room for the table, for read-ahead, and for some of the journal's blocks.
fn large_cache_bytes(database_bytes: u64) -> u64 {
    (database_bytes + (32 << 20)).next_multiple_of(1 << 20)
}

fn target(share: usize) -> String {
    format!("iqn.2026-11.io.sanstone:demo-share-{share}")
}

/// The client's end: its lane, the volumes opened on it, and the shares.
pub(super) struct Client {
    plan: Plan,
    volumes: Vec<SharedVolume>,
    /// For each share, the counters of its LUNs, one for each set-up that uses it.
    counters: Vec<Vec<StatsHandle>>,
    lane: Rc<Lane>,
    graph: Graph,
    // Declared last: fields drop in order, and the sessions must end before their targets.
    _shares: Vec<RunningShare>,
}

impl Client {
    /// Starts the shares in `directory`, each behind a link of `link` bits a second, and opens all
    /// set-ups.
    pub(super) fn open(
        plan: &Plan,
        link: Option<u64>,
        binary: &Path,
        directory: &Directory,
    ) -> LabResult<Client> {
        let mut shares = (0..plan.shares)
            .map(|share| {
                let configuration = plan.share_configuration(share, link);
                RunningShare::start(binary, directory, share, &configuration)
            })
            .collect::<LabResult<Vec<_>>>()?;
        let portals = shares
            .iter_mut()
            .map(RunningShare::portal)
            .collect::<LabResult<Vec<_>>>()?;
        let lane = Rc::new(Lane::new(&LaneConfig::default())?);
        let text = plan.client_configuration(&portals);
        let mut graph = graph(&text)?;
        let volumes = lane.block_on(open_volumes(plan, &mut graph, &lane))?;
        let counters = counters(plan, &graph.handles().all());
        Ok(Client {
            plan: plan.clone(),
            volumes,
            counters,
            lane,
            graph,
            _shares: shares,
        })
    }

    /// The disks to measure, one for each set-up.
    pub(super) fn set_ups(&self) -> LabResult<Vec<SetUp>> {
        let set_ups = self.plan.set_ups.iter().zip(&self.volumes);
        set_ups
            .map(|(set_up, volume)| {
                let disk = VolumeDisk::new(self.lane.clone(), volume.clone(), IN_FLIGHT_BYTES)
                    .map_err(opening)?;
                Ok(SetUp {
                    name: set_up.name.clone(),
                    disk: Rc::new(disk),
                    shares: (0..set_up.shares).collect(),
                })
            })
            .collect()
    }

    /// The shares' counters.
    pub(super) fn shares(&self) -> Vec<MeasuredShare> {
        let shares = self.counters.iter().cloned().enumerate();
        shares
            .map(|(share, counters)| MeasuredShare {
                name: format!("share {share}"),
                traffic: Box::new(move || traffic(&counters)),
            })
            .collect()
    }

    /// Waits until the links are idle: unused read-ahead of the last statement must not be in transit when
    /// the next one is timed.
    pub(super) fn settle(&self) -> impl Fn() + 'static {
        const QUIET: Duration = Duration::from_millis(15);
        const ROUNDS_MAX: u32 = 200;
        let (lane, counters) = (self.lane.clone(), self.counters.clone());
        move || {
            let now = || {
                counters
                    .iter()
                    .map(|share| traffic(share))
                    .collect::<Vec<_>>()
            };
            let mut before = now();
            for _ in 0..ROUNDS_MAX {
                lane.block_on(async { time::sleep(QUIET).await });
                let after = now();
                if after == before {
                    return;
                }
                before = after;
            }
        }
    }
}

impl Drop for Client {
    /// Closes the stripes and logs out.
    fn drop(&mut self) {
        // The shares are dropped next, and their disks with them.
        let _ = self.lane.clone().block_on(self.graph.close());
    }
}

fn opening(error: impl std::fmt::Display) -> LabError {
    LabError::Demo(format!("the volumes could not be opened: {error}"))
}

fn graph(text: &str) -> LabResult<Graph> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Configuration {
        volume: Volumes,
    }
    let configuration: Configuration = toml::from_str(text).map_err(opening)?;
    let mut graph = Graph::new(configuration.volume, Path::new("")).map_err(opening)?;
    graph.set_owner(Owner::passing(name_of("sanstone demo")));
    Ok(graph)
}

/// Creates the stripes and opens every set-up's volume on `lane`, the current one.
async fn open_volumes(plan: &Plan, graph: &mut Graph, lane: &Lane) -> LabResult<Vec<SharedVolume>> {
    let home = lane.handle();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut volumes = Vec::new();
    for set_up in &plan.set_ups {
        if set_up.striped {
            let new = NewStripe {
                uuid: Uuid::new_v4(),
                created_unix_s: now.as_secs(),
                force: false,
                from: None,
            };
            graph
                .create_stripe(set_up.volume, &home, &new)
                .await
                .map_err(opening)?;
        }
        let tree = graph.open(set_up.volume, &home).await.map_err(opening)?;
        volumes.push(tree.on_lane().await.map_err(opening)?);
    }
    Ok(volumes)
}

/// The counters of each share's LUNs, found by their names in the client's configuration.
fn counters(plan: &Plan, stats: &BTreeMap<String, StatsHandle>) -> Vec<Vec<StatsHandle>> {
    let of_share = |share: usize| {
        let used = plan.set_ups.iter().filter(|set_up| share < set_up.shares);
        let paths = used.map(|set_up| match (set_up.striped, set_up.shares) {
            (false, _) => format!("{}/cache/stats", set_up.volume),
            (true, 1) => format!("{}/cache/stripe/stats", set_up.volume),
            (true, _) => format!("{}/cache/stripe/{share}/stats", set_up.volume),
        });
        paths.filter_map(|path| stats.get(&path).cloned()).collect()
    };
    (0..plan.shares).map(of_share).collect()
}

fn traffic(counters: &[StatsHandle]) -> Traffic {
    let mut sum = Traffic::default();
    for counters in counters {
        let now = counters.snapshot();
        sum = sum.plus(Traffic {
            read_bytes: now.of(RequestKind::Read).bytes,
            written_bytes: now.of(RequestKind::Write).bytes,
        });
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_up_has_the_same_disks_whichever_shares_hold_them() {
        let plan = Plan::experiment(3, 64 << 10, 100 << 20);
        let first = plan.share_configuration(0, Some(2_500_000_000));
        assert!(
            first.contains("luns = { 0 = \"one\", 1 = \"stripe\", 2 = \"cached\" }"),
            "{first}"
        );
        assert_eq!(
            first.matches("rate = \"2500000000bit/s\"").count(),
            3,
            "{first}"
        );
        let second = plan.share_configuration(1, None);
        assert!(
            second.contains("luns = { 1 = \"stripe\", 2 = \"cached\" }"),
            "{second}"
        );
        assert!(!second.contains("throttle"), "{second}");
        let needed = DatabaseStore::disk_bytes_for(100 << 20);
        for set_up in &plan.set_ups {
            let lun = plan.lun_bytes(set_up);
            let usable = if set_up.striped {
                3 * (lun - (1 << 20))
            } else {
                lun
            };
            assert!(
                (needed..needed + (1 << 20)).contains(&usable),
                "{lun} of {needed}"
            );
        }
    }

    #[test]
    fn the_set_ups_differ_in_their_shares_and_their_cache_only() {
        let portals: Vec<SocketAddr> = ["127.0.0.1:1", "127.0.0.1:2"]
            .map(|p| p.parse().unwrap())
            .into();
        let plan = Plan::experiment(2, 64 << 10, 100 << 20);
        let text = plan.client_configuration(&portals);
        let handles: BTreeMap<String, StatsHandle> = [
            "one/cache/stats",
            "stripe/cache/stripe/0/stats",
            "stripe/cache/stripe/1/stats",
            "cached/cache/stripe/0/stats",
            "cached/cache/stripe/1/stats",
        ]
        .map(|path| (path.into(), StatsHandle::new()))
        .into();
        graph(&text).unwrap();
        assert_eq!(
            text.matches("read_ahead = \"2097152B\"").count(),
            3,
            "{text}"
        );
        assert_eq!(text.matches("size = \"16777216B\"").count(), 2, "{text}");
        assert_eq!(text.matches("size = \"138412032B\"").count(), 1, "{text}");
        let counters: Vec<usize> = counters(&plan, &handles).iter().map(Vec::len).collect();
        assert_eq!(counters, [3, 2], "share 0 is in every set-up");
    }

    #[test]
    fn a_table_that_fits_into_memory_is_called_so() {
        assert!(
            Plan::experiment(2, 65_536, 8 << 20)
                .note()
                .unwrap()
                .contains("of 8 MiB fits")
        );
        assert_eq!(Plan::experiment(2, 65_536, 32 << 20).note(), None);
    }
}
