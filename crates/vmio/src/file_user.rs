//! The kinds of users of a file, and which of them may have it mapped at the same time.

use std::fmt;

/// How a process has a file mapped, as far as others must know. With [`crate::Engine::Managed`] pages are the kernel's, the same in
/// all processes; with the other engines they are cached, and the process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUser {
    /// Keeps pages of its own and stores to them. Others would not see its stores in time: it shares with nobody.
    CachedWriter,
    /// Keeps pages of its own, which must not become old: it shares with all that do not store.
    CachedReader,
    /// Stores to the kernel's pages: it shares with all that access those.
    ManagedWriter,
    /// Loads from the kernel's pages: it shares with all but a cached writer.
    ManagedReader,
    /// A cached writer that maps the file whoever has it mapped, and prevents by other means that their stores and its own meet.
    /// Others than successors are locked out from then on.
    Successor,
}

impl FileUser {
    /// What somebody who wants to be this kind of user can do about another one.
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
    /// A process with a lock that is not vmio's and covers the whole file.
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
