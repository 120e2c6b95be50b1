//! Probes the features of this machine, and advises on missing ones, for `vmio doctor`.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use linux_raw_sys::general::{UFFD_FEATURE_MOVE, UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_HUGETLBFS_SHMEM};
use rustix::thread::CapabilitySet;

use crate::error::Error;
use crate::options::Engine;
use crate::sys::PAGE_BYTES;
use crate::sys::cpu;
use crate::sys::fault_messages::NoMessages;
use crate::sys::kernel::KernelFeatures;
use crate::sys::page_cache;
use crate::sys::pagemap::Pagemap;
use crate::sys::persistent_memory::Instructions;
use crate::sys::reservation::Reservation;
use crate::sys::ring::Ring;
use crate::sys::unmap::Unmapper;
use crate::sys::userfaultfd::{StoreTracking, Userfaultfd};
use crate::sys::vmio_module::{self, ModulePool};

pub use crate::sys::kernel::KernelFeature;

/// The presence of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The feature is there.
    Yes,
    /// The feature is missing. The text has the reason, the effect and the remedy.
    No(String),
}

impl Probe {
    /// Returns whether the feature is there.
    pub fn is_yes(&self) -> bool {
        *self == Probe::Yes
    }
}

/// The features of this machine, as [`probe()`] found them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Features {
    /// The running kernel.
    pub kernel_release: String,
    /// The engine that [`Engine::Auto`] chooses here.
    pub auto_engine: Engine,
    /// userfaultfd in SIGBUS mode.
    pub userfaultfd: Probe,
    /// Write-protection through userfaultfd, which write-back needs.
    pub write_protect: Probe,
    /// The handling of page faults inside system calls, for [`crate::Engine::ReaderThread`].
    pub kernel_faults: Probe,
    /// Counts of a file's pages in the kernel's page cache: they tell the managed engine how much is dirty.
    pub cachestat: Probe,
    /// The kernel module vmio.ko, for [`crate::Engine::Kernel`].
    pub kernel_module: Probe,
    /// The version of the module's interface; `None` if the module does not answer.
    pub kernel_module_interface: Option<u32>,
    /// The kernel features that vmio can do without: all of [`KernelFeature::ALL`].
    pub kernel: Vec<(KernelFeature, Probe)>,
    /// The instructions that copy persistent memory and write back its lines, such as `AVX2, clwb`. `None` on processors that
    /// [`crate::backing::DaxBacking`] does not support.
    pub persistent_memory: Option<String>,
    /// The right to lock the cache in memory.
    pub lock_memory: Probe,
    /// Whether swap is on.
    pub swap_on: bool,
    /// The page size in bytes.
    pub page_bytes: usize,
    /// Cores that the process may use.
    pub cores: usize,
}

/// Tries every feature, and returns the results.
///
/// # Examples
///
/// ```
/// let features = vmio::probe::probe();
/// println!("{:?} on Linux {}", features.auto_engine, features.kernel_release);
/// ```
pub fn probe() -> Features {
    probe_without(&[])
}

