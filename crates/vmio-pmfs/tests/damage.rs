//! Changed bytes of a sound medium, often with checksums that fit: errors at worst, never a panic, and a file system that is found sound
//! can be used.

use std::sync::Arc;

use crate::durable_appends::seed_of;
use crate::support::{Numbers, made, patterned};
use crate::use_all::use_all;
use vmio_pmfs::{
    Appends, Error, Fs, Inspection, Kind, Medium, New, Overlay, Precondition, ROOT, Replace, Simulated, check,
};
use vmio_pmfs_protocol::sealed;

/// A file system with something of everything.
#[allow(clippy::unwrap_used)]
pub fn sound() -> Arc<Simulated> {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let folder = fs.create(ROOT, b"folder", New::Directory, 0o755, (0, 0)).unwrap().ino;
    let file = fs.create(folder, &[b'n'; 100], New::File, 0o644, (0, 0)).unwrap().ino;
    for block in 0..14 {
        fs.write(file, block * 8192, b"bytes").unwrap();
    }
    fs.link(file, ROOT, b"second").unwrap();
    fs.set_xattr(file, b"user.one", b"1", Precondition::None).unwrap();
    fs.set_xattr(folder, b"user.two", &[2; 200], Precondition::None).unwrap();
    fs.set_xattr(folder, b"trusted.three", b"", Precondition::None).unwrap();
    fs.create(ROOT, b"link", New::Symlink(b"folder"), 0o777, (0, 0)).unwrap();
    fs.create(folder, b"inner", New::Directory, 0o755, (0, 0)).unwrap();
    let aligned = fs.create(ROOT, b"aligned", New::File, 0o644, (0, 0)).unwrap().ino;
    fs.allocate(aligned, 0, 2 << 20).unwrap();
    fs.write(aligned, 100, &patterned(1, 5000)).unwrap();
    for (name, appended) in [(&b"grows"[..], 9000), (b"grew", 0)] {
        let grows = fs.create(ROOT, name, New::File, 0o644, (0, 0)).unwrap().ino;
        fs.write(grows, 0, &patterned(2, 3000)).unwrap();
        let slot = fs.lease_to_grow(grows, 1, Appends::Durable).unwrap().slot_at.unwrap();
        medium.write(slot, &sealed(3000 + appended, seed_of(&*medium, slot)).to_le_bytes());
    }
    medium
}

/// A structure of the medium: its first byte, its length, where its checksum is and begins to cover, and the number that seeds it.
pub type Structure = (u64, usize, usize, usize, Option<u64>);

/// The inodes, the journals, the superblock, and each block of the pools that is not zeros.
pub fn structures(medium: &dyn Medium) -> Vec<Structure> {
    let mut all = vec![(0, 4096, 8, 12, None)];
    for area in 0..2_u64 {
        let own = area * (4 << 20) + if area == 0 { 4096 } else { 0 };
        all.extend((0..40).map(|entry| (own + entry * 64, 64, 0, 4, None)));
        let slots = own + (14 + 16) * 4096;
        // The slot of a growing file that has not been asked for its length, and others.
        all.extend((0..4).flat_map(|slot| [(slots + slot * 64, 64, 8, 12, Some(slots + slot * 64)); 3]));
        let inodes = slots + 8 * 4096;
        all.extend((0..12).map(|index| (inodes + index * 256, 256, 0, 4, Some(area * 64 + index))));
        for at in (inodes + 4 * 4096..inodes + 60 * 4096).step_by(4096) {
            let mut block = [0; 4096];
            medium.read(at, &mut block);
            if block != [0; 4096] {
                // The block may be of the chain of any inode.
                all.extend([2, 3, 64, 65].map(|ino| (at, 4096, 0, 4, Some(ino))));
            }
        }
    }
    all
}

/// Changes a few bytes of a structure, mostly with a checksum that fits.
pub fn change(medium: &dyn Medium, all: &[Structure], numbers: &mut Numbers) {
    let (at, len, checksum_at, covered, seed) = all[numbers.next() as usize % all.len()];
    let mut bytes = vec![0; len];
    medium.read(at, &mut bytes);
    let place = numbers.next() as usize % (len.min(256) / 4) * 4;
    let value = match numbers.next() % 4 {
        0 => numbers.next(),
        1 => u64::MAX - numbers.next() % 3,
        2 => 1 << (numbers.next() % 64),
        _ => numbers.next() % 3000,
    };
    let count = [1, 2, 4, 8][numbers.next() as usize % 4].min(len - place);
    bytes[place..place + count].copy_from_slice(&value.to_le_bytes()[..count]);
    if !numbers.next().is_multiple_of(4) {
        let seed = seed.map_or(0, |seed| crc32c::crc32c(&seed.to_le_bytes()));
        let checksum = crc32c::crc32c_append(seed, &bytes[covered..]);
        bytes[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
        // Of a slot, the word in front of it has a check of its own.
        if checksum_at == 8 && at != 0 {
            let word = u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte]));
            bytes[..8].copy_from_slice(&sealed(word & ((1 << 44) - 1), checksum).to_le_bytes());
        }
    }
    medium.write(at, &bytes);
}

