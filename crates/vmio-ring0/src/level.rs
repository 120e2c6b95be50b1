//! The ring that the program has in its machine.

use std::fmt;

/// The privilege at which entered threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Ring 0: page tables, traps and TLBs belong to the program. Needs hardware virtualisation.
    #[default]
    Ring0,
    /// Ring 3, as outside. A fault on managed memory ends at the host's side of the machine, so this level has no speed to offer: it is for
    /// development where ring 0 of a guest is emulated.
    Ring3,
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Level::Ring0 => "ring 0",
            Level::Ring3 => "ring 3",
        })
    }
}
