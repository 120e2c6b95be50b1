//! Leases of blocks: they stay where they are, and go to nobody else while a holder may store to them.

#![allow(clippy::unwrap_used)]

use vmio_pmfs::{Appends, Changes, Error, Fs, Holes, Lease, LeasedExtent, Medium, New, ROOT};

use crate::support::{contents, fill, made, patterned, sound};

const BLOCK: u64 = 4096;

fn file(fs: &Fs, name: &str, blocks: usize) -> u64 {
    let ino = fs.create(ROOT, name.as_bytes(), New::File, 0o644, (0, 0)).unwrap().ino;
    for block in 0..blocks {
        let at = block as u64 * BLOCK;
        fs.write(ino, at, &patterned(block as u64, BLOCK as usize)).unwrap();
    }
    ino
}

fn shrink(fs: &Fs, ino: u64, size: u64) -> vmio_pmfs::Result<()> {
    fs.set_attributes(ino, &Changes { size: Some(size), ..Changes::default() }).map(drop)
}

fn all(fs: &Fs, ino: u64, holder: u64) -> Lease {
    fs.lease(ino, holder, 0..u32::MAX, Holes::Keep, 100).unwrap()
}

/// Where the bytes of a lease are, read from the medium itself.
fn mapped(medium: &dyn Medium, lease: &Lease) -> Vec<u8> {
    let mut bytes = vec![0; lease.blocks.end as usize * BLOCK as usize];
    for LeasedExtent { file_block, blocks, start } in &lease.extents {
        let from = *file_block as usize * BLOCK as usize;
        medium.read(start * BLOCK, &mut bytes[from..from + *blocks as usize * BLOCK as usize]);
    }
    bytes.truncate(lease.size as usize);
    bytes
}

#[test]
fn a_holder_sees_what_calls_write_and_calls_see_what_it_stores() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 5);
    let lease = all(&fs, ino, 1);
    assert_eq!(mapped(&*medium, &lease), contents(&fs, ino));
    fs.write(ino, 4000, &patterned(9, 9000)).unwrap();
    assert_eq!(mapped(&*medium, &lease), contents(&fs, ino), "the blocks have not moved");
    medium.write(lease.extents[0].start * BLOCK + 8, &[7; 8]);
    assert_eq!(contents(&fs, ino)[8..16], [7; 8]);
    fs.write(ino, 5 * BLOCK - 10, &[1; 100]).unwrap();
    let longer = all(&fs, ino, 1);
    assert_eq!((longer.size, longer.blocks.end), (5 * BLOCK + 90, 6));
    assert_eq!(mapped(&*medium, &longer), contents(&fs, ino));
    assert_eq!(longer.extents.iter().map(|one| one.blocks).sum::<u32>(), 6);
    drop(fs);
    sound(medium, "leased");
}

#[test]
fn holes_stay_or_get_blocks_and_an_answer_has_its_most_extents() {
    let fs = Fs::mount(made()).unwrap();
    let ino = file(&fs, "sparse", 1);
    shrink(&fs, ino, 10 * BLOCK - 5).unwrap();
    let lease = fs.lease(ino, 1, 0..100, Holes::Keep, 100).unwrap();
    assert_eq!((lease.blocks.clone(), lease.extents.len(), lease.extents[0].blocks), (0..10, 1, 1));
    let lease = fs.lease(ino, 1, 4..6, Holes::Fill, 100).unwrap();
    assert_eq!((lease.blocks.clone(), lease.extents.len(), lease.size), (4..6, 1, 10 * BLOCK - 5));
    assert_eq!(fs.attributes(ino).unwrap().blocks, 3);
    let lease = fs.lease(ino, 1, 0..10, Holes::Keep, 1).unwrap();
    assert_eq!((lease.blocks.clone(), lease.extents.len()), (0..4, 1), "up to the second extent");
    assert_eq!(fs.lease(ino, 1, 10..20, Holes::Fill, 1).unwrap().extents, [], "behind the end");
    assert!(matches!(fs.lease(ROOT, 1, 0..1, Holes::Keep, 1), Err(Error::IsADirectory { .. })));
}

