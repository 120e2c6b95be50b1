//! The ring 0 engine: system calls of a thread in the machine take any pointer into a mapping, resident or not.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use vmio::ring0::{self, is_inside};
use vmio::{Access, Advice, Cache, Mapping, MappingOptions};

use crate::support::device::{Device, READ_EIO};
use crate::support::reader_thread::{is_efault, numbered, open, read_into, write_from};
use crate::support::ring0::cache;
use crate::support::views::Addresses;
use crate::support::{PAGE, SPAN, at, check_empty, load, store, watchdog};

/// Runs a body in the machine.
pub(crate) fn inside<T>(body: impl FnOnce() -> T) -> T {
    ring0::enter().unwrap();
    let result = body();
    assert!(is_inside(), "the thread has left the machine");
    ring0::leave();
    result
}

/// A mapping of which nothing is in memory.
fn absent(cache: &Cache, device: &Arc<Device>) -> Mapping {
    let map = open(cache, device);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    map
}

/// The address of a byte.
pub(crate) fn place(map: &Mapping, offset: u64) -> *mut u8 {
    assert!(offset < map.len());
    map.as_mut_ptr().wrapping_add(offset as usize)
}

/// The answer of a call of the C library's.
pub(crate) fn answer(of_call: isize) -> std::io::Result<u64> {
    if of_call < 0 { Err(std::io::Error::last_os_error()) } else { Ok(of_call as u64) }
}

#[test]
fn one_call_moves_more_than_the_cache_holds() {
    const PAGES: u64 = 700;
    let _watchdog = watchdog("one_call_moves_more_than_the_cache_holds");
    let Some(cache) = cache(256) else { return };
    let (from, to) = (numbered(PAGES), Device::of_pages(PAGES));
    let source = Mapping::open(&cache, from.backing(), MappingOptions::new().access(Access::ReadOnly)).unwrap();
    let target = open(&cache, &to);
    let mut file = tempfile::tempfile().unwrap();
    inside(|| {
        // From the middle of a page to the middle of another.
        assert_eq!(write_from(&source, 16, PAGES * PAGE - 32, &file).unwrap(), PAGES * PAGE - 32);
        file.rewind().unwrap();
        assert_eq!(read_into(&target, 16, PAGES * PAGE - 32, &file).unwrap(), PAGES * PAGE - 32);
        // The end of the file ends the read.
        assert_eq!(read_into(&target, 0, PAGES * PAGE, &file).unwrap(), 0);
    });
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let len = bytes.len();
    assert!(bytes == from.contents()[16..][..len]);
    target.sync().unwrap();
    assert!(to.contents()[16..][..len] == bytes);
    assert!(cache.stats().resident_pages <= 256 && cache.stats().pinned_pages == 0);
    drop((source, target));
    check_empty(&cache);
}

#[test]
fn vectors_and_messages_may_lie_in_a_mapping_with_what_they_lead_to() {
    let Some(cache) = cache(256) else { return };
    let device = Device::of_pages(600);
    let map = absent(&cache, &device);
    let (sender, receiver) = UnixDatagram::pair().unwrap();
    let mut outside = [0_u8; 3];
    // The array of vectors lies in the mapping, too, and so does the message.
    let vectors = place(&map, at(300)).cast::<libc::iovec>();
    let part = |offset: u64, len| libc::iovec { iov_base: place(&map, offset).cast(), iov_len: len };
    let parts =
        [part(at(1) - 2, 4), libc::iovec { iov_base: outside.as_mut_ptr().cast(), iov_len: 3 }, part(at(50), 3)];
    inside(|| {
        // SAFETY: the mapping has room for them, and the test does not access it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(parts.as_ptr(), vectors, parts.len()) };
        for round in 0..3 {
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            sender.send(b"0123456789").unwrap();
            let got = match round {
                // SAFETY: the vectors name memory of the test's own.
                0 => answer(unsafe { libc::readv(receiver.as_raw_fd(), vectors, 3) }),
                _ => {
                    let message = place(&map, at(500) + 64).cast::<libc::msghdr>();
                    // SAFETY: zeros are a valid message; it names memory of the test's own.
                    answer(unsafe {
                        let mut header: libc::msghdr = std::mem::zeroed();
                        (header.msg_iov, header.msg_iovlen) = (vectors, 3);
                        message.write(header);
                        libc::recvmsg(receiver.as_raw_fd(), message, 0)
                    })
                }
            };
            assert_eq!(got.unwrap(), 10);
            let read = |offset, len| (0..len).map(|byte| byte_at(&map, offset + byte)).collect::<Vec<u8>>();
            assert_eq!((read(at(1) - 2, 4), outside, read(at(50), 3)), (b"0123".to_vec(), *b"456", b"789".to_vec()));
            outside.fill(0);
        }
    });
    assert_eq!(cache.stats().pinned_pages, 0);
}

