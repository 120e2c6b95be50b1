//! Repairs of media that are damaged in each way, and at random: what is provable is repaired, nothing else changes, and a crash meanwhile
//! leaves a medium that can be repaired.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use vmio_pmfs::{
    Error, Fs, Inspection, Kind, Medium, New, Overlay, ROOT, Repaired, Simulated, Superblock, check, repair,
};

use crate::crash_states::{crashed, subsets};
use crate::damage::{change, retarget, sound as sound_medium, structures};
use crate::support::{Node, Numbers, Tree, made, patterned, sound, tree};
use crate::use_all::use_all;

/// The numbers of what a medium has.
pub struct Numbered {
    pub folder: u64,
    pub inner: u64,
    pub one: u64,
    pub two: u64,
    pub link: u64,
}

pub fn some() -> (Arc<Simulated>, Numbered) {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let create = |at, name: &str, new| fs.create(at, name.as_bytes(), new, 0o755, (1, 2)).unwrap().ino;
    let folder = create(ROOT, "folder", New::Directory);
    let inner = create(folder, "inner", New::Directory);
    let one = create(ROOT, "one", New::File);
    let two = create(inner, "two", New::File);
    let link = create(ROOT, "link", New::Symlink(b"folder/inner"));
    create(inner, "empty", New::Directory);
    fs.link(one, folder, b"other").unwrap();
    for (seed, ino) in [(1, one), (2, two)] {
        fs.write(ino, 0, &patterned(seed, 30_000)).unwrap();
    }
    (medium, Numbered { folder, inner, one, two, link })
}

pub fn inode_at(medium: &Arc<Simulated>, ino: u64) -> u64 {
    Inspection::new(medium.clone()).unwrap().inode(ino).unwrap().at
}

/// Changes bytes of an inode, with a checksum that fits.
pub fn set(medium: &Arc<Simulated>, ino: u64, place: usize, value: &[u8]) {
    let (at, mut bytes) = (inode_at(medium, ino), [0; 256]);
    medium.read(at, &mut bytes);
    bytes[place..place + value.len()].copy_from_slice(value);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    medium.write(at, &bytes);
}

fn free(medium: &Arc<Simulated>, ino: u64) {
    medium.write(inode_at(medium, ino), &[0; 8]);
}

pub fn flip(medium: &Arc<Simulated>, at: u64) {
    let mut byte = [0];
    medium.read(at, &mut byte);
    medium.write(at, &[byte[0] ^ 0x10]);
}

pub const LINKS: usize = 40;
pub const PARENT: usize = 72;
const EXTENTS: usize = 96;

/// Repairs, and expects these texts among the repairs, in their order, and nothing left. Then the medium is sound and has this tree. So it has if
/// the repair is cut short anywhere, and made again.
pub fn repairs(medium: &Arc<Simulated>, expected: &[&str]) -> Tree {
    let before = Arc::new(medium.copy());
    assert!(!check(medium.clone()).unwrap().is_sound());
    medium.record();
    let Repaired { done, report, .. } = repair(medium.clone()).unwrap();
    let stores = medium.recorded();
    assert_eq!(report.faults, [], "{done:#?}");
    let texts: Vec<&str> = done.iter().map(|done| &*done.what).collect();
    assert!(
        texts.len() == expected.len() && texts.iter().zip(expected).all(|(text, part)| text.contains(part)),
        "{texts:#?}"
    );
    let found = sound(medium.clone(), "repaired").0;
    let again = repair(medium.clone()).unwrap();
    assert!(again.done.is_empty() && again.orphans == 0);
    let mut numbers = Numbers::new(0);
    for end in 1..=stores.len() {
        for set in subsets(stores[end - 1].len(), test_depth::pick(3, 50), &mut numbers) {
            let state = crashed(&before, &stores[..end], &set);
            let repaired = repair(Arc::clone(&state)).unwrap();
            assert_eq!(repaired.report.faults, [], "fence {end}, stores {set:?}");
            assert!(sound(state, "repaired again").0 == found, "fence {end}, stores {set:?}");
        }
    }
    found
}