#[test]
fn leased_blocks_are_taken_away_only_once_the_lease_has_ended() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 6);
    all(&fs, ino, 1);
    all(&fs, ino, 2);
    assert!(matches!(shrink(&fs, ino, BLOCK), Err(Error::Leased { from_block: 1, .. })));
    let within_a_block = shrink(&fs, ino, 5 * BLOCK + 1);
    assert!(matches!(within_a_block, Err(Error::Leased { from_block: 5, .. })), "holders learn of each cut");
    fs.end_lease(ino, 1, 5).unwrap();
    fs.end_lease(ino, 2, 5).unwrap();
    shrink(&fs, ino, 5 * BLOCK + 1).unwrap();
    fs.end_lease(ino, 1, 1).unwrap();
    assert!(matches!(shrink(&fs, ino, BLOCK), Err(Error::Leased { .. })), "the other one has it");
    fs.end_lease(ino, 2, 1).unwrap();
    shrink(&fs, ino, BLOCK).unwrap();
    assert!(matches!(shrink(&fs, ino, 0), Err(Error::Leased { from_block: 0, .. })));
    assert_eq!(contents(&fs, ino), patterned(0, BLOCK as usize), "a refused call changes nothing");
    fs.end_lease(ino, 1, 0).unwrap();
    fs.end_lease(ino, 2, 0).unwrap();
    shrink(&fs, ino, 0).unwrap();
    drop(fs);
    sound(medium, "shrunk");
}

#[test]
fn a_leased_file_outlives_its_name() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let free = fs.space().free_blocks;
    let ino = file(&fs, "file", 6);
    let lease = all(&fs, ino, 1);
    let before = contents(&fs, ino);
    fs.unlink(ROOT, b"file").unwrap();
    fill(&fs, "all");
    assert_eq!(mapped(&*medium, &lease), before);
    fs.end_lease(ino, 1, 0).unwrap();
    assert!(matches!(fs.attributes(ino), Err(Error::NoInode { .. })));
    fs.unlink(ROOT, b"all").unwrap();
    assert!(fs.space().free_blocks >= free - 1, "but for the directory's block");
}

#[test]
fn blocks_of_a_revoked_lease_go_to_nobody_while_its_holder_lives() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 6);
    let lease = all(&fs, ino, 1);
    let before = contents(&fs, ino);
    let free = fs.space().free_blocks;
    fs.revoke_lease(ino, 1, 2).unwrap();
    shrink(&fs, ino, 2 * BLOCK).unwrap();
    assert!(matches!(shrink(&fs, ino, 0), Err(Error::Leased { .. })), "the rest is still leased");
    fs.revoke_lease(ino, 1, 0).unwrap();
    fs.unlink(ROOT, b"file").unwrap();
    assert_eq!(fs.space().free_blocks, free, "kept back");
    fill(&fs, "all");
    let old = Lease { size: 6 * BLOCK, ..lease };
    assert_eq!(mapped(&*medium, &old), before, "nobody has written there");
    fs.holder_is_gone(1);
    assert_eq!(fs.space().free_blocks, 6);
    drop(fs);
    sound(medium, "revoked");
}

/// Stores bytes where a lease to grow says that they go.
fn append(medium: &dyn Medium, lease: &Lease, bytes: &[u8]) {
    for (at, byte) in (lease.size..).zip(bytes) {
        let block = (at / BLOCK) as u32;
        let of =
            lease.extents.iter().find(|one| (one.file_block..one.file_block + one.blocks).contains(&block)).unwrap();
        medium.write((of.start + u64::from(block - of.file_block)) * BLOCK + at % BLOCK, &[*byte]);
    }
}

#[test]
fn bytes_that_a_holder_appends_become_the_files_in_one_transaction() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 2);
    fs.write(ino, 2 * BLOCK, &[7; 100]).unwrap();
    let mut expected = contents(&fs, ino);
    for round in 0..40 {
        let lease = fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
        assert_eq!(lease.size, expected.len() as u64);
        let room = u64::from(lease.blocks.end) * BLOCK - lease.size;
        let bytes = patterned(round, room.min(40_000 + round * 100) as usize);
        append(&*medium, &lease, &bytes);
        assert_eq!(fs.attributes(ino).unwrap().size, lease.size, "nobody sees them yet");
        expected.extend(&bytes);
        fs.grown(ino, 1, expected.len() as u64).unwrap();
        assert!(contents(&fs, ino) == expected);
    }
    assert!(matches!(fs.write(ino, expected.len() as u64, b"x"), Err(Error::Leased { .. })), "the holder has the end");
    assert!(matches!(shrink(&fs, ino, 1 << 30), Err(Error::Leased { .. })));
    assert!(matches!(fs.lease_to_grow(ino, 2, Appends::Volatile), Err(Error::Leased { .. })));
    fs.write(ino, 0, b"inside").unwrap();
    expected[..6].copy_from_slice(b"inside");
    assert!(matches!(fs.grown(ino, 1, 1 << 30), Err(Error::FileTooLarge { .. })));
    fs.grown(ino, 2, 1 << 20).unwrap();
    assert!(contents(&fs, ino) == expected, "a stranger changes nothing");
    fs.end_lease(ino, 1, 0).unwrap();
    fs.write(ino, expected.len() as u64, b"y").unwrap();
    expected.push(b'y');
    drop(fs);
    let (tree, _) = sound(medium, "grown");
    assert!(matches!(&tree["/file"], crate::support::Node::File(1, found) if *found == expected));
}

