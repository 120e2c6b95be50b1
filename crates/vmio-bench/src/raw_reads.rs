//! Random direct reads through io_uring without any cache: as many as a device gives one thread.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use io_uring::{IoUring, opcode, types};
use vmio_measure::content::{PAGE_BYTES, PageBuffer, WORD_BYTES, open_direct, word_is_valid};

/// Reads pages at the offsets that `next` gives, so many at a time, until the end; returns how many were read, and how
/// many of them were wrong.
pub fn read_until(
    path: &Path,
    at_a_time: u32,
    mut next: impl FnMut() -> u64,
    end: Instant,
) -> anyhow::Result<(u64, u64)> {
    let file = open_direct(path, false)?;
    let mut ring = IoUring::new(at_a_time).context("no io_uring (`vmio doctor` says why)")?;
    let mut pages = PageBuffer::new(u64::from(at_a_time) * PAGE_BYTES);
    let base = pages.as_mut_bytes().as_mut_ptr();
    let mut offsets = vec![0; at_a_time as usize];
    let mut idle: Vec<usize> = (0..at_a_time as usize).collect();
    let (mut read, mut wrong) = (0, 0);
    loop {
        let is_over = Instant::now() >= end;
        while !is_over && let Some(slot) = idle.pop() {
            offsets[slot] = next();
            let page = base.wrapping_add(slot * PAGE_BYTES as usize);
            let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), page, PAGE_BYTES as u32);
            let entry = entry.offset(offsets[slot] / PAGE_BYTES * PAGE_BYTES).build().user_data(slot as u64);
            // SAFETY: the page belongs to this read alone until its slot is idle again; buffer and file outlive the
            // reads, all of which have ended when this function returns without an error.
            unsafe { ring.submission().push(&entry) }.context("the ring is full")?;
        }
        if idle.len() == at_a_time as usize {
            return Ok((read, wrong));
        }
        ring.submit_and_wait(1).context("io_uring_enter failed")?;
        for completion in ring.completion() {
            let slot = completion.user_data() as usize;
            if completion.result() != PAGE_BYTES as i32 {
                bail!("a read of {} gave {} in place of a page", path.display(), completion.result());
            }
            let in_page = slot as u64 * PAGE_BYTES + offsets[slot] % PAGE_BYTES;
            // SAFETY: the word lies in a page whose read has ended, and of which there is no reference.
            let word = unsafe { base.add(in_page as usize).cast::<u64>().read() };
            wrong += u64::from(!word_is_valid(offsets[slot] / WORD_BYTES * WORD_BYTES, u64::from_le(word)));
            read += 1;
            idle.push(slot);
        }
    }
}
