//! The files that the process has open: one region per file and process, from the first handle to the last.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::backing::{Access, Backing, Identity, Locking};
use crate::error::{Error, Result};
use crate::mapped_file::opened::{OpenRegion, Opened};
use crate::mapped_file::{CacheIdentity, OpenedFile};
use crate::options::MappingOptions;
use crate::sys::fork::{Generation, PerProcess};

static OPEN_FILES: PerProcess<OpenFiles> = PerProcess::new();

/// The files that mappings of the process have open, or are about to open or close.
#[derive(Default)]
struct OpenFiles {
    files: Mutex<BTreeMap<Identity, Weak<dyn OpenedFile>>>,
    /// A file has been opened or closed.
    changed: Condvar,
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, Weak<dyn OpenedFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file's entry in the list of open files; the drop removes it.
pub(crate) struct Entry {
    identity: Identity,
    open_files: &'static OpenFiles,
    generation: Generation,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A forked child has files of its own.
        if self.generation.is_current() {
            self.open_files.lock().remove(&self.identity);
            self.open_files.changed.notify_all();
        }
    }
}

/// The open region of the backing's file in this cache (or without a cache), if the process has one. Else `start` makes the region,
/// once the file is locked against other processes.
pub(crate) fn open<R: OpenRegion>(
    cache: Option<CacheIdentity>,
    backing: Box<dyn Backing>,
    options: MappingOptions,
    start: impl FnOnce(Box<dyn Backing>, MappingOptions) -> Result<R>,
) -> Result<Arc<Opened<R>>> {
    let generation = match cache {
        Some(cache) => cache.generation,
        None => Generation::of_this_process().map_err(Error::system("noting the process"))?,
    };
    // The entry would stay in a forked child for good.
    if !generation.is_current() {
        return Err(Error::Forked);
    }
    let start = |backing: Box<dyn Backing>, options: MappingOptions| {
        let user = R::file_user(options.access_to(&*backing)?);
        let (locking, backing) = Locking::begin(backing, user)?;
        let started = start(backing, options)?;
        locking.keep();
        Ok(started)
    };
    let Some(identity) = backing.identity() else {
        return Ok(Arc::new(Opened::new(start(backing, options)?, None)));
    };
    let open_files = OPEN_FILES.get().map_err(Error::system("noting the process"))?;
    let mut files = open_files.lock();
    while let Some(present) = files.get(&identity) {
        if let Some(opened) = present.upgrade() {
            // `opened` may be the last handle by now, and its drop takes this lock.
            drop(files);
            return share(opened, cache, &*backing, &options);
        }
        // Another thread is closing the last handle, which syncs and unlocks the file, or is opening the first one.
        files = open_files.changed.wait(files).unwrap_or_else(PoisonError::into_inner);
    }
    // The entry looks like that of a file without a handle. The lock is released for `start`, which may wait for a commit, which
    // may wait for other files.
    files.insert(identity, Weak::<Opened<R>>::new() as _);
    drop(files);
    let entry = Entry { identity, open_files, generation };
    let opened = Arc::new(Opened::new(start(backing, options)?, Some(entry)));
    open_files.lock().insert(identity, Arc::downgrade(&opened) as _);
    open_files.changed.notify_all();
    Ok(opened)
}