/// Expects that nothing is repaired, and something is left.
fn stays(medium: &Arc<Simulated>) -> Repaired {
    let before = medium.copy();
    let faults = check(medium.clone()).unwrap().faults;
    let repaired = repair(medium.clone()).unwrap();
    assert_eq!(repaired.done, []);
    assert!(!faults.is_empty());
    assert_eq!(repaired.report.faults, faults);
    let is_same = |at| {
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        before.read(at, &mut one);
        medium.read(at, &mut other);
        one == other
    };
    assert!((0..medium.len()).step_by(4096).all(is_same));
    repaired
}

#[test]
fn a_superblock_is_written_anew_from_the_other_one() {
    for at in [0, (8 << 20) - 4096] {
        for (damage, text) in [(at, "it begins with the bytes"), (at + 100, "its checksum is")] {
            let (medium, _) = some();
            let expected = sound(medium.clone(), "before").0;
            flip(&medium, damage);
            assert!(repairs(&medium, &[text]) == expected);
            assert!(Superblock::both(&*medium).iter().all(|(_, read)| read.is_ok()));
        }
    }
}

#[test]
fn counts_of_links_become_those_of_the_names() {
    let (sound_one, at) = some();
    let expected = sound(sound_one.clone(), "before").0;
    for (ino, links) in
        [(at.one, 3_u32), (at.one, 1), (at.one, 0), (at.folder, 2), (at.folder, 9), (at.two, 7), (ROOT, 2)]
    {
        let medium = Arc::new(sound_one.copy());
        set(&medium, ino, LINKS, &links.to_le_bytes());
        let text = format!("inode {ino} counted {links} links");
        assert!(repairs(&medium, &[&text]) == expected);
    }
}

#[test]
fn what_has_no_name_gets_one() {
    let (medium, at) = some();
    retarget(&*medium, at.inner, b"two", 0, Kind::File);
    let tree = repairs(&medium, &["it is lost+found/#"]);
    assert_eq!(tree[&format!("/lost+found/#{}", at.two)], Node::File(1, patterned(2, 30_000)));
    // The directory of that name is there already, and a name in it as well.
    let fs = Fs::mount(medium.clone()).unwrap();
    let lost = fs.lookup(ROOT, b"lost+found").unwrap().ino;
    let taken = format!("#{}", at.inner);
    fs.create(lost, taken.as_bytes(), New::File, 0o644, (0, 0)).unwrap();
    drop(fs);
    retarget(&*medium, at.folder, b"inner", 0, Kind::Directory);
    let tree = repairs(&medium, &["counted 3 links: it counts 2", "it is lost+found/#"]);
    assert_eq!(tree[&format!("/lost+found/{taken}~")], Node::Directory);
    assert_eq!(tree[&format!("/lost+found/{taken}~/empty")], Node::Directory);
}

#[test]
fn what_has_no_name_and_counts_none_is_deleted_unless_it_has_entries() {
    let (medium, at) = some();
    set(&medium, at.two, LINKS, &[0; 4]);
    retarget(&*medium, at.inner, b"two", 0, Kind::File);
    assert!(check(medium.clone()).unwrap().is_sound(), "the next mount deletes it");
    let repaired = repair(medium.clone()).unwrap();
    assert_eq!((repaired.orphans, repaired.done.len()), (1, 0));
    sound(medium.clone(), "deleted");
    set(&medium, at.inner, LINKS, &[0; 4]);
    retarget(&*medium, at.folder, b"inner", 0, Kind::Directory);
    let tree = repairs(&medium, &["counted 3 links: it counts 2", "it is lost+found/#"]);
    assert_eq!(tree[&format!("/lost+found/#{}/empty", at.inner)], Node::Directory);
}

