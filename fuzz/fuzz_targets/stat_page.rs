//! Whatever another process shows as its stat page: an error at worst, never a panic, and numbers that are possible.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vmio::telemetry::Snapshot;

#[derive(Arbitrary, Debug)]
struct Input {
    cores: u8,
    changes: Vec<(u16, u64)>,
    cut_off: u16,
    share: f64,
    raw: Vec<u8>,
}

/// A page in order, from the format document.
fn page(cores: u64) -> Vec<u8> {
    let words = [0, 1, (1 + cores) * 4096, 4096, 77, 1, 1_000, 4096, 512, cores, 5, 26, 4, 90, 8];
    let mut page: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    page[..8].copy_from_slice(b"vmiostat");
    page.resize((1 + cores as usize) * 4096, 0);
    page
}

fn read(bytes: &[u8], share: f64) -> Option<Snapshot> {
    let snapshot = match Snapshot::parse(bytes) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            drop(error.to_string());
            return None;
        }
    };
    let stats = &snapshot.stats;
    assert_eq!(stats.resident_pages + stats.free_pages, stats.capacity_pages);
    assert!(snapshot.counters().count() > 0);
    for histogram in [&snapshot.miss, &snapshot.read, &snapshot.write, &snapshot.sync] {
        assert_eq!(histogram.quantile_ns(share).is_some(), histogram.count() > 0);
        assert!(histogram.quantile_ns(share).unwrap_or(0) <= histogram.max_ns());
        assert_eq!(histogram.since(histogram).count(), 0);
        assert!(histogram.clone().merged(histogram).count() >= histogram.count());
    }
    Some(snapshot)
}

fuzz_target!(|input: Input| {
    read(&input.raw, input.share);
    let cores = u64::from(input.cores % 4) + 1;
    let mut page = page(cores);
    assert!(read(&page, input.share).is_some());
    let words = page.len() / 8;
    for (word, value) in input.changes {
        page[usize::from(word) % words * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    read(&page, input.share);
    page.truncate(usize::from(input.cut_off) % (page.len() + 1));
    read(&page, input.share);
});