/// Another handle to an open file, if it is open in the wanted way.
fn share<R: OpenRegion>(
    opened: Arc<dyn OpenedFile>,
    cache: Option<CacheIdentity>,
    backing: &dyn Backing,
    options: &MappingOptions,
) -> Result<Arc<Opened<R>>> {
    let wanted = options.access.unwrap_or_else(|| backing.access());
    let how = if cache.is_some_and(|cache| !opened.belongs_to(cache)) {
        "through another cache"
    } else if wanted == Access::ReadWrite && opened.access() == Access::ReadOnly {
        "read-only"
    } else if !opened.commits_to(options.journal.as_ref()) {
        "without this journal"
    } else if let Ok(opened) = (opened as Arc<dyn Any + Send + Sync>).downcast() {
        return Ok(opened);
    } else {
        "by another engine"
    };
    Err(Error::AlreadyMapped { backing: backing.describe(), how })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::backing::{FileUser, MemoryBacking};

    /// Longer than any part of a test takes.
    const HANGS_AFTER: Duration = Duration::from_secs(20);

    /// A backing with the identity of a file, so that the process recognizes the file.
    struct SameFile(u64, MemoryBacking);

    impl SameFile {
        fn boxed(inode: u64) -> Box<dyn Backing> {
            Box::new(SameFile(inode, MemoryBacking::new(4096).unwrap()))
        }
    }

    impl Backing for SameFile {
        fn len(&self) -> u64 {
            self.1.len()
        }

        fn access(&self) -> Access {
            self.1.access()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            self.1.read_at(offset, buffer)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.1.write_at(offset, data)
        }

        fn flush(&self) -> io::Result<()> {
            self.1.flush()
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.1.set_len(len)
        }

        fn identity(&self) -> Option<Identity> {
            Some(Identity { device: u64::MAX, inode: self.0 })
        }

        fn describe(&self) -> String {
            "a file".to_owned()
        }
    }

    type Asked = Box<dyn Fn() + Send + Sync>;

    thread_local! {
        /// How often the thread has synced a file.
        static SYNCS: Cell<u32> = const { Cell::new(0) };
    }

    fn is_synced() {
        SYNCS.set(SYNCS.get() + 1);
    }

    /// A file in one of two engines, with the action to take when the access is asked for.
    struct Played<const ENGINE: u32> {
        backing: Box<dyn Backing>,
        asked: Mutex<Option<Asked>>,
        generation: Generation,
    }

    impl<const ENGINE: u32> OpenRegion for Played<ENGINE> {
        fn file_user(access: Access) -> FileUser {
            FileUser::cached(access)
        }

        fn backing(&self) -> &dyn Backing {
            &*self.backing
        }

        fn access(&self) -> Access {
            if let Some(asked) = self.asked.lock().unwrap().take() {
                asked();
            }
            Access::ReadWrite
        }

        fn generation(&self) -> Generation {
            self.generation
        }

        fn belongs_to(&self, _cache: CacheIdentity) -> bool {
            true
        }

        fn sync(&self) -> Result<()> {
            is_synced();
            Ok(())
        }

        fn shut_down(&self) -> Result<()> {
            is_synced();
            Ok(())
        }

        fn count_drop_failure(&self) {}
    }

    fn open_played<const ENGINE: u32>(
        inode: u64,
        start: impl FnOnce() -> Result<()>,
    ) -> Result<Arc<Opened<Played<ENGINE>>>> {
        open(None, SameFile::boxed(inode), MappingOptions::new(), |backing, _| {
            start()?;
            Ok(Played { backing, asked: Mutex::default(), generation: Generation::of_this_process().unwrap() })
        })
    }

    /// Runs something in a thread, and leaves that thread behind if it hangs.
    fn ends<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        thread::spawn(move || done.send(what()));
        result.recv_timeout(HANGS_AFTER).expect("it hangs")
    }

    #[test]
    fn the_last_handle_may_go_while_another_engine_is_refused() {
        ends(|| {
            let theirs = open_played::<1>(1, || Ok(())).unwrap();
            let last = Mutex::new(Some(Arc::clone(&theirs)));
            *theirs.asked.lock().unwrap() = Some(Box::new(move || drop(last.lock().unwrap().take())));
            let file = Arc::downgrade(&theirs);
            drop(theirs);
            assert_eq!(file.strong_count(), 1);
            assert!(matches!(
                open_played::<2>(1, || Ok(())),
                Err(Error::AlreadyMapped { how: "by another engine", .. })
            ));
            assert_eq!(file.strong_count(), 0);
            open_played::<2>(1, || Ok(())).unwrap();
        });
    }

    /// A thread that opens the file while another closes the last handle makes it one of several.
    #[test]
    fn a_handle_that_is_closed_was_synced() {
        let done = AtomicBool::new(false);
        let close_often = || {
            for _ in 0..100_000 {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let before = SYNCS.get();
                open_played::<1>(5, || Ok(())).unwrap().close().unwrap();
                if SYNCS.get() == before {
                    done.store(true, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(close_often)));
        });
        assert!(!done.into_inner(), "a handle was closed without a sync");
    }

    /// Opening may wait: for a commit, which may be waiting for a file of its own.
    #[test]
    fn a_file_is_opened_and_closed_while_another_one_is_being_opened() {
        let opened = open_played::<1>(2, || {
            ends(|| drop(open_played::<1>(3, || Ok(())).unwrap()));
            Ok(())
        });
        assert!(opened.is_ok());
    }

    #[test]
    fn who_opens_a_file_that_is_being_opened_gets_the_same_or_tries_again() {
        for fails in [false, true] {
            let (begun, has_begun) = mpsc::channel();
            let (go_on, goes_on) = mpsc::channel();
            let first = thread::spawn(move || {
                open_played::<1>(4, || {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    if fails { Err(Error::Forked) } else { Ok(()) }
                })
            });
            has_begun.recv().unwrap();
            let second = thread::spawn(|| open_played::<1>(4, || Ok(())));
            thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished());
            go_on.send(()).unwrap();
            let [first, second] = [first, second].map(|opening| ends(move || opening.join().unwrap()));
            assert_eq!(first.is_err(), fails);
            assert!(fails || Arc::ptr_eq(&first.unwrap(), second.as_ref().unwrap()));
            assert!(second.is_ok());
        }
    }
}
