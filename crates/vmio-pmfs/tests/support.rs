//! A small file system, and what is in it as one value.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use vmio_pmfs::{Fs, Geometry, Kind, Medium, New, ROOT, Simulated, check};

/// Two areas of 4 MiB: each has an aligned extent, and holes.
pub const GEOMETRY: Geometry = Geometry { blocks: 2048, areas: 2, inodes: 64, journal_blocks: 14, save_blocks: 16 };

/// A medium with an empty file system.
pub fn made() -> Arc<Simulated> {
    made_of(GEOMETRY)
}

/// A medium with an empty file system of a layout.
pub fn made_of(geometry: Geometry) -> Arc<Simulated> {
    let medium = Arc::new(Simulated::new(geometry.bytes()));
    let shared: Arc<dyn Medium> = medium.clone();
    Fs::make(&shared, geometry, false, (0, 0)).unwrap();
    medium
}

/// Makes a file that takes all blocks that are free.
pub fn fill(fs: &Fs, name: &str) {
    let ino = fs.create(ROOT, name.as_bytes(), New::File, 0o644, (0, 0)).unwrap().ino;
    let mut end = 0;
    for step in [65_536, 4096] {
        while fs.write(ino, end, &patterned(1, step)).is_ok() {
            end += step as u64;
        }
    }
    assert_eq!(fs.space().free_blocks, 0);
}

/// The contents of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Directory,
    Symlink(Vec<u8>),
    /// The value of an extended attribute; its path ends in a blank and its name.
    Xattr(Vec<u8>),
    /// The number of links and the contents.
    File(u32, Vec<u8>),
}

/// All paths of a file system.
pub type Tree = BTreeMap<String, Node>;

/// Reads a whole file.
pub fn contents(fs: &Fs, ino: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; fs.attributes(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Reads everything.
pub fn tree(fs: &Fs) -> Tree {
    let (mut tree, mut left) = (Tree::new(), vec![(String::new(), ROOT)]);
    while let Some((path, directory)) = left.pop() {
        for named in fs.list(directory, 0, usize::MAX).unwrap() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&named.name));
            let attributes = fs.attributes(named.ino).unwrap();
            assert_eq!(attributes.kind, named.kind);
            let node = match named.kind {
                Kind::Directory => {
                    left.push((path.clone(), named.ino));
                    Node::Directory
                }
                Kind::Symlink => Node::Symlink(fs.read_link(named.ino).unwrap()),
                _ => Node::File(attributes.links, contents(fs, named.ino)),
            };
            for name in fs.xattrs(named.ino).unwrap() {
                let value = Node::Xattr(fs.xattr(named.ino, &name).unwrap());
                tree.insert(format!("{path} {}", String::from_utf8_lossy(&name)), value);
            }
            tree.insert(path, node);
        }
    }
    tree
}

/// A check must find nothing, and mounting must work. Returns what is there, and how many transactions were rolled back.
pub fn sound(medium: Arc<dyn Medium>, what: &str) -> (Tree, usize) {
    let report = check(Arc::clone(&medium)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.is_sound(), "{what}: {:#?}", report.faults);
    let fs = Fs::mount(medium).unwrap_or_else(|error| panic!("{what}: {error}"));
    (tree(&fs), fs.recovered().transactions)
}

/// Bytes of a seed's own.
pub fn patterned(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31).wrapping_add(seed * 7 + at / 253) % 251 + 1) as u8).collect()
}

/// A source of numbers.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
