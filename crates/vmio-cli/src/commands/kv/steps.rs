//! Shows the progress of a check on the terminal.

use indicatif::{ProgressBar, ProgressStyle};
use vmio_kv::Event;
use vmio_report::progress::with_rate;

/// A progress line; nothing is shown when standard error is not a terminal.
pub struct Steps(ProgressBar);

impl Steps {
    pub fn start() -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {human_pos} of {human_len}, {per_s}") {
            bar.set_style(with_rate(style));
        }
        Steps(bar)
    }

    /// Shows an event's progress.
    pub fn show(&self, event: &Event) {
        if let Event::Progress { step, done, of } = event {
            if self.0.message() != *step {
                self.0.set_message(*step);
                self.0.reset();
            }
            self.0.set_length((*of).max(*done));
            self.0.set_position(*done);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
