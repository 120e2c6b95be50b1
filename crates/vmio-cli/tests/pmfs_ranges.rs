//! fallocate, lseek and renameat2 on a mounted vmio-pmfs.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::common::{TestResult, patterned};
use crate::pmfs::{Mounted, can_mount, fsck, made};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, fallocate, renameat_with, seek};
use rustix::io::Errno;

#[test]
fn holes_are_made_found_and_filled() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("file");
    let mut bytes = patterned(100_000);
    fs::write(&path, &bytes)?;
    let file = fs::File::options().read(true).write(true).open(&path)?;
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 10_000, 50_000)?;
    bytes[10_000..60_000].fill(0);
    assert!(fs::read(&path)? == bytes);
    let blocks = file.metadata()?.blocks();
    assert_eq!(blocks, (25 - 11) * 8);
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(12_288));
    assert_eq!(seek(&file, SeekFrom::Data(20_000)), Ok(57_344));
    assert_eq!(seek(&file, SeekFrom::Hole(60_000)), Ok(100_000));
    assert_eq!(seek(&file, SeekFrom::Data(100_000)), Err(Errno::NXIO));
    fallocate(&file, FallocateFlags::ZERO_RANGE, 90_000, 20_000)?;
    bytes.resize(110_000, 0);
    bytes[90_000..].fill(0);
    assert!(fs::read(&path)? == bytes);
    fallocate(&file, keep, 0, 1 << 20)?;
    assert_eq!((file.metadata()?.len(), file.metadata()?.blocks()), (110_000, 2048));
    file.write_all_at(b"more", 110_000)?;
    assert_eq!((file.metadata()?.len(), file.metadata()?.blocks()), (110_004, 2048));
    // The kernel does not ask a FUSE server for these.
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE, FallocateFlags::UNSHARE_RANGE] {
        assert_eq!(fallocate(&file, mode, 4096, 4096), Err(Errno::OPNOTSUPP));
    }
    // A file with holes is copied with them.
    let to = folder.join("copy");
    assert_eq!(fs::copy(&path, &to)?, 110_004);
    assert!(fs::read(&to)? == fs::read(&path)?);
    drop(file);
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn two_names_are_exchanged() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    fs::write(folder.join("file"), "text")?;
    fs::create_dir_all(folder.join("one/two"))?;
    let exchange =
        |one: &str, other: &str| renameat_with(CWD, folder.join(one), CWD, folder.join(other), RenameFlags::EXCHANGE);
    exchange("file", "one/two")?;
    assert!(fs::read_to_string(folder.join("one/two"))? == "text" && folder.join("file").is_dir());
    assert_eq!(fs::metadata(folder.join("one"))?.nlink(), 2);
    assert_eq!(exchange("one", "one/two"), Err(Errno::INVAL));
    assert_eq!(exchange("one", "none"), Err(Errno::NOENT));
    exchange("one", "file")?;
    assert_eq!(fs::read_to_string(folder.join("file/two"))?, "text");
    mounted.unmount()?;
    fsck(&image)
}
