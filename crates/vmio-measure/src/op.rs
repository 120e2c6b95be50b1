//! The operations of a run: load, store, or a mix.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

/// The kind of the operations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Op {
    /// Loads, each verified.
    Read,
    /// Stores.
    Write,
    /// This many loads in a hundred; the others are stores.
    Mixed(u8),
}

impl Op {
    /// Whether some operations change the file.
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// Draws whether the next operation is a store.
    pub fn next_is_store(self, random: &mut SmallRng) -> bool {
        match self {
            Self::Read => false,
            Self::Write => true,
            Self::Mixed(reads_percent) => random.random_range(0..100) >= reads_percent,
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            _ => text
                .strip_prefix("mixed:")
                .and_then(|percent| percent.parse().ok())
                .filter(|percent| *percent <= 100)
                .map(Self::Mixed)
                .ok_or_else(|| format!("{text:?} is not an operation: write read, write, or mixed:95 for 95 % reads")),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read"),
            Self::Write => f.write_str("write"),
            Self::Mixed(reads_percent) => write!(f, "mixed:{reads_percent}"),
        }
    }
}

impl TryFrom<String> for Op {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Op> for String {
    fn from(op: Op) -> Self {
        op.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_print_as_they_are_read() {
        for text in ["read", "write", "mixed:95", "mixed:0", "mixed:100"] {
            assert_eq!(text.parse::<Op>().map(|op| op.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "mixed", "mixed:101", "mixed:-1", "append"] {
            assert!(text.parse::<Op>().is_err(), "{text}");
        }
    }
}
