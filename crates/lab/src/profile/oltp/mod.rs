//! `oltp`: a fixed number of transactions on a database server, alternating between several disks. It reports
//! transactions per minute, and their cost in processor time on the database's side and on the target's.

mod advice;
mod layers;
mod spent;

use std::time::Duration;

use layers::Breakdown;
use serde::{Deserialize, Serialize};
use serde_json::json;
use spent::Spent;
use volume::config::Size;

use super::{Case, Experiment, Needs, Runner, within};
use crate::{
    LabError, LabResult,
    databases::{Bed, DatabaseServer, Namespace, ServerKind, Stack, Sysbench},
    load::Stop,
    machine::{Watch, ended_ns, family_ns, machine_ns},
    others::Others,
    progress::ProgressOutput,
    report::{Axis, Findings, FindingsTable, Marks, Plot, PlotLine, Score, short, time_us},
    statistics::{Comparison, Median, SAMPLES_MIN},
};

/// Space the servers need for their own files, regardless of the tables.
const SIZE_MIN: u64 = 512 << 20;

/// Published comparisons: what was compared with what, and the second's throughput and cost relative to the
/// first's.
const PUBLISHED: [(&str, &str, &str); 2] = [
    (
        "software iSCSI beside 2 Gbit/s Fibre Channel, Oracle",
        "0.98×",
        "1.05× to 1.06×",
    ),
    (
        "iSCSI by an adapter beside software, MySQL",
        "2×",
        "0.2× to 0.4×",
    ),
];

/// What the times of layers are of, for readers of the JSON, where other profiles have those of single operations.
const LAYERS_OF: &str = "rounds, not transactions: mean_us is their mean; at the top, where all profiles have the same \
                         keys, p50_us is the median round and p99_us the slowest round";

/// The settings of an `oltp` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Oltp {
    about: String,
    size: Size,
    database: ServerKind,
    memory: Size,
    tables: u32,
    rows: u64,
    threads: u32,
    transactions: u64,
    rounds: usize,
}

/// A database server and its storage. The server is dropped first.
struct DatabaseSite {
    server: DatabaseServer,
    stack: Stack,
}

/// One round on one site; processor times are per transaction.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Round {
    per_minute: f64,
    seconds: f64,
    p99_ms: f64,
    /// The whole machine.
    cpu_us: f64,
    server_cpu_us: f64,
    /// The process that attaches the volume: the initiator's side.
    attach_cpu_us: Option<f64>,
    /// The process given by the user: the target's side.
    target_cpu_us: Option<f64>,
    /// sysbench.
    #[serde(default)]
    load_cpu_us: f64,
    ios: Option<f64>,
    /// Where the time went.
    #[serde(default)]
    spent: Spent,
    /// What other programs used of the processors.
    #[serde(default)]
    others: Others,
    /// The part of their time that all processors were busy.
    #[serde(default)]
    busy: f64,
}

/// What has been used so far, or within a round: processor times, and I/Os of the file system's device.
#[derive(Clone, Copy, Debug)]
struct Used {
    machine_ns: u64,
    server_ns: u64,
    attach_ns: Option<u64>,
    target_ns: Option<u64>,
    load_ns: u64,
    ios: Option<u64>,
}

impl Used {
    fn so_far(runner: &Runner<'_>, DatabaseSite { server, stack }: &DatabaseSite) -> Used {
        Used {
            machine_ns: machine_ns(),
            server_ns: server.cpu_ns(),
            attach_ns: stack.attach_ns(),
            target_ns: runner.pid.map(family_ns),
            // Of this program's children, only sysbench exits during a round.
            load_ns: ended_ns(std::process::id()),
            ios: stack.ios(),
        }
    }

    fn since(self, before: Used) -> Used {
        let optional = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Used {
            machine_ns: self.machine_ns.saturating_sub(before.machine_ns),
            server_ns: self.server_ns.saturating_sub(before.server_ns),
            attach_ns: optional(self.attach_ns, before.attach_ns),
            target_ns: optional(self.target_ns, before.target_ns),
            load_ns: self.load_ns.saturating_sub(before.load_ns),
            ios: optional(self.ios, before.ios),
        }
    }
}

