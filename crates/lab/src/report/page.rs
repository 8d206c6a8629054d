//! Findings as one HTML page that needs nothing else: the answer, what to do, the tables, the plots.
//! Style, plots and the script that says what a person points at are inline, nothing is fetched, and
//! without the script nothing is missing but that. It follows the reader's light or dark setting.

use std::fmt::Write;

use super::{
    findings::{Findings, Table},
    html::escaped,
    plot,
};

/// The page.
pub fn page(findings: &Findings) -> String {
    let title = format!("{} on {}", findings.profile, findings.on.join(" and "));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Sanstone: {}</title>\n<style>\n{}{}\
         </style>\n</head>\n<body>\n<main>\n",
        escaped(&title),
        include_str!("style.css"),
        include_str!("plot.css"),
    );
    let _ = writeln!(
        page,
        "<header><p class=\"brand\">Sanstone lab</p><h1>{}</h1><p class=\"lead\">{}</p></header>",
        escaped(&title),
        escaped(&findings.about),
    );
    let _ = writeln!(
        page,
        "<section class=\"answer\"><p>{}</p></section>",
        escaped(&findings.answer)
    );
    list(&mut page, "What to do", "advice", &findings.advice);
    list(&mut page, "To know", "notes", &findings.notes);
    for table in findings.all_tables() {
        section(&mut page, &table);
    }
    for figure in &findings.plots {
        let _ = writeln!(
            page,
            "<section><h2>{}</h2><p class=\"soft\">{}</p>{}</section>",
            escaped(&figure.title),
            escaped(&figure.about),
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

fn list(page: &mut String, title: &str, class: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<section class=\"{class}\"><h2>{title}</h2><ul>");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", escaped(line));
    }
    page.push_str("</ul></section>\n");
}

fn section(page: &mut String, table: &Table) {
    let _ = write!(
        page,
        "<section><h2>{}</h2><p class=\"soft\">{}</p><div class=\"scroll\"><table><thead><tr>",
        escaped(&table.title),
        escaped(&table.about),
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
