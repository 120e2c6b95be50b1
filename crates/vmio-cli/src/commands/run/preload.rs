//! The preloaded library, and LD_PRELOAD.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Maps the program's files.
pub const LIBRARY: &str = "libvmio_posix.so";
/// Serves the program's heap.
pub const HEAP_LIBRARY: &str = "libvmio_heap_preload.so";

/// The path of a library: see [`places`].
pub fn library(name: &str) -> anyhow::Result<PathBuf> {
    let command = env::current_exe().context("cannot find the path of this command")?;
    let folder = command.parent().context("the path of this command has no folder")?;
    let places = places(folder, name);
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let places = places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        bail!("cannot find {name} in any of {places}: `make install` installs it");
    };
    let found = found.canonicalize().with_context(|| format!("cannot find {}", found.display()))?;
    // The loader would read such a path as a list.
    if found.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        bail!("the loader cannot preload {}: its path has a space or a colon; install vmio elsewhere", found.display());
    }
    Ok(found)
}

/// The places where a library may be: cargo's folder of dependencies, which is always up to date, the command's folder, and the installed
/// `lib/vmio` beside the command's folder.
fn places(folder: &Path, name: &str) -> [PathBuf; 3] {
    [folder.join("deps").join(name), folder.join(name), folder.join("../lib/vmio").join(name)]
}

/// The value of LD_PRELOAD, with the library before the present libraries.
pub fn before(library: &Path, present: Option<OsString>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        list.push(OsStr::new(":"));
        list.push(present);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_stays() {
        let library = Path::new("/usr/lib/vmio/libvmio_posix.so");
        assert_eq!(before(library, None), "/usr/lib/vmio/libvmio_posix.so");
        assert_eq!(before(library, Some("".into())), "/usr/lib/vmio/libvmio_posix.so");
        assert_eq!(before(library, Some("libjemalloc.so".into())), "/usr/lib/vmio/libvmio_posix.so:libjemalloc.so");
    }
}
