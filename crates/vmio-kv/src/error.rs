//! What can go wrong.

use std::error::Error as _;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The memory-mapped I/O below, or the device.
    #[error(transparent)]
    Io(vmio::Error),
    /// A forked child used a store that its parent has opened, or something that is held of one.
    #[error("this store belongs to the parent process: open it anew in the child, once the parent has closed it")]
    Forked,
    /// This process has open handles of the store, though perhaps of one that was closed.
    #[error("{volume} is still open in this process, by {handles}: drop these before it is opened again")]
    StillOpen {
        /// The volume.
        volume: String,
        /// The kinds of handles, in words.
        handles: String,
    },
    /// The keyspace that is there from the start was to be dropped.
    #[error("keyspace {name:?} is there from the start, and stays; `clear` takes all that it has")]
    KeyspaceStays {
        /// Its name.
        name: String,
    },
    /// The store was closed: what was written is durable, and what is held of it can be read, but nothing is written any more.
    #[error("{volume} was closed: open it again")]
    Closed {
        /// The volume.
        volume: String,
    },
    /// A read, write or flush of the device failed.
    #[error("{volume}: {action} at byte {offset} failed")]
    Device {
        /// What is stored there.
        volume: String,
        /// What was tried.
        action: &'static str,
        /// Where.
        offset: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What the device holds is not what was written.
    #[error("{volume}: {structure} at byte {offset} is damaged: {damage}")]
    Damaged {
        /// The volume.
        volume: String,
        /// What should be there.
        structure: &'static str,
        /// Where.
        offset: u64,
        /// What is wrong with it.
        damage: Damage,
    },
    /// There is no volume in the file.
    #[error("{volume} holds no volume of vmio-kv: create one, or name another file")]
    NoVolume {
        /// The file.
        volume: String,
    },
    /// The file or device holds what no volume begins with: creating one would destroy it, which [`crate::Options::overwrite`] allows.
    #[error("{volume} holds something else, which would be lost: name another, or allow it to be overwritten")]
    OtherContent {
        /// The file or device.
        volume: String,
    },
    /// There is a volume already, which [`crate::Options::overwrite`] allows to be lost.
    #[error("{volume} holds a volume already: open it, or remove it first")]
    VolumeExists {
        /// The file.
        volume: String,
    },
    /// The volume was written by a newer version.
    #[error("{volume} has format version {found}, and this program knows {known} at most: use a newer one")]
    NewerVersion {
        /// The volume.
        volume: String,
        /// Its version.
        found: u32,
        /// The newest known.
        known: u32,
    },
    /// The volume uses something that this program does not know.
    #[error("{volume} uses features that this program does not have (bits {features:#x}): use a newer one")]
    UnknownFeatures {
        /// The volume.
        volume: String,
        /// The bits that are not known.
        features: u64,
    },
    /// The file is shorter than the volume in it.
    #[error("{volume} is {found} bytes long, and the volume in it {wanted}: it was cut off")]
    Truncated {
        /// The volume.
        volume: String,
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        wanted: u64,
    },
    /// A volume cannot have that length.
    #[error("a volume of {bytes} bytes: it has at least {} MiB and at most {} MiB", least >> 20, most >> 20)]
    VolumeLength {
        /// What was asked for.
        bytes: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// There is no space left: in the volume, or in the file system that its file is on.
    #[error("{}", full(volume, *wanted, *place))]
    Full {
        /// The volume.
        volume: String,
        /// What was wanted, in bytes.
        wanted: u64,
        /// What is full.
        place: FullPlace,
    },
    /// A key that cannot be.
    #[error("a key of {bytes} bytes: keys have 1 to {most}")]
    KeyLength {
        /// Its length.
        bytes: usize,
        /// The longest.
        most: usize,
    },
    /// A value that cannot be.
    #[error("a value of {bytes} bytes: values have up to {most}")]
    ValueLength {
        /// Its length.
        bytes: u64,
        /// The longest.
        most: u64,
    },
    /// Where a large value was read from failed, or ended too early: nothing was put.
    #[error("a value of {wanted} bytes could not be read from where it comes from, after {read} bytes")]
    Source {
        /// How long it is.
        wanted: u64,
        /// How much of it had been read, in whole steps of up to 1 MiB.
        read: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A name that cannot be.
    #[error("the name {name:?} for a keyspace: names have 1 to {most} bytes")]
    KeyspaceName {
        /// The name.
        name: String,
        /// The longest.
        most: usize,
    },
    /// There is no such keyspace.
    #[error("{volume} has no keyspace {name:?}")]
    NoKeyspace {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// There is no such segment.
    #[error("{volume} has no segment {number}")]
    NoSegment {
        /// The volume.
        volume: String,
        /// Its number.
        number: u32,
    },
    /// A keyspace that was to be in another segment than it is.
    #[error(
        "keyspace {name:?} is in segment {found}, not in {wanted}: keyspaces stay in the segment that they were created in"
    )]
    KeyspaceElsewhere {
        /// The keyspace's name.
        name: String,
        /// The segment that it is in.
        found: u32,
        /// The one that it was to be in.
        wanted: u32,
    },
    /// A batch for keyspaces that share no log: after a crash one of them could have it, and the other one not.
    #[error("keyspaces {first:?} and {second:?} are in different segments or stores: a batch is written to one segment")]
    BatchAcrossSegments {
        /// The keyspace of the batch's first write.
        first: String,
        /// The other one.
        second: String,
    },
    /// An option that cannot be.
    #[error("{option} = {value}: {why}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it has to be.
        why: &'static str,
    },
    /// Somebody has taken the volume over: what was acknowledged is his now, nothing else will be.
    #[error(
        "{volume} was taken over: its owner has epoch {new_epoch}, and this one {own_epoch}; close it, and open it again only when that one has ended"
    )]
    Fenced {
        /// The volume.
        volume: String,
        /// This owner's epoch.
        own_epoch: u64,
        /// The new owner's.
        new_epoch: u64,
    },
    /// The store was opened for reading alone.
    #[error("{volume} was opened for reading alone (`Options::read_only`)")]
    ReadOnly {
        /// The volume.
        volume: String,
    },
    /// An earlier failure has ended all writing: what is durable is, and reads go on.
    #[error("{volume} takes no more writes since {why}: close and open it again")]
    Stopped {
        /// The volume.
        volume: String,
        /// The first failure.
        why: String,
    },
}