/// A byte of the mapping, by a plain load.
fn byte_at(map: &Mapping, offset: u64) -> u8 {
    // SAFETY: no other thread accesses the mapping.
    unsafe { place(map, offset).read_volatile() }
}

#[test]
fn paths_and_structures_may_lie_in_a_mapping() {
    let Some(cache) = cache(256) else { return };
    let device = Device::of_pages(600);
    let map = absent(&cache, &device);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a file");
    std::fs::write(&path, b"12345").unwrap();
    let text = CString::new(path.to_str().unwrap()).unwrap();
    // Across the end of a page.
    let name = place(&map, at(100) - 4).cast::<libc::c_char>();
    inside(|| {
        // SAFETY: the mapping has room, and no other thread accesses it.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name, text.as_bytes_with_nul().len()) };
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        let stat = place(&map, at(200) - 8).cast::<libc::stat>();
        // SAFETY: the path ends with a zero, and the mapping has room for the structure; it is read after it was written, unaligned as it is.
        let size = unsafe {
            assert_eq!(libc::stat(name, stat), 0, "{}", std::io::Error::last_os_error());
            (*stat).st_size
        };
        assert_eq!(size, 5);
        // SAFETY: as above.
        let file = unsafe { libc::open(name, libc::O_RDONLY) };
        assert!(file >= 0);
        // SAFETY: the descriptor is this test's own.
        let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(file) };
        assert_eq!(file.metadata().unwrap().size(), 5);
        // SAFETY: the mapping has room for ten bytes, and for the time.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_getrandom, place(&map, at(300) - 5), 10_usize, 0), 10);
            let time = place(&map, at(400)).cast::<libc::timespec>();
            assert_eq!(libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, time), 0);
            assert!((*time).tv_sec > 1_700_000_000);
        }
        // With its length behind a pointer into the mapping.
        let socket = UnixDatagram::bind(folder.path().join("socket")).unwrap();
        let (address, len) = (place(&map, at(500) - 30), place(&map, at(520)).cast::<libc::socklen_t>());
        // SAFETY: the mapping has room for an address of any length.
        unsafe {
            len.write(110);
            map.advise(0..at(510), Advice::DontNeed).unwrap();
            assert_eq!(libc::getsockname(socket.as_raw_fd(), address.cast(), len), 0);
            assert_eq!(len.read() as usize, 2 + folder.path().join("socket").as_os_str().len() + 1);
        }
    });
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn threads_wait_and_wake_through_a_word_in_a_mapping() {
    let _watchdog = watchdog("threads_wait_and_wake_through_a_word_in_a_mapping");
    let Some(cache) = cache(256) else { return };
    let device = Device::of_pages(600);
    let map = absent(&cache, &device);
    // By the address, and by the memory.
    [libc::FUTEX_PRIVATE_FLAG, 0].into_iter().for_each(|kind| wait_and_wake(&map, kind));
    assert_eq!(cache.stats().pinned_pages, 0);
}

