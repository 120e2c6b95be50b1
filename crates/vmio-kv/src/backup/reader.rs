//! Reads a backup, and trusts nothing in it.

use std::io::{self, Read};

use zerocopy::FromBytes;

use crate::backup::block::{
    BackupId, BlockKind, EndContents, HEADER_BYTES, RecordHeader, SMALL_VALUE_BYTES_MAX, START_BYTES, StoreContents,
    VERSION, contents_bytes, read_start, unseal,
};
use crate::backup::parts::Parts;
use crate::backup::{BackupCounts, Destination, StoreShape};
use crate::error::{Damage, Error, Result};
use crate::format::catalogue::NAME_BYTES_MAX;
use crate::format::extents::LARGE_BYTES_MAX;
use crate::format::record::KEY_BYTES_MAX;

/// Reads the contents of a store from a stream, block by block. It has one block in memory.
pub(crate) struct BackupReader<R> {
    input: R,
    id: BackupId,
    /// The next block's number.
    number: u64,
    /// The byte where the block that was read last begins.
    block_at: u64,
    /// The contents of the block that was read last.
    pub(super) contents: Vec<u8>,
    counts: BackupCounts,
}

/// The place of the reader in the order of keyspaces and keys.
#[derive(Default)]
struct Place {
    keyspace: Option<(u32, String)>,
    /// The last key of the keyspace; empty before its first one.
    key: Vec<u8>,
}

impl<R: Read> BackupReader<R> {
    /// Reads the beginning of a backup.
    pub(crate) fn begin(input: R) -> Result<(Self, StoreShape)> {
        let (id, number, block_at, contents) = (BackupId::default(), 0, 0, Vec::new());
        let mut reader = BackupReader { input, id, number, block_at, contents, counts: BackupCounts::default() };
        let mut start = [0; START_BYTES];
        reader.fill(&mut start, "its beginning")?;
        let damaged = |damage| Error::DamagedBackup { structure: "its beginning", offset: 0, damage };
        let (version, id) = read_start(start).map_err(damaged)?;
        if version != VERSION {
            return Err(Error::NewerVersion { volume: "the backup".to_owned(), found: version, known: VERSION });
        }
        reader.id = id;
        let kind = reader.next_block()?;
        if kind != BlockKind::Store {
            return Err(reader.damaged(Damage::Kind { found: kind as u8, wanted: BlockKind::Store as u8 }, 0));
        }
        let contents =
            StoreContents::read_from_bytes(&reader.contents).map_err(|_| reader.damaged(Damage::Length, 0))?;
        let (volume_bytes, segments) = (contents.volume_bytes.get(), contents.segments.get());
        if segments == 0 || contents.zeros.get() != 0 {
            return Err(reader.damaged(Damage::Value { what: "the number of segments", found: segments.into() }, 8));
        }
        Ok((reader, StoreShape { volume_bytes, segments }))
    }

    /// Gives all contents to a destination. It fails if the stream has anything that its writer does not write, or more than that.
    /// `observe` is called after each block.
    pub(crate) fn copy_to(
        mut self,
        shape: StoreShape,
        destination: &mut impl Destination,
        observe: &mut dyn FnMut(&BackupCounts),
    ) -> Result<BackupCounts> {
        let mut place = Place::default();
        loop {
            match self.next_block()? {
                BlockKind::Keyspace => self.take_keyspace(shape, &mut place, destination)?,
                BlockKind::Records => self.take_records(&mut place, destination)?,
                BlockKind::Large => self.take_large(&mut place, destination)?,
                BlockKind::End => break,
                kind => return Err(self.damaged(Damage::Value { what: "its kind, here,", found: kind as u64 }, 0)),
            }
            observe(&self.counts);
        }
        self.take_end()?;
        observe(&self.counts);
        Ok(self.counts)
    }