/// What is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FullPlace {
    /// The volume: it has to grow, or something in it has to go.
    Volume,
    /// The file system that the volume's file is on, or what its owner may take there. Deletions from the store go on, and puts do as
    /// soon as there is space again.
    FileSystem,
}

fn full(volume: &str, wanted: u64, place: FullPlace) -> String {
    match place {
        FullPlace::Volume => {
            format!("{volume} is full: {wanted} bytes more were wanted; delete something, or grow it")
        }
        FullPlace::FileSystem => format!(
            "{volume}: the file system that the file is on is full: {wanted} bytes more were wanted; \
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
    /// With what has led to it, for those who are told later that it was: the first failure, if it is that it was one.
    pub(crate) fn with_causes(&self) -> String {
        if let Error::Stopped { why, .. } = self {
            return why.clone();
        }
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }
}

/// What is wrong with something on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It does not begin as it should.
    #[error("it does not begin as such a thing does")]
    Magic,
    /// The checksum is not that of the bytes.
    #[error("its checksum does not match")]
    Checksum,
    /// It is another kind of thing.
    #[error("it is of kind {found}, not {wanted}")]
    Kind {
        /// What it says.
        found: u8,
        /// What it should say.
        wanted: u8,
    },
    /// It belongs elsewhere.
    #[error("it says that it belongs to byte {says}")]
    Misplaced {
        /// Where.
        says: u64,
    },
    /// It is older than what refers to it: a write was lost.
    #[error("it is of epoch {found}, not {wanted}: a write was lost")]
    Epoch {
        /// What it says.
        found: u64,
        /// What refers to it says.
        wanted: u64,
    },
    /// Its newest copy is damaged, or its write was lost.
    #[error("the newest copies of some of its blocks are damaged, or their writes were lost")]
    Stale,
    /// It belongs to another segment or keyspace.
    #[error("it belongs to another volume, segment or keyspace")]
    Foreign,
    /// It ends before it should.
    #[error("it ends before it should")]
    Length,
    /// It says that it has more parts than it has space for.
    #[error("it says that it has {found} parts, and there is space for {most}")]
    Count {
        /// What it says.
        found: usize,
        /// What there is space for.
        most: usize,
    },
    /// A value that cannot be.
    #[error("{what} is {found}")]
    Value {
        /// Of what.
        what: &'static str,
        /// The value.
        found: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_stopped_by_somebody_who_was_is_told_of_the_first_failure() {
        let source = std::io::Error::other("the disk is gone");
        let first = Error::Device { volume: "disk".to_owned(), action: "writing", offset: 7, source };
        let stopped = |why| Error::Stopped { volume: "disk".to_owned(), why };
        let second = stopped(first.with_causes());
        assert_eq!(second.with_causes(), first.with_causes());
        let third = stopped(second.with_causes());
        assert_eq!(third.to_string().matches("takes no more writes").count(), 1);
    }
}
