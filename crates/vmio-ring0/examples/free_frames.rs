//! What threads pay that take page frames and put them back: from one list that all share, or from lists of cores and nodes.
//!
//! Run it with `cargo run --release -p vmio-ring0 --example free_frames [THREADS]...`. It needs no virtual machine. It prints nanoseconds of
//! a core for a frame that is taken and put back, the median of some rounds. Threads that other programs keep from running at the same time
//! do not get into each other's way: so the cores must be idle.

use std::env;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;

use vmio_core::free_frames::{FreeFrames, List};

const FRAMES: u32 = 1 << 15;
const OPERATIONS: u32 = 4_000_000;
const ROUNDS: usize = 15;
/// Frames that a thread has at a time: as a miss beside an eviction has them, and as two sizes of evictions.
const BATCHES: [usize; 3] = [1, 32, 512];

/// Where threads take frames.
trait Free: Sync {
    fn take(&self) -> Option<u32>;
    fn put(&self, frame: u32);
}

/// All in one list.
struct One(List, Vec<AtomicU64>);

impl Free for One {
    fn take(&self) -> Option<u32> {
        self.0.pop(&self.1)
    }

    fn put(&self, frame: u32) {
        self.0.push(&self.1, frame);
    }
}

/// As [`vmio_ring0::FramePool`] has them.
struct OfCores(FreeFrames<Vec<AtomicU64>>);

fn core() -> usize {
    // SAFETY: has no arguments.
    unsafe { libc::sched_getcpu() as usize }
}

impl Free for OfCores {
    fn take(&self) -> Option<u32> {
        let core = core();
        self.0.take(core).or_else(|| self.0.take_at(0, core))
    }

    fn put(&self, frame: u32) {
        self.0.put(core(), frame);
    }
}

fn words() -> Vec<AtomicU64> {
    (0..FRAMES).map(|_| AtomicU64::new(0)).collect()
}

/// Nanoseconds that the calling thread has run.
fn own_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds for each frame, of the mean of some threads.
fn measure(free: &dyn Free, threads: usize, batch: usize) -> f64 {
    let start = Barrier::new(threads);
    let work = || {
        let mut taken = Vec::with_capacity(batch);
        start.wait();
        let started = own_ns();
        for _ in 0..OPERATIONS / batch as u32 {
            taken.extend((0..batch).filter_map(|_| free.take()));
            taken.drain(..).for_each(|frame| free.put(frame));
        }
        (own_ns() - started) / f64::from(OPERATIONS)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).sum::<f64>() / threads as f64
    })
}

fn main() {
    let given: Vec<usize> = env::args().skip(1).filter_map(|threads| threads.parse().ok()).collect();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("| threads | frames at a time | one list | lists of cores |\n|--:|--:|--:|--:|");
    for threads in if given.is_empty() { vec![1, cores] } else { given } {
        for batch in BATCHES {
            let one = One(List::default(), words());
            let of_cores = OfCores(FreeFrames::new(words(), &vec![0; cores]));
            (0..FRAMES).for_each(|frame| one.put(frame));
            (0..FRAMES).for_each(|frame| of_cores.put(frame));
            let mut rounds: Vec<[f64; 2]> = Vec::new();
            for _ in 0..ROUNDS {
                rounds.push([&one as &dyn Free, &of_cores].map(|free| measure(free, threads, batch)));
            }
            let median = |kind: usize| {
                rounds.sort_by(|one, other| one[kind].total_cmp(&other[kind]));
                rounds[ROUNDS / 2][kind]
            };
            let [one, of_cores] = [0, 1].map(median);
            println!("| {threads} | {batch} | {one:.1} | {of_cores:.1} |");
        }
    }
}
