//! How far a backup or a restore has come.

/// The figures of a backup or a restore: of all of it at its end, and of a part of it while it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupCounts {
    /// Keyspaces that were begun.
    pub keyspaces: u64,
    /// Keys with their values.
    pub records: u64,
    /// The length of all keys, in bytes.
    pub key_bytes: u64,
    /// The length of all values, in bytes.
    pub value_bytes: u64,
    /// The length of the stream, in bytes. A checkpoint has none.
    pub stream_bytes: u64,
}

impl BackupCounts {
    /// Counts a key and its value.
    pub(crate) fn add_record(&mut self, key_bytes: usize, value_bytes: u64) {
        self.records += 1;
        self.key_bytes += key_bytes as u64;
        self.value_bytes += value_bytes;
    }
}