fn wait_and_wake(map: &Mapping, kind: i32) {
    store(map, at(77), 0);
    let futex = |operation: i32, value: u32| {
        let word = place(map, at(77));
        // SAFETY: the word lies in the mapping.
        answer(unsafe { libc::syscall(libc::SYS_futex, word, operation | kind, value, 0_usize) } as isize)
    };
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            inside(|| {
                while load(map, at(77)) == 0 {
                    let _ = futex(libc::FUTEX_WAIT, 0);
                }
                load(map, at(77))
            })
        });
        thread::sleep(Duration::from_millis(20));
        inside(|| {
            // The waiting call holds the page.
            (100..600).for_each(|page| assert_eq!(load(map, at(page)), 0));
            store(map, at(77), 5);
            futex(libc::FUTEX_WAKE, 1).unwrap();
        });
        assert_eq!(waits.join().unwrap(), 5);
    });
}

#[test]
fn what_a_call_may_not_do_is_an_error() {
    let Some(cache) = cache(256) else { return };
    let device = numbered(16);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[7; 64]).unwrap();
    let read_only = Mapping::open(&cache, device.backing(), MappingOptions::new().access(Access::ReadOnly)).unwrap();
    inside(|| {
        // SAFETY: the kernel refuses to store there.
        let got = unsafe { libc::read(reader.as_raw_fd(), read_only.as_ptr().cast_mut().cast(), 8) };
        is_efault(answer(got));
        // Behind the end of the mapping.
        is_efault(write_from(&read_only, 16 * PAGE, 8, &tempfile::tempfile().unwrap()));
        // Lengths that no memory has.
        let read = |len: usize| {
            // SAFETY: the kernel refuses the length.
            answer(unsafe { libc::read(reader.as_raw_fd(), read_only.as_ptr().cast_mut().cast(), len) })
        };
        is_efault(read(usize::MAX));
        is_efault(read(isize::MAX as usize));
        // SAFETY: as above.
        let sent = unsafe { libc::send(writer.as_raw_fd(), read_only.as_ptr().cast(), usize::MAX, 0) };
        assert!(answer(sent).is_err());
        // SAFETY: the kernel refuses an array that is not there.
        let read = unsafe { libc::syscall(libc::SYS_recvmmsg, 0, usize::MAX - 10, 2, 0, 0_usize) };
        assert!(answer(read as isize).is_err());
        // An array of texts that is not there.
        // SAFETY: the kernel refuses it, and the program goes on.
        let became = unsafe { libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), usize::MAX, 0_usize) };
        is_efault(answer(became as isize));
        // An ioctl that may store, and does not.
        let mut count = 0_i32;
        // SAFETY: the call stores a number.
        assert_eq!(unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &raw mut count) }, 0);
        assert_eq!(count, 64, "the refused read has taken nothing");
    });
    drop(read_only);
    // A page that cannot be read.
    let map = open(&cache, &device);
    device.set_all_faults(READ_EIO);
    inside(|| is_efault(write_from(&map, at(3), 8, &tempfile::tempfile().unwrap())));
    device.set_all_faults(0);
    inside(|| assert_eq!(write_from(&map, at(3), 8, &tempfile::tempfile().unwrap()).unwrap(), 8));
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn pins_give_calls_of_threads_outside_access() {
    let Some(cache) = cache(256) else { return };
    let device = numbered(64);
    let map = open(&cache, &device);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[7; 3 * PAGE as usize]).unwrap();
    assert!(!is_inside());
    {
        let for_loads = map.pin(at(4)..at(8), Access::ReadOnly).unwrap();
        let for_stores = map.pin(at(6)..at(9), Access::ReadWrite).unwrap();
        // SAFETY: pinned, and the kernel checks the rights.
        is_efault(answer(unsafe { libc::read(reader.as_raw_fd(), for_loads.as_ptr().cast_mut().cast(), 8) }));
        // SAFETY: pinned for stores.
        let got = unsafe { libc::read(reader.as_raw_fd(), for_stores.as_mut_ptr().unwrap().cast(), for_stores.len()) };
        assert_eq!(answer(got).unwrap(), 3 * PAGE);
        drop(for_stores);
        assert_eq!(write_from(&map, at(4), 4 * PAGE, &tempfile::tempfile().unwrap()).unwrap(), 4 * PAGE);
    }
    assert!(!is_inside(), "no touch has had the thread enter");
    // Nobody sees the pages now.
    is_efault(write_from(&map, at(4), 8, &tempfile::tempfile().unwrap()));
    let seven = u64::from_ne_bytes([7; 8]);
    (6..9).for_each(|page| assert_eq!(load(&map, at(page)), seven));
    map.sync().unwrap();
    (6..9).for_each(|page| assert_eq!(device.word(at(page)), seven));
}

