//! Draws an interval on a terminal of at least 80 columns: a line of totals, and tables of nodes, caches and
//! initiators. Rows that do not fit can be scrolled with the arrow keys.

use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Style, Stylize},
    text::Line,
    widgets::Paragraph,
};

use super::interval::{ActivityRow, CacheRates, Interval, Rates};
use crate::quantity::seconds;
use node::description::PathSession;

/// How many of the reasons for not being well are shown.
const REASONS_MAX: usize = 3;

/// The column headings after the name. Where requests hang, the two times are replaced by the age of the oldest.
const HEADINGS: &str = "     IOPS      MB/s   queue       p50       p99";
/// The same for caches, with the same width.
const CACHE_HEADINGS: &str = "    HIT %  MISSES/s  LATE/s     AHEAD    WASTED";

/// Draws `interval` of the daemon called `of`, starting at row `first`; returns the largest useful value of
/// `first`.
pub(crate) fn draw(frame: &mut Frame<'_>, of: &str, interval: &Interval, first: u16) -> u16 {
    let width = usize::from(frame.area().width);
    let head = head(of, interval, width);
    let areas = Layout::vertical([
        Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [top, body, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    let lines = lines(interval, width);
    let last = lines.len().saturating_sub(usize::from(body.height));
    let last = u16::try_from(last).unwrap_or(u16::MAX);
    frame.render_widget(Paragraph::new(lines).scroll((first.min(last), 0)), body);
    let keys = match last {
        0 => "q quits",
        _ => "q quits, arrows move",
    };
    frame.render_widget(Line::from(keys).dim(), foot);
    last
}

/// What it is about, how that is, and the totals.
fn head(of: &str, interval: &Interval, width: usize) -> Vec<Line<'static>> {
    let total = &interval.total;
    let mut totals = format!(
        "{:.0} IOPS  {:.1} MB/s  CPU {:.0} % (busy {:.0} %)",
        total.iops,
        total.bytes / 1e6,
        interval.cpu_percent,
        interval.busy_percent
    );
    if let (Some(cpu_us), Some(busy_us)) = (interval.cpu_us_per_io, interval.busy_us_per_io) {
        let [cpu, busy] = [cpu_us, busy_us].map(|us| seconds(us / 1e6));
        totals += &format!("  {cpu} per I/O (busy {busy})");
    }
    if let Some(oldest_s) = total.oldest_s {
        totals += &format!("  hangs for {}", seconds(oldest_s));
    }
    let verdict = &interval.verdict;
    let mut head = vec![Line::from(format!("sanstone top  {of}  {}", verdict.health)).bold()];
    let reasons = verdict.reasons.iter().take(REASONS_MAX);
    head.extend(reasons.flat_map(|reason| wrapped(&reason.to_string(), width)));
    let left_out = verdict.reasons.len().saturating_sub(REASONS_MAX);
    if left_out > 0 {
        head.push(Line::from(format!(
            "and {left_out} more: `sanstone status` has all"
        )));
    }
    let failing = interval
        .nodes
        .iter()
        .filter(|(_, row)| row.all.errors > 0.0);
    head.extend(failing.map(|(name, row)| {
        let line = format!("{name}: {:.1} errors a second", row.all.errors);
        Line::from(line)
    }));
    head.push(Line::from(totals));
    head
}

fn lines(interval: &Interval, width: usize) -> Vec<Line<'static>> {
    let name_width = width.saturating_sub(HEADINGS.len() + 1).max(8);
    let heading = |what: &str, headings: &str| {
        let line = format!("{what:<name_width$} {headings}");
        Line::styled(line, Style::new().reversed())
    };
    let row = |(name, row): (&String, &ActivityRow)| {
        let name = shortened(name, name_width);
        Line::from(format!("{name:<name_width$} {}", columns(&row.all)))
    };
    let cache = |(name, rates): (&String, &CacheRates)| {
        let name = shortened(name, name_width);
        Line::from(format!("{name:<name_width$} {}", cache_columns(rates)))
    };
    let path = |name: &String, path: &PathSession| {
        let name = shortened(&format!("{name} {}", path.portal), name_width);
        Line::from(format!("{name:<name_width$} {}", path_columns(&path.state)))
    };
    let mut lines = vec![heading("NODE", HEADINGS)];
    lines.extend(interval.nodes.iter().map(row));
    if !interval.caches.is_empty() {
        lines.push(heading("CACHE", CACHE_HEADINGS));
        lines.extend(interval.caches.iter().map(cache));
    }
    if !interval.paths.is_empty() {
        lines.push(heading("PATH", &path_columns("STATE")));
        let paths = interval.paths.iter();
        lines.extend(paths.flat_map(|(name, paths)| paths.iter().map(|it| path(name, it))));
    }
    lines.push(heading("INITIATOR", HEADINGS));
    lines.extend(interval.initiators.iter().map(row));
    lines
}

fn columns(rates: &Rates) -> String {
    let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| seconds(us / 1e6));
    let times = match rates.oldest_s {
        Some(oldest_s) => format!("hangs for {}", seconds(oldest_s)),
        None => format!("{:>9} {:>9}", time(rates.p50_us), time(rates.p99_us)),
    };
    format!(
        "{:>9.0} {:>9.1} {:>7.1} {times:>19}",
        rates.iops,
        rates.bytes / 1e6,
        rates.queue,
    )
}

