//! A small sound volume, and changed copies of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use vmio::backing::{Access, Backing};
use vmio_kv::{Db, Durability, Options, check_on};

pub const BLOCK: usize = 4096;
pub const UNIT: u64 = 2 << 20;
/// Of the first segment alone.
const FIRST_BYTES: u64 = 24 * UNIT;
/// The maximum of both segments.
const VOLUME_BYTES_MAX: u64 = 64 * UNIT;

type Blocks = BTreeMap<u64, [u8; BLOCK]>;

/// A volume's blocks that are not zero.
#[derive(Clone, Default)]
pub struct Volume(pub Blocks);

#[derive(Clone)]
struct Device {
    blocks: Arc<Mutex<Blocks>>,
    bytes: Arc<AtomicU64>,
}

impl Device {
    fn new(blocks: Blocks, bytes: u64) -> Self {
        Device { blocks: Arc::new(Mutex::new(blocks)), bytes: Arc::new(AtomicU64::new(bytes)) }
    }
}

impl Backing for Device {
    fn len(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let blocks = self.blocks.lock().unwrap();
        buffer.fill(0);
        let end = offset + buffer.len() as u64;
        assert!(end <= self.len() && offset.is_multiple_of(512), "a read of {} bytes at {offset}", buffer.len());
        for (at, block) in blocks.range(offset / BLOCK as u64 * BLOCK as u64..end) {
            let start = offset.max(*at);
            let stop = end.min(at + BLOCK as u64);
            buffer[(start - offset) as usize..(stop - offset) as usize]
                .copy_from_slice(&block[(start - at) as usize..(stop - at) as usize]);
        }
        Ok(buffer.len())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        assert!(offset + data.len() as u64 <= self.len(), "a write behind the end");
        let mut blocks = self.blocks.lock().unwrap();
        for (index, part) in data.chunks(BLOCK).enumerate() {
            blocks.entry(offset + (index * BLOCK) as u64).or_insert([0; BLOCK])[..part.len()].copy_from_slice(part);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.store(len, Ordering::SeqCst);
        Ok(())
    }

    fn describe(&self) -> String {
        "bytes".into()
    }
}

fn options() -> Options {
    Options::new()
        .memory_bytes(32 << 20)
        .memtable_bytes(8 << 10)
        .growth_factor(2)
        .compaction_threads(1)
        .durability(Durability::None)
}

pub fn key(number: u32) -> Vec<u8> {
    match number % 3 {
        0 => format!("{number:04}").into_bytes(),
        1 => format!("a front that many keys share, longer than a window {number}").into_bytes(),
        // Enough that the pivots between their leaves are longer than a node has space for.
        _ => format!("{}{number}", "k".repeat(6000)).into_bytes(),
    }
}

/// Three keyspaces with trees of several levels, and logs that continue after them; one keyspace has its own segment.
pub fn in_order() -> &'static Volume {
    static VOLUME: OnceLock<Volume> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let device = Device::new(Blocks::new(), FIRST_BYTES);
        let db = Db::create_on(device.clone(), options().max_volume_bytes(VOLUME_BYTES_MAX)).unwrap();
        let other = db.keyspace_or_create("other").unwrap();
        let apart = db.create_segment().unwrap().keyspace_or_create("apart").unwrap();
        for number in 0..500 {
            db.put(&key(number), &number.to_le_bytes()).unwrap();
            other.put(&key(number / 2), b"value").unwrap();
            apart.put(&key(number / 2 + 30), b"elsewhere").unwrap();
            db.delete(&key(number / 3)).unwrap();
            if number == 450 {
                db.flush().unwrap();
            }
        }
        drop((other, apart));
        db.close().unwrap();
        let blocks = device.blocks.lock().unwrap().clone();
        Volume(blocks.into_iter().filter(|(_, block)| *block != [0; BLOCK]).collect())
    })
}

/// Corrects the checksum of a block, or of a chunk's header.
pub fn seal(block: &mut [u8; BLOCK]) {
    let end = if block.starts_with(b"vmkl") { 128 } else { BLOCK };
    let checksum = crc32c::crc32c(&block[8..end]);
    block[4..8].copy_from_slice(&checksum.to_le_bytes());
}

impl Volume {
    /// Checks, opens, reads and writes the volume: an error at worst. A sound volume opens.
    pub fn use_all(self) {
        // As long as the header of an unchanged volume says, or longer.
        let device = Device::new(self.0, VOLUME_BYTES_MAX);
        let report = check_on(device.clone(), &options(), |_| {});
        let is_sound = report.is_ok_and(|report| {
            report.problems.iter().chain(&report.notes).for_each(|finding| drop(finding.to_string()));
            report.is_clean()
        });
        let db = match Db::open_on(device.clone(), options()) {
            Ok(db) => db,
            Err(error) => {
                assert!(!is_sound, "nothing is wrong with it, and it does not open: {error}");
                return;
            }
        };
        let mut is_right = true;
        for name in db.keyspace_names().unwrap() {
            let Ok(keyspace) = db.keyspace(&name) else { continue };
            for number in (0..500).step_by(7) {
                is_right &= keyspace.get(&key(number)).is_ok();
            }
            // A tree built from forged nodes may be long, but has an end.
            is_right &= keyspace.scan(..).take(100_000).all(|found| found.is_ok());
        }
        assert!(is_right || !is_sound, "nothing is wrong with it, and it cannot be read");
        let _ = (0..100).try_for_each(|number| db.put(&key(number * 5), b"new"));
        let _ = db.flush();
        let _ = db.stats();
        let _ = db.close();
    }
}
