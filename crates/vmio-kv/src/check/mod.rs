//! Checks a whole volume without changing it: every checksum, and every reference against its target.
//!
//! The check trusts nothing of the code that opens a store: it reads the volume itself, from the header down to each entry's record. It
//! reports each problem, and continues where it can.

mod entry;
mod found;
mod large;
mod log;
mod owners;
mod report;
mod segment;
mod state;
mod tree;
mod volume;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use vmio::Cache;
use vmio::backing::{Access, Backing};

use crate::device::{Device, VolumeFile};
use crate::error::{Damage, Result};
use crate::format::block::{Block, Kind, Sealed, Uuid, unseal};
use crate::format::geometry::BLOCK_BYTES;
use crate::options::Options;
pub use found::{Field, Found, Structure};
pub use report::{Finding, Report};

/// An event of a check or a dump while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The progress of a step.
    Progress {
        /// The name of the step.
        step: &'static str,
        /// How much is done: bytes of the log, or entries of trees.
        done: u64,
        /// How much there is in all; 0 if that is unknown.
        of: u64,
    },
    /// A structure of the kind that a dump lists.
    Found(Found),
}

/// Checks the volume in a file or block device that no process has open for writing, and does not change it.
///
/// The report lists the problems; [`Report::is_clean`] says whether there are none.
///
/// # Errors
///
/// [`Error::NoVolume`](crate::Error::NoVolume) if the file holds no volume, [`Error::NewerVersion`](crate::Error::NewerVersion) or
/// [`Error::UnknownFeatures`](crate::Error::UnknownFeatures) if this program does not know the volume's format, and
/// [`Error::Io`](crate::Error::Io) if the file cannot be opened. Damage is no error: it is in the report.
///
/// # Examples
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("store");
/// use vmio_kv::{Db, Options};
///
/// let db = Db::create(&path, Options::new())?;
/// db.put(b"key", b"value")?;
/// db.close()?;
///
/// let report = vmio_kv::check(&path, &Options::new(), |_| {})?;
/// assert!(report.is_clean(), "{:?}", report.problems);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check(path: impl AsRef<Path>, options: &Options, mut tell: impl FnMut(Event)) -> Result<Report> {
    run_on_file(path.as_ref(), options, None, &mut tell)
}

/// Checks the volume on a backing, and writes nothing to it.
///
/// # Errors
///
/// As for [`check`].
pub fn check_on(backing: impl Backing + 'static, options: &Options, mut tell: impl FnMut(Event)) -> Result<Report> {
    run(&options.cache()?, Arc::new(backing), None, &mut tell)
}

/// Checks a volume like [`check`], and reports each structure of one kind as an [`Event::Found`], whether it is right or wrong.
///
/// # Errors
///
/// As for [`check`].
///
/// # Examples
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("store");
/// use vmio_kv::{Db, Event, Options, Structure};
///
/// Db::create(&path, Options::new())?.close()?;
/// let mut keyspaces = 0;
/// vmio_kv::dump(&path, &Options::new(), Structure::Keyspaces, |event| {
///     keyspaces += usize::from(matches!(event, Event::Found(_)));
/// })?;
/// assert_eq!(keyspaces, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn dump(
    path: impl AsRef<Path>,
    options: &Options,
    structure: Structure,
    mut tell: impl FnMut(Event),
) -> Result<Report> {
    run_on_file(path.as_ref(), options, Some(structure), &mut tell)
}

fn run_on_file(
    path: &Path,
    options: &Options,
    wanted: Option<Structure>,
    tell: &mut dyn FnMut(Event),
) -> Result<Report> {
    let cache = options.cache()?;
    let file = VolumeFile::open(&cache, path, Access::ReadOnly)?;
    run(&cache, file.backing, wanted, tell)
}

fn run(
    cache: &Cache,
    backing: Arc<dyn Backing>,
    wanted: Option<Structure>,
    tell: &mut dyn FnMut(Event),
) -> Result<Report> {
    let device = Device::open(cache, backing, 0)?;
    let report = Report::new(device.name());
    let mut check = Check { device: &device, report, wanted, keyspace_names: BTreeSet::new(), tell };
    check.volume()?;
    Ok(check.report)
}

/// A running check.
struct Check<'check> {
    device: &'check Device,
    report: Report,
    wanted: Option<Structure>,
    /// Names of the keyspaces of all segments.
    keyspace_names: BTreeSet<String>,
    tell: &'check mut dyn FnMut(Event),
}

impl Check<'_> {
    /// Reports a problem.
    fn wrong(&mut self, structure: &'static str, offset: u64, what: impl ToString) {
        self.report.add_problem(Finding { structure, offset, what: what.to_string() });
    }

    /// Reports something remarkable that a crash may leave.
    fn note(&mut self, structure: &'static str, offset: u64, what: impl ToString) {
        self.report.add_note(Finding { structure, offset, what: what.to_string() });
    }

    /// Reports a structure, if the dump lists its kind.
    fn found(&mut self, structure: Structure, found: impl FnOnce() -> Found) {
        if self.wanted == Some(structure) {
            (self.tell)(Event::Found(found()));
        }
    }

    fn progress(&mut self, step: &'static str, done: u64, of: u64) {
        (self.tell)(Event::Progress { step, done, of });
    }

    /// Bytes of the volume, or the reason why they cannot be read.
    fn bytes(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, String> {
        self.device.copy(offset, bytes).map_err(|error| error.with_causes())
    }

    /// A copy of a block, whatever its contents.
    fn block(&self, offset: u64) -> Result<Box<Block>, String> {
        if !offset.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(Damage::Value { what: "its place", found: offset }.to_string());
        }
        let mut block = Box::new(Block::ZERO);
        block.0.copy_from_slice(&self.bytes(offset, BLOCK_BYTES)?);
        Ok(block)
    }
}

/// A block that is whole and belongs to `owner`.
fn whole<'block>(block: &'block Block, kind: Kind, offset: u64, owner: Uuid) -> Result<Sealed<'block>, Damage> {
    let sealed = unseal(&block.0, kind, offset)?;
    if sealed.uuid == owner { Ok(sealed) } else { Err(Damage::Foreign) }
}

#[cfg(test)]
mod tests;
