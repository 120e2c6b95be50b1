//! The way of a directory up to the root. Locks go down the tree, so no call enters a cycle of directories, which only damage makes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Fs;
use super::node::Node;
use crate::error::{Damage, Error, Result};
use crate::format::inode::Kind;

impl Fs {
    /// The node of a directory whose names a call uses. Two calls that begin at different directories of a cycle would wait for each other, so
    /// these are refused. The caller holds no lock.
    pub(super) fn directory(&self, ino: u64) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        if self.is_in_cycle(&node) {
            // It may have looked so because others rename directories.
            let _alone = self.renames.lock();
            self.expect_no_cycle(&node)?;
        }
        Ok(node)
    }

    /// The same for a caller that holds the lock of renames.
    pub(super) fn directory_to_rename_in(&self, ino: u64) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        self.expect_no_cycle(&node)?;
        Ok(node)
    }

    fn expect_no_cycle(&self, node: &Arc<Node>) -> Result<()> {
        if !self.is_in_cycle(node) {
            return Ok(());
        }
        let (at, damage) = (self.geometry().inode_at(node.ino), Damage::Cycle { ino: node.ino });
        Err(Error::Damaged { structure: "a directory", at, damage })
    }

    /// Whether the way up from a directory comes back to one that it has passed. A directory that is known to be under the root stays there.
    fn is_in_cycle(&self, node: &Arc<Node>) -> bool {
        let (mut way, mut seen) = (vec![Arc::clone(node)], BTreeSet::from([node.ino]));
        while let Some(last) = way.last().filter(|last| !last.is_under_root()) {
            // A directory without a name may have been in one that is no more. It has no entries.
            let above = match self.node(last.parent()) {
                Ok(above) if above.kind == Kind::Directory && last.kind == Kind::Directory => above,
                _ => return false,
            };
            if !seen.insert(above.ino) {
                return true;
            }
            way.push(above);
        }
        way.iter().for_each(|node| node.set_under_root());
        false
    }
}
