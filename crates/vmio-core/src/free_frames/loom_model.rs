//! Magazines that threads exchange, explored in every interleaving. The lists and the exchanges are the real ones. No frame may have two owners,
//! and none may be hidden from a thread that looks for it.

use loom::sync::Arc;
use loom::thread;

use super::*;

type Frames = FreeFrames<Box<[AtomicU64]>>;

fn frames(count: usize, nodes: &[usize]) -> Arc<Frames> {
    Arc::new(FreeFrames::with_magazines_of(1, (0..count).map(|_| AtomicU64::new(0)).collect(), nodes))
}

fn check_all_there(free: &Frames, held: impl IntoIterator<Item = u32>, count: u32) {
    let mut all: Vec<u32> = held.into_iter().chain(std::iter::from_fn(|| free.take_anywhere())).collect();
    all.sort_unstable();
    assert_eq!(all, (0..count).collect::<Vec<_>>());
    // A magazine is at a core, or in one list.
    let lists = free.nodes.iter().map(|node| &*node.magazines).chain([&*free.empty]);
    let waiting = lists.flat_map(|list| std::iter::from_fn(|| list.pop(&free.words_of_magazines)));
    let at_cores = free.cores.iter().map(|core| core.magazine.load(Ordering::Relaxed));
    let mut magazines: Vec<u32> = waiting.chain(at_cores).collect();
    magazines.sort_unstable();
    assert_eq!(magazines, (0..free.magazines.len() as u32).collect::<Vec<_>>());
}

/// Both threads believe that they are at the same core, whose magazine is full after each frame: both exchange it.
#[test]
fn loom_frames_and_magazines_are_conserved_at_one_core() {
    loom::model(|| {
        let free = frames(3, &[0]);
        free.put(0, 0);
        let other = Arc::clone(&free);
        let other = thread::spawn(move || {
            other.put(0, 1);
            other.take(0)
        });
        free.put(0, 2);
        let taken = free.take(0);
        let held = other.join().unwrap().into_iter().chain(taken);
        check_all_there(&free, held, 3);
    });
}

/// One thread puts at its core, and another takes at a core of another node.
#[test]
fn loom_frames_and_magazines_are_conserved_between_nodes() {
    loom::model(|| {
        let free = frames(3, &[0, 1]);
        free.put(0, 0);
        let other = Arc::clone(&free);
        let other = thread::spawn(move || {
            other.put(0, 1);
            other.put(0, 2);
        });
        let taken = free.take_at(0, 1);
        other.join().unwrap();
        check_all_there(&free, taken, 3);
    });
}

/// Two frames, of which the other thread has one at most, first the one and then the other: so one is free at any moment.
fn a_frame_is_found(searches: bool) {
    loom::model(move || {
        let free = frames(2, &[0, 0]);
        free.put(0, 0);
        free.put(1, 1);
        let other = Arc::clone(&free);
        let other = thread::spawn(move || {
            for core in 0..2 {
                let frame = other.take(core).or_else(|| other.take_at(0, core));
                frame.into_iter().for_each(|frame| other.put(core, frame));
            }
        });
        let found = match searches {
            true => search(|| free.changes(), || free.take_anywhere()),
            false => free.take_anywhere(),
        };
        let frame = found.expect("a frame is free, and is not found");
        other.join().unwrap();
        check_all_there(&free, [frame], 2);
    });
}

#[test]
fn loom_a_search_finds_the_frame_that_must_be_there() {
    a_frame_is_found(true);
}

#[test]
#[should_panic(expected = "a frame is free")]
fn loom_one_look_misses_a_frame_that_must_be_there() {
    a_frame_is_found(false);
}
