//! A file whose reads, writes and flushes fail now and then.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::backing::{Access, Backing};

/// One in this many operations fails, at random; 0 for none.
pub type OneIn = Arc<AtomicU64>;

/// It has no descriptor, so that all operations come here.
pub struct FailingFile {
    pub file: Arc<dyn Backing>,
    pub one_in: OneIn,
    pub random: AtomicU64,
}

impl FailingFile {
    fn operation(&self) -> io::Result<()> {
        let one_in = self.one_in.load(Ordering::Relaxed);
        if one_in == 0 {
            return Ok(());
        }
        let seed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        match super::Random(seed).below(one_in) {
            0 => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        }
    }
}

impl Backing for FailingFile {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn access(&self) -> Access {
        self.file.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.operation()?;
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // A failed operation may have been done in part.
        let half = if data.len() > 4096 { &data[..data.len() / 2 / 4096 * 4096] } else { &[] };
        self.operation().or_else(|error| self.file.write_at(offset, half).and(Err(error)))?;
        self.file.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.operation()?;
        self.file.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn describe(&self) -> String {
        "a file that fails now and then".to_owned()
    }
}
