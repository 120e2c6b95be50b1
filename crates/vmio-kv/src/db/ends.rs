//! The first and the last pair of a keyspace: to read and to pop.

use std::sync::Arc;

use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::open_keyspace::OpenKeyspace;
use crate::db::scan::Progress;
use crate::error::Result;
use crate::format::record::RecordKind;
use crate::key_range::KeyRange;
use crate::keyspace::memtable::space_for;
use crate::keyspace::{Admitted, View, WriteTurn};
use crate::log::Append;
use crate::tree::Direction;
use crate::volume::free_reserve::SpacePriority;

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// How often a pop looks for the key while others write; after that they wait.
const TRIES: usize = 3;

impl KeyspaceHandle {
    /// The first key, with its value.
    pub fn first(&self) -> Result<Option<Pair>> {
        self.scan(..).next().transpose()
    }

    /// The last key, with its value.
    pub fn last(&self) -> Result<Option<Pair>> {
        self.scan(..).next_back().transpose()
    }

    /// Deletes the first key and returns it with its value. Concurrent pops get different keys: no write comes between the look-up and the
    /// deletion.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// for (name, kind) in [("pear", "fruit"), ("apple", "fruit"), ("leek", "vegetable")] {
    ///     db.put(name.as_bytes(), kind.as_bytes())?;
    /// }
    /// assert_eq!(db.pop_first()?, Some((b"apple".to_vec(), b"fruit".to_vec())));
    /// assert_eq!(db.pop_last()?, Some((b"pear".to_vec(), b"fruit".to_vec())));
    /// assert_eq!(db.first()?, db.last()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_first(&self) -> Result<Option<Pair>> {
        self.open()?.pop(Direction::Up)
    }

    /// Deletes the last key and returns it with its value.
    pub fn pop_last(&self) -> Result<Option<Pair>> {
        self.open()?.pop(Direction::Down)
    }
}

impl OpenKeyspace {
    fn pop(&self, direction: Direction) -> Result<Option<Pair>> {
        self.home.write_or_make_space(SpacePriority::Delete, || self.try_pop(direction))
    }

    fn try_pop(&self, direction: Direction) -> Result<Option<Pair>> {
        for _ in 0..TRIES {
            let view = Arc::new(View::begin(&self.keyspace));
            let Some(found) = self.end(&view, direction)? else { return Ok(None) };
            let admitted = self.home.admit(self.keyspace.space_to_begin() + space_for(&found.0))?;
            let turn = self.keyspace.begin_write()?;
            if view.is_newest(&self.keyspace) {
                drop(view);
                return self.take(admitted, turn, found).map(Some);
            }
        }
        let turn = self.keyspace.begin_write()?;
        let Some(found) = self.end(&Arc::new(View::begin(&self.keyspace)), direction)? else { return Ok(None) };
        // A writer with a turn must not wait for memory: a flush may need the turn.
        let admitted =
            self.home.store.memtable_budget.admit_anyway(self.keyspace.space_to_begin() + space_for(&found.0));
        self.take(admitted, turn, found).map(Some)
    }

    /// The first pair of a view in a direction.
    fn end(&self, view: &Arc<View>, direction: Direction) -> Result<Option<Pair>> {
        Progress::new(self.clone(), Arc::clone(view), KeyRange::from(..)).take(direction)
    }

    fn take(&self, admitted: Admitted<'_>, turn: WriteTurn<'_>, found: Pair) -> Result<Pair> {
        let record = Append { kind: RecordKind::Delete, keyspace: self.keyspace.number, key: &found.0, value: &[] };
        self.append(admitted, turn, &record, SpacePriority::Delete, self.durability())?;
        Ok(found)
    }
}
