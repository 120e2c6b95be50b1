//! The structures of a volume that a dump reports.

use std::borrow::Cow;

/// A kind of structure that a dump lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Structure {
    /// The volume's header, its segments, and their superblocks.
    Superblock,
    /// Allocation units that are taken, and their purposes.
    Units,
    /// Keyspaces, with the roots of their levels.
    Keyspaces,
    /// Nodes of all trees.
    Tree,
    /// Chunks of the log and their records.
    Log,
}

/// A structure of the volume that a dump has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The kind of structure.
    pub what: &'static str,
    /// Its place, in bytes from the beginning of the volume.
    pub offset: u64,
    /// Its contents, by name.
    pub fields: Vec<(&'static str, Field)>,
}

/// The value of a field.
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
