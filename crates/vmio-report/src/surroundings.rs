//! The surroundings of results: machine, time and command.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use vmio::probe;

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

impl Surroundings {
    /// Examines this machine, this command and the clock.
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

    /// The facts by name, without the command.
    pub fn facts(&self) -> [(&'static str, &str); 4] {
        [("Processor", &self.processor), ("Memory", &self.memory), ("Kernel", &self.kernel), ("Date", &self.date)]
    }
}

/// The day in UTC, as 2026-12-31.
pub fn today() -> String {
    Timestamp::now().strftime("%F").to_string()
}

/// The command in a form that can be typed again.
fn command_line() -> String {
    let mut arguments = env::args_os();
    let program = arguments.next().map(PathBuf::from);
    let program =
        program.as_deref().and_then(Path::file_name).map_or("vmio".into(), OsStr::to_string_lossy).into_owned();
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let quote = |word: &str| shlex::try_quote(word).map_or_else(|_| word.to_owned(), |word| word.into_owned());
    let words = [program].into_iter().chain(arguments);
    words.map(|word| quote(&word)).collect::<Vec<_>>().join(" ")
}

/// The text without the control characters that a file's name may have and XML may not.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
