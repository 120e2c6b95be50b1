//! Values of any length take about as much of the volume as they have.

use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability};

const MIB: u64 = 1 << 20;

#[test]
fn no_length_of_values_wastes_much_of_the_volume() {
    for kib in [1, 100, 255, 257, 340, 511, 600, 682, 700, 800, 1000, 1023, 1024, 1025, 1100] {
        let options = crate::support::options().memory_bytes(32 * MIB).durability(Durability::None);
        let db = Db::create_on(MemoryBacking::new(160 * MIB).unwrap(), options).unwrap();
        let value = |number: u64| vec![number as u8; kib << 10];
        let values = (60 << 10) / kib as u64;
        (0..values).for_each(|number| db.put(&number.to_be_bytes(), &value(number)).unwrap());
        db.flush().unwrap();
        (0..values).for_each(|number| assert!(db.get(&number.to_be_bytes()).unwrap().unwrap() == value(number)));
        let (taken, stored) = (db.stats().unwrap().space_bytes, (values * kib as u64) << 10);
        // An eighth at most, and the fixed costs of every store: chunks in memory, units in use, the volume's own.
        assert!(taken <= stored + stored / 8 + 18 * MIB, "{kib} KiB: {} MiB for {} MiB", taken / MIB, stored / MIB);
    }
}
