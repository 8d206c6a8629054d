//! The report in a real browser: its plots are drawn, its script runs without errors, marks can be read with the
//! keyboard, and it prints.

use std::{fs, path::Path, process::Command, time::Duration};

use harness::{
    process::find_program,
    run::{Ran, run},
};

use crate::Place;

/// Presses a key on every plot and leaves what was said in the page, which the browser then prints.
const ROBOT: &str = r#"<script>
const said = [];
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg");
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  said.push(plot.querySelector(".tip").textContent);
  const mark = plot.querySelector("[data-tip]").getBoundingClientRect();
  said.push(mark.width > 0 && mark.height > 0 ? "drawn" : "not drawn");
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  said.push(plot.querySelector(".tip").hidden ? "gone" : "still there");
  const bars = [...svg.querySelectorAll(".bar")].map((bar) => bar.getBoundingClientRect());
  const frame = svg.getBoundingClientRect();
  const within = (bar) => bar.width > 0 && bar.left >= frame.left - 1 && bar.right <= frame.right + 1 && bar.bottom <= frame.bottom;
  said.push(svg.tabIndex === 0 && bars.every(within) ? "reached" : "not reached or cut");
  said.push(bars.length);
}
document.body.dataset.said = said.join("|");
</script></body>"#;

fn browse(browser: &Path, place: &Place, page: &Path, option: &str) -> Ran {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", place.path("browser")))
        .args([option, &format!("file://{}", page.display())]);
    run(&mut command, Duration::from_secs(300)).success()
}

#[test]
fn a_browser_draws_the_report_says_what_is_at_a_mark_and_prints_it() {
    let Some(browser) = find_program("chromium") else {
        return harness::skip("chromium is not installed");
    };
    let place = Place::new();
    let file = place.path("made.img");
    for (profile, plots) in [("queue", 4), ("iozone", 8), ("commit", 4)] {
        place
            .run(&["run", profile, "--on", &file, "--quick"])
            .success();
        let page = place.page().replace("</body>", ROBOT);
        let page = place.directory.write("page.html", page);
        let dumped = browse(&browser, &place, &page, "--dump-dom");
        let said = dumped
            .stdout
            .split("data-said=\"")
            .nth(1)
            .expect("the script ran");
        let said = said.split('"').next().expect("its end");
        let parts: Vec<&str> = said.split('|').collect();
        assert_eq!(parts.len(), 5 * plots, "{said}");
        for plot in parts.chunks(5) {
            assert!(!plot[0].is_empty(), "nothing was said: {said}");
            assert_eq!(&plot[1..4], ["drawn", "gone", "reached"], "{said}");
        }
        // The layers, and two commits of them.
        let with_bars = parts.chunks(5).filter(|plot| plot[4] != "0").count();
        assert_eq!(with_bars, if profile == "commit" { 3 } else { 0 }, "{said}");
        assert!(!dumped.stderr.contains(":CONSOLE"), "{}", dumped.stderr);
        let pdf = place.path("page.pdf");
        browse(&browser, &place, &page, &format!("--print-to-pdf={pdf}"));
        let pdf = fs::read(pdf).expect("it was printed");
        assert!(
            pdf.starts_with(b"%PDF") && pdf.len() > 10_000,
            "{} bytes",
            pdf.len()
        );
    }
}
