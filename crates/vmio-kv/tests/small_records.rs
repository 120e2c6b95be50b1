//! Records far smaller than a block, scanned in the order of their keys, which is not the order of their places.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::backing::{Access, Backing, MemoryBacking};
use vmio_kv::{Db, Durability};

const MIB: u64 = 1 << 20;
/// The log has 27 MiB and the index 12, the cache less than 24.
const RECORDS: u64 = 500_000;

/// A device that counts its reads.
struct Counting(MemoryBacking, Arc<AtomicU64>);

impl Backing for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn access(&self) -> Access {
        self.0.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.0.discard(range)
    }

    fn describe(&self) -> String {
        "memory that counts".to_owned()
    }
}

/// Leaves know all of the key but its end.
fn key(number: u64) -> Vec<u8> {
    // Without a common divisor: records that are put one after the other are far apart in key order.
    format!("user{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

/// The records in the order of their keys.
fn expected() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<_> = (0..RECORDS).map(|number| (key(number), number.to_le_bytes().to_vec())).collect();
    all.sort_unstable();
    all
}

/// A store of the records, in the order of their numbers, and a count of its device's reads.
fn store() -> (Db, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let options =
        crate::support::options().memory_bytes(32 * MIB).durability(Durability::None).reorganize_scanned(false);
    let db = Db::create_on(Counting(MemoryBacking::new(256 * MIB).unwrap(), Arc::clone(&reads)), options).unwrap();
    (0..RECORDS).for_each(|number| db.put(&key(number), &number.to_le_bytes()).unwrap());
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    (db, reads)
}

#[test]
fn a_long_scan_reads_the_device_far_less_often_than_it_has_records() {
    let (db, reads) = store();
    let expected = expected();
    let count = |scan: &dyn Fn() -> u64| {
        let before = reads.load(Ordering::Relaxed);
        assert_eq!(scan(), RECORDS);
        reads.load(Ordering::Relaxed) - before
    };
    let up_and_down = || {
        let up = count(&|| {
            let all = db.scan(..).map(Result::unwrap);
            all.zip(&expected).inspect(|(found, wanted)| assert_eq!(found, *wanted)).count() as u64
        });
        let down = count(&|| {
            let all = db.scan(..).rev().map(Result::unwrap);
            all.zip(expected.iter().rev()).inspect(|(found, wanted)| assert_eq!(found, *wanted)).count() as u64
        });
        println!("{up} reads upwards, {down} downwards");
        [up, down]
    };
    // The first scan fills the cache. Merges that are still under way read the device, too.
    up_and_down();
    test_depth::one_of(4, up_and_down, |reads| reads.iter().all(|reads| *reads < RECORDS / 12));
    db.close().unwrap();
}

/// Reading ahead serves the right records, from whichever end a scan continues, and wherever it seeks.
#[test]
fn a_scan_that_reads_ahead_is_right_in_every_direction() {
    let (db, _) = store();
    let expected = expected();
    // Until it reads far ahead.
    const FAR: usize = 20_000;
    let mut scan = db.scan(..);
    let mut others = [db.scan(..), db.scan(..)];
    for place in 0..FAR {
        assert_eq!(scan.next().unwrap().unwrap(), expected[place]);
        assert_eq!(scan.next_back().unwrap().unwrap(), expected[expected.len() - 1 - place]);
        others.iter_mut().for_each(|other| assert_eq!(other.next().unwrap().unwrap(), expected[place]));
    }
    for (key, _) in expected.iter().skip(FAR).step_by(5) {
        db.put(key, b"newer").unwrap();
    }
    db.flush().unwrap();
    (FAR..2 * FAR).for_each(|place| assert_eq!(scan.next().unwrap().unwrap(), expected[place]));
    let middle = expected.len() / 2;
    scan.seek(&expected[middle].0);
    (middle..middle + FAR).for_each(|place| assert_eq!(scan.next().unwrap().unwrap(), expected[place]));
    drop((scan, others));
    let upper = &expected[3 * FAR].0;
    assert_eq!(db.scan(..upper.as_slice()).count(), 3 * FAR);
    assert!(db.scan(..).keys().map(Result::unwrap).eq(expected.iter().map(|(key, _)| key.clone())));
    let newer = db.scan(..).map(Result::unwrap).filter(|(_, value)| value == b"newer").count();
    assert_eq!(newer, (expected.len() - FAR).div_ceil(5));
    db.close().unwrap();
}
