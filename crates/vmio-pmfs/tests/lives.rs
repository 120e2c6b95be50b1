//! A simulator of many lives of one medium: random calls, holders of leases that store by themselves, files that move, and a crash or an end in
//! good order after each. Seeds make them; a model says what must be there.
//!
//! The crash falls into the last call of a life: all stores up to one of its fences have happened, and any of those since. So it does, now and
//! then, in the recovery that follows.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use vmio_pmfs::{
    Appends, Changes, Error, Fs, Holes, Lease, LeasedExtent, Length, Medium, Mode, New, Precondition, ROOT,
    RangeChange, Replace, Result, Simulated, Store,
};

use crate::support::{Node, Numbers, Tree, contents, made, patterned, sound, tree};

const BLOCK: u64 = 4096;
const NAMES: usize = 5;
const XATTR: &[u8] = b"user.lives";

/// A name: its directory and its number.
type Place = (usize, usize);

#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// What is there: files by name. Names of one file have the same number.
#[derive(Clone, Default)]
struct Model {
    names: BTreeMap<Place, usize>,
    files: Vec<File>,
}

fn name(index: usize) -> Vec<u8> {
    vec![b'a' + index as u8; 1 + index * 50]
}

fn path((directory, index): Place) -> String {
    let above = ["", "/one", "/two"][directory];
    format!("{above}/{}", String::from_utf8(name(index)).unwrap())
}

impl Model {
    fn tree(&self) -> Tree {
        let mut tree: Tree = ["/one", "/two"].into_iter().map(|path| (path.to_owned(), Node::Directory)).collect();
        for (place, file) in &self.names {
            let links = self.names.values().filter(|other| *other == file).count() as u32;
            let File { bytes, xattr } = &self.files[*file];
            tree.insert(path(*place), Node::File(links, bytes.clone()));
            if let Some(value) = xattr {
                tree.insert(format!("{} user.lives", path(*place)), Node::Xattr(value.clone()));
            }
        }
        tree
    }

    /// The model after a crash that has torn the bytes of a file, if that is what has been found.
    fn torn(&self, after: &Model, file: usize, found: &Tree) -> Option<Model> {
        let place = self.names.iter().find(|(_, other)| **other == file)?.0;
        let Some(Node::File(_, bytes)) = found.get(&path(*place)) else { return None };
        let (old, new) = (&self.files[file].bytes, &after.files[file].bytes);
        let is_either = |at: usize| bytes[at] == old[at] || new.get(at) == Some(&bytes[at]);
        if bytes.len() != old.len() || !(0..old.len()).all(is_either) {
            return None;
        }
        let mut torn = self.clone();
        torn.files[file].bytes.clone_from(bytes);
        (torn.tree() == *found).then_some(torn)
    }
}

/// Blocks that a holder has mapped.
struct Held {
    file: usize,
    ino: u64,
    holder: u64,
    lease: Lease,
}

/// A mounted file system, and what must be in it.
struct Life<'a> {
    medium: Arc<Simulated>,
    fs: Fs,
    model: Model,
    directories: [u64; 3],
    held: Vec<Held>,
    numbers: &'a mut Numbers,
}

