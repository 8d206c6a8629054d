//! `lab compare`: runs the loads of one profile on two things alternately. Each round runs every load on
//! both, and the order alternates from round to round; the result is the ratio within each pair. The second
//! may be fio on the same disk as the first, which compares the generators.

use serde::Serialize;
use serde_json::json;

use crate::{
    LabError, LabResult, fio,
    load::{Arrivals, Lun, Stop},
    on::On,
    profile::{Case, CaseWork, Profile, Runner},
    progress::ProgressOutput,
    report::{Axis, Findings, FindingsTable, Marks, Plot, PlotLine, short, time_us},
    run::{Keep, check_fio, close, end, lane, mark, named, open, to_know},
    speed::Speed,
    statistics::{Comparison, Median, SAMPLES_MIN},
    target::{Configured, Needs, Opening},
};

/// What is compared, and how often.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// The first.
    pub a: On,
    /// The second; `None` for fio on the first.
    pub b: Option<On>,
    /// Rounds; each yields one pair of samples for every load.
    pub pairs: usize,
    /// Processes whose processor time is measured, one for each, such as two targets.
    pub pids: Option<[u32; 2]>,
    /// Whether existing data may be destroyed.
    pub overwrite: bool,
}

/// A load with all its samples, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
struct ComparedLoad {
    name: String,
    a: Vec<Speed>,
    b: Vec<Speed>,
    throughput: Comparison,
    p50: Comparison,
    p99: Comparison,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<ServiceTime>,
    /// Percentages of the arrivals that had not begun when the time was over, in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_begun_percent: Option<[f64; 2]>,
    /// Operations for each percent of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_percent: Option<Comparison>,
}

/// The mean, the median and the 99th percentile of the service time, if both know it.
#[derive(Clone, Debug, Serialize)]
struct ServiceTime {
    mean: Comparison,
    p50: Comparison,
    p99: Comparison,
}

/// So many percent of the arrivals may be missing from the latencies: a tenth of what lies above the 99th percentile.
const NOT_BEGUN_MAX_PERCENT: f64 = 0.1;
/// Marks the loads of which more are missing.
const MARK: &str = " *";

impl ComparedLoad {
    /// Whether so many arrivals had not begun that both did not do the same work.
    fn is_behind(&self) -> bool {
        let both = self.not_begun_percent.iter().flatten();
        both.into_iter()
            .any(|percent| *percent > NOT_BEGUN_MAX_PERCENT)
    }

    /// Its name in tables.
    fn marked(&self) -> String {
        let mark = if self.is_behind() { MARK } else { "" };
        format!("{}{mark}", self.name)
    }

    /// What a mark means.
    fn note(&self, names: [&str; 2]) -> Option<String> {
        let both = self.not_begun_percent.filter(|_| self.is_behind())?;
        let told = |(name, percent): (&str, f64)| format!("{} % on {name}", short(percent));
        let told: Vec<String> = names.into_iter().zip(both).map(told).collect();
        Some(format!(
            "{}{MARK}: arrivals had not begun when the time was over: {}. They are missing from the latencies, \
             which would be higher with them, and both did not do the same work: compare at a lower rate",
            self.name,
            told.join(", ")
        ))
    }
}