#[test]
fn entries_that_lead_nowhere_are_removed() {
    let (medium, at) = some();
    let mut expected = sound(medium.clone(), "before").0;
    free(&medium, at.two);
    expected.remove("/folder/inner/two").unwrap();
    assert!(repairs(&medium, &["is inode 4, which is free",].map(|_| "which is free: it is removed")) == expected);
    for case in 0..3 {
        let (medium, at) = some();
        let (to, text) =
            [(9_999_999, "which is free"), (ROOT, "is the root"), (at.folder, "which is in directory 1")][case];
        let fs = Fs::mount(medium.clone()).unwrap();
        fs.create(at.inner, b"bad", New::Directory, 0o755, (0, 0)).unwrap();
        drop(fs);
        retarget(&*medium, at.inner, b"bad", to, Kind::Directory);
        let tree = repairs(&medium, &[text, "counted 4 links: it counts 3", "had no name"]);
        assert!(!tree.contains_key("/folder/inner/bad"));
    }
}

#[test]
fn an_entry_says_the_kind_of_its_inode() {
    let (medium, at) = some();
    let expected = sound(medium.clone(), "before").0;
    for (directory, name, ino, kind) in [
        (ROOT, &b"one"[..], at.one, Kind::Directory),
        (ROOT, b"link", at.link, Kind::Fifo),
        (at.folder, b"inner", at.inner, Kind::File),
    ] {
        retarget(&*medium, directory, name, ino, kind);
        assert!(repairs(&medium, &[&format!("was said to be a {kind:?}")]) == expected);
    }
}

#[test]
fn a_directory_is_where_its_name_is() {
    let (medium, at) = some();
    let expected = sound(medium.clone(), "before").0;
    set(&medium, at.inner, PARENT, &at.one.to_le_bytes());
    assert!(repairs(&medium, &["said that it is in directory"]) == expected);
    set(&medium, ROOT, PARENT, &at.inner.to_le_bytes());
    assert!(repairs(&medium, &["the root said that it is in directory"]) == expected);
    // Two that are in each other: neither is provable.
    set(&medium, at.folder, PARENT, &at.inner.to_le_bytes());
    retarget(&*medium, at.inner, b"empty", at.folder, Kind::Directory);
    retarget(&*medium, ROOT, b"folder", at.one, Kind::File);
    let left = repair(medium.clone()).unwrap().report;
    assert!(left.faults.iter().any(|fault| fault.what.contains("is not under the root")), "{left:#?}");
}

