//! The number by which a log names a file.

use std::fmt;

/// The number of a file in a log. A log uses no number twice, so that an entry is never taken for another file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileNumber(u32);

impl FileNumber {
    pub(crate) fn of_number(number: u32) -> Self {
        FileNumber(number)
    }

    /// The number as the log stores it.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for FileNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}
