//! Files whose reads and writes a thread of the kernel submits ([`vmio::CacheBuilder::poll_submissions`]).

use std::path::Path;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Engine, Error, Mapping, MappingOptions, UnsupportedBy};

use crate::support::exercise::{exercise, random_bytes};
use crate::support::{PAGE, at, cache_of, engine, is_managed, load, store, watchdog};

const PAGES: u64 = 1024;

/// A cache that polls, unless the kernel or the machine has nothing that polls.
fn polling_cache(pages: u64) -> Option<Cache> {
    if is_managed("a cache that polls") || matches!(engine(), Engine::Kernel | Engine::ReaderThread) {
        return None;
    }
    match cache_of(pages).poll_submissions(true).build() {
        Err(Error::System { operation, source }) if operation.contains("polls") => {
            test_depth::skipped(format_args!("{operation}: {source}"));
            None
        }
        built => Some(built.unwrap()),
    }
}

fn open(cache: &Cache, path: &Path) -> Mapping {
    let file = cache.submit_for(FileBacking::open(path, Access::ReadWrite).unwrap());
    let map = Mapping::open(cache, file, MappingOptions::new()).unwrap();
    map.advise(0..map.len(), Advice::Random).unwrap();
    map
}

/// The calling thread's system calls that read.
fn reads() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

#[test]
fn a_file_keeps_its_bytes() {
    let Some(polling) = polling_cache(256) else { return };
    for len in [900 * PAGE, 700 * PAGE + 1234] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), random_bytes(len)).unwrap();
        let open = || FileBacking::open(file.path(), Access::ReadWrite).map(|file| polling.submit_for(file));
        exercise(open, len);
    }
}

#[test]
fn a_miss_reads_without_a_system_call() {
    let _watchdog = watchdog("a_miss_reads_without_a_system_call");
    let Some(polling) = polling_cache(256) else { return };
    let plain = cache_of(256).build().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), random_bytes(PAGES * PAGE)).unwrap();
    if !FileBacking::open(file.path(), Access::ReadOnly).unwrap().is_direct() {
        return test_depth::skipped("no direct I/O where temporary files are");
    }
    let calls = [&plain, &polling].map(|cache| {
        let map = open(cache, file.path());
        let before = reads();
        (0..PAGES).for_each(|page| _ = load(&map, at(page)));
        reads() - before
    });
    assert!(calls[0] >= PAGES && calls[1] < PAGES / 8, "{calls:?} system calls");
}

#[test]
fn stores_reach_the_file_while_other_threads_miss() {
    let _watchdog = watchdog("stores_reach_the_file_while_other_threads_miss");
    const THREADS: u64 = 4;
    let Some(cache) = polling_cache(256) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGES * PAGE).unwrap();
    let map = open(&cache, file.path());
    for round in 1..=3 {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let map = &map;
                scope.spawn(move || {
                    for page in (thread..PAGES).step_by(THREADS as usize) {
                        assert_eq!(load(map, at(page)), (round - 1) * page);
                        store(map, at(page), round * page);
                    }
                });
            }
        });
    }
    map.sync().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    for (page, bytes) in bytes.chunks(PAGE as usize).enumerate() {
        assert_eq!(bytes[..8], (3 * page as u64).to_ne_bytes(), "page {page}");
    }
}

/// A program that closes all descriptors that it finds must know of them.
#[test]
fn its_descriptors_are_among_the_caches() {
    let Some(polling) = polling_cache(256) else { return };
    let plain = cache_of(256).build().unwrap();
    assert!(polling.descriptors().len() > plain.descriptors().len());
}

#[test]
fn other_engines_do_not_poll() {
    let built = |engine| Cache::builder().engine(engine).capacity(8 << 20).poll_submissions(true).build();
    let refused = built(Engine::Managed).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { by: UnsupportedBy::ManagedEngine, .. }), "{refused}");
    let refused = built(Engine::Kernel).unwrap_err();
    let by_engine = matches!(refused, Error::Unsupported { by: UnsupportedBy::KernelEngine, .. });
    assert!(by_engine || matches!(refused, Error::NoKernelModule { .. }), "{refused}");
    let refused = built(Engine::ReaderThread).unwrap_err();
    let by_engine = matches!(refused, Error::Unsupported { by: UnsupportedBy::ReaderThreadEngine, .. });
    let is_denied = matches!(refused, Error::NoUserfaultfd { .. } | Error::KernelFaultsDenied { .. });
    assert!(by_engine || is_denied, "{refused}");
}
