//! The report in a real browser, in its light and its dark theme: its plots are drawn, its script runs without errors,
//! marks can be read with the keyboard, and it prints.

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

const style = (of) => getComputedStyle(of);
const rgb = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
const luminance = (colour) => rgb(colour)
  .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
const contrast = (a, b) => {
  const [less, more] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (more + 0.05) / (less + 0.05);
};
const card = style(document.querySelector("section")).backgroundColor;
// What is written on a card, in the page and in its plots, without what lies on a coloured cell or bar.
const inks = [...document.querySelectorAll("section h2, section p, section td, section th")].map((text) => style(text).color)
  .concat([...document.querySelectorAll(".plot text:not(.on):not(.row)")].filter((text) => !text.previousElementSibling?.matches(".cell, .bar"))
    .map((text) => style(text).fill));
document.body.dataset.theme = [
  matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
  style(document.body).backgroundColor, card, style(document.body).color,
  Math.min(...inks.map((ink) => contrast(ink, card))) >= 4.5 ? "readable" : "hard to read",
].join("|");
</script></body>"#;

/// A theme: its name, its number among the browser's settings, and the colours of the page, of a card and of the text.
struct Theme {
    name: &'static str,
    setting: u32,
    colours: [&'static str; 3],
}

const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        setting: 1,
        colours: [
            "rgb(246, 247, 249)",
            "rgb(255, 255, 255)",
            "rgb(22, 32, 46)",
        ],
    },
    Theme {
        name: "dark",
        setting: 0,
        colours: ["rgb(14, 19, 27)", "rgb(23, 30, 41)", "rgb(231, 236, 243)"],
    },
];

fn browse(browser: &Path, place: &Place, page: &Path, theme: &Theme, option: &str) -> Ran {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", place.path("browser")))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            theme.setting
        ))
        .args([option, &format!("file://{}", page.display())]);
    run(&mut command, Duration::from_secs(300)).success()
}

/// What the robot left in an attribute of the page.
#[track_caller]
fn told<'a>(dumped: &'a Ran, name: &str) -> &'a str {
    let after = dumped.stdout.split(&format!("data-{name}=\"")).nth(1);
    let after = after.expect("the script ran");
    after.split('"').next().expect("its end")
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
        for theme in &THEMES {
            let dumped = browse(&browser, &place, &page, theme, "--dump-dom");
            let said = told(&dumped, "said");
            let parts: Vec<&str> = said.split('|').collect();
            assert_eq!(parts.len(), 5 * plots, "{said}");
            for plot in parts.chunks(5) {
                assert!(!plot[0].is_empty(), "nothing was said: {said}");
                assert_eq!(&plot[1..4], ["drawn", "gone", "reached"], "{said}");
            }
            // The layers, and two commits of them.
            let with_bars = parts.chunks(5).filter(|plot| plot[4] != "0").count();
            assert_eq!(with_bars, if profile == "commit" { 3 } else { 0 }, "{said}");
            let [page, card, ink] = theme.colours;
            let expected = [theme.name, page, card, ink, "readable"];
            assert_eq!(told(&dumped, "theme"), expected.join("|"), "{profile}");
            assert!(!dumped.stderr.contains(":CONSOLE"), "{}", dumped.stderr);
        }
        let pdf = place.path("page.pdf");
        let print = format!("--print-to-pdf={pdf}");
        browse(&browser, &place, &page, &THEMES[0], &print);
        let pdf = fs::read(pdf).expect("it was printed");
        assert!(
            pdf.starts_with(b"%PDF") && pdf.len() > 10_000,
            "{} bytes",
            pdf.len()
        );
    }
}
