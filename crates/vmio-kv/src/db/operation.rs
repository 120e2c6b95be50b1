//! A write of a batch.

use std::sync::Arc;

use crate::extents::Stored;
use crate::format::record::RecordKind;
use crate::keyspace::Keyspace;
use crate::log::{Append, LOG_VALUE_BYTES_MAX};

/// A write to a keyspace, until it is appended to the log.
pub(crate) struct Operation {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) kind: RecordKind,
    pub(crate) key: Box<[u8]>,
    pub(crate) value: Box<[u8]>,
}

impl Operation {
    /// Whether its value is too long for the log.
    pub(crate) fn is_large(&self) -> bool {
        self.value.len() > LOG_VALUE_BYTES_MAX
    }

    pub(crate) fn append(&self) -> Append<'_> {
        Append { kind: self.kind, keyspace: self.keyspace.number, key: &self.key, value: &self.value }
    }

    /// The record to append. A large value is `stored` in extents by then.
    pub(crate) fn append_as<'bytes>(&'bytes self, stored: Option<&'bytes Stored>) -> Append<'bytes> {
        match stored {
            Some(stored) => Append { kind: RecordKind::Extents, value: stored.record_value(), ..self.append() },
            None => self.append(),
        }
    }
}
