//! Block devices of unusual geometry and file systems without direct I/O.

use std::path::{Path, PathBuf};
use std::process::Command;

use vmio::backing::{Backing, FileBacking};
use vmio::{Access, Mapping, MappingOptions};

use crate::support::exercise::{exercise, random_bytes};
use crate::support::{PAGE, at, is_root, read, tiny_cache};

/// A loop device over a file; detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path, block_bytes: u64) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &block_bytes.to_string()])
            .arg(file)
            .output()
            .ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| LoopDevice(PathBuf::from(path.trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn exercise_loop_device(block_bytes: u64, len: u64) {
    if !is_root("a loop device") {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), random_bytes(len)).unwrap();
    let Some(device) = LoopDevice::over(file.path(), block_bytes) else {
        return test_depth::skipped(format_args!("no loop device with blocks of {block_bytes} bytes can be made"));
    };
    let backing = FileBacking::open(&device.0, Access::ReadOnly).unwrap();
    assert_eq!(backing.block_bytes(), block_bytes);
    assert!(backing.set_len(len + PAGE).is_err());
    assert_eq!(backing.len(), len);
    drop(backing);
    exercise(|| FileBacking::open(&device.0, Access::ReadWrite), len);
}

#[test]
fn a_device_with_blocks_of_512_bytes() {
    exercise_loop_device(512, 900 * PAGE);
}

#[test]
fn a_device_with_blocks_of_1024_bytes_that_ends_inside_a_page() {
    exercise_loop_device(1024, 700 * PAGE + 1024);
}

#[test]
fn a_device_with_blocks_of_4096_bytes() {
    exercise_loop_device(4096, 900 * PAGE);
}

#[test]
fn a_device_that_ends_inside_a_page() {
    exercise_loop_device(512, 700 * PAGE + 3 * 512);
}

#[test]
fn a_device_opened_twice_is_one_region_and_keeps_its_length() {
    if !is_root("a loop device") {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), random_bytes(64 * PAGE)).unwrap();
    let Some(device) = LoopDevice::over(file.path(), 512) else {
        return test_depth::skipped("no loop device can be made");
    };
    let cache = tiny_cache();
    let open = || {
        let backing = FileBacking::open(&device.0, Access::ReadWrite).unwrap();
        Mapping::open(&cache, backing, MappingOptions::new()).unwrap()
    };
    let (first, second) = (open(), open());
    assert_eq!(first.as_ptr(), second.as_ptr());
    assert!(first.set_len(65 * PAGE).is_err());
    assert!(first.set_len(60 * PAGE).is_err());
    assert_eq!(first.len(), 64 * PAGE);
    // The refused cut has thrown nothing away.
    second.write_at(at(62), b"kept").unwrap();
    assert!(first.set_len(60 * PAGE).is_err());
    assert_eq!(read(&first, at(62)..at(62) + 4).unwrap(), b"kept");
    first.close().unwrap();
    second.close().unwrap();
    let bytes = read(&open(), at(62)..at(62) + 4).unwrap();
    assert_eq!(bytes, b"kept");
}

#[test]
fn a_file_in_memory_works_with_or_without_direct_io() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        return test_depth::skipped("there is no /dev/shm");
    };
    for len in [900 * PAGE, 700 * PAGE + 777, 3] {
        std::fs::write(file.path(), random_bytes(len)).unwrap();
        exercise(|| FileBacking::open(file.path(), Access::ReadWrite), len);
        assert_eq!(file.path().metadata().unwrap().len(), len);
    }
}

#[test]
fn a_file_of_an_odd_length_works() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for len in [700 * PAGE + 777, 700 * PAGE + 512, 5, PAGE + 4095] {
        std::fs::write(file.path(), random_bytes(len)).unwrap();
        exercise(|| FileBacking::open(file.path(), Access::ReadWrite), len);
        assert_eq!(file.path().metadata().unwrap().len(), len);
    }
}

#[test]
fn what_is_neither_file_nor_device_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path(), Path::new("/dev/null"), &folder.path().join("nothing")] {
        match FileBacking::open(path, Access::ReadOnly) {
            Err(vmio::Error::Open { path: named, .. }) => assert_eq!(Path::new(&named), path),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{} was opened", path.display()),
        }
    }
}