#[test]
fn what_a_file_grows_into_is_free_again_afterwards() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 3);
    let free = fs.space().free_blocks;
    let lease = fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
    assert!(fs.space().free_blocks < free);
    append(&*medium, &lease, &[1; 5000]);
    fs.grown(ino, 1, 3 * BLOCK + 5000).unwrap();
    fill(&fs, "all");
    fs.end_lease(ino, 1, 0).unwrap();
    assert!(fs.space().free_blocks > 0);
    fs.unlink(ROOT, b"all").unwrap();
    assert!(fs.space().free_blocks >= free - 3);
    // Of a holder that is lost, nothing is given out.
    let lease = fs.lease_to_grow(ino, 2, Appends::Volatile).unwrap();
    let last = lease.extents.last().unwrap();
    append(&*medium, &lease, &[9; 3000]);
    fs.revoke_lease(ino, 2, 0).unwrap();
    fill(&fs, "again");
    let mut found = [0; 100];
    medium.read(last.start * BLOCK + BLOCK * u64::from(last.blocks) - 100, &mut found);
    medium.write(last.start * BLOCK, &[3; 4096]);
    fs.holder_is_gone(2);
    drop(fs);
    sound(medium, "lost");
}

#[test]
fn a_file_whose_end_is_in_a_hole_grows_too() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 1);
    shrink(&fs, ino, 5 * BLOCK + 10).unwrap();
    let lease = fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
    append(&*medium, &lease, &[5; 9000]);
    fs.grown(ino, 1, lease.size + 9000).unwrap();
    let found = contents(&fs, ino);
    assert!(found[BLOCK as usize..5 * BLOCK as usize + 10].iter().all(|byte| *byte == 0));
    assert!(found[5 * BLOCK as usize + 10..].iter().all(|byte| *byte == 5) && found.len() == 5 * 4096 + 9010);
    drop(fs);
    sound(medium, "grown from a hole");
}

#[test]
fn a_write_into_a_hole_leaves_alone_what_a_holder_grows_into() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 10);
    shrink(&fs, ino, 2 << 20).unwrap();
    let lease = fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
    fs.write(ino, 1 << 20, &[7; 3000]).unwrap();
    append(&*medium, &lease, &[9; 5000]);
    fill(&fs, "all");
    fs.grown(ino, 1, lease.size + 5000).unwrap();
    assert!(contents(&fs, ino)[lease.size as usize..].iter().all(|byte| *byte == 9));
    assert_eq!(fs.append(ino, b"x").unwrap_err().errno(), libc_ebusy(), "the holder has the end");
    fs.end_lease(ino, 1, 0).unwrap();
    drop(fs);
    sound(medium, "grown beside a hole");
}

fn libc_ebusy() -> i32 {
    Error::InUse.errno()
}

#[test]
fn a_length_beyond_what_is_leased_changes_nothing_and_ends_the_growth() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = file(&fs, "file", 2);
    fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
    for size in [u64::MAX >> 1, 1 << 44, 1 << 30] {
        assert!(fs.grown(ino, 1, size).is_err() && !fs.is_growing(ino));
        fs.end_lease(ino, 1, 0).unwrap();
        fs.lease_to_grow(ino, 1, Appends::Volatile).unwrap();
    }
    fs.end_lease(ino, 1, 0).unwrap();
    fs.write(ino, 2 * BLOCK, b"goes on").unwrap();
    drop(fs);
    sound(medium, "a false length");
}
