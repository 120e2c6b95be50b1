//! Where, when and how the runs were made.

use std::env;

use jiff::Timestamp;
use vmio::probe;

use crate::bench::target::Target;
use crate::machine;
use crate::size::format_size;

/// The machine, the command and the time.
pub struct Surroundings {
    /// The processor and the number of its cores.
    pub processor: String,
    /// The size of all memory.
    pub memory: String,
    /// The kernel's release.
    pub kernel: String,
    /// The end of the runs.
    pub date: String,
    /// The command line.
    pub command: String,
}

/// What a reader must know to judge the figures.
pub struct Setting {
    /// Where and when they were made.
    pub surroundings: Surroundings,
    /// What the runs were made on.
    pub target: String,
    /// How much of it.
    pub size_bytes: u64,
    /// The memory budget.
    pub cache_bytes: u64,
    /// How long each run was measured.
    pub measure_s: f64,
}

impl Surroundings {
    /// Looks at this machine, this command and the clock.
    pub fn now() -> Self {
        let features = probe::probe();
        let unknown = || "unknown".to_owned();
        let cores = features.cores;
        Self {
            processor: format!(
                "{}, {cores} core{}",
                machine::processor().unwrap_or_else(unknown),
                if cores == 1 { "" } else { "s" }
            ),
            memory: machine::memory_bytes().map_or_else(unknown, format_size),
            kernel: format!("Linux {}", features.kernel_release),
            date: Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            command: printable(&command_line()),
        }
    }

    /// Names of facts and what they are, without the command.
    pub fn facts(&self) -> [(&'static str, &str); 4] {
        [("Processor", &self.processor), ("Memory", &self.memory), ("Kernel", &self.kernel), ("Date", &self.date)]
    }
}

impl Setting {
    /// Looks at all of it.
    pub fn now(target: &Target, cache_bytes: u64, measure_s: f64) -> Self {
        Self {
            surroundings: Surroundings::now(),
            target: printable(target.description()),
            size_bytes: target.size_bytes(),
            cache_bytes,
            measure_s,
        }
    }

    /// The sizes, in a few words.
    pub fn sizes(&self) -> String {
        format!("{} of data, a cache of {}", format_size(self.size_bytes), format_size(self.cache_bytes))
    }
}

/// The command as one would type it again.
fn command_line() -> String {
    let arguments = env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let quote = |word: &str| shlex::try_quote(word).map_or_else(|_| word.to_owned(), |word| word.into_owned());
    let words = ["vmio".to_owned()].into_iter().chain(arguments);
    words.map(|word| quote(&word)).collect::<Vec<_>>().join(" ")
}

/// Without the control characters that a file's name may have and XML may not.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
