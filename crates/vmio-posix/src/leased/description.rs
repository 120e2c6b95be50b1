//! An open file description: the state that duplicated descriptors share.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::leased::known_length::KnownLength;
use crate::leased::leased_file::LeasedFile;
use crate::leased::own_descriptor::OwnDescriptor;

/// A file is worth a lease and a mapping after this number of calls.
const CALLS_BEFORE_LEASE: u32 = 8;
/// A call that is still under way after this time waits for its own thread: a signal handler has interrupted it.
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// Whether vmio or Linux serves the calls on a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// The slot is not in use.
    Free,
    /// Linux serves it, and a lease may follow.
    Unleased,
    /// The lease manager is taking a lease: calls wait.
    Leasing,
    /// vmio serves it, and has a lease.
    Leased,
    /// A thread is returning the lease: calls wait.
    Returning,
    /// Linux serves it from now on.
    Linux,
}

const STATES: [State; 6] =
    [State::Free, State::Unleased, State::Leasing, State::Leased, State::Returning, State::Linux];

/// A slot of a fixed table, which descriptions reuse: a thread may look at a slot without knowing whether its description still exists.
pub(crate) struct Description {
    state: AtomicU32,
    /// The number of its descriptors, plus [`CALL`] for each call under way.
    references: AtomicU64,
    /// vmio's own descriptor of the file, from the first lease on. It stays until the program has closed its last descriptor, and may have
    /// to outlive the program's record locks.
    pub(super) own: OwnDescriptor,
    /// The clock tick at which one of the program's descriptors was last known to refer to this description.
    pub(super) verified_at: AtomicU64,
    calls: AtomicU32,
    /// Whether the lease manager has been asked for a lease.
    is_asked: AtomicBool,
    /// Kernel calls under way that use the kernel's position or the file's length: no lease is taken meanwhile.
    suspensions: AtomicU32,
    /// The flags that fcntl's F_GETFL returns; valid while it is leased.
    pub(super) flags: AtomicI32,
    /// The position of the next read or write. While it is leased, the kernel's own position does not move.
    pub(super) position: AtomicU64,
    /// A lower bound of the file's length, by [`LeasedFile::cuts`]; valid while it is leased.
    pub(super) known_length: KnownLength,
    /// The key by which a log's checkpoint finds it while its writes are logged; else 0.
    pub(super) log_key: AtomicU64,
    /// Whether the kernel has granted a lease, with which other processes do not use the file.
    pub(super) has_kernel_lease: AtomicBool,
    /// Whether the file is known to be under none of the folders.
    pub(super) is_outside: AtomicBool,
    /// Whether vmio added O_DSYNC, which the program must not see.
    pub(super) hides_dsync: AtomicBool,
    /// Whether vmio failed to pass a write on to the kernel.
    pub(super) has_lost_writes: AtomicBool,
    /// Whether a thread uses the kernel's position.
    uses_kernel_position: AtomicBool,
    leased: AtomicPtr<LeasedFile>,
}

/// While it exists, no other thread uses the kernel's position.
pub(super) struct KernelPosition<'a>(&'a AtomicBool);

impl Drop for KernelPosition<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

const CALL: u64 = 1 << 32;

