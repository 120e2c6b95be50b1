//! Inodes: 256 bytes, each at a place of its own.

use zerocopy::byteorder::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Damage, Error, Result};
use crate::format::geometry::BLOCK_BYTES;

/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest target of a symbolic link.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// The greatest length of a file: extents name its blocks by 32 bits.
pub(crate) const FILE_BYTES_MAX: u64 = (u32::MAX as u64 - 1) * BLOCK_BYTES;
/// The greatest length of a directory: its slots have numbers of 32 bits, and so has the one behind the last.
pub(crate) const DIRECTORY_BYTES_MAX: u64 = ((1 << 26) - 1) * BLOCK_BYTES;
/// The most names of an inode, and the most directories in one.
pub(crate) const LINKS_MAX: u32 = 1 << 31;
/// Bytes of an inode.
pub(crate) const INODE_BYTES: usize = 256;
/// Extents in the inode itself; others are in the chain.
pub(crate) const INLINE_EXTENTS: usize = 10;
/// The word that makes an inode used or free: its checksum and its kind. All changes of it are atomic.
pub(crate) const STATE_BYTES: usize = 8;
/// The flag of the alignment wish.
const WISHES_ALIGNMENT: u8 = 1;

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    File = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        [File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

impl Time {
    /// The time now.
    pub fn now() -> Time {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }
}

/// Blocks of a file that follow each other on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first block of the file.
    pub(crate) file_block: u32,
    /// How many blocks; 0 if the place has no extent.
    pub(crate) count: u32,
    /// The first block on the medium.
    pub(crate) start: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtent {
    file_block: U32,
    count: U32,
    start: U64,
}

impl From<Extent> for RawExtent {
    fn from(extent: Extent) -> RawExtent {
        let Extent { file_block, count, start } = extent;
        RawExtent { file_block: U32::new(file_block), count: U32::new(count), start: U64::new(start) }
    }
}

impl From<RawExtent> for Extent {
    fn from(raw: RawExtent) -> Extent {
        Extent { file_block: raw.file_block.get(), count: raw.count.get(), start: raw.start.get() }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    checksum: U32,
    kind: u8,
    flags: u8,
    reserved: [u8; 2],
    modified_s: I64,
    changed_s: I64,
    modified_ns: U32,
    changed_ns: U32,
    size: U64,
    // An entry of the journal holds all above: most calls change no more of an inode.
    links: U32,
    mode: U32,
    accessed_s: I64,
    accessed_ns: U32,
    generation: U32,
    uid: U32,
    gid: U32,
    parent_or_device: U64,
    chain: U64,
    attributes: U64,
    extents: [RawExtent; INLINE_EXTENTS],
}

const _: () = assert!(size_of::<Raw>() == INODE_BYTES);
const _: () = assert!(size_of::<RawExtent>() == 16);

impl Raw {
    fn of(bytes: &[u8; INODE_BYTES]) -> Raw {
        let mut raw = Raw::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(bytes);
        raw
    }

    fn inode(&self, kind: Kind) -> Inode {
        let time = |seconds: I64, nanoseconds: U32| Time { seconds: seconds.get(), nanoseconds: nanoseconds.get() };
        Inode {
            kind,
            mode: self.mode.get(),
            links: self.links.get(),
            uid: self.uid.get(),
            gid: self.gid.get(),
            size: self.size.get(),
            accessed: time(self.accessed_s, self.accessed_ns),
            modified: time(self.modified_s, self.modified_ns),
            changed: time(self.changed_s, self.changed_ns),
            generation: self.generation.get(),
            parent_or_device: self.parent_or_device.get(),
            chain: self.chain.get(),
            attributes: self.attributes.get(),
            wishes_alignment: self.flags & WISHES_ALIGNMENT != 0,
            extents: self.extents.map(Extent::from),
        }
    }
}

/// The fields of an inode that may be damaged.
pub(crate) struct Unverified {
    /// The byte of the kind, which may be no kind's.
    pub(crate) kind: u8,
    /// The byte of the flags.
    pub(crate) flags: u8,
    /// The others. Its kind is a file's if the byte is no kind's.
    pub(crate) inode: Inode,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: Kind,
    /// Permissions: the lower 12 bits of a mode.
    pub(crate) mode: u32,
    /// Names that it has; a directory also counts itself and the directories in it.
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    /// Tells the users of a number apart that follow each other.
    pub(crate) generation: u32,
    /// Of a directory the one it is in, of a device its number, of a symbolic link the checksum of its target, else 0.
    pub(crate) parent_or_device: u64,
    /// The first block of extents that are not in the inode; 0 for none.
    pub(crate) chain: u64,
    /// The block of extended attributes; 0 for none.
    pub(crate) attributes: u64,
    /// Whether it is to get aligned extents even if it grows by small writes. In a directory, new files and directories inherit it.
    pub(crate) wishes_alignment: bool,
    pub(crate) extents: [Extent; INLINE_EXTENTS],
}

/// Whether an inode of this kind can have this length.
fn can_be_so_long(kind: Kind, size: u64) -> bool {
    match kind {
        Kind::File => size <= FILE_BYTES_MAX,
        Kind::Directory => size <= DIRECTORY_BYTES_MAX && size.is_multiple_of(BLOCK_BYTES),
        Kind::Symlink => (1..=SYMLINK_BYTES_MAX as u64).contains(&size),
        Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => size == 0,
    }
}

/// The checksum of an inode at its place.
fn checksum(ino: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &bytes[4..])
}

impl Inode {
    pub(crate) fn to_bytes(&self, ino: u64) -> [u8; INODE_BYTES] {
        let mut raw = Raw {
            checksum: U32::ZERO,
            kind: self.kind as u8,
            flags: if self.wishes_alignment { WISHES_ALIGNMENT } else { 0 },
            reserved: [0; 2],
            mode: U32::new(self.mode),
            links: U32::new(self.links),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            size: U64::new(self.size),
            accessed_s: I64::new(self.accessed.seconds),
            modified_s: I64::new(self.modified.seconds),
            changed_s: I64::new(self.changed.seconds),
            accessed_ns: U32::new(self.accessed.nanoseconds),
            modified_ns: U32::new(self.modified.nanoseconds),
            changed_ns: U32::new(self.changed.nanoseconds),
            generation: U32::new(self.generation),
            parent_or_device: U64::new(self.parent_or_device),
            chain: U64::new(self.chain),
            attributes: U64::new(self.attributes),
            extents: self.extents.map(RawExtent::from),
        };
        raw.checksum = U32::new(checksum(ino, raw.as_bytes()));
        let mut bytes = [0; INODE_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads the inode with a number, which lies at byte `at`; nothing if it is free.
    pub(crate) fn from_bytes(ino: u64, bytes: &[u8; INODE_BYTES], at: u64) -> Result<Option<Inode>> {
        let raw = Raw::of(bytes);
        if raw.kind == 0 {
            return Ok(None);
        }
        let damaged = |damage| Error::Damaged { structure: "an inode", at, damage };
        let (stored, computed) = (raw.checksum.get(), checksum(ino, bytes));
        if stored != computed {
            return Err(damaged(Damage::Checksum { stored, computed }));
        }
        let kind = Kind::from_byte(raw.kind)
            .ok_or_else(|| damaged(Damage::Field { field: "kind", found: u64::from(raw.kind) }))?;
        if !can_be_so_long(kind, raw.size.get()) {
            return Err(damaged(Damage::Field { field: "length", found: raw.size.get() }));
        }
        if raw.flags & !WISHES_ALIGNMENT != 0 {
            return Err(damaged(Damage::Field { field: "flags", found: raw.flags.into() }));
        }
        if raw.links.get() > LINKS_MAX {
            return Err(damaged(Damage::Field { field: "number of links", found: raw.links.get().into() }));
        }
        Ok(Some(raw.inode(kind)))
    }

    /// The fields of an inode's bytes, whatever these hold.
    pub(crate) fn unverified(bytes: &[u8; INODE_BYTES]) -> Unverified {
        let raw = Raw::of(bytes);
        let inode = raw.inode(Kind::from_byte(raw.kind).unwrap_or(Kind::File));
        Unverified { kind: raw.kind, flags: raw.flags, inode }
    }

    /// The generation of the place's last user, which a free inode still has.
    pub(crate) fn last_generation(bytes: &[u8; INODE_BYTES]) -> u32 {
        Raw::of(bytes).generation.get()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_comes_back_only_at_its_place() {
        let time = Time { seconds: -1, nanoseconds: 5 };
        let extent = Extent { file_block: 1, count: 2, start: 3 };
        let inode = Inode {
            kind: Kind::Symlink,
            mode: 0o755,
            links: 1,
            uid: 2,
            gid: 3,
            size: 4,
            accessed: time,
            modified: time,
            changed: time,
            generation: 9,
            parent_or_device: 6,
            chain: 7,
            attributes: 8,
            wishes_alignment: true,
            extents: [extent; INLINE_EXTENTS],
        };
        let mut bytes = inode.to_bytes(5);
        assert_eq!(Inode::from_bytes(5, &bytes, 0).unwrap(), Some(inode));
        assert!(Inode::from_bytes(6, &bytes, 0).is_err());
        bytes[..STATE_BYTES].fill(0);
        assert_eq!(Inode::from_bytes(5, &bytes, 0).unwrap(), None);
        assert_eq!(Inode::last_generation(&bytes), 9);
    }
}
