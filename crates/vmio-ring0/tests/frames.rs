//! A pool of frames that threads share, while its limit changes.

#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use vmio_ring0::{Frame, FramePool};

const PAGE_BYTES: usize = 4096;

/// All frames that are free, each once.
fn take_all(pool: &FramePool) -> Vec<Frame> {
    let mut all: Vec<Frame> = std::iter::from_fn(|| pool.take()).collect();
    all.sort_unstable_by_key(|frame| frame.number());
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "a frame is free twice: {all:?}");
    all
}

/// How many frames have memory.
fn with_memory(pool: &FramePool) -> usize {
    let mut resident = vec![0_u8; pool.len()];
    let first = pool.address(pool.frame(0).unwrap());
    // SAFETY: asks about the pool's memory, and has a byte for each page of it.
    let asked = unsafe { libc::mincore(first.cast(), pool.len() * PAGE_BYTES, resident.as_mut_ptr()) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    resident.into_iter().filter(|page| page & 1 != 0).count()
}

fn touch(pool: &FramePool, frame: Frame, value: u64) {
    // SAFETY: the frame is the caller's.
    unsafe { pool.address(frame).cast::<u64>().write_volatile(value) };
}

#[test]
fn all_frames_can_be_taken_whatever_the_limit() {
    let Some(machine) = support::machine() else { return };
    for (frames, limit) in [(1, 0), (16, 16), (700, 700), (1500, 600), (1500, 3000)] {
        let pool = FramePool::new(machine, frames, limit).unwrap();
        for _ in 0..2 {
            let all = take_all(&pool);
            assert_eq!(all.len(), frames as usize);
            all.into_iter().for_each(|frame| pool.give_back(frame));
        }
    }
}

#[test]
fn a_smaller_limit_gives_the_memory_of_free_frames_back() {
    let Some(machine) = support::machine() else { return };
    let pool = FramePool::new(machine, 2000, 1500).unwrap();
    let held: Vec<Frame> = std::iter::from_fn(|| pool.take()).take(1500).collect();
    held.iter().for_each(|frame| touch(&pool, *frame, 1));
    assert_eq!(with_memory(&pool), 1500);
    let (kept, given_back) = held.split_at(100);
    // At several cores, where these are.
    std::thread::scope(|scope| {
        for part in given_back.chunks(500) {
            scope.spawn(|| part.iter().for_each(|frame| pool.give_back(*frame)));
        }
    });
    pool.set_limit(300);
    assert_eq!(with_memory(&pool), 300);
    pool.set_limit(50);
    assert_eq!(with_memory(&pool), 100);
    kept.iter().for_each(|frame| pool.give_back(*frame));
    assert_eq!(with_memory(&pool), 50);
    assert_eq!(take_all(&pool).len(), 2000);
}

const SHARE: usize = 60;
const THREADS: usize = 3;
const ALL: u32 = (SHARE * THREADS) as u32;

/// Each thread takes and gives back at random, and has its share of the pool at most: so each take finds a frame. Half of the frames have no memory
/// when they are free.
#[test]
fn threads_that_take_their_share_never_find_the_pool_empty() {
    let Some(machine) = support::machine() else { return };
    for seed in test_depth::seeds(4, 40) {
        let pool = FramePool::new(machine, ALL, ALL / 2).unwrap();
        take_and_give_back(&pool, seed, || {});
        assert_eq!(take_all(&pool).len(), ALL as usize, "seed {seed}");
    }
}

/// The same, while another thread changes the limit. It has a frame at a time whose memory it gives back, so there are more than the threads take.
#[test]
fn a_limit_that_changes_hides_no_frame() {
    let Some(machine) = support::machine() else { return };
    for seed in test_depth::seeds(4, 40) {
        let pool = FramePool::new(machine, ALL * 2, ALL * 2).unwrap();
        // None is fresh: a thread that has grown the pool may be giving a frame memory while another takes that back.
        take_all(&pool).into_iter().for_each(|frame| pool.give_back(frame));
        let random = Cell::new(Random(seed + 1000));
        take_and_give_back(&pool, seed, || {
            let mut next = random.take();
            pool.set_limit(next.below(ALL as usize * 2) as u32);
            random.set(next);
        });
        pool.set_limit(10);
        assert!(with_memory(&pool) <= 10, "{} frames have memory, seed {seed}", with_memory(&pool));
        assert_eq!(take_all(&pool).len(), ALL as usize * 2, "seed {seed}");
    }
}

/// `meanwhile` is called until the threads have ended.
fn take_and_give_back(pool: &FramePool, seed: u64, meanwhile: impl Fn()) {
    let owned: Vec<AtomicBool> = (0..pool.len()).map(|_| AtomicBool::new(false)).collect();
    let own = |frame: Frame, thread: u64| {
        let was_owned = owned[frame.number() as usize].swap(true, Ordering::Relaxed);
        assert!(!was_owned, "{frame:?} has two owners");
        touch(pool, frame, thread);
        frame
    };
    let give_back = |frame: Frame, thread: u64| {
        // SAFETY: the frame is this thread's.
        let value = unsafe { pool.address(frame).cast::<u64>().read_volatile() };
        assert_eq!(value, thread, "{frame:?} was another thread's, too");
        owned[frame.number() as usize].store(false, Ordering::Relaxed);
        pool.give_back(frame);
    };
    std::thread::scope(|scope| {
        let (own, give_back) = (&own, &give_back);
        let taker = |thread: u64| {
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(97) + thread);
                let mut mine: Vec<Frame> = Vec::new();
                for round in 0..2000 {
                    match random.below(16) {
                        0 => mine.drain(..).for_each(|frame| give_back(frame, thread)),
                        1..6 => mine.pop().into_iter().for_each(|frame| give_back(frame, thread)),
                        _ if mine.len() < SHARE => match pool.take() {
                            Some(frame) => mine.push(own(frame, thread)),
                            None => panic!("round {round} of thread {thread}, seed {seed}: no frame"),
                        },
                        _ => {}
                    }
                }
                mine.into_iter().for_each(|frame| give_back(frame, thread));
            })
        };
        let takers: Vec<_> = (1..=THREADS as u64).map(taker).collect();
        while !takers.iter().all(|taker| taker.is_finished()) {
            meanwhile();
            std::thread::yield_now();
        }
    });
}

