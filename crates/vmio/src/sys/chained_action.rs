//! The program's own action for a SIGBUS that is not vmio's.
//!
//! Signal handlers set it and read it. So nothing here allocates, and nobody waits for another thread. That thread may
//! be the one that the handler has interrupted, or one that a forked child does not have.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of actions kept. A new action overwrites a slot only after 64 others, and never while the old action is
/// in force or about to be.
const SLOTS: usize = 64;
/// The stamp of a slot while a thread writes it.
const BUSY: u64 = u64::MAX;
/// Set in the stamp of a slot whose action is about to be in force.
const PENDING: u64 = 1 << 63;

/// An action, in words: handler, flags, mask and restorer.
struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; 4],
}

static ALL: [Slot; SLOTS] =
    [const { Slot { stamp: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 4] } }; SLOTS];
/// The last stamp given. Stamps begin at 1.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The stamp of the action in force; 0 for none.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// An action that is or was in force.
#[derive(Clone, Copy)]
pub(crate) struct Chained {
    pub(crate) action: libc::sigaction,
    stamp: u64,
}

fn slot(stamp: u64) -> &'static Slot {
    &ALL[(stamp % SLOTS as u64) as usize]
}

/// The signals of a set, as the kernel has them. The C library's sets are longer, and empty behind these.
pub(crate) fn signals_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: a set is longer than the value read, and any bits are a valid number.
    unsafe { (&raw const *set).cast::<u64>().read_unaligned() }
}

/// The C library's set of these signals.
pub(crate) fn set_of(signals: u64) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: zeros are an empty set, and its first word is the kernel's.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write_unaligned(signals);
        set.assume_init()
    }
}

/// Writes an action into a slot, which keeps it until [`settle`]. Returns the stamp.
fn put(action: &libc::sigaction) -> u64 {
    loop {
        let stamp = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let slot = slot(stamp);
        let before = slot.stamp.load(Ordering::Relaxed);
        let is_in_force = before != 0 && before == CURRENT.load(Ordering::Relaxed);
        if before & PENDING != 0
            || is_in_force
            || slot.stamp.compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            continue;
        }
        fence(Ordering::Release);
        let restorer = action.sa_restorer.map_or(0, |restorer| restorer as usize as u64);
        let words = [action.sa_sigaction as u64, action.sa_flags as u32 as u64, signals_of(&action.sa_mask), restorer];
        for (place, word) in slot.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        slot.stamp.store(stamp | PENDING, Ordering::Release);
        return stamp;
    }
}

/// Says that an action is in force, or never will be.
fn settle(stamp: u64) {
    slot(stamp).stamp.store(stamp, Ordering::Release);
}

fn get(stamp: u64) -> Chained {
    let slot = slot(stamp);
    loop {
        let before = slot.stamp.load(Ordering::Acquire);
        let [handler, flags, mask, restorer] = [0, 1, 2, 3].map(|at| slot.words[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if before == BUSY || slot.stamp.load(Ordering::Relaxed) != before {
            continue;
        }
        // SAFETY: zeros are the default action, an empty mask and no flags.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags as u32 as i32;
        action.sa_mask = set_of(mask);
        // SAFETY: the word is 0, which is `None`, or the function that the program has passed.
        action.sa_restorer = unsafe { std::mem::transmute::<usize, Option<extern "C" fn()>>(restorer as usize) };
        return Chained { action, stamp };
    }
}

/// The action in force; `None` before the first one.
pub(crate) fn current() -> Option<Chained> {
    Some(CURRENT.load(Ordering::Acquire)).filter(|stamp| *stamp != 0).map(get)
}

/// Puts an action in force, and returns the one before.
pub(crate) fn replace(action: &libc::sigaction) -> Option<libc::sigaction> {
    let stamp = put(action);
    let mut before = CURRENT.load(Ordering::Acquire);
    loop {
        // Read it while it is in force: afterwards others may overwrite it.
        let replaced = (before != 0).then(|| get(before).action);
        match CURRENT.compare_exchange(before, stamp, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                settle(stamp);
                return replaced;
            }
            Err(faster) => before = faster,
        }
    }
}

/// Puts the first action in force, unless there is one by now.
pub(crate) fn begin_with(action: &libc::sigaction) {
    let stamp = put(action);
    let _ = CURRENT.compare_exchange(0, stamp, Ordering::AcqRel, Ordering::Relaxed);
    settle(stamp);
}

/// Puts the default action in force, unless the program has set another since.
pub(crate) fn reset(once: &Chained) {
    // SAFETY: zeros are the default action, an empty mask and no flags.
    let default = put(&unsafe { MaybeUninit::zeroed().assume_init() });
    let _ = CURRENT.compare_exchange(once.stamp, default, Ordering::AcqRel, Ordering::Relaxed);
    settle(default);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn action(handler: usize) -> libc::sigaction {
        // SAFETY: zeros are a valid action.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handler;
        action.sa_flags = -(handler as i32);
        action.sa_mask = set_of(handler as u64);
        action
    }

    /// No reader sees half of an action, and each action is returned once as the previous one.
    #[test]
    fn actions_are_replaced_as_a_whole() {
        begin_with(&action(1));
        begin_with(&action(2));
        assert_eq!(current().unwrap().action.sa_sigaction, 1);
        let sum = |number: usize| (1..=2000).map(|call| call * 4 + number).sum::<usize>();
        let check = |found: &libc::sigaction| {
            let handler = found.sa_sigaction;
            assert_eq!((found.sa_flags, signals_of(&found.sa_mask)), (-(handler as i32), handler as u64));
            handler
        };
        let replaced = std::thread::scope(|scope| {
            let threads = [0, 1, 2].map(|number| {
                scope.spawn(move || {
                    (1..=2000).map(|call| check(&replace(&action(call * 4 + number)).unwrap())).sum::<usize>()
                })
            });
            for _ in 0..5000 {
                check(&current().unwrap().action);
            }
            threads.map(|thread| thread.join().unwrap()).iter().sum::<usize>()
        });
        let last = current().unwrap();
        assert_eq!(replaced + check(&last.action), 1 + sum(0) + sum(1) + sum(2));
        replace(&action(7));
        reset(&last);
        assert_eq!(current().unwrap().action.sa_sigaction, 7);
        reset(&current().unwrap());
        assert_eq!(current().unwrap().action.sa_sigaction, libc::SIG_DFL);
    }
}
