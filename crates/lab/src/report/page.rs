//! Findings as one self-contained HTML page: the answer, the advice, the tables, the plots. Style, plots and
//! the script that shows the figures under the pointer are inline, and nothing is fetched. Without the script
//! only those figures are missing. It follows the reader's light or dark setting.

use std::fmt::Write;

use super::{
    date,
    findings::{Findings, FindingsTable, now},
    html::escaped,
    plot,
};
use crate::machine;

/// The page.
pub fn page(findings: &Findings) -> String {
    let title = format!("{} on {}", findings.profile, listed(&findings.on));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Sanstone: {}</title>\n<style>\n{}{}\
         </style>\n</head>\n<body>\n<main>\n",
        escaped(&title),
        include_str!("page.css"),
        include_str!("plot.css"),
    );
    let _ = writeln!(
        page,
        "<header><p class=\"brand\">Sanstone lab</p><h1>{}</h1><p class=\"lead\">{}</p>\
         <p class=\"soft\">{}, on {}, by Sanstone {}</p></header>",
        escaped(&title),
        prose(&findings.about),
        date::utc(now()),
        escaped(&machine::name()),
        escaped(&machine::program()),
    );
    let _ = writeln!(
        page,
        "<section class=\"answer\"><p>{}</p></section>",
        prose(&findings.answer)
    );
    list(&mut page, "What to do", "advice", &findings.advice);
    list(&mut page, "To know", "notes", &findings.notes);
    for table in &findings.tables {
        section(&mut page, &table.fitted());
    }
    for figure in &findings.plots {
        let _ = writeln!(
            page,
            "<section><h2>{}</h2><p class=\"soft\">{}</p>{}</section>",
            escaped(&figure.title),
            prose(&figure.about),
            plot::svg(figure),
        );
    }
    page.push_str("<section><h2>Measured on</h2><dl>");
    for (key, value) in &findings.machine {
        let _ = write!(
            page,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            escaped(key),
            escaped(value)
        );
    }
    let _ = write!(
        page,
        "</dl></section>\n</main>\n<script>\n{}</script>\n</body>\n</html>\n",
        include_str!("plot.js")
    );
    page
}

/// A sentence, with names of settings and commands, which text has between backquotes, as code.
fn prose(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => out.push_str(&escaped(part)),
            _ => {
                let _ = write!(out, "<code>{}</code>", escaped(part));
            }
        }
    }
    out
}

/// Names as in a sentence: "a, b and c".
fn listed(names: &[String]) -> String {
    match names {
        [names @ .., last] if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        _ => names.concat(),
    }
}

fn list(page: &mut String, title: &str, class: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<section class=\"{class}\"><h2>{title}</h2><ul>");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", prose(line));
    }
    page.push_str("</ul></section>\n");
}

fn section(page: &mut String, table: &FindingsTable) {
    let _ = write!(
        page,
        "<section><h2>{}</h2><p class=\"soft\">{}</p><div class=\"scroll\"><table><thead><tr>",
        escaped(&table.title),
        prose(&table.about),
    );
    for column in &table.columns {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escaped(column));
    }
    page.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        page.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = match column {
                0 => write!(page, "<th scope=\"row\">{}</th>", escaped(cell)),
                _ => write!(page, "<td>{}</td>", escaped(cell)),
            };
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div></section>\n");
}

#[cfg(test)]
mod tests {
    use super::{super::findings::*, *};

    fn findings() -> Findings {
        let line = |points: &[(f64, f64)]| PlotLine {
            name: "a <b>".into(),
            points: points.to_vec(),
        };
        let axis = |is_logarithmic| Axis {
            label: "I/Os & more".into(),
            is_logarithmic,
        };
        let plot = |is_logarithmic, marks| Plot {
            title: "A plot".into(),
            about: String::new(),
            x: axis(is_logarithmic),
            y: axis(is_logarithmic),
            marks,
        };
        let times = OperationTimes {
            mean_us: 10.0,
            p50_us: 8.0,
            p99_us: 30.0,
        };
        let layers = Layers {
            total: times,
            layers: vec![LayerShare {
                name: "all of it".into(),
                times,
            }],
        };
        Findings {
            profile: "queue".into(),
            on: vec!["<script>alert(1)</script>".into()],
            answer: "It is \"fast\".".into(),
            advice: vec!["less & fewer, such as `a < b`".into()],
            plots: vec![
                plot(
                    true,
                    Marks::Lines(vec![line(&[(1.0, 10.0), (1024.0, 0.0), (8.0, 90.0)])]),
                ),
                plot(
                    false,
                    Marks::Lines(vec![line(&[(0.0, 0.0), (1.0, f64::NAN)]), line(&[])]),
                ),
                plot(
                    false,
                    Marks::Field {
                        columns: vec!["4KiB".into(), "8KiB".into()],
                        rows: vec![("1MiB".into(), vec![Some(5.0), None])],
                        unit: "MB/s".into(),
                    },
                ),
            ],
            tables: vec![layers.table()],
            layers: Some(layers),
            ..Findings::default()
        }
    }

    #[test]
    fn the_page_needs_nothing_and_takes_names_as_text() {
        let page = page(&findings());
        for outside in ["http", " src=", "@import", "url(", "<script>alert"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;script&gt;alert(1)"), "the name is shown");
        assert!(page.contains("<p>It is &quot;fast&quot;.</p>"), "{page}");
        assert!(page.contains("such as <code>a &lt; b</code>"), "{page}");
        assert!(!page.contains('`'), "{page}");
        let program = format!("by Sanstone {}</p>", env!("CARGO_PKG_VERSION"));
        let told = page.contains(&program[..program.len() - 4]) && page.contains(" UTC, on ");
        assert!(told, "{page}");
        assert!(
            !page.contains("NaN") && !page.contains("inf"),
            "no place is none"
        );
    }

    #[test]
    fn every_value_that_has_a_place_is_a_mark_with_its_figures() {
        let page = page(&findings());
        // Two in the logarithmic plot (which has nothing at 0), one in the linear plot, one in the field.
        assert_eq!(page.matches("data-tip=").count(), 4);
        assert!(page.contains("data-tip=\"a &lt;b&gt;\nI/Os &amp; more: 8\nI/Os &amp; more: 90\""));
        assert!(page.contains("1MiB × 4KiB\n5 MB/s"));
    }

    #[test]
    fn text_and_json_have_the_layers() {
        let findings = findings();
        let text = findings.text();
        assert!(
            text.contains("all of it      10.0         100 %         8.0      30.0"),
            "{text}"
        );
        assert!(
            text.ends_with("It is \"fast\".\nadvice: less & fewer, such as `a < b`\n"),
            "{text}"
        );
        let json = findings.json();
        assert_eq!(json["total"]["p99_us"], 30.0);
        assert_eq!(json["layers"][0]["name"], "all of it");
        assert_eq!(json["layers"][0]["mean_us"], 10.0);
    }
}
