//! The kinds of users of a file, and which of them may map it at the same time.

use std::fmt;

/// How a process maps a file, as far as other processes must know.
///
/// With [`crate::Engine::Managed`] the pages are the kernel's, the same in all processes. With the other engines the process has
/// cached pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUser {
    /// Caches pages and stores to them. Others would not see its stores in time: it shares the file with nobody.
    CachedWriter,
    /// Caches pages, which must not become stale: it shares the file with all processes that do not store.
    CachedReader,
    /// Stores to the kernel's pages: it shares the file with all users of the kernel's pages.
    ManagedWriter,
    /// Loads from the kernel's pages: it shares the file with all but cached writers and successors.
    ManagedReader,
    /// A cached writer that maps the file no matter who else does, and keeps their stores apart from its own by other means. From
    /// then on it locks out new users other than successors.
    Successor,
}

impl FileUser {
    /// The advice for a process that wants to become this kind of user, but finds that holder.
    pub(crate) fn way_round(self, holder: Holder) -> &'static str {
        match (self, holder) {
            (_, Holder::Stranger) => "end its lock (`lslocks` shows it)",
            (_, Holder::User(FileUser::CachedWriter | FileUser::Successor)) => {
                "close it there, or open it with Engine::Managed in both"
            }
            (FileUser::CachedWriter, Holder::User(FileUser::CachedReader)) => {
                "close it there, or open it read-only here too"
            }
            (FileUser::ManagedWriter, Holder::User(_)) => {
                "close it there, open it with Engine::Managed there too, or read-only here"
            }
            (_, Holder::User(_)) => "close it there, or open it with Engine::Managed here too",
        }
    }
}

/// The holder of a lock that locks this process out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Another process that maps the file.
    User(FileUser),
    /// A process with a lock that covers the whole file and is not vmio's.
    Stranger,
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Holder::User(FileUser::CachedWriter) => "another process has it mapped for writing",
            Holder::User(FileUser::Successor) => "another process has taken it over, and has it mapped for writing",
            Holder::User(FileUser::CachedReader) => "another process has it mapped read-only",
            Holder::User(FileUser::ManagedWriter) => "another process has it mapped for writing with Engine::Managed",
            Holder::User(FileUser::ManagedReader) => "another process has it mapped read-only with Engine::Managed",
            Holder::Stranger => "a lock (fcntl) that is not vmio's covers all of it",
        })
    }
}
