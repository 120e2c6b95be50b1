//! What a program may say of a range.

use crate::page::reuse::Reuse;

/// Advice about a range of bytes. Priorities, read-ahead and reuse are kept per span of 2 MiB: a range that touches a span
/// sets them for all of it. The other kinds apply to the pages that lie wholly within the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing special, as if nothing had been advised: where loads miss page after page, or pages at equal distances, going up
    /// or down, the cache reads ahead of them, 128 KiB at a time at most. Stores are not read ahead of. With
    /// [`crate::Engine::Managed`] whole 2 MiB are read ahead of who goes through a file, up or down.
    Normal,
    /// Accesses jump about: no read-ahead.
    Random,
    /// Accesses go upwards: a miss reads this many bytes from its page on (128 KiB at most; 0 for that). A store that
    /// misses makes all of them dirty, since the next stores will.
    Sequential {
        /// The read-ahead window.
        window_bytes: u32,
    },
    /// The range will be wanted soon: read it now, as far as the cache has pages for it.
    WillNeed,
    /// The range will not be wanted soon: write back what is dirty and give its pages up. What is on its way in is waited for
    /// first, read-ahead as well, and so are copies in and out ([`crate::Mapping::read_at`]): who writes to the file past the mapping
    /// afterwards will see that through it. What the program has pinned stays. What cannot be written stays, and is
    /// [`crate::Error::Write`]: it would come over what is written past the mapping. What the kernel keeps in memory since the program has
    /// locked it there (mlock, before Linux 5.18) is [`crate::Error::System`], and so is what a system call, a device or another process holds
    /// with [`crate::Engine::Kernel`], with how many pages these are.
    ///
    /// It does not keep pages away: whoever touches the range from then on brings them back with what the file holds at that moment, and
    /// so does read-ahead of accesses before or behind it. Where other threads may come there before the write past the mapping has been made,
    /// say it again after the write.
    DontNeed,
    /// The program has done with the range for now: it goes before what is in use, when the cache needs room. Nothing waits, and whoever
    /// comes back before that finds it in memory. With [`crate::Engine::Managed`] it is inactive from now on, and its dirty pages begin to be written.
    /// [`crate::Engine::Kernel`] takes no notice.
    Cold,
    /// What the device holds in the range is garbage, and the program is about to write it: misses fill with zeros in
    /// place of reading (kmmap's filter of reads before writes, Kreon §3.3.1). Resident pages stay as they are.
    Fresh,
    /// The program needs the contents no more: drop them without writing, and treat the range as fresh. What a load
    /// sees before the next store is undefined. An atomic mapping refuses ([`crate::Error::Unsupported`]).
    Free,
    /// What the device holds counts, and nothing else: drop what is in memory without writing it, wait for writes that are on
    /// their way, and forget what was [`Advice::Fresh`]. For programs that write the file past the mapping, also where they had
    /// stored to it before; what was stored since the last sync is lost. Pinned pages stay. An atomic mapping refuses
    /// ([`crate::Error::Unsupported`]); [`crate::Engine::Managed`] does the same as for [`Advice::DontNeed`].
    Invalidate,
    /// The order of eviction, 0 (keep) to 255 (evict first), as in kmmap.
    Priority(u8),
    /// How often each page is wanted, for pages that come in from now on. Unlike a priority it says nothing absolute: pages
    /// that are wanted often leave after others of the range's priority, and stop counting so when they have not been
    /// missed for long. [`crate::EvictionPolicy::Fifo`] and [`crate::Engine::Managed`] take no notice.
    Reuse(Reuse),
}
