//! Appends that are durable before anybody asks for them: a crash at any store leaves all that have returned, and each whole.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::crash_states::{crashed, recovered, subsets};
use crate::support::{GEOMETRY, Node, Numbers, contents, fill, made, made_of, patterned, sound, tree};
use vmio_pmfs::{
    Appends, Changes, Error, Fs, Geometry, Lease, Length, Medium, New, Overlay, ROOT, RangeChange, Simulated, check,
};
use vmio_pmfs_protocol::{CLOSED, FREE, sealed};

const BLOCK: u64 = 4096;

/// The seed of the word of a slot: the checksum behind it.
pub fn seed_of(medium: &dyn Medium, slot: u64) -> u32 {
    medium.load_word(slot + 8) as u32
}

/// A process with a lease to grow, as far as the medium sees it.
struct Process<'a> {
    medium: &'a Simulated,
    lease: Lease,
    end: u64,
}

impl<'a> Process<'a> {
    fn new(medium: &'a Simulated, fs: &Fs, ino: u64) -> Process<'a> {
        let lease = fs.lease_to_grow(ino, 1, Appends::Durable).unwrap();
        Process { medium, end: lease.size, lease }
    }

    fn slot(&self) -> u64 {
        self.lease.slot_at.unwrap()
    }

    fn room(&self) -> u64 {
        u64::from(self.lease.blocks.end) * BLOCK - self.end
    }

    /// Stores bytes behind the end, and then the length.
    fn append(&mut self, bytes: &[u8]) {
        assert!(self.room() >= bytes.len() as u64);
        let (mut at, mut left) = (self.end, bytes);
        while !left.is_empty() {
            let block = (at / BLOCK) as u32;
            let of =
                self.lease.extents.iter().find(|one| (one.file_block..one.file_block + one.blocks).contains(&block));
            let of = of.unwrap();
            let (part, rest) = left.split_at(left.len().min((BLOCK - at % BLOCK) as usize));
            self.medium.write((of.start + u64::from(block - of.file_block)) * BLOCK + at % BLOCK, part);
            (at, left) = (at + part.len() as u64, rest);
        }
        self.medium.fence();
        let seed = seed_of(self.medium, self.slot());
        assert_eq!(self.medium.load_word(self.slot()), sealed(self.end, seed), "another length");
        self.medium.write(self.slot(), &sealed(at, seed).to_le_bytes());
        self.medium.fence();
        self.end = at;
    }
}

fn file(fs: &Fs, name: &str, bytes: &[u8]) -> u64 {
    let ino = fs.create(ROOT, name.as_bytes(), New::File, 0o644, (0, 0)).unwrap().ino;
    fs.write(ino, 0, bytes).unwrap();
    ino
}

fn blocks(fs: &Fs, ino: u64) -> u64 {
    fs.attributes(ino).unwrap().blocks
}

/// Makes a step and tries all states that a crash in it may leave: the file is as before the step or as after it, and has no blocks behind its end.
fn explore(medium: &Simulated, what: &str, states: &[Vec<u8>], step: impl FnOnce()) {
    let before = Arc::new(medium.copy());
    medium.record();
    step();
    let epochs = medium.recorded();
    assert!(epochs.last().is_some_and(Vec::is_empty), "{what} returns before its last fence");
    let (mut numbers, mut seen, mut tried) = (Numbers::new(0), vec![0; states.len()], 0);
    for end in 1..=epochs.len() {
        for set in subsets(epochs[end - 1].len(), test_depth::pick(4, 100), &mut numbers) {
            let what = format!("{what}, fence {end} of {}, stores {set:?}", epochs.len());
            let state = crashed(&before, &epochs[..end], &set);
            let (found, _) = recovered(&state, &what, &mut numbers, tried % 8 == 0);
            let Node::File(_, found) = &found["/log"] else { panic!("{what}: no file") };
            let at = states.iter().position(|state| state == found);
            seen[at.unwrap_or_else(|| panic!("{what}: {} bytes, which nobody has appended", found.len()))] += 1;
            if set.iter().all(|happened| *happened) || tried % test_depth::pick(8, 1) == 0 {
                let fs = Fs::mount(Arc::new(Overlay::new(state))).unwrap();
                let ino = fs.lookup(ROOT, b"log").unwrap().ino;
                assert_eq!(blocks(&fs, ino), (found.len() as u64).div_ceil(BLOCK), "{what}: blocks behind the end");
            }
            tried += 1;
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{what}: {seen:?}");
}

#[test]
fn a_crash_at_any_store_leaves_each_append_that_has_returned() {
    // One area, so that rooms follow each other and a file has no more extents than its inode has room for.
    for size in test_depth::pick(&[0, 9000][..], &[0, 100, 9000]).iter().copied() {
        let medium = made_of(Geometry { areas: 1, ..GEOMETRY });
        let fs = Fs::mount(medium.clone()).unwrap();
        let mut all = patterned(1, size);
        let ino = file(&fs, "log", &all);
        let same = |all: &Vec<u8>| [all.clone()];
        let mut process = None;
        explore(&medium, "the lease", &same(&all), || process = Some(Process::new(&medium, &fs, ino)));
        let mut process = process.unwrap();
        for round in 0..test_depth::pick(2, 4) {
            for len in [1, 5000, 300] {
                let bytes = patterned(round * 10 + len, len as usize);
                let states = [all.clone(), [&all[..], &bytes].concat()];
                explore(&medium, "an append", &states, || process.append(&bytes));
                all.extend(&bytes);
                if len != 300 {
                    explore(&medium, "a question", &same(&all), || fs.settle(ino, 1).unwrap());
                    assert!(contents(&fs, ino) == all);
                }
            }
            let bytes = patterned(99, process.room() as usize);
            process.append(&bytes);
            all.extend(&bytes);
            fs.settle(ino, 1).unwrap();
            explore(&medium, "more room", &same(&all), || process = Process::new(&medium, &fs, ino));
        }
        process.append(b"the last one");
        all.extend(b"the last one");
        fs.settle(ino, 1).unwrap();
        explore(&medium, "the end", &same(&all), || fs.end_lease(ino, 1, 0).unwrap());
        assert_eq!(blocks(&fs, ino), (all.len() as u64).div_ceil(BLOCK));
        assert_eq!(medium.load_word(process.slot()), FREE, "a late thread finds it closed");
        // What the file loses now does not come back.
        explore(&medium, "a cut", &[all.clone(), all[..50.min(size)].to_vec()], || {
            let changes = Changes { size: Some(50.min(size as u64)), ..Changes::default() };
            fs.set_attributes(ino, &changes).unwrap();
        });
    }
}

#[test]
fn blocks_that_were_reserved_before_stay_and_room_ends_at_a_hole() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "log", &patterned(1, 5000));
    fs.change_range(ino, RangeChange::Allocate(Length::Stays), 8192, 3 * BLOCK).unwrap();
    let mut process = Process::new(&medium, &fs, ino);
    assert_eq!(process.lease.blocks.end, 5);
    process.append(&[7; 6000]);
    drop(fs);
    let fs = Fs::mount(medium.clone()).unwrap();
    assert_eq!(fs.recovered().appends, 1);
    assert_eq!((blocks(&fs, ino), contents(&fs, ino)), (5, [patterned(1, 5000), vec![7; 6000]].concat()));
    fs.change_range(ino, RangeChange::Allocate(Length::Stays), 8 * BLOCK, BLOCK).unwrap();
    assert_eq!(Process::new(&medium, &fs, ino).lease.blocks, 2..5);
    fs.end_lease(ino, 1, 0).unwrap();
    assert_eq!(blocks(&fs, ino), 6);
    fs.change_range(ino, RangeChange::Punch, 3 * BLOCK, 2 * BLOCK).unwrap();
    for appends in [Appends::Durable, Appends::Volatile] {
        fs.write(ino, 11_000, &[1; 1288]).unwrap();
        assert!(matches!(fs.lease_to_grow(ino, 1, appends), Err(Error::NoSpace { .. })), "the next block is a hole");
    }
    // The refused leases have left no slot, which would bring back what is cut off.
    fs.set_attributes(ino, &Changes { size: Some(10_000), ..Changes::default() }).unwrap();
    drop(fs);
    let fs = Fs::mount(medium.clone()).unwrap();
    assert_eq!((fs.recovered().appends, fs.attributes(ino).unwrap().size), (0, 10_000));
    drop(fs);
    sound(medium, "reserved");
}

#[test]
fn a_slot_is_nobodys_while_a_holder_that_was_lost_may_store_to_it() {
    // Each loses its blocks, too.
    let medium = made_of(Geometry::of(128 << 20, 1));
    let fs = Fs::mount(medium.clone()).unwrap();
    let (ino, other) = (file(&fs, "log", b""), file(&fs, "other", b""));
    let mut process = Process::new(&medium, &fs, ino);
    process.append(b"before");
    fs.close_growth(ino, 1).unwrap();
    let word = sealed(6, seed_of(&*medium, process.slot()));
    assert_eq!(medium.load_word(process.slot()), word | CLOSED);
    fs.settle(ino, 1).unwrap();
    fs.revoke_lease(ino, 1, 0).unwrap();
    assert_eq!((medium.load_word(process.slot()), contents(&fs, ino)), (FREE, b"before".to_vec()));
    let mut slots = std::collections::BTreeSet::new();
    while let Ok(lease) = fs.lease_to_grow(other, 2, Appends::Durable) {
        assert!(slots.insert(lease.slot_at.unwrap()) && lease.slot_at != process.lease.slot_at);
        // Each loses its slot in turn.
        fs.revoke_lease(other, 2, 0).unwrap();
    }
    assert_eq!(slots.len(), 512 - 1);
    fs.holder_is_gone(1);
    assert_eq!(fs.lease_to_grow(other, 3, Appends::Durable).unwrap().slot_at, process.lease.slot_at);
    fs.unlink(ROOT, b"log").unwrap();
    fs.holder_is_gone(2);
    drop(fs);
    sound(medium, "lost");
}

#[test]
fn a_lease_that_finds_no_space_leaves_nothing_behind() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "log", &[1; 100]);
    let mut process = Process::new(&medium, &fs, ino);
    process.append(&vec![2; process.room() as usize]);
    fs.settle(ino, 1).unwrap();
    fill(&fs, "all");
    assert!(matches!(fs.lease_to_grow(ino, 1, Appends::Durable), Err(Error::NoSpace { .. })));
    assert!(fs.is_growing(ino), "it has what it had");
    fs.end_lease(ino, 1, 0).unwrap();
    let size = fs.attributes(ino).unwrap().size;
    assert!(matches!(fs.lease_to_grow(ino, 1, Appends::Durable), Err(Error::NoSpace { .. })));
    fs.unlink(ROOT, b"all").unwrap();
    assert_eq!(blocks(&fs, ino), size.div_ceil(BLOCK));
    drop(fs);
    sound(medium, "full");
}

