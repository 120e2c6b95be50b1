//! Processes that are stopped in the middle of an append, lose their lease, and go on: what they store then is in no file.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use vmio_pmfs::{
    Appends, Changes, Error, Fs, Geometry, Holes, Inspection, Lease, Length, Medium, New, ROOT, RangeChange, Simulated,
};

use crate::support::{GEOMETRY, contents, fill, made, made_of, patterned, sound};

const BLOCK: u64 = 4096;
const APPENDS: [Appends; 2] = [Appends::Volatile, Appends::Durable];

/// A process that has stored what it appends, and not yet the length.
struct Stopped {
    medium: Arc<Simulated>,
    lease: Lease,
}

impl Stopped {
    /// Goes on: stores to all blocks that it has got, from the end of the file on that it knows.
    fn goes_on(&self) {
        for extent in &self.lease.extents {
            let first = (u64::from(extent.file_block) * BLOCK).max(self.lease.size);
            let skipped = first - u64::from(extent.file_block) * BLOCK;
            let bytes = vec![0xEE; (u64::from(extent.blocks) * BLOCK - skipped) as usize];
            self.medium.write(extent.start * BLOCK + skipped, &bytes);
        }
    }
}

fn file(fs: &Fs, name: &str, bytes: &[u8]) -> u64 {
    let ino = fs.create(ROOT, name.as_bytes(), New::File, 0o644, (0, 0)).unwrap().ino;
    fs.write(ino, 0, bytes).unwrap();
    ino
}

/// A file system with a file of 5000 bytes, and a process that is stopped while it appends to it.
fn stopped(appends: Appends) -> (Arc<Simulated>, Fs, u64, Stopped) {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "log", &patterned(1, 5000));
    let lease = fs.lease_to_grow(ino, 1, appends).unwrap();
    let process = Stopped { medium: medium.clone(), lease };
    (medium, fs, ino, process)
}

fn holds(fs: &Fs, ino: u64, added: &[u8]) {
    assert!(contents(fs, ino) == [&patterned(1, 5000), added].concat(), "a late store is in the file");
}

#[test]
fn a_late_append_hits_nothing_that_others_have_appended() {
    let longer = |fs: &Fs, ino: u64, by: usize| -> vmio_pmfs::Result<()> {
        let end = fs.attributes(ino)?.size;
        match by {
            0 => fs.append(ino, &[7; 6000]).map(drop),
            1 => fs.write(ino, end, &[7; 6000]).map(drop),
            2 => fs.set_attributes(ino, &Changes { size: Some(end + 6000), ..Changes::default() }).map(drop),
            3 => fs.allocate(ino, end, 6000),
            _ => fs.change_range(ino, RangeChange::Zero(Length::Grows), end, 6000),
        }
    };
    for appends in APPENDS {
        for by in 0..5 {
            let (medium, fs, ino, process) = stopped(appends);
            fs.close_growth(ino, 1).unwrap();
            fs.settle(ino, 1).unwrap();
            fs.revoke_lease(ino, 1, 0).unwrap();
            longer(&fs, ino, by).unwrap();
            let added = if by < 2 { vec![7; 6000] } else { vec![0; 6000] };
            process.goes_on();
            holds(&fs, ino, &added);
            // Nor anything of another file.
            fill(&fs, "all");
            let all = fs.lookup(ROOT, b"all").unwrap().ino;
            let before = contents(&fs, all);
            process.goes_on();
            assert!(contents(&fs, all) == before);
            fs.holder_is_gone(1);
            drop(fs);
            sound(medium, "a late append");
        }
    }
}