/// Runs the comparison. After each round, `keep` receives the findings up to then.
///
/// # Errors
/// The options are invalid, or something that is measured fails.
pub fn compare(
    profile: &Profile,
    options: &CompareOptions,
    configured: Option<&Configured<'_>>,
    stop: &Stop,
    progress: ProgressOutput,
    keep: Keep<'_>,
) -> LabResult<Findings> {
    let pairs = options.pairs;
    if pairs < SAMPLES_MIN {
        return Err(LabError::Call(format!(
            "--pairs {pairs} is too few to tell a difference from chance: write {SAMPLES_MIN} or more, \
             preferably 12"
        )));
    }
    if options.b.as_ref() == Some(&options.a) {
        let name = options.a.name();
        return Err(LabError::Call(format!(
            "{name} would be compared with itself: name two different disks"
        )));
    }
    let experiment = profile.experiment();
    if options.b.is_none() {
        fio::check(experiment.verifies())?;
    }
    experiment.survey(stop, progress)?;
    let needs = experiment.needs();
    let mut cases = experiment.cases();
    if cases.is_empty() {
        let name = &profile.name;
        let both = [Some(&options.a), options.b.as_ref()];
        let on = both.into_iter().flatten();
        let on: String = on.map(|on| format!(" --on {}", on.name())).collect();
        return Err(LabError::Call(format!(
            "{name} compares by itself: sanstone lab run {name}{on}"
        )));
    }
    if options.pids.is_some()
        && !cases
            .iter()
            .all(|case| matches!(case.work, CaseWork::Load(_)))
    {
        return Err(LabError::Call(format!(
            "--pids: a comparison by {} does not measure processor time; use queue or effectiveness",
            profile.name
        )));
    }
    let mut notes = Vec::new();
    if options.b.is_none() {
        let is_known = |case: &Case| matches!(&case.work, CaseWork::Load(load) if fio::has(load));
        let left_out = cases.iter().filter(|case| !is_known(case));
        notes.extend(
            left_out.map(|case| format!("{}: left out, because fio has no such load", case.name)),
        );
        cases.retain(is_known);
        if cases.is_empty() {
            return Err(LabError::Call(format!(
                "--with fio: fio has none of the loads of {}; use queue or effectiveness",
                profile.name
            )));
        }
    }
    let lane = lane()?;
    let opening = Opening {
        sessions: needs.sessions,
        made_bytes: needs.size_bytes,
        writes: needs.writes,
        overwrite: options.overwrite,
        is_watched: false,
    };
    let on: Vec<On> = [Some(&options.a), options.b.as_ref()]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let on = named(&on, configured.map(|configured| &*configured.names))?;
    let mut names: Vec<String> = on.iter().map(|on| on.name().to_owned()).collect();
    let targets = open(&lane, &on, configured, opening, stop, progress)?;
    let verified = experiment.verifies().then_some(needs.size_bytes);
    let checked = check_fio(options.b.is_none(), &names[0], &targets)
        .and_then(|()| experiment.check_disks(&targets))
        .and_then(|()| mark(&lane, &targets, opening, verified));
    if let Err(error) = checked {
        close(&lane, targets);
        return Err(error);
    }
    if options.b.is_none() {
        names.push("fio".into());
    }
    // Loads are compared on what was there before, also those of a profile that otherwise writes it first.
    let is_spread = needs.is_spread || cases.iter().any(|c| matches!(c.work, CaseWork::Load(_)));
    notes.extend(to_know(&lane, &targets, Needs { is_spread, ..needs }));
    let stage = progress.stage("compare", Some((2 * pairs * cases.len()) as u64));
    let mut runner = Runner::new(&lane, targets, stop.clone(), stage);
    runner.verified = verified;
    let is_beside_fio = options.b.is_none();
    let found = |measured: &MeasuredLoads| {
        let mut findings = findings(&names, &cases, measured, is_beside_fio);
        findings.profile = format!("compare by {}", profile.name);
        findings.on = names.clone();
        findings.notes.extend(notes.clone());
        findings.about = format!("{}, on both in turn", experiment.about());
        findings
    };
    let keep = |measured: &MeasuredLoads| {
        let unfinished = Findings {
            is_interrupted: true,
            ..found(measured)
        };
        keep(&unfinished.json());
    };
    let measured = measure(&mut runner, &cases, needs.sessions, options, &keep);
    let findings = measured.map(|measured| found(&measured));
    end(&lane, runner, findings)
}

/// The samples of each load, for A and for B.
type MeasuredLoads = Vec<[Vec<Speed>; 2]>;

fn measure(
    runner: &mut Runner<'_>,
    cases: &[Case],
    sessions: usize,
    options: &CompareOptions,
    keep: &dyn Fn(&MeasuredLoads),
) -> LabResult<MeasuredLoads> {
    let verified = runner.verified;
    let luns = runner.targets.iter();
    let luns = luns.map(|target| target.luns(sessions, verified));
    let luns: Vec<Vec<Lun>> = luns.collect::<LabResult<_>>()?;
    let mut measured: MeasuredLoads = cases.iter().map(|_| Default::default()).collect();
    for round in 0..options.pairs {
        if runner.is_stopped() {
            break;
        }
        for (case, samples) in cases.iter().zip(&mut measured) {
            let pair = in_turn(runner, round, |runner, turn| {
                runner.pid = options.pids.map(|pids| pids[turn]);
                match luns.get(turn) {
                    Some(luns) => runner.sample(case, turn, luns),
                    None => runner.sample_of_fio(case, 0),
                }
            })?;
            if let [Some(a), Some(b)] = pair {
                samples[0].push(a);
                samples[1].push(b);
            }
        }
        keep(&measured);
    }
    Ok(measured)
}

