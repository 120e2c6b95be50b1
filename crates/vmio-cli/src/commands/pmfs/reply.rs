//! Answers of the file system, in FUSE's words.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, TimeOrNow};
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
    let time = match time {
        TimeOrNow::Now => return Time::now(),
        TimeOrNow::SpecificTime(time) => time,
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        Err(before) => {
            // The nanoseconds count up from the second before.
            let before = before.duration();
            let whole = before.as_secs() as i64;
            match before.subsec_nanos() {
                0 => Time { seconds: -whole, nanoseconds: 0 },
                nanoseconds => Time { seconds: -whole - 1, nanoseconds: 1_000_000_000 - nanoseconds },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_come_back() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-7, 1)] {
            let one = Time { seconds, nanoseconds };
            assert_eq!(time(TimeOrNow::SpecificTime(system_time(one))), one);
        }
    }
}