/// Cores that this process may run on, one of each node with its node's number.
fn cores_of_nodes() -> Vec<(usize, usize)> {
    let is_core_of = |core: &usize, node| {
        // SAFETY: zeros are no cores; the kernel writes those that the thread may run on.
        let allowed = unsafe {
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed);
            libc::CPU_ISSET(*core, &allowed)
        };
        allowed && std::fs::exists(format!("/sys/devices/system/node/node{node}/cpu{core}")).is_ok_and(|exists| exists)
    };
    let core_of = |node| (0..libc::CPU_SETSIZE as usize).find(|core| is_core_of(core, node));
    (0..8).filter_map(|node| core_of(node).map(|core| (core, node))).collect()
}

/// Runs on one core.
fn at<T: Send>(core: usize, work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        // SAFETY: zeros are no cores; the kernel reads the set.
        unsafe {
            let mut only: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut only);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&only), &raw const only), 0);
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// The node that a frame's memory is on.
fn node_of(pool: &FramePool, frame: Frame) -> usize {
    const NODE_OF_ADDRESS: libc::c_int = 1 | 2;
    let mut node: libc::c_int = -1;
    // SAFETY: the kernel writes the number of the node.
    let asked = unsafe {
        let none = std::ptr::null_mut::<libc::c_ulong>();
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, none, 0, pool.address(frame), NODE_OF_ADDRESS)
    };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    node as usize
}

#[test]
fn a_thread_gets_frames_whose_memory_is_on_its_node() {
    let Some(machine) = support::machine() else { return };
    let cores = cores_of_nodes();
    if cores.len() < 2 {
        return test_depth::skipped("there is one NUMA node");
    }
    let pool = FramePool::new(machine, 8192, 8192).unwrap();
    let take = |(core, node): (usize, usize)| {
        at(core, || {
            let taken: Vec<Frame> = (0..700).map(|_| pool.take().unwrap()).collect();
            taken.iter().for_each(|frame| touch(&pool, *frame, 1));
            for frame in &taken {
                assert_eq!(node_of(&pool, *frame), node, "{frame:?} of core {core}");
            }
            taken
        })
    };
    for _ in 0..3 {
        let taken: Vec<Vec<Frame>> = cores.iter().map(|core| take(*core)).collect();
        // Each by a core of another node.
        for (taken, (core, _)) in taken.into_iter().zip(cores.iter().cycle().skip(1)) {
            at(*core, || taken.into_iter().for_each(|frame| pool.give_back(frame)));
        }
    }
}

/// Xorshift.
#[derive(Default)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % end
    }
}
