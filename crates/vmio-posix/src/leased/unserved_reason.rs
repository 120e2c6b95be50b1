//! The reasons for which vmio does not serve a file that the program reads or writes: `vmio run --verbose` prints them.

use std::{fmt, io};

use rustix::io::Errno;

/// A reason.
pub(super) enum UnservedReason {
    /// It is not a regular file, or lies under none of the folders: nobody has asked vmio to serve it.
    NotAsked,
    /// It has a set-user-ID or set-group-ID bit.
    SetIdBits,
    /// It was opened for writing only.
    WriteOnly,
    /// It was opened with O_DIRECT or O_PATH.
    Flags,
    /// The kernel refuses a lease on it.
    Lease(Errno),
    /// A system call failed, or its log could not be made.
    Failed(io::Error),
}

impl fmt::Display for UnservedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnservedReason::NotAsked => write!(f, "it is under none of the folders"),
            UnservedReason::SetIdBits => {
                write!(f, "it has a set-user-ID or set-group-ID bit, which every write must clear")
            }
            UnservedReason::WriteOnly => write!(f, "it is open for writing only"),
            UnservedReason::Flags => write!(f, "it was opened with O_DIRECT"),
            UnservedReason::Lease(Errno::AGAIN) => write!(f, "it is also open elsewhere"),
            UnservedReason::Lease(Errno::ACCESS) => {
                write!(f, "it belongs to another user, and a lease of it requires CAP_LEASE")
            }
            UnservedReason::Lease(Errno::INVAL) => write!(f, "its file system does not support leases"),
            UnservedReason::Lease(error) => write!(f, "cannot take a lease of it: {error}"),
            UnservedReason::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for UnservedReason {
    fn from(error: io::Error) -> Self {
        UnservedReason::Failed(error)
    }
}

impl From<Errno> for UnservedReason {
    fn from(error: Errno) -> Self {
        UnservedReason::Failed(error.into())
    }
}
