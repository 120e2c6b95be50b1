//! Why an operation failed.

use std::error::Error as _;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, Error, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// match db.put(b"", b"value") {
///     Err(Error::KeyLength { bytes: 0, most }) => assert_eq!(most, vmio_kv::KEY_BYTES_MAX),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache or the device failed.
    #[error(transparent)]
    Io(vmio::Error),
    /// A forked child used a store that its parent had opened, or one of its handles.
    #[error("this store belongs to the parent process: once the parent has closed it, open it in the child")]
    Forked,
    /// This process still has handles of the store, perhaps of an instance that is closed already.
    #[error("{volume} is still open in this process by {handles}: drop that first")]
    StillOpen {
        /// The volume.
        volume: String,
        /// The kinds of handles, in words.
        handles: String,
    },
    /// The default keyspace cannot be dropped.
    #[error("keyspace {name:?} cannot be dropped: every store has it; `clear` deletes all of its keys")]
    KeyspaceStays {
        /// Its name.
        name: String,
    },
    /// The store was closed: its writes are durable, and its handles can only read.
    #[error("{volume} was closed: open it again to write")]
    Closed {
        /// The volume.
        volume: String,
    },
    /// A read, write or flush failed on the device.
    #[error("{volume}: {action} at byte {offset} failed")]
    Device {
        /// The volume.
        volume: String,
        /// The operation that failed.
        action: &'static str,
        /// The byte where it failed.
        offset: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The device holds other bytes than those that were written.
    #[error("{volume}: {structure} at byte {offset} is damaged: {damage}")]
    Damaged {
        /// The volume.
        volume: String,
        /// The damaged structure.
        structure: &'static str,
        /// The byte where it begins.
        offset: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// The file holds no store.
    #[error("{volume} holds no store of vmio-kv: create one, or name another file")]
    NoVolume {
        /// The file.
        volume: String,
    },
    /// The file or device holds something that is no store, and creation would destroy it. [`crate::Options::overwrite`] allows that.
    #[error(
        "{volume} holds something else, which creation would destroy: name another file or device, or allow it to be overwritten"
    )]
    OtherContent {
        /// The file or device.
        volume: String,
    },
    /// The file or device holds a store already. [`crate::Options::overwrite`] allows it to be destroyed.
    #[error("{volume} holds a store already: open it, or remove it first")]
    VolumeExists {
        /// The file.
        volume: String,
    },
    /// There is a file of that name. A restore and a checkpoint make a new one.
    #[error("{path} exists: name a file that does not exist, or remove this one first")]
    FileExists {
        /// The path.
        path: String,
    },
    /// A backup is damaged or cut off, or is no backup. Nothing was restored.
    #[error("the backup: {structure} at byte {offset} is damaged: {damage}")]
    DamagedBackup {
        /// The damaged part.
        structure: &'static str,
        /// The byte of the stream where it begins, or where the stream ends too early.
        offset: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// A backup could not be read. Nothing was restored.
    #[error("cannot read the backup at byte {offset}")]
    ReadBackup {
        /// The byte of the stream where a read failed.
        offset: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A backup could not be written. The part that was written cannot be restored.
    #[error("cannot write the backup at byte {offset}")]
    WriteBackup {
        /// The byte of the stream where the failed write begins.
        offset: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A newer version has written the volume.
    #[error("{volume} has format version {found}, and this program knows versions up to {known}: use a newer program")]
    NewerVersion {
        /// The volume.
        volume: String,
        /// The volume's version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The volume uses features that this program does not know.
    #[error("{volume} uses features that this program does not know (bits {features:#x}): use a newer program")]
    UnknownFeatures {
        /// The volume.
        volume: String,
        /// The bits of the unknown features.
        features: u64,
    },
    /// The file is shorter than the volume in it.
    #[error("{volume} is {found} bytes long, but its volume has {wanted}: the file was cut off")]
    Truncated {
        /// The volume.
        volume: String,
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        wanted: u64,
    },
    /// No volume can have that length.
    #[error("a volume cannot have {bytes} bytes: it has {} MiB to {} MiB", least >> 20, most >> 20)]
    VolumeLength {
        /// The requested length.
        bytes: u64,
        /// The least length.
        least: u64,
        /// The greatest length.
        most: u64,
    },
    /// The volume, or the file system that its file is on, has no space left.
    #[error("{}", full(volume, *wanted, *place))]
    Full {
        /// The volume.
        volume: String,
        /// How many bytes were wanted.
        wanted: u64,
        /// The place that is full.
        place: FullPlace,
    },
    /// The key is empty or too long.
    #[error("a key cannot have {bytes} bytes: keys have 1 to {most}")]
    KeyLength {
        /// The key's length.
        bytes: usize,
        /// The longest key.
        most: usize,
    },
    /// The value is too long.
    #[error("a value cannot have {bytes} bytes: values have up to {most}")]
    ValueLength {
        /// The value's length.
        bytes: u64,
        /// The longest value.
        most: u64,
    },
    /// The source of a large value failed or ended too early. Nothing was put.
    #[error("the source of a value of {wanted} bytes ended or failed after {read} bytes")]
    Source {
        /// The value's length.
        wanted: u64,
        /// How many bytes had been read, in whole steps of up to 1 MiB.
        read: u64,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The name of a keyspace is empty or too long.
    #[error("a keyspace cannot have the name {name:?}: names have 1 to {most} bytes")]
    KeyspaceName {
        /// The name.
        name: String,
        /// The longest name, in bytes.
        most: usize,
    },
    /// The store has no keyspace of that name.
    #[error("{volume} has no keyspace {name:?}")]
    NoKeyspace {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// The store has no segment of that number.
    #[error("{volume} has no segment {number}")]
    NoSegment {
        /// The volume.
        volume: String,
        /// Its number.
        number: u32,
    },
    /// The keyspace is in another segment than the one that was named.
    #[error("keyspace {name:?} is in segment {found}, not in {wanted}: a keyspace stays in its segment")]
    KeyspaceElsewhere {
        /// The keyspace's name.
        name: String,
        /// The segment that it is in.
        found: u32,
        /// The segment that was named.
        wanted: u32,
    },
    /// A batch or a transaction has writes to keyspaces of different segments or stores, which share no log.
    #[error(
        "keyspaces {first:?} and {second:?} are in different segments or stores: a batch is written to one segment"
    )]
    BatchAcrossSegments {
        /// The keyspace of the first write.
        first: String,
        /// The keyspace in another segment.
        second: String,
    },
    /// A transaction has read what somebody else has changed since it began. It has written nothing: run it again.
    #[error("keyspace {keyspace:?}: key \"{}\" has changed since the transaction began: run it again", in_short(key))]
    Conflict {
        /// The keyspace.
        keyspace: String,
        /// The changed key. The transaction has read it, or scanned a range that it is in.
        key: Vec<u8>,
    },
    /// Writers are faster than the check whether a transaction still holds. It has written nothing: read less in it, or run it when there
    /// are fewer writes.
    #[error("a transaction has read too much for the writes that went on meanwhile: {checks} checks ended too late")]
    TransactionTooLong {
        /// How many checks ended too late.
        checks: u32,
    },
    /// The savepoint belongs to another transaction, or the transaction has gone back to before it.
    #[error("the transaction has no such savepoint: it is another one's, or the transaction went back to before it")]
    NoSavepoint,
    /// An option has a wrong value.
    #[error("{option} = {value}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// Why the value is wrong.
        why: &'static str,
    },
    /// Another process or node has taken the store over. It has all writes that this owner acknowledged as durable before that. This
    /// owner accepts no more writes.
    #[error(
        "{volume} was taken over: its owner has epoch {new_epoch}, and this one {own_epoch}; close it, and do not open it before the new owner has closed it or ended"
    )]
    Fenced {
        /// The volume.
        volume: String,
        /// This owner's epoch.
        own_epoch: u64,
        /// The new owner's epoch.
        new_epoch: u64,
    },
    /// The store was opened read-only.
    #[error("{volume} was opened read-only (`Options::read_only`)")]
    ReadOnly {
        /// The volume.
        volume: String,
    },
    /// An earlier failure has stopped all writes. Durable writes are kept, and reads go on.
    #[error("{volume} takes no more writes since {why}: close it and open it again")]
    Stopped {
        /// The volume.
        volume: String,
        /// The first failure.
        why: String,
    },
}

