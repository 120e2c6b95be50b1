//! The place of a page in a journal's files: the file, and the page in it.

/// The most pages of a file: page numbers have 48 bits.
pub(crate) const FILE_PAGES_MAX: u64 = 1 << 48;

/// A page of a file, as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) page: u64,
}

impl Place {
    /// File and page in one number, as records have them.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.file) << FILE_PAGES_MAX.ilog2() | self.page
    }

    pub(crate) fn of_number(number: u64) -> Self {
        Place { file: (number >> FILE_PAGES_MAX.ilog2()) as u32, page: number & (FILE_PAGES_MAX - 1) }
    }
}
