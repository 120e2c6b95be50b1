//! Which engine serves the faults of a cache's mappings: the user's choice.

/// How page faults are handled; chosen by [`crate::CacheBuilder::engine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// [`Engine::Sigbus`]; where userfaultfd is denied (EPERM, as in most containers), missing (ENOSYS) or too old,
    /// [`Engine::Managed`], with a warning that says why and what it costs. [`crate::Cache::engine`] tells which it is.
    #[default]
    Auto,
    /// userfaultfd in SIGBUS mode: the thread that misses handles its own fault. All that this library promises.
    Sigbus,
    /// Linux's own mmap takes the faults; a background thread keeps what is resident within the capacity from outside,
    /// before the kernel has to reclaim, and decides when dirty pages are written. Needs no userfaultfd, and any number
    /// of processes may map the same file with it and see each other's stores.
    ///
    /// What it cannot promise:
    ///
    /// - **The budget is kept by watching.** A burst of misses may exceed it for some milliseconds, and a program that
    ///   stores faster than the device writes may exceed it until the kernel's own limits (a cgroup, `vm.dirty_ratio`)
    ///   slow it down. Counted are the pages that this process has mapped; those that another process maps too
    ///   stay in memory. In a memory cgroup with less room for page cache than the capacity, that room is the budget.
    /// - **The kernel writes and evicts as well**, whenever it likes: nothing keeps a dirty page from the device
    ///   before its sync, and priorities only say what vmio gives up first.
    /// - **Priorities and the order of eviction** are kept by runs of up to 2 MiB, oldest first, except for pages that were
    ///   touched between their unmapping and their turn.
    /// - [`crate::Advice::Fresh`] and [`crate::Advice::Free`] do nothing: a fresh page is read all the same, a freed one
    ///   written. Read-ahead windows ([`crate::Advice::Sequential`]) are of the kernel's size.
    /// - [`crate::Mapping::sync_begin`]: pages that become dirty while it runs may be written by it too.
    /// - **A page that the kernel failed to write is lost to it**: it may take the page for clean. So after a failed
    ///   sync every later one fails too ([`crate::Error::Flush`]) and the file must be reopened.
    /// - **A process that maps the file read-only with another engine** is not kept off: it does not see the stores.
    /// - A load of a page that cannot be read is a SIGBUS. [`crate::MappingOptions::verifier`] and
    ///   [`crate::OnReadError::Poison`] are refused ([`crate::Error::NotManaged`]), as are backings that are neither a
    ///   file nor a block device, and [`crate::LockMemory::Require`].
    /// - [`crate::Mapping::pin`] locks pages (mlock), for which RLIMIT_MEMLOCK must suffice.
    /// - [`crate::Mapping::residency`] knows the pages that this process has mapped, not what else is in the page cache.
    /// - [`crate::CacheBuilder::workers`] and [`crate::CacheBuilder::measure_misses`] have no effect. Of
    ///   [`crate::Stats`], what only the kernel knows stays zero: misses, reads, waits. Resident pages are an estimate;
    ///   dirty pages and bytes written need Linux 6.5 (cachestat), and count vmio's own writes, not the kernel's.
    /// - Files on tmpfs cannot be evicted: they are memory.
    Managed,
}