fn cache_columns(rates: &CacheRates) -> String {
    let hits = rates.hit_percent;
    format!(
        "{:>9} {:>9.0} {:>7.0} {:>9.1} {:>9.1}",
        hits.map_or("-".to_owned(), |percent| format!("{percent:.1}")),
        rates.misses,
        rates.late_hits,
        rates.read_ahead_bytes / 1e6,
        rates.read_ahead_wasted_bytes / 1e6
    )
}

/// What is said of a session of a remote disk, below its heading.
fn path_columns(state: &str) -> String {
    format!("{state:>width$}", width = HEADINGS.len())
}

/// As many lines as `text` needs, broken between words; those after the first are indented.
fn wrapped(text: &str, width: usize) -> Vec<Line<'static>> {
    const INDENT: &str = "  ";
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let has_words = !line.trim().is_empty();
        match line.chars().count() + 1 + word.chars().count() > width {
            true if has_words => {
                lines.push(Line::from(std::mem::replace(&mut line, INDENT.to_owned())));
            }
            false if has_words => line.push(' '),
            _ => {}
        }
        line.push_str(word);
    }
    lines.push(Line::from(line));
    lines
}

/// Keeps the end of a long name, where names differ.
fn shortened(name: &str, width: usize) -> String {
    let chars = name.chars().count();
    if chars <= width {
        return name.to_owned();
    }
    let end: String = name.chars().skip(chars + 1 - width).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use node::{
        description::{CacheDescription, CounterSnapshot, RequestCounts},
        health::{About, Health, Reason, Verdict},
    };
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::admin::Sample;

    fn shown(interval: &Interval, first: u16) -> (Vec<String>, u16) {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("no terminal is needed");
        let mut last = 0;
        let draw = |frame: &mut Frame<'_>| last = draw(frame, "/srv/state", interval, first);
        terminal.draw(draw).expect("no terminal is needed");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(80);
        let text = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect();
        (rows.map(text).collect(), last)
    }

    fn interval(nodes: usize) -> Interval {
        let counted = RequestCounts {
            errors: 0,
            pending: 0,
            oldest_s: None,
            bytes: 400_000_000,
            times_ns: vec![(87_000, 99_000), (1_500_000, 1_000)],
            busy_ns: 3_200_000_000,
        };
        let kinds = BTreeMap::from([("read".to_owned(), counted)]);
        let paths =
            (0..nodes).map(|n| (format!("volume-{n:02}/cache/stripe/3/file"), kinds.clone()));
        let name = "iqn.1993-08.org.debian:01:a-host-with-a-long-name".to_owned();
        let after = Sample {
            at_ns: 1_000_000_000,
            cpu_ns: 830_000_000,
            looked_ns: 210_000_000,
            counters: CounterSnapshot {
                nodes: paths.collect(),
                caches: BTreeMap::from([(
                    "volume-00/cache".to_owned(),
                    CacheDescription {
                        hits: 995,
                        misses: 5,
                        read_ahead_bytes: 3_000_000,
                        ..CacheDescription::default()
                    },
                )]),
                volumes: BTreeMap::from([("db".to_owned(), kinds.clone())]),
                initiators: BTreeMap::from([(name, kinds.clone())]),
                ..CounterSnapshot::default()
            },
            paths: BTreeMap::new(),
            verdict: Verdict::default(),
        };
        Interval::between(&Sample::default(), &after)
    }

    #[test]
    fn it_fits_80_columns() {
        let (rows, last) = shown(&interval(2), 0);
        assert_eq!(last, 0);
        assert_eq!(rows[0].trim_end(), "sanstone top  /srv/state  ok");
        let totals = "100000 IOPS  400.0 MB/s  CPU 83 % (busy 62 %)  8.3 µs per I/O (busy 6.2 µs)";
        assert_eq!(rows[1].trim_end(), totals);
        let figures = "   100000     400.0     3.2     87 µs    1.5 ms";
        assert_eq!(rows[2].split_whitespace().next(), Some("NODE"), "{rows:?}");
        assert!(
            rows[3].starts_with("volume-00/cache/stripe/3/file"),
            "{rows:?}"
        );
        assert!(rows[3].trim_end().ends_with("87 µs     87 µs"), "{rows:?}");
        assert_eq!(rows[5].split_whitespace().next(), Some("CACHE"), "{rows:?}");
        let cache = "     99.5         5       0       3.0       0.0";
        assert!(rows[6].starts_with("volume-00/cache"), "{rows:?}");
        assert!(rows[6].contains(cache), "{rows:?}");
        assert!(
            rows[8].starts_with("…") && rows[8].contains("long-name"),
            "{rows:?}"
        );
        assert!(rows[8].contains(&figures[..30]), "{rows:?}");
        assert!(rows[23].starts_with("q quits"), "{rows:?}");
    }

    #[test]
    fn each_path_of_a_remote_disk_has_its_state() {
        let mut interval = interval(1);
        let session = |portal: &str, state: &str| PathSession {
            state: state.to_owned(),
            portal: portal.to_owned(),
            local: None,
            lane: 0,
            error: None,
        };
        let sessions = vec![
            session("10.0.1.2:3260", "logged in"),
            session("10.0.2.2:3260", "none"),
        ];
        interval.paths = BTreeMap::from([("db/iscsi".to_owned(), sessions)]);
        let (rows, _) = shown(&interval, 0);
        let found: Vec<_> = rows
            .iter()
            .filter(|row| row.starts_with("db/iscsi"))
            .collect();
        assert_eq!(found.len(), 2, "{rows:?}");
        for (row, portal, state) in [
            (found[0], "10.0.1.2:3260", "logged in"),
            (found[1], "10.0.2.2:3260", "none"),
        ] {
            assert!(
                row.contains(portal) && row.trim_end().ends_with(state),
                "{row}"
            );
        }
    }

    #[test]
    fn what_is_not_well_stands_above_the_figures() {
        let mut interval = interval(1);
        interval.verdict = Verdict {
            health: Health::Degraded,
            reasons: (0..5)
                .map(|child| Reason {
                    health: Health::Degraded,
                    about: About::Request,
                    of: format!("db/stripe/{child}/file"),
                    what: "1 write in progress, the oldest for 45 s".to_owned(),
                    mend: "look at the disk".to_owned(),
                })
                .collect(),
        };
        let (rows, _) = shown(&interval, 0);
        assert_eq!(rows[0].trim_end(), "sanstone top  /srv/state  degraded");
        // Also the mend, which does not fit beside it.
        assert!(
            rows[5].starts_with("degraded: db/stripe/2/file: 1 write"),
            "{rows:?}"
        );
        assert_eq!(rows[6].trim_end(), "  the disk");
        assert_eq!(rows[7].trim_end(), "and 2 more: `sanstone status` has all");
        assert!(rows[8].starts_with("100000 IOPS"), "{rows:?}");
    }

    #[test]
    fn rows_that_do_not_fit_can_be_reached() {
        let (_, last) = shown(&interval(50), 0);
        assert!(last > 0);
        let (rows, _) = shown(&interval(50), last);
        assert!(rows[22].contains("long-name"), "{rows:?}");
    }
}
