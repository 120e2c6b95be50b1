//! Slots of growing files in repairs and inspections: what was appended stays, and what makes no sense goes.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use vmio_pmfs::{Appends, Fs, Inspection, Kind, Medium, New, ROOT, Simulated, check, repair};
use vmio_pmfs_protocol::{CLOSED, sealed};

use crate::damage::retarget;
use crate::durable_appends::seed_of;
use crate::repair::{LINKS, flip, inode_at, repairs, set};
use crate::support::{Node, made, patterned, sound};

const SIZE: u64 = 5000;
const APPENDED: u64 = 3000;

/// A medium on which a process has appended to a file, and nobody has asked since. Its inode, and the slot.
fn appended() -> (Arc<Simulated>, u64, u64) {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let ino = fs.create(ROOT, b"log", New::File, 0o644, (0, 0)).unwrap().ino;
    fs.write(ino, 0, &patterned(1, SIZE as usize)).unwrap();
    let lease = fs.lease_to_grow(ino, 1, Appends::Durable).unwrap();
    let slot = lease.slot_at.unwrap();
    medium.write(lease.extents[0].start * 4096 + SIZE % 4096, &[7; APPENDED as usize]);
    medium.write(slot, &sealed(SIZE + APPENDED, seed_of(&*medium, slot)).to_le_bytes());
    (medium, ino, slot)
}

fn whole() -> Node {
    Node::File(1, [patterned(1, SIZE as usize), vec![7; APPENDED as usize]].concat())
}

#[test]
fn a_repair_makes_files_longer_as_a_mount_does() {
    let (medium, ino, _) = appended();
    // Something else is wrong with it.
    set(&medium, ino, LINKS, &3_u32.to_le_bytes());
    let copy = Arc::new(medium.copy());
    assert_eq!(repair(copy.clone()).unwrap().appends, 1);
    assert_eq!(Inspection::new(copy).unwrap().slots(), []);
    assert_eq!(repairs(&medium, &["counted 3 links"])["/log"], whole());
}

#[test]
fn slots_of_inodes_that_are_gone_and_damaged_ones_are_cleared() {
    let (medium, ino, slot) = appended();
    let slots = |medium: &Arc<Simulated>| Inspection::new(medium.clone()).unwrap().slots();
    for bit in 0..8 {
        let medium = Arc::new(medium.copy());
        medium.write(slot + bit, &[medium.load_word(slot).to_le_bytes()[bit as usize] ^ 4]);
        let tree = repairs(&medium, &["another check than its length: it says nothing now"]);
        assert_eq!(tree["/log"], Node::File(1, patterned(1, SIZE as usize)));
        assert_eq!(slots(&medium), []);
    }
    // The repair deletes the inode.
    let nameless = Arc::new(medium.copy());
    set(&nameless, ino, LINKS, &[0; 4]);
    retarget(&*nameless, ROOT, b"log", 0, Kind::File);
    assert_eq!(repair(nameless.clone()).unwrap().orphans, 1);
    assert_eq!(slots(&nameless), []);
    sound(nameless, "nameless");
    // It is free already.
    let free = Arc::new(medium.copy());
    free.write(inode_at(&free, ino), &[0; 8]);
    repairs(&free, &["is not there: it says nothing now", "which is free"]);
    // Whether it fits a damaged inode is not known.
    flip(&medium, inode_at(&medium, ino) + 50);
    let faults = check(medium.clone()).unwrap().faults;
    let repaired = repair(medium.clone()).unwrap();
    assert_eq!((repaired.done, repaired.report.faults), (Vec::new(), faults));
    assert_eq!(slots(&medium).len(), 1);
}

#[test]
fn an_inspection_shows_what_slots_say_and_what_a_mount_makes_of_it() {
    let (medium, ino, at) = appended();
    let raw = Inspection::new(medium.clone()).unwrap();
    let found = raw.slots().remove(0);
    assert_eq!((found.at, found.ino, found.length, found.is_closed), (at, ino, SIZE + APPENDED, false));
    assert_eq!((found.generation, &found.fault), (raw.inode(ino).unwrap().generation, &None));
    assert!(found.reserved.start == 2 && found.reserved.end > 2, "{:?}", found.reserved);
    assert_eq!(raw.inode(ino).unwrap().size, SIZE);
    let recovered = Inspection::recovered(medium.clone()).unwrap();
    assert_eq!((recovered.slots(), recovered.inode(ino).unwrap().size), (Vec::new(), SIZE + APPENDED));
    assert_eq!(raw.slots().len(), 1, "the medium is as it was");
    medium.set_bits(at, CLOSED);
    assert!(raw.slots()[0].is_closed && raw.slots()[0].fault.is_none());
    medium.write(at, &[1]);
    assert!(raw.slots()[0].fault.is_some());
}
