use super::*;
use crate::calls::numbers;
use Use::{Any, Read, Store};

fn call(number: i64, arguments: [u64; 6]) -> Call {
    Call { number: number as u64, arguments }
}

fn memory_of(number: i64, arguments: [u64; 6]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let whole = call(number, arguments).memory(&mut |piece| {
        pieces.push(piece);
        ControlFlow::Continue(())
    });
    assert!(whole.is_continue());
    pieces
}

fn bytes(start: usize, len: usize, usage: Use) -> Piece {
    Piece { start, len: Len::Bytes(len), usage }
}

fn text(start: usize) -> Piece {
    Piece::text(start, 4096)
}

#[test]
fn every_call_of_linux_has_a_row() {
    let unknown: Vec<i64> = numbers::ALL
        .into_iter()
        .flatten()
        .filter(|number| table::pointers_of(&call(*number, [0; 6])).is_none())
        .collect();
    assert_eq!(unknown, [], "calls without a row");
    // Between and behind them there are none: what Linux will have there is a guess.
    for number in [337, 423, 470, 511, 3000] {
        assert!(table::pointers_of(&call(number, [0; 6])).is_none());
        assert_eq!(memory_of(number, [0x1000, 0, 0, 0, 0, 0])[0], bytes(0x1000, UNKNOWN_BYTES, Any));
    }
}

#[test]
fn calls_without_pointers_use_no_memory() {
    let calls = [
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getpgid,
        libc::SYS_getsid,
        libc::SYS_setsid,
        libc::SYS_fchdir,
        libc::SYS_fchmod,
        libc::SYS_fchown,
        libc::SYS_umask,
        libc::SYS_alarm,
        libc::SYS_membarrier,
        libc::SYS_timerfd_create,
        libc::SYS_close_range,
        libc::SYS_syncfs,
        libc::SYS_sched_get_priority_max,
        libc::SYS_sched_get_priority_min,
        libc::SYS_getppid,
        libc::SYS_madvise,
        libc::SYS_lookup_dcookie,
    ];
    for number in calls {
        assert_eq!(memory_of(number, [0x1000; 6]), [], "{number}");
        assert!(!call(number, [0x1000; 6]).has_nested_pointers());
    }
}

#[test]
fn arguments_say_where_memory_is() {
    assert_eq!(memory_of(libc::SYS_read, [3, 0x1000, 77, 0, 0, 0]), [bytes(0x1000, 77, Store)]);
    assert_eq!(memory_of(libc::SYS_openat, [3, 0x1000, 77, 0, 0, 0]), [text(0x1000)]);
    assert_eq!(memory_of(libc::SYS_fanotify_mark, [3, 1, 2, 3, 0x1000, 0]), [text(0x1000)]);
    let pages = [bytes(0x1000, 24, Read), bytes(0x2000, 12, Read), bytes(0x3000, 12, Store)];
    assert_eq!(memory_of(libc::SYS_move_pages, [0, 3, 0x1000, 0x2000, 0x3000, 0]), pages);
    assert_eq!(memory_of(libc::SYS_process_madvise, [3, 0x1000, 2, 4, 0, 0]), [bytes(0x1000, 32, Read)]);
    // Sets of 65 nodes and 65 descriptors.
    assert_eq!(memory_of(libc::SYS_set_mempolicy, [2, 0x1000, 66, 0, 0, 0]), [bytes(0x1000, 16, Read)]);
    assert_eq!(memory_of(libc::SYS_set_mempolicy, [2, 0x1000, 65, 0, 0, 0]), [bytes(0x1000, 8, Read)]);
    let sets = memory_of(libc::SYS_select, [65, 0x1000, 0x2000, 0x3000, 0x4000, 0]);
    let expected = [(0x1000, 16), (0x2000, 16), (0x3000, 16), (0x4000, 16)].map(|(start, len)| bytes(start, len, Any));
    assert_eq!(sets, expected);
    // As the kernel sees an int.
    for (number, arguments) in [
        (libc::SYS_epoll_wait, [3, 0x1000, u64::MAX, 0, 0, 0]),
        (libc::SYS_getgroups, [0xffff_ffff, 0x1000, 0, 0, 0, 0]),
        (libc::SYS_bind, [3, 0x1000, 1 << 31, 0, 0, 0]),
    ] {
        assert!(memory_of(number, arguments).iter().all(|piece| piece.addresses().is_empty()), "{number}");
    }
    assert_eq!(memory_of(libc::SYS_poll, [0x1000, 7 << 32 | 2, 0, 0, 0, 0]), [bytes(0x1000, 16, Any)]);
}