/// All rounds on one disk.
#[derive(Clone, Debug, Serialize)]
struct DiskRounds {
    name: String,
    rounds: Vec<Round>,
}

impl Oltp {
    fn sites(&self, runner: &Runner<'_>, beds: &[(String, Bed)]) -> LabResult<Vec<DatabaseSite>> {
        let namespace = Namespace::of_beds(beds)?;
        let sysbench = Sysbench::new(self.tables, self.rows, self.threads)?;
        let mut sites = Vec::new();
        for (name, bed) in beds {
            if runner.is_stopped() {
                break;
            }
            runner
                .stage
                .say(&format!("{name}: {} with its tables", self.database.name()));
            let stop = &runner.stop;
            let prepared = Stack::new(name, bed, namespace.as_ref(), 0, stop).and_then(|stack| {
                let memory_bytes = self.memory.bytes();
                let server =
                    DatabaseServer::create(self.database, &stack, memory_bytes, None, stop)?;
                sysbench.prepare(&server, &stack, stop)?;
                Ok(DatabaseSite { server, stack })
            });
            let site = match prepared {
                Err(LabError::Stopped) => break,
                prepared => prepared?,
            };
            site.server.pause();
            runner
                .stage
                .tell(&format!("{name}: {} has its tables", self.database.name()));
            sites.push(site);
        }
        Ok(sites)
    }

    fn round(
        &self,
        runner: &Runner<'_>,
        sysbench: &Sysbench,
        site: &DatabaseSite,
    ) -> LabResult<Option<Round>> {
        let DatabaseSite { server, stack } = site;
        server.go_on();
        // Asking for the counters takes processor time, so they are the outer pair.
        let counted = stack.counted(runner.pid);
        let watch = Watch::begin(runner.pid);
        let before = Used::so_far(runner, site);
        let ran = sysbench.run(server, stack, self.transactions, &runner.stop);
        // A server accounts for a child's processor time only after reaping it.
        std::thread::sleep(Duration::from_millis(20));
        let used = Used::so_far(runner, site).since(before);
        let others = watch.others();
        let counted = [counted, stack.counted(runner.pid)];
        server.pause();
        let Some(ran) = ran? else {
            return Ok(None);
        };
        let transactions = ran.transactions.max(1) as f64;
        let connections_us = 1e6 * ran.seconds * f64::from(self.threads);
        let us = |ns: u64| ns as f64 / 1e3 / transactions;
        Ok(Some(Round {
            per_minute: 60.0 * transactions / ran.seconds.max(1e-9),
            seconds: ran.seconds,
            p99_ms: ran.p99_ms,
            cpu_us: us(used.machine_ns),
            server_cpu_us: us(used.server_ns),
            attach_cpu_us: used.attach_ns.map(us),
            target_cpu_us: used.target_ns.map(us),
            load_cpu_us: us(used.load_ns),
            ios: used.ios.map(|ios| ios as f64 / transactions),
            spent: Spent::of(connections_us, transactions, &counted[0], &counted[1]),
            others,
            busy: used.machine_ns as f64 / 1e9 / others.processors_s,
        }))
    }
}

impl Round {
    /// Processor time not used by any of the programs: kernel threads such as those of the loop device and
    /// the network, and anything else that ran.
    fn rest_us(&self) -> f64 {
        let programs = [
            Some(self.server_cpu_us),
            self.attach_cpu_us,
            self.target_cpu_us,
        ];
        let programs: f64 = programs.into_iter().flatten().sum();
        (self.cpu_us - programs - self.load_cpu_us).max(0.0)
    }
}

impl Experiment for Oltp {
    fn about(&self) -> &str {
        &self.about
    }

    fn opens_volumes(&self) -> bool {
        false
    }

    fn survey(&self, _stop: &Stop, _progress: ProgressOutput) -> LabResult<()> {
        self.database.check()?;
        Sysbench::new(self.tables, self.rows, self.threads).map(drop)
    }

    fn needs(&self) -> Needs {
        Needs::of_database(self.size.bytes())
    }

