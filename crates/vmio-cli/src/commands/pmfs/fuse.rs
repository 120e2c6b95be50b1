//! The FUSE server: requests of the kernel become calls of the file system.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use vmio_pmfs::{
    Attributes, BLOCK_BYTES, Changes, Error, Fs, Kind, Length, New, Precondition, RangeChange, Replace, Result, Seek,
};

use vmio_pmfs_protocol::{LEASE, MOUNT, MOUNT_BYTES, RETURN, Request as LeaseRequest};
use zerocopy::{FromBytes, IntoBytes};

use super::known::Known;
use super::leases::{self, Leases};
use super::reply::{self, BELIEVED};

/// Entries that are looked up at once for a listing.
const LISTED: usize = 256;

/// Modes of fallocate.
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_AND_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// The bits of a mode by which a program runs as another user or group. The one of the group means nothing if the group may not run it.
fn set_ids(mode: u32) -> u32 {
    let of_group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & (libc::S_ISUID | of_group)
}

pub struct Server {
    fs: Arc<Fs>,
    known: Known,
    leases: Arc<Leases>,
    /// The description of the mount for processes that lease extents, if any may.
    mount: Option<[u8; MOUNT_BYTES]>,
}

impl Server {
    pub fn new(fs: Arc<Fs>, leases: Arc<Leases>, mount: Option<[u8; MOUNT_BYTES]>) -> Server {
        Server { known: Known::new(Arc::clone(&fs)), fs, leases, mount }
    }

    /// A call that may take leased blocks away, or needs space.
    fn unleased<T>(&self, call: impl FnMut() -> Result<T>) -> Result<T> {
        self.leases.without_leases(call)
    }

    /// The attributes of an inode as they are now, and how long the kernel may believe them.
    fn current(&self, of: Attributes) -> Result<(Attributes, Duration)> {
        if of.kind != Kind::File {
            return Ok((of, BELIEVED));
        }
        let is_growing = self.leases.settle(of.ino);
        // A process may have appended since, and given its lease back.
        let now = self.fs.attributes(of.ino)?;
        Ok((now, if is_growing { Duration::ZERO } else { BELIEVED }))
    }