#[test]
fn operations_have_pointers_of_their_own() {
    const PRIVATE: u64 = libc::FUTEX_PRIVATE_FLAG as u64;
    let futex = |operation: i32| memory_of(libc::SYS_futex, [0x1000, operation as u64 | PRIVATE, 1, 0x2000, 0x3000, 0]);
    assert_eq!(futex(libc::FUTEX_WAIT), [bytes(0x1000, 4, Read), bytes(0x2000, 16, Read)]);
    assert_eq!(futex(libc::FUTEX_WAKE), []);
    assert_eq!(futex(libc::FUTEX_CMP_REQUEUE), [bytes(0x1000, 4, Read), bytes(0x3000, 4, Read)]);
    assert_eq!(futex(libc::FUTEX_UNLOCK_PI), [bytes(0x1000, 4, Any)]);
    // The word of a shared one has to be there.
    assert_eq!(memory_of(libc::SYS_futex, [0x1000, 1, 1, 0, 0, 0]), [bytes(0x1000, 4, Read)]);
    let fcntl = |command: i32| memory_of(libc::SYS_fcntl, [3, command as u64, 0x1000, 0, 0, 0]);
    assert_eq!(fcntl(libc::F_GETFD), []);
    assert_eq!(fcntl(libc::F_SETLK), [bytes(0x1000, 32, Read)]);
    assert_eq!(fcntl(libc::F_GETLK), [bytes(0x1000, 32, Any)]);
    let prctl = |operation: i32| memory_of(libc::SYS_prctl, [operation as u64, 0x1000, 0x2000, 0, 0, 0]);
    assert_eq!(prctl(libc::PR_SET_NAME), [text(0x1000)]);
    assert_eq!(prctl(libc::PR_SET_PDEATHSIG), []);
    assert_eq!(memory_of(libc::SYS_arch_prctl, [0x1002, 0x1000, 0, 0, 0, 0]), []);
    assert_eq!(memory_of(libc::SYS_arch_prctl, [0x1003, 0x1000, 0, 0, 0, 0]), [bytes(0x1000, 8, Store)]);
    assert_eq!(memory_of(libc::SYS_epoll_ctl, [3, 2, 4, 0x1000, 0, 0]), []);
    assert_eq!(memory_of(libc::SYS_epoll_ctl, [3, 1, 4, 0x1000, 0, 0]), [bytes(0x1000, 12, Read)]);
    assert_eq!(memory_of(libc::SYS_semctl, [3, 0, 16, 0x1000, 0, 0]), []);
    assert_eq!(memory_of(libc::SYS_shmctl, [3, libc::IPC_RMID as u64, 0x1000, 0, 0, 0]), []);
    // One without a length in its number, one with it, and those that are known.
    let ioctl = |request: u64| memory_of(libc::SYS_ioctl, [3, request, 0x1000, 0, 0, 0]);
    assert_eq!(ioctl(0x5401), [bytes(0x1000, UNKNOWN_BYTES, Any)]);
    assert_eq!(ioctl(0x8008_6601), [bytes(0x1000, 8, Any)]);
    assert_eq!(ioctl(libc::FIONREAD), [bytes(0x1000, 4, Store)]);
    assert_eq!(ioctl(libc::FIOCLEX), []);
}

#[test]
fn vectors_and_messages_lead_on() {
    let vectors = [[0x1000_usize, 5], [0x2000, 6]];
    let place = vectors.as_ptr() as usize;
    let of_vectors = [bytes(place, 32, Read), bytes(0x1000, 5, Store), bytes(0x2000, 6, Store)];
    assert_eq!(memory_of(libc::SYS_readv, [3, place as u64, 2, 0, 0, 0]), of_vectors);
    // SAFETY: zeros are a valid message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = (0x3000 as *mut _, 16);
    (message.msg_iov, message.msg_iovlen) = (place as *mut _, 2);
    (message.msg_control, message.msg_controllen) = (0x4000 as *mut _, 64);
    let at = &raw const message as usize;
    let mut whole = vec![bytes(at, 56, Any), bytes(0x3000, 16, Store)];
    whole.extend(of_vectors);
    whole.push(bytes(0x4000, 64, Store));
    assert_eq!(memory_of(libc::SYS_recvmsg, [3, at as u64, 0, 0, 0, 0]), whole);
    // Where there is nothing, the kernel says so itself.
    assert_eq!(memory_of(libc::SYS_readv, [3, 0x10, 2, 0, 0, 0]), [bytes(0x10, 32, Read)]);
    // More vectors than are looked up at a time.
    let many: Vec<[usize; 2]> = (1..=100).map(|index| [index << 12, index]).collect();
    let pieces = memory_of(libc::SYS_writev, [3, many.as_ptr() as u64, 100, 0, 0, 0]);
    assert_eq!(pieces[1..], many.iter().map(|[start, len]| bytes(*start, *len, Read)).collect::<Vec<_>>());
}

#[test]
fn the_vectors_of_another_process_are_not_ours() {
    let vector = [0x1000_usize, 5];
    let at = vector.as_ptr() as usize;
    let of = |process: u32| memory_of(libc::SYS_process_vm_readv, [process.into(), 0, 0, at as u64, 1, 0]);
    assert_eq!(of(std::process::id())[1..], [bytes(at, 16, Read), bytes(0x1000, 5, Read)]);
    assert_eq!(of(1)[1..], [bytes(at, 16, Read)]);
}

