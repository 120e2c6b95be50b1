//! Random calls against a map, with remounts.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::support::{Node, made, patterned, sound, tree};
use vmio_pmfs::{ALIGNED, Changes, Error, Fs, Length, Mode, New, Precondition, ROOT, RangeChange, Replace};

const NAMES: usize = 6;

#[derive(Clone, Debug)]
enum Call {
    Create(usize),
    Write { file: usize, at: u32, bytes: u32, seed: u8 },
    Resize { file: usize, size: u32 },
    ChangeRange { file: usize, change: RangeChange, at: u32, bytes: u32 },
    Exchange(usize, usize),
    SetXattr { file: usize, name: u8, bytes: usize },
    RemoveXattr { file: usize, name: u8 },
    Rename(usize, usize),
    Link(usize, usize),
    Unlink(usize),
    Remount,
}

fn call() -> impl Strategy<Value = Call> {
    let at = 0_u32..3_000_000;
    let bytes = prop_oneof![3 => 1_u32..9000, 1 => 9000_u32..65536];
    prop_oneof![
        3 => (0..NAMES).prop_map(Call::Create),
        8 => (0..NAMES, prop_oneof![at.clone(), 0_u32..20_000], bytes, any::<u8>())
            .prop_map(|(file, at, bytes, seed)| Call::Write { file, at, bytes, seed }),
        3 => (0..NAMES, at.clone()).prop_map(|(file, size)| Call::Resize { file, size }),
        3 => (0..NAMES, change(), prop_oneof![at, 0_u32..20_000], prop_oneof![1_u32..2_200_000, 1_u32..9000])
            .prop_map(|(file, change, at, bytes)| Call::ChangeRange { file, change, at, bytes }),
        1 => (0..NAMES, 0..NAMES).prop_map(|(one, other)| Call::Exchange(one, other)),
        2 => (0..NAMES, 0_u8..4, 0_usize..2000)
            .prop_map(|(file, name, bytes)| Call::SetXattr { file, name, bytes }),
        1 => (0..NAMES, 0_u8..4).prop_map(|(file, name)| Call::RemoveXattr { file, name }),
        3 => (0..NAMES, 0..NAMES).prop_map(|(from, to)| Call::Rename(from, to)),
        1 => (0..NAMES, 0..NAMES).prop_map(|(from, to)| Call::Link(from, to)),
        2 => (0..NAMES).prop_map(Call::Unlink),
        1 => Just(Call::Remount),
    ]
}

fn change() -> impl Strategy<Value = RangeChange> {
    let length = prop_oneof![Just(Length::Grows), Just(Length::Stays)];
    prop_oneof![
        length.clone().prop_map(RangeChange::Allocate),
        length.prop_map(RangeChange::Zero),
        Just(RangeChange::Punch),
    ]
}

/// Names are of different lengths, so that entries have one to five slots.
fn name(index: usize) -> Vec<u8> {
    vec![b'a' + index as u8; 1 + index * 50]
}

/// The last one is a flag of the inode.
fn xattr(number: u8) -> String {
    match number {
        3 => ALIGNED.to_owned(),
        number => format!("user.{}", "x".repeat(1 + usize::from(number) * 60)),
    }
}

/// Files by name; names of one file have the same number.
#[derive(Default)]
struct Model {
    names: BTreeMap<usize, usize>,
    files: Vec<Vec<u8>>,
    /// Extended attributes by file and name.
    xattrs: BTreeMap<(usize, String), Vec<u8>>,
}

impl Model {
    fn file(&mut self, name: usize) -> Option<&mut Vec<u8>> {
        self.names.get(&name).map(|file| &mut self.files[*file])
    }

    fn tree(&self) -> crate::support::Tree {
        let links = |file: usize| self.names.values().filter(|other| **other == file).count() as u32;
        let node = |file: usize| Node::File(links(file), self.files[file].clone());
        let path = |index: usize| format!("/{}", String::from_utf8_lossy(&name(index)));
        let mut tree: crate::support::Tree =
            self.names.iter().map(|(index, file)| (path(*index), node(*file))).collect();
        for (index, file) in &self.names {
            let of_file = self.xattrs.iter().filter(|((of, _), _)| of == file);
            tree.extend(
                of_file.map(|((_, name), value)| (format!("{} {name}", path(*index)), Node::Xattr(value.clone()))),
            );
        }
        tree
    }
}

