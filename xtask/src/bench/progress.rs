//! What a person sees while processes run: a line for each, and on a terminal what runs now and for how long. All on standard
//! error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The progress through a known number of processes.
pub(crate) struct Progress {
    /// Shows nothing where there is no terminal.
    bar: ProgressBar,
}

impl Progress {
    /// Starts to show.
    pub(crate) fn start(processes: usize) -> Self {
        let style = ProgressStyle::with_template("[{pos}/{len}] {elapsed} {wide_msg}");
        let bar = ProgressBar::new(processes as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar }
    }

    /// A process starts.
    pub(crate) fn begin(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        if self.bar.is_hidden() {
            eprintln!("[{}/{}] {what}", self.bar.position() + 1, self.bar.length().unwrap_or_default());
        }
    }

    /// Something about the process that runs.
    pub(crate) fn note(&self, note: &str) {
        if self.bar.is_hidden() {
            eprintln!("    {note}");
        } else {
            self.bar.set_message(format!("{}: {note}", self.what()));
        }
    }

    /// Notes the last line of its output in the words of `describe`, whenever there is a new one.
    pub(crate) fn follow(&self, describe: impl Fn(&str) -> String) -> impl FnMut(&str) {
        let mut noted = 0;
        move |output| {
            let lines: Vec<&str> = output.lines().collect();
            if lines.len() > noted {
                noted = lines.len();
                self.note(&describe(lines[noted - 1]));
            }
        }
    }

    /// It has ended.
    pub(crate) fn end(&self, result: &str) {
        if self.bar.is_hidden() {
            eprintln!("    {result}");
        } else {
            let what = self.what(); // not within `suspend`, which holds the bar's lock
            self.bar.suspend(|| eprintln!("{what}: {result}"));
        }
        self.bar.inc(1);
    }

    /// What runs, without the latest note.
    fn what(&self) -> String {
        let message = self.bar.message();
        message.split_once(": ").map_or(&message[..], |(what, _)| what).to_owned()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
