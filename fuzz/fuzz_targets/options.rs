//! Whatever is asked for, with whatever options, ranges and advice: an error at worst, never a panic, and the bytes
//! are right.
#![no_main]

use std::ops::Range;
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vmio::backing::{Backing, MemoryBacking, NullBacking};
use vmio::{Access, Advice, Cache, LockMemory, Mapping, MappingOptions, OnReadError, Pin, Result};

#[derive(Arbitrary, Debug)]
struct Input {
    cache: Option<CacheOptions>,
    mapping: Options,
    len: Number,
    null: bool,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
struct CacheOptions {
    capacity: Number,
    dirty_ratio: Option<f64>,
    workers: Option<u16>,
    lock: u8,
    measures: bool,
}

#[derive(Arbitrary, Debug)]
struct Options {
    read_only: Option<bool>,
    priority: u8,
    reserve: Option<Number>,
    poison: Option<[u8; 8]>,
}

/// Small ones, those around a boundary, and any.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u16),
    Around { shift: u8, off: i8 },
    Any(u64),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Number::Small(value) => u64::from(value),
            Number::Around { shift, off } => (1_u64 << (shift % 64)).wrapping_add_signed(i64::from(off)),
            Number::Any(value) => value,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Place {
    start: Number,
    end: Number,
}

impl Place {
    fn range(self) -> Range<u64> {
        self.start.value()..self.end.value()
    }
}

#[derive(Arbitrary, Debug)]
enum Call {
    Advise(Place, FuzzedAdvice),
    Read(Number, u16),
    Write(Number, u16),
    Pin(Place, bool),
    Unpin,
    Flush(Place),
    Sync,
    SyncInBackground,
    Residency(Place),
    SetLen(Number),
    Clone,
    Stats,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum FuzzedAdvice {
    Normal,
    Random,
    Sequential(u32),
    WillNeed,
    DontNeed,
    Fresh,
    Free,
    Priority(u8),
}

impl From<FuzzedAdvice> for Advice {
    fn from(advice: FuzzedAdvice) -> Self {
        match advice {
            FuzzedAdvice::Normal => Advice::Normal,
            FuzzedAdvice::Random => Advice::Random,
            FuzzedAdvice::Sequential(window_bytes) => Advice::Sequential { window_bytes },
            FuzzedAdvice::WillNeed => Advice::WillNeed,
            FuzzedAdvice::DontNeed => Advice::DontNeed,
            FuzzedAdvice::Fresh => Advice::Fresh,
            FuzzedAdvice::Free => Advice::Free,
            FuzzedAdvice::Priority(priority) => Advice::Priority(priority),
        }
    }
}

/// Advice and changes of length walk all pages of a range: longer mappings would make the fuzzer slow, not clever.
const LEN_MAX: u64 = 64 << 20;

static CACHE: LazyLock<Cache> = LazyLock::new(|| Cache::builder().capacity(8 << 20).build().unwrap());

fn build(options: &CacheOptions) -> Result<Cache> {
    let mut builder = Cache::builder().capacity(options.capacity.value()).measure_misses(options.measures);
    if let Some(ratio) = options.dirty_ratio {
        builder = builder.dirty_ratio(ratio);
    }
    if let Some(workers) = options.workers {
        // Those that make sense start threads: a few are enough.
        builder = builder.workers(if workers > 256 { workers.into() } else { usize::from(workers) % 5 });
    }
    builder = builder.lock_memory(match options.lock % 3 {
        0 => LockMemory::Auto,
        1 => LockMemory::Never,
        _ => LockMemory::Require,
    });
    builder.build()
}

fn open(cache: &Cache, input: &Input) -> Result<Mapping> {
    let mut options = MappingOptions::new().priority(input.mapping.priority);
    if let Some(read_only) = input.mapping.read_only {
        options = options.access(if read_only { Access::ReadOnly } else { Access::ReadWrite });
    }
    if let Some(reserve) = input.mapping.reserve {
        options = options.reserve(reserve.value());
    }
    if let Some(poison) = input.mapping.poison {
        options = options.on_read_error(OnReadError::Poison(poison));
    }
    let len = input.len.value();
    if input.null {
        Mapping::open(cache, NullBacking::new(len % LEN_MAX), options)
    } else {
        let backing = MemoryBacking::new(len)?;
        assert_eq!(backing.len(), len);
        let backing = if len > LEN_MAX { MemoryBacking::new(len % LEN_MAX)? } else { backing };
        Mapping::open(cache, backing, options)
    }
}

/// `is_kept`: whether what is written stays there when it has been evicted.
fn call(map: &Mapping, cache: &Cache, is_kept: bool, pins: &mut Vec<Pin>, call: &Call) -> Result<()> {
    match call {
        Call::Advise(place, advice) => map.advise(place.range(), (*advice).into())?,
        Call::Read(offset, len) => map.read_at(offset.value(), &mut vec![0; usize::from(*len)])?,
        Call::Write(offset, len) => {
            let data: Vec<u8> = (0..*len).map(|at| at as u8).collect();
            map.write_at(offset.value(), &data)?;
            let mut back = vec![0xFF; data.len()];
            map.read_at(offset.value(), &mut back)?;
            assert!(back == data || !is_kept, "{len} bytes at {}", offset.value());
        }
        Call::Pin(place, write) => {
            let access = if *write { Access::ReadWrite } else { Access::ReadOnly };
            let pin = map.pin(place.range(), access)?;
            assert_eq!(pin.len() as u64, place.range().end - place.range().start);
            pins.push(pin);
        }
        Call::Unpin => drop(pins.pop()),
        Call::Flush(place) => map.flush(place.range())?,
        Call::Sync => map.sync()?,
        Call::SyncInBackground => map.sync_begin()?.wait()?,
        Call::Residency(place) => {
            let residency = map.residency(place.range());
            assert!(residency.resident_pages() <= residency.pages());
            map.is_resident(place.start.value());
        }
        Call::SetLen(len) => {
            map.set_len(len.value().min(LEN_MAX))?;
            assert_eq!(map.len(), len.value().min(LEN_MAX));
        }
        Call::Clone => map.clone().close()?,
        Call::Stats => {
            let stats = cache.stats();
            assert!(stats.resident_pages <= stats.capacity_pages);
        }
    }
    Ok(())
}

fuzz_target!(|input: Input| {
    let cache = match &input.cache {
        None => CACHE.clone(),
        Some(options) => match build(options) {
            Ok(cache) => cache,
            Err(error) => return drop(error.to_string()),
        },
    };
    let map = match open(&cache, &input) {
        Ok(map) => map,
        Err(error) => return drop(error.to_string()),
    };
    let mut pins = Vec::new();
    for asked in &input.calls {
        if let Err(error) = call(&map, &cache, !input.null, &mut pins, asked) {
            drop(error.to_string());
        }
    }
    drop(pins);
    map.close().expect("memory can be written");
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0));
});