/// A page has one frame for all addresses, and system calls see it at each, mapped there or not.
#[test]
fn calls_and_pins_take_pointers_into_views() {
    let Some(cache) = cache(256) else { return };
    let device = Device::of_pages(64);
    let file = Addresses::open(&cache, &device, 2);
    let mut to = tempfile::tempfile().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let word = |number: u64| number.to_ne_bytes();
    for round in 1..4 {
        let mut before = Vec::new();
        inside(|| {
            for page in 0..64 {
                let place = file.base(1).wrapping_add(at(page) as usize);
                let here = file.load((page % 3) as usize, at(page));
                before.extend(word(here));
                // SAFETY: the view has the page.
                assert_eq!(answer(unsafe { libc::write(to.as_raw_fd(), place.cast(), 8) }).unwrap(), 8);
                writer.write_all(&word(here + 1000 * round)).unwrap();
                // SAFETY: as above.
                assert_eq!(answer(unsafe { libc::read(reader.as_raw_fd(), place.cast(), 8) }).unwrap(), 8);
                assert_eq!([0, 1, 2].map(|which| file.load(which, at(page))), [here + 1000 * round; 3]);
            }
        });
        let mut written = Vec::new();
        to.rewind().unwrap();
        to.read_to_end(&mut written).unwrap();
        to.set_len(0).unwrap();
        to.rewind().unwrap();
        assert_eq!(written, before);
        file.map.advise(0..file.map.len(), Advice::DontNeed).unwrap();
        (0..64).for_each(|page| assert_eq!(device.word(at(page)) / 1000, (1..=round).sum()));
    }
    assert_eq!(cache.stats().pinned_pages, 0);
    // A thread outside, by a pin.
    assert!(!is_inside());
    writer.write_all(&word(5)).unwrap();
    let pin = file.views[1].pin(at(7)..at(8), Access::ReadWrite).unwrap();
    // SAFETY: pinned for stores.
    let got = unsafe { libc::read(reader.as_raw_fd(), pin.as_mut_ptr().unwrap().cast(), 8) };
    assert_eq!(answer(got).unwrap(), 8);
    assert!(!is_inside());
    drop(pin);
    assert_eq!([0, 1, 2].map(|which| file.load(which, at(7))), [5; 3]);
    // A view that forbids stores forbids them to system calls.
    file.views[0].allow_stores(false).unwrap();
    writer.write_all(&word(6)).unwrap();
    inside(|| {
        let place = file.base(1).wrapping_add(at(7) as usize);
        // SAFETY: the kernel refuses to store there.
        is_efault(answer(unsafe { libc::read(reader.as_raw_fd(), place.cast(), 8) }));
    });
    drop(file);
    check_empty(&cache);
}

/// Pages leave all of their addresses together.
#[test]
fn a_page_at_several_addresses_leaves_with_one_shootdown() {
    let _watchdog = watchdog("a_page_at_several_addresses_leaves_with_one_shootdown");
    const SPANS: u64 = 400;
    let Some(cache) = cache(256) else { return };
    let device = Device::of_pages(SPANS * SPAN);
    for stores in [false, true] {
        let file = Addresses::open(&cache, &device, 3);
        let before = ring0::counts().unwrap().shootdowns;
        inside(|| {
            for span in 0..SPANS {
                for which in 0..file.count() {
                    let offset = at(span * SPAN + span) + 8 * which as u64;
                    if stores { file.store(which, offset, 1) } else { assert_eq!(file.load(which, offset), 0) }
                }
            }
        });
        let shootdowns = ring0::counts().unwrap().shootdowns - before;
        let gone = SPANS - cache.stats().resident_pages;
        // A few more free page tables. A store at an address is found with a shootdown when the page is written.
        let each = if stores { 6 } else { 1 };
        assert!(shootdowns <= gone * each + gone / 2, "{shootdowns} shootdowns for {gone} pages, stores: {stores}");
        drop(file);
        check_empty(&cache);
    }
}

