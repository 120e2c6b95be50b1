//! Copies to and from persistent memory, and write-back of stores to it from the processor's caches.
//!
//! A load or store there can fail: at a bad cell, behind the end of a file that was cut, or in a hole for which there
//! is no space. It is then a SIGBUS. Within the routines below it becomes an error: the handler (`sys/signal.rs`) makes
//! them return.

use std::fmt;
use std::io;
use std::ops::Range;

/// The unit of the processor's caches, and of write-backs from them.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// A load or store that the device did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl From<Refused> for io::Error {
    fn from(_: Refused) -> Self {
        io::Error::from_raw_os_error(libc::EIO)
    }
}

/// The instructions that copy bytes past the caches.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Sse2,
    Avx2,
    Avx512,
}

/// The instruction that writes lines back from the caches.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteBack {
    /// Waits for each line, and drops it from the caches.
    Clflush,
    /// Drops each line from the caches.
    Clflushopt,
    /// Keeps the lines in the caches.
    Clwb,
}

/// The instructions to use, chosen once: async-signal-safe from then on.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instructions {
    stream: Stream,
    write_back: WriteBack,
}

#[cfg(target_arch = "x86_64")]
mod routines {
    //! Each routine returns 0, or 1 if it met a SIGBUS. They use no stack, so that they can return from any
    //! instruction.

    use std::arch::global_asm;

    /// Copies 64 bytes at a time: $load reads them from [rsi + rcx] into registers, $store writes them to [rdi + rcx].
    macro_rules! copy_lines {
        ($name:literal, $load:literal, $store:literal, $end:literal) => {
            concat!(
                ".globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ",@function\n.balign 16\n",
                $name,
                ":\n",
                ".cfi_startproc\nxor ecx, ecx\n2:\n",
                $load,
                "\n",
                $store,
                "\n",
                "add rcx, 64\ncmp rcx, rdx\njb 2b\n",
                $end,
                "\nxor eax, eax\nret\n.cfi_endproc\n",
            )
        };
    }

    /// Writes 64 bytes back at a time, from rdi to rsi.
    macro_rules! write_back_lines {
        ($name:literal, $instruction:literal) => {
            concat!(
                ".globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ",@function\n.balign 16\n",
                $name,
                ":\n",
                ".cfi_startproc\n2:\n",
                $instruction,
                " [rdi]\nadd rdi, 64\ncmp rdi, rsi\njb 2b\n",
                "xor eax, eax\nret\n.cfi_endproc\n",
            )
        };
    }

    global_asm!(
        ".pushsection .text.vmio_persistent_memory, \"ax\", @progbits",
        ".globl pm_vmio_begin",
        ".hidden pm_vmio_begin",
        "pm_vmio_begin:",
        copy_lines!(
            "pm_vmio_load_sse2",
            "movdqa xmm0, [rsi + rcx]\nmovdqa xmm1, [rsi + rcx + 16]\nmovdqa xmm2, [rsi + rcx + 32]\nmovdqa xmm3, [rsi + rcx + 48]",
            "movdqu [rdi + rcx], xmm0\nmovdqu [rdi + rcx + 16], xmm1\nmovdqu [rdi + rcx + 32], xmm2\nmovdqu [rdi + rcx + 48], xmm3",
            ""
        ),
        copy_lines!(
            "pm_vmio_load_avx2",
            "vmovntdqa ymm0, [rsi + rcx]\nvmovntdqa ymm1, [rsi + rcx + 32]",
            "vmovdqu [rdi + rcx], ymm0\nvmovdqu [rdi + rcx + 32], ymm1",
            "vzeroupper"
        ),
        copy_lines!("pm_vmio_load_avx512", "vmovntdqa zmm0, [rsi + rcx]", "vmovdqu64 [rdi + rcx], zmm0", "vzeroupper"),
        copy_lines!(
            "pm_vmio_store_sse2",
            "movdqu xmm0, [rsi + rcx]\nmovdqu xmm1, [rsi + rcx + 16]\nmovdqu xmm2, [rsi + rcx + 32]\nmovdqu xmm3, [rsi + rcx + 48]",
            "movntdq [rdi + rcx], xmm0\nmovntdq [rdi + rcx + 16], xmm1\nmovntdq [rdi + rcx + 32], xmm2\nmovntdq [rdi + rcx + 48], xmm3",
            ""
        ),
        copy_lines!(
            "pm_vmio_store_avx2",
            "vmovdqu ymm0, [rsi + rcx]\nvmovdqu ymm1, [rsi + rcx + 32]",
            "vmovntdq [rdi + rcx], ymm0\nvmovntdq [rdi + rcx + 32], ymm1",
            "vzeroupper"
        ),
        copy_lines!("pm_vmio_store_avx512", "vmovdqu64 zmm0, [rsi + rcx]", "vmovntdq [rdi + rcx], zmm0", "vzeroupper"),
        // Any number of bytes, through the caches.
        ".globl pm_vmio_move",
        ".hidden pm_vmio_move",
        ".type pm_vmio_move,@function",
        ".balign 16",
        "pm_vmio_move:",
        ".cfi_startproc",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        write_back_lines!("pm_vmio_clflush", "clflush"),
        write_back_lines!("pm_vmio_clflushopt", "clflushopt"),
        write_back_lines!("pm_vmio_clwb", "clwb"),
        ".globl pm_vmio_end",
        ".hidden pm_vmio_end",
        "pm_vmio_end:",
        // The handler continues them here.
        ".globl pm_vmio_refused",
        ".hidden pm_vmio_refused",
        "pm_vmio_refused:",
        "mov eax, 1",
        "ret",
        ".popsection",
    );

