//! Streams that were cut off, changed or forged: an error, and never other contents.

use std::collections::BTreeMap;
use std::io::Read;

use super::block::{BackupId, BlockKind, CONTENTS_BYTES_MAX, HEADER_BYTES, SMALL_VALUE_BYTES_MAX, START_BYTES, seal};
use super::*;
use crate::error::{Damage, Error, Result};

const ID: BackupId = [7; 16];
const SHAPE: StoreShape = StoreShape { volume_bytes: 64 << 20, segments: 3 };

/// Keys and values in their order.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Blocks, with their contents.
type Blocks = Vec<(BlockKind, Vec<u8>)>;

/// Keyspaces by segment and name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    keyspaces: BTreeMap<(u32, String), Records>,
    present: (u32, String),
}

impl Model {
    fn records(&mut self) -> &mut Records {
        self.keyspaces.get_mut(&self.present).expect("records follow their keyspace")
    }
}

impl Destination for Model {
    fn begin_keyspace(&mut self, segment: u32, name: &str) -> Result<()> {
        self.present = (segment, name.to_owned());
        assert_eq!(self.keyspaces.insert(self.present.clone(), Vec::new()), None);
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records().push((key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn put_large(&mut self, key: &[u8], value_bytes: u64, source: &mut dyn Read) -> Result<()> {
        let mut value = Vec::new();
        source.read_to_end(&mut value).map_err(|source| Error::Source { wanted: value_bytes, read: 0, source })?;
        assert_eq!(value.len() as u64, value_bytes);
        self.records().push((key.to_vec(), value));
        Ok(())
    }
}

fn read(stream: &[u8]) -> Result<(Model, BackupCounts)> {
    let mut model = Model::default();
    let (reader, shape) = BackupReader::begin(stream)?;
    assert_eq!(shape, SHAPE);
    let counts = reader.copy_to(shape, &mut model, &mut |_| {})?;
    Ok((model, counts))
}

fn written(write: impl FnOnce(&mut BackupWriter<'_, &mut Vec<u8>>) -> Result<()>) -> Vec<u8> {
    let mut stream = Vec::new();
    let observe = &mut |_: &BackupCounts| {};
    let mut writer = BackupWriter::begin(&mut stream, ID, SHAPE, observe).expect("memory");
    write(&mut writer).expect("memory");
    let counts = writer.end().expect("memory");
    assert_eq!(counts.stream_bytes, stream.len() as u64);
    stream
}

fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at >> 12) as u8 ^ at as u8).collect()
}

/// Blocks of each kind.
fn example() -> Vec<u8> {
    written(|writer| {
        writer.begin_keyspace(0, "default")?;
        writer.put(b"apple", b"red")?;
        writer.put(b"pear", b"")?;
        writer.begin_keyspace(0, "none")?;
        writer.begin_keyspace(2, "large")?;
        writer.put_large(b"1", (CONTENTS_BYTES_MAX + 5) as u64, &mut &value(CONTENTS_BYTES_MAX + 5)[..])?;
        writer.put_large(b"2", 2 * CONTENTS_BYTES_MAX as u64, &mut &value(2 * CONTENTS_BYTES_MAX)[..])?;
        writer.put(b"3", &value(SMALL_VALUE_BYTES_MAX))
    })
}

/// A stream of these blocks, with right checksums and numbers.
fn forged(blocks: &[(BlockKind, &[u8])]) -> Vec<u8> {
    let mut stream = block::start(ID).to_vec();
    for (number, (kind, contents)) in blocks.iter().enumerate() {
        let mut block = vec![0; HEADER_BYTES];
        block.extend_from_slice(contents);
        seal(&mut block, *kind, &ID, number as u64);
        stream.extend(block);
    }
    stream
}

/// The bytes of a stream near its blocks' headers and ends: within a block's contents one byte is like the other.
fn places(stream: &[u8]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..START_BYTES).collect();
    let mut at = START_BYTES;
    while at < stream.len() {
        let header = stream[at..at + HEADER_BYTES].as_array().expect("a header");
        let end = at + HEADER_BYTES + block::contents_bytes(header).expect("a length");
        places.extend((at..end).filter(|place| *place < at + 100 || place + 20 >= end));
        at = end;
    }
    places
}

