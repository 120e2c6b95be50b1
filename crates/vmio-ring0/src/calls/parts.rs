//! Calls that need not be made in one piece: where a program has to expect less than it has asked for.

use std::mem::MaybeUninit;

use crate::calls::memory::{Call, copied};
use crate::raw;

/// A part of a call has no more vectors than this.
const VECTORS_MAX: usize = 32;
/// The offset of preadv2 and pwritev2 that stands for the descriptor's own.
const PRESENT_OFFSET: u64 = u64::MAX;

/// How a call may be made in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// A call for each part, as far as it comes.
    All,
    /// A call for the first part: a second one might wait for more than the program does.
    First,
    /// One call for all of it: it is a message, or something else than bytes.
    None,
}

/// The kinds of memory that hold the bytes of a call.
enum Kind {
    /// The buffer that is the second argument, as long as the third says.
    Buffer,
    /// As many vectors.
    Vectors,
}

/// The vectors of a part, which the call for it points to.
pub(crate) struct PartVectors([[usize; 2]; VECTORS_MAX]);

impl PartVectors {
    /// None so far.
    pub(crate) const fn new() -> PartVectors {
        PartVectors([[0; 2]; VECTORS_MAX])
    }
}

impl Call {
    /// How the call may be made in parts ([`Self::part`]), by what its descriptor is. Makes system calls of its own.
    pub(crate) fn parts(&self) -> Parts {
        let (descriptor, flags) = (self.arguments[0], self.arguments[3]);
        let is_read = match self.number as i64 {
            libc::SYS_recvfrom if flags & (libc::MSG_WAITALL | libc::MSG_ERRQUEUE | libc::MSG_TRUNC) as u64 != 0 => {
                return Parts::None;
            }
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => true,
            libc::SYS_recvfrom => true,
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => false,
            // A stream needs no address.
            libc::SYS_sendto => false,
            _ => return Parts::None,
        };
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel writes the structure, if the descriptor is open.
        let kind = unsafe {
            let told = raw::call(libc::SYS_fstat as u64, [descriptor, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
            if told == 0 { stat.assume_init().st_mode & libc::S_IFMT } else { 0 }
        };
        match kind {
            libc::S_IFREG | libc::S_IFBLK => Parts::All,
            libc::S_IFSOCK if !is_stream(descriptor) => Parts::None,
            libc::S_IFIFO | libc::S_IFCHR | libc::S_IFSOCK => {
                if is_read {
                    Parts::First
                } else {
                    Parts::All
                }
            }
            _ => Parts::None,
        }
    }

    /// The call for the bytes behind `done`, `most` of them at most, and how many these are. `None` if no bytes are left, or the call has no parts. Vectors are
    /// copied to `vectors`, if they can be read: where they lie in managed memory, it must be held.
    pub(crate) fn part(&self, done: usize, most: usize, vectors: &mut PartVectors) -> Option<(Call, usize)> {
        let mut part = *self;
        let len = match self.kind()? {
            Kind::Buffer => {
                let len = (self.arguments[2] as usize).checked_sub(done).filter(|left| *left > 0)?.min(most);
                part.arguments[1] = self.arguments[1].wrapping_add(done as u64);
                part.arguments[2] = len as u64;
                len
            }
            Kind::Vectors => {
                let (count, len) = vectors.fill(self.arguments[1] as usize, self.arguments[2] as usize, done, most)?;
                part.arguments[1] = vectors.0.as_ptr() as u64;
                part.arguments[2] = count as u64;
                len
            }
        };
        let has_offset = match self.number as i64 {
            libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_preadv | libc::SYS_pwritev => true,
            libc::SYS_preadv2 | libc::SYS_pwritev2 => self.arguments[3] != PRESENT_OFFSET,
            _ => false,
        };
        if has_offset {
            part.arguments[3] = self.arguments[3].wrapping_add(done as u64);
        }
        Some((part, len))
    }

    /// The kind of memory that holds the bytes, of a call that has parts.
    fn kind(&self) -> Option<Kind> {
        match self.number as i64 {
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_write | libc::SYS_pwrite64 => Some(Kind::Buffer),
            libc::SYS_recvfrom | libc::SYS_sendto => Some(Kind::Buffer),
            libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => Some(Kind::Vectors),
            libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => Some(Kind::Vectors),
            _ => None,
        }
    }
}

impl PartVectors {
    /// Takes over vectors of the program's, without the first `done` bytes; returns how many, and their bytes. `None` if they have no more bytes.
    fn fill(&mut self, start: usize, count: usize, done: usize, most: usize) -> Option<(usize, usize)> {
        let (mut skipped, mut taken, mut len) = (done, 0, 0);
        for index in 0..count.min(1024) {
            let mut vector = [0; 16];
            if copied(start.wrapping_add(index * vector.len()), &mut vector) < vector.len() {
                break;
            }
            let word = |at: usize| usize::from_le_bytes(std::array::from_fn(|byte| vector[at + byte]));
            let (base, all) = (word(0), word(8));
            let skips = skipped.min(all);
            skipped -= skips;
            let wanted = (all - skips).min(most - len);
            if wanted > 0 {
                self.0[taken] = [base.wrapping_add(skips), wanted];
                taken += 1;
                len += wanted;
            }
            if taken == VECTORS_MAX || len == most {
                break;
            }
        }
        (len > 0).then_some((taken, len))
    }
}

/// Whether a socket is a stream of bytes.
fn is_stream(descriptor: u64) -> bool {
    let (mut kind, mut len) = (0_i32, size_of::<i32>() as u32);
    let (level, option) = (libc::SOL_SOCKET as u64, libc::SO_TYPE as u64);
    let arguments = [descriptor, level, option, &raw mut kind as u64, &raw mut len as u64, 0];
    // SAFETY: the kernel writes the number, and its length.
    let told = unsafe { raw::call(libc::SYS_getsockopt as u64, arguments) };
    told == 0 && kind == libc::SOCK_STREAM
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn call(number: i64, arguments: [u64; 6]) -> Call {
        Call { number: number as u64, arguments }
    }

    #[test]
    fn files_and_streams_have_parts() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let (stream, _other) = UnixStream::pair().unwrap();
        let (datagrams, _second) = UnixDatagram::pair().unwrap();
        let of = |number, file: &dyn AsRawFd, flags| call(number, [file.as_raw_fd() as u64, 0, 0, flags, 0, 0]).parts();
        assert_eq!(of(libc::SYS_preadv, &file, 0), Parts::All);
        assert_eq!(of(libc::SYS_readv, &pipe, 0), Parts::First);
        assert_eq!(of(libc::SYS_recvfrom, &stream, 0), Parts::First);
        assert_eq!(of(libc::SYS_sendto, &stream, 0), Parts::All);
        assert_eq!(of(libc::SYS_recvfrom, &stream, libc::MSG_WAITALL as u64), Parts::None);
        assert_eq!(of(libc::SYS_recvfrom, &datagrams, 0), Parts::None);
        assert_eq!(of(libc::SYS_getdents64, &file, 0), Parts::None);
    }

    #[test]
    fn parts_follow_one_another() {
        let mut vectors = PartVectors::new();
        let whole = call(libc::SYS_pread64, [3, 0x1000, 100, 7, 0, 0]);
        let mut part = |done| whole.part(done, 60, &mut vectors).map(|(part, len)| (part.arguments, len));
        assert_eq!(part(0), Some(([3, 0x1000, 60, 7, 0, 0], 60)));
        assert_eq!(part(60), Some(([3, 0x103c, 40, 67, 0, 0], 40)));
        assert_eq!(part(100), None);
    }

    #[test]
    fn vectors_are_cut_where_a_part_ends() {
        let all = [[0x1000_usize, 50], [0x2000, 0], [0x3000, 20], [0x4000, 40]];
        let whole = call(libc::SYS_preadv2, [3, all.as_ptr() as u64, 4, u64::MAX, 0, 0]);
        let part = |done| {
            let mut vectors = PartVectors::new();
            let (part, len) = whole.part(done, 60, &mut vectors)?;
            assert_eq!(part.arguments[3], u64::MAX, "the descriptor's own offset");
            Some((vectors.0[..part.arguments[2] as usize].to_vec(), len))
        };
        assert_eq!(part(0), Some((vec![[0x1000, 50], [0x3000, 10]], 60)));
        assert_eq!(part(60), Some((vec![[0x300a, 10], [0x4000, 40]], 50)));
        assert_eq!(part(110), None);
    }
}