/// There is space for more room, and none for the block in which the file's list of extents would go on.
#[test]
fn a_lease_that_fails_half_way_leaves_the_slot_as_its_holder_knows_it() {
    let mut failed = 0;
    for extents in 5..12 {
        let medium = made();
        let fs = Fs::mount(medium.clone()).unwrap();
        file(&fs, "small", &[3; 100]);
        file(&fs, "between", &[3; 100]);
        let ino = file(&fs, "log", &[1; 100]);
        for extent in 1..extents {
            fs.write(ino, extent * 2 * BLOCK, &[1; BLOCK as usize]).unwrap();
        }
        let mut process = Process::new(&medium, &fs, ino);
        process.append(&vec![2; process.room() as usize]);
        fs.settle(ino, 1).unwrap();
        fill(&fs, "all");
        fs.unlink(ROOT, b"small").unwrap();
        assert_eq!(fs.space().free_blocks, 1);
        let before = medium.load_word(process.slot() + 8);
        match fs.lease_to_grow(ino, 1, Appends::Durable) {
            Ok(_) => continue,
            Err(error) => assert!(matches!(error, Error::NoSpace { .. }), "{error}"),
        }
        failed += 1;
        assert_eq!(medium.load_word(process.slot() + 8), before, "{extents} extents: another check");
        assert_eq!(medium.load_word(process.slot()), sealed(process.end, seed_of(&*medium, process.slot())));
        fs.settle(ino, 1).unwrap();
        assert_eq!((fs.space().free_blocks, fs.attributes(ino).unwrap().size), (1, process.end));
        drop(fs);
        sound(medium, "half");
    }
    assert!(failed > 0, "each lease has found space");
}

