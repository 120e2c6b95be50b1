//! Files of a mounted vmio-pmfs mapped by their extents: what one way stores every other way reads, and what is taken away is gone.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use vmio::backing::DaxBacking;
use vmio::{Access, Mapping, MappingOptions, SharedMap};

use crate::common::{TestResult, patterned};
use crate::pmfs::{Mounted, can_mount, fsck, made};

const MIB: u64 = 1 << 20;

fn open(path: &Path) -> vmio::Result<Mapping> {
    Mapping::open_direct(DaxBacking::open(path, Access::ReadWrite)?, MappingOptions::new())
}

#[test]
fn loads_and_stores_meet_calls_on_the_medium() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("file");
    let mut bytes = patterned(5 * MIB as usize + 100);
    fs::write(&path, &bytes)?;
    let map = open(&path)?;
    assert_eq!(map.len(), bytes.len() as u64);
    let mut found = vec![0; bytes.len()];
    map.read_at(0, &mut found)?;
    assert!(found == bytes);
    map.write_at(3 * MIB - 7, b"stored through the map")?;
    bytes[3 * MIB as usize - 7..][..22].copy_from_slice(b"stored through the map");
    assert!(fs::read(&path)? == bytes);
    let file = File::options().write(true).open(&path)?;
    file.write_all_at(b"written by a call", 4000)?;
    bytes[4000..4017].copy_from_slice(b"written by a call");
    map.read_at(0, &mut found)?;
    assert!(found == bytes);
    map.sync()?;
    map.close()?;
    drop(file);
    mounted.unmount()?;
    fsck(&image)?;
    let mounted = Mounted::new(&image, &folder)?;
    assert!(fs::read(&path)? == bytes);
    mounted.unmount()
}

#[test]
fn a_store_to_a_hole_gets_a_huge_page_of_blocks() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("sparse");
    let file = File::create(&path)?;
    file.set_len(100 * MIB - 5000)?;
    let map = open(&path)?;
    assert_eq!(file.metadata()?.blocks(), 0);
    map.write_at(7 * MIB, b"seven")?;
    map.write_at(100 * MIB - 5005, b"last")?;
    let mut zeros = [1; 5];
    map.read_at(7 * MIB - 5, &mut zeros)?;
    assert_eq!(zeros, [0; 5]);
    let blocks = file.metadata()?.blocks() * 512;
    assert!((4 * MIB - 8192..=4 * MIB).contains(&blocks), "{blocks} bytes of blocks");
    let mut found = [9; 5];
    File::open(&path)?.read_exact_at(&mut found, 7 * MIB)?;
    assert_eq!(&found, b"seven");
    map.close()?;
    drop(file);
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn what_others_cut_off_is_gone_and_what_they_add_is_there() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("file");
    fs::write(&path, patterned(6 * MIB as usize))?;
    let map = open(&path)?;
    let file = File::options().write(true).open(&path)?;
    file.set_len(MIB)?;
    let mut byte = [0];
    assert!(map.read_at(3 * MIB, &mut byte).is_err());
    map.read_at(MIB - 1, &mut byte)?;
    assert_eq!(byte[0], patterned(MIB as usize)[MIB as usize - 1]);
    file.write_all_at(&[7; 4096], 3 * MIB)?;
    map.read_at(3 * MIB, &mut byte)?;
    assert_eq!(byte, [7]);
    map.read_at(2 * MIB, &mut byte)?;
    assert_eq!(byte, [0], "what was there before has not come back");
    fs::remove_file(&path)?;
    map.write_at(3 * MIB, &[8])?;
    map.close()?;
    drop(file);
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn what_was_leased_or_cut_elsewhere_has_taken_nothing_of_a_copy() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("file");
    File::create(&path)?.set_len(40 * MIB)?;
    let file = File::options().read(true).write(true).open(&path)?;
    let map = SharedMap::by_extents(Arc::new(file.try_clone()?.into()), 1 << 30, Access::ReadWrite)?;
    let map = map.ok_or("no leases")?;
    let before = map.cuts().ok_or("the kernel's")?;
    // A hole gets a lease.
    map.write_at(20 * MIB, b"stored")?;
    assert_ne!(map.cuts(), Some(before));
    assert!(!map.has_lost(before, &(20 * MIB..20 * MIB + 6)));
    file.set_len(30 * MIB)?;
    assert!(!map.has_lost(before, &(20 * MIB..20 * MIB + 6)));
    let first = map.cuts().ok_or("the kernel's")?;
    file.set_len(20 * MIB + 3)?;
    assert!(map.has_lost(first, &(20 * MIB..20 * MIB + 6)) && !map.has_lost(first, &(0..19 * MIB)));
    let mut found = [0; 3];
    file.read_exact_at(&mut found, 20 * MIB)?;
    assert_eq!(&found, b"sto");
    drop((map, file));
    mounted.unmount()?;
    fsck(&image)
}
