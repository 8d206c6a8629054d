//! Every kind of page in a real browser, in its light and its dark theme: its plots are drawn, its script runs without
//! errors, marks can be read with the keyboard and the pointer, it prints, and it loads nothing.

use std::{path::Path, process::Command, time::Duration};

use harness::{directory::Directory, process::find_program, run::run, sanstone::binary};
use serde_json::json;

use crate::{
    Place,
    devtools::{Browser, decoded},
    history, oltp,
};

/// What the page looks like: of each plot whether its marks are drawn and its bars lie within it, then the theme, the
/// colours of the page, of a card and of the text, and whether all that is written on a card can be read.
const LOOK: &str = r#"(() => {
const plots = [...document.querySelectorAll(".plot")].map((plot) => {
  const svg = plot.querySelector("svg");
  const frame = svg.getBoundingClientRect();
  const boxes = (what) => [...svg.querySelectorAll(what)].map((mark) => mark.getBoundingClientRect());
  const drawn = (mark) => mark.width > 0 && mark.height > 0;
  const within = (bar) => drawn(bar) && bar.left >= frame.left - 1 && bar.right <= frame.right + 1 && bar.bottom <= frame.bottom;
  const marks = boxes("[data-tip]");
  return { marks: marks.length, drawn: marks.every(drawn), bars: boxes(".bar").length, within: boxes(".bar").every(within) };
});
const style = (of) => getComputedStyle(of);
const luminance = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
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
return {
  plots,
  theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
  colours: [style(document.body).backgroundColor, card, style(document.body).color],
  readable: inks.every((ink) => contrast(ink, card) >= 4.5),
  overflows: document.documentElement.scrollWidth > innerWidth,
};
})()"#;

/// The number of the plot that has the focus, or -1, and the tip that it shows.
const FOCUSED: &str = r#"(() => {
const plot = document.activeElement.closest(".plot");
const tip = plot && plot.querySelector(".tip");
return {
  plot: [...document.querySelectorAll(".plot")].indexOf(plot),
  tip: tip && !tip.hidden ? tip.textContent : "",
  first: plot ? plot.querySelector("[data-tip]").dataset.tip : "",
};
})()"#;

/// The middle of the first plot's first mark, after scrolling to it.
const FIRST_MARK: &str = r#"(() => {
const mark = document.querySelector(".plot [data-tip]");
mark.scrollIntoView({ block: "center" });
const at = mark.getBoundingClientRect();
return { x: at.left + at.width / 2, y: at.top + at.height / 2 };
})()"#;

/// The tip that is shown.
const TIP: &str = r#"[...document.querySelectorAll(".tip")].filter((tip) => !tip.hidden).map((tip) => tip.textContent).join()"#;

/// A theme: its name, and the colours of the page, of a card and of the text.
const THEMES: [(&str, [&str; 3]); 2] = [
    (
        "light",
        [
            "rgb(246, 247, 249)",
            "rgb(255, 255, 255)",
            "rgb(22, 32, 46)",
        ],
    ),
    (
        "dark",
        ["rgb(14, 19, 27)", "rgb(23, 30, 41)", "rgb(231, 236, 243)"],
    ),
];

/// What a page is expected to have.
struct Expected {
    plots: usize,
    with_bars: usize,
}

fn has_browser() -> bool {
    let has = find_program("chromium").is_some();
    if !has {
        harness::skip("chromium is not installed");
    }
    has
}

/// Opens a page in both themes, uses it and prints it.
#[track_caller]
fn assert_browsed(page: &Path, expected: &Expected) {
    let directory = Directory::new();
    let program = harness::process::program("chromium", "chromium");
    let mut browser = Browser::start(&program, directory.path());
    for (theme, colours) in THEMES {
        browser.call(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] }),
        );
        browser.open(page);
        let look = browser.evaluate(LOOK);
        assert_eq!(look["theme"], theme);
        assert_eq!(look["colours"], json!(colours));
        assert_eq!(look["readable"], true, "hard to read: {look}");
        assert_eq!(look["overflows"], false, "wider than the window: {look}");
        let plots = look["plots"].as_array().expect("plots");
        assert_eq!(plots.len(), expected.plots, "{look}");
        for plot in plots {
            assert!(plot["marks"].as_u64() > Some(0), "{look}");
            assert!(plot["drawn"] == true && plot["within"] == true, "{look}");
        }
        let with_bars = plots.iter().filter(|plot| plot["bars"] != 0).count();
        assert_eq!(with_bars, expected.with_bars, "{look}");
        assert_keys_reach_all(&mut browser, expected.plots);
        assert_pointed_at(&mut browser);
    }
    assert_prints(&mut browser);
    let url = format!("file://{}", page.display());
    assert_eq!(browser.loaded(), vec![url; THEMES.len()]);
    assert!(
        browser.complaints().is_empty(),
        "{:?}",
        browser.complaints()
    );
}

/// Goes from plot to plot by Tab, and reads the first mark of each.
#[track_caller]
fn assert_keys_reach_all(browser: &mut Browser, plots: usize) {
    let mut reached = Vec::new();
    // Wide tables have the focus on the way as well, to be scrolled.
    for _ in 0..100 {
        if reached.len() == plots {
            break;
        }
        browser.press("Tab");
        let focused = browser.evaluate(FOCUSED);
        if focused["plot"] == -1 {
            continue;
        }
        browser.press("ArrowRight");
        let told = browser.evaluate(FOCUSED);
        assert!(told["tip"] != "" && told["tip"] == told["first"], "{told}");
        browser.press("Escape");
        assert_eq!(browser.evaluate(FOCUSED)["tip"], "", "it stays");
        reached.push(focused["plot"].as_u64().expect("a plot") as usize);
    }
    let all: Vec<usize> = (0..plots).collect();
    assert_eq!(reached, all, "the keyboard did not reach all plots");
}

