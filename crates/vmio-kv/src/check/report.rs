//! What a check has found.

use std::fmt;

/// Findings that are kept; of the others only their number is.
const FINDINGS_MAX: usize = 1000;

/// Something that is wrong, or remarkable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub structure: &'static str,
    /// Where that is, in bytes from the beginning of the volume.
    pub offset: u64,
    /// What is the matter with it.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at byte {}: {}", self.structure, self.offset, self.what)
    }
}

/// What a check has looked at, and what was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The volume.
    pub volume: String,
    /// What is wrong: the first thousand things.
    pub problems: Vec<Finding>,
    /// How many things are wrong.
    pub problem_count: u64,
    /// What a crash may leave, and is not wrong: the first thousand things.
    pub notes: Vec<Finding>,
    /// Blocks that are taken and that nothing refers to: space that is lost until the volume is made anew.
    pub leaked_blocks: u64,
    /// Units among them that the log had taken ahead when a crash came.
    pub leaked_chunks: u64,
    /// Segments.
    pub segments: u64,
    /// Units of segments.
    pub units: u64,
    /// Units of which at least a block is taken.
    pub units_taken: u64,
    /// Keyspaces.
    pub keyspaces: u64,
    /// Trees of their levels.
    pub trees: u64,
    /// Nodes of those.
    pub nodes: u64,
    /// Entries in leaves.
    pub entries: u64,
    /// Entries among them whose record is in a previous generation of its chunk: a newer record of the key is elsewhere.
    pub superseded_entries: u64,
    /// Values in extents, those over 256 KiB, the newest of their keys or not.
    pub large_values: u64,
    /// Bytes of those.
    pub large_bytes: u64,
    /// Chunks of the log.
    pub chunks: u64,
    /// Records in them, marks included.
    pub records: u64,
    /// Bytes of those.
    pub record_bytes: u64,
}

impl Report {
    pub(super) fn new(volume: &str) -> Self {
        Report { volume: volume.to_owned(), ..Report::default() }
    }

    /// Whether nothing is wrong.
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
