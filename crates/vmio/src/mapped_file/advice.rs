//! The kinds of advice about a range.

use vmio_core::page::reuse::Reuse;

/// Advice about the use of a range of bytes ([`crate::Mapping::advise`]).
///
/// The cache keeps priorities, read-ahead and reuse for spans of 2 MiB: a range that touches a span sets them for all of it. The
/// other kinds apply to the pages that lie wholly within the range.
///
/// [`crate::Engine::Kernel`] keeps read-ahead for a whole mapping: [`Advice::Normal`], [`Advice::Random`] and [`Advice::Sequential`] of
/// a part have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// No special use, as without advice.
    ///
    /// Where loads miss page after page, or pages at equal distances, up or down, the cache reads ahead of them, at most 128 KiB at
    /// a time. It does not read ahead of stores. [`crate::Engine::Managed`] reads whole 2 MiB ahead of accesses that go through a
    /// file, up or down.
    Normal,
    /// Random accesses: no read-ahead.
    Random,
    /// Accesses in ascending order: a miss reads this many bytes from its page on.
    ///
    /// A store that misses makes all of them dirty, since the next stores would. With [`crate::Engine::Managed`] the kernel chooses
    /// the window.
    Sequential {
        /// The read-ahead window: 128 KiB at most, and 0 for that.
        window_bytes: u32,
    },
    /// The program will need the range soon: reads it now, as far as the cache has free pages.
    WillNeed,
    /// The program will not need the range soon: writes dirty pages back and evicts the pages.
    ///
    /// Pages that the program has pinned stay.
    ///
    /// The call first waits for pages on their way in, read-ahead included, and for copies in and out
    /// ([`crate::Mapping::read_at`]). The mapping therefore shows later writes to the file that bypass it.
    ///
    /// A later access brings pages back with the file's contents at that moment, and so does read-ahead of accesses before or
    /// behind the range. Where other threads may access the range before such a write, advise again after the write.
    ///
    /// An unwritable page stays, and is a [`crate::Error::Write`]: it would later overwrite writes that bypass the mapping. A page
    /// that the kernel keeps in memory is a [`crate::Error::System`] with the number of these pages. The kernel keeps a page that
    /// the program has locked (mlock, before Linux 5.18). With [`crate::Engine::Kernel`] it also keeps a page that a system call, a
    /// device or another process holds.
    DontNeed,
    /// The program does not need the range for now: when the cache needs space, it evicts these pages before pages in use.
    ///
    /// The call does not wait, and an access before the eviction finds the page in memory. [`crate::Engine::Managed`] deactivates
    /// the range and begins to write its dirty pages. No effect with [`crate::Engine::Kernel`].
    Cold,
    /// The device holds garbage in the range, and the program is about to write it: misses fill pages with zeros instead of reading
    /// (kmmap's read-before-write filter, Kreon §3.3.1).
    ///
    /// Resident pages stay as they are. A read-only mapping refuses it ([`crate::Error::ReadOnly`]). No effect with
    /// [`crate::Engine::Managed`], which still reads a fresh page.
    Fresh,
    /// The program no longer needs the contents: drops them without a write, and treats the range as fresh.
    ///
    /// A load before the next store reads undefined bytes. A read-only mapping refuses it ([`crate::Error::ReadOnly`]), and an
    /// atomic mapping does not support it ([`crate::Error::Unsupported`]). No effect with [`crate::Engine::Managed`], which still
    /// writes a freed page.
    Free,
    /// Only the device's contents count: drops pages in memory without a write, waits for writes under way, and forgets
    /// [`Advice::Fresh`].
    ///
    /// It is for programs whose writes to the file bypass the mapping, even after stores to the same range. Stores since the last
    /// sync are lost. Pinned pages stay.
    ///
    /// An atomic mapping does not support it ([`crate::Error::Unsupported`]). [`crate::Engine::Managed`] treats it as
    /// [`Advice::DontNeed`].
    Invalidate,
    /// The order of eviction, 0 (keep) to 255 (evict first), as in kmmap.
    Priority(u8),
    /// How often the program needs each page, for pages that come in from now on.
    ///
    /// Frequently needed pages leave after others of the same priority. A page loses this rank after a long time without a miss. No
    /// effect with [`crate::EvictionPolicy::Fifo`], [`crate::Engine::Managed`] and [`crate::Engine::Kernel`].
    Reuse(Reuse),
}
