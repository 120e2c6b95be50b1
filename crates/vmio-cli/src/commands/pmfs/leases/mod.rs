//! Leases of extents: which processes map which blocks of the medium themselves, and how the server gets them back.

mod holders;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fuser::{FileHandle, INodeNo, Notifier};
use vmio_pmfs::{Appends, Changes, Error, Fs, Holes, Lease, Result, Time};
use vmio_pmfs_protocol::{EXTENTS_MAX, Extent, Grant, Message, Request, SEED_OF_MEMORY, length_of, sealed};

pub use holders::Holders;

/// How many threads at once may take room back: fewer than serve requests.
const TAKING_ROOM_BACK_MAX: usize = 4;
/// How often a file that is mapped for stores gets a new time of modification at the most.
const MODIFIED_EVERY_S: i64 = 1;

/// To the kernel: only a file's attributes have changed.
const NO_DATA: i64 = -1;

/// The most blocks that a request gets for holes.
const FILLED_MAX: u32 = 1024;

const LOADS: u64 = 1;
const STORES: u64 = 2;

/// The handle of an open file, which says for what it is open.
pub fn handle(flags: fuser::OpenFlags) -> FileHandle {
    FileHandle(match flags.0 & libc::O_ACCMODE {
        libc::O_RDONLY => LOADS,
        libc::O_WRONLY => STORES,
        _ => LOADS | STORES,
    })
}

/// The leases of a mount.
pub struct Leases {
    fs: Arc<Fs>,
    holders: Arc<Holders>,
    /// How long a holder has to answer.
    answer_within: Duration,
    /// Whether a fence makes stores of holders durable.
    is_synchronous: bool,
    files: Mutex<HashMap<u64, Arc<File>>>,
    /// The threads that take room back.
    taking_room_back: AtomicUsize,
    /// Held while a holder loses its leases, or ends.
    revoking: Mutex<()>,
    /// Tells the kernel of changes that it has not asked for.
    kernel: OnceLock<Notifier>,
}

/// A file that is open, or that a recall is about.
#[derive(Default)]
struct File {
    /// Changed with the list of files locked.
    opens: AtomicU64,
    /// Recalls under way, likewise. Nothing of the file is leased meanwhile.
    recalls: AtomicU64,
    state: Mutex<State>,
    /// A lease has ended.
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// The kernel may have pages of it, for a program that maps it without a lease. It would not see what holders of leases store.
    is_cached: bool,
    /// Counts the grants, and which was each holder's last one.
    turn: u64,
    last_turns: HashMap<u64, u64>,
    /// The holder that appends to it.
    grower: Option<Grower>,
    /// The kernel may not know the end of the file.
    has_grown: bool,
    /// Appended bytes could not be made the file's.
    has_lost: bool,
}

/// A holder that appends to a file.
#[derive(Clone, Copy)]
struct Grower {
    holder: u64,
    /// The slot of its memory by which it has asked. There it says how long the file is.
    slot: u32,
    /// It says that in a slot of the medium.
    is_durable: bool,
}

/// Until it is dropped, nothing of a file is leased.
struct Recalled<'a> {
    leases: &'a Leases,
    ino: u64,
    file: Arc<File>,
}

