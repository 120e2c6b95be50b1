//! The protocol by which a process leases extents of a file of a mounted vmio-pmfs, and maps them itself.
//!
//! 1. The process asks any descriptor of the mount for the [`Mount`] (`ioctl` [`MOUNT`]), and connects to the server's socket. The server must run as
//!    root, as the same user, or as the owner of the medium: a stranger's would name a medium of this user's.
//! 2. It opens the medium that the server names, by its own rights, takes a shared lock (open file description) of byte [`HOLDERS_BYTE`] of it, and
//!    sends a byte with that descriptor. So the server knows that it gives nothing away. It says by which number the process is a holder of leases
//!    ([`Message::Hello`]), and sends memory (a memfd) of [`SLOTS`] numbers with that.
//! 3. It asks the descriptor of a file for a lease of some blocks ([`LEASE`]), and maps the extents of the [`Grant`].
//!    A lease to grow ([`Request::to_grow`]) has blocks behind the end of the file. The process stores there what it appends, then the new
//!    length in a slot of its memory ([`sealed`]). The server looks there whenever anybody asks for the file, and when the process is gone.
//!    Where appends are to be durable ([`Request::to_grow_durably`]), the length goes into a word of the medium instead, which the
//!    grant names. The process stores the bytes, waits for a fence, exchanges the word for the new length, writes it back from its
//!    caches, and waits for a fence. A mount after a crash makes the bytes before that length the file's.
//! 4. When the server recalls a lease ([`Message::Recall`]), the process unmaps those blocks and says so ([`Message::Returned`]). Of its own
//!    accord it gives a file's leases back by [`RETURN`].
//! 5. If the server ends its half of the connection, the holder has lost all its leases: it unmaps them, says so ([`Message::Left`]), and
//!    ends the other half. The end of its process is that of the holder, too.
//!
//! Numbers have the byte order of the machine: both ends are on it.

mod atomic;
mod descriptor;
mod grant;
mod length_word;
#[cfg(all(test, loom))]
mod loom_room;
mod message;
mod mount;
mod room;

pub use descriptor::{receive_with, send_with};
pub use grant::{EXTENTS_MAX, Extent, Grant, Request, SLOT_BYTES, SLOTS};
pub use length_word::{CLOSED, FREE, SEED_OF_MEMORY, length_in, length_of, sealed};
pub use message::{MESSAGE_BYTES, Message};
pub use mount::{MOUNT_BYTES, Mount, PATH_BYTES_MAX, Persistence, SOCKET_BYTES};
pub use room::{Ending, LengthWord, Room, Turn};

use rustix::ioctl::{Opcode, opcode};

/// The version of the protocol. Processes lease nothing of a server of another version.
pub const VERSION: u32 = 2;

/// The byte of the medium on which each holder has a shared lock, far behind the end of any medium. While there is one, the medium is not
/// mounted anew.
pub const HOLDERS_BYTE: u64 = (1 << 62) + 16;

/// Asks a descriptor of the mount about it: the answer is a [`Mount`].
pub const MOUNT: Opcode = opcode::read::<[u8; MOUNT_BYTES]>(b'V', 0xA0);

/// Asks the descriptor of a file for a lease: a [`Request`] becomes a [`Grant`].
///
/// Errors:
///
/// - EBADF: the descriptor is not open for the stores or loads that are asked for.
/// - EBUSY: the kernel has pages of the file in its cache. Then map the file itself.
/// - EAGAIN: a lease of the file is recalled just now.
/// - EEXIST: another process appends to the file.
/// - EPERM: there is no such holder, or it has lost its leases.
/// - ENOSPC: there are no blocks for holes.
/// - EOPNOTSUPP: only a flush makes stores to this medium durable.
pub const LEASE: Opcode = opcode::read_write::<Grant>(b'V', 0xA1);

/// Gives all leases of a descriptor's file back. The argument is the holder's number.
pub const RETURN: Opcode = opcode::write::<u64>(b'V', 0xA2);
