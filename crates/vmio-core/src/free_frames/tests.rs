//! Where frames are found, and that none is lost.

use std::sync::atomic::AtomicBool;

use super::*;

type Frames = FreeFrames<Box<[AtomicU64]>>;

fn frames(count: usize, nodes: &[usize], full: u32) -> Frames {
    FreeFrames::with_magazines_of(full, (0..count).map(|_| AtomicU64::new(0)).collect(), nodes)
}

fn take_all(free: &Frames) -> Vec<u32> {
    let mut all: Vec<u32> = std::iter::from_fn(|| free.take_anywhere()).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_core_takes_what_it_has_put() {
    let free = frames(8, &[0, 0], 4);
    (0..3).for_each(|frame| free.put(0, frame));
    free.put(1, 7);
    assert_eq!([(); 4].map(|()| free.take(0)), [Some(2), Some(1), Some(0), None]);
    assert_eq!(free.take(1), Some(7));
}

#[test]
fn what_a_core_has_too_many_of_its_node_finds() {
    let free = frames(16, &[0, 1, 0], 4);
    // A full magazine for the node, and one frame that stays.
    (0..5).for_each(|frame| free.put(0, frame));
    assert_eq!(free.take(1), None, "another node's");
    assert_eq!([(); 5].map(|()| free.take(2)), [Some(3), Some(2), Some(1), Some(0), None]);
    assert_eq!(free.take_at(0, 2), Some(4), "the neighbour's");
    assert_eq!(free.take_at(0, 2), None);
}

#[test]
fn a_core_finds_frames_of_other_nodes_and_cores() {
    let free = frames(16, &[0, 1, 1, 1], 4);
    (0..5).for_each(|frame| free.put(2, frame));
    assert_eq!((free.take(0), free.take_at(0, 0)), (None, None));
    // The rest of the magazine is the core's now.
    assert_eq!(free.take_at(1, 0), Some(3));
    assert_eq!([(); 4].map(|()| free.take(0)), [Some(2), Some(1), Some(0), None]);
    assert_eq!(free.take_at(1, 0), Some(4));
    assert_eq!(free.take_at(1, 0), None);
}

#[test]
fn more_frames_than_magazines_hold_are_found_all_the_same() {
    let free = FreeFrames { empty: CachePadded::default(), ..frames(100, &[0, 0], 4) };
    (0..100).for_each(|frame| free.put(0, frame));
    assert_eq!(free.take(1), None);
    assert_eq!(free.take_at(0, 1), Some(99), "in the only magazine that the core has");
    assert_eq!(take_all(&free), (0..99).collect::<Vec<_>>());
}

#[test]
fn a_core_that_there_is_not_stands_for_one_that_there_is() {
    let free = frames(4, &[0, 1], 4);
    free.put(usize::MAX, 3);
    assert_eq!((free.node_of(7), free.node_of(6)), (1, 0));
    assert_eq!((free.core_at(7, 0), free.core_at(7, 1)), (0, 7));
    assert_eq!(free.take(7), Some(3));
}

/// Threads that take and put frames, each at whatever core: a frame has one owner, and at the end all are there.
#[test]
fn threads_own_each_frame_once_and_lose_none() {
    const FRAMES: usize = 300;
    const THREADS: u64 = 4;
    for seed in 0..test_depth_rounds() {
        let free = frames(FRAMES, &[0, 1, 0, 1, 2], 8);
        (0..FRAMES as u32).for_each(|frame| free.put(frame as usize % 3, frame));
        let owned: Vec<AtomicBool> = (0..FRAMES).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (free, owned) = (&free, &owned);
                scope.spawn(move || {
                    let mut random = Random(seed * THREADS + thread + 1);
                    let mut mine: Vec<u32> = Vec::new();
                    let own = |frame: u32| {
                        let was_owned = owned[frame as usize].swap(true, Ordering::Relaxed);
                        assert!(!was_owned, "frame {frame} has two owners");
                        frame
                    };
                    let put = |core, frame: u32| {
                        owned[frame as usize].store(false, Ordering::Relaxed);
                        free.put(core, frame);
                    };
                    for _ in 0..3000 {
                        let (core, node) = (random.below(5), random.below(3));
                        match random.below(8) {
                            // Batches, as evictions have them.
                            0 => mine.drain(..).for_each(|frame| put(core, frame)),
                            1 => mine.extend(free.take_at(node, core).map(own)),
                            2 => mine.extend(free.take_anywhere().map(own)),
                            3 => mine.pop().into_iter().for_each(|frame| put(free.core_at(core, node), frame)),
                            _ => mine.extend(free.take(core).map(own)),
                        }
                    }
                    mine.into_iter().for_each(|frame| put(0, frame));
                });
            }
        });
        assert_eq!(take_all(&free), (0..FRAMES as u32).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// A frame for each thread: none of them looks in vain, wherever the frames are.
#[test]
fn a_search_finds_the_frame_that_must_be_there() {
    const THREADS: usize = 3;
    let free = frames(THREADS, &[0, 1, 0], 1);
    (0..THREADS as u32).for_each(|frame| free.put(frame as usize, frame));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let free = &free;
            scope.spawn(move || {
                let mut random = Random(thread as u64 + 1);
                for round in 0..20_000 {
                    let core = random.below(3);
                    let found = search(|| free.changes(), || free.take(core).or_else(|| free.take_anywhere()));
                    let Some(frame) = found else { panic!("round {round} of thread {thread} found none") };
                    free.put(random.below(3), frame);
                }
            });
        }
    });
}

fn test_depth_rounds() -> u64 {
    if cfg!(miri) { 1 } else { 20 }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % end
    }
}
