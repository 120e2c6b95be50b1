//! Where a version of a page is in the log, as the index in memory and the records on the device have it.

/// The most deltas that a version is made of, beside the image or the file below them.
pub(crate) const CHAIN_MAX: u8 = 8;
const DEPTH_BITS: u32 = 4;

/// A version of a page that is in the log: an image of it, or a delta to the version before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// Of the image, or of the record that holds the delta.
    pub(crate) position: u64,
    /// How many deltas it is made of; 0 is an image.
    pub(crate) depth: u8,
}

const _: () = assert!((CHAIN_MAX as u64) < 1 << DEPTH_BITS);

impl Version {
    /// A whole image.
    pub(crate) fn image(position: u64) -> Self {
        Version { position, depth: 0 }
    }

    /// A delta in the record at a position to the version `base`; `None` is what the file holds.
    pub(crate) fn delta(position: u64, base: Option<Version>) -> Self {
        Version { position, depth: base.map_or(0, |base| base.depth) + 1 }
    }

    /// Whether a delta to it may be written: else the next version is an image.
    pub(crate) fn takes_delta(base: Option<Version>) -> bool {
        base.is_none_or(|base| base.depth < CHAIN_MAX)
    }

    /// The word for it; 0 says that the file holds the page.
    pub(crate) fn word(version: Option<Version>) -> u64 {
        version.map_or(0, |version| (version.position + 1) << DEPTH_BITS | u64::from(version.depth))
    }

    /// What a word says.
    pub(crate) fn from_word(word: u64) -> Option<Version> {
        let position = (word >> DEPTH_BITS).checked_sub(1)?;
        Some(Version { position, depth: (word & ((1 << DEPTH_BITS) - 1)) as u8 })
    }
}
