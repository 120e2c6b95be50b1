//! System calls with pointers to managed memory that signals interrupt, or whose threads end.

#![allow(clippy::unwrap_used)]

mod keeper;
#[path = "../support/mod.rs"]
mod support;

use std::arch::asm;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;

use keeper::Keeper;
use vmio_ring0::{is_inside, leave};

const PAGE_BYTES: usize = 4096;

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn install(signal: i32, handler: Handler, flags: i32) {
    // SAFETY: the handlers of this file do what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        assert_eq!(libc::sigaction(signal, &raw const action, ptr::null_mut()), 0);
    }
}

/// The number of a thread that is about to make a call, or 0.
#[derive(Default)]
struct Caller(AtomicI32);

impl Caller {
    /// By the thread itself.
    fn begins(&self) {
        // SAFETY: has no arguments.
        self.0.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }

    /// Returns when the thread waits in a call of that number.
    fn waits_in(&self, number: i64) {
        loop {
            let place = format!("/proc/self/task/{}/syscall", self.0.load(Ordering::SeqCst));
            if std::fs::read_to_string(place).is_ok_and(|call| call.starts_with(&format!("{number} "))) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Sends the thread a signal.
    fn interrupt(&self, signal: i32) {
        let (process, thread) = (std::process::id(), self.0.load(Ordering::SeqCst));
        // SAFETY: sends a signal that is handled.
        assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) }, 0);
    }
}

/// Where `jump_out` goes on, and with which stack pointer.
static LANDING: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn jump_out(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the context is the handler's, whose thread is in `read_or_jump_out`.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = LANDING[0].load(Ordering::SeqCst) as i64;
    registers[libc::REG_RSP as usize] = LANDING[1].load(Ordering::SeqCst) as i64;
}

/// read(2) into an address, which `jump_out` may leave.
fn read_or_jump_out(descriptor: i32, address: usize) {
    // SAFETY: the kernel checks the address. Whoever jumps to the label has the stack pointer and the registers that calls preserve.
    unsafe {
        asm!(
            "lea r12, [rip + 3f]",
            "mov [r13], r12",
            "mov [r13 + 8], rsp",
            "syscall",
            "3:",
            out("r12") _,
            in("r13") LANDING.as_ptr(),
            inout("rax") libc::SYS_read => _,
            in("rdi") descriptor,
            in("rsi") address,
            in("rdx") 8,
            out("rcx") _,
            out("r11") _,
            clobber_abi("C"),
        );
    }
}

#[test]
fn what_a_call_holds_goes_with_its_thread() {
    let Some((machine, keeper)) = Keeper::start() else { return };
    let (reader, _writer) = std::io::pipe().unwrap();
    let caller = Caller::default();
    install(libc::SIGUSR1, jump_out, 0);
    thread::scope(|scope| {
        let ends = scope.spawn(|| {
            machine.enter().unwrap();
            caller.begins();
            read_or_jump_out(reader.as_raw_fd(), keeper.page(3));
        });
        caller.waits_in(libc::SYS_read);
        assert_eq!(keeper.held(), (1, 1));
        caller.interrupt(libc::SIGUSR1);
        ends.join().unwrap();
    });
    assert_eq!(keeper.held(), (0, 1));
}

#[test]
fn a_text_may_lie_in_a_page_that_is_not_mapped_there() {
    let Some((machine, keeper)) = Keeper::start() else { return };
    let pages = keeper.pages();
    let frame = pages.pool().take().unwrap();
    // SAFETY: the frame is ours, and the page's alone.
    unsafe {
        pages.pool().address(frame).copy_from(c"/dev/null".as_ptr().cast(), 10);
        assert!(pages.hold(keeper.page(3), frame).unwrap());
    }
    machine.enter().unwrap();
    // SAFETY: the kernel checks the address.
    let answer = unsafe { libc::access(keeper.page(3) as *const libc::c_char, libc::F_OK) };
    assert!(is_inside());
    leave();
    assert_eq!(answer, 0);
    assert_eq!(keeper.held(), (0, 1));
}

/// How often `touch` has touched its page.
static TOUCHED: AtomicI32 = AtomicI32::new(0);