#[test]
fn what_was_written_is_read() {
    let stream = example();
    let (model, counts) = read(&stream).expect("sound");
    let lengths = |records: &Records| records.iter().map(|(_, value)| value.len()).collect::<Vec<_>>();
    let found: Vec<_> =
        model.keyspaces.iter().map(|((segment, name), records)| (*segment, &**name, lengths(records))).collect();
    let large = vec![CONTENTS_BYTES_MAX + 5, 2 * CONTENTS_BYTES_MAX, SMALL_VALUE_BYTES_MAX];
    assert_eq!(found, [(0, "default", vec![3, 0]), (0, "none", vec![]), (2, "large", large.clone())]);
    let records = &model.keyspaces[&(2, "large".to_owned())];
    assert!(records.iter().all(|(_, found)| *found == value(found.len())));
    assert_eq!((counts.keyspaces, counts.records, counts.key_bytes), (3, 5, 12));
    assert_eq!(counts.value_bytes, 3 + large.iter().sum::<usize>() as u64);
    assert_eq!(counts.stream_bytes, stream.len() as u64);
}

#[test]
fn a_stream_that_was_cut_off_is_an_error_at_its_end() {
    let stream = example();
    for bytes in places(&stream) {
        match read(&stream[..bytes]) {
            Err(Error::DamagedBackup { offset, damage: Damage::Length, .. }) => assert_eq!(offset, bytes as u64),
            other => panic!("{bytes} bytes: {other:?}"),
        }
    }
    match read(&[&stream[..], b"x"].concat()) {
        Err(Error::DamagedBackup { offset, damage: Damage::Behind, .. }) => assert_eq!(offset, stream.len() as u64),
        other => panic!("a byte more: {other:?}"),
    }
}

#[test]
fn a_changed_byte_is_an_error() {
    let mut stream = example();
    for at in places(&stream) {
        for bit in [1, 16, 0x80] {
            stream[at] ^= bit;
            match read(&stream) {
                Err(Error::DamagedBackup { offset, .. }) => assert!(offset <= stream.len() as u64),
                other => panic!("byte {at}: {:?}", other.map(|_| "no error")),
            }
            stream[at] ^= bit;
        }
    }
    assert!(read(&stream).is_ok());
}

#[test]
fn a_block_that_is_lost_or_moved_is_an_error() {
    let contents: Vec<Vec<u8>> = vec![vec![0, 0, 0, 0, b'a'], vec![0, 0, 0, 0, b'b'], vec![0, 0, 0, 0, b'c']];
    let store = [&(64_u64 << 20).to_le_bytes()[..], &3_u32.to_le_bytes(), &[0; 4]].concat();
    let end = [3_u64, 0, 0, 0].map(u64::to_le_bytes).concat();
    let mut blocks = vec![(BlockKind::Store, &store[..])];
    blocks.extend(contents.iter().map(|contents| (BlockKind::Keyspace, &contents[..])));
    blocks.push((BlockKind::End, &end));
    let stream = forged(&blocks);
    assert!(read(&stream).is_ok());
    let keyspace = HEADER_BYTES + 5;
    let first = START_BYTES + HEADER_BYTES + store.len();
    for taken in 0..3 {
        let [from, to] = [taken, taken + 1].map(|index| first + index * keyspace);
        let lost = [&stream[..from], &stream[to..]].concat();
        assert!(matches!(read(&lost), Err(Error::DamagedBackup { .. })));
        let twice = [&stream[..to], &stream[from..]].concat();
        assert!(matches!(read(&twice), Err(Error::DamagedBackup { .. })));
    }
}

