//! The cost of touches of mapped pages, most of them misses: through one of vmio's engines, or Linux `mmap`. `scripts/bench-ring0` compares them.
//!
//! Run it with `cargo run --release --example miss_cost -- ENGINE load|store first|again|evicting FILE PAGES CACHE_PAGES`. The engines are `ring0`,
//! `kernel`, `sigbus`, `reader-thread` and `mmap`. It overwrites FILE.
//!
//! - `first`: each page is touched once, and memory has room for all.
//! - `again`: the same after all were touched and given up, so that an engine with frames of its own has their memory.
//! - `evicting`: pages are touched at random, and memory has room for CACHE_PAGES.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use vmio::backing::{Backing, DaxBacking, FileBacking};
use vmio::{Access, Advice, Cache, Engine, Mapping, MappingOptions, PAGE_BYTES, Stats};

type Failure = Box<dyn std::error::Error>;

/// A mapped file.
enum Mapped {
    Vmio(Cache, Mapping),
    Linux(*mut u8),
}

impl Mapped {
    fn by_vmio(engine: Engine, path: &Path, cache_pages: u64) -> Result<Self, Failure> {
        let cache = Cache::builder().engine(engine).capacity(cache_pages * PAGE_BYTES as u64).build()?;
        let backing: Arc<dyn Backing> = match DaxBacking::open(path, Access::ReadWrite) {
            Ok(backing) => Arc::new(backing),
            Err(_) => Arc::new(FileBacking::open(path, Access::ReadWrite)?),
        };
        let mapping = Mapping::open(&cache, backing, MappingOptions::new())?;
        mapping.advise(0..mapping.len(), Advice::Random)?;
        Ok(Mapped::Vmio(cache, mapping))
    }

    fn by_linux(path: &Path, bytes: usize) -> Result<Self, Failure> {
        let file = File::options().read(true).write(true).open(path)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which stays until the process ends; nobody else changes the file.
        let base = unsafe {
            let base = libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if base == libc::MAP_FAILED || libc::madvise(base, bytes, libc::MADV_RANDOM) != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            base
        };
        Ok(Mapped::Linux(base.cast()))
    }

    fn base(&self) -> *mut u8 {
        match self {
            Mapped::Vmio(_, mapping) => mapping.as_mut_ptr(),
            Mapped::Linux(base) => *base,
        }
    }

    /// Gives all pages up, which the device has.
    fn give_up(&self, file: &File, bytes: usize) -> Result<(), Failure> {
        match self {
            Mapped::Vmio(_, mapping) => {
                mapping.sync()?;
                mapping.advise(0..mapping.len(), Advice::DontNeed)?;
            }
            Mapped::Linux(base) => {
                file.sync_all()?;
                // SAFETY: a mapping of a file, which loses nothing by it.
                unsafe { libc::madvise(base.cast(), bytes, libc::MADV_DONTNEED) };
                drop_page_cache(file);
            }
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        match self {
            Mapped::Vmio(cache, _) => cache.stats(),
            Mapped::Linux(_) => Stats::default(),
        }
    }
}

fn drop_page_cache(file: &File) {
    // SAFETY: the descriptor is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// A mark for tests/vm/qemu/instructions.c, which counts between two of them; elsewhere it does nothing.
fn mark() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing.
    unsafe {
        std::arch::asm!("xchg bx, bx")
    };
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, access, order, path, pages, cache_pages] = arguments.as_slice() else {
        return Err("usage: miss_cost ENGINE load|store first|again|evicting FILE PAGES CACHE_PAGES".into());
    };
    let (path, pages, cache_pages): (_, u64, u64) = (Path::new(path), pages.parse()?, cache_pages.parse()?);
    let (stores, evicts) = (access == "store", order == "evicting");
    let bytes = pages as usize * PAGE_BYTES;
    let mut file = File::create(path)?;
    // By parts: a memory cgroup counts the buffer.
    for _ in 0..pages {
        file.write_all(&[1; PAGE_BYTES])?;
    }
    file.sync_all()?;
    drop_page_cache(&file);
    let mapped = match engine.as_str() {
        "mmap" => Mapped::by_linux(path, bytes)?,
        "ring0" => Mapped::by_vmio(Engine::Ring0, path, cache_pages)?,
        "kernel" => Mapped::by_vmio(Engine::Kernel, path, cache_pages)?,
        "sigbus" => Mapped::by_vmio(Engine::Sigbus, path, cache_pages)?,
        "reader-thread" => Mapped::by_vmio(Engine::ReaderThread, path, cache_pages)?,
        other => return Err(format!("{other} is no engine").into()),
    };
    let mut random = 88_172_645_463_325_252_u64;
    let mut touch = |number: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // An odd number of pages away, so that each has its turn where their number is a power of two.
        let page = if evicts { random } else { number * 1_001 } % pages;
        // SAFETY: the page is of the mapping.
        unsafe {
            let byte = mapped.base().add(page as usize * PAGE_BYTES);
            if stores { byte.write_volatile(number as u8) } else { _ = byte.read_volatile() }
        }
    };
    if order == "again" {
        (0..pages).for_each(&mut touch);
        mapped.give_up(&file, bytes)?;
    }
    // The first quarter makes page tables, or fills memory and brings evictions into their steady state.
    let touches = if evicts { pages * 2 } else { pages };
    (0..touches / 4).for_each(&mut touch);
    let (before, began) = (mapped.stats(), Instant::now());
    mark();
    (touches / 4..touches).for_each(&mut touch);
    mark();
    let (took, after) = (began.elapsed(), mapped.stats());
    let counted = touches - touches / 4;
    let count = |of: fn(&Stats) -> u64| of(&after) - of(&before);
    println!(
        "{engine} {access} {order}: {} ns a touch; touches {counted} misses {} evicted {} written {}",
        took.as_nanos() as u64 / counted,
        count(|stats| stats.load_misses + stats.store_misses),
        count(|stats| stats.evicted_clean + stats.evicted_dirty),
        count(|stats| stats.evicted_dirty),
    );
    Ok(())
}
