//! Any contents of a vmio-pmfs medium: they cause an error at worst, never a panic, and a file system found sound can be used. A repair says what
//! it leaves.
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use use_all::use_all;
use vmio_pmfs::{Appends, Fs, Geometry, Medium, New, Overlay, Precondition, ROOT, Simulated, check, repair};
use vmio_pmfs_protocol::sealed;

#[path = "../../crates/vmio-pmfs/tests/use_all.rs"]
mod use_all;

const GEOMETRY: Geometry = Geometry { blocks: 1024, areas: 1, inodes: 32, journal_blocks: 14, save_blocks: 4 };
const BLOCK: u64 = 4096;
/// Journal, saved data, slots of growing files and inodes follow the superblock.
const SLOTS_AT: u64 = (1 + 14 + 4) * BLOCK;
const INODES_AT: u64 = SLOTS_AT + 8 * BLOCK;
const INODE_BYTES: u64 = 256;

/// A part of the medium that a change falls into.
#[derive(Arbitrary, Debug)]
enum Part {
    Superblock,
    Journal(u16),
    /// The slot of a growing file. The first two are in use.
    Slot(u8),
    Inode(u8),
    /// A block of the pool, where the first ones are in use.
    Pool(u8),
}

/// A change to a sound file system: bytes of a word.
#[derive(Arbitrary, Debug)]
struct Change {
    part: Part,
    word: u16,
    value: u64,
    /// Number of the value's bytes that count, so that numbers may change a little.
    bytes: u8,
    /// Whether the checksum is corrected.
    is_sealed: bool,
}

/// A file system with a directory, files of few and of many extents, a link, a finished transaction, and files that grow.
fn sound() -> Arc<dyn Medium> {
    static SOUND: OnceLock<Arc<Simulated>> = OnceLock::new();
    let make = || -> vmio_pmfs::Result<Arc<Simulated>> {
        let medium = Arc::new(Simulated::new(GEOMETRY.bytes()));
        let shared: Arc<dyn Medium> = medium.clone();
        Fs::make(&shared, GEOMETRY, false, (0, 0))?;
        let fs = Fs::mount(shared)?;
        let folder = fs.create(ROOT, b"folder", New::Directory, 0o755, (0, 0))?.ino;
        let file = fs.create(folder, &[b'n'; 100], New::File, 0o644, (0, 0))?.ino;
        for block in 0..14 {
            fs.write(file, block * 2 * BLOCK, b"bytes")?;
        }
        fs.link(file, ROOT, b"second")?;
        fs.set_xattr(file, b"user.one", b"1", Precondition::None)?;
        fs.set_xattr(file, b"trusted.two", &[2; 200], Precondition::None)?;
        fs.create(ROOT, b"link", New::Symlink(b"folder"), 0o777, (0, 0))?;
        let aligned = fs.create(ROOT, b"aligned", New::File, 0o644, (0, 0))?.ino;
        fs.allocate(aligned, 0, 2 << 20)?;
        fs.write(aligned, 100, b"in place")?;
        // Files to which a process has appended, and has not.
        for (name, end) in [(&b"grows"[..], 9000_u64), (b"waits", 100)] {
            let grows = fs.create(ROOT, name, New::File, 0o644, (0, 0))?.ino;
            fs.write(grows, 0, &[7; 100])?;
            if let Some(slot) = fs.lease_to_grow(grows, 1, Appends::Durable)?.slot_at {
                let seed = medium.load_word(slot + 8) as u32;
                medium.write(slot, &sealed(end, seed).to_le_bytes());
            }
        }
        Ok(medium)
    };
    let sound = SOUND.get_or_init(|| make().unwrap_or_else(|error| panic!("the sound file system: {error}")));
    Arc::clone(sound) as Arc<dyn Medium>
}

/// The structure that a part is in: its first byte, its length, where its checksum is and covers, and the number that seeds it.
fn structure(part: &Part) -> (u64, u64, usize, usize, Option<u64>) {
    match part {
        Part::Superblock => (0, BLOCK, 8, 12, None),
        Part::Journal(entry) => (BLOCK + u64::from(entry % 896) * 64, 64, 0, 4, None),
        Part::Slot(slot) => {
            let at = SLOTS_AT + u64::from(slot % 4) * 64;
            (at, 64, 8, 12, Some(at))
        }
        Part::Inode(ino) => {
            let ino = u64::from(ino % 32);
            (INODES_AT + ino * INODE_BYTES, INODE_BYTES, 0, 4, Some(ino))
        }
        Part::Pool(block) => (INODES_AT + 32 * INODE_BYTES + u64::from(*block) * BLOCK, BLOCK, 0, 4, Some(3)),
    }
}

fn apply(medium: &dyn Medium, change: &Change) {
    let (at, len, checksum_at, covered, seed) = structure(&change.part);
    let mut bytes = vec![0; len as usize];
    medium.read(at, &mut bytes);
    let count = 1 + usize::from(change.bytes % 8);
    let place = (usize::from(change.word) * 4 % bytes.len()).min(bytes.len() - count);
    bytes[place..place + count].copy_from_slice(&change.value.to_le_bytes()[..count]);
    if change.is_sealed {
        let seed = seed.map_or(0, |seed| crc32c::crc32c(&seed.to_le_bytes()));
        let checksum = crc32c::crc32c_append(seed, &bytes[covered..]);
        bytes[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
        // Of a slot, the word in front of it has a check of its own.
        if let Part::Slot(_) = change.part {
            let word = u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte]));
            bytes[..8].copy_from_slice(&sealed(word & ((1 << 44) - 1), checksum).to_le_bytes());
        }
    }
    medium.write(at, &bytes);
}

fuzz_target!(|changes: Vec<Change>| {
    let medium: Arc<dyn Medium> = Arc::new(Overlay::new(sound()));
    for change in &changes {
        apply(&*medium, change);
    }
    let report = check(Arc::clone(&medium));
    let copy: Arc<dyn Medium> = Arc::new(Overlay::new(Arc::clone(&medium)));
    if let Ok(repaired) = repair(Arc::clone(&copy)) {
        let again = repair(copy).unwrap_or_else(|error| panic!("after a repair: {error}"));
        assert!(again.done.is_empty() && again.report == repaired.report, "{repaired:#?}, and again: {again:#?}");
    }
    let is_sound = report.as_ref().is_ok_and(|report| report.is_sound());
    match Fs::mount(Arc::clone(&medium)) {
        Ok(fs) => use_all(&fs),
        Err(error) => assert!(!is_sound, "a sound file system cannot be mounted: {error}"),
    }
    if is_sound {
        let after = check(medium).unwrap_or_else(|error| panic!("after its use: {error}"));
        assert!(after.is_sound(), "a sound file system is damaged by its use: {:?}", after.faults);
    }
});
