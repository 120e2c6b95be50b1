//! Where a page lies that the journal has: in which file, and where in it.

/// Pages of a file: their numbers have 48 bits.
pub(crate) const FILE_PAGES_MAX: u64 = 1 << 48;

/// A page of a file, as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) page: u64,
}

impl Place {
    /// As records have it: file and page in one number.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.file) << FILE_PAGES_MAX.ilog2() | self.page
    }

    pub(crate) fn of_number(number: u64) -> Self {
        Place { file: (number >> FILE_PAGES_MAX.ilog2()) as u32, page: number & (FILE_PAGES_MAX - 1) }
    }
}