/// The mount deletes inodes without a name, but neither the root nor a directory that has entries.
#[test]
#[allow(clippy::unwrap_used)]
fn a_directory_that_has_entries_is_not_deleted() {
    let sound = made();
    let fs = Fs::mount(sound.clone()).unwrap();
    let folder = fs.create(ROOT, b"folder", New::Directory, 0o755, (0, 0)).unwrap().ino;
    fs.create(folder, b"file", New::File, 0o644, (0, 0)).unwrap();
    drop(fs);
    let inode = |ino: u64| {
        let own = ino / 64 * (4 << 20) + if ino < 64 { 4096 } else { 0 };
        own + (14 + 16 + 8) * 4096 + ino % 64 * 256
    };
    let links = |medium: &dyn Medium, ino: u64, links: u32| {
        let mut bytes = [0; 256];
        medium.read(inode(ino), &mut bytes);
        bytes[40..44].copy_from_slice(&links.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        medium.write(inode(ino), &bytes);
    };
    // The folder has no name: its entry in the root is gone.
    let nameless = Arc::new(sound.copy());
    retarget(&*nameless, ROOT, b"folder", 0, Kind::Directory);
    links(&*nameless, folder, 0);
    links(&*nameless, ROOT, 2);
    let rootless = Arc::new(sound.copy());
    links(&*rootless, ROOT, 0);
    for medium in [nameless, rootless] {
        assert!(!check(medium.clone()).unwrap().is_sound());
        assert!(matches!(Fs::mount(medium), Err(Error::Damaged { structure: "an inode", .. })));
    }
}

/// Has the entry of a short name in a directory say something else, with a checksum that fits.
pub fn retarget(medium: &dyn Medium, directory: u64, name: &[u8], ino: u64, kind: Kind) {
    let mut slot = [0; 64];
    let checksum = |ino: &[u8], kind: u8| {
        let covered = [&directory.to_le_bytes(), ino, &[kind, name.len() as u8], name].concat();
        crc32c::crc32c(&covered).to_le_bytes()
    };
    for at in (0..medium.len()).step_by(64) {
        medium.read(at, &mut slot);
        if slot[16..].starts_with(name) && slot[8..12] == checksum(&slot[..8], slot[12]) && slot[..8] != [0; 8] {
            slot[8..12].copy_from_slice(&checksum(&ino.to_le_bytes(), kind as u8));
            slot[..8].copy_from_slice(&ino.to_le_bytes());
            slot[12] = kind as u8;
            return medium.write(at, &slot);
        }
    }
    panic!("there is no entry {name:?} in directory {directory}");
}

/// The inode has a checksum of the target; one of links that older programs have made has none.
#[test]
#[allow(clippy::unwrap_used)]
fn a_changed_target_of_a_link_is_found() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = fs.create(ROOT, b"link", New::Symlink(&[b't'; 4095]), 0o777, (0, 0)).unwrap().ino;
    drop(fs);
    let inode = Inspection::new(medium.clone()).unwrap().inode(ino).unwrap();
    assert_eq!(inode.target, Some(vec![b't'; 4095]));
    let (before, last) = (Arc::new(medium.copy()), inode.extents[0].start * 4096 + 4094);
    before.write(last, b"x");
    assert_eq!(check(before.clone()).unwrap().faults.len(), 1);
    let fs = Fs::mount(before.clone()).unwrap();
    let structure = "the target of a symbolic link";
    assert!(matches!(fs.read_link(ino), Err(Error::Damaged { structure: found, .. }) if found == structure));
    drop(fs);
    let found = Inspection::new(before.clone()).unwrap().inode(ino).unwrap();
    assert_eq!((found.target, found.faults.len()), (None, 1));
    let mut bytes = [0; 256];
    before.read(inode.at, &mut bytes);
    bytes[72..80].fill(0);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    before.write(inode.at, &bytes);
    assert!(check(before.clone()).unwrap().is_sound());
    assert!(Fs::mount(before).unwrap().read_link(ino).unwrap().ends_with(b"tx"));
}