/// Points at a mark, which says its figures.
#[track_caller]
fn assert_pointed_at(browser: &mut Browser) {
    let at = browser.evaluate(FIRST_MARK);
    let moved = json!({ "type": "mouseMoved", "x": at["x"], "y": at["y"] });
    browser.call("Input.dispatchMouseEvent", &moved);
    assert_ne!(browser.evaluate(TIP), "", "nothing was said at {at}");
}

/// Prints the page: there are sheets, and each has text in a font.
#[track_caller]
fn assert_prints(browser: &mut Browser) {
    let printed = browser.call("Page.printToPDF", &json!({ "printBackground": false }));
    let pdf = decoded(printed["data"].as_str().expect("a file"));
    assert!(pdf.starts_with(b"%PDF"), "{} bytes", pdf.len());
    let pdf = String::from_utf8_lossy(&pdf);
    let sheets: Vec<&str> = pdf.split("/Type /Page\n").skip(1).collect();
    assert!(!sheets.is_empty(), "no sheet");
    for sheet in sheets {
        let own = sheet.split("endobj").next().expect("its beginning");
        assert!(own.contains("/Font"), "a sheet without text: {own}");
    }
}

/// Runs `lab` with these arguments, and looks at its page.
#[track_caller]
fn assert_page(place: &Place, arguments: &[&str], expected: &Expected) {
    place.run(arguments).success();
    place.page();
    assert_browsed(&place.directory.join("lab.html"), expected);
}

/// Runs a profile of one's own on a file of 64 MiB.
#[track_caller]
fn assert_own(text: &str, expected: &Expected) {
    let place = Place::new();
    let profile = place.directory.write("own.toml", text);
    let file = place.path("made.img");
    let profile = profile.to_string_lossy();
    let call = ["run", &profile, "--on", &file];
    assert_page(&place, &call, expected);
}

#[test]
fn the_pages_of_queue_iozone_and_commit_are_drawn_read_and_printed() {
    if !has_browser() {
        return;
    }
    let place = Place::new();
    let file = place.path("made.img");
    // Of a commit: the layers, and two commits of them.
    for (profile, plots, with_bars) in [("queue", 4, 0), ("iozone", 8, 0), ("commit", 4, 3)] {
        let call = ["run", profile, "--on", &file, "--quick"];
        assert_page(&place, &call, &Expected { plots, with_bars });
    }
}

#[test]
fn the_page_of_effectiveness_is_drawn_read_and_printed() {
    let text = "kind = \"effectiveness\"\nabout = \"A few I/Os\"\nsize = \"8MiB\"\nblock = \"4KiB\"\norder = \
                \"random\"\nsessions = 2\noutstanding = 2\nrates = [500]\nspacing = \"poisson\"\ntime = \
                \"200ms\"\nrounds = 2\n";
    if has_browser() {
        assert_own(
            text,
            &Expected {
                plots: 1,
                with_bars: 0,
            },
        );
    }
}

#[test]
fn the_page_of_sql_scan_is_drawn_read_and_printed() {
    let text = "kind = \"sql-scan\"\nabout = \"A scan\"\nrows = 10000\npages = [\"4KiB\", \"64KiB\"]\ncaches = \
                [\"0B\"]\nmemory = \"1MiB\"\ntime = \"1h\"\nstatements = [ { name = \"failed-drives\", runs = 1 } ]\n";
    if has_browser() {
        assert_own(
            text,
            &Expected {
                plots: 1,
                with_bars: 0,
            },
        );
    }
}

#[test]
fn the_page_of_oltp_is_drawn_read_and_printed() {
    if !(has_browser() && oltp::can_mount() && oltp::has_mariadb()) {
        return;
    }
    // The rounds, and the layers of each of them.
    assert_own(
        &oltp::short("mariadb"),
        &Expected {
            plots: 2,
            with_bars: 1,
        },
    );
}

#[test]
fn the_page_of_a_comparison_is_drawn_read_and_printed() {
    if !has_browser() {
        return;
    }
    let place = Place::new();
    let text = "kind = \"queue\"\nabout = \"A few reads\"\nsize = \"8MiB\"\nblock = \"4KiB\"\nluns = 1\noutstanding = [4]\ntime = \
                \"60ms\"\n";
    let profile = place.directory.write("own.toml", text);
    let (one, other) = (place.path("a.img"), place.path("b.img"));
    let profile = profile.to_string_lossy();
    let call = ["compare", &one, &other, "--profile", &profile];
    assert_page(
        &place,
        &call,
        &Expected {
            plots: 1,
            with_bars: 0,
        },
    );
}

#[test]
fn the_page_of_a_history_is_drawn_read_and_printed() {
    if !has_browser() {
        return;
    }
    let place = Place::new();
    let runs: Vec<String> = (0..8)
        .map(|run| history::made(&place, run, 100.0))
        .collect();
    let mut call = vec!["history"];
    call.extend(runs.iter().map(String::as_str));
    assert_page(
        &place,
        &call,
        &Expected {
            plots: 2,
            with_bars: 0,
        },
    );
}

#[test]
fn the_page_of_the_demo_is_drawn_read_and_printed() {
    if !has_browser() {
        return;
    }
    let place = Place::new();
    let page = place.path("lab.html");
    let mut demo = Command::new(binary());
    demo.args(["demo", "--rows", "60000", "--no-limit", "--report", &page]);
    demo.args(["--dir", &place.path("")]);
    run(&mut demo, Duration::from_secs(300)).success();
    place.page();
    // The statements, and the throughput on each of the three set-ups.
    let expected = Expected {
        plots: 4,
        with_bars: 1,
    };
    assert_browsed(&place.directory.join("lab.html"), &expected);
}