#[test]
fn arguments_that_a_call_does_not_use_make_no_difference() {
    let Some(cache) = cache(256) else { return };
    let device = numbered(3);
    let map = open(&cache, &device);
    device.set_all_faults(READ_EIO);
    inside(|| {
        // Neither the page nor the one behind the mapping can be had.
        for argument in [place(&map, at(1)) as usize, map.as_ptr() as usize + map.len() as usize + 8] {
            // SAFETY: neither call uses the argument.
            let (user, flags) = unsafe {
                (
                    libc::syscall(libc::SYS_getuid, argument, argument),
                    libc::syscall(libc::SYS_fcntl, 0, libc::F_GETFD, argument),
                )
            };
            // SAFETY: has no preconditions.
            assert_eq!((user as u32, flags >= 0), (unsafe { libc::getuid() }, true));
        }
        device.set_all_faults(0);
        // The guess of what an ioctl uses reaches behind the end of the mapping.
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[7; 9]).unwrap();
        let count = place(&map, 3 * PAGE - 4).cast::<i32>();
        // SAFETY: the call stores a number, for which there is room.
        unsafe {
            assert_eq!(
                libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, count),
                0,
                "{}",
                std::io::Error::last_os_error()
            );
            assert_eq!(count.read_volatile(), 9);
        }
    });
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn reads_of_pipes_and_messages_end_as_without() {
    let _watchdog = watchdog("reads_of_pipes_and_messages_end_as_without");
    let Some(cache) = cache(256) else { return };
    let device = Device::of_pages(200);
    let map = absent(&cache, &device);
    // A pipe holds as much as one part of a read is long, and nobody writes more.
    let part = 16 * PAGE;
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![7; part as usize]).unwrap();
    inside(|| assert_eq!(read_into(&map, 0, 3 * part, &reader).unwrap(), part));
    // Messages longer than a part stay whole.
    let (sender, receiver) = UnixDatagram::pair().unwrap();
    inside(|| {
        assert_eq!(write_from(&map, 0, part + 5 * PAGE, &sender).unwrap(), part + 5 * PAGE);
        assert_eq!(write_from(&map, 0, 8, &sender).unwrap(), 8);
        assert_eq!(read_into(&map, at(100), 2 * part, &receiver).unwrap(), part + 5 * PAGE);
        assert_eq!(read_into(&map, at(100), 2 * part, &receiver).unwrap(), 8);
    });
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn calls_without_pointers_bring_nothing_in() {
    let Some(cache) = cache(256) else { return };
    let map = open(&cache, &numbered(16));
    inside(|| {
        let stale = place(&map, at(3)) as usize;
        let calls = [
            (libc::SYS_getuid, stale, stale),
            (libc::SYS_getpgid, 0, stale),
            (libc::SYS_getsid, 0, stale),
            (libc::SYS_umask, 0o22, stale),
            (libc::SYS_alarm, 0, stale),
            (libc::SYS_sched_get_priority_max, 0, stale),
            (libc::SYS_fcntl, 0, libc::F_GETFD as usize),
            (libc::SYS_prctl, libc::PR_GET_DUMPABLE as usize, stale),
            (libc::SYS_ioctl, usize::MAX, libc::FIOCLEX as usize),
        ];
        for (call, first, second) in calls {
            // SAFETY: none of them uses a pointer.
            unsafe { libc::syscall(call, first, second, stale, stale, stale, stale) };
        }
        // SAFETY: a private futex that nobody waits for is an address.
        let woken = unsafe { libc::syscall(libc::SYS_futex, stale, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
        assert_eq!(woken, 0);
    });
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0));
}