/// A place that can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FullPlace {
    /// The volume: let it grow, or delete something.
    Volume,
    /// The file system that the volume's file is on, or its owner's quota there. Deletions still work. Puts work again once there is space.
    FileSystem,
}

/// A key for a message: its first bytes if it is long.
fn in_short(key: &[u8]) -> String {
    const SHOWN: usize = 64;
    let end = if key.len() > SHOWN { "…" } else { "" };
    format!("{}{end}", key[..key.len().min(SHOWN)].escape_ascii())
}

fn full(volume: &str, wanted: u64, place: FullPlace) -> String {
    match place {
        FullPlace::Volume => {
            format!("{volume} is full: {wanted} more bytes were wanted; delete something, or grow it")
        }
        FullPlace::FileSystem => format!(
            "{volume}: its file system is full: {wanted} more bytes were wanted; \
                         make space there, or delete something from the store"
        ),
    }
}

impl From<vmio::Error> for Error {
    fn from(error: vmio::Error) -> Self {
        match error {
            vmio::Error::Forked => Error::Forked,
            error => Error::Io(error),
        }
    }
}

impl Error {
    /// Why a reader of a value of `wanted` bytes failed: the store's error, if it has one in it.
    pub(crate) fn of_reader(error: std::io::Error, wanted: u64, read: u64) -> Error {
        match error.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Error::Source { wanted, read, source },
        }
    }

    /// The error and its causes as one text; of [`Error::Stopped`], the first failure alone.
    pub(crate) fn with_causes(&self) -> String {
        if let Error::Stopped { why, .. } = self {
            return why.clone();
        }
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }
}

