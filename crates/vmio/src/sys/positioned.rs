//! Reads and writes of files at offsets, past the C library: its calls are cancellation points, and a thread that were cancelled in a miss would leave
//! a page that others wait for.

use std::io;
use std::os::fd::AsFd;

use rustix::io::{Errno, pread, pwrite, retry_on_intr};

/// Reads up to the buffer's length; 0 at the end of the file.
pub(crate) fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    Ok(retry_on_intr(|| pread(&file, &mut *buffer, offset))?)
}

/// Writes all of the data.
pub(crate) fn write_all_at(file: impl AsFd, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match pwrite(&file, data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                data = &data[bytes..];
                offset += bytes as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