impl Drop for Recalled<'_> {
    fn drop(&mut self) {
        self.file.recalls.fetch_sub(1, Ordering::SeqCst);
        self.leases.forget(self.ino);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leases {
    pub fn new(fs: Arc<Fs>, holders: Arc<Holders>, answer_within: Duration, is_synchronous: bool) -> Arc<Leases> {
        Arc::new(Leases {
            fs,
            holders,
            answer_within,
            taking_room_back: AtomicUsize::new(0),
            is_synchronous,
            files: Mutex::default(),
            revoking: Mutex::default(),
            kernel: OnceLock::new(),
        })
    }

    /// The file system is mounted.
    pub fn mounted(&self, kernel: Notifier) {
        _ = self.kernel.set(kernel);
    }

    /// A file is opened.
    pub fn opened(&self, ino: u64) {
        lock(&self.files).entry(ino).or_default().opens.fetch_add(1, Ordering::SeqCst);
    }

    /// A file is closed.
    pub fn closed(&self, ino: u64) {
        let Some(file) = lock(&self.files).get(&ino).map(Arc::clone) else { return };
        if file.opens.fetch_sub(1, Ordering::SeqCst) == 1 {
            let mut state = lock(&file.state);
            // A mapping keeps its file open. Another one may have begun by now.
            state.is_cached &= file.opens.load(Ordering::SeqCst) > 0;
        }
        drop(file);
        self.forget(ino);
    }

    /// Drops the record of a file if nobody uses it.
    fn forget(&self, ino: u64) {
        let mut files = lock(&self.files);
        let is_unused = files.get(&ino).is_some_and(|file| {
            // Whoever else has it may be about to change it, and asks again.
            Arc::strong_count(file) == 1
                && file.opens.load(Ordering::SeqCst) == 0
                && file.recalls.load(Ordering::SeqCst) == 0
                && file.state.try_lock().is_ok_and(|state| state.grower.is_none())
        });
        if is_unused {
            files.remove(&ino);
        }
    }

    fn file(&self, ino: u64) -> Arc<File> {
        Arc::clone(lock(&self.files).entry(ino).or_default())
    }

    /// Grants a lease, if nothing stands against it.
    pub fn lease(&self, ino: u64, handle: FileHandle, request: &Request) -> Result<Grant, i32> {
        // A process that may open the medium may load everything anyway.
        let stores = request.stores() || request.fills() || request.growth().is_some();
        let wanted = if stores { STORES } else { LOADS };
        if handle.0 & wanted != wanted {
            return Err(libc::EBADF);
        }
        if request.is_durable() && !self.is_synchronous {
            return Err(libc::EOPNOTSUPP);
        }
        let file = self.file(ino);
        // Held until the lease is granted: a recall that begins meanwhile finds it.
        let mut state = lock(&file.state);
        if file.recalls.load(Ordering::SeqCst) > 0 {
            return Err(libc::EAGAIN);
        }
        self.settle_growth(ino, &mut state);
        // A process that has blocks need not sync, and would not hear of a loss.
        if state.is_cached || state.has_lost {
            // A holder would map the kernel's pages, one of which is locked while leases are recalled for it.
            let is_leased = self.fs.lease_holders(ino, 0).is_ok_and(|holders| !holders.is_empty());
            return Err(if is_leased { libc::EAGAIN } else { libc::EBUSY });
        }
        if !self.holders.will_hold(request.holder, ino, stores) {
            return Err(libc::EPERM);
        }
        let granted = match request.growth() {
            Some(slot) => self.lease_to_grow(ino, &mut state, request, slot),
            None => {
                let (mut blocks, mut holes) = (request.blocks(), Holes::Keep);
                if request.fills() {
                    // Others wait meanwhile.
                    (blocks.end, holes) = (blocks.end.min(blocks.start.saturating_add(FILLED_MAX)), Holes::Fill);
                }
                self.fs.lease(ino, request.holder, blocks, holes, EXTENTS_MAX)
            }
        };
        let granted = granted.map_err(|error| match error {
            Error::Leased { .. } => libc::EEXIST,
            error => error.errno(),
        })?;
        state.turn += 1;
        let turn = state.turn;
        state.last_turns.insert(request.holder, turn);
        drop(state);
        if request.stores() && !granted.blocks.is_empty() {
            self.modified(ino).map_err(|error| error.errno())?;
        }
        if (request.fills() || request.growth().is_some())
            && let Some(Err(error)) = self.kernel.get().map(|kernel| kernel.inval_inode(INodeNo(ino), NO_DATA, 0))
        {
            tracing::debug!(%error, ino, "the kernel believes old attributes for a second");
        }
        let extents: Vec<Extent> = granted
            .extents
            .iter()
            .map(|one| Extent { file_block: one.file_block, blocks: one.blocks, start: one.start })
            .collect();
        Ok(Grant::new(granted.size, granted.blocks, &extents).with_slot(granted.slot_at))
    }

    fn lease_to_grow(&self, ino: u64, state: &mut State, request: &Request, slot: u32) -> Result<Lease> {
        let holder = request.holder;
        let is_others = state.grower.is_some_and(|grower| (grower.holder, grower.slot) != (holder, slot));
        // A slot that says something else is about bytes that are lost, or that nobody has stored.
        let expected = sealed(self.fs.attributes(ino)?.size, SEED_OF_MEMORY);
        if is_others || self.holders.word(holder, slot) != Some(expected) {
            return Err(Error::Leased { ino, from_block: 0 });
        }
        let appends = if request.is_durable() { Appends::Durable } else { Appends::Volatile };
        let lease = self.fs.lease_to_grow(ino, holder, appends)?;
        state.grower = Some(Grower { holder, slot, is_durable: lease.slot_at.is_some() });
        state.has_grown = true;
        Ok(lease)
    }

    /// Makes what a holder has appended to a file part of it. Returns whether there is such a holder: then nobody may believe the length for long.
    pub fn settle(&self, ino: u64) -> bool {
        let Some(file) = lock(&self.files).get(&ino).map(Arc::clone) else { return false };
        let mut state = lock(&file.state);
        self.settle_growth(ino, &mut state);
        state.grower.is_some()
    }

    /// Whether the kernel may have a wrong idea of the end of a file that is open.
    pub fn has_grown(&self, ino: u64) -> bool {
        let file = lock(&self.files).get(&ino).map(Arc::clone);
        file.is_some_and(|file| lock(&file.state).has_grown)
    }

    /// Whether bytes that a process has appended are lost. Says so once.
    pub fn has_lost(&self, ino: u64) -> bool {
        let file = lock(&self.files).get(&ino).map(Arc::clone);
        file.is_some_and(|file| std::mem::take(&mut lock(&file.state).has_lost))
    }

    fn settle_growth(&self, ino: u64, state: &mut State) {
        let Some(grower) = state.grower else { return };
        let Grower { holder, slot, is_durable } = grower;
        let settled = match is_durable {
            true => self.fs.settle(ino, holder),
            false => match self.holders.word(holder, slot) {
                // What no process stores ends the growth, as a length beyond the room does.
                Some(word) => self.fs.grown(ino, holder, length_of(word, SEED_OF_MEMORY).unwrap_or(u64::MAX)),
                None => return,
            },
        };
        if let Err(error) = settled {
            tracing::error!(%error, ino, holder, "bytes that a process has appended are lost");
            state.has_lost = true;
            state.grower = None;
            // What comes next is the kernel's to append.
            self.close_growth(ino, grower);
            // A process that has blocks need not sync. Nobody waits for the answers.
            for holder in self.fs.lease_holders(ino, 0).unwrap_or_default() {
                self.holders.tell(holder, Message::Recall { ino, from_block: 0, turn: state.turn });
            }
        }
    }

    /// Keeps a holder from storing another length.
    fn close_growth(&self, ino: u64, grower: Grower) {
        let Grower { holder, slot, is_durable } = grower;
        if !is_durable {
            self.holders.close_slot(holder, slot);
        } else if let Err(error) = self.fs.close_growth(ino, holder) {
            tracing::debug!(%error, ino, "a slot cannot be closed");
        }
    }

    /// Stores through a mapping change a file: nobody sees when, so it counts as changed when it is leased.
    fn modified(&self, ino: u64) -> Result<()> {
        let now = Time::now();
        if now.seconds - self.fs.attributes(ino)?.modified.seconds >= MODIFIED_EVERY_S {
            self.fs.set_attributes(ino, &Changes { modified: Some(now), ..Changes::default() })?;
        }
        Ok(())
    }

    /// A holder has nothing of a file mapped any more.
    pub fn returned(&self, ino: u64, holder: u64) {
        self.end_lease(ino, holder, 0, u64::MAX);
    }

    /// A holder has answered a recall: ends the lease, unless it was granted after this turn.
    pub fn end_lease(&self, ino: u64, holder: u64, from_block: u32, turn: u64) {
        if !self.holders.may_hold(holder, ino) {
            return;
        }
        let file = self.file(ino);
        // A grant to a holder that is just gone comes before this, or is refused.
        let mut state = lock(&file.state);
        if state.last_turns.get(&holder).is_some_and(|last| *last > turn) {
            return;
        }
        self.settle_growth(ino, &mut state);
        match self.fs.end_lease(ino, holder, from_block) {
            // It had none, and the file is no more.
            Ok(()) | Err(Error::NoInode { .. }) => {}
            Err(error) => tracing::error!(%error, ino, holder, "a lease cannot be ended"),
        }
        if from_block == 0 {
            self.holders.holds_no_more(holder, ino);
            state.last_turns.remove(&holder);
        }
        state.grower = state.grower.filter(|_| self.fs.is_growing(ino));
        drop(state);
        file.returned.notify_all();
        drop(file);
        self.forget(ino);
    }

    /// A holder is gone.
    pub fn gone(&self, holder: u64) {
        // A revocation that has begun finds its memory.
        let revoking = lock(&self.revoking);
        for ino in self.holders.files_of(holder) {
            self.returned(ino, holder);
        }
        self.holders.forget(holder);
        self.fs.holder_is_gone(holder);
        drop(revoking);
    }

    /// Makes a call; if blocks that it would take away are leased, gets these back first. So it does with what processes are about to append to, if
    /// there is no other space.
    ///
    /// Requests for leases are no such calls: the process asks in the middle of an append, and could not give anything back.
    pub fn without_leases<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let (mut recalled, mut is_full): (Vec<Recalled<'_>>, bool) = (Vec::new(), false);
        loop {
            match call() {
                Err(error @ Error::NoSpace { .. }) => {
                    let room = if std::mem::replace(&mut is_full, true) { Vec::new() } else { self.take_room_back() };
                    if room.is_empty() {
                        return Err(error);
                    }
                    // Nobody leases it again before the call is over.
                    recalled.extend(room);
                }
                Err(Error::Leased { ino, from_block }) => {
                    if !recalled.iter().any(|recalled| recalled.ino == ino) {
                        recalled.push(self.keep_from_being_leased(ino));
                    }
                    self.recall(ino, from_block);
                }
                done => return done,
            }
        }
    }

    /// Takes back from all processes what they are about to append to, and keeps it from being leased. Nothing if several threads do so: some must be left
    /// to answer the processes, which give it back only then.
    fn take_room_back(&self) -> Vec<Recalled<'_>> {
        let mut rooms = Vec::new();
        if self.taking_room_back.fetch_add(1, Ordering::SeqCst) < TAKING_ROOM_BACK_MAX {
            let files: Vec<u64> = lock(&self.files).keys().copied().collect();
            rooms.extend(
                files.into_iter().filter(|ino| self.fs.is_growing(*ino)).map(|ino| self.keep_from_being_leased(ino)),
            );
            for (ino, from_block) in rooms.iter().filter_map(|room| Some((room.ino, self.fs.room_from(room.ino)?))) {
                self.recall(ino, from_block);
            }
        }
        self.taking_room_back.fetch_sub(1, Ordering::SeqCst);
        rooms
    }

    /// The kernel takes pages of a file into its cache: nobody else may have it mapped.
    pub fn kernel_caches(&self, ino: u64) {
        let file = self.file(ino);
        if std::mem::replace(&mut lock(&file.state).is_cached, true) {
            // Another page of it may have been first, and still waits.
            self.await_return(&file, ino, 0);
            return;
        }
        self.recall(ino, 0);
    }

    fn keep_from_being_leased(&self, ino: u64) -> Recalled<'_> {
        let mut files = lock(&self.files);
        let file = Arc::clone(files.entry(ino).or_default());
        file.recalls.fetch_add(1, Ordering::SeqCst);
        drop(files);
        // A grant that has begun is over by then.
        drop(lock(&file.state));
        Recalled { leases: self, ino, file }
    }

    /// Gets the leases of a file back, from a block on. Holders that do not answer in time lose them.
    fn recall(&self, ino: u64, from_block: u32) {
        let file = self.file(ino);
        let turn = lock(&file.state).turn;
        for holder in self.fs.lease_holders(ino, from_block).unwrap_or_default() {
            self.holders.tell(holder, Message::Recall { ino, from_block, turn });
        }
        self.await_return(&file, ino, from_block);
    }

    fn await_return(&self, file: &File, ino: u64, from_block: u32) {
        let deadline = Instant::now() + self.answer_within;
        let mut state = lock(&file.state);
        loop {
            let holders = self.fs.lease_holders(ino, from_block).unwrap_or_default();
            let left = deadline.saturating_duration_since(Instant::now());
            if holders.is_empty() {
                return;
            }
            if left.is_zero() {
                drop(state);
                holders.into_iter().for_each(|holder| self.revoke(holder));
                return;
            }
            state = file.returned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes everything from a holder that has not answered in time, or has closed its connection. It may still store to what it had.
    pub fn revoke(&self, holder: u64) {
        let _revoking = lock(&self.revoking);
        let Some((process, files)) = self.holders.lose(holder) else { return };
        if !files.is_empty() {
            tracing::warn!(process, "a process does not return its leases, and has lost all that it had");
        }
        for ino in files {
            let file = self.file(ino);
            let mut state = lock(&file.state);
            if let Some(grower) = state.grower.filter(|grower| grower.holder == holder) {
                self.close_growth(ino, grower);
            }
            self.settle_growth(ino, &mut state);
            if let Err(error) = self.fs.revoke_lease(ino, holder, 0) {
                tracing::error!(%error, ino, holder, "a lease cannot be revoked");
            }
            state.grower = state.grower.filter(|_| self.fs.is_growing(ino));
            state.last_turns.remove(&holder);
            drop(state);
            file.returned.notify_all();
            drop(file);
            self.forget(ino);
        }
    }
}