/// Runs both sides of a pair, each with the same seeds, so that both do the same I/Os.
fn in_turn<T>(
    runner: &mut Runner<'_>,
    round: usize,
    mut run: impl FnMut(&mut Runner<'_>, usize) -> LabResult<Option<T>>,
) -> LabResult<[Option<T>; 2]> {
    let mut pair = [None, None];
    let (seed, mut next_seed) = (runner.seed, runner.seed);
    // Whichever goes first may find an idle disk or a cold cache, so the order alternates.
    for turn in [round % 2, (round + 1) % 2] {
        runner.seed = seed;
        pair[turn] = run(runner, turn)?;
        next_seed = next_seed.max(runner.seed);
    }
    runner.seed = next_seed;
    Ok(pair)
}

fn findings(
    names: &[String],
    cases: &[Case],
    measured: &MeasuredLoads,
    is_beside_fio: bool,
) -> Findings {
    let [a, b] = [0, 1].map(|index| names.get(index).map_or("", String::as_str));
    let compared: Vec<ComparedLoad> = cases
        .iter()
        .zip(measured)
        .map(|(case, [a, b])| ComparedLoad {
            name: case.name.clone(),
            throughput: ratio(a, b, |sample| sample.per_s),
            p50: ratio(a, b, |sample| sample.p50_us),
            p99: ratio(a, b, |sample| sample.p99_us),
            service: service(a, b),
            not_begun_percent: not_begun_percent(case, [a, b]),
            per_percent: per_percent(a, b),
            a: a.clone(),
            b: b.clone(),
        })
        .collect();
    let counted = counted(cases, measured);
    let overall = Comparison::of(&scores(&counted, 0), &scores(&counted, 1));
    let sentence = overall.sentence(a, b);
    let mut answer = format!("By throughput over all loads: {sentence}.");
    let mut table = FindingsTable::new(
        "Each load",
        "Ratios B / A with their 95 % intervals; more throughput is better, more latency is worse. \
         Each interval covers one row only: among twenty rows, one may lie outside of its interval by \
         chance.",
        &[
            "load",
            "throughput",
            "95 %",
            "median latency",
            "95 %",
            "99 % latency",
            "95 %",
        ],
    );
    for case in &compared {
        let mut row = vec![case.marked()];
        for of in [&case.throughput, &case.p50, &case.p99] {
            row.push(format!("{:.2}×", of.ratio));
            row.push(interval_of(of));
        }
        table.rows.push(row);
    }
    let mut tables = vec![table];
    let by_service = |(case, _): &(&Case, &ComparedLoad)| is_beside_fio || at_rate(case);
    let by_service = cases.iter().zip(&compared).filter(by_service);
    tables.extend(service_times([a, b], by_service.map(|(_, load)| load)));
    if let Some((sentence, table)) = effectiveness([a, b], &compared) {
        answer = format!("{answer} {sentence}");
        tables.push(table);
    }
    let mut notes = overall.doubts();
    notes.extend(compared.iter().filter_map(|load| load.note([a, b])));
    Findings {
        answer,
        notes,
        tables,
        plots: vec![plot([a, b], &counted)],
        figures: json!({ "a": a, "b": b, "throughput": overall, "loads": compared }),
        ..Findings::default()
    }
}

/// The 95 % interval of a ratio, for a table.
fn interval_of(ratio: &Comparison) -> String {
    let interval = ratio.interval;
    interval.map_or("–".into(), |(low, high)| format!("{low:.2}–{high:.2}"))
}

/// The median of what some samples know, for a table.
fn median_of(samples: &[Speed], of: fn(&Speed) -> Option<f64>) -> f64 {
    let all: Vec<f64> = samples.iter().filter_map(of).collect();
    Median::of_each(&all, |value| *value).median
}

/// What each percent of a processor did: as a sentence and as a table. `None` if it was not measured.
fn effectiveness([a, b]: [&str; 2], compared: &[ComparedLoad]) -> Option<(String, FindingsTable)> {
    let mut table = FindingsTable::new(
        "Operations a second for 1 % of a processor",
        "Medians, of the processes named with --pids; 100 % is one fully busy core. The ratio is that of the pairs.",
        &["load", a, b, "B / A", "95 %"],
    );
    let mut told = Vec::new();
    for case in compared {
        let Some(found) = &case.per_percent else {
            continue;
        };
        let interval = interval_of(found);
        told.push(format!("{} {:.2}× ({interval})", case.name, found.ratio));
        table.rows.push(vec![
            case.name.clone(),
            short(median_of(&case.a, |sample| sample.per_percent)),
            short(median_of(&case.b, |sample| sample.per_percent)),
            format!("{:.2}×", found.ratio),
            interval,
        ]);
    }
    let answer = format!(
        "For each percent of a processor, {b} beside {a}: {}.",
        told.join("; ")
    );
    (!told.is_empty()).then_some((answer, table))
}

/// Whether its I/Os arrive at a given rate.
fn at_rate(case: &Case) -> bool {
    matches!(&case.work, CaseWork::Load(load) if matches!(load.arrivals, Arrivals::Open { .. }))
}

/// The percentages of a case's arrivals that had not begun. What is unknown, as it is of fio, counts as none.
fn not_begun_percent(case: &Case, sides: [&Vec<Speed>; 2]) -> Option<[f64; 2]> {
    let CaseWork::Load(load) = &case.work else {
        return None;
    };
    let Arrivals::Open { rate_per_s, .. } = load.arrivals else {
        return None;
    };
    let each = rate_per_s * case.time.duration().as_secs_f64();
    Some(sides.map(|samples| {
        let not_begun: u64 = samples.iter().filter_map(|sample| sample.not_begun).sum();
        100.0 * not_begun as f64 / (each * samples.len().max(1) as f64)
    }))
}

/// The loads whose throughput shows which is faster. At a given rate both have the same work to do, so such loads
/// count only if there are no others.
fn counted(cases: &[Case], measured: &MeasuredLoads) -> MeasuredLoads {
    let all_at_rates = cases.iter().all(at_rate);
    let both = cases.iter().zip(measured);
    let counted = both.filter(|(case, _)| all_at_rates || !at_rate(case));
    counted.map(|(_, samples)| samples.clone()).collect()
}

fn ratio(a: &[Speed], b: &[Speed], of: fn(&Speed) -> f64) -> Comparison {
    let values = |samples: &[Speed]| -> Vec<f64> { samples.iter().map(of).collect() };
    Comparison::of(&values(a), &values(b))
}

/// Of the service time, if both sides know it.
fn service(a: &[Speed], b: &[Speed]) -> Option<ServiceTime> {
    let all =
        |samples: &[Speed], of: KnownFigures| samples.iter().map(of).collect::<Option<Vec<f64>>>();
    let both = |of: KnownFigures| Some(Comparison::of(&all(a, of)?, &all(b, of)?));
    Some(ServiceTime {
        mean: both(|sample| sample.service_mean_us)?,
        p50: both(|sample| sample.service_p50_us)?,
        p99: both(|sample| sample.service_p99_us)?,
    })
}

/// What some samples know.
type KnownFigures = fn(&Speed) -> Option<f64>;

/// Loads by service time: the latencies of open loops count from when an I/O was due, which fio does not know.
fn service_times<'a>(
    [a, b]: [&str; 2],
    loads: impl Iterator<Item = &'a ComparedLoad>,
) -> Option<FindingsTable> {
    let mut table = FindingsTable::new(
        "Service times, from when an I/O is sent",
        "Medians of all rounds. They leave out what an I/O waited before it was sent, which the latencies \
         of open loops above include, except for fio's: fio does not know when an I/O was due, so these are the ones to \
         compare with fio's. In a closed loop the mean is the number outstanding divided by the throughput (Little's \
         law): where the means agree and the median or the 99th percentile do not, the times are distributed otherwise, \
         and neither is faster.",
        &["load", "service time", a, b, "B / A", "95 %"],
    );
    for load in loads {
        let Some(service) = &load.service else {
            continue;
        };
        let rows: [(&str, KnownFigures, &Comparison); 3] = [
            ("mean", |sample| sample.service_mean_us, &service.mean),
            ("median", |sample| sample.service_p50_us, &service.p50),
            ("99 %", |sample| sample.service_p99_us, &service.p99),
        ];
        table.rows.extend(rows.map(|(what, of, found)| {
            vec![
                load.marked(),
                what.into(),
                time_us(median_of(&load.a, of)),
                time_us(median_of(&load.b, of)),
                format!("{:.2}×", found.ratio),
                interval_of(found),
            ]
        }));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn per_percent(a: &[Speed], b: &[Speed]) -> Option<Comparison> {
    let all = |samples: &[Speed]| samples.iter().map(|sample| sample.per_percent).collect();
    let (a, b): (Option<Vec<f64>>, Option<Vec<f64>>) = (all(a), all(b));
    let (a, b) = (a?, b?);
    (!a.is_empty()).then(|| Comparison::of(&a, &b))
}

/// One number for each complete round: the geometric mean of the throughputs of all loads.
fn scores(measured: &MeasuredLoads, side: usize) -> Vec<f64> {
    let rounds = measured.iter().map(|samples| samples[side].len()).min();
    let score = |round: usize| {
        let logarithms = measured
            .iter()
            .map(|samples| samples[side][round].per_s.ln());
        (logarithms.sum::<f64>() / measured.len() as f64).exp()
    };
    (0..rounds.unwrap_or(0)).map(score).collect()
}

fn plot(names: [&str; 2], measured: &MeasuredLoads) -> Plot {
    let line = |side: usize| PlotLine {
        name: names[side].to_owned(),
        points: (1..).map(f64::from).zip(scores(measured, side)).collect(),
    };
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: false,
    };
    let all = [line(0), line(1)];
    let scores = all
        .iter()
        .flat_map(|line| line.points.iter().map(|point| point.1));
    let least = scores.fold(f64::INFINITY, f64::min);
    Plot {
        title: "Every round".into(),
        about: format!(
            "The geometric mean of all loads' I/Os a second; the least is {}.",
            short(least)
        ),
        x: axis("round"),
        y: axis("I/Os a second"),
        marks: Marks::Lines(all.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{rc::Rc, time::Duration};

    use volume::{SharedVolume, leaf::ram::Region};

    use super::*;
    use crate::load::{Operation, Spacing, Workload};

    fn case(arrivals: Arrivals) -> Case {
        Case {
            name: format!("{arrivals:?}"),
            work: CaseWork::Load(Workload {
                arrivals,
                ..Workload::closed(Operation::Read, 4096, 1)
            }),
            time: "1s".parse().expect("a time"),
        }
    }

    fn cases() -> [Case; 2] {
        let open = Arrivals::Open {
            rate_per_s: 1000.0,
            spacing: Spacing::Even,
        };
        [case(Arrivals::Closed { outstanding: 1 }), case(open)]
    }

    /// Of a side whose I/Os take `p50_us` from when they are due, and 60 µs from when they are sent.
    fn side(p50_us: f64, not_begun: Option<u64>) -> Vec<Speed> {
        let sample = Speed {
            per_s: 1000.0,
            p50_us,
            p99_us: p50_us,
            service_mean_us: Some(70.0),
            service_p50_us: Some(60.0),
            service_p99_us: Some(90.0),
            not_begun,
            per_percent: None,
        };
        vec![sample; 6]
    }

    fn service_rows(found: &Findings) -> Vec<Vec<String>> {
        let tables = found.tables.iter();
        let mut tables = tables.filter(|table| table.title.contains("is sent"));
        tables.next().map_or(Vec::new(), |table| table.rows.clone())
    }

    #[test]
    fn open_loops_are_also_compared_from_when_an_io_is_sent() {
        let names = ["a".to_owned(), "b".to_owned()];
        // Both serve an I/O in the same time, but the first counts from when it was due as well.
        let round = || [side(90.0, Some(0)), side(60.0, Some(0))];
        let found = findings(&names, &cases(), &vec![round(), round()], false);
        let rows = service_rows(&found);
        assert_eq!(rows.len(), 3, "{rows:?}");
        for (row, (what, us)) in
            rows.iter()
                .zip([("mean", "70 µs"), ("median", "60 µs"), ("99 %", "90 µs")])
        {
            assert_eq!(row[1..5], [what, us, us, "1.00×"], "{rows:?}");
        }
        assert_eq!(found.tables[0].rows[1][3], "0.67×", "{:?}", found.tables[0]);
        let load = &found.figures["loads"][1];
        assert_eq!(load["service"]["p50"]["ratio"], 1.0, "{load}");
        // With fio, the shape is told from the speed in a closed loop, too.
        let beside_fio = findings(&names, &cases(), &vec![round(), round()], true);
        assert_eq!(service_rows(&beside_fio).len(), 6);
        // Of a commit, only one time is known.
        let unknown = Speed {
            per_s: 1000.0,
            ..Speed::default()
        };
        let unknown = || [vec![unknown; 6], vec![unknown; 6]];
        let found = findings(&names, &cases(), &vec![unknown(), unknown()], true);
        assert_eq!(service_rows(&found).len(), 0);
    }

    #[test]
    fn a_side_that_could_not_keep_up_with_the_rate_is_marked() {
        let names = ["a".to_owned(), "b".to_owned()];
        let closed = || [side(90.0, Some(0)), side(60.0, Some(0))];
        let of = |a, b| {
            let open = [side(90.0, a), side(60.0, b)];
            findings(&names, &cases(), &vec![closed(), open], false)
        };
        let behind = of(Some(0), Some(125));
        let rows = &behind.tables[0].rows;
        assert!(!rows[0][0].ends_with('*'), "{rows:?}");
        assert!(rows[1][0].ends_with(" *"), "{rows:?}");
        assert!(service_rows(&behind)[0][0].ends_with(" *"));
        let note = behind.notes.iter().find(|note| note.contains(" *: "));
        let note = note.expect("it says what the mark means");
        assert!(note.contains("0 % on a, 12.5 % on b"), "{note}");
        let load = &behind.figures["loads"][1];
        assert_eq!(load["not_begun_percent"], json!([0.0, 12.5]), "{load}");
        assert_eq!(load["b"][0]["not_begun"], 125, "{load}");
        // Of 1,000 arrivals, the last may be due at the very end. fio's are not known.
        for (a, b) in [(Some(1), Some(0)), (Some(0), None)] {
            let kept_up = of(a, b);
            assert!(!kept_up.tables[0].rows[1][0].contains('*'), "{kept_up:?}");
            assert!(!kept_up.notes.iter().any(|note| note.contains('*')));
        }
    }

    /// Which places of a new disk the next load of `runner` writes.
    fn written(runner: &mut Runner<'_>) -> Vec<u64> {
        const PLACES: u64 = 4096;
        let ram = Region::new(PLACES * 512, 512).expect("little memory");
        let lane = runner.lane.clone();
        let disk: SharedVolume = lane.block_on(async { Rc::new(ram.on_lane()) });
        let workload = Workload {
            ios_max: Some(32),
            ..Workload::closed(Operation::Write, 512, 4)
        };
        let luns = [Lun::from(disk.clone())];
        let step = runner.load_at_once("a load", &luns, &workload, Duration::from_secs(60));
        assert_eq!(step.expect("it writes").expect("no stop").done.ios, 32);
        let data = lane.block_on(async { disk.read(0, PLACES as usize * 512).await });
        let data = data.expect("it reads").to_vec();
        let places = data.chunks(512).zip(0..);
        let written = places.filter(|(place, _)| place.iter().any(|byte| *byte != 0));
        written.map(|(_, place)| place).collect()
    }

    #[test]
    fn loads_of_a_run_differ_and_the_sides_of_a_pair_do_not() {
        let lane = lane().expect("a ring");
        let start = || {
            let stage = ProgressOutput::Silent.stage("loads", None);
            Runner::new(&lane, Vec::new(), Stop::default(), stage)
        };
        let mut runner = start();
        let pair = |runner: &mut Runner<'_>, round| {
            let pair = in_turn(runner, round, |runner, _| Ok(Some(written(runner))));
            pair.expect("both run")
                .map(|places| places.expect("both write"))
        };
        let pairs = [pair(&mut runner, 0), pair(&mut runner, 1)];
        for [a, b] in &pairs {
            assert_eq!(a, b);
        }
        assert_ne!(pairs[0], pairs[1]);
        assert_ne!(written(&mut runner), written(&mut runner));
        // Another run does the same again.
        assert_eq!(pair(&mut start(), 0), pairs[0]);
    }

    #[test]
    fn a_round_that_was_cut_short_has_no_score() {
        let sample = |per_s| Speed {
            per_s,
            p50_us: 1.0,
            p99_us: 1.0,
            ..Speed::default()
        };
        let measured = vec![
            [vec![sample(100.0), sample(50.0)], vec![sample(1.0); 2]],
            [vec![sample(400.0)], vec![sample(1.0)]],
        ];
        let scores = scores(&measured, 0);
        assert_eq!(scores.len(), 1);
        assert!((scores[0] - 200.0).abs() < 1e-9);
    }
}