/// Entries that lead to the directory they are in, or one above it: no call waits for itself.
#[test]
#[allow(clippy::unwrap_used)]
fn entries_that_lead_up_are_refused() {
    let sound = made();
    let fs = Fs::mount(sound.clone()).unwrap();
    let outer = fs.create(ROOT, b"outer", New::Directory, 0o755, (0, 0)).unwrap().ino;
    let inner = fs.create(outer, b"inner", New::Directory, 0o755, (0, 0)).unwrap().ino;
    for directory in [ROOT, outer, inner] {
        fs.create(directory, b"bad", New::File, 0o644, (0, 0)).unwrap();
        fs.create(directory, b"good", New::File, 0o644, (0, 0)).unwrap();
    }
    drop(fs);
    type Call = fn(&Fs, u64) -> vmio_pmfs::Result<()>;
    let calls: [(&str, Call); 9] = [
        ("lookup", |fs, at| fs.lookup(at, b"bad").map(drop)),
        ("unlink", |fs, at| fs.unlink(at, b"bad")),
        ("rmdir", |fs, at| fs.remove_directory(at, b"bad")),
        ("rename", |fs, at| fs.rename(at, b"bad", at, b"new", Replace::Yes)),
        ("rename over", |fs, at| fs.rename(at, b"good", at, b"bad", Replace::Yes)),
        ("exchange", |fs, at| fs.exchange(at, b"bad", at, b"good")),
        ("exchange up", |fs, at| fs.exchange(ROOT, b"good", at, b"bad")),
        ("rename up", |fs, at| fs.rename(at, b"bad", ROOT, b"good", Replace::Yes)),
        ("rename down", |fs, at| fs.rename(ROOT, b"good", at, b"bad", Replace::Yes)),
    ];
    for (at, to) in [(ROOT, ROOT), (outer, outer), (outer, ROOT), (inner, outer), (inner, ROOT)] {
        for kind in [Kind::File, Kind::Directory] {
            let medium: Arc<dyn Medium> = Arc::new(sound.copy());
            retarget(&*medium, at, b"bad", to, kind);
            assert!(!check(Arc::clone(&medium)).unwrap().is_sound());
            for (name, call) in calls {
                let medium: Arc<dyn Medium> = Arc::new(Overlay::new(Arc::clone(&medium)));
                let (answer, answered) = std::sync::mpsc::channel();
                std::thread::spawn(move || answer.send(call(&Fs::mount(medium).unwrap(), at)));
                let what = format!("{name} of an entry in {at} that says it is {to}, a {kind:?}");
                let result = answered.recv_timeout(std::time::Duration::from_secs(60));
                let error = result.unwrap_or_else(|_| panic!("no answer: {what}")).err();
                // The kinds of call and entry may be found to differ before.
                let is_other = matches!(error, Some(Error::IsADirectory { .. })) && kind == Kind::Directory;
                assert!(is_other || matches!(error, Some(Error::Damaged { .. })), "{what}: {error:?}");
            }
        }
    }
}

#[test]
fn damage_causes_errors_and_no_panic() {
    let sound = sound();
    let all = structures(&*sound);
    let (mut refused, mut faulty, mut harmless) = (0, 0, 0);
    for seed in test_depth::seeds(3000, 300_000) {
        let mut numbers = Numbers::new(seed);
        let medium: Arc<dyn Medium> = Arc::new(Overlay::new(Arc::clone(&sound) as Arc<dyn Medium>));
        for _ in 0..1 + seed % 3 {
            change(&*medium, &all, &mut numbers);
        }
        let report = check(Arc::clone(&medium));
        let is_sound = report.as_ref().is_ok_and(|report| report.is_sound());
        match Fs::mount(Arc::clone(&medium)) {
            Ok(fs) => use_all(&fs),
            Err(error) => {
                refused += 1;
                assert!(!is_sound, "seed {seed}: a sound file system cannot be mounted: {error}");
            }
        }
        if is_sound {
            harmless += 1;
            let after = check(medium).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(after.is_sound(), "seed {seed}: damaged by its use: {:?}", after.faults);
        } else {
            faulty += 1;
        }
    }
    let seen = [refused, faulty - refused, harmless];
    assert!(test_depth::seeds_are_chosen() || seen.iter().all(|count| *count > 50), "{seen:?}");
}