    fn steps(&self) -> usize {
        self.rounds
    }

    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings> {
        let beds = std::mem::take(&mut runner.beds);
        runner.stage.expect((self.rounds * beds.len()) as u64);
        let sysbench = Sysbench::new(self.tables, self.rows, self.threads)?;
        let mut measured: Vec<DiskRounds> = beds
            .iter()
            .map(|(name, _)| DiskRounds {
                name: name.clone(),
                rounds: Vec::new(),
            })
            .collect();
        let sites = self.sites(runner, &beds)?;
        if sites.len() < beds.len() {
            // The user asked to stop.
            return Ok(self.findings(&measured, runner.pid.is_some()));
        }
        for number in 0..self.rounds {
            // Whichever goes first may find an idle disk, so the order rotates.
            for turn in 0..sites.len() {
                let index = (turn + number) % sites.len();
                let name = sites[index].stack.name().to_owned();
                let key = format!("round {}, {name}", number + 1);
                runner.stage.say(&key);
                let round = runner.once(&key, |runner| {
                    if runner.is_stopped() {
                        return Ok(None);
                    }
                    self.round(runner, &sysbench, &sites[index])
                })?;
                let Some(round) = round else { continue };
                runner.beside(&key, round.others);
                runner.stage.step();
                runner.stage.tell(&format!(
                    "round {} of {}, {name}: {} transactions a minute",
                    number + 1,
                    self.rounds,
                    short(round.per_minute)
                ));
                measured[index].rounds.push(round);
            }
        }
        Ok(self.findings(&measured, runner.pid.is_some()))
    }

    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }

    fn verifies(&self) -> bool {
        false
    }

    fn check(&self) -> std::result::Result<(), String> {
        within("size, in bytes", self.size.bytes(), SIZE_MIN..=1 << 50)?;
        within("memory, in bytes", self.memory.bytes(), 16 << 20..=1 << 40)?;
        within("tables", self.tables, 1..=1000)?;
        within("rows", self.rows, 100..=1_000_000_000)?;
        within("threads", self.threads, 1..=1000)?;
        within("transactions", self.transactions, 10..=1_000_000_000)?;
        within("rounds", self.rounds, 1..=1000)
    }
}

impl Oltp {
    fn findings(&self, measured: &[DiskRounds], has_pid: bool) -> Findings {
        let mut notes = Vec::new();
        if !has_pid {
            notes.push(
                "name the target's process with --pid to see its side of a transaction".into(),
            );
        }
        let fewest = measured.iter().map(|m| m.rounds.len()).min().unwrap_or(0);
        if measured.len() > 1 && fewest < SAMPLES_MIN {
            notes.push(format!(
                "fewer than {SAMPLES_MIN} rounds cannot tell a difference from chance; raise `rounds`"
            ));
        }
        notes.extend(doubts(measured));
        let scores = measured
            .iter()
            .filter(|m| !m.rounds.is_empty())
            .flat_map(|m| {
                let name = &m.name;
                [
                    Score::more(
                        format!("transactions a minute on {name}"),
                        median(m, |r| r.per_minute),
                    ),
                    Score::less(
                        format!("CPU µs of a transaction on {name}"),
                        median(m, |r| r.cpu_us),
                    ),
                ]
            });
        let scaled = measured
            .iter()
            .filter(|m| m.rounds.iter().any(|r| r.spent.is_scaled));
        notes.extend(scaled.map(|m| {
            format!(
                "{}: more requests ran at a time than there are connections, for background writes; their \
                 layers are scaled down to the time of the connections, except for the µs of each request",
                m.name
            )
        }));
        let breakdowns = measured.iter().map(|m| {
            let spent = m.rounds.iter().map(|round| &round.spent);
            Breakdown::of(spent).map(|breakdown| (m.name.as_str(), breakdown))
        });
        let breakdowns: Vec<_> = breakdowns.collect();
        let known = || breakdowns.iter().flatten();
        let divided = || known().filter(|(_, breakdown)| breakdown.is_divided());
        let advice = measured.iter().zip(&breakdowns).filter_map(|(m, known)| {
            let (name, breakdown) = known.as_ref()?;
            advice::advice(name, &m.rounds, breakdown)
        });
        let sites = measured.iter().zip(&breakdowns).map(|(m, breakdown)| {
            let mut site = json!(m);
            if let Some((_, breakdown)) = breakdown {
                (site["total"], site["layers"]) = breakdown.json();
            }
            site
        });
        let sites: Vec<_> = sites.collect();
        let mut tables = vec![table(measured)];
        tables.extend(known().map(|(name, breakdown)| breakdown.table(name)));
        tables.push(published());
        let mut plots = vec![plot(measured)];
        if divided().next().is_some() {
            plots.push(layers::plot(
                divided().map(|(name, breakdown)| (*name, breakdown)),
            ));
        }
        // The first whose storage shows most of itself.
        let shown = known()
            .rev()
            .max_by_key(|(_, breakdown)| breakdown.layers.layers.len());
        Findings {
            answer: answer(measured, self.database),
            advice: advice.collect(),
            scores: scores.collect(),
            notes,
            tables,
            plots,
            layers: shown.map(|(_, breakdown)| breakdown.layers.clone()),
            figures: json!({
                "database": self.database.name(),
                "transactions": self.transactions,
                "layers_are_of": LAYERS_OF,
                "sites": sites,
            }),
            ..Findings::default()
        }
    }
}

