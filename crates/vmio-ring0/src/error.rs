//! Errors: each says what to do.

use std::io;

use crate::level::Level;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a thread cannot run in guest mode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no `/dev/kvm`.
    #[error(
        "there is no /dev/kvm: load kvm_intel or kvm_amd, and switch virtualisation on in the firmware; in a virtual machine, \
         have its host allow nested virtualisation"
    )]
    NoKvm,
    /// The process may not open `/dev/kvm`.
    #[error("/dev/kvm may not be opened: add the user to the group that owns it (mostly `kvm`), or run as root")]
    Denied(#[source] io::Error),
    /// KVM lacks what the machine needs.
    #[error("KVM cannot {what}: {remedy}")]
    Lacks {
        /// The missing feature.
        what: &'static str,
        /// The way to get it.
        remedy: &'static str,
    },
    /// The host emulates ring 0 of its guests, instruction by instruction.
    #[error(
        "this host emulates ring 0 of a guest and does not run it: use a host with hardware virtualisation, or Level::Ring3 for a \
         smoke test"
    )]
    Ring0Emulated,
    /// The process has a machine at another level.
    #[error("the process has its machine at {present} already: a process has one machine, at one level")]
    OtherLevel {
        /// The machine's level.
        present: Level,
    },
    /// The machine is the parent's.
    #[error("a forked child cannot use its parent's machine: start one of its own")]
    Forked,
    /// Every virtual processor is in use.
    #[error("{limit} threads are in the machine, which is the limit of KVM: let threads leave before others enter")]
    TooManyThreads {
        /// The most virtual processors that KVM gives a machine.
        limit: usize,
    },
    /// The processor's guest-physical addresses are used up.
    #[error(
        "the machine has no guest-physical addresses left for another gigabyte: touch fewer gigabytes of address space"
    )]
    AddressesUsedUp,
    /// There is no memory for page tables any more.
    #[error("the machine's page tables fill their gigabyte: manage less memory at a time")]
    PageTablesUsedUp,
    /// An address that the machine was not told to manage.
    #[error("the page at {address:#x} is not managed: it belongs to no ManagedRange")]
    NotManaged {
        /// The address.
        address: usize,
    },
    /// A range that cannot be managed.
    #[error("bytes {start:#x} to {end:#x} cannot be managed: start and end with a multiple of 2 MiB, below {limit:#x}")]
    BadRange {
        /// The first address.
        start: usize,
        /// The address behind the last.
        end: usize,
        /// Addresses of a process end there.
        limit: usize,
    },
    /// The process has another fault handler.
    #[error("the machine has a fault handler already: a process has one for all of its ranges")]
    OtherHandler,
    /// A system call that the machine needs failed.
    #[error("{operation} failed")]
    System {
        /// The operation.
        operation: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// For `map_err` of what KVM answers.
    pub(crate) fn kvm(operation: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Error {
        move |error| Error::System { operation, source: io::Error::from_raw_os_error(error.errno()) }
    }

    /// For `map_err` of other answers of the kernel.
    pub(crate) fn system<E: Into<io::Error>>(operation: &'static str) -> impl FnOnce(E) -> Error {
        move |error| Error::System { operation, source: error.into() }
    }
}
