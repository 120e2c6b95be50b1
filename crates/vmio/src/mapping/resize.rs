//! Grows and shrinks the file under a mapping.

use std::sync::atomic::{AtomicU8, Ordering};

use vmio_core::page::snapshot::Snapshot;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::backing::Access;
use crate::error::{Error, Result, UnsupportedBy};
use crate::mapping::Mapping;
use crate::mapping::advice::{Pinned, kept_by_the_kernel};
use crate::mapping::cached_file::CachedFile;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Changes the length of the file and of the mapping.
    ///
    /// New bytes are zeros. Bytes behind a shorter end must not be in use: accesses to them are a SIGBUS from now on. The growth of
    /// an atomic mapping is part of the next commit.
    ///
    /// # Errors
    ///
    /// - [`Error::BeyondReservation`] for more than [`crate::MappingOptions::reserve`], and [`Error::ReadOnly`].
    /// - [`Error::Resize`] if the backing refuses, or if there are pins behind the new end.
    /// - [`Error::Unsupported`] for shrinking an atomic mapping.
    /// - [`Error::Flush`] of a direct mapping: the length has changed, but neither the new length nor earlier stores may be
    ///   durable, and every later sync fails too.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// map.set_len(2 << 20)?;
    /// assert_eq!(map.len(), 2 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.file().check_not_forked()?;
        self.file().set_len(len)
    }
}

