//! How long mounting takes after an unclean end.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmio_pmfs::{Access, Fs, Geometry, MappedFile, Medium, New, ROOT};

/// Folders of the file system.
const FOLDERS: u64 = 1000;

/// Prints the time of a mount: of a million files in `make test-all`.
#[test]
fn mounting_finds_all_files_again() {
    let files: u64 = test_depth::pick(4000, 1_000_000);
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    // An inode for each 16 KiB, and some for folders.
    file.as_file().set_len((files * 17) << 10).unwrap();
    let map = || Arc::new(MappedFile::open(file.path(), Access::Write).unwrap());
    let medium: Arc<dyn Medium> = map();
    Fs::make(&medium, Geometry::of(medium.len(), 2), false, (0, 0)).unwrap();
    let fs = Fs::mount(Arc::clone(&medium)).unwrap();
    let folders: Vec<u64> = (0..FOLDERS.min(files / 100))
        .map(|folder| fs.create(ROOT, format!("{folder}").as_bytes(), New::Directory, 0o755, (0, 0)).unwrap().ino)
        .collect();
    for number in 0..files - folders.len() as u64 {
        let folder = folders[(number % folders.len() as u64) as usize];
        let made = fs.create(folder, format!("{number}").as_bytes(), New::File, 0o644, (0, 0)).unwrap();
        fs.write(made.ino, 0, b"something").unwrap();
    }
    let space = fs.space();
    drop((fs, medium));
    let times: Vec<Duration> = (0..3)
        .map(|_| {
            // Nothing of it is in page tables, as after a boot.
            let (medium, start) = (map(), Instant::now());
            let fs = Fs::mount(medium).unwrap();
            let took = start.elapsed();
            assert_eq!(fs.space(), space);
            took
        })
        .collect();
    println!("{files} files: mounted in {times:?}");
}
