//! Runs the same loads with fio as an independent reference: builds its arguments and parses its output.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use crate::{
    LabError, LabResult,
    load::{Arrivals, BEGUN_MAX, Order, Spacing, Stop, Workload},
    programs::{dying_with_us, output, program},
    speed::Speed,
};

/// Checks that fio can run alongside our loads.
///
/// # Errors
/// `verifies`: reads are verified against what we wrote, and fio would overwrite that.
pub(crate) fn check(verifies: bool) -> LabResult<()> {
    match verifies {
        true => Err(LabError::Call(
            "--with fio: what fio writes cannot be verified; write verify = false".into(),
        )),
        false => Ok(()),
    }
}

/// Whether fio can express the load.
pub(crate) fn has(workload: &Workload) -> bool {
    arguments(workload, 0).is_some()
}

/// Runs a load with fio on a file or device of `len_bytes`; `None` if fio cannot express it, or the user asked to stop.
pub(crate) fn run(
    path: &Path,
    workload: &Workload,
    len_bytes: u64,
    time: Duration,
    stop: &Stop,
) -> LabResult<Option<Speed>> {
    let Some(arguments) = arguments(workload, len_bytes) else {
        return Ok(None);
    };
    let mut fio = dying_with_us(&program("fio", "fio", "--with fio")?)?;
    fio.args([
        "--name=beside",
        "--ioengine=io_uring",
        "--direct=1",
        "--thread",
    ])
    .args(["--time_based", "--randrepeat=0", "--norandommap=1"])
    .args(["--unified_rw_reporting=mixed", "--output-format=json"])
    .args(["--lat_percentiles=1", "--percentile_list=50:99"])
    .arg("--filename")
    // fio separates file names with colons, so a colon in a name must be escaped.
    .arg(path.display().to_string().replace(':', "\\:"))
    .arg(format!("--runtime={}ms", time.as_millis()))
    .arg(format!("--ramp_time={}ms", time.as_millis() / 10))
    .args(arguments);
    let output = match output(&mut fio, stop) {
        Err(LabError::Stopped) => return Ok(None),
        output => output?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(LabError::Target(format!("fio: {}", said.trim())));
    }
    match said(&output.stdout) {
        Some(sample) => Ok(Some(sample)),
        None => Err(LabError::Target(
            "fio: its output has no job with I/Os".into(),
        )),
    }
}

/// fio's arguments for a load.
fn arguments(workload: &Workload, len_bytes: u64) -> Option<Vec<String>> {
    if workload.adapter.is_some() || workload.ios_max.is_some() {
        return None;
    }
    let mut arguments = Vec::new();
    let (is_random, zipf) = match workload.order {
        Order::Random => (true, false),
        Order::Zipf => (true, true),
        Order::Sequential => (false, false),
        Order::Backward | Order::Strided => return None,
    };
    let direction = match (is_random, workload.read_percent) {
        (true, 100..) => "randread",
        (true, 0) => "randwrite",
        (true, _) => "randrw",
        (false, 100..) => "read",
        (false, 0) => "write",
        (false, _) => "rw",
    };
    arguments.push(format!("--rw={direction}"));
    if (1..100).contains(&workload.read_percent) {
        arguments.push(format!("--rwmixread={}", workload.read_percent));
    }
    if zipf {
        arguments.push("--random_distribution=zipf:0.99".into());
    }
    let all: u64 = workload.sizes.iter().map(|(_, weight)| weight).sum();
    let sizes = workload.sizes.iter();
    let split: Vec<String> = sizes
        .map(|(size, weight)| format!("{size}/{}", 100 * weight / all.max(1)))
        .collect();
    arguments.push(match &workload.sizes[..] {
        [(size, _)] => format!("--bs={size}"),
        _ => format!("--bssplit={}", split.join(":")),
    });
    let span = workload.span_bytes.unwrap_or(len_bytes).min(len_bytes);
    arguments.push(format!("--size={span}"));
    match workload.arrivals {
        Arrivals::Closed { outstanding } => arguments.push(format!("--iodepth={outstanding}")),
        Arrivals::Open {
            rate_per_s,
            spacing,
        } => {
            arguments.push(format!("--iodepth={BEGUN_MAX}"));
            arguments.push(format!("--rate_iops={}", rates(workload, rate_per_s)));
            if spacing == Spacing::Poisson {
                arguments.push("--rate_process=poisson".into());
            }
        }
    }
    Some(arguments)
}

/// fio takes one rate for reads and one for writes.
fn rates(workload: &Workload, rate_per_s: f64) -> String {
    let part = |percent: u64| (rate_per_s * percent as f64 / 100.0).round().max(1.0);
    match workload.read_percent {
        0 | 100.. => part(100).to_string(),
        reads => format!("{},{}", part(reads), part(100 - reads)),
    }
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    mixed: FioDirection,
}

#[derive(Deserialize)]
struct FioDirection {
    iops: f64,
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    percentile: Percentiles,
}

#[derive(Deserialize)]
struct Percentiles {
    #[serde(rename = "50.000000")]
    p50: f64,
    #[serde(rename = "99.000000")]
    p99: f64,
}

fn said(json: &[u8]) -> Option<Speed> {
    let output: Output = serde_json::from_slice(json).ok()?;
    let mixed = &output.jobs.first()?.mixed;
    let [mean_us, p50_us, p99_us] = [
        mixed.lat_ns.mean / 1e3,
        mixed.lat_ns.percentile.p50 / 1e3,
        mixed.lat_ns.percentile.p99 / 1e3,
    ];
    (mixed.total_ios > 0).then_some(Speed {
        per_s: mixed.iops,
        p50_us,
        p99_us,
        service_mean_us: Some(mean_us),
        service_p50_us: Some(p50_us),
        service_p99_us: Some(p99_us),
        ..Speed::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Operation;

    #[test]
    fn loads_are_told_in_its_words() {
        let mut workload = Workload::closed(Operation::Read, 8192, 32);
        let told = |workload: &Workload| arguments(workload, 1 << 20).map(|all| all.join(" "));
        assert_eq!(
            told(&workload).as_deref(),
            Some("--rw=randread --bs=8192 --size=1048576 --iodepth=32")
        );
        workload.read_percent = 70;
        workload.sizes = vec![(4096, 3), (65536, 1)];
        workload.order = Order::Zipf;
        workload.span_bytes = Some(65536);
        workload.arrivals = Arrivals::Open {
            rate_per_s: 500.0,
            spacing: Spacing::Poisson,
        };
        assert_eq!(
            told(&workload).as_deref(),
            Some(
                "--rw=randrw --rwmixread=70 --random_distribution=zipf:0.99 --bssplit=4096/75:65536/25 \
                 --size=65536 --iodepth=1024 --rate_iops=350,150 --rate_process=poisson"
            )
        );
        workload.order = Order::Strided;
        assert_eq!(told(&workload), None);
    }

    #[test]
    fn its_figures_are_read() {
        let json = br#"{"jobs": [{"mixed": {"iops": 2000.5, "total_ios": 1000,
            "lat_ns": {"mean": 95000.0, "percentile": {"50.000000": 90000, "99.000000": 150000}}}}]}"#;
        let sample = said(json).expect("a job");
        assert_eq!(
            (sample.per_s, sample.p50_us, sample.p99_us),
            (2000.5, 90.0, 150.0)
        );
        assert_eq!(sample.service_mean_us, Some(95.0));
        assert_eq!(said(b"fio: oops"), None);
    }
}
