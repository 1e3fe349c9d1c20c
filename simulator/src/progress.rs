//! How far a simulation is, on stderr, once it takes longer than a blink.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omnilearn_hub_core::Now;
use omnilearn_hub_core::config::StopConfig;

/// Runs that are shorter say nothing.
const QUIET: Duration = Duration::from_secs(2);
/// How often a terminal is redrawn.
const REDRAW_EVERY: Duration = Duration::from_millis(200);
/// How often a log gets a line.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Steps of the bar.
const BAR: u64 = 1000;

/// A bar on a terminal, lines in a log.
pub(crate) struct Progress {
    stop: StopConfig,
    due: Instant,
    bar: Option<ProgressBar>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(stop: StopConfig) -> Progress {
        Progress { stop, due: Instant::now() + QUIET, bar: None, is_terminal: std::io::stderr().is_terminal() }
    }

    /// The part that is done, by whichever end is nearest.
    fn part(&self, now: Now, epoch: f64, version: u64) -> f64 {
        let parts = [
            self.stop.epochs.map(|epochs| epoch / f64::from(epochs)),
            self.stop.steps.map(|steps| version as f64 / steps as f64),
            self.stop.wall_time.map(|end| now.as_secs_f64() / end.as_secs_f64()),
        ];
        parts.into_iter().flatten().fold(0.0, f64::max).min(1.0)
    }

    pub(crate) fn update(&mut self, now: Now, epoch: f64, version: u64) {
        let real = Instant::now();
        if real < self.due {
            return;
        }
        self.due = real + if self.is_terminal { REDRAW_EVERY } else { LINE_EVERY };
        let part = self.part(now, epoch, version);
        let text = format!("epoch {epoch:.2}, step {version}, {:.1} s of virtual time", now.as_secs_f64());
        if !self.is_terminal {
            eprintln!("{:3.0} %, {text}", part * 100.0);
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}").expect("the template is right");
            ProgressBar::with_draw_target(Some(BAR), ProgressDrawTarget::stderr()).with_style(style)
        });
        bar.set_position((part * BAR as f64) as u64);
        bar.set_message(text);
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