#[test]
fn the_next_process_that_appends_gets_another_block() {
    for appends in APPENDS {
        let (medium, fs, ino, process) = stopped(appends);
        fs.revoke_lease(ino, 1, 0).unwrap();
        let next = fs.lease_to_grow(ino, 2, appends).unwrap();
        let of = |lease: &Lease| lease.extents.iter().map(|one| one.start..one.start + u64::from(one.blocks)).collect();
        let (old, new): (Vec<_>, Vec<_>) = (of(&process.lease), of(&next));
        let overlaps = |block: &u64| old.iter().any(|old| old.contains(block));
        assert!(!new.iter().cloned().flatten().any(|block| overlaps(&block)), "{old:?} and {new:?}");
        let at = next.extents[0].start * BLOCK + 5000 % BLOCK;
        medium.write(at, &[7; 1000]);
        if appends == Appends::Volatile {
            fs.grown(ino, 2, 6000).unwrap();
            process.goes_on();
            holds(&fs, ino, &[7; 1000]);
        }
        fs.end_lease(ino, 2, 0).unwrap();
        fs.holder_is_gone(1);
        drop(fs);
        sound(medium, "the next one");
    }
}

#[test]
fn what_others_have_mapped_is_asked_for_before_it_moves() {
    let (medium, fs, ino, process) = stopped(Appends::Volatile);
    fs.lease(ino, 2, 0..2, Holes::Keep, 9).unwrap();
    fs.revoke_lease(ino, 1, 0).unwrap();
    assert!(matches!(fs.append(ino, b"x"), Err(Error::Leased { from_block: 1, .. })));
    assert!(matches!(fs.lease_to_grow(ino, 3, Appends::Durable), Err(Error::Leased { from_block: 1, .. })));
    fs.write(ino, 0, &patterned(1, 5000)).unwrap();
    fs.end_lease(ino, 2, 1).unwrap();
    fs.append(ino, &[7; 100]).unwrap();
    process.goes_on();
    holds(&fs, ino, &[7; 100]);
    fs.end_lease(ino, 2, 0).unwrap();
    drop(fs);
    sound(medium, "mapped by others");
}

#[test]
fn what_cannot_move_waits_for_the_end_of_the_process() {
    let (medium, fs, ino, process) = stopped(Appends::Volatile);
    fill(&fs, "all");
    fs.revoke_lease(ino, 1, 0).unwrap();
    assert!(matches!(fs.append(ino, b"x"), Err(Error::NoSpace { .. })));
    fs.write(ino, 0, b"").unwrap();
    process.goes_on();
    holds(&fs, ino, &[]);
    fs.holder_is_gone(1);
    fs.append(ino, &[7; 100]).unwrap();
    holds(&fs, ino, &[7; 100]);
    drop(fs);
    sound(medium, "no space");
}

#[test]
fn blocks_that_were_reserved_behind_the_end_move_or_become_free() {
    for is_full in [false, true] {
        let medium = made();
        let fs = Fs::mount(medium.clone()).unwrap();
        let ino = file(&fs, "log", &patterned(1, 5000));
        fs.change_range(ino, RangeChange::Allocate(Length::Stays), 2 * BLOCK, 3 * BLOCK).unwrap();
        let lease = fs.lease_to_grow(ino, 1, Appends::Durable).unwrap();
        assert_eq!(lease.blocks.end, 5);
        let process = Stopped { medium: medium.clone(), lease };
        if is_full {
            fill(&fs, "all");
            let all = fs.lookup(ROOT, b"all").unwrap().ino;
            let size = fs.attributes(all).unwrap().size - BLOCK;
            fs.set_attributes(all, &Changes { size: Some(size), ..Changes::default() }).unwrap();
        }
        fs.revoke_lease(ino, 1, 0).unwrap();
        assert_eq!(fs.attributes(ino).unwrap().blocks, if is_full { 2 } else { 5 });
        let grown = fs.append(ino, &[7; 9000]);
        assert_eq!(grown.is_err(), is_full);
        process.goes_on();
        holds(&fs, ino, if is_full { &[] } else { &[7; 9000] });
        fs.holder_is_gone(1);
        drop(fs);
        sound(medium, "reserved");
    }
}