fn median(measured: &DiskRounds, of: impl Fn(&Round) -> f64) -> f64 {
    Median::of_each(&measured.rounds, of).median
}

/// Compares `measured` with the first, round by round.
fn beside(first: &DiskRounds, measured: &DiskRounds, of: fn(&Round) -> f64) -> Comparison {
    let all = |measured: &DiskRounds| -> Vec<f64> { measured.rounds.iter().map(of).collect() };
    Comparison::of(&all(first), &all(measured))
}

/// A figure of a round.
type Figure = fn(&Round) -> f64;

/// What weakens the ratios of the answer.
fn doubts(measured: &[DiskRounds]) -> Vec<String> {
    let all: Vec<&DiskRounds> = measured.iter().filter(|m| !m.rounds.is_empty()).collect();
    let Some((first, rest)) = all.split_first() else {
        return Vec::new();
    };
    let figures: [(&str, Figure); 2] = [
        ("transactions a minute", |round| round.per_minute),
        ("CPU µs of a transaction", |round| round.cpu_us),
    ];
    let of_one = |m: &&DiskRounds| {
        let (a, b) = (&first.name, &m.name);
        let of_figure = |(what, of): (&str, Figure)| -> Vec<String> {
            let doubts = beside(first, m, of).doubts().into_iter();
            doubts
                .map(|doubt| format!("{what}, {b} beside {a}: {doubt}"))
                .collect()
        };
        figures.into_iter().flat_map(of_figure).collect::<Vec<_>>()
    };
    rest.iter().flat_map(of_one).collect()
}

fn answer(measured: &[DiskRounds], database: ServerKind) -> String {
    let told = |m: &DiskRounds| {
        format!(
            "{} transactions a minute on {}, each for {} of the machine's processors",
            short(median(m, |round| round.per_minute)),
            m.name,
            time_us(median(m, |round| round.cpu_us)),
        )
    };
    let all: Vec<&DiskRounds> = measured.iter().filter(|m| !m.rounds.is_empty()).collect();
    let Some((first, rest)) = all.split_first() else {
        return "Nothing was measured.".into();
    };
    let mut text = format!("{} does {}", database.name(), told(first));
    for other in rest {
        let compared = beside(first, other, |round| round.per_minute);
        let cpu = beside(first, other, |round| round.cpu_us).ratio;
        let ratio = match compared.interval {
            Some((low, high)) => {
                format!(
                    "{:.2}× as many (95 % interval {low:.2}–{high:.2})",
                    compared.ratio
                )
            }
            None => format!("{:.2}× as many", compared.ratio),
        };
        text += &format!(
            "; {}: {ratio}, each for {cpu:.2}× the processor time",
            told(other)
        );
    }
    text + "."
}

