//! What the suites about the kernel module's engine share.

use std::path::Path;

use vmio::backing::{Backing, FileBacking};
use vmio::{Access, Engine};

use super::{PAGE, at, engine};

/// Whether this run of the suite is about the module; prints that a test is skipped if not.
pub fn has_module() -> bool {
    let chosen = engine() == Engine::Kernel;
    if !chosen {
        test_depth::skipped("needs VMIO_TEST_ENGINE=kernel, and the module");
    }
    chosen
}

/// The first word of a page, past all caches.
pub fn on_disk(path: &Path, page: u64) -> u64 {
    let backing = FileBacking::open(path, Access::ReadOnly).unwrap();
    let mut block = Block([0; PAGE as usize]);
    backing.read_at(at(page), &mut block.0).unwrap();
    u64::from_le_bytes(block.0[..8].try_into().unwrap())
}

#[repr(align(4096))]
pub struct Block(pub [u8; PAGE as usize]);
