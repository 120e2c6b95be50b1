//! An open file description: what duplicated descriptors share.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::split::own_descriptor::OwnDescriptor;
use crate::split::warm::Warm;

/// Calls by which a file is used before it is worth a lease and a mapping.
const CALLS_BEFORE_WARMTH: u32 = 8;
/// A call that is under way for so long waits for its own thread: a signal handler has interrupted it.
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// Who serves the calls about a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// It is no description at present.
    Free,
    /// The kernel, so far.
    Cold,
    /// The lease manager is at work on it: calls wait.
    Warming,
    /// vmio, with a lease.
    Warm,
    /// As [`State::Warming`], in the other direction.
    Leaving,
    /// The kernel, for good.
    Linux,
}

const STATES: [State; 6] = [State::Free, State::Cold, State::Warming, State::Warm, State::Leaving, State::Linux];

/// One of a fixed number, which are used again: so that a thread may look at one without knowing whether it is still there.
pub(crate) struct Description {
    state: AtomicU32,
    /// Descriptors that refer to it, and above them [`CALL`] for each call under way.
    references: AtomicU64,
    /// By which vmio reaches it, from when it is first warm until the program has closed its last descriptor.
    pub(super) own: OwnDescriptor,
    /// The tick of the clock at which one of the program's descriptors was last known to be one of it.
    pub(super) verified_at: AtomicU64,
    calls: AtomicU32,
    /// Whether the lease manager has been asked.
    is_asked: AtomicBool,
    /// Calls of the kernel's under way, from its position or about the file's length: it does not become warm meanwhile.
    held: AtomicU32,
    /// As fcntl's F_GETFL has them; of use while it is warm.
    pub(super) flags: AtomicI32,
    /// Where the next read or write is; while it is warm the kernel's is not moved.
    pub(super) position: AtomicU64,
    /// The file is at least so long, while it is warm.
    pub(super) known_len: AtomicU64,
    /// What a log's checkpoint finds it by while its writes are logged, or 0.
    pub(super) log_key: AtomicU64,
    /// Whether it is known to be under none of the folders.
    pub(super) is_outside: AtomicBool,
    /// Whether it has O_DSYNC, of which the program does not know.
    pub(super) hides_dsync: AtomicBool,
    /// Whether something that was written could not be handed to the kernel.
    pub(super) has_lost_writes: AtomicBool,
    warm: AtomicPtr<Warm>,
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
            held: AtomicU32::new(0),
            flags: AtomicI32::new(0),
            position: AtomicU64::new(0),
            known_len: AtomicU64::new(0),
            log_key: AtomicU64::new(0),
            is_outside: AtomicBool::new(false),
            hides_dsync: AtomicBool::new(false),
            has_lost_writes: AtomicBool::new(false),
            warm: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(super) fn state(&self) -> State {
        STATES[self.state.load(Ordering::SeqCst) as usize]
    }

    pub(super) fn change(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u32, to as u32, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// It is the kernel's for good, if it is anybody's, whatever a thread was making of it that is not there.
    pub(super) fn abandon(&self) {
        self.held.store(0, Ordering::SeqCst);
        if self.state() != State::Free {
            self.state.store(State::Linux as u32, Ordering::SeqCst);
        }
    }

    /// Makes it that of a descriptor that was just opened; false if it is somebody's, or vmio has still one of it.
    pub(super) fn take(&self) -> bool {
        if self.references.load(Ordering::Relaxed) != 0
            || self.own.get().is_some()
            || !self.change(State::Free, State::Leaving)
        {
            return false;
        }
        self.verified_at.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
        self.known_len.store(0, Ordering::Relaxed);
        self.is_outside.store(false, Ordering::Relaxed);
        self.hides_dsync.store(false, Ordering::Relaxed);
        self.has_lost_writes.store(false, Ordering::Relaxed);
        self.references.fetch_add(1, Ordering::SeqCst);
        self.change(State::Leaving, State::Cold)
    }

    /// One more descriptor.
    pub(super) fn share(&self) {
        self.references.fetch_add(1, Ordering::SeqCst);
    }

    /// One descriptor less, if others are left; false, and nothing, if it is the last.
    pub(super) fn unshare_one_of_several(&self) -> bool {
        let less = |references: u64| (references % CALL > 1).then(|| references - 1);
        self.references.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// The last descriptor less.
    pub(super) fn unshare(&self) {
        self.released(1);
    }

    /// A call begins, and the description stays what it is until it ends.
    pub(super) fn begin(&self) {
        self.references.fetch_add(CALL, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.released(CALL);
    }

    fn released(&self, reference: u64) {
        if self.references.fetch_sub(reference, Ordering::SeqCst) == reference {
            // Nobody can find it any more. What was warm has been left before its last descriptor was given up.
            for state in [State::Cold, State::Linux] {
                if self.change(state, State::Free) {
                    break;
                }
            }
        }
    }

    /// Whether it is nobody's, and vmio has a descriptor of it all the same.
    pub(super) fn is_left_over(&self) -> bool {
        self.references.load(Ordering::SeqCst) == 0 && self.own.get().is_some()
    }

    /// How many descriptors refer to it.
    pub(super) fn descriptors(&self) -> u64 {
        self.references.load(Ordering::SeqCst) % CALL
    }

    /// Whether no call is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.references.load(Ordering::SeqCst) < CALL
    }

    /// A call of the kernel's begins, which may last long, and until it ends the description does not become warm. It may be so still.
    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of that; in a forked child perhaps of a call that began in the parent.
    pub(super) fn release(&self) {
        let _ = self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| held.checked_sub(1));
    }

    /// Whether there is such a call, and it is about to become warm: who has begun that call waits until it is not, or leaves it.
    fn is_to_stay_cold(&self) -> bool {
        self.held.load(Ordering::SeqCst) != 0 && self.state() == State::Warming
    }

    /// Waits until no call is under way, of such as began before its state was changed; false if that lasts too long, or it is not to
    /// become warm.
    pub(super) fn drain(&self) -> bool {
        if self.is_to_stay_cold() {
            return false;
        }
        if self.is_quiet() {
            return true;
        }
        let end = Instant::now() + DRAINED_WITHIN;
        while !self.is_quiet() {
            if Instant::now() > end || self.is_to_stay_cold() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// One more call by which the kernel reads or writes the file; whether the lease manager should look at it now.
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) >= CALLS_BEFORE_WARMTH
            && self.held.load(Ordering::Relaxed) == 0
            && !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// The lease manager has looked, in vain: later it may look again.
    pub(super) fn ask_again(&self) {
        self.calls.store(0, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// What there is of it while it is warm. To be had within a call, or by who has made it warm, or leaves it.
    pub(super) fn warm(&self) -> Option<&Warm> {
        // SAFETY: it is freed after `take_warm`, when no call is under way.
        unsafe { self.warm.load(Ordering::Acquire).as_ref() }
    }

    pub(super) fn put_warm(&self, warm: Box<Warm>) {
        self.warm.store(Box::into_raw(warm), Ordering::Release);
    }

    /// Takes it out again. Only while no call is under way, and none can begin.
    pub(super) fn take_warm(&self) -> *mut Warm {
        self.warm.swap(ptr::null_mut(), Ordering::AcqRel)
    }
}
