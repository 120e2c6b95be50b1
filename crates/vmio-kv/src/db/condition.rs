//! A condition of a write, which holds until the write is done.

use std::sync::Arc;

use crate::error::Result;
use crate::keyspace::Keyspace;

/// A condition of a write. The writer checks it once nobody else can write to the keyspaces that it is about.
pub(super) struct Condition<'keyspaces> {
    pub(super) keyspaces: &'keyspaces [&'keyspaces Arc<Keyspace>],
    pub(super) holds: &'keyspaces dyn Fn() -> Result<bool>,
}

impl Condition<'_> {
    /// It always holds.
    pub(super) const NONE: Condition<'static> = Condition { keyspaces: &[], holds: &|| Ok(true) };
}