    /// Reads the next block, and verifies it.
    pub(super) fn next_block(&mut self) -> Result<BlockKind> {
        const STRUCTURE: &str = "a block";
        let offset = self.offset();
        let damaged = |damage| Error::DamagedBackup { structure: STRUCTURE, offset, damage };
        self.block_at = offset;
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header, STRUCTURE)?;
        let mut contents = std::mem::take(&mut self.contents);
        contents.resize(contents_bytes(&header).map_err(damaged)?, 0);
        self.fill(&mut contents, STRUCTURE)?;
        let kind = unseal(&header, &contents, &self.id, self.number).map_err(damaged)?;
        self.contents = contents;
        self.number += 1;
        Ok(kind)
    }

    /// The byte where the next block begins.
    pub(super) fn offset(&self) -> u64 {
        self.counts.stream_bytes
    }

    /// Reads that many bytes; an end before them is damage.
    fn fill(&mut self, buffer: &mut [u8], structure: &'static str) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let offset = self.counts.stream_bytes;
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) => return Err(Error::DamagedBackup { structure, offset, damage: Damage::Length }),
                Ok(bytes) => {
                    filled += bytes;
                    self.counts.stream_bytes += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::ReadBackup { offset, source }),
            }
        }
        Ok(())
    }

    /// Damage at a place in the contents of the block that was read last.
    fn damaged(&self, damage: Damage, at: usize) -> Error {
        let offset = self.block_at + (HEADER_BYTES + at) as u64;
        Error::DamagedBackup { structure: "the contents of a block", offset, damage }
    }

    fn take_keyspace(
        &mut self,
        StoreShape { segments, .. }: StoreShape,
        place: &mut Place,
        destination: &mut impl Destination,
    ) -> Result<()> {
        let Some((segment, name)) = self.contents.split_first_chunk() else {
            return Err(self.damaged(Damage::Length, 0));
        };
        let segment = u32::from_le_bytes(*segment);
        let is_length = (1..=NAME_BYTES_MAX).contains(&name.len());
        let Some(name) = std::str::from_utf8(name).ok().filter(|_| is_length) else {
            return Err(
                self.damaged(Damage::Value { what: "a keyspace's name, in bytes,", found: name.len() as u64 }, 4)
            );
        };
        if segment >= segments {
            return Err(self.damaged(Damage::Value { what: "a keyspace's segment", found: segment.into() }, 0));
        }
        let is_behind = place.keyspace.as_ref().is_none_or(|(before, last)| (*before, last.as_str()) < (segment, name));
        if !is_behind {
            return Err(self.damaged(Damage::Order, 0));
        }
        destination.begin_keyspace(segment, name)?;
        self.counts.keyspaces += 1;
        *place = Place { keyspace: Some((segment, name.to_owned())), key: Vec::new() };
        Ok(())
    }

    fn take_records(&mut self, place: &mut Place, destination: &mut impl Destination) -> Result<()> {
        let mut rest = self.contents.as_slice();
        if rest.is_empty() {
            return Err(self.damaged(Damage::Length, 0));
        }
        while !rest.is_empty() {
            let at = self.contents.len() - rest.len();
            let parse = || {
                let (header, behind) = RecordHeader::read_from_prefix(rest).ok()?;
                let (key, behind) = behind.split_at_checked(header.key_bytes.get() as usize)?;
                let (value, behind) = behind.split_at_checked(header.value_bytes.get() as usize)?;
                Some((key, value, behind))
            };
            let Some((key, value, behind)) = parse() else { return Err(self.damaged(Damage::Length, at)) };
            if value.len() > SMALL_VALUE_BYTES_MAX {
                let found = value.len() as u64;
                return Err(self.damaged(Damage::Value { what: "a small value's length", found }, at));
            }
            place.advance(key).map_err(|damage| self.damaged(damage, at))?;
            destination.put(key, value)?;
            self.counts.add_record(key.len(), value.len() as u64);
            rest = behind;
        }
        Ok(())
    }

    fn take_large(&mut self, place: &mut Place, destination: &mut impl Destination) -> Result<()> {
        let Some((value_bytes, key)) = self.contents.split_first_chunk() else {
            return Err(self.damaged(Damage::Length, 0));
        };
        let value_bytes = u64::from_le_bytes(*value_bytes);
        if !(SMALL_VALUE_BYTES_MAX as u64 + 1..=LARGE_BYTES_MAX).contains(&value_bytes) {
            return Err(self.damaged(Damage::Value { what: "a large value's length", found: value_bytes }, 0));
        }
        place.advance(key).map_err(|damage| self.damaged(damage, size_of::<u64>()))?;
        let mut parts = Parts::new(self, value_bytes);
        let taken = destination.put_large(&place.key, value_bytes, &mut parts);
        parts.end(taken)?;
        self.counts.add_record(place.key.len(), value_bytes);
        Ok(())
    }

    /// The end of the backup, and of the stream.
    fn take_end(&mut self) -> Result<()> {
        let BackupCounts { keyspaces, records, key_bytes, value_bytes, .. } = self.counts;
        let end = EndContents::read_from_bytes(&self.contents).map_err(|_| self.damaged(Damage::Length, 0))?;
        let pairs = [
            ("the number of keyspaces", end.keyspaces, keyspaces),
            ("the number of records", end.records, records),
            ("the length of all keys", end.key_bytes, key_bytes),
            ("the length of all values", end.value_bytes, value_bytes),
        ];
        if let Some((what, found, _)) = pairs.iter().find(|(_, says, counted)| says.get() != *counted) {
            return Err(self.damaged(Damage::Value { what, found: found.get() }, 0));
        }
        let offset = self.offset();
        match self.fill(&mut [0], "its end") {
            Err(Error::DamagedBackup { damage: Damage::Length, .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(Error::DamagedBackup { structure: "its end", offset, damage: Damage::Behind }),
        }
    }
}

impl Place {
    /// Goes on to a key of the keyspace.
    fn advance(&mut self, key: &[u8]) -> Result<(), Damage> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(Damage::Value { what: "a key's length", found: key.len() as u64 });
        }
        if self.keyspace.is_none() || self.key.as_slice() >= key {
            return Err(Damage::Order);
        }
        self.key.clear();
        self.key.extend_from_slice(key);
        Ok(())
    }
}