    fn entry(&self, made: Result<Attributes>, reply: ReplyEntry) {
        let made = made.and_then(|made| {
            self.known.tell(&made)?;
            self.current(made)
        });
        match made {
            Ok((made, believed)) => reply.entry(&believed, &reply::attributes(&made), reply::generation(&made)),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn make(&self, request: &Request, parent: INodeNo, name: &OsStr, new: New<'_>, mode: u32) -> Result<Attributes> {
        let owner = (request.uid(), request.gid());
        self.unleased(|| self.fs.create(parent.0, name.as_bytes(), new, mode, owner))
    }

    /// `.` and `..`, which the file system has no entries for, with the cookies behind them.
    fn dots(&self, ino: u64) -> Result<[(u64, &'static str, u64); 2]> {
        Ok([(ino, ".", 1), (self.fs.parent(ino)?, "..", 2)])
    }

    /// The file system's cookie for the kernel's: two of those are for `.` and `..`.
    fn cookie(offset: u64) -> u64 {
        offset.saturating_sub(2)
    }

    fn list(&self, ino: u64, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        for (ino, name, cookie) in self.dots(ino)?.into_iter().filter(|(_, _, cookie)| *cookie > offset) {
            if reply.add(INodeNo(ino), cookie, FileType::Directory, name) {
                return Ok(());
            }
        }
        let mut from = Self::cookie(offset);
        loop {
            let entries = self.fs.list(ino, from, LISTED)?;
            for entry in &entries {
                let kind = reply::file_type(entry.kind);
                if reply.add(INodeNo(entry.ino), entry.cookie + 2, kind, OsStr::from_bytes(&entry.name)) {
                    return Ok(());
                }
                from = entry.cookie;
            }
            if entries.len() < LISTED {
                return Ok(());
            }
        }
    }

    fn list_with_attributes(&self, ino: u64, offset: u64, reply: &mut ReplyDirectoryPlus) -> Result<()> {
        let mut add = |attributes: &Attributes, cookie: u64, name: &OsStr| {
            let (current, believed) = self.current(*attributes).unwrap_or((*attributes, Duration::ZERO));
            let (ino, generation) = (INodeNo(attributes.ino), reply::generation(attributes));
            reply.add(ino, cookie, name, &believed, &reply::attributes(&current), generation)
        };
        for (ino, name, cookie) in self.dots(ino)?.into_iter().filter(|(_, _, cookie)| *cookie > offset) {
            if add(&self.fs.attributes(ino)?, cookie, OsStr::new(name)) {
                return Ok(());
            }
        }
        let mut from = Self::cookie(offset);
        loop {
            let entries = self.fs.list(ino, from, LISTED)?;
            for entry in &entries {
                from = entry.cookie;
                let attributes = match self.fs.attributes(entry.ino) {
                    // Removed since.
                    Err(Error::NoInode { .. }) => continue,
                    found => found?,
                };
                match self.known.tell(&attributes) {
                    Err(Error::NoInode { .. }) => continue,
                    told => told?,
                }
                if add(&attributes, entry.cookie + 2, OsStr::from_bytes(&entry.name)) {
                    return self.known.forget(entry.ino, 1);
                }
            }
            if entries.len() < LISTED {
                return Ok(());
            }
        }
    }

    /// A program that was changed no longer runs with its file capabilities. Before other changes the kernel asks for that itself.
    fn clear_capabilities(&self, ino: u64) -> Result<()> {
        match self.fs.remove_xattr(ino, b"security.capability") {
            Ok(()) | Err(Error::NoXattr { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A program that another user has changed no longer runs with its owner's rights.
    fn clear_set_ids(&self, ino: u64) -> Result<()> {
        let mode = self.fs.attributes(ino)?.mode;
        if set_ids(mode) != 0 {
            self.fs.set_attributes(ino, &Changes { mode: Some(mode & !set_ids(mode)), ..Changes::default() })?;
        }
        Ok(())
    }

    fn write_all(&self, ino: u64, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match self.unleased(|| self.fs.write(ino, offset + done as u64, &data[done..])) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Appends: the kernel does not know the end of a file to which processes append by themselves.
    fn append(&self, ino: u64, data: &[u8]) -> Result<usize> {
        let (end, written) = self.unleased(|| {
            self.leases.settle(ino);
            self.fs.append(ino, data)
        })?;
        match written < data.len() {
            true => Ok(written + self.write_all(ino, end + written as u64, &data[written..]).unwrap_or(0)),
            false => Ok(written),
        }
    }
}

fn done(outcome: Result<()>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(reply::errno(&error)),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        // Older kernels lack some; then they do without.
        for flag in wanted.iter() {
            _ = config.add_capabilities(flag);
        }
        // The kernel's own most is less or equal.
        if let Err(most) = config.set_max_write(self.fs.superblock().geometry.write_bytes_max() as u32) {
            _ = config.set_max_write(most);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if let Err(error) = self.known.forget_all() {
            tracing::error!(%error, "deleted files stay until the next mount");
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, times: u64) {
        if let Err(error) = self.known.forget(ino.0, times) {
            tracing::error!(%error, "a deleted file stays until the next mount");
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.fs.lookup(parent.0, name.as_bytes()), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.fs.attributes(ino.0).and_then(|found| self.current(found)) {
            Ok((found, believed)) => reply.attr(&believed, &reply::attributes(&found)),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed, modified) = (accessed.map(reply::time), modified.map(reply::time));
        let changes = Changes { mode, uid, gid, size, accessed, modified };
        // What was appended before has changed the times before.
        self.leases.settle(ino.0);
        match self.unleased(|| self.fs.set_attributes(ino.0, &changes)).and_then(|found| self.current(found)) {
            Ok((found, believed)) => reply.attr(&believed, &reply::attributes(&found)),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.fs.read_link(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let new = match mode & libc::S_IFMT {
            libc::S_IFREG => New::File,
            libc::S_IFIFO => New::Fifo,
            libc::S_IFSOCK => New::Socket,
            libc::S_IFCHR => New::CharDevice(device.into()),
            libc::S_IFBLK => New::BlockDevice(device.into()),
            _ => return reply.error(Errno::EINVAL),
        };
        self.entry(self.make(request, parent, name, new, mode), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        self.entry(self.make(request, parent, name, New::Directory, mode), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.fs.unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.fs.remove_directory(parent.0, name.as_bytes()), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let new = New::Symlink(target.as_os_str().as_bytes());
        self.entry(self.make(request, parent, name, new, 0o777), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, name, to, new_name) = (parent.0, name.as_bytes(), new_parent.0, new_name.as_bytes());
        let renamed = match flags {
            _ if flags.is_empty() => self.unleased(|| self.fs.rename(from, name, to, new_name, Replace::Yes)),
            RenameFlags::RENAME_NOREPLACE => self.unleased(|| self.fs.rename(from, name, to, new_name, Replace::No)),
            RenameFlags::RENAME_EXCHANGE => self.fs.exchange(from, name, to, new_name),
            // A whiteout.
            _ => return reply.error(Errno::EINVAL),
        };
        done(renamed, reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.unleased(|| self.fs.link(ino.0, parent.0, name.as_bytes())), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.fs.open(ino.0) {
            Ok(()) => {
                self.leases.opened(ino.0);
                reply.opened(leases::handle(flags), FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.make(request, parent, name, New::File, mode);
        // Nobody can remove it before it is open: the kernel has the directory locked.
        let opened = made.and_then(|made| {
            self.known.tell(&made)?;
            self.fs.open(made.ino)?;
            Ok(made)
        });
        match opened {
            Ok(made) => {
                self.leases.opened(made.ino);
                let (attributes, generation) = (reply::attributes(&made), reply::generation(&made));
                let handle = leases::handle(OpenFlags(flags));
                reply.created(&BELIEVED, &attributes, generation, handle, FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Calls of programs have an owner, the kernel's own reads for its cache have none.
        if owner.is_none() {
            self.leases.kernel_caches(ino.0);
        }
        self.leases.settle(ino.0);
        let mut bytes = vec![0; size as usize];
        match self.fs.read(ino.0, offset, &mut bytes) {
            Ok(there) => reply.data(&bytes[..there]),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        opened: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.leases.kernel_caches(ino.0);
        }
        let cleared = match flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => self.clear_set_ids(ino.0),
            false => Ok(()),
        };
        let cleared = cleared.and_then(|()| self.clear_capabilities(ino.0));
        let appends = opened.0 & libc::O_APPEND != 0 && !flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = cleared.and_then(|()| match appends && self.leases.has_grown(ino.0) {
            true => self.append(ino.0, data),
            false => self.write_all(ino.0, offset, data),
        });
        // The kernel leaves that to servers whose files it does not cache.
        let is_synchronous = opened.0 & libc::O_DSYNC != 0;
        match written.and_then(|written| if is_synchronous { self.fs.sync().map(|()| written) } else { Ok(written) }) {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    /// A close has nothing to write, and the kernel has the locks. It asks no more after this answer: a round trip less for each close.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.leases.closed(ino.0);
        done(self.fs.close(ino.0), reply);
    }

    fn ioctl(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: IoctlFlags,
        command: u32,
        bytes: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        match command {
            MOUNT => match &self.mount {
                Some(mount) => reply.ioctl(0, mount),
                // As any file system's server that knows nothing of leases.
                None => reply.error(Errno::ENOTTY),
            },
            LEASE => match LeaseRequest::from_bytes(bytes) {
                Some(request) => match self.leases.lease(ino.0, handle, &request) {
                    Ok(grant) => reply.ioctl(0, grant.as_bytes()),
                    Err(number) => reply.error(Errno::from_i32(number)),
                },
                None => reply.error(Errno::EINVAL),
            },
            RETURN => match u64::read_from_bytes(bytes) {
                Ok(holder) => {
                    self.leases.returned(ino.0, holder);
                    reply.ioctl(0, &[]);
                }
                Err(_) => reply.error(Errno::EINVAL),
            },
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.leases.settle(ino.0);
        if self.leases.has_lost(ino.0) {
            return reply.error(Errno::EIO);
        }
        done(self.fs.sync(), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.fs.sync(), reply);
    }

    /// A folder that is open stays, as a file does.
    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.fs.open(ino.0) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        done(self.fs.close(ino.0), reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list(ino.0, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        match self.list_with_attributes(ino.0, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }

    fn setxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        let precondition = match flags {
            0 => Precondition::None,
            libc::XATTR_CREATE => Precondition::Absent,
            libc::XATTR_REPLACE => Precondition::Present,
            _ => return reply.error(Errno::EINVAL),
        };
        done(self.unleased(|| self.fs.set_xattr(ino.0, name.as_bytes(), value, precondition)), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply::give(self.fs.xattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // The kernel hides the values of trusted ones, and leaves the names to the file system.
        let is_shown = |name: &Vec<u8>| request.uid() == 0 || !name.starts_with(b"trusted.");
        let listed = self
            .fs
            .xattrs(ino.0)
            .map(|names| names.into_iter().filter(is_shown).flat_map(|name| name.into_iter().chain([0])).collect());
        reply::give(listed, size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.unleased(|| self.fs.remove_xattr(ino.0, name.as_bytes())), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let space = self.fs.space();
        let (block, name) = (BLOCK_BYTES as u32, space.name_bytes_max as u32);
        let free = space.free_blocks;
        reply.statfs(space.blocks, free, free, space.inodes, space.free_inodes, block, name, block);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.leases.settle(ino.0);
        // The kernel lets no others pass.
        let change = match mode {
            0 => RangeChange::Allocate(Length::Grows),
            libc::FALLOC_FL_KEEP_SIZE => RangeChange::Allocate(Length::Stays),
            libc::FALLOC_FL_ZERO_RANGE => RangeChange::Zero(Length::Grows),
            ZERO_AND_KEEP => RangeChange::Zero(Length::Stays),
            PUNCH => RangeChange::Punch,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        done(self.unleased(|| self.fs.change_range(ino.0, change, offset, length)), reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let wanted = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        self.leases.settle(ino.0);
        let found = u64::try_from(offset).map_or(Ok(None), |offset| self.fs.seek(ino.0, offset, wanted));
        match found {
            Ok(Some(found)) => reply.offset(found as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(reply::errno(&error)),
        }
    }
}
