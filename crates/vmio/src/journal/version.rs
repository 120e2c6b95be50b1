//! The place of a page version in the log, as the index in memory and the records on the device have it.

/// The most deltas in a version, over the image or the page of the file below them.
pub(crate) const CHAIN_MAX: u8 = 8;
const DEPTH_BITS: u32 = 4;

/// A version of a page in the log: an image, or a delta to the version before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// The position of the image, or of the record with the delta.
    pub(crate) position: u64,
    /// The number of deltas in the version; 0 for an image.
    pub(crate) depth: u8,
}

const _: () = assert!((CHAIN_MAX as u64) < 1 << DEPTH_BITS);

impl Version {
    /// A whole image.
    pub(crate) fn image(position: u64) -> Self {
        Version { position, depth: 0 }
    }

    /// A delta to the version `base`, in the record at a position. `None` stands for the page in the file.
    pub(crate) fn delta(position: u64, base: Option<Version>) -> Self {
        Version { position, depth: base.map_or(0, |base| base.depth) + 1 }
    }

    /// Whether a commit may write a delta to this version. Otherwise the next version is an image.
    pub(crate) fn takes_delta(base: Option<Version>) -> bool {
        base.is_none_or(|base| base.depth < CHAIN_MAX)
    }

    /// The word for a version; 0 if the file holds the page.
    pub(crate) fn word(version: Option<Version>) -> u64 {
        version.map_or(0, |version| (version.position + 1) << DEPTH_BITS | u64::from(version.depth))
    }

    /// The version for a word.
    pub(crate) fn from_word(word: u64) -> Option<Version> {
        let position = (word >> DEPTH_BITS).checked_sub(1)?;
        Some(Version { position, depth: (word & ((1 << DEPTH_BITS) - 1)) as u8 })
    }
}
