//! Which records are the newest of their keys in the levels on the device: a chunk of the log has to keep those.

use crate::error::Result;
use crate::format::pointer::Pointer;
use crate::keyspace::{Keyspace, Version};
use crate::tree::{Answer, Tree};

/// The standing of a record among the levels.
#[derive(Default)]
enum Standing {
    /// No level so far refers to it.
    #[default]
    Unknown,
    /// There is a newer record of its key.
    Outdated,
    /// A level refers to it, and no level above has its key for sure.
    Referred,
}

/// A record, and records of levels above that may have its key.
#[derive(Default)]
struct Looked {
    standing: Standing,
    in_doubt: Vec<Pointer>,
}

impl Keyspace {
    /// Whether each of some records, given by key and place, is the newest of its key on the device. Does not look at memtables.
    ///
    /// A record that no level refers to is outdated, whatever its key is. So it reads other records, to compare their keys, only if a level
    /// refers to this record and a level above may have its key.
    pub(crate) fn are_newest(&self, version: &Version, records: &[(&[u8], Pointer)]) -> Result<Vec<bool>> {
        let mut looked: Vec<Looked> = records.iter().map(|_| Looked::default()).collect();
        for root in version.roots() {
            let is_open = |place: &usize| matches!(looked[*place].standing, Standing::Unknown);
            let open: Vec<usize> = (0..records.len()).filter(is_open).collect();
            let keys: Vec<&[u8]> = open.iter().map(|place| records[*place].0).collect();
            let answers = Tree::new(&self.log, self.number, root, version.epoch).answers(&keys)?;
            for (place, answer) in open.into_iter().zip(answers) {
                let (looked, at) = (&mut looked[place], records[place].1);
                match answer {
                    Answer::Absent => {}
                    Answer::Found(newest) if newest == at => looked.standing = Standing::Referred,
                    Answer::Found(_) => looked.standing = Standing::Outdated,
                    Answer::OneOf(some) if some.contains(&at) => looked.standing = Standing::Referred,
                    Answer::OneOf(some) => looked.in_doubt.extend(some),
                }
            }
        }
        let is_referred = |looked: &&Looked| matches!(looked.standing, Standing::Referred);
        self.log.fetch(looked.iter().filter(is_referred).flat_map(|looked| looked.in_doubt.iter().copied()));
        let is_newest = |(looked, (key, _)): (&Looked, &(&[u8], Pointer))| {
            if !is_referred(&looked) {
                return Ok(false);
            }
            for other in &looked.in_doubt {
                if self.log.has_key(*other, key)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        looked.iter().zip(records).map(is_newest).collect()
    }
}
