//! Points in time, to be read as long as they are held.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::db::reading::Reading;
use crate::db::segments::Segments;
use crate::db::{DEFAULT_REGION, RegionHandle, Scan};
use crate::error::{Error, Result};
use crate::key_range::KeyRange;
use crate::region::{Region, View};

/// All regions of a store, in whichever segments, as they were at one moment: what was written later is not seen, and of a batch all or
/// nothing.
///
/// It holds up neither writers nor spills. As long as it is there, the room of what it shows is not used again, be that
/// overwritten or deleted: a nearly full store may become full by it, and a level in memory that was spilled stays in memory.
#[derive(Clone)]
pub struct Snapshot {
    default: RegionSnapshot,
    regions: BTreeMap<String, RegionSnapshot>,
    volume: String,
}

impl Snapshot {
    pub(super) fn begin(segments: &Segments) -> Snapshot {
        // No region is created meanwhile: a batch that writes to it as well would be seen in part.
        let named = segments.store().regions();
        let mut regions: Vec<&Arc<Region>> = named.values().collect();
        regions.sort_unstable_by_key(|region| (region.segment(), region.number));
        let views = View::begin_all(regions.iter().map(|region| &***region));
        let of_region = |(region, view): (&Arc<Region>, View)| {
            (region.name.clone(), RegionSnapshot::new(segments.handle(region), view))
        };
        let regions: BTreeMap<String, RegionSnapshot> = regions.into_iter().zip(views).map(of_region).collect();
        let default = regions[DEFAULT_REGION].clone();
        Snapshot { default, regions, volume: segments.store().device.name().to_owned() }
    }

    /// A region by its name, if it was there.
    pub fn region(&self, name: &str) -> Result<&RegionSnapshot> {
        let no_region = || Error::NoRegion { volume: self.volume.clone(), name: name.to_owned() };
        self.regions.get(name).ok_or_else(no_region)
    }

    /// The names of all regions that were there.
    pub fn region_names(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }
}

impl Deref for Snapshot {
    type Target = RegionSnapshot;

    /// The region that is there from the start: so `snapshot.get` looks there.
    fn deref(&self) -> &RegionSnapshot {
        &self.default
    }
}

/// A region as it was at one moment; see [`Snapshot`].
#[derive(Clone)]
pub struct RegionSnapshot {
    pub(super) handle: RegionHandle,
    pub(super) view: Arc<View>,
}

impl RegionSnapshot {
    pub(super) fn new(handle: RegionHandle, view: View) -> Self {
        RegionSnapshot { handle, view: Arc::new(view) }
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    pub(super) fn reading(&self) -> Reading<'_> {
        Reading { region: &self.handle.region, version: &self.view.version, before: self.view.before }
    }

    /// The value that a key had.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.reading().get(key)
    }

    /// Has `look` see the value that a key had; see [`RegionHandle::get_ref`].
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        self.reading().get_ref(key, look)
    }

    /// The values that several keys had; see [`RegionHandle::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.reading().multi_get(keys)
    }

    /// Whether a key had a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.reading().contains(key)
    }

    /// Keys and values of a range in order.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan<'_> {
        Scan::new(&self.handle, Arc::clone(&self.view), range.into())
    }

    /// The same of the keys that begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<'_> {
        self.scan(KeyRange::prefix(prefix))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of the store in {}", self.volume)
    }
}

impl std::fmt::Debug for RegionSnapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of {:?}", self.handle)
    }
}
