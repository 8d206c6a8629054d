//! How the results are shown: a table and plots of each sweep, and a table of the adapters.

use super::{AtRate, Behind, Sweep, median};
use crate::{
    load::Point,
    profile::runner::Figures,
    report::{Axis, FindingsTable, Marks, Plot, PlotLine, short},
};

pub(super) fn sweep_table(sweep: &Sweep) -> FindingsTable {
    let mut table = FindingsTable::new(
        "By the number outstanding",
        "Closed loop: when one I/O ends, the next begins. Medians of all rounds; times in microseconds. The \
         queue was sampled, and is also computed as throughput × mean by Little's law.",
        &[
            "outstanding",
            "I/Os/s",
            "MB/s",
            "mean µs",
            "median µs",
            "99 % µs",
            "queue",
            "by Little",
        ],
    );
    for (outstanding, runs) in sweep {
        let figure = |of: fn(&Figures) -> f64| short(median(runs, of));
        table.rows.push(vec![
            outstanding.to_string(),
            figure(|run| run.iops),
            figure(|run| run.megabytes_per_s),
            figure(|run| run.mean_us),
            figure(|run| run.p50_us),
            figure(|run| run.p99_us),
            figure(|run| run.queue),
            figure(|run| run.queue_by_little),
        ]);
    }
    table
}

pub(super) fn sweep_plots(sweep: &Sweep) -> Vec<Plot> {
    let line = |name: &str, of: fn(&Figures) -> f64| PlotLine {
        name: name.into(),
        points: sweep
            .iter()
            .map(|(outstanding, runs)| (*outstanding as f64, median(runs, of)))
            .collect(),
    };
    let axis = |label: &str, is_logarithmic| Axis {
        label: label.into(),
        is_logarithmic,
    };
    vec![
        Plot {
            title: "Throughput".into(),
            about: "The knee is where it stops rising.".into(),
            x: axis("outstanding I/Os", true),
            y: axis("I/Os a second", false),
            marks: Marks::Lines(vec![line("throughput", |run| run.iops)]),
        },
        Plot {
            title: "Latency".into(),
            about: "Beyond the knee it grows with the number outstanding, because I/Os queue."
                .into(),
            x: axis("outstanding I/Os", true),
            y: axis("microseconds", true),
            marks: Marks::Lines(vec![
                line("median", |run| run.p50_us),
                line("99 %", |run| run.p99_us),
            ]),
        },
    ]
}

pub(super) fn rates_table(rates: &[AtRate]) -> FindingsTable {
    let mut table = FindingsTable::new(
        "By arrival rate",
        "Open loop: I/Os arrive whether or not earlier ones have ended. Medians of all rounds; times in microseconds, \
         from the moment each was due; service times are from when each was sent. The last two columns are how \
         late the generator itself was, and how many I/Os could not begin before the end.",
        &[
            "of the knee's rate",
            "arrivals/s",
            "I/Os/s",
            "mean µs",
            "median µs",
            "99 % µs",
            "service median µs",
            "service 99 % µs",
            "queue",
            "late 99 % µs",
            "not begun",
        ],
    );
    let columns: [fn(&Figures) -> f64; 9] = [
        |run| run.iops,
        |run| run.mean_us,
        |run| run.p50_us,
        |run| run.p99_us,
        |run| run.service_p50_us,
        |run| run.service_p99_us,
        |run| run.queue,
        |run| run.generator_late_p99_us,
        |run| run.not_begun as f64,
    ];
    for at in rates {
        let figures = columns.iter().map(|of| short(at.median(*of)));
        let row = [format!("{} %", at.percent), short(at.rate_per_s)].into_iter();
        table.rows.push(row.chain(figures).collect());
    }
    table
}

/// The queue over time and, with the same time axis, the latency over time, both of the first round: where one grows,
/// so does the other.
pub(super) fn plots_over_time(rates: &[AtRate]) -> Vec<Plot> {
    let plot = |title: &str, about: &str, y, of: fn(&Point) -> Option<f64>| {
        let lines = rates.iter().map(|at| PlotLine {
            name: format!("{} a second ({} %)", short(at.rate_per_s), at.percent),
            points: at.steps[0]
                .done
                .series
                .iter()
                .filter_map(|point| Some((point.at_ms, of(point)?)))
                .collect(),
        });
        Plot {
            title: title.into(),
            about: about.into(),
            x: Axis {
                label: "milliseconds".into(),
                is_logarithmic: false,
            },
            y,
            marks: Marks::Lines(lines.collect()),
        }
    };
    let axis = |label: &str, is_logarithmic| Axis {
        label: label.into(),
        is_logarithmic,
    };
    vec![
        plot(
            "Queue over time",
            "In the first round: I/Os that have arrived and not ended. Where they arrive faster than they end, the queue \
             only grows.",
            axis("I/Os in the queue", false),
            |point| Some(point.queue as f64),
        ),
        plot(
            "Latency over time",
            "In the first round: the mean of the I/Os that ended since the previous point, from when each was due. It grows \
             with the queue.",
            axis("microseconds", true),
            // No I/O ended.
            |point| (point.latency_us > 0.0).then_some(point.latency_us),
        ),
    ]
}

pub(super) fn adapters_table(adapters: &[Behind<'_>]) -> FindingsTable {
    let mut table = FindingsTable::new(
        "Behind an adapter",
        "I/Os beyond the adapter's limits wait in front of it. Medians of all rounds; times in microseconds.",
        &[
            "adapter",
            "I/Os/s",
            "mean µs",
            "before the adapter µs",
            "at the disk µs",
            "99 % µs",
        ],
    );
    for behind in adapters {
        let figure = |of: fn(&Figures) -> f64| short(behind.median(of));
        table.rows.push(vec![
            behind.adapter.name.clone(),
            figure(|run| run.iops),
            figure(|run| run.mean_us),
            figure(|run| (run.mean_us - run.service_us).max(0.0)),
            figure(|run| run.service_us),
            figure(|run| run.p99_us),
        ]);
    }
    table
}