/// What is reserved holds nothing, however much it is.
#[test]
fn blocks_that_were_reserved_behind_the_end_move_without_a_copy() {
    const RESERVED: u64 = 64 << 20;
    let medium = made_of(Geometry { blocks: 80 * 512, ..GEOMETRY });
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "log", &patterned(1, 5000));
    fs.change_range(ino, RangeChange::Allocate(Length::Stays), 2 * BLOCK, RESERVED).unwrap();
    let lease = fs.lease_to_grow(ino, 1, Appends::Durable).unwrap();
    assert_eq!(u64::from(lease.blocks.end) * BLOCK, 2 * BLOCK + RESERVED);
    let process = Stopped { medium: medium.clone(), lease };
    medium.record();
    fs.revoke_lease(ino, 1, 0).unwrap();
    let stored: usize = medium.recorded().iter().flatten().map(|store| store.bytes.len()).sum();
    assert!(stored < 4 * BLOCK as usize, "{stored} bytes stored");
    assert_eq!(fs.attributes(ino).unwrap().blocks, 2 + RESERVED / BLOCK, "they are other ones");
    fs.append(ino, &[7; 9000]).unwrap();
    process.goes_on();
    holds(&fs, ino, &[7; 9000]);
    // Others have left old bytes in what it got instead.
    fs.set_attributes(ino, &Changes { size: Some(1 << 20), ..Changes::default() }).unwrap();
    assert!(contents(&fs, ino)[14_000..].iter().all(|byte| *byte == 0));
    fs.holder_is_gone(1);
    drop(fs);
    sound(medium, "moved");
}

/// A lease has so many extents at the most. What is reserved behind them, no process can store to.
#[test]
fn blocks_that_were_not_leased_stay() {
    for has_failed in [false, true] {
        let medium = made();
        let fs = Fs::mount(medium.clone()).unwrap();
        let (ino, other) = (file(&fs, "log", &patterned(1, 5000)), file(&fs, "other", &[]));
        for block in 2..22 {
            for ino in [ino, other] {
                fs.change_range(ino, RangeChange::Allocate(Length::Stays), block * BLOCK, BLOCK).unwrap();
            }
        }
        let lease = fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
        let leased = lease.blocks.end;
        assert!((3..22).contains(&leased), "{leased}");
        let places = || {
            let extents = Inspection::new(medium.clone()).unwrap().inode(ino).unwrap().extents;
            let of =
                |block: u32| extents.iter().find(|one| (one.file_block..one.file_block + one.blocks).contains(&block));
            (1..22).map(|block| of(block).map(|one| one.start + u64::from(block - one.file_block))).collect::<Vec<_>>()
        };
        let before = places();
        let process = Stopped { medium: medium.clone(), lease };
        match has_failed {
            true => {
                assert!(matches!(fs.grown(ino, 1, 1 << 30), Err(Error::FileTooLarge { .. })));
                fs.end_lease(ino, 1, 1).unwrap();
                fs.append(ino, b"").unwrap();
                fs.append(ino, &[7; 100]).unwrap();
            }
            false => fs.revoke_lease(ino, 1, 0).unwrap(),
        }
        let moved: Vec<u32> =
            (1..22).filter(|block| places()[*block as usize - 1] != before[*block as usize - 1]).collect();
        assert_eq!(moved, (1..leased).collect::<Vec<_>>(), "{has_failed}");
        process.goes_on();
        holds(&fs, ino, if has_failed { &[7; 100] } else { &[] });
        fs.end_lease(ino, 1, 0).unwrap();
        fs.holder_is_gone(1);
        drop(fs);
        sound(medium, "not leased");
    }
}

/// A length beyond the room ends the growth of a process that lives on, and may be in the middle of another append.
#[test]
fn a_process_whose_growth_has_failed_appends_to_nothing() {
    let (medium, fs, ino, process) = stopped(Appends::Volatile);
    assert!(matches!(fs.grown(ino, 1, 1 << 30), Err(Error::FileTooLarge { .. })));
    assert!(matches!(fs.append(ino, b"x"), Err(Error::Leased { from_block: 1, .. })), "it still has the block mapped");
    fs.end_lease(ino, 1, 1).unwrap();
    fs.append(ino, &[7; 6000]).unwrap();
    process.goes_on();
    holds(&fs, ino, &[7; 6000]);
    fs.end_lease(ino, 1, 0).unwrap();
    fs.holder_is_gone(1);
    drop(fs);
    sound(medium, "failed");
}
