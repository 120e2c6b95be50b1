//! How often pages are wanted, as the program has advised.

/// How often each page of a range is wanted (`Advice::Reuse`).
///
/// # Default
///
/// [`Reuse::Unknown`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reuse {
    /// Not known: the cache finds out.
    #[default]
    Unknown,
    /// Once, or several times within a short while, as by a scan: no page of the range ever counts as wanted again.
    Once,
    /// Again and again, if only after a long time: every page counts as wanted often from the first time on.
    Often,
}

impl Reuse {
    /// As a number of two bits.
    pub fn bits(self) -> u8 {
        match self {
            Reuse::Unknown => 0,
            Reuse::Once => 1,
            Reuse::Often => 2,
        }
    }

    /// The inverse of [`Self::bits`].
    pub fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Reuse::Once,
            2 => Reuse::Often,
            _ => Reuse::Unknown,
        }
    }
}
