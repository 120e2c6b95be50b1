//! Page faults of a file on persistent memory whose pages are touched one by one: mapped by vmio without a cache, or by Linux `mmap`. `scripts/bench-pmfs`
//! compares them.
//!
//! Run it with `cargo run --release --example direct_touches -- vmio|mmap load|store FILE`. Stores overwrite FILE.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use vmio::backing::DaxBacking;
use vmio::{Access, Mapping, MappingOptions, PAGE_BYTES};

type Failure = Box<dyn std::error::Error>;

/// A mapped file.
enum Mapped {
    Vmio(Mapping),
    Linux { base: *mut u8, bytes: usize },
}

impl Mapped {
    fn by_vmio(path: &Path) -> Result<Self, Failure> {
        Ok(Mapped::Vmio(Mapping::open_direct(DaxBacking::open(path, Access::ReadWrite)?, MappingOptions::new())?))
    }

    fn by_linux(path: &Path) -> Result<Self, Failure> {
        let file = File::options().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len() as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which stays until the process ends; nobody else changes the file.
        let map = |flags| unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, file.as_raw_fd(), 0) };
        let synchronous = map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
        let base = if synchronous == libc::MAP_FAILED { map(libc::MAP_SHARED) } else { synchronous };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Mapped::Linux { base: base.cast(), bytes })
    }

    fn base(&self) -> *mut u8 {
        match self {
            Mapped::Vmio(mapping) => mapping.as_mut_ptr(),
            Mapped::Linux { base, .. } => *base,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Mapped::Vmio(mapping) => mapping.len() as usize,
            Mapped::Linux { bytes, .. } => *bytes,
        }
    }
}

/// Page faults until now.
#[derive(Clone, Copy)]
struct Faults {
    /// Of this process, all that have ended well.
    here: u64,
    /// Of the machine, those among them that have ended with a signal.
    all: u64,
}

impl Faults {
    fn now() -> Result<Faults, Failure> {
        // SAFETY: numbers, for which zeros are values.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the call fills the structure.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let counters = fs::read_to_string("/proc/vmstat")?;
        let all =
            counters.lines().find_map(|line| line.strip_prefix("pgfault ")).ok_or("no pgfault in /proc/vmstat")?;
        Ok(Faults { here: (usage.ru_minflt + usage.ru_majflt) as u64, all: all.parse()? })
    }

    fn since(self, before: Faults) -> (u64, u64) {
        (self.here - before.here, (self.all - before.all).saturating_sub(self.here - before.here))
    }
}

/// Whether the kernel makes the file system's metadata durable before a store to an address (`sf` among the flags of its mapping).
fn is_synchronous(address: usize) -> Result<bool, Failure> {
    let mappings = fs::read_to_string("/proc/self/smaps")?;
    let mut is_ours = false;
    for line in mappings.lines() {
        let ends = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((Ok(from), Ok(to))) =
            ends.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)))
        {
            is_ours = (from..to).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_ours) {
            return Ok(flags.split(' ').any(|flag| flag == "sf"));
        }
    }
    Err(format!("no mapping at {address:#x}").into())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, access, path] = &arguments[..] else {
        return Err("usage: direct_touches vmio|mmap load|store FILE".into());
    };
    let path = Path::new(path);
    Faults::now()?;
    let (before, began) = (Faults::now()?, Instant::now());
    let mapped = match way.as_str() {
        "vmio" => Mapped::by_vmio(path)?,
        "mmap" => Mapped::by_linux(path)?,
        _ => return Err(format!("no way {way}").into()),
    };
    let opening = began.elapsed();
    let (opened, began) = (Faults::now()?, Instant::now());
    let (base, bytes) = (mapped.base(), mapped.bytes());
    for at in (0..bytes).step_by(PAGE_BYTES) {
        let byte = base.wrapping_add(at);
        match access.as_str() {
            // SAFETY: within the mapping, whose file nobody changes.
            "load" => _ = black_box(unsafe { byte.read_volatile() }),
            // SAFETY: as above.
            "store" => unsafe { byte.write_volatile(1) },
            _ => return Err(format!("no access {access}").into()),
        }
    }
    let touching = began.elapsed();
    let (faults, signals) = Faults::now()?.since(opened);
    let (open_faults, _) = opened.since(before);
    let pages = bytes.div_ceil(PAGE_BYTES);
    print!(
        "{way} {access}: {pages} pages, {faults} faults and {signals} others, ns a page {}",
        touching.as_nanos() / pages as u128
    );
    print!("; to open it {open_faults} faults, {} us", opening.as_micros());
    println!(", MAP_SYNC {}", is_synchronous(base as usize)?);
    drop(mapped);
    Ok(())
}
