//! Points in time, to be read as long as they are held.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::db::held::Held;
use crate::db::open_region::OpenRegion;
use crate::db::reading::Reading;
use crate::db::scan::Progress;
use crate::db::segments::Segments;
use crate::db::{DEFAULT_REGION, Holder, RegionHandle, Scan};
use crate::error::{Error, Result};
use crate::key_range::KeyRange;
use crate::region::{Region, Version, View};

/// All regions of a store, in whichever segments, as they were at one moment: what was written later is not seen, and of a batch all or
/// nothing.
///
/// It holds up neither writers nor spills. As long as it is there, the room of what it shows is not used again, be that
/// overwritten or deleted: a nearly full store may become full by it, and a level in memory that was spilled stays in memory.
#[derive(Clone)]
pub struct Snapshot {
    default: RegionSnapshot,
    held: Held<Regions>,
}

/// What a snapshot shows.
#[derive(Clone)]
pub(super) struct Regions {
    by_name: BTreeMap<String, RegionSnapshot>,
    volume: String,
}

impl Snapshot {
    /// Of a store whose first region this is.
    pub(super) fn new(held: Held<Regions>, default: &RegionHandle) -> Snapshot {
        let of_default = held.get().ok().and_then(|regions| regions.by_name.get(DEFAULT_REGION).cloned());
        Snapshot { default: of_default.unwrap_or_else(|| default.snapshot()), held }
    }

    /// A region by its name, if it was there.
    pub fn region(&self, name: &str) -> Result<&RegionSnapshot> {
        let Regions { by_name, volume } = self.held.get()?;
        let no_region = || Error::NoRegion { volume: volume.clone(), name: name.to_owned() };
        by_name.get(name).ok_or_else(no_region)
    }

    /// The names of all regions that were there.
    pub fn region_names(&self) -> Result<impl Iterator<Item = &str>> {
        Ok(self.held.get()?.by_name.keys().map(String::as_str))
    }
}

impl Regions {
    pub(super) fn now(segments: &Segments) -> Regions {
        // No region is created meanwhile: a batch that writes to it as well would be seen in part.
        let named = segments.store().regions();
        let mut regions: Vec<&Arc<Region>> = named.values().collect();
        regions.sort_unstable_by_key(|region| (region.segment(), region.number));
        let views = View::begin_all(regions.iter().map(|region| &***region));
        let of_region = |(region, view): (&Arc<Region>, View)| {
            let shown = || Shown { open: segments.open_region(region), view: Arc::new(view) };
            let snapshot = RegionSnapshot {
                name: region.name.as_str().into(),
                held: segments.store().hold(Holder::Snapshot, shown),
            };
            (region.name.clone(), snapshot)
        };
        let by_name = regions.into_iter().zip(views).map(of_region).collect();
        Regions { by_name, volume: segments.store().device.name().to_owned() }
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
    name: Arc<str>,
    held: Held<Shown>,
}

/// A region, and the moment that is shown.
#[derive(Clone)]
struct Shown {
    open: OpenRegion,
    view: Arc<View>,
}

impl RegionSnapshot {
    pub(super) fn of(handle: &RegionHandle) -> Self {
        let held = handle
            .hold(Holder::Snapshot, |open| Shown { open: open.clone(), view: Arc::new(View::begin(&open.region)) });
        RegionSnapshot { name: handle.name().into(), held }
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is read, and the version that it reads.
    pub(super) fn reading(&self) -> Result<(Reading<'_>, &Arc<Version>)> {
        let Shown { open, view } = self.held.get()?;
        Ok((Reading { region: &open.region, version: &view.version, before: view.before }, &view.version))
    }

    /// Something else that is held of the same store.
    pub(super) fn hold<U>(&self, holder: Holder, value: U) -> Held<U> {
        self.held.map(holder, |_| value)
    }

    /// The value that a key had.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.reading()?.0.get(key)
    }

    /// Has `look` see the value that a key had; see [`RegionHandle::get_ref`].
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        self.reading()?.0.get_ref(key, look)
    }

    /// The values that several keys had; see [`RegionHandle::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.reading()?.0.multi_get(keys)
    }

    /// Whether a key had a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.reading()?.0.contains(key)
    }

    /// Keys and values of a range in order.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan {
        Scan::new(
            self.held
                .map(Holder::Scan, |Shown { open, view }| Progress::new(open.clone(), Arc::clone(view), range.into())),
        )
    }

    /// The same of the keys that begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan {
        self.scan(KeyRange::prefix(prefix))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of the store")?;
        self.held.get().map_or(Ok(()), |regions| write!(out, " in {}", regions.volume))
    }
}

impl std::fmt::Debug for RegionSnapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "snapshot of region {:?}", self.name)
    }
}