#[test]
fn a_buffer_may_begin_before_a_mapping() {
    let Some(cache) = cache(256) else { return };
    let map = open(&cache, &numbered(16));
    let before = map.as_ptr().wrapping_sub(PAGE as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel refuses if there is something already.
    let mapped = unsafe { libc::mmap(before.cast_mut().cast(), PAGE as usize, rights, flags, -1, 0) };
    if mapped.cast_const() != before.cast() {
        return test_depth::skipped("the addresses before the mapping are in use");
    }
    let mut file = tempfile::tempfile().unwrap();
    let start = map.as_ptr().wrapping_sub(8);
    let vector = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: 16 };
    inside(|| {
        // SAFETY: both name memory of the test's own.
        let written = unsafe {
            (libc::write(file.as_raw_fd(), start.cast(), 16), libc::writev(file.as_raw_fd(), &raw const vector, 1))
        };
        assert_eq!(written, (16, 16));
    });
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let one = [[0; 8], 0x5EED_u64.to_ne_bytes()].concat();
    assert_eq!(bytes, [&one[..], &one].concat());
    // SAFETY: the page is the test's own.
    unsafe { libc::munmap(mapped, PAGE as usize) };
}

#[test]
fn what_structures_point_to_may_lie_in_a_mapping() {
    let _watchdog = watchdog("what_structures_point_to_may_lie_in_a_mapping");
    let Some(cache) = cache(256) else { return };
    let map = absent(&cache, &Device::of_pages(600));
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[7; 8]).unwrap();
    inside(|| {
        // A set of descriptors at the end of a page, a set of signals, and the structure that points to that.
        let bits = reader.as_raw_fd() + 1;
        let set = place(&map, at(101) - 8).cast::<u64>();
        let signals = place(&map, at(200)).cast::<u64>();
        let argument = place(&map, at(300)).cast::<[usize; 2]>();
        // SAFETY: the mapping has room for all of them, and no other thread accesses it.
        unsafe {
            set.write(1 << reader.as_raw_fd());
            argument.write([signals as usize, 8]);
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            let ready = libc::syscall(libc::SYS_pselect6, bits, set, 0_usize, 0_usize, 0_usize, argument);
            assert_eq!(answer(ready as isize).unwrap(), 1);
            assert_eq!(set.read(), 1 << reader.as_raw_fd());
        }
        // Semaphores, as many as the set has.
        let values = place(&map, at(400) - 4).cast::<u16>();
        // SAFETY: the mapping has room for the values.
        unsafe {
            let semaphores = libc::semget(libc::IPC_PRIVATE, 4, 0o600);
            let got = libc::semctl(semaphores, 0, libc::GETALL, values);
            libc::semctl(semaphores, 0, libc::IPC_RMID);
            assert_eq!(answer(got as isize).unwrap(), 0);
        }
        // The other side of a copy between processes is this process, too.
        let (from, to) = (place(&map, at(500)).cast::<u64>(), place(&map, at(550)).cast::<u64>());
        let of = |start: *mut u64| libc::iovec { iov_base: start.cast(), iov_len: 8 };
        let (local, remote) = (of(to), of(from));
        // SAFETY: the vectors name words of the mapping.
        unsafe {
            from.write(77);
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            let copied = libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0);
            assert_eq!((answer(copied).unwrap(), to.read()), (8, 77));
        }
    });
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn a_call_that_reaches_beyond_the_mapping_moves_what_lies_in_it() {
    const PAGES: u64 = 7;
    let _watchdog = watchdog("a_call_that_reaches_beyond_the_mapping_moves_what_lies_in_it");
    let Some(cache) = cache(256) else { return };
    let device = numbered(PAGES);
    let map = open(&cache, &device);
    let mut file = tempfile::tempfile().unwrap();
    inside(|| assert_eq!(write_from(&map, at(1), 20 * PAGE, &file).unwrap(), (PAGES - 1) * PAGE));
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == device.contents()[PAGE as usize..]);
    assert_eq!(cache.stats().pinned_pages, 0);
}
