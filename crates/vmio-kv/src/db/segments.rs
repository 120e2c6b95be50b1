//! All segments of a store.

use std::sync::{Arc, PoisonError, RwLock};

use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::open_segment::OpenSegment;
use crate::db::stats::Stats;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::format::catalogue::NAME_BYTES_MAX;
use crate::keyspace::{Keyspace, View};

/// A store's segments, at least one.
pub(crate) struct Segments {
    store: Arc<Store>,
    /// In the order of their numbers.
    all: RwLock<Vec<Arc<OpenSegment>>>,
}

impl Segments {
    pub(super) fn new(store: Arc<Store>, all: Vec<Arc<OpenSegment>>) -> Self {
        Segments { store, all: RwLock::new(all) }
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(super) fn all(&self) -> Vec<Arc<OpenSegment>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The segment of a keyspace.
    pub(super) fn of(&self, keyspace: &Keyspace) -> Arc<OpenSegment> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|segment| segment.segment.number == keyspace.segment());
        let Some(found) = found else { unreachable!("a keyspace's segment is open") };
        Arc::clone(found)
    }

    pub(super) fn open_keyspace(&self, keyspace: &Arc<Keyspace>) -> OpenKeyspace {
        OpenKeyspace { home: self.of(keyspace), keyspace: Arc::clone(keyspace) }
    }

    /// Views of all keyspaces at one moment, in the order of their segments and numbers.
    pub(super) fn views(&self) -> Vec<(Arc<Keyspace>, View)> {
        // No keyspace is created meanwhile: a batch that writes to it as well would be shown in part.
        let named = self.store.keyspaces();
        let mut keyspaces: Vec<Arc<Keyspace>> = named.values().cloned().collect();
        keyspaces.sort_unstable_by_key(|keyspace| (keyspace.segment(), keyspace.number));
        let views = View::begin_all(keyspaces.iter().map(|keyspace| &**keyspace));
        keyspaces.into_iter().zip(views).collect()
    }

    fn handle(&self, keyspace: &Arc<Keyspace>) -> Result<KeyspaceHandle> {
        KeyspaceHandle::new(self.store.open_handle(HandleKind::Keyspace, || self.open_keyspace(keyspace)))
    }

    pub(super) fn keyspace(&self, name: &str) -> Result<Option<KeyspaceHandle>> {
        let keyspace = self.store.keyspaces().get(name).cloned();
        keyspace.map(|keyspace| self.handle(&keyspace)).transpose()
    }

    /// The keyspace of a name. If there is none, it creates one, in the `wanted` segment if that is given.
    pub(super) fn keyspace_or_create(&self, name: &str, wanted: Option<&Arc<OpenSegment>>) -> Result<KeyspaceHandle> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::KeyspaceName { name: name.to_owned(), most: NAME_BYTES_MAX });
        }
        let mut in_doubt = self.store.in_doubt();
        if let Some(handle) = self.keyspace(name)? {
            return match wanted.map(|wanted| wanted.segment.number).filter(|wanted| *wanted != handle.segment()) {
                Some(wanted) => {
                    Err(Error::KeyspaceElsewhere { name: name.to_owned(), found: handle.segment(), wanted })
                }
                None => Ok(handle),
            };
        }
        let home = wanted.map_or_else(|| Arc::clone(&self.all()[0]), Arc::clone);
        let number = home.segment.number;
        if let Some(other) = in_doubt.get(name).filter(|other| **other != number) {
            let why = format!("creating the keyspace {name} in segment {other} has failed, and it may exist there");
            return Err(Error::Stopped { volume: self.store.device.name().to_owned(), why });
        }
        let created = home.create_keyspace(name);
        let keyspace = created.inspect_err(|error| {
            if !matches!(error, Error::Option { .. }) {
                in_doubt.insert(name.to_owned(), number);
            }
        })?;
        self.handle(&keyspace)
    }

    /// Creates a segment. It becomes part of the store with [`Self::add`].
    pub(super) fn create(&self) -> Result<Arc<OpenSegment>> {
        let store = &self.store;
        let (first, units) = (Arc::clone(&self.all()[0]), OpenSegment::units_of_new(store));
        let mut volume = store.volume();
        // Segments count whose creation has failed after its last write: an opening finds them.
        store.options.check_segments(volume.segments().len() + 1)?;
        let entry = volume.create_segment(&first.segment, units)?;
        drop(volume);
        let (segment, _) = OpenSegment::open(store, &entry, None)?;
        segment.update_free_reserve();
        tracing::info!(volume = store.device.name(), number = entry.number, "a segment was created");
        Ok(Arc::new(segment))
    }

    pub(super) fn add(&self, segment: Arc<OpenSegment>) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(segment);
    }

    /// Makes durable all writes that have returned. If one segment fails, the others become durable all the same.
    pub(super) fn sync(&self) -> Result<()> {
        self.all().iter().map(|segment| segment.log.sync_all()).fold(Ok(()), Result::and)
    }

    pub(super) fn stats(&self) -> Stats {
        let stats = self.all().iter().map(|segment| segment.stats()).fold(Default::default(), |sum, one| sum + one);
        Stats::new(&self.store, stats)
    }
}