/// Each is wrong in one way, though all checksums are right.
#[test]
fn contents_that_no_writer_writes_are_errors() {
    let store = [&(64_u64 << 20).to_le_bytes()[..], &3_u32.to_le_bytes(), &[0; 4]].concat();
    let keyspace = |segment: u8, name: &[u8]| [&[segment, 0, 0, 0], name].concat();
    let record = |key: &[u8], value: &[u8]| {
        [&(key.len() as u32).to_le_bytes()[..], &(value.len() as u32).to_le_bytes(), key, value].concat()
    };
    let end = |counts: [u64; 4]| counts.map(u64::to_le_bytes).concat();
    let large = |bytes: u64, key: &[u8]| [&bytes.to_le_bytes()[..], key].concat();
    let (none, one) = (end([1, 0, 0, 0]), end([1, 1, 1, 1]));
    let full = vec![0; CONTENTS_BYTES_MAX];
    let (a, b) = (record(b"a", b"1"), record(b"b", b"1"));
    let a_keyspace = (BlockKind::Keyspace, keyspace(0, b"k"));
    let wrong: Vec<(&str, Blocks)> = vec![
        ("a record before a keyspace", vec![(BlockKind::Records, a.clone()), (BlockKind::End, one.clone())]),
        ("no keyspace's name", vec![(BlockKind::Keyspace, keyspace(0, b"")), (BlockKind::End, none.clone())]),
        ("a long name", vec![(BlockKind::Keyspace, keyspace(0, &[b'k'; 65])), (BlockKind::End, none.clone())]),
        ("a name that is no text", vec![(BlockKind::Keyspace, keyspace(0, &[0xff])), (BlockKind::End, none.clone())]),
        ("a segment too many", vec![(BlockKind::Keyspace, keyspace(3, b"k")), (BlockKind::End, none.clone())]),
        ("half a segment", vec![(BlockKind::Keyspace, vec![0; 3]), (BlockKind::End, none.clone())]),
        ("a keyspace twice", vec![a_keyspace.clone(), a_keyspace.clone(), (BlockKind::End, end([2, 0, 0, 0]))]),
        (
            "keyspaces out of order",
            vec![(BlockKind::Keyspace, keyspace(1, b"k")), a_keyspace.clone(), (BlockKind::End, end([2, 0, 0, 0]))],
        ),
        ("no records", vec![a_keyspace.clone(), (BlockKind::Records, vec![]), (BlockKind::End, none.clone())]),
        ("a key twice", vec![a_keyspace.clone(), (BlockKind::Records, [&a[..], &a].concat())]),
        ("keys out of order", vec![a_keyspace.clone(), (BlockKind::Records, [b, a.clone()].concat())]),
        (
            "keys out of order in two blocks",
            vec![a_keyspace.clone(), (BlockKind::Records, a.clone()), (BlockKind::Records, record(b"a", b""))],
        ),
        ("an empty key", vec![a_keyspace.clone(), (BlockKind::Records, record(b"", b"1"))]),
        ("a long key", vec![a_keyspace.clone(), (BlockKind::Records, record(&[1; (1 << 16) + 1], b""))]),
        (
            "a long small value",
            vec![a_keyspace.clone(), (BlockKind::Records, record(b"a", &value(SMALL_VALUE_BYTES_MAX + 1)))],
        ),
        ("half a record", vec![a_keyspace.clone(), (BlockKind::Records, a[..a.len() - 1].to_vec())]),
        ("a record's front", vec![a_keyspace.clone(), (BlockKind::Records, [&a[..], &a[..7]].concat())]),
        (
            "lengths beyond memory",
            vec![a_keyspace.clone(), (BlockKind::Records, [[0xff; 8].as_slice(), &[1; 20]].concat())],
        ),
        ("a short large value", vec![a_keyspace.clone(), (BlockKind::Large, large(256 << 10, b"a"))]),
        ("too long a value", vec![a_keyspace.clone(), (BlockKind::Large, large((1 << 30) + 1, b"a"))]),
        ("a large value without a key", vec![a_keyspace.clone(), (BlockKind::Large, large(1 << 20, b""))]),
        (
            "a short part",
            vec![
                a_keyspace.clone(),
                (BlockKind::Large, large(2 << 20, b"a")),
                (BlockKind::Part, full[1..].to_vec()),
                (BlockKind::Part, full.clone()),
            ],
        ),
        (
            "a part too many",
            vec![
                a_keyspace.clone(),
                (BlockKind::Large, large(1 << 20, b"a")),
                (BlockKind::Part, full.clone()),
                (BlockKind::Part, full.clone()),
            ],
        ),
        (
            "a part too few",
            vec![a_keyspace.clone(), (BlockKind::Large, large(1 << 20, b"a")), (BlockKind::End, one.clone())],
        ),
        ("a part alone", vec![a_keyspace.clone(), (BlockKind::Part, full), (BlockKind::End, none.clone())]),
        ("a store again", vec![(BlockKind::Store, store.clone()), (BlockKind::End, end([0; 4]))]),
        ("wrong counts", vec![a_keyspace.clone(), (BlockKind::Records, a), (BlockKind::End, none.clone())]),
        ("a long end", vec![a_keyspace, (BlockKind::End, [none, vec![0]].concat())]),
    ];
    for (what, blocks) in wrong {
        let blocks = [(BlockKind::Store, store.clone())].into_iter().chain(blocks);
        let blocks: Blocks = blocks.collect();
        let stream = forged(&blocks.iter().map(|(kind, contents)| (*kind, &contents[..])).collect::<Vec<_>>());
        match read(&stream) {
            Err(Error::DamagedBackup { damage: Damage::Checksum | Damage::Magic, .. }) | Ok(_) => panic!("{what}"),
            // Not only because the stream ends behind it.
            Err(Error::DamagedBackup { offset, damage, .. }) => {
                assert!(damage != Damage::Length || offset < stream.len() as u64, "{what}");
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}
