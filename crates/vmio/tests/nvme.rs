//! An NVMe namespace past the block layer: the one that VMIO_TEST_NVME names, which is overwritten (tests/vm has one).

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use vmio::backing::{Backing, FileBacking, NvmeBacking, Submission};
use vmio::{Access, Error, Mapping, MappingOptions};

use crate::support::child::isolated;
use crate::support::denial::limit_locked_memory;
use crate::support::exercise::{exercise, random_bytes};
use crate::support::{PAGE, at, read, roomy_cache, tiny_cache};

/// Tests take turns with the device.
static TURN: Mutex<()> = Mutex::new(());

const WAYS: [Submission; 3] = [Submission::Polled, Submission::Interrupting, Submission::Ioctl];

/// Does something with the character device and the block device, if there are some.
fn with_device(test: impl FnOnce(&Path, &Path)) {
    let Some(device) = std::env::var_os("VMIO_TEST_NVME").map(PathBuf::from) else {
        return test_depth::skipped("VMIO_TEST_NVME names no NVMe namespace that may be overwritten");
    };
    let block_device = device.to_str().unwrap().replace("/ng", "/nvme");
    let _turn = TURN.lock().unwrap();
    test(&device, Path::new(&block_device));
}

fn open_block_device(path: &Path) -> File {
    File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

#[repr(align(4096))]
struct Block([u8; 4096]);

#[test]
fn bytes_last_whatever_way_commands_go() {
    with_device(|device, _| {
        for way in WAYS {
            exercise(|| NvmeBacking::open_with(device, Access::ReadWrite, way), 900 * PAGE);
        }
        assert_eq!(NvmeBacking::open(device, Access::ReadOnly).unwrap().submission(), Submission::Polled);
    });
}

#[test]
fn it_is_the_namespace_that_the_block_layer_has() {
    with_device(|device, block_device| {
        let whole = NvmeBacking::open(device, Access::ReadOnly).unwrap().len();
        let blocks = FileBacking::open(block_device, Access::ReadOnly).unwrap();
        assert_eq!(
            (whole, NvmeBacking::open(device, Access::ReadOnly).unwrap().identity()),
            (blocks.len(), blocks.identity())
        );
        let last = whole - PAGE;
        let direct = open_block_device(block_device);
        direct.write_all_at(&Block([7; 4096]).0[..], last).unwrap();
        let map =
            Mapping::open(&tiny_cache(), NvmeBacking::open(device, Access::ReadWrite).unwrap(), MappingOptions::new());
        let map = map.unwrap();
        assert_eq!(read(&map, last..whole).unwrap(), [7; 4096]);
        // Runs that are longer than a command, and than all that are under way at a time.
        let bytes = random_bytes(5 << 20);
        map.write_at(at(3), &bytes).unwrap();
        map.sync().unwrap();
        let mut block = Block([0; 4096]);
        for page in 0..bytes.len() / 4096 {
            direct.read_exact_at(&mut block.0, at(3 + page as u64)).unwrap();
            assert!(block.0 == bytes[page * 4096..][..4096], "page {page}");
        }
        map.close().unwrap();
    });
}

/// The kernel looks up the pages of no command: not of misses, of what an evictor writes, nor of a sync.
#[test]
fn a_mapping_moves_bytes_in_registered_buffers_only() {
    with_device(|device, block_device| {
        const PAGES: u64 = 2000;
        for way in [Submission::Polled, Submission::Interrupting] {
            let backing = Arc::new(NvmeBacking::open_with(device, Access::ReadWrite, way).unwrap());
            let bytes = random_bytes(PAGES * PAGE);
            // One cache evicts, the other leaves all that is written to the sync.
            for (cache, syncs) in [(tiny_cache(), false), (roomy_cache(), true)] {
                let opened = backing.commands();
                let map = Mapping::open(&cache, Arc::clone(&backing), MappingOptions::new()).unwrap();
                for (page, bytes) in bytes.chunks_exact(PAGE as usize).enumerate() {
                    assert_eq!(read(&map, at(page as u64)..at(page as u64 + 1)).unwrap().len(), bytes.len());
                    map.write_at(at(page as u64), bytes).unwrap();
                }
                let written = backing.commands();
                map.sync().unwrap();
                let synced = backing.commands();
                println!("{way:?}: {opened:?}, {written:?}, {synced:?}");
                assert_eq!((written.unregistered, synced.unregistered), (opened.unregistered, opened.unregistered));
                assert!(opened.registered < written.registered);
                assert!(!syncs || written.registered < synced.registered);
                map.close().unwrap();
            }
            let unregistered = backing.commands().unregistered;
            let mut block = Block([0; 4096]);
            let direct = open_block_device(block_device);
            for (page, bytes) in bytes.chunks_exact(PAGE as usize).enumerate() {
                direct.read_exact_at(&mut block.0, at(page as u64)).unwrap();
                assert!(block.0 == bytes, "page {page}");
            }
            // The buffers are the cache's, which may go.
            backing.read_at(0, &mut block.0).unwrap();
            assert_eq!(backing.commands().unregistered, unregistered + 1);
        }
    });
}

/// What may not be locked in memory is not registered: reads come first.
#[test]
fn reads_keep_their_registered_buffers_where_there_is_no_room_for_those_of_writes() {
    with_device(|device, _| {
        let name = "nvme::reads_keep_their_registered_buffers_where_there_is_no_room_for_those_of_writes";
        let said = isolated(name, || {
            // Of a core, in each of as many rings, reads have 256 KiB.
            let cores = std::thread::available_parallelism().unwrap().get() as u64;
            limit_locked_memory(cores * cores * (256 << 10) + (1 << 20));
            let backing = Arc::new(NvmeBacking::open(device, Access::ReadWrite).unwrap());
            let map = Mapping::open(&tiny_cache(), Arc::clone(&backing), MappingOptions::new()).unwrap();
            let opened = backing.commands();
            (0..50).for_each(|page| drop(read(&map, at(page)..at(page + 1)).unwrap()));
            let done = backing.commands();
            assert!(done.registered > opened.registered && done.unregistered == opened.unregistered, "{done:?}");
            map.write_at(0, &[7; 4096]).unwrap();
            map.sync().unwrap();
            assert!(backing.commands().unregistered > done.unregistered, "{:?}", backing.commands());
        });
        said.succeeds();
    });
}

#[test]
fn threads_that_miss_get_their_own_pages() {
    with_device(|device, block_device| {
        const PAGES: u64 = 2000;
        let direct = open_block_device(block_device);
        for page in 0..PAGES {
            let mut block = Block([0; 4096]);
            block.0.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&page.to_le_bytes()));
            direct.write_all_at(&block.0, at(page)).unwrap();
        }
        let backing = NvmeBacking::open(device, Access::ReadOnly).unwrap();
        let map = Mapping::open(&tiny_cache(), backing, MappingOptions::new()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let map = &map;
                scope.spawn(move || {
                    for turn in 0..PAGES {
                        let page = (turn * 7 + thread * 501) % PAGES;
                        assert_eq!(read(map, at(page) + 4088..at(page + 1)).unwrap(), page.to_le_bytes());
                    }
                });
            }
        });
    });
}

