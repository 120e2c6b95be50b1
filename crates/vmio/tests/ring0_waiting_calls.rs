//! The ring 0 engine: system calls that wait with pointers into a mapping, and threads that close, drop or shorten it meanwhile.

use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use vmio::backing::MemoryBacking;
use vmio::{Access, Advice, Error, Mapping, MappingOptions};

use crate::ring0::{answer, inside, place};
use crate::support::reader_thread::{is_efault, numbered, open, write_from};
use crate::support::ring0::cache;
use crate::support::views::Addresses;
use crate::support::{PAGE, at, check_empty, load, watchdog};

/// A thread in a call that waits.
struct Waiting(JoinHandle<std::io::Result<u64>>);

impl Waiting {
    /// Has a thread make a call in the machine; returns when it waits there.
    fn in_call(number: i64, call: impl FnOnce() -> isize + Send + 'static) -> Waiting {
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            // SAFETY: has no arguments.
            tell.send(unsafe { libc::gettid() }).unwrap();
            inside(|| answer(call()))
        });
        let place = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
        let waits = || std::fs::read_to_string(&place).unwrap().starts_with(&format!("{number} "));
        while !waits() {
            assert!(!thread.is_finished(), "the call has ended: {:?}", thread.join());
            thread::yield_now();
        }
        Waiting(thread)
    }

    /// A read of eight bytes of a pipe.
    fn in_read(pipe: &PipeReader, target: *mut u8) -> Waiting {
        let (pipe, target) = (pipe.as_raw_fd(), target as usize);
        // SAFETY: the kernel checks the address.
        Waiting::in_call(libc::SYS_read, move || unsafe { libc::read(pipe, target as *mut libc::c_void, 8) })
    }

    fn end(self) -> std::io::Result<u64> {
        self.0.join().unwrap()
    }
}

fn pipe() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

#[test]
fn a_mapping_closes_while_a_call_waits_with_its_memory() {
    let _watchdog = watchdog("a_mapping_closes_while_a_call_waits_with_its_memory");
    let Some(cache) = cache(256) else { return };
    let device = numbered(600);
    let map = open(&cache, &device);
    let base = map.as_ptr();
    let ((first, mut to_first), (second, mut to_second)) = (pipe(), pipe());
    let of_first = Waiting::in_read(&first, place(&map, at(3)));
    assert_eq!(cache.stats().pinned_pages, 1);
    drop(map);
    check_empty(&cache);
    assert_eq!(device.word(at(3)), (at(3) / 8) ^ 0x5EED);
    // Most likely at the same addresses. It uses every frame, and has a call of its own.
    let other = open(&cache, &device);
    println!("the other mapping is {} bytes away", (other.as_ptr() as isize - base as isize).abs());
    inside(|| (0..600).for_each(|page| assert_eq!(load(&other, at(page)), (at(page) / 8) ^ 0x5EED)));
    let of_second = Waiting::in_read(&second, place(&other, at(5)));
    to_first.write_all(&[7; 8]).unwrap();
    is_efault(of_first.end());
    assert_eq!(cache.stats().pinned_pages, 1, "the other call has its page");
    to_second.write_all(&[8; 8]).unwrap();
    assert_eq!(of_second.end().unwrap(), 8);
    inside(|| {
        assert_eq!(load(&other, at(5)), u64::from_ne_bytes([8; 8]));
        (0..600).filter(|page| *page != 5).for_each(|page| assert_eq!(load(&other, at(page)), (at(page) / 8) ^ 0x5EED));
    });
    drop(other);
    check_empty(&cache);
    assert_eq!(device.word(at(5)), u64::from_ne_bytes([8; 8]));
}

#[test]
fn what_a_call_has_stored_before_the_close_is_written() {
    let _watchdog = watchdog("what_a_call_has_stored_before_the_close_is_written");
    let Some(cache) = cache(256) else { return };
    let device = numbered(16);
    let map = open(&cache, &device);
    let (receiver, mut sender) = UnixStream::pair().unwrap();
    sender.write_all(&[7; 8]).unwrap();
    let (socket, target) = (receiver.as_raw_fd(), place(&map, at(3)) as usize);
    let receives = Waiting::in_call(libc::SYS_recvfrom, move || {
        // SAFETY: the kernel checks the address.
        unsafe { libc::recv(socket, target as *mut libc::c_void, 16, libc::MSG_WAITALL) }
    });
    // It has the first half when that is no longer in the socket.
    let mut left = 1_i32;
    while left > 0 {
        // SAFETY: the call stores a number.
        assert_eq!(unsafe { libc::ioctl(receiver.as_raw_fd(), libc::FIONREAD, &raw mut left) }, 0);
        thread::yield_now();
    }
    map.close().unwrap();
    assert_eq!(device.word(at(3)), u64::from_ne_bytes([7; 8]));
    sender.write_all(&[8; 8]).unwrap();
    // The second half has nowhere to go.
    let received = receives.end();
    assert!(matches!(&received, Ok(8)) || received.as_ref().is_err(), "{received:?}");
    assert_eq!(device.word(at(3) + 8), ((at(3) + 8) / 8) ^ 0x5EED);
    check_empty(&cache);
}

