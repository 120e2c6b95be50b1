//! The state of a transaction: its views, its reads and its writes.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::db::open_keyspace::OpenKeyspace;
use crate::db::reading::Reading;
use crate::db::segments::Segments;
use crate::db::transaction::reads::Reads;
use crate::db::transaction::writes::Writes;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, View};

/// The state of a transaction. It names a keyspace by its place in the list of views.
pub(in crate::db) struct State {
    volume: String,
    /// In the order of the keyspaces' segments and numbers.
    pub(super) views: Vec<(Arc<Keyspace>, Arc<View>)>,
    pub(super) reads: Mutex<Reads>,
    pub(super) writes: Writes,
}

impl State {
    /// A transaction on all keyspaces.
    pub(super) fn begin(segments: &Segments) -> State {
        let views = segments.views().into_iter().map(|(keyspace, view)| (keyspace, Arc::new(view))).collect();
        Self::with_views(segments.store().device.name(), views)
    }

    /// A transaction on one keyspace.
    pub(in crate::db) fn begin_on(open: &OpenKeyspace) -> State {
        let view = Arc::new(View::begin(&open.keyspace));
        Self::with_views(open.home.store.device.name(), vec![(Arc::clone(&open.keyspace), view)])
    }

    fn with_views(volume: &str, views: Vec<(Arc<Keyspace>, Arc<View>)>) -> State {
        State { volume: volume.to_owned(), views, reads: Mutex::default(), writes: Writes::default() }
    }

    pub(super) fn volume(&self) -> &str {
        &self.volume
    }

    /// The place of a keyspace; fails if it was not there when the transaction began.
    pub(super) fn place(&self, open: &OpenKeyspace) -> Result<usize> {
        let wanted = &open.keyspace;
        let found = self.views.binary_search_by_key(&(wanted.segment(), wanted.number), |(keyspace, _)| {
            (keyspace.segment(), keyspace.number)
        });
        // Another store's keyspace may have the same numbers.
        let is_it = |place: &usize| Arc::ptr_eq(&self.views[*place].0, wanted);
        let no_keyspace = || Error::NoKeyspace { volume: self.volume.clone(), name: wanted.name.clone() };
        found.ok().filter(is_it).ok_or_else(no_keyspace)
    }

    fn reading(&self, place: usize) -> Reading<'_> {
        let (keyspace, view) = &self.views[place];
        Reading { keyspace, version: &view.version, before: view.before }
    }

    pub(in crate::db) fn get(&self, open: &OpenKeyspace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let place = self.place(open)?;
        if let Some(own) = self.writes.get(place, key) {
            return Ok(own.map(<[u8]>::to_vec));
        }
        self.reads.lock().add_key(place, key);
        self.reading(place).get(key)
    }

    pub(super) fn contains(&self, open: &OpenKeyspace, key: &[u8]) -> Result<bool> {
        let place = self.place(open)?;
        if let Some(own) = self.writes.get(place, key) {
            return Ok(own.is_some());
        }
        self.reads.lock().add_key(place, key);
        self.reading(place).contains(key)
    }

    pub(in crate::db) fn write(&mut self, open: &OpenKeyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let place = self.place(open)?;
        self.writes.set(place, open, key, value)
    }
}
