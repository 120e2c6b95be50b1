//! Fetches of single pages, whose reads begin in the thread that asks for them where nothing has to be waited for: what has to
//! be comes all the same.
#![allow(clippy::single_range_in_vec_init)]

use futures::executor::block_on;
use futures::future::try_join_all;
use vmio::{Advice, Fetch, Mapping};

use crate::support::{
    Random, SPAN, at, cache_of, check_empty, is_managed, load, map_file, numbered_file, roomy_cache, watchdog,
};

fn fetch_page(map: &Mapping, page: u64) -> Fetch {
    map.fetch([at(page)..at(page + 1)])
}

/// Single pages are read by the thread that asks for them. Where it cannot, the ring's does.
#[test]
fn where_linux_aio_is_denied_the_ring_reads_single_pages_too() {
    if is_managed("io_uring") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 100);
    let denied = std::thread::spawn(move || {
        crate::support::denial::deny(&[libc::SYS_io_setup]);
        let cache = roomy_cache();
        let map = map_file(&cache, &path);
        block_on(try_join_all((0..100).map(|page| fetch_page(&map, page)))).unwrap();
        assert_eq!(cache.stats().resident_pages, 100);
        (0..100).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    });
    denied.join().unwrap();
}

/// A direct read waits until what the page cache holds of the same pages has been written.
#[test]
fn single_pages_come_that_the_page_cache_has_yet_to_write() {
    let _watchdog = watchdog("single_pages_come_that_the_page_cache_has_yet_to_write");
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), SPAN);
    for round in 1..10 {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        for page in (0..SPAN).step_by(2) {
            std::os::unix::fs::FileExt::write_all_at(&file, &u64::to_le_bytes(page + round), at(page)).unwrap();
        }
        let cache = roomy_cache();
        let map = map_file(&cache, &path);
        block_on(try_join_all((0..SPAN).map(|page| fetch_page(&map, page)))).unwrap();
        (0..SPAN).for_each(|page| assert_eq!(load(&map, at(page)), page + if page % 2 == 0 { round } else { 1 }));
    }
}

#[test]
fn single_pages_get_on_where_few_may_be_under_way() {
    let _watchdog = watchdog("single_pages_get_on_where_few_may_be_under_way");
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), SPAN);
    for in_flight in 1..6 {
        let cache = cache_of(2 * SPAN).pages_in_flight(in_flight).build().unwrap();
        let map = map_file(&cache, &path);
        let mut random = Random(in_flight as u64);
        for _ in 0..10 {
            // Some of them twice at a time.
            let pages: Vec<u64> = (0..64).map(|_| random.below(SPAN)).collect();
            block_on(try_join_all(pages.iter().map(|page| fetch_page(&map, *page)))).unwrap();
            pages.iter().for_each(|page| assert_eq!(load(&map, at(*page)), page + 1));
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
        }
        map.close().unwrap();
        if !is_managed("") {
            check_empty(&cache);
        }
    }
}
