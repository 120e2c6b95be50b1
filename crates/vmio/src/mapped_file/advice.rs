//! What a program may tell about a range.

use crate::page::reuse::Reuse;

/// What a program tells about a range of bytes ([`crate::Mapping::advise`]). Priorities, read-ahead and reuse are kept per span of
/// 2 MiB: a range that touches a span sets them for all of it. The other kinds apply to the pages that lie wholly within the range.
///
/// [`crate::Engine::Kernel`] keeps read-ahead for a whole mapping: [`Advice::Normal`], [`Advice::Random`] and [`Advice::Sequential`] of
/// a part have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing special, as if nothing had been advised. Where loads miss page after page, or pages at equal distances, going up
    /// or down, the cache reads ahead of them, 128 KiB at a time at most. It does not read ahead of stores. With
    /// [`crate::Engine::Managed`] whole 2 MiB are read ahead of accesses that go through a file, up or down.
    Normal,
    /// Accesses jump about: no read-ahead.
    Random,
    /// Accesses go upwards: a miss reads this many bytes from its page on. A store that misses makes all of them dirty, since the
    /// next stores will. With [`crate::Engine::Managed`] the window is of the kernel's size.
    Sequential {
        /// The read-ahead window: 128 KiB at most, and 0 for that.
        window_bytes: u32,
    },
    /// The range will be wanted soon: reads it now, as far as the cache has pages for it.
    WillNeed,
    /// The range will not be wanted soon: writes back what is dirty and gives the pages up. Pages on their way in are waited for
    /// first, read-ahead as well, and so are copies in and out ([`crate::Mapping::read_at`]): what is then written to the file past
    /// the mapping will be seen through it. Pages that the program has pinned stay.
    ///
    /// Pages are not kept away: an access from then on brings them back with what the file holds at that moment, and
    /// so does read-ahead of accesses before or behind the range. Where other threads may access the range before the write past the
    /// mapping has been made, advise again after the write.
    ///
    /// A page that cannot be written stays, and is a [`crate::Error::Write`]: it would come over what is written past the mapping.
    /// A page that the kernel keeps in memory is a [`crate::Error::System`]: because the program has locked it (mlock, before
    /// Linux 5.18), or with [`crate::Engine::Kernel`] because a system call, a device or another process holds it; the error then has
    /// the number of these pages.
    DontNeed,
    /// The program needs the range no more for now: its pages are evicted before those in use, when the cache needs room. Nothing
    /// waits, and an access before that finds the page in memory. With [`crate::Engine::Managed`] the range is inactive from now on,
    /// and its dirty pages begin to be written. [`crate::Engine::Kernel`] takes no notice.
    Cold,
    /// The device holds garbage in the range, and the program is about to write it: misses fill pages with zeros instead of
    /// reading (kmmap's filter of reads before writes, Kreon §3.3.1). Resident pages stay as they are. No effect with
    /// [`crate::Engine::Managed`], which reads a fresh page all the same.
    Fresh,
    /// The program needs the contents no more: drops them without writing, and treats the range as fresh. What a load
    /// reads before the next store is undefined. An atomic mapping does not support it ([`crate::Error::Unsupported`]). No effect with
    /// [`crate::Engine::Managed`], which writes a freed page all the same.
    Free,
    /// Only what the device holds counts: drops what is in memory without writing it, waits for writes that are under
    /// way, and forgets what was [`Advice::Fresh`]. For programs that write the file past the mapping, also where they had
    /// stored to it before. What was stored since the last sync is lost. Pinned pages stay. An atomic mapping does not support it
    /// ([`crate::Error::Unsupported`]); [`crate::Engine::Managed`] does the same as for [`Advice::DontNeed`].
    Invalidate,
    /// The order of eviction, 0 (keep) to 255 (evict first), as in kmmap.
    Priority(u8),
    /// How often each page is wanted, for pages that come in from now on. Pages that are wanted often leave after others of the
    /// range's priority, and stop counting as such when they have not been missed for long. [`crate::EvictionPolicy::Fifo`],
    /// [`crate::Engine::Managed`] and [`crate::Engine::Kernel`] take no notice.
    Reuse(Reuse),
}