impl Description {
    pub(super) const fn new() -> Self {
        Description {
            state: AtomicU32::new(State::Free as u32),
            references: AtomicU64::new(0),
            own: OwnDescriptor::none(),
            verified_at: AtomicU64::new(0),
            calls: AtomicU32::new(0),
            is_asked: AtomicBool::new(false),
            suspensions: AtomicU32::new(0),
            flags: AtomicI32::new(0),
            position: AtomicU64::new(0),
            known_length: KnownLength::none(),
            log_key: AtomicU64::new(0),
            has_kernel_lease: AtomicBool::new(false),
            is_outside: AtomicBool::new(false),
            hides_dsync: AtomicBool::new(false),
            has_lost_writes: AtomicBool::new(false),
            uses_kernel_position: AtomicBool::new(false),
            leased: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(super) fn state(&self) -> State {
        STATES[self.state.load(Ordering::SeqCst) as usize]
    }

    pub(super) fn change(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u32, to as u32, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Leaves the description to the kernel, in a forked child. A thread of the parent may have been changing its state.
    pub(super) fn abandon(&self) {
        self.suspensions.store(0, Ordering::SeqCst);
        self.known_length.reset_in_child();
        self.uses_kernel_position.store(false, Ordering::SeqCst);
        if self.state() != State::Free {
            self.state.store(State::Linux as u32, Ordering::SeqCst);
        }
    }

    /// Claims a free slot for a new descriptor; false if the slot is in use, or vmio still has its own descriptor there.
    pub(super) fn take(&self) -> bool {
        if self.references.load(Ordering::Relaxed) != 0
            || self.own.get().is_some()
            || !self.change(State::Free, State::Returning)
        {
            return false;
        }
        self.verified_at.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
        self.known_length.forget();
        self.is_outside.store(false, Ordering::Relaxed);
        self.hides_dsync.store(false, Ordering::Relaxed);
        self.has_lost_writes.store(false, Ordering::Relaxed);
        self.references.fetch_add(1, Ordering::SeqCst);
        self.change(State::Returning, State::Unleased)
    }

    /// Counts one more descriptor.
    pub(super) fn share(&self) {
        self.references.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one descriptor less, unless it is the last: then nothing changes and this returns false.
    pub(super) fn unshare_one_of_several(&self) -> bool {
        let less = |references: u64| (references % CALL > 1).then(|| references - 1);
        self.references.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// Uncounts the last descriptor.
    pub(super) fn unshare(&self) {
        self.released(1);
    }

    /// Begins a call: the description keeps its lease until the call ends.
    pub(super) fn begin(&self) {
        self.references.fetch_add(CALL, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.released(CALL);
    }

    fn released(&self, reference: u64) {
        if self.references.fetch_sub(reference, Ordering::SeqCst) == reference {
            // Nobody can find the slot any more, and its lease was returned before the last descriptor was uncounted.
            for state in [State::Unleased, State::Linux] {
                if self.change(state, State::Free) {
                    break;
                }
            }
        }
    }

    /// Whether the program has no descriptor of it, and vmio still has one.
    pub(super) fn is_left_over(&self) -> bool {
        self.references.load(Ordering::SeqCst) == 0 && self.own.get().is_some()
    }

    /// The number of descriptors that refer to it.
    pub(super) fn descriptors(&self) -> u64 {
        self.references.load(Ordering::SeqCst) % CALL
    }

    /// Whether no call is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.references.load(Ordering::SeqCst) < CALL
    }

    /// Begins a kernel call, which may last long: no lease is taken until it ends. One that was taken before may still be there.
    pub(super) fn suspend(&self) {
        self.suspensions.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the kernel call. In a forked child the call may have begun in the parent.
    pub(super) fn resume(&self) {
        let _ = self.suspensions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }

    /// Whether a kernel call is under way while a lease is being taken. The caller waits for the lease manager to give up.
    fn must_stay_unleased(&self) -> bool {
        self.suspensions.load(Ordering::SeqCst) != 0 && self.state() == State::Leasing
    }

    /// Waits for the calls that began before the state changed; false if that takes too long, or if a kernel call forbids the lease.
    pub(super) fn drain(&self) -> bool {
        if self.must_stay_unleased() {
            return false;
        }
        if self.is_quiet() {
            return true;
        }
        let end = Instant::now() + DRAINED_WITHIN;
        while !self.is_quiet() {
            if Instant::now() > end || self.must_stay_unleased() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Counts a kernel read or write of the file; true if the lease manager should take a lease now.
    pub(super) fn is_worth_a_lease(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) >= CALLS_BEFORE_LEASE
            && self.suspensions.load(Ordering::Relaxed) == 0
            && !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Lets the lease manager try again later, after the return of a lease or a failure to take one.
    pub(super) fn ask_again(&self) {
        self.calls.store(0, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// Waits until no other thread uses the kernel's position. Signals must be blocked.
    pub(super) fn kernel_position(&self) -> KernelPosition<'_> {
        while self.uses_kernel_position.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        KernelPosition(&self.uses_kernel_position)
    }

    /// The leased file, if there is a lease. For use within a call, or by the thread that takes or returns the lease.
    pub(super) fn leased(&self) -> Option<&LeasedFile> {
        // SAFETY: it is freed after `take_leased`, and no call is under way then.
        unsafe { self.leased.load(Ordering::Acquire).as_ref() }
    }

    pub(super) fn put_leased(&self, leased: Box<LeasedFile>) {
        self.leased.store(Box::into_raw(leased), Ordering::Release);
    }

    /// Takes the leased file out. Only while no call is under way and none can begin.
    pub(super) fn take_leased(&self) -> *mut LeasedFile {
        self.leased.swap(ptr::null_mut(), Ordering::AcqRel)
    }
}
