//! What an inspection shows of sound and of damaged media.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use vmio_pmfs::{Error, Fs, Inspection, Kind, Medium, New, Precondition, ROOT, Said, Simulated, Superblock};

use crate::support::{GEOMETRY, made, patterned};

/// A folder with a file of many extents and an aligned one.
fn some() -> (Arc<Simulated>, u64, u64) {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let folder = fs.create(ROOT, b"folder", New::Directory, 0o755, (3, 4)).unwrap().ino;
    let file = fs.create(folder, &[b'n'; 100], New::File, 0o644, (0, 0)).unwrap().ino;
    (0..14).for_each(|block| _ = fs.write(file, block * 8192, b"bytes").unwrap());
    fs.set_xattr(file, b"user.one", b"first", Precondition::None).unwrap();
    let aligned = fs.create(ROOT, b"aligned", New::File, 0o644, (0, 0)).unwrap().ino;
    fs.allocate(aligned, 0, 2 << 20).unwrap();
    fs.write(aligned, 0, &patterned(1, 5000)).unwrap();
    (medium, folder, file)
}

fn flip(medium: &dyn Medium, at: u64) {
    let mut byte = [0];
    medium.read(at, &mut byte);
    medium.write(at, &[byte[0] ^ 0x10]);
}

#[test]
fn a_path_leads_to_its_inode_with_all_that_it_has() {
    let (medium, folder, file) = some();
    let inspection = Inspection::new(medium).unwrap();
    let path = ["/folder//./", &"n".repeat(100)].concat();
    assert_eq!(inspection.find(path.as_bytes()).unwrap(), file);
    assert_eq!(inspection.find(b"/").unwrap(), ROOT);
    assert!(matches!(inspection.find(b"/aligned/x"), Err(Error::NotADirectory { .. })));
    assert!(matches!(inspection.find(b"/folder/x"), Err(Error::NoEntry { directory, .. }) if directory == folder));
    let found = inspection.inode(file).unwrap();
    assert_eq!((found.kind, found.size, found.links), (Some(Kind::File), 13 * 8192 + 5, 1));
    assert_eq!((found.extents.len(), found.chain.len(), found.faults.len()), (14, 1, 0));
    assert_eq!(found.xattrs, [(b"user.one".to_vec(), b"first".to_vec())]);
    let aligned = inspection.inode(inspection.find(b"aligned").unwrap()).unwrap();
    assert_eq!(aligned.extents.iter().map(|extent| extent.aligned_extents).sum::<u64>(), 1);
    let (entries, faults) = inspection.entries(folder).unwrap();
    assert_eq!(entries.iter().map(|entry| (entry.ino, entry.name.len())).collect::<Vec<_>>(), [(file, 100)]);
    assert_eq!(faults, []);
    assert_eq!(inspection.inode(40).unwrap().kind_byte, 0);
    assert!(matches!(inspection.inode(u64::MAX), Err(Error::NoInode { .. })));
}

#[test]
fn places_that_it_gives_are_those_of_the_bytes() {
    let (medium, folder, file) = some();
    let inspection = Inspection::new(medium.clone()).unwrap();
    let found = inspection.inode(file).unwrap();
    for extent in &found.extents {
        let mut place = [0; 16];
        medium.read(extent.at, &mut place);
        assert_eq!(place[8..], extent.start.to_le_bytes());
        assert_eq!(place[..4], extent.file_block.to_le_bytes());
    }
    let mut slot = [0; 64];
    medium.read(inspection.entries(folder).unwrap().0[0].at, &mut slot);
    assert_eq!(slot[..8], file.to_le_bytes());
    let areas = inspection.areas();
    assert_eq!(areas.len(), GEOMETRY.areas as usize);
    assert!(areas[file as usize / 64].inodes.contains(&found.at) && areas[1].bytes.end == GEOMETRY.bytes());
    assert_eq!(areas[0].journal.end, areas[0].saves.start);
    assert_eq!(areas[0].inodes.end, areas[0].pool.start);
}

#[test]
fn free_space_is_what_a_mount_finds() {
    let (medium, ..) = some();
    let (runs, faults) = Inspection::new(medium.clone()).unwrap().free_runs();
    assert_eq!(faults, []);
    assert_eq!(runs, Fs::mount(medium).unwrap().free_runs());
}

#[test]
fn journals_say_which_transaction_is_unfinished() {
    let (medium, _, file) = some();
    let before = Arc::new(medium.copy());
    let fs = Fs::mount(medium.clone()).unwrap();
    medium.record();
    fs.write(file, 0, b"others").unwrap();
    let stores = medium.recorded();
    let newest =
        |inspection: &Inspection| inspection.journals().into_iter().filter_map(|one| one.newest).max().unwrap();
    let (finished, is_over) = newest(&Inspection::new(before.clone()).unwrap());
    assert!(is_over);
    // COMMIT is missing.
    stores[..stores.len() - 2].iter().flatten().for_each(|store| before.write(store.at, &store.bytes));
    let inspection = Inspection::new(before.clone()).unwrap();
    let number = finished + 1;
    assert_eq!(newest(&inspection), (number, false));
    let said: Vec<Said> = inspection
        .journals()
        .iter()
        .flat_map(|journal| &journal.entries)
        .filter_map(|(_, _, transaction, said)| (*transaction == number).then_some(*said))
        .collect();
    assert!(matches!(said[..], [Said::Start, Said::Old { .. }, ..]), "{said:?}");
    let (raw, recovered) = (inspection, Inspection::recovered(before).unwrap());
    assert_eq!(newest(&recovered), (number, true));
    assert_ne!(raw.inode(file).unwrap(), recovered.inode(file).unwrap());
}

#[test]
fn damaged_structures_are_shown_with_their_faults() {
    let (medium, folder, file) = some();
    let sound = Inspection::new(medium.clone()).unwrap();
    let (inode, entry) = (sound.inode(file).unwrap(), sound.entries(folder).unwrap().0.remove(0));
    flip(&*medium, 100);
    flip(&*medium, inode.at + 32);
    flip(&*medium, inode.chain[0] * 4096 + 504);
    flip(&*medium, inode.attributes * 4096 + 9);
    flip(&*medium, entry.at + 20);
    let both = Superblock::both(&*medium);
    assert!(matches!(both[0], (0, Err(Error::Damaged { .. }))) && both[1].1.is_ok());
    let inspection = Inspection::new(medium.clone()).unwrap();
    let found = inspection.inode(file).unwrap();
    assert_eq!((found.size, found.links), (inode.size ^ 0x10, 1));
    assert_eq!(found.extents, inode.extents);
    let places: Vec<u64> = found.faults.iter().map(|fault| fault.at).collect();
    assert_eq!(places, [inode.at, inode.chain[0] * 4096, inode.attributes * 4096]);
    let (entries, faults) = inspection.entries(folder).unwrap();
    assert_eq!((entries.len(), faults.len(), faults[0].at), (0, 1, entry.at));
    assert_eq!(inspection.free_runs().1.len(), 1);
    assert!(Fs::mount(medium).is_err());
}