/// A slot that makes no sense makes no file longer, and keeps nobody from mounting.
#[test]
fn a_false_slot_says_nothing() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "log", &patterned(1, 5000));
    let mut process = Process::new(&medium, &fs, ino);
    let room = u64::from(process.lease.blocks.end) * BLOCK;
    process.append(&[7; 3000]);
    let (slot, expected) = (process.slot(), [patterned(1, 5000), vec![7; 3000]].concat());
    drop(fs);
    let before = tree(&Fs::mount(Arc::new(medium.copy())).unwrap());
    assert!(matches!(&before["/log"], Node::File(1, found) if *found == expected));
    // Each change gets a checksum and a check that fit.
    let changed = |end: u64, change: &dyn Fn(&mut [u8; 64])| {
        let (medium, mut bytes) = (Arc::new(medium.copy()), [0; 64]);
        medium.read(slot, &mut bytes);
        change(&mut bytes);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&slot.to_le_bytes()), &bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes[..8].copy_from_slice(&sealed(end, checksum).to_le_bytes());
        medium.write(slot, &bytes);
        medium
    };
    let says = |end: u64| changed(end, &|_| {});
    let of = |ino: u64| changed(8000, &|bytes| bytes[16..24].copy_from_slice(&ino.to_le_bytes()));
    let is_sound = |medium: &Arc<Simulated>| check(medium.clone()).unwrap().is_sound();
    for end in [5000, room] {
        assert!(is_sound(&says(end)), "{end}");
    }
    let flipped = |bit: u64| {
        let medium = Arc::new(medium.copy());
        medium.write(slot, &(medium.load_word(slot) ^ 1 << bit).to_le_bytes());
        medium
    };
    assert!(is_sound(&flipped(63)), "it is closed, and its length counts");
    let flips = (0..63).map(|bit| ("another bit of the word", flipped(bit)));
    let falsified = [
        ("a length beyond the blocks", says(room + 1)),
        ("a length of no file", says((1 << 44) - 1)),
        ("a length less than the file's", says(4999)),
        ("another generation", changed(8000, &|bytes| bytes[12] ^= 1)),
        ("a directory", of(ROOT)),
        ("a free inode", of(ino + 1)),
        ("no inode", of(u64::MAX)),
        ("another checksum", {
            let medium = Arc::new(medium.copy());
            medium.write(slot + 40, &[1]);
            medium
        }),
    ];
    for (what, damaged) in falsified.into_iter().chain(flips) {
        assert!(!is_sound(&damaged), "{what} is not found");
        let fs = Fs::mount(damaged.clone()).unwrap();
        assert_eq!(fs.recovered().appends, 0, "{what}");
        assert_eq!(contents(&fs, ino), patterned(1, 5000), "{what}");
        drop(fs);
        assert!(is_sound(&damaged), "{what} is still there");
    }
    // Blocks that a false slot names are given back only behind the end.
    let hungry = changed(8000, &|bytes| bytes[24..32].copy_from_slice(&[0, 0, 0, 0, 255, 255, 255, 255]));
    let fs = Fs::mount(hungry.clone()).unwrap();
    assert_eq!((contents(&fs, ino), blocks(&fs, ino)), (expected, 2));
    drop(fs);
    sound(hungry, "a hungry slot");
}
