//! Looking at a whole volume without changing it: every checksum, and whether all that refers to each other agrees.
//!
//! Nothing here trusts what opening a store does: the volume is read anew, from its header down to each entry's record. What is
//! found wrong is told, and the search goes on where it can.

mod entry;
mod found;
mod large;
mod log;
mod owners;
mod report;
mod segment;
mod tree;
mod volume;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use vmio::backing::{Access, Backing, FileBacking};

use crate::device::Device;
use crate::error::{Damage, Result};
use crate::format::block::{Block, Kind, Sealed, Uuid, unseal};
use crate::format::geometry::BLOCK_BYTES;
use crate::options::Options;
pub use found::{Field, Found, Structure};
pub use report::{Finding, Report};

/// What a check tells while it goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// So much of a step is done.
    Progress {
        /// What is looked at.
        step: &'static str,
        /// How much of it has been: bytes of the log, or entries of trees.
        done: u64,
        /// How much there is.
        of: u64,
    },
    /// Something of the structure that was asked for.
    Found(Found),
}

/// Checks the volume in a file or block device that no process has open for writing. Nothing is changed.
///
/// What is wrong is in the report. It is an error if there is no volume, or one that this program does not know.
pub fn check(path: impl AsRef<Path>, options: &Options, tell: impl FnMut(Event)) -> Result<Report> {
    check_on(FileBacking::open(path, Access::ReadOnly)?, options, tell)
}

/// Checks the volume on a backing, to which nothing is written.
pub fn check_on(backing: impl Backing + 'static, options: &Options, mut tell: impl FnMut(Event)) -> Result<Report> {
    run(Arc::new(backing), options, None, &mut tell)
}

/// Does what [`check`] does, and tells all that it meets of one structure, whether it is right or wrong.
pub fn dump(
    path: impl AsRef<Path>,
    options: &Options,
    structure: Structure,
    mut tell: impl FnMut(Event),
) -> Result<Report> {
    run(Arc::new(FileBacking::open(path, Access::ReadOnly)?), options, Some(structure), &mut tell)
}

fn run(
    backing: Arc<dyn Backing>,
    options: &Options,
    wanted: Option<Structure>,
    tell: &mut dyn FnMut(Event),
) -> Result<Report> {
    let cache = options.cache()?;
    let device = Device::open(&cache, backing, 0)?;
    let report = Report::new(device.name());
    let mut check = Check { device: &device, report, wanted, keyspace_names: BTreeSet::new(), tell };
    check.volume()?;
    Ok(check.report)
}

/// A check under way.
struct Check<'check> {
    device: &'check Device,
    report: Report,
    wanted: Option<Structure>,
    /// Those of all segments.
    keyspace_names: BTreeSet<String>,
    tell: &'check mut dyn FnMut(Event),
}

impl Check<'_> {
    /// Something is wrong.
    fn wrong(&mut self, structure: &'static str, offset: u64, what: impl ToString) {
        self.report.add_problem(Finding { structure, offset, what: what.to_string() });
    }

    /// Something is remarkable, but as a crash may leave it.
    fn note(&mut self, structure: &'static str, offset: u64, what: impl ToString) {
        self.report.add_note(Finding { structure, offset, what: what.to_string() });
    }

    /// Tells something that was found, if it is asked for.
    fn found(&mut self, structure: Structure, found: impl FnOnce() -> Found) {
        if self.wanted == Some(structure) {
            (self.tell)(Event::Found(found()));
        }
    }

    fn progress(&mut self, step: &'static str, done: u64, of: u64) {
        (self.tell)(Event::Progress { step, done, of });
    }

    /// Bytes of the volume; why not, if they cannot be read.
    fn bytes(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, String> {
        self.device.copy(offset, bytes).map_err(|error| error.with_causes())
    }

    /// A copy of a block, whatever is in it.
    fn block(&self, offset: u64) -> Result<Box<Block>, String> {
        if !offset.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(Damage::Value { what: "its place", found: offset }.to_string());
        }
        let mut block = Box::new(Block::ZERO);
        block.0.copy_from_slice(&self.bytes(offset, BLOCK_BYTES)?);
        Ok(block)
    }
}

/// A block that is whole, and belongs to whom it should.
fn whole<'block>(block: &'block Block, kind: Kind, offset: u64, owner: Uuid) -> Result<Sealed<'block>, Damage> {
    let sealed = unseal(&block.0, kind, offset)?;
    if sealed.uuid == owner { Ok(sealed) } else { Err(Damage::Foreign) }
}

#[cfg(test)]
mod tests;