#[test]
fn files_with_the_same_blocks_have_a_copy_each() {
    let (medium, at) = some();
    let inspection = Inspection::new(medium.clone()).unwrap();
    let extents = [at.one, at.two].map(|ino| inspection.inode(ino).unwrap().extents);
    // The lower one keeps them.
    let (low, high) = if at.one < at.two { (0, 1) } else { (1, 0) };
    let high_ino = [at.one, at.two][high];
    let start = extents[low][0].start + 2;
    set(&medium, high_ino, EXTENTS + 8, &start.to_le_bytes());
    assert!(Fs::mount(medium.clone()).is_err());
    let tree = repairs(&medium, &["has a copy now"]);
    let paths = ["/one", "/folder/inner/two"];
    let contents = paths.map(|path| match &tree[path] {
        Node::File(_, bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    });
    let kept = patterned(low as u64 + 1, 30_000);
    assert!(contents[low] == kept, "the other one's blocks are as they were");
    assert!(contents[high][..20_000] == kept[8192..28_192]);
    let fs = Fs::mount(medium.clone()).unwrap();
    fs.write(high_ino, 0, &[7; 9000]).unwrap();
    drop(fs);
    assert_eq!(sound(medium, "apart").0[paths[low]], tree[paths[low]]);
}

#[test]
fn blocks_behind_the_end_of_what_is_no_file_are_free() {
    let (medium, at) = some();
    let expected = sound(medium.clone(), "before").0;
    let free = Fs::mount(medium.clone()).unwrap().free_runs()[0].start;
    for ino in [at.link, at.inner] {
        let place = [5_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
        set(&medium, ino, EXTENTS + 16, &[&place[..], &free.to_le_bytes()].concat());
        assert!(repairs(&medium, &["blocks 1 to 6 behind its end"]) == expected);
    }
    set(&medium, at.one, 44, &0o100_644_u32.to_le_bytes());
    assert!(repairs(&medium, &["had mode 0o100644"]) == expected);
}

#[test]
fn what_is_not_provable_stays() {
    type Harm = fn(&Arc<Simulated>, &Numbered);
    let damages: [(&str, Harm); 7] = [
        ("an inode", |medium, at| flip(medium, inode_at(medium, at.one) + 50)),
        ("a directory's inode", |medium, at| flip(medium, inode_at(medium, at.inner) + 50)),
        ("the root's inode", |medium, _| flip(medium, inode_at(medium, ROOT) + 50)),
        ("an entry", |medium, at| {
            flip(medium, Inspection::new(medium.clone()).unwrap().entries(at.inner).unwrap().0[0].at + 16);
        }),
        ("a length", |medium, at| set(medium, at.inner, 32, &8192_u64.to_le_bytes())),
        ("a block of a journal", |medium, at| set(medium, at.two, EXTENTS + 8, &3_u64.to_le_bytes())),
        ("half of the word of a free inode", |medium, at| medium.write(inode_at(medium, at.two) + 4, &[0])),
    ];
    for (what, damage) in damages {
        let (medium, at) = some();
        damage(&medium, &at);
        println!("{what}: {:#?}", stays(&medium).report.faults);
    }
}

/// A name that cannot be read may be that of a file without one, and blocks of an inode that cannot be read are nobody's to give.
#[test]
fn nothing_follows_from_names_and_blocks_that_are_not_known() {
    let (medium, at) = some();
    retarget(&*medium, ROOT, b"one", 0, Kind::File);
    set(&medium, at.link, LINKS, &5_u32.to_le_bytes());
    let whole = Arc::new(medium.copy());
    flip(&medium, inode_at(&medium, at.inner) + 50);
    stays(&medium);
    // The inode of a file: its entry says so.
    flip(&whole, inode_at(&whole, at.two) + 50);
    let repaired = repair(whole.clone()).unwrap();
    assert_eq!(repaired.done.len(), 2, "{repaired:#?}");
    assert_eq!(repaired.report.faults.len(), 1);
    assert!(matches!(Fs::mount(whole), Err(Error::Damaged { .. })));
}

/// The files of a tree, by path.
fn files(tree: &Tree) -> BTreeMap<&String, &Node> {
    tree.iter().filter(|(_, node)| matches!(node, Node::File(..) | Node::Symlink(_))).collect()
}

/// Reads everything, if all can be read.
fn readable(medium: &Arc<dyn Medium>) -> Option<Tree> {
    let medium: Arc<dyn Medium> = Arc::new(Overlay::new(Arc::clone(medium)));
    let fs = Fs::mount(medium).ok()?;
    let mut left = vec![ROOT];
    while let Some(directory) = left.pop() {
        for named in fs.list(directory, 0, usize::MAX).ok()? {
            let attributes = fs.lookup(directory, &named.name).ok()?;
            let is_known = matches!(named.kind, Kind::File | Kind::Directory | Kind::Symlink);
            if !is_known || attributes.kind != named.kind || attributes.size > 64 << 20 {
                return None;
            }
            if named.kind == Kind::Symlink {
                fs.read_link(named.ino).ok()?;
            }
            fs.xattrs(named.ino).ok()?.iter().try_for_each(|name| fs.xattr(named.ino, name).map(drop)).ok()?;
            left.extend((named.kind == Kind::Directory).then_some(named.ino));
        }
    }
    Some(tree(&fs))
}

/// Damages a medium, mostly in ways that contradict other structures and not a checksum.
fn harm(medium: &dyn Medium, all: &[(u64, u64)], numbers: &mut Numbers) {
    let mut pick = |most: usize| numbers.next() as usize % most;
    let (ino, at) = all[pick(all.len())];
    let other = all[pick(all.len())];
    let mut bytes = [0; 256];
    medium.read(at, &mut bytes);
    match pick(8) {
        0 | 1 => bytes[LINKS] = pick(5) as u8,
        2 => bytes[PARENT..PARENT + 8].copy_from_slice(&other.0.to_le_bytes()),
        3 | 4 => {
            let (mut extent, from, to) = ([0; 16], 16 * pick(4), 16 * pick(4));
            medium.read(other.1 + EXTENTS as u64 + from as u64, &mut extent);
            bytes[EXTENTS + to..EXTENTS + to + 16].copy_from_slice(&extent);
        }
        5 => bytes[44..48].copy_from_slice(&(numbers.next() as u32).to_le_bytes()),
        6 => return medium.write(at, &[0; 8]),
        _ => bytes[4] = 1 + pick(7) as u8,
    }
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    medium.write(at, &bytes);
}

#[test]
fn random_damage_is_repaired_or_left_and_never_made_worse() {
    let sound = sound_medium();
    let all = structures(&*sound);
    let inspection = Inspection::new(sound.clone()).unwrap();
    let inodes = (1..128).filter_map(|ino| inspection.inode(ino).ok()).filter(|found| found.kind_byte != 0);
    let inodes: Vec<(u64, u64)> = inodes.map(|found| (found.ino, found.at)).collect();
    let (mut whole, mut partly, mut untouched) = (0, 0, 0);
    for seed in test_depth::seeds(150, 100_000) {
        let mut numbers = Numbers::new(seed);
        let medium: Arc<dyn Medium> = Arc::new(Overlay::new(Arc::clone(&sound) as Arc<dyn Medium>));
        for _ in 0..1 + seed % 4 {
            match numbers.next() % 4 {
                0 => change(&*medium, &all, &mut numbers),
                _ => harm(&*medium, &inodes, &mut numbers),
            }
        }
        let Ok(before) = check(Arc::clone(&medium)) else { continue };
        let tree_before = readable(&medium);
        let Repaired { done, report, .. } = repair(Arc::clone(&medium)).unwrap();
        assert_eq!(check(Arc::clone(&medium)).unwrap(), report, "seed {seed}");
        let again = repair(Arc::clone(&medium)).unwrap();
        assert!(again.done.is_empty() && again.orphans == 0, "seed {seed}: {:#?}", again.done);
        assert_eq!(again.report, report, "seed {seed}");
        assert!(report.faults.len() <= before.faults.len(), "seed {seed}: {before:#?}, {done:#?}, {report:#?}");
        assert!(!before.is_sound() || done.is_empty(), "seed {seed}: {done:#?}");
        assert!(before.is_sound() || !report.is_sound() || !done.is_empty(), "seed {seed}: {before:#?}");
        if let (Some(before), Some(after)) = (tree_before, readable(&medium)) {
            let (before, after) = (files(&before), files(&after));
            for (path, node) in before {
                let found = after.get(path);
                let is_same = match (node, found) {
                    (Node::File(_, one), Some(Node::File(_, other))) => one == other,
                    (one, Some(other)) => one == *other,
                    // What was reached by two ways is reached by one.
                    (_, None) => !done.is_empty(),
                };
                assert!(is_same, "seed {seed}: {path} is lost or changed: {done:#?}");
            }
        }
        match (report.is_sound(), done.is_empty()) {
            (true, false) => whole += 1,
            (false, false) => partly += 1,
            (_, true) => untouched += 1,
        }
        match Fs::mount(Arc::clone(&medium)) {
            Ok(fs) => use_all(&fs),
            Err(error) => assert!(!report.is_sound(), "seed {seed}: what is sound is not mounted: {error}"),
        }
        if report.is_sound() {
            let faults = check(medium).unwrap().faults;
            assert!(faults.is_empty(), "seed {seed}: damaged by its use: {faults:#?}");
        }
    }
    let seen = [whole, partly, untouched];
    assert!(test_depth::seeds_are_chosen() || seen.iter().all(|count| *count > 10), "{seen:?}");
}
