//! Progress of long work on the terminal: silent if standard error is not one.

use std::fmt;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};

use crate::size::format_size;

/// Bytes done of bytes to do.
pub struct ByteProgress {
    bar: ProgressBar,
}

impl ByteProgress {
    /// Starts at zero of `total_bytes`; shows nothing for short work.
    pub fn start(what: &str, total_bytes: u64) -> Self {
        const WORTH_SHOWING_BYTES: u64 = 64 << 20;
        let bar = if total_bytes < WORTH_SHOWING_BYTES { ProgressBar::hidden() } else { ProgressBar::new(total_bytes) };
        let style =
            ProgressStyle::with_template("{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Self { bar }
    }

    /// Counts `bytes` more as done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for ByteProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Lets a bar print `{per_s}`: whole numbers a second.
pub fn with_rate(style: ProgressStyle) -> ProgressStyle {
    style.with_key("per_s", |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A line that cannot be drawn is no loss.
        let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
    })
}

/// One line about the present work, with the resident memory of the process that does it.
pub struct Activity {
    bar: ProgressBar,
    what: String,
}

impl Activity {
    /// Shows `what` until dropped.
    pub fn start(what: String) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        bar.set_message(what.clone());
        Self { bar, what }
    }

    /// Adds the resident memory of the worker to the line.
    pub fn show_resident(&self, resident_bytes: u64) {
        self.bar.set_message(format!("{}  (resident {})", self.what, format_size(resident_bytes)));
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
