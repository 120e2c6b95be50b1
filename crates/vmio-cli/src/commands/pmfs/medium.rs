//! The file or device with the file system, which a server that ends may have for some time yet.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use vmio_pmfs::{Access, Error, MappedFile};

/// How long it is waited for. After `umount` a server flushes a file that is no persistent memory.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(50);

/// Opens and maps a medium. Waits if it is in use and not mounted: whoever has it ends soon.
pub fn open(path: &Path, access: Access) -> anyhow::Result<MappedFile> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        let error = match MappedFile::open(path, access) {
            Err(error @ Error::InUse) => error,
            opened => return Ok(opened?),
        };
        if let Some(folder) = mounted_on(path) {
            return Err(error).with_context(|| format!("it is mounted on {}", folder.display()));
        }
        if began.elapsed() > PATIENCE {
            return Err(error.into());
        }
        if !is_told {
            eprintln!("{} is in use: waiting for its end", path.display());
            is_told = true;
        }
        thread::sleep(STEP);
    }
}

/// The source of a mount, by which others find it.
pub fn source(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The folder that a medium is mounted on, as far as this process sees that.
fn mounted_on(path: &Path) -> Option<PathBuf> {
    let source = source(path);
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // Behind the optional fields: a dash, the kind of file system (`fuse`, with a name if fusermount3 has mounted it), its source.
        let dash = fields.iter().position(|field| *field == b"-")?;
        let is_ours = fields.get(dash + 1)?.starts_with(b"fuse") && unescaped(fields.get(dash + 2)?) == source;
        is_ours.then(|| unescaped(fields[4]))
    })
}

/// A path of mountinfo, in which some bytes are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                path.push(byte);
                rest = &behind[3..];
            }
            _ => {
                path.push(*first);
                rest = behind;
            }
        }
    }
    std::ffi::OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_of_a_path_are_read() {
        assert_eq!(unescaped(br"/a\040b\134c\0"), Path::new(r"/a b\c\0"));
    }
}
