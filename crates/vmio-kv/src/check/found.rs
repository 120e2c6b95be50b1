//! What lies where, for people who look into a volume.

use std::borrow::Cow;

/// What to tell all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Structure {
    /// The volume's header, its segments, and their superblocks.
    Superblock,
    /// Units that are taken, and what for.
    Units,
    /// Keyspaces, with the roots of their levels.
    Keyspaces,
    /// Nodes of all trees.
    Tree,
    /// Chunks of the log and their records.
    Log,
}

/// Something that lies in the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub what: &'static str,
    /// Where it begins, in bytes from the beginning of the volume.
    pub offset: u64,
    /// What it says.
    pub fields: Vec<(&'static str, Field)>,
}

/// A value of something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// A number.
    Number(u64),
    /// Text.
    Text(Cow<'static, str>),
    /// Bytes of a key.
    Bytes(Vec<u8>),
}

impl From<u64> for Field {
    fn from(number: u64) -> Self {
        Field::Number(number)
    }
}

impl From<&'static str> for Field {
    fn from(text: &'static str) -> Self {
        Field::Text(text.into())
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Field::Text(text.into())
    }
}

impl From<&[u8]> for Field {
    fn from(bytes: &[u8]) -> Self {
        Field::Bytes(bytes.to_vec())
    }
}
