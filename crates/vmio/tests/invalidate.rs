//! `Advice::Invalidate`: what the device holds counts, whatever was stored or said before.

use std::time::Duration;

use vmio::{Advice, Mapping, MappingOptions};

use crate::support::device::Device;
use crate::support::{SPAN, at, load, roomy_cache, store};

const PAGES: u64 = 4 * SPAN;

fn numbered() -> std::sync::Arc<Device> {
    let device = Device::of_pages(PAGES);
    (0..PAGES).for_each(|page| device.set_word(at(page), page + 1));
    device
}

#[test]
fn what_was_stored_and_not_synced_is_dropped() {
    let (cache, device) = (roomy_cache(), numbered());
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    (0..PAGES).step_by(3).for_each(|page| store(&map, at(page), 0));
    load(&map, at(1));
    device.set_word(at(1), 77);
    map.advise(at(1)..at(2 * SPAN), Advice::Invalidate).unwrap();
    assert_eq!(device.writes(), 0);
    assert_eq!((load(&map, at(0)), load(&map, at(1)), load(&map, at(3))), (0, 77, 4));
    assert_eq!(load(&map, at(2 * SPAN + 2)), 0, "beyond the range all stays");
    map.close().unwrap();
    assert_eq!((device.word(at(0)), device.word(at(3)), device.word(at(2 * SPAN + 2))), (0, 4, 0));
}

#[test]
fn what_was_fresh_is_read() {
    // All, a whole span, and pages by themselves; of a span that is touched before or not.
    for fresh in [0..at(PAGES), at(SPAN)..at(2 * SPAN), at(SPAN + 3)..at(SPAN + 9)] {
        for touches in [false, true] {
            let (cache, device) = (roomy_cache(), numbered());
            let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
            if touches {
                load(&map, at(SPAN + 20));
            }
            map.advise(fresh.clone(), Advice::Fresh).unwrap();
            let page = SPAN + 5;
            assert_eq!(load(&map, at(page)), 0, "{fresh:?}: it was taken for garbage");
            map.advise(at(page)..at(page + 3), Advice::Invalidate).unwrap();
            for page in page..page + 3 {
                assert_eq!(load(&map, at(page)), page + 1, "{fresh:?}, {touches}");
            }
            map.advise(0..map.len(), Advice::Invalidate).unwrap();
            for page in 0..PAGES {
                assert_eq!(load(&map, at(page)), page + 1, "{fresh:?}, {touches}");
            }
        }
    }
}

#[test]
fn writes_on_their_way_have_landed_before_it_returns() {
    let (cache, device) = (roomy_cache(), numbered());
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    (0..8).for_each(|page| store(&map, at(page), 99));
    device.slow_writes(Duration::from_millis(100));
    let sync = map.sync_begin().unwrap();
    while device.writes_begun() == 0 {
        std::thread::yield_now();
    }
    map.advise(0..at(8), Advice::Invalidate).unwrap();
    (0..8).for_each(|page| device.set_word(at(page), 5));
    (0..8).for_each(|page| assert_eq!(load(&map, at(page)), 5));
    let _ = sync.wait();
    map.close().unwrap();
    (0..8).for_each(|page| assert_eq!(device.word(at(page)), 5, "page {page} was written late"));
}