/// As [`probe()`], but as on a kernel without some of its features ([`crate::CacheBuilder::without`]).
pub fn probe_without(declined: &[KernelFeature]) -> Features {
    let userfaultfd = Userfaultfd::open(StoreTracking::Trap);
    let write_protect = match &userfaultfd {
        Err(_) => Probe::No("needs userfaultfd".to_owned()),
        Ok(userfaultfd) => match try_write_protect(userfaultfd) {
            Ok(()) => Probe::Yes,
            Err(error) => Probe::No(format!(
                "{error}: the kernel lacks CONFIG_HAVE_ARCH_USERFAULTFD_WP; use Linux 5.7 or newer on x86-64 or arm64"
            )),
        },
    };
    let kernel = KernelFeature::ALL.map(|feature| (feature, probe_kernel(feature, declined))).to_vec();
    let lock_memory = if may_lock_memory() {
        Probe::Yes
    } else {
        Probe::No("needs CAP_IPC_LOCK; matters only where swap is on".to_owned())
    };
    let kernel_module = ModulePool::open().and_then(|pool| pool.version());
    Features {
        kernel_release: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        auto_engine: match &userfaultfd {
            Err(error) if lacks_userfaultfd(error) => Engine::Managed,
            _ => Engine::Sigbus,
        },
        userfaultfd: match &userfaultfd {
            Ok(_) => Probe::Yes,
            Err(error) => Probe::No(userfaultfd_advice(error)),
        },
        write_protect,
        kernel_faults: match Userfaultfd::open_for_messages(StoreTracking::Trap) {
            Ok(_) => Probe::Yes,
            Err(why) => Probe::No(kernel_faults_advice(&why)),
        },
        cachestat: if can_count_page_cache() {
            Probe::Yes
        } else {
            Probe::No(
                "needs Linux 6.5, and cachestat(2) allowed by a container's seccomp profile: without, the managed \
                 engine does not know what is dirty, and takes all for dirty that it evicts"
                    .to_owned(),
            )
        },
        kernel_module_interface: kernel_module.as_ref().ok().copied(),
        kernel_module: match kernel_module_advice(&kernel_module) {
            None => Probe::Yes,
            Some(advice) => Probe::No(advice),
        },
        kernel,
        persistent_memory: Instructions::of_this_cpu().map(|instructions| instructions.to_string()),
        lock_memory,
        swap_on: swap_is_on(),
        page_bytes: rustix::param::page_size(),
        cores: cpu::count(),
    }
}

fn probe_kernel(feature: KernelFeature, declined: &[KernelFeature]) -> Probe {
    if declined.contains(&feature) {
        return Probe::No("declined".to_owned());
    }
    if let (KernelFeature::IoUring, Err(error)) = (feature, Ring::probe()) {
        return Probe::No(io_uring_advice(&error));
    }
    let unmapper = || Unmapper::probe(KernelFeatures::ALL);
    let userfaultfd_has = |flag| Userfaultfd::supported_features().is_ok_and(|has| has & u64::from(flag) != 0);
    let found = match feature {
        KernelFeature::BatchedUnmap => unmapper().is_batched(),
        KernelFeature::MovePages => userfaultfd_has(UFFD_FEATURE_MOVE),
        KernelFeature::WpAsync => userfaultfd_has(UFFD_FEATURE_WP_ASYNC),
        KernelFeature::PagemapScan => Pagemap::open_to_scan().is_ok(),
        KernelFeature::ShmemWp => userfaultfd_has(UFFD_FEATURE_WP_HUGETLBFS_SHMEM),
        KernelFeature::UnmapLocked => unmapper().drops_locked(),
        KernelFeature::IoUring => true,
    };
    if found { Probe::Yes } else { Probe::No("this kernel lacks it".to_owned()) }
}

fn io_uring_advice(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel was built without CONFIG_IO_URING".to_owned(),
        Some(libc::EPERM) => {
            let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            match sysctl.as_deref().map(str::trim) {
                Ok(value @ ("1" | "2")) => {
                    format!("it is disabled: `sysctl kernel.io_uring_disabled` is {value}, 0 would allow it")
                }
                _ => "the system call is denied, usually by a container's seccomp profile: allow io_uring_setup(2), \
                      io_uring_enter(2) and io_uring_register(2) in it"
                    .to_owned(),
            }
        }
        _ => error.to_string(),
    }
}

fn try_write_protect(userfaultfd: &Userfaultfd) -> io::Result<()> {
    let page = Reservation::zeroed(PAGE_BYTES, PAGE_BYTES)?;
    userfaultfd.register(page.base() as usize, PAGE_BYTES)?;
    userfaultfd.write_protect(page.base() as usize, PAGE_BYTES, true)
}

fn can_count_page_cache() -> bool {
    let file = rustix::fs::memfd_create(c"vmio-probe", rustix::fs::MemfdFlags::CLOEXEC);
    file.is_ok_and(|file| page_cache::look(file.as_fd(), &(0..PAGE_BYTES as u64)).is_some())
}

