//! What the managed engine has the kernel read at a miss.

use std::path::Path;
use std::thread;
use std::time::Duration;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Engine, Mapping, MappingOptions};

use crate::support::{PAGE, SPAN, at, cache_of, load, store};

fn open(cache: &Cache, path: &Path, access: Access) -> Mapping {
    Mapping::open(cache, FileBacking::open(path, access).unwrap(), MappingOptions::new()).unwrap()
}

/// A store to a huge page makes all of it dirty, so that the device writes hundreds of pages for one: LMDB's stores took four times as long.
#[test]
fn where_the_program_stores_no_huge_pages_come_in() {
    const CAPACITY: u64 = 32 * SPAN;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(CAPACITY / 2 * PAGE).unwrap();
    let cache = cache_of(CAPACITY).engine(Engine::Managed).build().unwrap();
    let map = open(&cache, file.path(), Access::ReadWrite);
    for page in 0..CAPACITY / 2 {
        store(&map, at(page), page);
        // The reclaimer looks meanwhile, and finds somebody who goes upwards.
        if page.is_multiple_of(64) {
            thread::sleep(Duration::from_micros(200));
        }
    }
    assert!(!comes_in_by_huge_pages(&map));
}

/// Of a file that is mapped for loads whole huge pages come in, until the program says that it jumps about.
#[test]
fn who_is_said_to_jump_about_gets_single_pages() {
    const CAPACITY: u64 = 32 * SPAN;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0; (4 * SPAN * PAGE) as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let cache = cache_of(CAPACITY).engine(Engine::Managed).build().unwrap();
    let map = open(&cache, file.path(), Access::ReadOnly);
    if !comes_in_by_huge_pages(&map) {
        return test_depth::skipped("this kernel maps no huge pages of files, or the device is memory");
    }
    map.advise(0..map.len(), Advice::Random).unwrap();
    assert!(!comes_in_by_huge_pages(&map));
    assert_eq!((load(&map, at(700)), map.residency(0..map.len()).resident_pages()), (0, 1));
}

/// Whether the kernel was told so of any part of a mapping.
fn comes_in_by_huge_pages(map: &Mapping) -> bool {
    let (start, end) = (map.as_ptr() as usize, map.as_ptr() as usize + map.len() as usize);
    let areas = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ours = false;
    areas.lines().any(|line| {
        let bounds = line.split(' ').next().and_then(|bounds| bounds.split_once('-'));
        let bounds = bounds.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        if let Some((Ok(from), Ok(to))) = bounds {
            is_ours = from < end && start < to;
        }
        is_ours && line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg")
    })
}
