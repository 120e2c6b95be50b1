//! The report of a check.

use std::fmt;

/// The most problems and the most notes that a report keeps. It counts further problems, and drops further notes.
const FINDINGS_MAX: usize = 1000;

/// A problem, or something remarkable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The structure that the finding is about.
    pub structure: &'static str,
    /// The structure's place, in bytes from the beginning of the volume.
    pub offset: u64,
    /// The problem or the remarkable fact, in words.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at byte {}: {}", self.structure, self.offset, self.what)
    }
}

/// The counts of a check, and the problems that it has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The volume's name.
    pub volume: String,
    /// Problems: the first thousand.
    pub problems: Vec<Finding>,
    /// Number of problems.
    pub problem_count: u64,
    /// Remarkable things that a crash may leave and that are no problems: the first thousand.
    pub notes: Vec<Finding>,
    /// Taken blocks without a reference. Only a new creation of the volume brings their space back.
    pub leaked_blocks: u64,
    /// Allocation units among them that the log had reserved when a crash came.
    pub leaked_chunks: u64,
    /// Number of segments.
    pub segments: u64,
    /// Allocation units of segments.
    pub units: u64,
    /// Allocation units of which at least one block is taken.
    pub units_taken: u64,
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Number of trees.
    pub trees: u64,
    /// Number of tree nodes.
    pub nodes: u64,
    /// Number of entries in leaves.
    pub entries: u64,
    /// Entries among them whose record belongs to a previous generation of its chunk: a newer record of the key is elsewhere.
    pub superseded_entries: u64,
    /// Values in extents, which are longer than 256 KiB, whether or not they are the newest of their keys.
    pub large_values: u64,
    /// Bytes of the large values.
    pub large_bytes: u64,
    /// Number of log chunks.
    pub chunks: u64,
    /// Number of log records, including marks.
    pub records: u64,
    /// Bytes of the log records.
    pub record_bytes: u64,
}

impl Report {
    pub(super) fn new(volume: &str) -> Self {
        Report { volume: volume.to_owned(), ..Report::default() }
    }

    /// Returns whether the check has found no problem.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    pub(super) fn add_problem(&mut self, problem: Finding) {
        self.problem_count += 1;
        if self.problems.len() < FINDINGS_MAX {
            self.problems.push(problem);
        }
    }

    pub(super) fn add_note(&mut self, note: Finding) {
        if self.notes.len() < FINDINGS_MAX {
            self.notes.push(note);
        }
    }
}
