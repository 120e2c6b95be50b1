//! Answers of the file system, in FUSE's words.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyXattr, TimeOrNow};
use vmio_pmfs::{Attributes, BLOCK_BYTES, Error, Kind, Time};

/// How long the kernel may believe names and attributes. All changes go through it, so it knows of each.
pub const BELIEVED: Duration = Duration::from_secs(1);

pub fn errno(error: &Error) -> Errno {
    if error.errno() == Errno::EIO.code() {
        tracing::error!(%error, "a call has failed");
    }
    Errno::from_i32(error.errno())
}

pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub fn attributes(of: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(of.ino),
        size: of.size,
        blocks: of.blocks * (BLOCK_BYTES / 512),
        atime: system_time(of.accessed),
        mtime: system_time(of.modified),
        ctime: system_time(of.changed),
        crtime: UNIX_EPOCH,
        kind: file_type(of.kind),
        perm: of.mode as u16,
        nlink: of.links,
        uid: of.uid,
        gid: of.gid,
        rdev: of.device as u32,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

pub fn generation(of: &Attributes) -> Generation {
    Generation(of.generation.into())
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let base = if time.seconds >= 0 { UNIX_EPOCH.checked_add(seconds) } else { UNIX_EPOCH.checked_sub(seconds) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(time.nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

pub fn time(time: TimeOrNow) -> Time {
    let time: SystemTime = match time {
        TimeOrNow::Now => return Time::now(),
        TimeOrNow::SpecificTime(time) => time,
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        Err(before) => {
            // Before 1970 fuser takes the nanoseconds off, which the kernel counts up from the second.
            let before = before.duration();
            Time { seconds: -(before.as_secs() as i64), nanoseconds: before.subsec_nanos() }
        }
    }
}

/// Gives a program the bytes that it asked for, or their number if it asked for that.
pub fn give(found: Result<Vec<u8>, Error>, size: u32, reply: ReplyXattr) {
    match found {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's words for times, as fuser reads them.
    #[test]
    fn times_before_1970_are_the_kernels() {
        for (seconds, nanoseconds) in [(0_i64, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-7, 1)] {
            let since = Duration::new(seconds.unsigned_abs(), nanoseconds);
            let read = if seconds >= 0 { UNIX_EPOCH + since } else { UNIX_EPOCH - since };
            assert_eq!(time(TimeOrNow::SpecificTime(read)), Time { seconds, nanoseconds });
        }
    }

    #[test]
    fn times_are_told_as_they_are() {
        let half = Time { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(system_time(half), UNIX_EPOCH - Duration::from_millis(1500));
        assert_eq!(system_time(Time { seconds: 5, nanoseconds: 7 }), UNIX_EPOCH + Duration::new(5, 7));
    }
}
