//! The knowledge of a check about its segment so far.

use std::collections::BTreeSet;

use crate::check::owners::Owners;
use crate::format::block::Uuid;
use crate::format::superblock::Superblock;

/// A segment under check.
pub(super) struct State {
    pub(super) uuid: Uuid,
    pub(super) epoch: u64,
    pub(super) superblock: Superblock,
    pub(super) owners: Owners,
    /// Units that the commit freed as chunks: entries that point there are superseded.
    pub(super) retired: BTreeSet<u64>,
}