/// Has the thread enter.
extern "C" fn touch(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: a page of the range that is nobody's.
    unsafe { (Keeper::of_process().page(100) as *const u8).read_volatile() };
    assert!(is_inside());
    TOUCHED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn touch_and_leave(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    touch(0, ptr::null_mut(), ptr::null_mut());
    leave();
}

fn touched(times: i32) {
    while TOUCHED.load(Ordering::SeqCst) < times {
        thread::yield_now();
    }
}

fn receive(socket: &UnixDatagram, address: usize) -> isize {
    // SAFETY: the kernel checks the address.
    unsafe { libc::recv(socket.as_raw_fd(), address as *mut libc::c_void, 16, 0) }
}

/// The bytes at the start of a page.
fn bytes_at<const COUNT: usize>(address: usize) -> [u8; COUNT] {
    // SAFETY: nobody stores there meanwhile.
    unsafe { (address as *const [u8; COUNT]).read_volatile() }
}

#[test]
fn a_call_that_begins_again_has_its_memory_at_once() {
    let Some((machine, keeper)) = Keeper::start() else { return };
    let (receiver, sender) = UnixDatagram::pair().unwrap();
    let caller = Caller::default();
    install(libc::SIGUSR1, touch, libc::SA_RESTART);
    thread::scope(|scope| {
        let receives = scope.spawn(|| {
            machine.enter().unwrap();
            // The monitor must know of handlers that leave.
            install(libc::SIGUSR2, touch_and_leave, libc::SA_RESTART);
            caller.begins();
            let answer = receive(&receiver, keeper.page(3));
            assert!(is_inside());
            (answer, bytes_at(keeper.page(3)))
        });
        for times in 1..=7 {
            caller.waits_in(libc::SYS_recvfrom);
            caller.interrupt(if times % 2 == 0 { libc::SIGUSR1 } else { libc::SIGUSR2 });
            touched(times);
        }
        // The last handler is at its end; the call has not begun again, or it has, with its memory.
        sender.send(b"one").unwrap();
        sender.send(b"two").unwrap();
        assert_eq!(receives.join().unwrap(), (3, *b"one"));
    });
    assert_eq!(keeper.held(), (0, 1));
}

/// The call of `receive_and_touch`.
static INNER: (AtomicI32, AtomicI32) = (AtomicI32::new(-1), AtomicI32::new(0));

/// Enters, and makes a call of its own that waits.
extern "C" fn receive_and_touch(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    touch(0, ptr::null_mut(), ptr::null_mut());
    let address = Keeper::of_process().page(50) as *mut libc::c_void;
    // SAFETY: the kernel checks the address.
    let answer = unsafe { libc::recv(INNER.0.load(Ordering::SeqCst), address, 16, 0) };
    INNER.1.store(answer as i32, Ordering::SeqCst);
}

#[test]
fn a_call_in_a_handler_has_memory_of_its_own() {
    let Some((machine, keeper)) = Keeper::start() else { return };
    let ((receiver, sender), (inner, to_inner)) = (UnixDatagram::pair().unwrap(), UnixDatagram::pair().unwrap());
    INNER.0.store(inner.as_raw_fd(), Ordering::SeqCst);
    let caller = Caller::default();
    install(libc::SIGUSR1, receive_and_touch, libc::SA_RESTART);
    install(libc::SIGUSR2, touch, libc::SA_RESTART);
    thread::scope(|scope| {
        let receives = scope.spawn(|| {
            machine.enter().unwrap();
            caller.begins();
            receive(&receiver, keeper.page(3))
        });
        for (signal, times) in [(libc::SIGUSR1, 1), (libc::SIGUSR2, 2), (libc::SIGUSR2, 3)] {
            caller.waits_in(libc::SYS_recvfrom);
            caller.interrupt(signal);
            touched(times);
        }
        caller.waits_in(libc::SYS_recvfrom);
        to_inner.send(b"inner").unwrap();
        sender.send(b"outer").unwrap();
        assert_eq!(receives.join().unwrap(), 5);
    });
    assert_eq!(INNER.1.load(Ordering::SeqCst), 5);
    assert_eq!(keeper.held(), (0, 1));
}

#[test]
fn a_call_that_fails_is_made_once() {
    let Some((machine, keeper)) = Keeper::start() else { return };
    let (receiver, sender) = UnixDatagram::pair().unwrap();
    let caller = Caller::default();
    install(libc::SIGUSR1, touch, 0);
    thread::scope(|scope| {
        let receives = scope.spawn(|| {
            machine.enter().unwrap();
            caller.begins();
            // The handler has ended the hold of the first, which does not begin again. The next has no memory.
            let answers =
                [receive(&receiver, keeper.page(3)), receive(&receiver, 16), receive(&receiver, keeper.page(3))];
            (answers, bytes_at(keeper.page(3)))
        });
        caller.waits_in(libc::SYS_recvfrom);
        caller.interrupt(libc::SIGUSR1);
        touched(1);
        for message in [b"1", b"2", b"3"] {
            sender.send(message).unwrap();
        }
        assert_eq!(receives.join().unwrap(), ([-1, -1, 1], *b"2"));
    });
}

#[test]
fn a_text_that_is_too_long_is_held_as_far_as_the_kernel_reads_it() {
    let Some((machine, keeper)) = Keeper::start() else { return };
    machine.enter().unwrap();
    // SAFETY: pages of the range that are nobody's.
    unsafe { ptr::write_bytes(keeper.page(3) as *mut u8, b'x', 200 * PAGE_BYTES) };
    // SAFETY: the kernel checks the address.
    let answer = unsafe { libc::access((keeper.page(4) - 8) as *const libc::c_char, libc::F_OK) };
    let error = std::io::Error::last_os_error().raw_os_error();
    leave();
    assert_eq!((answer, error), (-1, Some(libc::ENAMETOOLONG)));
    assert_eq!(keeper.held(), (0, 2));
}

#[test]
fn arguments_of_a_program_may_share_pages() {
    const COUNT: usize = 1500;
    let Some((machine, keeper)) = Keeper::start() else { return };
    // No format of a program that the kernel knows.
    let mut program = tempfile::NamedTempFile::new().unwrap();
    program.write_all(&[1; 512]).unwrap();
    program.as_file().set_permissions(std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = CString::new(program.path().as_os_str().as_bytes()).unwrap();
    let _program = program.into_temp_path();
    machine.enter().unwrap();
    let (texts, place) = (keeper.page(3), keeper.page(8) as *mut usize);
    // SAFETY: pages of the range that are nobody's; the array ends with a zero.
    unsafe {
        (0..COUNT).for_each(|index| place.add(index).write(texts + index));
        ptr::write_bytes(texts as *mut u8, b'x', COUNT);
        // From the middle of the range on: a text of 128 KiB.
        ptr::write_bytes(keeper.page(100) as *mut u8, b'y', (128 << 10) - 1);
        place.add(COUNT).write(keeper.page(100));
    }
    let execute = || {
        // SAFETY: the kernel checks the addresses, and refuses the program.
        unsafe { libc::execve(path.as_ptr(), place.cast(), ptr::null()) };
        std::io::Error::last_os_error().raw_os_error()
    };
    let first = execute();
    // SAFETY: as above. One byte more.
    unsafe { ((keeper.page(100) + (128 << 10) - 1) as *mut u8).write(b'y') };
    let second = execute();
    assert!(is_inside());
    leave();
    assert_eq!((first, second), (Some(libc::ENOEXEC), Some(libc::E2BIG)));
    let (held, most) = keeper.held();
    assert_eq!(held, 0);
    assert!(most <= 38, "{most} pages");
}

#[test]
fn vectors_of_any_length_are_read_and_written_as_a_whole() {
    const LEN: usize = 1 << 20;
    let Some((machine, keeper)) = Keeper::start() else { return };
    let file = tempfile::tempfile().unwrap();
    machine.enter().unwrap();
    let (source, target) = (keeper.page(3) + 8, keeper.page(500) + 16);
    let pattern = |index: usize| (index * 7 / 64) as u8;
    // SAFETY: pages of the range that are nobody's.
    unsafe { (0..LEN).for_each(|index| ((source + index) as *mut u8).write(pattern(index))) };
    let mut small = [7_u8; 100];
    let element = |start: usize, len| libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len };
    let vectors = |start, small: &mut [u8; 100]| {
        let small = small.as_mut_ptr().expose_provenance();
        [element(small, 60), element(start, LEN), element(16, 0), element(small + 60, 40)]
    };
    let (number, whole) = (file.as_raw_fd(), (LEN + 100) as isize);
    let far = 3 * whole as i64 + 8;
    let of_source = vectors(source, &mut small);
    // SAFETY: the kernel checks the addresses.
    unsafe {
        assert_eq!(libc::writev(number, of_source.as_ptr(), 4), whole);
        assert_eq!(libc::pwritev(number, of_source.as_ptr(), 4, far), whole);
        assert_eq!(libc::pwritev2(number, of_source.as_ptr(), 4, -1, 0), whole);
    }
    let mut found = [0_u8; 100];
    let of_target = vectors(target, &mut found);
    // SAFETY: as above.
    let check = |read: &dyn Fn() -> isize, expected: isize| unsafe {
        ptr::write_bytes(target as *mut u8, 0, LEN);
        assert_eq!(read(), expected);
        let differs = (0..LEN).find(|index| ((target + index) as *const u8).read() != pattern(*index));
        assert_eq!(differs, None);
    };
    // SAFETY: as above.
    unsafe {
        check(&|| libc::preadv(number, of_target.as_ptr(), 4, far), whole);
        libc::lseek(number, whole as i64, libc::SEEK_SET);
        check(&|| libc::readv(number, of_target.as_ptr(), 4), whole);
        check(&|| libc::preadv2(number, of_target.as_ptr(), 4, whole as i64, 0), whole);
        assert_eq!(found, [7; 100]);
        // The end of the file ends the read.
        let end = libc::lseek(number, 0, libc::SEEK_END);
        assert_eq!(libc::preadv(number, of_target.as_ptr(), 4, end - 70), 70);
        assert_eq!(libc::readv(number, of_target.as_ptr(), 4), 0);
        assert_eq!(libc::readv(number, of_target.as_ptr(), -1), -1);
        assert_eq!(libc::writev(number, ptr::null(), 0), 0);
    }
    assert!(is_inside());
    leave();
    assert_eq!(keeper.held().0, 0);
}

#[test]
fn the_base_of_a_segment_is_told_anywhere() {
    const ARCH_GET_FS: i32 = 0x1003;
    let Some((machine, keeper)) = Keeper::start() else { return };
    let mut expected = 0_u64;
    machine.enter().unwrap();
    // SAFETY: the kernel stores a word where it is told, in memory of the test's.
    let (answer, found) = unsafe {
        assert_eq!(libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut expected), 0);
        let answer = libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, keeper.page(3));
        (answer, (keeper.page(3) as *const u64).read())
    };
    leave();
    assert_eq!((answer, found), (0, expected));
}