    /// `to`, `from`, and a length. `move` takes any length, the others a multiple of 64 that is not 0. On the side of
    /// the persistent memory, the others start at a multiple of 64.
    pub(super) type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize) -> u32;
    /// The first line and the end of a range that is not empty.
    pub(super) type WriteBackLines = unsafe extern "C" fn(*const u8, *const u8) -> u32;

    unsafe extern "C" {
        pub(super) fn pm_vmio_load_sse2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_load_avx2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_load_avx512(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_store_sse2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_store_avx2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_store_avx512(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_move(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub(super) fn pm_vmio_clflush(first: *const u8, end: *const u8) -> u32;
        pub(super) fn pm_vmio_clflushopt(first: *const u8, end: *const u8) -> u32;
        pub(super) fn pm_vmio_clwb(first: *const u8, end: *const u8) -> u32;
        static pm_vmio_begin: u8;
        static pm_vmio_end: u8;
        static pm_vmio_refused: u8;
    }

    /// Where a routine continues after a SIGBUS at this instruction; `None` if the instruction is in none of the
    /// routines.
    pub(crate) fn landing_of(instruction: usize) -> Option<usize> {
        let (begin, end, refused) = (&raw const pm_vmio_begin, &raw const pm_vmio_end, &raw const pm_vmio_refused);
        (begin as usize..end as usize).contains(&instruction).then_some(refused as usize)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use routines::landing_of;

/// vmio knows no instructions of other architectures.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {}

#[cfg(not(target_arch = "x86_64"))]
impl fmt::Display for Instructions {
    fn fmt(&self, _out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Instructions {
    pub(crate) fn of_this_cpu() -> Option<Self> {
        None
    }

    pub(crate) unsafe fn load(self, _from: *const u8, _to: &mut [u8]) -> Result<(), Refused> {
        match self {}
    }

    pub(crate) unsafe fn store(self, _to: *mut u8, _from: &[u8]) -> Result<(), Refused> {
        match self {}
    }

    pub(crate) unsafe fn write_back(self, _addresses: Range<usize>) -> Result<(), Refused> {
        match self {}
    }
}

#[cfg(target_arch = "x86_64")]
impl Instructions {
    /// The best instructions of this processor.
    pub(crate) fn of_this_cpu() -> Option<Self> {
        use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
        let stream = if is_x86_feature_detected!("avx512f") {
            Stream::Avx512
        } else if is_x86_feature_detected!("avx2") {
            Stream::Avx2
        } else {
            Stream::Sse2
        };
        let features = if __get_cpuid_max(0).0 >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let write_back = match features {
            features if features & 1 << 24 != 0 => WriteBack::Clwb,
            features if features & 1 << 23 != 0 => WriteBack::Clflushopt,
            _ => WriteBack::Clflush,
        };
        Some(Instructions { stream, write_back })
    }

    /// Copies bytes out of the device.
    ///
    /// # Safety
    /// `from` is a mapping of `to.len()` bytes of persistent memory that can be read.
    pub(crate) unsafe fn load(self, from: *const u8, to: &mut [u8]) -> Result<(), Refused> {
        let routine: routines::Copy = match self.stream {
            Stream::Sse2 => routines::pm_vmio_load_sse2,
            Stream::Avx2 => routines::pm_vmio_load_avx2,
            Stream::Avx512 => routines::pm_vmio_load_avx512,
        };
        // SAFETY: the caller vouches for the addresses loaded from; the buffer is borrowed, and the parts are within both.
        unsafe { copy(routine, from as usize, from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes to the device. They are durable when this returns.
    ///
    /// # Safety
    /// `to` is a mapping, made with MAP_SYNC, of `from.len()` bytes of persistent memory that can be stored to.
    pub(crate) unsafe fn store(self, to: *mut u8, from: &[u8]) -> Result<(), Refused> {
        let routine: routines::Copy = match self.stream {
            Stream::Sse2 => routines::pm_vmio_store_sse2,
            Stream::Avx2 => routines::pm_vmio_store_avx2,
            Stream::Avx512 => routines::pm_vmio_store_avx512,
        };
        // SAFETY: the caller vouches for the addresses stored to; the bytes are borrowed, and the parts are within both.
        let mut stored = unsafe { copy(routine, to as usize, from.as_ptr(), to, from.len()) };
        // The partial lines at both ends went through the caches.
        let (start, end) = (to as usize, to as usize + from.len());
        let (head, tail) = partial_lines(start, from.len());
        for part in [start..start + head, end - tail..end].into_iter().filter(|part| !part.is_empty()) {
            // SAFETY: the lines are of the range that the caller vouches for.
            stored = stored.and_then(|()| unsafe { self.write_back_lines(part) });
        }
        fence();
        stored
    }

    /// Makes the stores to a range durable.
    ///
    /// # Safety
    /// The addresses are of a mapping, made with MAP_SYNC, of persistent memory.
    pub(crate) unsafe fn write_back(self, addresses: Range<usize>) -> Result<(), Refused> {
        // SAFETY: the caller vouches that the addresses are of persistent memory, mapped with MAP_SYNC.
        let written = if addresses.is_empty() { Ok(()) } else { unsafe { self.write_back_lines(addresses) } };
        fence();
        written
    }

    /// # Safety
    /// As [`Self::write_back`]; the range is not empty.
    unsafe fn write_back_lines(self, addresses: Range<usize>) -> Result<(), Refused> {
        let routine: routines::WriteBackLines = match self.write_back {
            WriteBack::Clflush => routines::pm_vmio_clflush,
            WriteBack::Clflushopt => routines::pm_vmio_clflushopt,
            WriteBack::Clwb => routines::pm_vmio_clwb,
        };
        let first = addresses.start / LINE_BYTES * LINE_BYTES;
        // SAFETY: lines do not cross pages, and the pages are the caller's. The processor has the instruction.
        outcome(unsafe { routine(first as *const u8, addresses.end as *const u8) })
    }
}

/// The instructions for copies and for write-back.
#[cfg(target_arch = "x86_64")]
impl fmt::Display for Instructions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = match self.stream {
            Stream::Sse2 => "SSE2",
            Stream::Avx2 => "AVX2",
            Stream::Avx512 => "AVX-512",
        };
        let write_back = match self.write_back {
            WriteBack::Clflush => "clflush",
            WriteBack::Clflushopt => "clflushopt",
            WriteBack::Clwb => "clwb",
        };
        write!(out, "{stream}, {write_back}")
    }
}

/// Bytes before the first whole line of the device and after the last one.
#[cfg(target_arch = "x86_64")]
fn partial_lines(start: usize, bytes: usize) -> (usize, usize) {
    let head = (start.next_multiple_of(LINE_BYTES) - start).min(bytes);
    (head, (bytes - head) % LINE_BYTES)
}

/// Copies whole lines of the device with a routine, and the bytes before and behind them through the caches.
///
/// # Safety
/// Both sides have that many bytes, and the processor has the routine's instructions. `device` is the address of the
/// side whose whole lines count.
#[cfg(target_arch = "x86_64")]
unsafe fn copy(
    routine: routines::Copy,
    device: usize,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) -> Result<(), Refused> {
    let (head, tail) = partial_lines(device, bytes);
    let lines = bytes - head - tail;
    for (at, part, routine) in [
        (0, head, routines::pm_vmio_move as routines::Copy),
        (head, lines, routine),
        (head + lines, tail, routines::pm_vmio_move),
    ] {
        if part > 0 {
            // SAFETY: the caller vouches for both ranges; the parts follow each other within them.
            outcome(unsafe { routine(to.add(at), from.add(at), part) })?;
        }
    }
    Ok(())
}

/// Copies bytes through the caches. One side may be a mapping of a file.
///
/// # Safety
/// Both sides are mapped, that of `to` for stores, and do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn move_bytes(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Refused> {
    // SAFETY: the caller vouches for both ranges.
    outcome(unsafe { routines::pm_vmio_move(to, from, bytes) })
}

/// Like the function above, through the kernel.
///
/// # Safety
/// As for the function above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn move_bytes(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Refused> {
    // SAFETY: the caller vouches for both ranges.
    let copied = unsafe { crate::sys::own_memory::store(to as usize, std::slice::from_raw_parts(from, bytes)) };
    copied.map_err(|_| Refused)
}

#[cfg(target_arch = "x86_64")]
fn outcome(refused: u32) -> Result<(), Refused> {
    if refused == 0 { Ok(()) } else { Err(Refused) }
}

/// Waits until the device has all that this thread has stored past the caches or written back from them.
#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: a fence has no other effect.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::PAGE_BYTES;
    use crate::sys::file_map::FileMap;
    use crate::sys::signal;

    /// All instructions of this processor.
    fn all() -> impl Iterator<Item = Instructions> {
        let best = Instructions::of_this_cpu().unwrap();
        let streams = [Stream::Sse2, Stream::Avx2, Stream::Avx512];
        let streams = streams.into_iter().take_while(move |stream| {
            *stream == Stream::Sse2 || best.stream == Stream::Avx512 || *stream == best.stream
        });
        streams.flat_map(move |stream| {
            let ways = match best.write_back {
                WriteBack::Clflush => &[WriteBack::Clflush][..],
                WriteBack::Clflushopt => &[WriteBack::Clflush, WriteBack::Clflushopt],
                WriteBack::Clwb => &[WriteBack::Clflush, WriteBack::Clflushopt, WriteBack::Clwb],
            };
            ways.iter().map(move |write_back| Instructions { stream, write_back: *write_back })
        })
    }

    #[repr(align(64))]
    struct Lines([u8; 512]);

    #[test]
    fn bytes_are_copied_wherever_they_start_and_end_and_no_others() {
        let source: Vec<u8> = (0..512).map(|at| (at * 7 + at / 256) as u8).collect();
        for instructions in all() {
            for start in [0, 1, 63, 64, 65, 130] {
                for len in [0, 1, 5, 63, 64, 65, 127, 128, 200, 320] {
                    let mut device = Lines([0xEE; 512]);
                    // SAFETY: as far as copies go, any memory will do.
                    unsafe {
                        instructions.store(device.0[start..].as_mut_ptr(), &source[start + 3..][..len]).unwrap();
                        instructions
                            .write_back(device.0.as_ptr_range().start as usize..device.0.as_ptr_range().end as usize)
                            .unwrap();
                    }
                    let expected = |at| if (start..start + len).contains(&at) { source[at + 3] } else { 0xEE };
                    assert!((0..512).all(|at| device.0[at] == expected(at)), "{instructions:?} {start} {len}");
                    let mut read = [0xDD; 330];
                    // SAFETY: both ranges are of arrays of this test: as far as copies go, any memory will do.
                    unsafe { instructions.load(device.0[start..].as_ptr(), &mut read[5..5 + len]).unwrap() };
                    assert!(read[5..5 + len] == source[start + 3..][..len], "{instructions:?} {start} {len}");
                    assert!(read[..5].iter().chain(&read[5 + len..]).all(|byte| *byte == 0xDD));
                }
            }
        }
    }

    /// Loads and stores behind the end of a file are a SIGBUS.
    #[test]
    fn what_the_device_refuses_is_an_error() {
        signal::recover_copies().unwrap();
        let file: File = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        let map = FileMap::new(file.as_fd(), 2 * PAGE_BYTES, true).unwrap();
        let end = map.base().wrapping_add(PAGE_BYTES);
        let mut bytes = [1; 256];
        for instructions in all() {
            // SAFETY: the addresses are mapped, though half of them without memory.
            unsafe {
                for start in [end, end.sub(128), end.sub(3)] {
                    assert_eq!(instructions.store(start, &bytes), Err(Refused));
                    assert_eq!(instructions.load(start, &mut bytes), Err(Refused));
                    assert_eq!(instructions.write_back(start as usize..start as usize + 256), Err(Refused));
                }
                assert_eq!(instructions.store(end.sub(256), &bytes), Ok(()));
                assert_eq!(instructions.load(end.sub(256), &mut bytes), Ok(()));
            }
        }
        let error = std::io::Error::from(Refused);
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