/// How a structure on the device is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It does not begin with its magic bytes.
    #[error("it does not begin with its magic bytes")]
    Magic,
    /// Its checksum does not match its bytes.
    #[error("its checksum does not match")]
    Checksum,
    /// It is a block of another kind.
    #[error("it is of kind {found}, not {wanted}")]
    Kind {
        /// The kind that it has.
        found: u8,
        /// The kind that it should have.
        wanted: u8,
    },
    /// It belongs to another place.
    #[error("it says that it belongs to byte {says}")]
    Misplaced {
        /// The byte that it belongs to.
        says: u64,
    },
    /// It is older than its reference: a write was lost.
    #[error("it is of epoch {found}, not {wanted}: a write was lost")]
    Epoch {
        /// The epoch that it has.
        found: u64,
        /// The epoch that the reference has.
        wanted: u64,
    },
    /// Its newest copy is damaged, or the device lost that copy's write.
    #[error("the newest copies of some of its blocks are damaged, or their writes were lost")]
    Stale,
    /// It belongs to another volume, segment or keyspace.
    #[error("it belongs to another volume, segment or keyspace")]
    Foreign,
    /// It ends too early.
    #[error("it ends before it should")]
    Length,
    /// Its keyspaces or keys are not in order.
    #[error("it is out of order")]
    Order,
    /// More follows where nothing may.
    #[error("more bytes follow it")]
    Behind,
    /// It claims more parts than it has space for.
    #[error("it claims {found} parts, and has space for {most}")]
    Count {
        /// The parts that it claims.
        found: usize,
        /// The parts that it has space for.
        most: usize,
    },
    /// A field has an impossible value.
    #[error("{what} is {found}")]
    Value {
        /// The field.
        what: &'static str,
        /// The value.
        found: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_store_reports_the_first_failure_once() {
        let source = std::io::Error::other("the disk is gone");
        let first = Error::Device { volume: "disk".to_owned(), action: "writing", offset: 7, source };
        let stopped = |why| Error::Stopped { volume: "disk".to_owned(), why };
        let second = stopped(first.with_causes());
        assert_eq!(second.with_causes(), first.with_causes());
        let third = stopped(second.with_causes());
        assert_eq!(third.to_string().matches("takes no more writes").count(), 1);
    }
}
