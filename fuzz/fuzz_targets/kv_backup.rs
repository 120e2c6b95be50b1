//! Backups with valid checksums and any contents: they cause an error at worst, and sound ones can be written again.
#![no_main]

use std::io::{self, Read};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/vmio-kv/src/backup/mod.rs"]
mod backup;
#[allow(dead_code)]
#[path = "../../crates/vmio-kv/src/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../crates/vmio-kv/src/format/mod.rs"]
mod format;

use backup::block::{self, BackupId, BlockKind, CONTENTS_BYTES_MAX, HEADER_BYTES, seal};
use backup::{BackupCounts, BackupReader, BackupWriter, Destination, StoreShape};
use error::{Error, Result};

const ID: BackupId = [7; 16];

#[derive(Arbitrary, Debug)]
enum Part {
    Store { volume_bytes: u64, segments: u32 },
    Keyspace { segment: u8, name: Vec<u8> },
    Records(Vec<(Vec<u8>, Vec<u8>)>),
    Large { value_bytes: u64, key: Vec<u8> },
    /// Bytes of a value, as many as a part may have or fewer.
    Value { byte: u8, missing: u32 },
    /// Counts that may be right.
    End { added: [u8; 4] },
    Raw { kind: u8, contents: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// Whether the first block and the last one are as they should be.
    is_whole: bool,
    parts: Vec<Part>,
    cut_off: Option<u16>,
    raw: Option<Vec<u8>>,
}

/// The contents of a backup.
#[derive(Default, PartialEq, Eq)]
struct Contents {
    keyspaces: Vec<(u32, String, Vec<(Vec<u8>, Vec<u8>)>)>,
}

impl Destination for Contents {
    fn begin_keyspace(&mut self, segment: u32, name: &str) -> Result<()> {
        self.keyspaces.push((segment, name.to_owned(), Vec::new()));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspaces.last_mut().unwrap().2.push((key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn put_large(&mut self, key: &[u8], value_bytes: u64, source: &mut dyn Read) -> Result<()> {
        let mut value = Vec::new();
        source.read_to_end(&mut value).map_err(|source| Error::Source { wanted: value_bytes, read: 0, source })?;
        assert_eq!(value.len() as u64, value_bytes);
        self.put(key, &value)
    }
}

fn read(stream: &[u8]) -> Option<(StoreShape, Contents, BackupCounts)> {
    let read = || {
        let mut contents = Contents::default();
        let (reader, shape) = BackupReader::begin(stream)?;
        let counts = reader.copy_to(shape, &mut contents, &mut |_| {})?;
        Ok((shape, contents, counts))
    };
    match read() {
        Ok(found) => Some(found),
        Err(Error::DamagedBackup { offset, damage, .. }) => {
            assert!(offset <= stream.len() as u64);
            drop(damage.to_string());
            None
        }
        Err(Error::NewerVersion { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn write(shape: StoreShape, contents: &Contents) -> Vec<u8> {
    let mut stream = Vec::new();
    let observe = &mut |_: &BackupCounts| {};
    let mut writer = BackupWriter::begin(&mut stream, ID, shape, observe).unwrap();
    for (segment, name, records) in &contents.keyspaces {
        writer.begin_keyspace(*segment, name).unwrap();
        for (key, value) in records {
            match value.len() > block::SMALL_VALUE_BYTES_MAX {
                true => writer.put_large(key, value.len() as u64, &mut io::Cursor::new(value)).unwrap(),
                false => writer.put(key, value).unwrap(),
            }
        }
    }
    writer.end().unwrap();
    stream
}

/// A record that is read can be written, and is then the same.
fn check(stream: &[u8]) {
    let Some((shape, contents, counts)) = read(stream) else { return };
    let (again, same, recounted) = read(&write(shape, &contents)).expect("what was written can be read");
    assert!(again == shape && same == contents);
    assert_eq!((recounted.records, recounted.value_bytes), (counts.records, counts.value_bytes));
}

/// A kind and its contents; counts what they add.
fn block_of(part: &Part, counts: &mut [u64; 4]) -> (u8, Vec<u8>) {
    let mut add = |key: &[u8], value_bytes: u64| {
        counts[1] += 1;
        counts[2] += key.len() as u64;
        counts[3] = counts[3].wrapping_add(value_bytes);
    };
    match part {
        Part::Store { volume_bytes, segments } => {
            (BlockKind::Store as u8, [&volume_bytes.to_le_bytes()[..], &segments.to_le_bytes(), &[0; 4]].concat())
        }
        Part::Keyspace { segment, name } => {
            counts[0] += 1;
            (BlockKind::Keyspace as u8, [&u32::from(*segment).to_le_bytes()[..], name].concat())
        }
        Part::Records(records) => {
            let mut contents = Vec::new();
            for (key, value) in records {
                add(key, value.len() as u64);
                contents.extend((key.len() as u32).to_le_bytes());
                contents.extend((value.len() as u32).to_le_bytes());
                contents.extend_from_slice(key);
                contents.extend_from_slice(value);
            }
            (BlockKind::Records as u8, contents)
        }
        Part::Large { value_bytes, key } => {
            add(key, *value_bytes);
            (BlockKind::Large as u8, [&value_bytes.to_le_bytes()[..], key].concat())
        }
        Part::Value { byte, missing } => {
            (BlockKind::Part as u8, vec![*byte; CONTENTS_BYTES_MAX.saturating_sub(*missing as usize)])
        }
        Part::End { added } => {
            let numbers = std::array::from_fn::<u64, 4, _>(|index| counts[index].wrapping_add(added[index].into()));
            (BlockKind::End as u8, numbers.map(u64::to_le_bytes).concat())
        }
        Part::Raw { kind, contents } => (*kind, contents.clone()),
    }
}

fn kind_of(number: u8) -> BlockKind {
    match number % 6 {
        0 => BlockKind::Store,
        1 => BlockKind::Keyspace,
        2 => BlockKind::Records,
        3 => BlockKind::Large,
        4 => BlockKind::Part,
        _ => BlockKind::End,
    }
}

/// Gives a sealed block another kind, perhaps one that there is not.
fn seal_as(block: &mut [u8], kind: u8, number: u64) {
    seal(block, kind_of(kind), &ID, number);
    block[4] = kind;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&ID), &block[4..]);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
}

fuzz_target!(|input: Input| {
    if let Some(raw) = &input.raw {
        check(raw);
    }
    let (first, last) = (Part::Store { volume_bytes: 64 << 20, segments: 256 }, Part::End { added: [0; 4] });
    let first = Some(&first).filter(|_| input.is_whole);
    let last = Some(&last).filter(|_| input.is_whole);
    let (mut stream, mut counts) = (block::start(ID).to_vec(), [0; 4]);
    for (number, part) in first.into_iter().chain(&input.parts).chain(last).enumerate() {
        let (kind, mut contents) = block_of(part, &mut counts);
        contents.truncate(CONTENTS_BYTES_MAX);
        let mut block = [&[0; HEADER_BYTES][..], &contents].concat();
        seal_as(&mut block, kind, number as u64);
        stream.extend(block);
    }
    if let Some(len) = input.cut_off {
        stream.truncate(usize::from(len) % (stream.len() + 1));
    }
    check(&stream);
});