fn table(measured: &[DiskRounds]) -> FindingsTable {
    let mut table = FindingsTable::new(
        "Transactions",
        "Medians of the rounds. ÷: the ratio to the first, round by round. Processor time is that of \
         each transaction: of the whole machine, of the server, of the process that \
         attaches the volume (the initiator's side), of the process of --pid (the target's), of \
         sysbench, and the rest: the kernel's own threads for the loop device, the file system and the \
         network. I/Os are those of the file system's device, flushes included.",
        &[
            "on",
            "a minute",
            "÷",
            "seconds",
            "99 % ms",
            "CPU µs",
            "÷",
            "server µs",
            "attach µs",
            "target µs",
            "sysbench µs",
            "rest µs",
            "I/Os",
        ],
    );
    let Some(first) = measured.first() else {
        return table;
    };
    for m in measured.iter().filter(|m| !m.rounds.is_empty()) {
        let ratio = |of| {
            let compared = beside(first, m, of);
            match compared.interval {
                Some((low, high)) if m.name != first.name => {
                    format!("{:.2} ({low:.2}–{high:.2})", compared.ratio)
                }
                _ => format!("{:.2}", compared.ratio),
            }
        };
        let optional =
            |of: fn(&Round) -> Option<f64>| match m.rounds.iter().all(|r| of(r).is_some()) {
                true => short(median(m, |round| of(round).unwrap_or(0.0))),
                false => "–".into(),
            };
        table.rows.push(vec![
            m.name.clone(),
            short(median(m, |round| round.per_minute)),
            ratio(|round| round.per_minute),
            short(median(m, |round| round.seconds)),
            short(median(m, |round| round.p99_ms)),
            short(median(m, |round| round.cpu_us)),
            ratio(|round| round.cpu_us),
            short(median(m, |round| round.server_cpu_us)),
            optional(|round| round.attach_cpu_us),
            optional(|round| round.target_cpu_us),
            short(median(m, |round| round.load_cpu_us)),
            short(median(m, Round::rest_us)),
            optional(|round| round.ios),
        ]);
    }
    table
}

fn published() -> FindingsTable {
    let mut table = FindingsTable::new(
        "Beside published results",
        "A fixed load of transactions: throughput and processor use of the one relative to the other. \
         Other databases on other hardware: compare the directions, not the sizes.",
        &["what was compared", "throughput", "processor"],
    );
    let rows =
        PUBLISHED.map(|(what, throughput, cpu)| [what, throughput, cpu].map(String::from).into());
    table.rows.extend(rows);
    table
}

fn plot(measured: &[DiskRounds]) -> Plot {
    let line = |m: &DiskRounds| PlotLine {
        name: m.name.clone(),
        points: (1_u32..)
            .zip(&m.rounds)
            .map(|(n, round)| (f64::from(n), round.per_minute))
            .collect(),
    };
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: false,
    };
    Plot {
        title: "Every round".into(),
        about: "Transactions a minute.".into(),
        x: axis("rounds"),
        y: axis("transactions a minute"),
        marks: Marks::Lines(measured.iter().map(line).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(name: &str, per_minute: [f64; 8]) -> DiskRounds {
        let round = |per_minute| Round {
            per_minute,
            cpu_us: 100.0,
            ..Round::default()
        };
        DiskRounds {
            name: name.into(),
            rounds: per_minute.map(round).into(),
        }
    }

    #[test]
    fn a_ratio_that_drifts_is_told_with_what_it_is_of() {
        // As published (docs/results/2026-11-25, `oltp-few`).
        let measured = [
            on(
                "file",
                [
                    104_652.0, 95_751.0, 86_953.0, 74_745.0, 74_389.0, 78_396.0, 81_883.0, 76_227.0,
                ],
            ),
            on(
                "iscsi",
                [
                    56_038.0, 54_352.0, 58_398.0, 57_221.0, 58_471.0, 63_660.0, 61_433.0, 61_340.0,
                ],
            ),
        ];
        let told = doubts(&measured);
        let start = "transactions a minute, iscsi beside file: drift of the ratio itself, from 0.5";
        assert!(told.len() == 1 && told[0].starts_with(start), "{told:?}");
        assert_eq!(doubts(&measured[..1]), [""; 0]);
        assert_eq!(doubts(&[]), [""; 0]);
    }
}
