//! The report as one self-contained HTML page: style and charts are inline, nothing is fetched, no script
//! runs. It follows the reader's light or dark setting and prints well.

use std::fmt::Write;

use super::{
    Report, SetReport, StatementReport, chart, grouped, link_text,
    table::{paper_speedup, times},
};
use crate::statements::{Kind, paper_scores_s};

/// The page.
pub fn html(report: &Report) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Sanstone: SQL over striped iSCSI \
         shares</title>\n<style>\n",
    );
    page.push_str(include_str!("style.css"));
    page.push_str("</style>\n</head>\n<body>\n<main>\n");
    header(&mut page, report);
    tiles(&mut page, report);
    bars(&mut page, report);
    lines(&mut page, report);
    tables(&mut page, report);
    conditions(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Escapes `text` for HTML content and attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn header(page: &mut String, report: &Report) {
    let data = &report.data;
    let link = report.link_bits_per_s.map_or("no limit".into(), link_text);
    let _ = writeln!(
        page,
        "<header><p class=\"brand\">Sanstone</p><h1>SQL over striped iSCSI shares</h1>\
         <p class=\"lead\">{} rows of drive_stats, {} to {}, {} MiB; five statements, each share \
         behind a link of {link} in each direction.</p></header>",
        grouped(data.rows),
        escaped(&data.first_day),
        escaped(&data.last_day),
        data.table_bytes >> 20,
    );
    if !report.notes.is_empty() {
        page.push_str("<ul class=\"notes\">");
        for note in &report.notes {
            let _ = write!(page, "<li>{}</li>", escaped(note));
        }
        page.push_str("</ul>\n");
    }
}

fn tiles(page: &mut String, report: &Report) {
    page.push_str("<section class=\"tiles\" aria-label=\"Scores\">");
    for (index, set) in report.sets.iter().enumerate() {
        let detail = match report.least_scan_link_use(set) {
            Some(part) if part >= 0.05 => {
                format!(
                    "each share at ≥ {:.0} % of its link in scans",
                    (part * 100.0).floor()
                )
            }
            Some(_) => "scans served from memory, links idle".into(),
            None => format!("{} in use", counted(set.shares.len(), "share")),
        };
        let _ = write!(
            page,
            "<div class=\"tile k{}\"><h2>{}</h2><p class=\"big\">{}</p><p>score {:.3} s</p>\
             <p class=\"soft\">{detail}</p></div>",
            index % 4,
            escaped(&set.name),
            times(report.speedup(set)),
            set.score_s(),
        );
    }
    let [one, two] = paper_scores_s();
    let _ = writeln!(
        page,
        "<div class=\"tile paper\"><h2>The paper, two shares</h2><p class=\"big\">{}</p>\
         <p>score {one:.2} s → {two:.2} s</p><p class=\"soft\">the reference experiment</p></div>\
         </section>",
        times(paper_speedup()),
    );
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 {
        format!("{count} {what}")
    } else {
        format!("{count} {what}s")
    }
}

/// For each statement, bars of the average on each set-up, scaled to the longest, with a mark for every run.
fn bars(page: &mut String, report: &Report) {
    page.push_str(
        "<section><h2>Time of each statement</h2><p class=\"soft\">Average in seconds, a mark for \
         each run; shorter is better. Each statement has its own scale.</p><div class=\"groups\">",
    );
    let statements = report.sets.first().map_or(&[][..], |set| &set.statements);
    for (index, statement) in statements.iter().enumerate() {
        let on_set = |set: &SetReport| set.statements.get(index).cloned();
        let all: Vec<(usize, &SetReport, StatementReport)> = report
            .sets
            .iter()
            .enumerate()
            .filter_map(|(place, set)| Some((place, set, on_set(set)?)))
            .collect();
        let runs = all
            .iter()
            .flat_map(|(_, _, s)| s.runs.iter().map(|run| run.seconds));
        let longest = runs.fold(1e-9, f64::max);
        let _ = write!(
            page,
            "<div class=\"group\"><h3><code>{}</code><span class=\"soft\">weight {}, the paper {}\
             </span></h3>",
            escaped(&statement.statement.sql),
            statement.statement.weight,
            statement
                .statement
                .paper_speedup()
                .map_or("–".into(), times),
        );
        for (place, set, statement) in all {
            let percent = |seconds: f64| 100.0 * seconds / longest;
            let _ = write!(
                page,
                "<div class=\"bar k{}\"><span class=\"who\">{}</span><span class=\"track\">\
                 <span class=\"fill\" style=\"width:{:.2}%\"></span>",
                place % 4,
                escaped(&set.name),
                percent(statement.average_s()),
            );
            for run in &statement.runs {
                let _ = write!(
                    page,
                    "<i style=\"left:{:.2}%\" title=\"{:.3} s\"></i>",
                    percent(run.seconds),
                    run.seconds
                );
            }
            let _ = write!(
                page,
                "</span><span class=\"value\">{:.2} s<b>{}</b></span></div>",
                statement.average_s(),
                times(report.statement_speedup(set, index)),
            );
        }
        page.push_str("</div>");
    }
    page.push_str("</div></section>\n");
}

fn lines(page: &mut String, report: &Report) {
    page.push_str(
        "<section><h2>Throughput of each share over time</h2><p class=\"soft\">Payload in MB/s \
         during the timed runs, one after the other; solid lines are reads, dashed ones \
         writes.</p>",
    );
    for set in &report.sets {
        let _ = write!(
            page,
            "<figure><figcaption>{}<span class=\"legend\">",
            escaped(&set.name)
        );
        for share in &set.shares {
            let name = report.shares.get(*share).map_or("", |share| &share.name);
            let _ = write!(
                page,
                "<span class=\"s{}\">{}</span>",
                share % 4,
                escaped(name)
            );
        }
        let _ = write!(
            page,
            "</span></figcaption>{}</figure>",
            chart::throughput(report, set)
        );
    }
    page.push_str("</section>\n");
}

fn tables(page: &mut String, report: &Report) {
    page.push_str("<section><h2>The paper's table, for each set-up</h2>");
    let limited = report.link_bits_per_s.is_some();
    for (place, set) in report.sets.iter().enumerate() {
        let runs = set.runs_max();
        let _ = write!(
            page,
            "<div class=\"scroll\"><table class=\"k{}\"><caption>{}</caption><thead><tr>\
             <th scope=\"col\">Statement</th>",
            place % 4,
            escaped(&set.name)
        );
        for run in 1..=runs {
            let _ = write!(page, "<th scope=\"col\">Run {run}</th>");
        }
        let _ = write!(
            page,
            "<th scope=\"col\">Average</th><th scope=\"col\">Weight</th><th scope=\"col\">Weighted\
             </th><th scope=\"col\">Speed-up</th><th scope=\"col\">Paper</th><th scope=\"col\">{}</th>\
             </tr></thead><tbody>",
            if limited { "Of the link" } else { "MB/s" },
        );
        for (index, statement) in set.statements.iter().enumerate() {
            let _ = write!(
                page,
                "<tr><th scope=\"row\"><code>{}</code></th>",
                escaped(&statement.statement.sql)
            );
            for cell in statement.cells(runs) {
                let _ = write!(page, "<td>{cell}</td>");
            }
            let _ = write!(
                page,
                "<td>{:.3}</td><td>{:.2}</td><td>{:.3}</td><td>{}</td><td class=\"soft\">{}</td>\
                 <td class=\"links\">{}</td></tr>",
                statement.average_s(),
                statement.statement.weight,
                statement.weighted_s(),
                times(report.statement_speedup(set, index)),
                statement
                    .statement
                    .paper_speedup()
                    .map_or("–".into(), times),
                link_cells(report, set, statement),
            );
        }
        let _ = write!(
            page,
            "</tbody><tfoot><tr><th scope=\"row\">Score: mean of the weighted averages</th>\
             <td colspan=\"{}\"></td><td>{:.3}</td><td>{}</td><td class=\"soft\">{}</td><td></td></tr>\
             </tfoot></table></div>",
            runs + 2,
            set.score_s(),
            times(report.speedup(set)),
            times(paper_speedup()),
        );
    }
    page.push_str("</section>\n");
}

/// One fragment per share: what it read and, for statements that write, what it wrote.
fn link_cells(report: &Report, set: &SetReport, statement: &StatementReport) -> String {
    let in_unit = |bytes_per_s: f64| match report.link_bytes_per_s() {
        Some(link) => format!("{:.0} %", 100.0 * bytes_per_s / link),
        None => format!("{:.0}", bytes_per_s / 1e6),
    };
    let mut cells = String::new();
    for share in &set.shares {
        let (read, written) = statement.throughput(*share);
        let text = match statement.statement.kind {
            Kind::Scan => in_unit(read),
            Kind::Delete | Kind::Vacuum => format!("{} ↓ {} ↑", in_unit(read), in_unit(written)),
        };
        let _ = write!(cells, "<span class=\"s{}\">{text}</span>", share % 4);
    }
    cells
}

fn conditions(page: &mut String, report: &Report) {
    page.push_str("<section><h2>How it was measured</h2><dl>");
    let mut pair = |name: &str, value: &str| {
        let _ = write!(
            page,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            escaped(name),
            escaped(value)
        );
    };
    for (name, value) in &report.settings {
        pair(name, value);
    }
    pair("month deleted", &report.data.deleted_month);
    pair(
        "files",
        "database, journal and temporary files lie on the volume",
    );
    page.push_str("</dl>");
    page.push_str(
        "<p class=\"soft\">Set-ups take turns within every run. Each run has a connection of its own, so \
         SQLite's cache is cold. DELETE and VACUUM run one after the other on a fresh copy of the \
         loaded database, which is put back outside the timed runs; VACUUM stands for OPTIMIZE \
         TABLE. The score is the mean of the five weighted averages, as in the paper. Link shares count \
         payload only, ↓ from and ↑ to the share.</p></section>\n",
    );
}