#[test]
fn structures_have_pointers_and_tails() {
    let signals = [0x1000_usize, 8];
    let at = signals.as_ptr() as usize;
    let pieces = memory_of(libc::SYS_pselect6, [0, 0, 0, 0, 0, at as u64]);
    assert_eq!(pieces[4..], [bytes(at, 16, Read), bytes(0x1000, 8, Read)]);
    let pieces = memory_of(numbers::SYS_io_pgetevents, [0, 0, 2, 0x2000, 0, at as u64]);
    assert_eq!(pieces, [bytes(0x2000, 64, Store), bytes(0, 16, Read), bytes(at, 16, Read), bytes(0x1000, 8, Read)]);
    let awaited = [7_usize, 0x1000, 2, 8, 0x2000, 2];
    let at = awaited.as_ptr() as usize;
    let pieces = memory_of(libc::SYS_futex_waitv, [at as u64, 2, 0, 0, 0, 0]);
    assert_eq!(pieces[..3], [bytes(at, 48, Read), bytes(0x1000, 4, Read), bytes(0x2000, 4, Read)]);
    // Three extents behind the head, and two targets.
    let mut extents = [0_u32; 8];
    extents[6] = 3;
    let at = extents.as_ptr() as usize;
    let pieces = memory_of(libc::SYS_ioctl, [3, 0xc020_660b, at as u64, 0, 0, 0]);
    assert_eq!(pieces, [bytes(at, 32, Any), bytes(at, 32 + 3 * 56, Any)]);
    let mut targets = [0_u16; 12];
    targets[8] = 2;
    let at = targets.as_ptr() as usize;
    let pieces = memory_of(libc::SYS_ioctl, [3, 0xc018_9436, at as u64, 0, 0, 0]);
    assert_eq!(pieces, [bytes(at, 24, Any), bytes(at, 24 + 2 * 32, Any)]);
}

#[test]
fn options_of_sockets_and_notices_lead_on() {
    let filter = [2_usize, 0x1000];
    let at = &raw const filter as usize;
    let option =
        |level: i32, name: i32| memory_of(libc::SYS_setsockopt, [3, level as u64, name as u64, at as u64, 16, 0]);
    for name in [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_REUSEPORT_CBPF] {
        assert_eq!(option(libc::SOL_SOCKET, name), [bytes(at, 16, Read), bytes(0x1000, 16, Read)]);
    }
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_RCVTIMEO), [bytes(at, 16, Read)]);
    assert_eq!(option(libc::SOL_IP, libc::SO_ATTACH_FILTER), [bytes(at, 16, Read)]);
    let mut notice = [0_usize; 8];
    notice[0] = 0x1000;
    let at = notice.as_ptr() as usize;
    let pieces = memory_of(libc::SYS_mq_notify, [3, at as u64, 0, 0, 0, 0]);
    assert_eq!(pieces, [bytes(at, 64, Read), bytes(0x1000, 32, Read)]);
}

#[test]
fn what_a_mount_takes_is_no_text() {
    let pieces = memory_of(libc::SYS_mount, [0x1000, 0x2000, 0x3000, 0, 0x4000, 0]);
    assert_eq!(pieces, [text(0x1000), text(0x2000), text(0x3000), bytes(0x4000, 4096, Read)]);
}

#[test]
fn a_set_of_semaphores_is_as_long_as_the_kernel_says() {
    // SAFETY: none of these calls takes a pointer.
    unsafe {
        let set = libc::semget(libc::IPC_PRIVATE, 5, 0o600);
        assert!(set >= 0);
        let pieces = memory_of(libc::SYS_semctl, [set as u64, 0, libc::GETALL as u64, 0x1000, 0, 0]);
        libc::semctl(set, 0, libc::IPC_RMID);
        assert_eq!(pieces, [bytes(0x1000, 10, Store)]);
    }
}

#[test]
fn a_piece_may_reach_where_no_argument_points() {
    let read = |start, len| call(libc::SYS_read, [3, start, len, 0, 0, 0]).has_nested_pointers();
    assert!(!read(0x1000, 4096));
    assert!(read(0x1001, 4096));
    assert!(call(libc::SYS_readv, [3, 0x1000, 1, 0, 0, 0]).has_nested_pointers());
}

#[test]
fn lengths_and_texts_are_looked_up() {
    let len = 28_u32;
    let at = &raw const len as usize;
    let pieces = memory_of(libc::SYS_getsockname, [3, 0x1000, at as u64, 0, 0, 0]);
    assert_eq!(pieces, [bytes(at, 4, Any), bytes(0x1000, 28, Store)]);
    let texts = [0x1000_usize, 0x2000, 0];
    let pieces = memory_of(libc::SYS_execve, [0x5000, texts.as_ptr() as u64, 0, 0, 0, 0]);
    let found: Vec<_> = pieces.into_iter().filter(|piece| matches!(piece.len, Len::Text(_))).collect();
    let argument = |start| Piece::text(start, 128 << 10);
    assert_eq!(found, [text(0x5000), argument(0x1000), argument(0x2000)]);
}
