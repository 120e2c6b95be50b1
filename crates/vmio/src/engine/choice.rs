//! Which engine a cache runs on.

use std::sync::Arc;

use crate::cache::fault::handle_fault;
use crate::cache::refusal::while_absent;
use crate::engine::{FaultCalls, FaultEngine, ReaderThreadEngine, SigbusEngine};
use crate::error::{Error, Result};
use crate::probe;
use crate::sys::kernel::KernelFeatures;
use crate::sys::userfaultfd::{StoreTracking, Userfaultfd};

/// How page faults reach a cache. Hits cost the same with each: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// [`Engine::Sigbus`]; where userfaultfd is denied (EPERM, as in most containers), missing (ENOSYS) or too old,
    /// [`Engine::Managed`], with a warning that says why and what it costs. [`crate::Cache::engine`] tells which it is.
    #[default]
    Auto,
    /// The faulting thread handles its own fault, in a SIGBUS handler that the cache installs. A miss costs some 3 µs
    /// beside its I/O, and no privilege is needed.
    ///
    /// What it asks of the program: no thread that touches mapped memory blocks SIGBUS (it would be killed), and
    /// system calls get pointers into pinned ranges only ([`crate::Mapping::pin`]; other pages fail with EFAULT).
    Sigbus,
    /// The faulting thread sleeps in the kernel until a reader thread of the cache has handled its fault. So pointers
    /// into the mapping may be given to system calls (`read`, `write`, futexes), signals may be blocked, and no signal
    /// handler is installed. A miss costs 6 µs (several threads that miss) to 46 µs (one) more, since two threads
    /// take turns.
    ///
    /// Needs Linux 6.6, and the right to handle faults of system calls: CAP_SYS_PTRACE, or the sysctl
    /// `vm.unprivileged_userfaultfd` at 1, or read and write access to `/dev/userfaultfd`. Without, building the cache
    /// is an [`Error::KernelFaultsDenied`].
    ///
    /// A page that cannot be had is a SIGBUS for a load or store, and EFAULT for a system call. That answer stands for
    /// a tenth of a second; after it, the next access tries again. `read_at`, `pin` and growth of the mapping try, or
    /// end it, at once.
    ///
    /// Two kinds of system call still need a pinned range. Those that write to memory past its page tables (direct
    /// I/O into the mapping, registered buffers, `process_vm_writev`): their bytes would be lost if the page is evicted
    /// meanwhile. And reads and writes of the very file that is mapped: the kernel may hold the file's lock while it
    /// waits for the page, and the page cannot be read before it lets go.
    ReaderThread,
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
    ///   written, and so is what [`crate::Advice::Invalidate`] would drop. Read-ahead windows ([`crate::Advice::Sequential`]) are of the kernel's size, and
    ///   [`crate::Advice::Reuse`] makes no difference.
    /// - [`crate::Mapping::sync_begin`]: pages that become dirty while it runs may be written by it too.
    /// - **A page that the kernel failed to write is lost to it**: it may take the page for clean. So after a failed
    ///   sync every later one fails too ([`crate::Error::Flush`]) and the file must be reopened.
    /// - A load of a page that cannot be read is a SIGBUS. [`crate::MappingOptions::verifier`] and
    ///   [`crate::OnReadError::Poison`] are refused ([`crate::Error::NotManaged`]), as are backings that are neither a
    ///   file nor a block device, [`crate::LockMemory::Require`], [`crate::MappingOptions::floor`] and
    ///   [`crate::MappingOptions::ceiling`].
    /// - [`crate::Mapping::pin`] locks pages (mlock), for which RLIMIT_MEMLOCK must suffice.
    /// - [`crate::Mapping::residency`] knows the pages that this process has mapped, not what else is in the page cache.
    /// - [`crate::CacheBuilder::workers`] and [`crate::CacheBuilder::measure_misses`] have no effect. Of
    ///   [`crate::Stats`], what only the kernel knows stays zero: misses, reads, waits. Resident pages are an estimate;
    ///   dirty pages and bytes written need Linux 6.5 (cachestat), and count vmio's own writes, not the kernel's.
    /// - Files on tmpfs cannot be evicted: they are memory.
    Managed,
    /// The kernel module vmio.ko takes the faults, evicts and writes (docs/kernel.md). No signal handler and no userfaultfd;
    /// system calls, direct I/O and debuggers may be given pointers into the mapping, and nothing need be pinned for them.
    /// The capacity is reserved when the cache is built, charged to the memory cgroup, and never swapped.
    ///
    /// Needs the module, and the right to open `/dev/vmio`: else building the cache is an [`crate::Error::NoKernelModule`].
    ///
    /// What is different:
    ///
    /// - Only files and block devices with direct I/O can be mapped. [`crate::MappingOptions::atomic`],
    ///   [`crate::MappingOptions::floor`] and [`crate::MappingOptions::ceiling`] are refused, and so is a
    ///   [`crate::MappingOptions::verifier`] that seals, unless the mapping is read-only ([`crate::Error::NotInKernel`]).
    /// - With a verifier or [`crate::OnReadError::Poison`] there is a signal handler, and a system call that is given pointers to pages
    ///   that are not in memory fails with EFAULT: [`crate::Mapping::ensure`] or pin them. [`crate::Mapping::view`] is refused then.
    /// - A load of a page that cannot be read is a SIGBUS of the kernel's, and so is a store where three quarters of the cache
    ///   are dirty pages of a device that fails.
    /// - Write-back begins when half of the cache is dirty, whatever [`crate::CacheBuilder::dirty_ratio`] says.
    /// - A system call or device that is given more of a mapping at a time than the cache holds ends after a second or more, with
    ///   less than was asked for or EFAULT. Where system calls, devices or pipes hold all of the cache for ten seconds, a load or store
    ///   that misses is a SIGBUS. [`crate::Mapping::read_at`] and `write_at` hold a page at a time.
    /// - What other processes append to the last page of a file while it is dirty is overwritten.
    /// - Pins may hold half of the cache; each takes a file descriptor. A pinned page may take a fault without I/O.
    /// - Read-ahead is the same for a whole mapping: [`crate::Advice::Normal`], [`crate::Advice::Random`] and
    ///   [`crate::Advice::Sequential`] of a part have no effect, nor has [`crate::Advice::Reuse`].
    /// - [`crate::Advice::Priority`] is kept by the page. What is dirty is written by age alone.
    /// - [`crate::CacheBuilder::workers`], [`crate::CacheBuilder::policy`], frames, units and
    ///   [`crate::CacheBuilder::measure_misses`] have no effect. [`crate::Stats`] has what the module counts, which is less.
    /// - A child that was forked and goes on without exec keeps the memory of the cache reserved.
    Kernel,
}

impl Engine {
    /// Starts the userfaultfd engine of that choice, SIGBUS unless it is another; the userfaultfd is for the frames.
    pub(crate) fn start(
        self,
        readers: usize,
        features: KernelFeatures,
    ) -> Result<(Box<dyn FaultEngine>, Arc<Userfaultfd>)> {
        match self {
            Engine::Auto | Engine::Sigbus | Engine::Managed | Engine::Kernel => {
                let engine =
                    SigbusEngine::new(handle_fault, features).map_err(|error| probe::explain_userfaultfd(&error))?;
                let userfaultfd = engine.userfaultfd();
                Ok((Box::new(engine), userfaultfd))
            }
            Engine::ReaderThread => {
                let userfaultfd = Userfaultfd::open_for_messages(StoreTracking::Trap);
                let userfaultfd = Arc::new(userfaultfd.map_err(|why| probe::explain_no_messages(&why))?);
                let calls = FaultCalls { resolve: handle_fault, while_absent };
                let engine = ReaderThreadEngine::start(Arc::clone(&userfaultfd), calls, readers, features)
                    .map_err(Error::system("starting the reader threads of the cache"))?;
                Ok((Box::new(engine), userfaultfd))
            }
        }
    }
}