fn full(outcome: Result<(), Error>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::NoSpace { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

fn play(mode: Mode, calls: Vec<Call>) {
    let medium = made();
    let mut fs = Fs::mount_in(medium.clone(), mode).unwrap();
    let mut model = Model::default();
    for call in calls {
        let ino = |index: usize| fs.lookup(ROOT, &name(index)).map(|found| found.ino);
        match call {
            Call::Create(index) => {
                let made = fs.create(ROOT, &name(index), New::File, 0o600, (0, 0));
                assert_eq!(made.is_ok(), !model.names.contains_key(&index));
                if made.is_ok() {
                    model.files.push(Vec::new());
                    model.names.insert(index, model.files.len() - 1);
                }
            }
            Call::Write { file, at, bytes, seed } => {
                let Ok(ino) = ino(file) else { continue };
                let (at, bytes) = (at as usize, patterned(seed.into(), bytes as usize));
                if !full(fs.write(ino, at as u64, &bytes).map(|written| assert_eq!(written, bytes.len()))) {
                    let there = model.file(file).unwrap();
                    there.resize(there.len().max(at + bytes.len()), 0);
                    there[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            Call::Resize { file, size } => {
                let Ok(ino) = ino(file) else { continue };
                let changes = Changes { size: Some(size.into()), ..Changes::default() };
                if !full(fs.set_attributes(ino, &changes).map(drop)) {
                    model.file(file).unwrap().resize(size as usize, 0);
                }
            }
            Call::ChangeRange { file, change, at, bytes } => {
                let Ok(ino) = ino(file) else { continue };
                if !full(fs.change_range(ino, change, at.into(), bytes.into())) {
                    let (there, end) = (model.file(file).unwrap(), (at + bytes) as usize);
                    if let RangeChange::Allocate(Length::Grows) | RangeChange::Zero(Length::Grows) = change {
                        there.resize(there.len().max(end), 0);
                    }
                    if !matches!(change, RangeChange::Allocate(_)) {
                        let end = end.min(there.len());
                        there[end.min(at as usize)..end].fill(0);
                    }
                }
            }
            Call::Exchange(one, other) => {
                let exchanged = fs.exchange(ROOT, &name(one), ROOT, &name(other));
                let files = [one, other].map(|index| model.names.get(&index).copied());
                assert_eq!(exchanged.is_ok(), files.iter().all(Option::is_some));
                if let [Some(file), Some(other_file)] = files {
                    model.names.extend([(one, other_file), (other, file)]);
                }
            }
            Call::SetXattr { file, name, bytes } => {
                let Ok(ino) = ino(file) else { continue };
                let value = if name == 3 && bytes > 100 { b"1".to_vec() } else { patterned(3, bytes) };
                let name = xattr(name);
                let set = fs.set_xattr(ino, name.as_bytes(), &value, Precondition::None);
                let key = (model.names[&file], name);
                match set {
                    // Two of them fit a block.
                    Err(Error::XattrsTooLarge { .. }) => assert!(model.xattrs.len() >= 2),
                    Err(Error::BadXattr { .. }) => assert!(key.1 == ALIGNED && value != b"1"),
                    set => {
                        if !full(set) {
                            model.xattrs.insert(key, value);
                        }
                    }
                }
            }
            Call::RemoveXattr { file, name } => {
                let Ok(ino) = ino(file) else { continue };
                let removed = fs.remove_xattr(ino, xattr(name).as_bytes());
                assert_eq!(removed.is_ok(), model.xattrs.remove(&(model.names[&file], xattr(name))).is_some());
            }
            Call::Rename(from, to) => {
                let renamed = fs.rename(ROOT, &name(from), ROOT, &name(to), Replace::Yes);
                assert_eq!(renamed.is_ok(), model.names.contains_key(&from));
                if renamed.is_ok() && model.names[&from] != *model.names.get(&to).unwrap_or(&usize::MAX) {
                    let file = model.names.remove(&from).unwrap();
                    model.names.insert(to, file);
                }
            }
            Call::Link(from, to) => {
                let Ok(ino) = ino(from) else { continue };
                let linked = fs.link(ino, ROOT, &name(to));
                assert_eq!(linked.is_ok(), !model.names.contains_key(&to));
                if linked.is_ok() {
                    model.names.insert(to, model.names[&from]);
                }
            }
            Call::Unlink(index) => {
                assert_eq!(fs.unlink(ROOT, &name(index)).is_ok(), model.names.remove(&index).is_some());
            }
            Call::Remount => {
                drop(fs);
                assert!(sound(medium.clone(), "remount").0 == model.tree(), "after a remount");
                fs = Fs::mount_in(medium.clone(), mode).unwrap();
            }
        }
    }
    assert!(tree(&fs) == model.tree(), "at the end");
    drop(fs);
    assert!(sound(medium, "the end").0 == model.tree(), "after the last remount");
}

#[test]
fn random_calls_do_what_they_do_to_a_map() {
    let cases = test_depth::pick(60, 2000);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    proptest!(config, |(calls in prop::collection::vec(call(), 1..60))| play(Mode::Strict, calls));
}

#[test]
fn so_they_do_in_relaxed_mode() {
    let cases = test_depth::pick(30, 1000);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    proptest!(config, |(calls in prop::collection::vec(call(), 1..60))| play(Mode::Relaxed, calls));
}
