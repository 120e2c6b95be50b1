//! A Rust program that allocates far more than its cache holds finds everything as it stored it.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::thread;

use vmio_heap::{FileHeap, HeapError, HeapOptions};

#[global_allocator]
static HEAP: FileHeap = FileHeap;

const CACHE_BYTES: u64 = 16 << 20;
const THREADS: u64 = 4;
const WORDS: u64 = 4 << 20;

fn word(thread: u64, at: u64) -> u64 {
    (thread << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Allocates 32 MiB in one block, and as much in small ones.
fn allocated(thread: u64) -> (Vec<u64>, BTreeMap<u64, Box<str>>) {
    let words = (0..WORDS).map(|at| word(thread, at)).collect();
    // In order, so that a slow disk gets no requests for random pages.
    let texts = (0..WORDS / 8).map(|at| (at, word(thread, at).to_string().into_boxed_str())).collect();
    (words, texts)
}

/// Pages of mapped files in the process's memory, in bytes.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    Ok(statm.split(' ').nth(2).ok_or("statm is short")?.parse::<u64>()? * 4096)
}

// One test: a process has one heap.
#[test]
fn what_exceeds_the_cache_is_as_it_was_stored() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut early = vec![1_u8; 1000];
    assert!(!vmio_heap::is_there() && !vmio_heap::contains(early.as_ptr() as usize));
    let before = resident_bytes()?;

    fs::write(folder.path().join("precious"), "precious")?;
    let on_precious = HeapOptions::new(folder.path().join("precious"), CACHE_BYTES);
    assert!(matches!(vmio_heap::start(&on_precious), Err(HeapError::Create { .. })));
    let options = HeapOptions::new(folder.path().join("heap"), CACHE_BYTES).heap_bytes(1 << 30);
    assert!(matches!(vmio_heap::start(&options.clone().heap_bytes(1)), Err(HeapError::TooSmall)));
    vmio_heap::start(&options)?;
    assert!(matches!(vmio_heap::start(&options), Err(HeapError::AlreadyThere)));
    assert!(!folder.path().join("heap").exists(), "the file has kept its name");

    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || allocated(thread))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread has panicked")).collect()
    });
    let all = all.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (thread, (words, texts)) in (0..).zip(&all) {
        assert!(vmio_heap::contains(words.as_ptr() as usize));
        assert!((0..).zip(words).all(|(at, found)| *found == word(thread, at)));
        assert_eq!(texts.len() as u64, WORDS / 8);
        assert!(texts.iter().all(|(at, text)| text.parse() == Ok(word(thread, *at))));
    }
    // The reclaimer acts after the fact, and needs a core for it: there may be more until it had one. All blocks are still there.
    let resident = || resident_bytes().map_or(u64::MAX, |bytes| bytes.saturating_sub(before));
    let is_within = test_depth::comes_true(|| resident() < 2 * CACHE_BYTES);
    assert!(is_within, "{} bytes are in memory", resident());
    drop(all);

    early.resize(100_000, 2);
    assert!(vmio_heap::contains(early.as_ptr() as usize), "a block that grows has not moved to the heap");
    assert!(early[..1000] == [1; 1000] && early[1000..].iter().all(|byte| *byte == 2));
    assert!(vec![0_u8; 50 << 20].iter().all(|byte| *byte == 0), "memory that is used again is not cleared");

    #[repr(align(4096))]
    struct Aligned(u8);
    let aligned = Box::new(Aligned(3));
    assert!((&raw const *aligned as usize).is_multiple_of(4096) && aligned.0 == 3);
    let echo = std::process::Command::new("echo").arg("a child").output()?;
    assert_eq!(echo.stdout, b"a child\n");
    Ok(())
}
