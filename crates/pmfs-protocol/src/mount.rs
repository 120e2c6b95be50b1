//! The answer to the question of a mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::VERSION;

/// The bytes of the answer to [`crate::MOUNT`].
pub const MOUNT_BYTES: usize = 4096;
/// The longest name of the server's socket.
pub const SOCKET_BYTES: usize = 48;
/// The longest path of a medium.
pub const PATH_BYTES_MAX: usize = MOUNT_BYTES - 80;

/// The way in which stores to a medium become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// A flush by the kernel alone.
    ByFlush,
    /// A write-back from the processor's caches and a fence, in mappings with MAP_SYNC.
    ByFence,
    /// The same in any mapping: the user says so.
    Assumed,
}

impl Persistence {
    fn to_number(self) -> u32 {
        match self {
            Persistence::ByFlush => 0,
            Persistence::ByFence => 1,
            Persistence::Assumed => 2,
        }
    }

    /// Whether a write-back and a fence make stores durable.
    pub fn is_synchronous(self) -> bool {
        self != Persistence::ByFlush
    }
}

/// A mounted file system, as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The medium, by the path that the server has opened.
    pub medium: PathBuf,
    /// The device number of the medium's file (`st_dev`).
    pub device: u64,
    /// The inode of the medium's file (`st_ino`).
    pub inode: u64,
    /// The way in which stores to the medium become durable.
    pub persistence: Persistence,
    /// The abstract name of the server's socket, [`SOCKET_BYTES`] at most.
    pub socket: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Layout {
    version: u32,
    persistence: u32,
    device: u64,
    inode: u64,
    socket_bytes: u32,
    path_bytes: u32,
    socket: [u8; SOCKET_BYTES],
    path: [u8; PATH_BYTES_MAX],
}

const _: () = assert!(size_of::<Layout>() == MOUNT_BYTES);

impl Mount {
    /// The answer's bytes; `None` if the path or the name is too long.
    pub fn to_bytes(&self) -> Option<[u8; MOUNT_BYTES]> {
        let path = self.medium.as_os_str().as_bytes();
        let mut layout = Layout {
            version: VERSION,
            persistence: self.persistence.to_number(),
            device: self.device,
            inode: self.inode,
            socket_bytes: self.socket.len() as u32,
            path_bytes: path.len() as u32,
            socket: [0; SOCKET_BYTES],
            path: [0; PATH_BYTES_MAX],
        };
        layout.socket.get_mut(..self.socket.len())?.copy_from_slice(&self.socket);
        layout.path.get_mut(..path.len())?.copy_from_slice(path);
        let mut bytes = [0; MOUNT_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        Some(bytes)
    }

    /// Reads an answer; `None` if it is of another version, or makes no sense.
    pub fn from_bytes(bytes: &[u8; MOUNT_BYTES]) -> Option<Mount> {
        let layout = Layout::read_from_bytes(bytes).ok().filter(|layout| layout.version == VERSION)?;
        let path = layout.path.get(..layout.path_bytes as usize)?;
        let medium = Path::new(OsStr::from_bytes(path)).to_owned();
        let socket = layout.socket.get(..layout.socket_bytes as usize)?.to_vec();
        let all = [Persistence::ByFlush, Persistence::ByFence, Persistence::Assumed];
        let persistence = all.into_iter().find(|one| one.to_number() == layout.persistence)?;
        Some(Mount { medium, device: layout.device, inode: layout.inode, persistence, socket })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back_and_nonsense_is_refused() {
        let persistence = Persistence::Assumed;
        let mount = Mount { medium: "/a/medium".into(), device: 3, inode: 4, persistence, socket: b"name".to_vec() };
        let bytes = mount.to_bytes().unwrap();
        assert_eq!(Mount::from_bytes(&bytes), Some(mount.clone()));
        for (at, wrong) in [(0, VERSION + 1), (4, 3), (24, SOCKET_BYTES as u32 + 1), (28, PATH_BYTES_MAX as u32 + 1)] {
            let mut bytes = bytes;
            bytes[at..at + 4].copy_from_slice(&wrong.to_ne_bytes());
            assert_eq!(Mount::from_bytes(&bytes), None, "{at}");
        }
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        assert_eq!(Mount { medium: long.into(), ..mount }.to_bytes(), None);
    }
}
