//! Why a file that a program uses is read and written by Linux and not by vmio: what `vmio run --verbose` says.

use std::{fmt, io};

use rustix::io::Errno;

/// A reason.
pub(super) enum Refusal {
    /// It is no file, or under none of the folders: nobody has asked for it.
    NotAsked,
    /// It has a set-user-ID or set-group-ID bit.
    Rights,
    /// It was opened for writing alone.
    WritesAlone,
    /// It was opened with O_DIRECT or O_PATH.
    Flags,
    /// There is no lease to be had of it.
    Lease(Errno),
    /// It cannot be mapped, or asked how long it is, or its log cannot be made.
    Failed(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotAsked => write!(f, "it is under none of the folders"),
            Refusal::Rights => write!(f, "it has a set-user-ID or set-group-ID bit, which each write takes away"),
            Refusal::WritesAlone => write!(f, "it was opened for writing alone"),
            Refusal::Flags => write!(f, "it was opened with O_DIRECT"),
            Refusal::Lease(Errno::AGAIN) => write!(f, "it is open elsewhere, too"),
            Refusal::Lease(Errno::ACCESS) => write!(f, "it is another user's, and a lease of it takes CAP_LEASE"),
            Refusal::Lease(Errno::INVAL) => write!(f, "its file system has no leases"),
            Refusal::Lease(error) => write!(f, "there is no lease of it: {error}"),
            Refusal::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Failed(error)
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Refusal::Failed(error.into())
    }
}