#[test]
fn it_is_refused_while_mounted_and_cannot_be_mounted_while_mapped() {
    with_device(|device, block_device| {
        let run = |program: &str, arguments: &[&Path]| Command::new(program).args(arguments).output().unwrap().status;
        assert!(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(block_device).status().unwrap().success());
        let folder = tempfile::tempdir().unwrap();
        assert!(run("mount", &[block_device, folder.path()]).success());
        let cache = tiny_cache();
        let open = || {
            let backing = NvmeBacking::open(device, Access::ReadWrite).unwrap();
            Mapping::open(&cache, backing, MappingOptions::new())
        };
        let error = open().err().unwrap();
        assert!(matches!(&error, Error::Open { source, .. } if source.to_string().contains("mounted")), "{error:?}");
        assert!(run("umount", &[folder.path()]).success());
        let map = open().unwrap();
        assert!(!run("mount", &[block_device, folder.path()]).success());
        assert_eq!(open().unwrap().as_ptr(), map.as_ptr(), "opened twice it is one region");
        map.close().unwrap();
        assert!(run("mount", &[block_device, folder.path()]).success());
        assert!(run("umount", &[folder.path()]).success());
    });
}

#[test]
fn what_is_no_namespace_is_refused() {
    let file = tempfile::Builder::new().prefix("ng").tempfile().unwrap();
    for path in [file.path(), Path::new("/dev/null"), Path::new("/dev/ng-none")] {
        let error = NvmeBacking::open(path, Access::ReadOnly).err().unwrap();
        println!("{error}: {}", std::error::Error::source(&error).unwrap());
    }
}