#[test]
fn a_mapping_that_many_calls_use_closes() {
    const CALLS: u64 = 12;
    let _watchdog = watchdog("a_mapping_that_many_calls_use_closes");
    let Some(cache) = cache(256) else { return };
    let device = numbered(64);
    let map = open(&cache, &device);
    let (reader, mut writer) = pipe();
    // Two of each page.
    let calls: Vec<_> = (0..CALLS).map(|call| Waiting::in_read(&reader, place(&map, at(call / 2)))).collect();
    assert_eq!(cache.stats().pinned_pages, CALLS);
    drop(map);
    check_empty(&cache);
    writer.write_all(&[7; 8 * CALLS as usize]).unwrap();
    calls.into_iter().for_each(|call| is_efault(call.end()));
    check_empty(&cache);
    // All of the frames are there again.
    let map = open(&cache, &numbered(600));
    inside(|| {
        for _ in 0..2 {
            (0..600).for_each(|page| assert_eq!(load(&map, at(page)), (at(page) / 8) ^ 0x5EED));
        }
    });
}

#[test]
fn a_view_goes_while_a_call_waits_with_its_memory() {
    let _watchdog = watchdog("a_view_goes_while_a_call_waits_with_its_memory");
    let Some(cache) = cache(256) else { return };
    let device = numbered(64);
    let mut file = Addresses::open(&cache, &device, 1);
    let at_view = |file: &Addresses, page| file.base(1).wrapping_add(at(page) as usize);
    let ((first, mut to_first), (second, mut to_second)) = (pipe(), pipe());
    let of_first = Waiting::in_read(&first, at_view(&file, 3));
    assert_eq!(cache.stats().pinned_pages, 1);
    drop(file.views.pop());
    assert_eq!(cache.stats().pinned_pages, 0);
    // Most likely at the same addresses. It has the same page there, and a call of its own.
    file.views.push(file.map.view().unwrap());
    inside(|| (0..64).for_each(|page| assert_eq!(file.load(1, at(page)), (at(page) / 8) ^ 0x5EED)));
    let of_second = Waiting::in_read(&second, at_view(&file, 5));
    to_first.write_all(&[7; 8]).unwrap();
    is_efault(of_first.end());
    assert_eq!(cache.stats().pinned_pages, 1, "the other call has its page");
    to_second.write_all(&[8; 8]).unwrap();
    assert_eq!(of_second.end().unwrap(), 8);
    inside(|| {
        assert_eq!([3, 5].map(|page| file.load(0, at(page))), [(at(3) / 8) ^ 0x5EED, u64::from_ne_bytes([8; 8])])
    });
    drop(file);
    check_empty(&cache);
    assert_eq!(device.word(at(5)), u64::from_ne_bytes([8; 8]));
}

#[test]
fn calls_race_with_a_view_that_comes_and_goes() {
    let _watchdog = watchdog("calls_race_with_a_view_that_comes_and_goes");
    let Some(cache) = cache(256) else { return };
    let device = numbered(600);
    let file = Addresses::open(&cache, &device, 0);
    let view = || {
        let view = file.map.view().unwrap();
        let start = view.as_ptr() as usize + 8;
        (view, start)
    };
    race(view, drop);
    drop(file);
    check_empty(&cache);
}

