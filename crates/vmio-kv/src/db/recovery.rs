//! Opening a store: what was committed, and then what the log has beyond that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use crate::db::Store;
use crate::db::collector::{Collected, Upkeep};
use crate::db::spiller::Queue;
use crate::error::{Damage, Result};
use crate::format::pointer::Pointer;
use crate::format::record::RecordKind;
use crate::log::{Log, replay};
use crate::options::Options;
use crate::region::{LevelMemory, Region};
use crate::volume::Volume;
use crate::volume::commit::Changes;
use crate::volume::segment::Segment;

/// What opening a store has brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Records of the log that no level had.
    pub records: u64,
    /// Bytes of the log that were read for them.
    pub log_bytes: u64,
    /// How long it took.
    pub time: Duration,
}

/// A record that was read before its region's level is there.
struct Found {
    key: Box<[u8]>,
    sequence: u64,
    pointer: Pointer,
}

impl Store {
    pub(super) fn recover(mut volume: Volume, options: Options) -> Result<(Store, Recovery)> {
        let started = Instant::now();
        let device = Arc::clone(&volume.device);
        let segment = Arc::new(Segment::open(device, volume.take_segment()?)?);
        // What was read may be in a cache of the system's alone, after a kill: nothing is written over before it is durable.
        segment.device.flush()?;
        let superblock = segment.superblock();
        let entries = segment.regions();
        let mut found: BTreeMap<u32, Vec<Found>> = entries.iter().map(|entry| (entry.number, Vec::new())).collect();
        let since: BTreeMap<u32, u64> = entries.iter().map(|entry| (entry.number, entry.log_sequence)).collect();
        let mut records = 0;
        let end = replay(&segment, &superblock, |record| {
            if !matches!(record.kind, RecordKind::Put | RecordKind::Delete) {
                return Ok(());
            }
            if record.region >= superblock.next_region {
                // Regions are committed before anything is put into them: this superblock is not the newest that there was.
                let damage = Damage::Value {
                    what: "a record's region, which it does not know,",
                    found: u64::from(record.region),
                };
                return Err(segment.damaged_superblock(damage));
            }
            if let Some(of_region) = found.get_mut(&record.region)
                && record.sequence >= since[&record.region]
            {
                records += 1;
                of_region.push(Found { key: record.key.into(), sequence: record.sequence, pointer: record.pointer });
            }
            Ok(())
        })?;
        segment.ready()?;
        // The owner's epoch is in every generation of its log: it has to be durable before any is used.
        // One that the log has seen, and no superblock has any more, is not used again either.
        let owner_epoch = superblock.owner_epoch.max(end.generation >> 32) + 1;
        segment.commit(Changes { owner_epoch: Some(owner_epoch), ..Changes::default() }, &[])?;
        let log = Arc::new(Log::new(Arc::clone(&segment), owner_epoch, end)?);
        let level_memory = Arc::new(LevelMemory::new(options.memory_step_bytes()));
        let mut regions = BTreeMap::new();
        for entry in &entries {
            let region = Region::new(&log, options.limits(), &level_memory, entry);
            for Found { key, sequence, pointer } in found.remove(&entry.number).unwrap_or_default() {
                region.replay(&key, sequence, pointer);
            }
            regions.insert(entry.name.clone(), Arc::new(region));
        }
        let store = Store {
            next_region: Mutex::new(superblock.next_region),
            segment,
            log,
            regions: RwLock::new(regions),
            level_memory,
            options,
            spills: Queue::default(),
            upkeep: Mutex::new(Upkeep::default()),
            collected: Collected::default(),
        };
        store.keep_reserve();
        let recovery = Recovery { records, log_bytes: end.bytes, time: started.elapsed() };
        Ok((store, recovery))
    }
}