/// Whether a call has done its work. It may find no space, or blocks that are leased.
fn done<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::NoSpace { .. } | Error::NoInodes | Error::Leased { .. } | Error::XattrsTooLarge { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

impl Life<'_> {
    fn below(&mut self, most: usize) -> usize {
        (self.numbers.next() % most as u64) as usize
    }

    fn place(&mut self) -> Place {
        (self.below(3), self.below(NAMES))
    }

    /// A file that has a name, and its inode.
    fn file(&mut self) -> Option<(usize, u64)> {
        let most = self.model.names.len().max(1);
        let pick = self.below(most);
        let (place, file) = self.model.names.iter().nth(pick)?;
        Some((*file, self.fs.lookup(self.directories[place.0], &name(place.1)).unwrap().ino))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = if self.below(8) == 0 { 65_536 } else { 9000 };
        let len = 1 + self.below(most);
        let seed = self.numbers.next() % 1000;
        patterned(seed, len)
    }

    fn offset(&mut self) -> usize {
        let most = [20_000, 20_000, 200_000, 2_300_000][self.below(4)];
        self.below(most)
    }

    /// One call. Returns the file whose bytes a crash may tear.
    fn step(&mut self) -> Option<usize> {
        match self.below(24) {
            0..=2 => self.create(),
            3..=7 => return self.write(),
            8 | 9 => return self.resize(),
            10 | 11 => return self.change_range(),
            12 => self.unlink(),
            13..=15 => self.name_again(),
            16 => self.set_xattr(),
            17 | 18 => self.lease(),
            19 | 20 => return self.store(),
            21 => self.return_lease(),
            22 => self.grow(),
            _ => self.move_blocks(),
        }
        None
    }

    fn create(&mut self) {
        let place = self.place();
        let made = self.fs.create(self.directories[place.0], &name(place.1), New::File, 0o600, (0, 0));
        if self.model.names.contains_key(&place) {
            assert!(matches!(made, Err(Error::EntryExists { .. })));
        } else if done(made) {
            self.model.files.push(File::default());
            self.model.names.insert(place, self.model.files.len() - 1);
        }
    }

    fn write(&mut self) -> Option<usize> {
        let (file, ino) = self.file()?;
        let (at, bytes) = (self.offset(), self.bytes());
        if done(self.fs.write(ino, at as u64, &bytes)) {
            let there = &mut self.model.files[file].bytes;
            there.resize(there.len().max(at + bytes.len()), 0);
            there[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        (self.fs.mode() == Mode::Relaxed).then_some(file)
    }

    fn resize(&mut self) -> Option<usize> {
        let (file, ino) = self.file()?;
        let size = self.offset();
        if done(self.fs.set_attributes(ino, &Changes { size: Some(size as u64), ..Changes::default() })) {
            self.model.files[file].bytes.resize(size, 0);
        }
        None
    }

    fn change_range(&mut self) -> Option<usize> {
        let (file, ino) = self.file()?;
        let change = [
            RangeChange::Punch,
            RangeChange::Zero(Length::Grows),
            RangeChange::Zero(Length::Stays),
            RangeChange::Allocate(Length::Grows),
            RangeChange::Allocate(Length::Stays),
        ][self.below(5)];
        let (at, len) = (self.offset(), 1 + self.offset());
        if done(self.fs.change_range(ino, change, at as u64, len as u64)) {
            let there = &mut self.model.files[file].bytes;
            if let RangeChange::Allocate(Length::Grows) | RangeChange::Zero(Length::Grows) = change {
                there.resize(there.len().max(at + len), 0);
            }
            let end = there.len().min(at + len);
            if !matches!(change, RangeChange::Allocate(_)) && at < end {
                there[at..end].fill(0);
            }
        }
        (self.fs.mode() == Mode::Relaxed).then_some(file)
    }

    fn unlink(&mut self) {
        let place = self.place();
        let gone = self.fs.unlink(self.directories[place.0], &name(place.1));
        assert_eq!(gone.is_ok(), self.model.names.remove(&place).is_some());
    }

    /// A rename, an exchange or a second name.
    fn name_again(&mut self) {
        let (from, to) = (self.place(), self.place());
        let (above, other) = (self.directories[from.0], self.directories[to.0]);
        let names = &mut self.model.names;
        let (file, taken) = (names.get(&from).copied(), names.get(&to).copied());
        let Some(file) = file else { return };
        match self.numbers.next() % 3 {
            0 => {
                if done(self.fs.rename(above, &name(from.1), other, &name(to.1), Replace::Yes)) && taken != Some(file) {
                    names.remove(&from);
                    names.insert(to, file);
                }
            }
            1 => {
                if let Some(taken) = taken {
                    assert!(done(self.fs.exchange(above, &name(from.1), other, &name(to.1))));
                    names.extend([(from, taken), (to, file)]);
                }
            }
            _ => {
                let ino = self.fs.lookup(above, &name(from.1)).unwrap().ino;
                if taken.is_none() && done(self.fs.link(ino, other, &name(to.1))) {
                    names.insert(to, file);
                }
            }
        }
    }

    fn set_xattr(&mut self) {
        let Some((file, ino)) = self.file() else { return };
        let value = self.bytes();
        let value = &value[..value.len().min(3000)];
        if done(self.fs.set_xattr(ino, XATTR, value, Precondition::None)) {
            self.model.files[file].xattr = Some(value.to_vec());
        }
    }

    fn lease(&mut self) {
        let Some((file, ino)) = self.file() else { return };
        let holder = self.numbers.next() % 3;
        let holes = if self.below(2) == 0 { Holes::Keep } else { Holes::Fill };
        if let Ok(lease) = self.fs.lease(ino, holder, 0..u32::MAX, holes, 100)
            // Of an empty file there is nothing to hold.
            && !lease.blocks.is_empty()
        {
            self.held.push(Held { file, ino, holder, lease });
        }
    }

    /// A holder stores to what it has mapped, and the file has that.
    fn store(&mut self) -> Option<usize> {
        if self.held.is_empty() {
            return None;
        }
        let (pick, bytes) = (self.numbers.next() as usize % self.held.len(), self.bytes());
        let (file, size) = (self.held[pick].file, self.held[pick].lease.size);
        let extents = self.held[pick].lease.extents.clone();
        let most = extents.len().max(1);
        let extent = extents.get(self.below(most))?;
        let first = u64::from(extent.file_block) * BLOCK;
        let room = (first + u64::from(extent.blocks) * BLOCK).min(size).checked_sub(first).filter(|room| *room > 0)?;
        let skip = self.numbers.next() % room;
        let bytes = &bytes[..bytes.len().min((room - skip) as usize)];
        self.medium.write(extent.start * BLOCK + skip, bytes);
        self.medium.fence();
        let there = &mut self.model.files[file].bytes;
        let at = (first + skip) as usize;
        there[at..at + bytes.len()].copy_from_slice(bytes);
        Some(file)
    }

    fn return_lease(&mut self) {
        if !self.held.is_empty() {
            let pick = self.numbers.next() as usize % self.held.len();
            let Held { ino, holder, .. } = self.held[pick];
            self.fs.end_lease(ino, holder, 0).unwrap();
            self.held.retain(|held| (held.ino, held.holder) != (ino, holder));
        }
    }

    /// A holder appends by itself.
    fn grow(&mut self) {
        let Some((file, ino)) = self.file() else { return };
        let (holder, bytes) = (9, self.bytes());
        let Ok(lease) = self.fs.lease_to_grow(ino, holder, Appends::Volatile) else { return };
        assert_eq!(lease.size, self.model.files[file].bytes.len() as u64);
        // Behind the end there may be holes between blocks that fallocate has reserved. This holder stops there.
        let mut place = lease.size;
        let end = lease.size + bytes.len() as u64;
        for LeasedExtent { file_block, blocks, start } in lease.extents.iter().copied() {
            let first = u64::from(file_block) * BLOCK;
            let stop = end.min(first + u64::from(blocks) * BLOCK);
            if first <= place && place < stop {
                let part = &bytes[(place - lease.size) as usize..(stop - lease.size) as usize];
                self.medium.write(start * BLOCK + place - first, part);
                place = stop;
            }
        }
        let bytes = &bytes[..(place - lease.size) as usize];
        if done(self.fs.grown(ino, holder, lease.size + bytes.len() as u64)) {
            self.model.files[file].bytes.extend_from_slice(bytes);
        }
        self.fs.end_lease(ino, holder, 0).unwrap();
    }

    fn move_blocks(&mut self) {
        match self.below(2) {
            0 => _ = self.fs.gather(4).unwrap(),
            _ => {
                let Some((_, ino)) = self.file() else { return };
                self.fs.rewrite_aligned(ino).unwrap();
            }
        }
    }
}

/// The medium after a crash: all stores before one of the fences, and any of those since.
fn cut(before: &Simulated, epochs: &[Vec<Store>], numbers: &mut Numbers) -> Arc<Simulated> {
    let medium = before.copy();
    let end = (numbers.next() % epochs.len().max(1) as u64) as usize;
    // Some, nearly none or nearly all of them.
    let (share, of) = [(1, 2), (1, 16), (15, 16), (0, 1), (1, 1)][numbers.next() as usize % 5];
    for (index, epoch) in epochs.iter().take(end + 1).enumerate() {
        for store in epoch {
            if index < end || numbers.next() % of < share {
                medium.write(store.at, &store.bytes);
            }
        }
    }
    Arc::new(medium)
}

/// One life on a medium. Returns the medium and the model after it.
fn live(
    medium: Arc<Simulated>,
    model: Model,
    mode: Mode,
    numbers: &mut Numbers,
    what: &str,
) -> (Arc<Simulated>, Model) {
    let fs = Fs::mount_in(medium.clone(), mode).unwrap();
    let directories = [ROOT, fs.lookup(ROOT, b"one").unwrap().ino, fs.lookup(ROOT, b"two").unwrap().ino];
    let mut life = Life { medium, fs, model, directories, held: Vec::new(), numbers };
    for _ in 0..life.below(40) {
        life.step();
        if life.below(10) == 0
            && let Some((file, ino)) = life.file()
        {
            assert!(contents(&life.fs, ino) == life.model.files[file].bytes, "{what}: a file differs");
        }
    }
    let (before, model_before) = (life.medium.copy(), life.model.clone());
    if life.below(6) == 0 {
        assert!(tree(&life.fs) == life.model.tree(), "{what}: before the end");
        let Life { medium, fs, model, .. } = life;
        drop(fs);
        assert!(sound(medium.clone(), what).0 == model.tree(), "{what}: after the end");
        return (medium, model);
    }
    life.medium.record();
    let torn = life.step();
    let epochs = life.medium.recorded();
    let model_after = life.model.clone();
    let mut crashed = cut(&before, &epochs, life.numbers);
    if life.below(4) == 0 {
        let again = crashed.copy();
        crashed.record();
        drop(Fs::mount(crashed.clone()).unwrap());
        crashed = cut(&again, &crashed.recorded(), life.numbers);
    }
    let found = sound(crashed.clone(), what).0;
    let model = match () {
        () if found == model_after.tree() => model_after,
        () if found == model_before.tree() => model_before,
        () => torn
            .and_then(|file| model_before.torn(&model_after, file, &found))
            .unwrap_or_else(|| panic!("{what}: the tree is neither that before nor that after the last call")),
    };
    (crashed, model)
}

#[test]
fn a_medium_has_what_it_must_have_through_all_its_lives() {
    for seed in test_depth::seeds(10, 2000) {
        let mut numbers = Numbers::new(seed);
        let mut medium = made();
        let fs = Fs::mount(medium.clone()).unwrap();
        for name in [b"one", b"two"] {
            fs.create(ROOT, name, New::Directory, 0o755, (0, 0)).unwrap();
        }
        drop(fs);
        let mut model = Model::default();
        for life in 0..test_depth::pick(20, 100) {
            let mode = if numbers.next().is_multiple_of(3) { Mode::Relaxed } else { Mode::Strict };
            let what = format!("seed {seed}, life {life}, {mode:?}");
            (medium, model) = live(medium, model, mode, &mut numbers, &what);
        }
    }
}
