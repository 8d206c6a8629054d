//! Progress for people: a bar if stderr is a terminal; otherwise one line per stage when it is done.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressOutput {
    /// Bars on the terminal.
    Bars,
    /// A line for each stage.
    Lines,
    /// Nothing.
    Silent,
}

impl ProgressOutput {
    /// Bars if stderr is a terminal, else lines.
    pub fn for_stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    /// Begins a stage of `total` steps, if their number is known.
    pub fn stage(self, name: &str, total: Option<u64>) -> Stage {
        let bar = match self {
            Self::Bars => {
                let template = match total {
                    Some(_) => {
                        "  {elapsed:>4} [{bar:24}] {percent:>3} %, {eta} left  {prefix}  {msg}"
                    }
                    None => "  {elapsed:>4} {spinner} {human_pos}  {prefix}  {msg}",
                };
                let style = ProgressStyle::with_template(template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars("━╸ ");
                let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
                bar.set_style(style);
                bar.set_prefix(name.to_string());
                bar.enable_steady_tick(Duration::from_millis(200));
                bar
            }
            Self::Lines | Self::Silent => ProgressBar::hidden(),
        };
        Stage {
            bar,
            name: name.into(),
            begun: Instant::now(),
            progress: self,
        }
    }
}

/// A stage that is under way.
pub struct Stage {
    bar: ProgressBar,
    name: String,
    begun: Instant,
    progress: ProgressOutput,
}

impl Stage {
    /// Sets how many steps are done.
    pub fn set(&self, steps: u64) {
        self.bar.set_position(steps);
    }

    /// One more step is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Shows what is being done.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_string());
    }

    /// Sets how many steps there are in all.
    pub fn expect(&self, steps: u64) {
        self.bar.set_length(steps);
    }

    /// Returns a callback that shows each step as it begins; it can be called from anywhere.
    pub fn teller(&self) -> impl Fn(&str) + 'static {
        let bar = self.bar.clone();
        move |what| {
            bar.set_message(what.to_string());
            bar.inc(1);
        }
    }

    /// Prints a line that stays while the stage continues, with the time left if that is known.
    pub fn tell(&self, line: &str) {
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let left = all.saturating_sub(done) as f64 * self.begun.elapsed().as_secs_f64();
        let left = match (done, left / done.max(1) as f64) {
            (0, _) | (_, 0.0) => String::new(),
            (_, seconds) if seconds < 90.0 => format!(", {seconds:.0} s left"),
            (_, seconds) => format!(", {:.0} min left", seconds / 60.0),
        };
        match self.progress {
            ProgressOutput::Bars => self.bar.println(format!("  {line}")),
            // A failure to write to stderr must not stop the work.
            ProgressOutput::Lines => {
                let _ = writeln!(std::io::stderr(), "  {line}{left}");
            }
            ProgressOutput::Silent => {}
        }
    }

    /// Ends the stage with a line that stays and contains `outcome`.
    pub fn done(self, outcome: &str) {
        self.bar.finish_and_clear();
        if self.progress != ProgressOutput::Silent {
            let seconds = self.begun.elapsed().as_secs_f64();
            let colon = if outcome.is_empty() { "" } else { ": " };
            let line = format!("  {seconds:6.1} s  {}{colon}{outcome}\n", self.name);
            // A failure to write to stderr must not stop the work.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}
