//! The states that a crash may leave of a call, made from the stores that a medium has recorded.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use vmio_pmfs::{Fs, Geometry, Medium, Mode, Overlay, Simulated, Store};

use crate::support::{Numbers, Tree, made, made_of, sound, tree};

/// Words since a fence of which all subsets are tried.
const EXHAUSTIVE: usize = 7;

/// The subsets of so many stores that are tried: whether each has happened.
pub fn subsets(stores: usize, samples: usize, numbers: &mut Numbers) -> Vec<Vec<bool>> {
    if stores <= EXHAUSTIVE {
        return (0..1_u32 << stores).map(|set| (0..stores).map(|bit| set >> bit & 1 == 1).collect()).collect();
    }
    let step = stores.div_ceil(samples);
    let places = || (0..stores).step_by(step);
    let mut all: Vec<Vec<bool>> = vec![vec![true; stores]];
    all.extend(places().map(|end| (0..stores).map(|store| store < end).collect()));
    all.extend(places().map(|only| (0..stores).map(|store| store == only).collect()));
    all.extend(places().map(|but| (0..stores).map(|store| store != but).collect()));
    all.extend((0..samples).map(|_| (0..stores).map(|_| numbers.next().is_multiple_of(2)).collect()));
    all
}

/// The medium after a crash: some epochs whole, and a subset of the next.
pub fn crashed(before: &Arc<Simulated>, epochs: &[Vec<Store>], set: &[bool]) -> Arc<dyn Medium> {
    let medium = Overlay::new(Arc::clone(before) as Arc<dyn Medium>);
    let (last, whole) = epochs.split_last().unwrap();
    let some = last.iter().zip(set).filter(|(_, happened)| **happened).map(|(store, _)| store);
    for store in whole.iter().flatten().chain(some) {
        medium.write(store.at, &store.bytes);
    }
    Arc::new(medium)
}

/// The states that the explorer has seen of a call.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: usize,
    pub before: usize,
    pub after: usize,
    pub between: usize,
    pub rolled_back: usize,
}

/// Runs a call on a copy of the medium and tries all states.
pub fn explore(what: &str, prepare: impl Fn(&Fs), call: impl Fn(&Fs)) -> Seen {
    let seen = explore_in(Mode::Strict, what, prepare, call, |_, _, _| false);
    assert!(seen.before > 0 && seen.after > 0, "{what}: {seen:?}");
    seen
}

/// The same in a mode in which other states are allowed, too: the tree that is found, that before and that after the call.
pub fn explore_in(
    mode: Mode,
    what: &str,
    prepare: impl Fn(&Fs),
    call: impl Fn(&Fs),
    is_allowed: impl Fn(&Tree, &Tree, &Tree) -> bool,
) -> Seen {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    prepare(&fs);
    drop(fs);
    let before = Arc::new(medium.copy());
    let fs = Fs::mount_in(medium.clone(), mode).unwrap();
    let tree_before = tree(&fs);
    medium.record();
    call(&fs);
    let epochs = medium.recorded();
    let tree_after = tree(&fs);
    assert_ne!(tree_before, tree_after, "{what} does nothing");
    assert!(epochs.last().is_some_and(Vec::is_empty), "{what} returns before its last fence");
    let (mut seen, mut numbers) = (Seen::default(), Numbers::new(0));
    let samples = test_depth::pick(if mode == Mode::Strict { 12 } else { 2 }, 200);
    for end in 1..=epochs.len() {
        for set in subsets(epochs[end - 1].len(), samples, &mut numbers) {
            let state = crashed(&before, &epochs[..end], &set);
            let what = format!("{what}, fence {end} of {}, stores {set:?}", epochs.len());
            let (found, rolled_back) = recovered(&state, &what, &mut numbers, seen.states % 16 == 0);
            seen.states += 1;
            seen.rolled_back += rolled_back;
            match () {
                () if found == tree_before => seen.before += 1,
                () if found == tree_after => seen.after += 1,
                () if is_allowed(&found, &tree_before, &tree_after) => seen.between += 1,
                () => panic!("{what}: the tree is neither that before nor that after the call"),
            }
        }
    }
    seen
}

/// Runs a call that changes nothing that users see on a copy of the medium, and tries all states.
pub fn explore_moves(what: &str, geometry: Geometry, prepare: impl Fn(&Fs), call: impl Fn(&Fs)) {
    let medium = made_of(geometry);
    let fs = Fs::mount(medium.clone()).unwrap();
    prepare(&fs);
    let (before, expected) = (Arc::new(medium.copy()), tree(&fs));
    medium.record();
    call(&fs);
    let epochs = medium.recorded();
    assert!(epochs.len() > 3, "{what} does nothing");
    let mut numbers = Numbers::new(0);
    for end in 1..=epochs.len() {
        for set in subsets(epochs[end - 1].len(), test_depth::pick(4, 100), &mut numbers) {
            let what = format!("{what}, fence {end} of {}, stores {set:?}", epochs.len());
            assert!(sound(crashed(&before, &epochs[..end], &set), &what).0 == expected, "{what}: the tree has changed");
        }
    }
}

/// The tree after recovery; also after a crash of the recovery.
pub fn recovered(state: &Arc<dyn Medium>, what: &str, numbers: &mut Numbers, crash_again: bool) -> (Tree, usize) {
    let (found, rolled_back) = sound(Arc::new(Overlay::new(Arc::clone(state))), what);
    if crash_again && rolled_back > 0 {
        let recording = Arc::new(Recording::new(Arc::clone(state)));
        let fs = Fs::mount(recording.clone()).unwrap();
        drop(fs);
        let epochs = recording.epochs();
        for end in 1..=epochs.len() {
            for set in subsets(epochs[end - 1].len(), 4, numbers) {
                let medium = Overlay::new(Arc::clone(state));
                let (last, whole) = epochs[..end].split_last().unwrap();
                let some = last.iter().zip(&set).filter(|(_, happened)| **happened).map(|(store, _)| store);
                for (at, bytes) in whole.iter().flatten().chain(some) {
                    medium.write(*at, bytes);
                }
                let again = sound(Arc::new(medium), &format!("{what}, and a crash of the recovery")).0;
                assert!(again == found, "{what}: a crash of the recovery changes what it finds");
            }
        }
    }
    (found, rolled_back)
}

pub type Words = Vec<(u64, Vec<u8>)>;

/// An overlay that records its stores.
pub struct Recording {
    overlay: Overlay,
    epochs: std::sync::Mutex<Vec<Words>>,
}

impl Recording {
    pub fn new(below: Arc<dyn Medium>) -> Recording {
        Recording { overlay: Overlay::new(below), epochs: std::sync::Mutex::new(vec![Vec::new()]) }
    }

    pub fn epochs(&self) -> Vec<Words> {
        self.epochs.lock().unwrap().clone()
    }
}

impl Medium for Recording {
    fn len(&self) -> u64 {
        self.overlay.len()
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.overlay.read(at, into);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.overlay.write(at, bytes);
        let mut done = 0;
        while done < bytes.len() {
            let here = at + done as u64;
            let len = (8 - here % 8).min((bytes.len() - done) as u64) as usize;
            self.epochs.lock().unwrap().last_mut().unwrap().push((here, bytes[done..done + len].to_vec()));
            done += len;
        }
    }

    fn fence(&self) {
        self.epochs.lock().unwrap().push(Vec::new());
    }
}