impl CachedFile {
    pub(super) fn resize(&self, len: u64) -> Result<()> {
        let region = self.region();
        if region.access == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: region.backing.describe() });
        }
        if len > region.table.reserved() {
            return Err(Error::BeyondReservation { requested: len, reserved: region.table.reserved() });
        }
        if len < region.table.len() && region.journaled.is_some() {
            let why = "the journal cannot undo it: close it, cut the file, and open it again";
            return Err(Error::Unsupported { by: UnsupportedBy::AtomicMapping, what: "a shorter length", why });
        }
        let _signals = SignalsBlocked::new();
        // A sync and a change of length exclude each other.
        let _no_sync = region.dirty.lock_sync();
        let old = region.table.len();
        if len < old {
            return self.shrink(old, len);
        }
        if len > old {
            self.clear_tail(old)?;
        }
        self.set_backing_len(len)?;
        let pages = region.table.pages()..len.div_ceil(PAGE_BYTES as u64);
        if !pages.is_empty() {
            let bytes = (pages.end - pages.start) as usize * PAGE_BYTES;
            // SAFETY: the pages lie behind the end, so none is in memory, and none comes there before `store_len` below.
            region
                .views
                .for_each_address(pages.start, |address| unsafe { region.shared.paging.engine.accept(address, bytes) });
        }
        region.store_len(len);
        Ok(())
    }

    /// Zeroes the bytes behind the end in the last page: stores to them are not part of the file.
    fn clear_tail(&self, len: u64) -> Result<()> {
        let tail = len as usize % PAGE_BYTES;
        let page = len / PAGE_BYTES as u64;
        if tail == 0 || !self.is_in_memory(page) {
            return Ok(()); // A read from the device fills the rest with zeros.
        }
        let _pinned = self.pin_page_for_store(page)?;
        let start = self.region().table.address(page);
        for at in start + tail..start + PAGE_BYTES {
            // SAFETY: the byte lies in a page that is pinned; safe accesses to it are atomic. If the page is protected, the
            // store traps like any other.
            unsafe { AtomicU8::from_ptr(at as *mut u8) }.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a page is in memory, active or inactive. It waits for the page's owner, since a deactivation or a failed unmap
    /// leaves the page in memory. A single load of the word shows both that nobody owns the page and whether it is resident.
    fn is_in_memory(&self, page: u64) -> bool {
        let word = self.region().table.word(page);
        loop {
            let seen = word.load();
            if !seen.is_busy() {
                return seen.is_resident();
            }
            word.wait_while(Snapshot::is_busy);
        }
    }

    fn set_backing_len(&self, len: u64) -> Result<()> {
        let region = self.region();
        region.backing.set_len(len).map_err(|source| Error::Resize {
            backing: region.backing.describe(),
            requested: len,
            source,
        })
    }

    fn shrink(&self, old: u64, len: u64) -> Result<()> {
        let region = self.region();
        let page = PAGE_BYTES as u64;
        let cut_off = len.div_ceil(page)..old.div_ceil(page);
        let affected = cut_off.start.saturating_sub(1)..cut_off.end;
        let pinned = || region.table.occupied(cut_off.clone()).any(|page| region.table.word(page).load().pins() > 0);
        let refused = || Error::Resize {
            backing: region.backing.describe(),
            requested: len,
            source: std::io::Error::other("pages behind the new end are pinned"),
        };
        if pinned() {
            return Err(refused());
        }
        // After this line no fault begins behind the new end, and neither does a write-back that reads the length later.
        region.store_len(len);
        let undo = |error| {
            region.store_len(old);
            Err(error)
        };
        region.table.occupied(affected.clone()).for_each(|page| region.table.word(page).wait_while(Snapshot::is_busy));
        if pinned() {
            return undo(refused());
        }
        // Write-backs that read the old length must end before the file is cut, or they would lengthen it again. Each holds its
        // span's lock until its pages are in flight. The lock on the last kept span keeps the page at the new end from being in
        // flight again.
        let last_kept = region.table.span(span_of(affected.start)).lock();
        (span_of(affected.start) + 1..affected.end.div_ceil(SPAN_PAGES as u64))
            .filter(|span| region.table.span(*span).resident() > 0)
            .for_each(|span| drop(region.table.span(span).lock()));
        region.table.occupied(affected).for_each(|page| region.table.word(page).wait_while(Snapshot::in_flight));
        if let Err(error) = self.set_backing_len(len) {
            return undo(error);
        }
        drop(last_kept);
        // A thread that has pinned such a page since was late, and gets an error. Its page must go, or it would be back when the
        // file grows again.
        let kept = self.discard_pages(cut_off.clone(), Pinned::AreWaitedFor);
        region.give_tables_back(cut_off);
        match kept {
            0 => Ok(()),
            kept => Err(Error::Resize {
                backing: region.backing.describe(),
                requested: len,
                source: kept_by_the_kernel(kept),
            }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;

    use vmio_core::page::word::PinOutcome;

    use super::*;
    use crate::backing::{Backing, MemoryBacking};
    use crate::cache::region::REGIONS;
    use crate::{Cache, MappingOptions};

    /// A backing with a read between its mapping's look at the last page and the change of length. The read returns the bytes of
    /// the old length, and ends when the new length is known.
    struct ReadWhileGrowing {
        bytes: MemoryBacking,
        grows: AtomicBool,
        reads: (Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>),
        done: (mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>),
    }

    impl Backing for ReadWhileGrowing {
        fn len(&self) -> u64 {
            self.bytes.len()
        }

        fn access(&self) -> Access {
            self.bytes.access()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.bytes.read_at(offset, buffer);
            if self.grows.load(Ordering::SeqCst) {
                self.reads.1.send(()).unwrap();
                self.done.1.lock().unwrap().recv().unwrap();
            }
            read
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.bytes.write_at(offset, data)
        }

        fn flush(&self) -> io::Result<()> {
            self.bytes.flush()
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.grows.store(true, Ordering::SeqCst);
            self.reads.0.lock().unwrap().recv().unwrap();
            self.bytes.set_len(len)
        }

        fn describe(&self) -> String {
            "a file that grows".to_owned()
        }
    }

    #[test]
    fn a_page_that_was_read_before_the_file_grew_is_no_error() {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let (has_read, reads) = mpsc::channel();
        let (done, waits) = mpsc::channel();
        let backing = Arc::new(ReadWhileGrowing {
            bytes: MemoryBacking::new(100).unwrap(),
            grows: AtomicBool::new(false),
            reads: (Mutex::new(reads), has_read),
            done: (done, Mutex::new(waits)),
        });
        let map = Mapping::open(&cache, backing.clone(), MappingOptions::new()).unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !backing.grows.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                let mut byte = [1];
                map.read_at(50, &mut byte).map(|()| byte)
            });
            map.set_len(200).unwrap();
            backing.done.0.send(()).unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), [0]);
        });
        map.write_at(199, &[7]).unwrap();
        let mut bytes = [1; 200];
        map.read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes[..199].iter().max(), bytes[199]), (Some(&0), 7));
    }

    /// A backing whose file is cut while a read holds a pin behind the new end. The read had looked at the length before.
    struct PinnedWhileShrinking {
        bytes: MemoryBacking,
        is_cut: (mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>),
    }

    impl Backing for PinnedWhileShrinking {
        fn len(&self) -> u64 {
            self.bytes.len()
        }

        fn access(&self) -> Access {
            self.bytes.access()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            self.bytes.read_at(offset, buffer)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.bytes.write_at(offset, data)
        }

        fn flush(&self) -> io::Result<()> {
            self.bytes.flush()
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            if len < self.bytes.len() {
                self.is_cut.0.send(()).unwrap();
                self.is_cut.1.lock().unwrap().recv().unwrap();
            }
            self.bytes.set_len(len)
        }

        fn describe(&self) -> String {
            "a file that is cut".to_owned()
        }
    }

    #[test]
    fn a_page_that_was_being_read_when_it_was_cut_off_does_not_come_back() {
        let page = PAGE_BYTES as u64;
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let ((cuts, is_cut), (pins, is_pinned)) = (mpsc::channel(), mpsc::channel());
        let bytes = MemoryBacking::new(3 * page).unwrap();
        let backing = PinnedWhileShrinking { bytes, is_cut: (cuts, Mutex::new(is_pinned)) };
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        map.write_at(page, &[7]).unwrap();
        map.sync().unwrap();
        map.write_at(2 * page, &[7]).unwrap();
        thread::scope(|scope| {
            let cutter = scope.spawn(|| map.set_len(page).unwrap());
            is_cut.recv().unwrap();
            let words = [1, 2].map(|page| region.table.word(page));
            words.iter().for_each(|word| assert_eq!(word.pin(false), PinOutcome::Pinned));
            pins.send(()).unwrap();
            for word in words {
                while !word.load().is_awaited() && !cutter.is_finished() {
                    thread::yield_now();
                }
                word.unpin();
            }
        });
        map.set_len(3 * page).unwrap();
        let mut bytes = vec![1; 2 * PAGE_BYTES];
        map.read_at(page, &mut bytes).unwrap();
        assert_eq!(bytes.iter().max(), Some(&0), "what was cut off is back");
    }

    /// An evictor that deactivates the last page, or tries to, leaves the stores behind the end in memory. Growth waits until it
    /// can clear them.
    #[test]
    fn the_tail_is_cleared_of_a_page_that_is_being_deactivated() {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let map = Mapping::open(&cache, MemoryBacking::new(100).unwrap(), MappingOptions::new()).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        // SAFETY: the byte lies in the mapping's page.
        unsafe { AtomicU8::from_ptr(map.as_mut_ptr().add(200)) }.store(7, Ordering::Relaxed);
        let word = region.table.word(0);
        let before = word.begin_deactivate(vmio_core::page::visit::Visit::LAST).unwrap();
        thread::scope(|scope| {
            let grower = scope.spawn(|| map.set_len(2 * PAGE_BYTES as u64).unwrap());
            while !word.load().is_awaited() && !grower.is_finished() {
                thread::yield_now();
            }
            word.fail_deactivate(Some(before.epoch()));
        });
        let mut byte = [1];
        map.read_at(200, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
}
