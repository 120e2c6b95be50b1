//! What every kind of backing has to stand.

use vmio::backing::Backing;
use vmio::{Advice, Mapping, MappingOptions};

use super::{Random, check_empty, read, tiny_cache};

/// Bytes that are the same each time.
pub fn random_bytes(len: u64) -> Vec<u8> {
    let mut random = Random(len);
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len as usize).collect()
}

/// Of the first bytes of what is opened: reads all, changes bytes everywhere, and checks them through the mapping, after eviction, and after
/// reopening.
pub fn exercise<B: Backing + 'static>(backing: impl Fn() -> vmio::Result<B>, len: u64) {
    let cache = tiny_cache();
    let open = || Mapping::open(&cache, backing().unwrap(), MappingOptions::new()).unwrap();
    let map = open();
    let mut expected = read(&map, 0..len).unwrap();
    let mut random = Random(len);
    for _ in 0..300 {
        let offset = random.below(len);
        let bytes = random_bytes(random.below(6000).min(len - offset));
        map.write_at(offset, &bytes).unwrap();
        expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    map.write_at(len - 1, b"e").unwrap();
    expected[len as usize - 1] = b'e';
    assert!(read(&map, 0..len).unwrap() == expected);
    map.sync().unwrap();
    map.advise(0..len, Advice::DontNeed).unwrap();
    map.advise(0..len, Advice::Sequential { window_bytes: 0 }).unwrap();
    assert!(read(&map, 0..len).unwrap() == expected);
    map.close().unwrap();
    let map = open();
    assert!(read(&map, 0..len).unwrap() == expected);
    map.close().unwrap();
    check_empty(&cache);
}
