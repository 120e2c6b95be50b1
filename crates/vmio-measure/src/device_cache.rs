//! The page cache of a file: one run must not leave its pages to the next.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::Context;

/// Makes the file durable and drops its pages from the page cache.
pub fn drop_page_cache(path: &Path) -> anyhow::Result<()> {
    let context = || format!("cannot drop the page cache of {}", path.display());
    let file = File::options().read(true).write(true).open(path).with_context(context)?;
    file.sync_data().with_context(context)?;
    // SAFETY: the descriptor is open for the duration of the call; the call gets no memory.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error)).with_context(context);
    }
    Ok(())
}

/// The same for all files in a folder and its subfolders.
pub fn drop_page_caches(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { drop_page_caches(&path)? } else { drop_page_cache(&path)? }
    }
    Ok(())
}