fn userfaultfd_advice(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel was built without CONFIG_USERFAULTFD".to_owned(),
        Some(libc::EPERM) => "the system call is denied, usually by a container's seccomp profile: allow \
                              userfaultfd(2) in it"
            .to_owned(),
        Some(libc::EINVAL) => "the kernel is too old for UFFD_USER_MODE_ONLY or write-protection: Linux 5.11 is the \
                               oldest that will do"
            .to_owned(),
        _ => error.to_string(),
    }
}

/// Whether the error of opening a userfaultfd is permanent: denied, missing, or too old.
pub(crate) fn lacks_userfaultfd(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL))
}

pub(crate) fn explain_userfaultfd(error: &io::Error) -> Error {
    Error::NoUserfaultfd { reason: userfaultfd_advice(error) }
}

fn kernel_faults_advice(why: &NoMessages) -> String {
    match why {
        NoMessages::Denied { call, device } => {
            let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
            let sysctl = sysctl.map_or_else(|error| error.to_string(), |value| format!("it is {}", value.trim()));
            format!(
                "none of the three rights that allow it is there (userfaultfd(2): {call}); grant one of them: \
                 CAP_SYS_PTRACE, as by `setcap cap_sys_ptrace+ep PROGRAM`; \
                 `sysctl vm.unprivileged_userfaultfd=1` ({sysctl}); \
                 or read and write access to /dev/userfaultfd, as by `setfacl -m u:USER:rw` ({device})"
            )
        }
        NoMessages::Unsupported(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            "the kernel cannot make a single page fail (UFFDIO_POISON), without which a page that cannot be read would \
             block its thread for ever: Linux 6.6 is the oldest that will do"
                .to_owned()
        }
        NoMessages::Unsupported(error) => error.to_string(),
    }
}

pub(crate) fn explain_no_messages(why: &NoMessages) -> Error {
    let reason = kernel_faults_advice(why);
    match why {
        NoMessages::Denied { .. } => Error::KernelFaultsDenied { reason },
        NoMessages::Unsupported(_) => Error::NoUserfaultfd { reason },
    }
}

/// Opens the kernel module's device. The error has the reason and the remedy.
pub(crate) fn open_kernel_module() -> Result<ModulePool, String> {
    let pool = ModulePool::open();
    let version = match &pool {
        Ok(pool) => pool.version(),
        Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or_default())),
    };
    match (kernel_module_advice(&version), pool) {
        (None, Ok(pool)) => Ok(pool),
        (Some(advice), _) => Err(advice),
        (None, Err(error)) => Err(error.to_string()),
    }
}

/// Advice for an unusable kernel module; `None` if it can be used.
fn kernel_module_advice(version: &io::Result<u32>) -> Option<String> {
    let needed = vmio_module::ABI;
    Some(match version {
        Ok(version) if *version >= needed => return None,
        Ok(version) => format!("it has version {version} of the interface, and {needed} is needed: load a newer one"),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                "there is no /dev/vmio: build the module in kernel/ of the sources and load it (`make -C kernel install`, \
                 `modprobe vmio`); a container needs the device passed in"
                    .to_owned()
            }
            Some(libc::EACCES | libc::EPERM) => {
                "this user may not open /dev/vmio: with kernel/60-vmio.rules among the rules of udev, members of the group \
                 vmio may (`usermod -aG vmio USER`)"
                    .to_owned()
            }
            Some(libc::ENOTTY) => format!("it is too old to say which version it has; {needed} is needed: load a newer one"),
            _ => error.to_string(),
        },
    })
}

/// Whether any swap area is in use.
pub(crate) fn swap_is_on() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

/// Whether the calling thread has CAP_IPC_LOCK, which locking a large range needs.
pub(crate) fn may_lock_memory() -> bool {
    // Not by /proc/self, which describes the first thread of the process.
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}