#[test]
fn a_call_that_waits_holds_up_neither_advice_nor_truncation() {
    let _watchdog = watchdog("a_call_that_waits_holds_up_neither_advice_nor_truncation");
    let Some(cache) = cache(256) else { return };
    let map = Mapping::open(&cache, MemoryBacking::new(16 * PAGE).unwrap(), MappingOptions::new()).unwrap();
    let (reader, mut writer) = pipe();
    inside(|| (0..16).for_each(|page| assert_eq!(load(&map, at(page)), 0)));
    let reads = Waiting::in_read(&reader, place(&map, at(3)));
    for advice in [Advice::DontNeed, Advice::Invalidate, Advice::Free] {
        map.advise(0..map.len(), advice).unwrap();
        assert_eq!((0..16).filter(|page| map.is_resident(at(*page))).collect::<Vec<_>>(), [3], "{advice:?}");
    }
    // As with a pin of the program's: a shorter mapping would have no place for what the call stores.
    assert!(matches!(map.set_len(2 * PAGE), Err(Error::Resize { .. })));
    map.set_len(10 * PAGE).unwrap();
    map.sync().unwrap();
    writer.write_all(&[7; 8]).unwrap();
    assert_eq!(reads.end().unwrap(), 8);
    inside(|| assert_eq!(load(&map, at(3)), u64::from_ne_bytes([7; 8])));
    map.set_len(2 * PAGE).unwrap();
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn pins_and_calls_hold_a_page_together() {
    let _watchdog = watchdog("pins_and_calls_hold_a_page_together");
    let Some(cache) = cache(256) else { return };
    let device = numbered(16);
    let map = open(&cache, &device);
    let (reader, mut writer) = pipe();
    let file = tempfile::tempfile().unwrap();
    let pin = map.pin(at(3)..at(4), Access::ReadOnly).unwrap();
    let reads = Waiting::in_read(&reader, place(&map, at(3)));
    writer.write_all(&[7; 8]).unwrap();
    assert_eq!(reads.end().unwrap(), 8);
    // The pin's right is all that is left to threads outside.
    writer.write_all(&[8; 8]).unwrap();
    let target = place(&map, at(3));
    // SAFETY: the kernel checks the rights.
    is_efault(answer(unsafe { libc::read(reader.as_raw_fd(), target.cast(), 8) }));
    assert_eq!(write_from(&map, at(3), 8, &file).unwrap(), 8);
    drop(pin);
    is_efault(write_from(&map, at(3), 8, &file));
    map.sync().unwrap();
    assert_eq!(device.word(at(3)), u64::from_ne_bytes([7; 8]));
}

#[test]
fn calls_race_with_a_mapping_that_comes_and_goes() {
    let _watchdog = watchdog("calls_race_with_a_mapping_that_comes_and_goes");
    let Some(cache) = cache(256) else { return };
    let device = numbered(64);
    let mapping = || {
        let map = open(&cache, &device);
        let start = map.as_ptr() as usize + 8;
        (map, start)
    };
    race(mapping, |map| map.close().unwrap());
    check_empty(&cache);
}

/// Has two threads make calls with the memory of something that comes and goes; `come` also says where its memory is.
fn race<T>(come: impl Fn() -> (T, usize), go: impl Fn(T)) {
    const LEN: u64 = 5 * PAGE;
    let (place, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (written, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let file = tempfile::tempfile().unwrap();
                inside(|| {
                    while !ends.load(Ordering::Acquire) {
                        let start = place.load(Ordering::Acquire) as *const libc::c_void;
                        // SAFETY: the kernel checks the addresses, and stores nothing there.
                        let got = unsafe { libc::pwrite(file.as_raw_fd(), start, LEN as usize, 0) };
                        match answer(got) {
                            Ok(_) => written.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
                                refused.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                    }
                });
            });
        }
        let mut rounds = 0;
        while rounds < test_depth::pick(20, 1000) || written.load(Ordering::Relaxed) == 0 {
            let (what, start) = come();
            place.store(start, Ordering::Release);
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            go(what);
            rounds += 1;
        }
        ends.store(true, Ordering::Release);
    });
    println!("{} written, {} refused", written.into_inner(), refused.into_inner());
}

#[test]
fn calls_that_wait_leave_memory_to_others() {
    const CALLS: usize = 12;
    const LEN: usize = 64 * PAGE as usize;
    let _watchdog = watchdog("calls_that_wait_leave_memory_to_others");
    let Some(cache) = cache(256) else { return };
    let device = numbered(CALLS as u64 * 64);
    let map = open(&cache, &device);
    let pipes: Vec<_> = (0..CALLS).map(|_| pipe()).collect();
    let reads: Vec<_> = (0..CALLS)
        .map(|call| {
            let (pipe, target) = (pipes[call].0.as_raw_fd(), place(&map, at(call as u64 * 64)) as usize);
            // SAFETY: the kernel checks the addresses.
            Waiting::in_call(libc::SYS_read, move || unsafe { libc::read(pipe, target as *mut libc::c_void, LEN) })
        })
        .collect();
    let file = tempfile::tempfile().unwrap();
    // Not at the start of a page.
    inside(|| assert_eq!(write_from(&map, at(700) + 8, PAGE, &file).unwrap(), PAGE));
    for (read, (_, mut writer)) in reads.into_iter().zip(pipes) {
        writer.write_all(&[7; 100]).unwrap();
        assert_eq!(read.end().unwrap(), 100);
    }
    assert_eq!(cache.stats().pinned_pages, 0);
}

#[test]
fn a_message_that_has_no_place_stays_where_it_is() {
    let _watchdog = watchdog("a_message_that_has_no_place_stays_where_it_is");
    let Some(cache) = cache(256) else { return };
    let map = open(&cache, &numbered(600));
    let (receiver, sender) = UnixDatagram::pair().unwrap();
    sender.send(b"message").unwrap();
    // All that may be pinned, with the page tables.
    let pins = map.pin(0..at(190), Access::ReadOnly).unwrap();
    let receive = || {
        let target = place(&map, at(300)).cast();
        // SAFETY: the kernel checks the address.
        inside(|| answer(unsafe { libc::recv(receiver.as_raw_fd(), target, 16, 0) }))
    };
    assert_eq!(receive().unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    drop(pins);
    assert_eq!(receive().unwrap(), 7);
}
