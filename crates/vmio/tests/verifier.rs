//! A page verifier seals every page on its way out and checks every page on its way in, whatever brings it.

use std::sync::Arc;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Error, Mapping, MappingOptions, OnReadError, PageVerifier};

use crate::support::device::Device;
use crate::support::{PAGE, at, load, read, roomy_cache, store, tiny_cache};

const CHECKSUM: usize = PAGE as usize - 8;

/// Keeps a checksum of the page and its offset in the page's last word; a page of zeros was never written.
struct Checksums;

fn checksum(offset: u64, page: &[u8]) -> u64 {
    page[..CHECKSUM].as_chunks::<8>().0.iter().fold(offset ^ 0x5EA1, |sum, word| {
        (sum.rotate_left(7) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl PageVerifier for Checksums {
    fn verify(&self, offset: u64, page: &[u8]) -> bool {
        let (words, _) = page.as_chunks::<8>();
        words.iter().all(|word| *word == [0; 8]) || page[CHECKSUM..] == checksum(offset, page).to_le_bytes()
    }

    fn seal(&self, offset: u64, page: &mut [u8]) {
        let sum = checksum(offset, page);
        page[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    }
}

fn open(cache: &Cache, device: &Arc<Device>, options: MappingOptions) -> Mapping {
    Mapping::open(cache, device.backing(), options.verifier(Checksums)).unwrap()
}

fn is_sealed(device: &Device, page: u64) -> bool {
    let bytes: Vec<u8> = (at(page)..at(page + 1)).step_by(8).flat_map(|at| device.word(at).to_le_bytes()).collect();
    bytes.iter().any(|byte| *byte != 0) && Checksums.verify(at(page), &bytes)
}

fn is_corrupt<T: std::fmt::Debug>(result: vmio::Result<T>, page: u64) {
    match result {
        Err(Error::Corrupt { offset, .. }) => assert_eq!(offset, at(page)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pages_that_went_out_come_back_in() {
    let cache = tiny_cache();
    let device = Device::of_pages(1500);
    let map = open(&cache, &device, MappingOptions::new());
    // By eviction, by sync, by sync while pinned, and by close.
    for page in 0..1500 {
        store(&map, at(page), page + 1);
        store(&map, at(page) + 24, !page);
    }
    map.sync().unwrap();
    let pin = map.pin(at(3)..at(4), Access::ReadWrite).unwrap();
    store(&map, at(3) + 8, 33);
    map.flush(at(3)..at(4)).unwrap();
    assert!(is_sealed(&device, 3));
    drop(pin);
    store(&map, at(4) + 8, 44);
    map.close().unwrap();
    assert!((0..1500).all(|page| is_sealed(&device, page)));
    let map = open(&cache, &device, MappingOptions::new());
    for page in 0..1500 {
        assert_eq!((load(&map, at(page)), load(&map, at(page) + 24)), (page + 1, !page));
    }
    assert_eq!((load(&map, at(3) + 8), load(&map, at(4) + 8)), (33, 44));
}

#[test]
fn a_corrupt_page_is_an_error() {
    let cache = roomy_cache();
    let device = Device::of_pages(64);
    let map = open(&cache, &device, MappingOptions::new());
    (0..64).for_each(|page| store(&map, at(page), 5));
    map.close().unwrap();
    device.set_word(at(9) + 800, 1);
    let map = open(&cache, &device, MappingOptions::new());
    for _ in 0..2 {
        is_corrupt(read(&map, at(9)..at(10)), 9);
        is_corrupt(map.pin(at(8)..at(12), Access::ReadOnly).map(|pin| pin.len()), 9);
        is_corrupt(map.pin(at(9)..at(10), Access::ReadWrite).map(|pin| pin.len()), 9);
        is_corrupt(map.write_at(at(9), b"x"), 9);
        is_corrupt(map.advise(0..map.len(), Advice::WillNeed), 9);
    }
    is_corrupt(map.take_read_error().map_or(Ok(()), Err), 9);
    assert_eq!(load(&map, at(8)), 5);
    assert_eq!(load(&map, at(10)), 5);
    device.set_word(at(9) + 800, 0);
    assert_eq!(load(&map, at(9)), 5);
}

#[test]
fn read_ahead_leaves_corrupt_pages_to_those_who_want_them() {
    let cache = roomy_cache();
    let device = Device::of_pages(128);
    let map = open(&cache, &device, MappingOptions::new());
    (0..128).for_each(|page| store(&map, at(page), page + 1));
    map.close().unwrap();
    device.set_word(at(20) + 8, 1);
    let map = open(&cache, &device, MappingOptions::new());
    map.advise(0..map.len(), Advice::Sequential { window_bytes: 0 }).unwrap();
    (0..128).filter(|page| *page != 20).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    is_corrupt(read(&map, at(20)..at(21)), 20);
}

#[test]
fn loads_of_a_corrupt_page_get_the_poison() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    device.set_word(at(5), 1);
    let pattern = [0xDE, 0xAD, 0xBE, 0xEF, 1, 2, 3, 4];
    let map = open(&cache, &device, MappingOptions::new().on_read_error(OnReadError::Poison(pattern)));
    assert_eq!(load(&map, at(5)), u64::from_le_bytes(pattern));
    assert_eq!(load(&map, at(6) - 8), u64::from_le_bytes(pattern));
    is_corrupt(map.take_read_error().map_or(Ok(()), Err), 5);
    // The page is as corrupt as it was, also where poison stands in for it.
    is_corrupt(read(&map, at(5)..at(6)), 5);
    is_corrupt(map.pin(at(5)..at(6), Access::ReadWrite).map(|pin| pin.len()), 5);
    is_corrupt(map.write_at(at(5), b"x"), 5);
    map.close().unwrap();
    assert_eq!(device.word(at(5)), 1);
}

#[test]
fn a_fresh_page_is_not_checked_before_its_first_write() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    (0..8).for_each(|page| device.set_word(at(page), 0xBAD));
    let map = open(&cache, &device, MappingOptions::new());
    map.advise(0..map.len(), Advice::Fresh).unwrap();
    (0..8).for_each(|page| store(&map, at(page), page + 1));
    map.close().unwrap();
    assert!((0..8).all(|page| is_sealed(&device, page)));
}

/// Bytes behind the end of the file are zeros when the last page comes in, so they must be when it goes out.
#[test]
fn stores_behind_the_end_do_not_spoil_the_checksum_of_the_last_page() {
    /// Its checksum stands in the first word.
    struct InFront;
    fn sum(page: &[u8]) -> u64 {
        page[8..].iter().fold(1, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }
    impl PageVerifier for InFront {
        fn verify(&self, _offset: u64, page: &[u8]) -> bool {
            page.iter().all(|byte| *byte == 0) || page[..8] == sum(page).to_le_bytes()
        }
        fn seal(&self, _offset: u64, page: &mut [u8]) {
            let sum = sum(page);
            page[..8].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = FileBacking::create(file.path(), PAGE + 1000).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new().verifier(InFront)).unwrap();
    store(&map, at(1) + 96, 7);
    store(&map, at(1) + 2000, 0xBAD);
    map.close().unwrap();
    let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new().verifier(InFront)).unwrap();
    assert_eq!(read(&map, at(1) + 96..at(1) + 104).unwrap(), 7_u64.to_le_bytes());
}
