//! The holds of system calls under way: a record for each, which its release takes out.
//!
//! A call may wait for ever, in a read of a pipe for instance, while another thread closes the mapping. So a hold does not keep its region. A region
//! that closes takes its pages from the calls ([`CallHolds::leave`]), and leaves them the frames alone; a view that goes does so with the pages that
//! calls use at its addresses. A hold ends with its region, with its view or with its own call, never with whatever lies at the same addresses by then.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::cache::pins::uncharge;
use crate::cache::region::{REGIONS, Region};
use crate::cache::shared::Shared;
use crate::engine::WithdrawnFrame;
use crate::options::Engine;
use crate::sys::fork::PerProcess;
use crate::sys::sparse_vec::SparseVec;
use crate::sys::{PAGE_BYTES, thread};

/// Threads share locks by this many parts of their numbers.
const SHARDS: usize = 16;
/// Holds of the threads of a part, at most.
const HOLDS_MAX: usize = 1 << 13;

static HOLDS: PerProcess<CallHolds> = PerProcess::new();

/// The holds of a process. Whoever calls these has signals blocked: a handler that makes a call would wait for its own thread.
#[derive(Default)]
pub(crate) struct CallHolds {
    shards: [Shard; SHARDS],
    next: AtomicU64,
    /// The frames of closed regions and views, until their calls have ended. Calls do not take this lock, so that others may allocate meanwhile.
    left: Mutex<Vec<AtomicPtr<Left>>>,
}

struct Shard {
    /// `None` if the process has no addresses for them. Calls take this lock anywhere in the program, so nobody allocates meanwhile.
    holds: Mutex<Option<SparseVec<Hold>>>,
    /// A hold that a thread in [`CallHolds::leave`] waits for has ended its step.
    moved: Condvar,
}

impl Default for Shard {
    fn default() -> Self {
        Shard { holds: Mutex::new(SparseVec::with_capacity(HOLDS_MAX).ok()), moved: Condvar::new() }
    }
}

/// A hold of pages of one region.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    number: u64,
    thread: usize,
    /// The addresses that the call has asked for, of which this hold has a part.
    asked: (usize, usize),
    pub(crate) address: usize,
    first: u64,
    /// Its pages, and the charge for them.
    pub(crate) count: u64,
    pub(crate) for_stores: bool,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// The thread brings the pages in, which ends.
    Entering(&'static Region),
    /// The call is under way.
    Held(&'static Region),
    /// The thread gives the pages back, which ends.
    Leaving(&'static Region),
    /// The region has closed, or the view is gone.
    Left(&'static Left),
}

/// A hold that a release has found.
pub(crate) enum Released {
    /// Its pages are to be given back.
    Pages(Hold, &'static Region),
    /// Its pages were taken from it, and their frames are to go.
    Frames(Hold, &'static Left),
}

/// The frames that a closed region, or a view that is gone, has left to calls.
pub(crate) struct Left {
    shared: Arc<Shared>,
    /// By their pages.
    frames: Vec<(u64, WithdrawnFrame)>,
    /// The holds of them.
    holds: AtomicU32,
}

impl Hold {
    /// The pages of the region.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.count
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.count as usize * PAGE_BYTES
    }

    /// The address behind the last page.
    pub(crate) fn end(&self) -> usize {
        self.address + self.len()
    }

    fn region(&self) -> Option<&'static Region> {
        match self.state {
            State::Entering(region) | State::Held(region) | State::Leaving(region) => Some(region),
            State::Left(_) => None,
        }
    }

    fn is_of(&self, region: &Region) -> bool {
        self.region().is_some_and(|of| ptr::eq(of, region))
    }

    fn is_moving(&self) -> bool {
        matches!(self.state, State::Entering(_) | State::Leaving(_))
    }
}

impl CallHolds {
    /// Those of this process. The first call allocates.
    pub(crate) fn of_process() -> std::io::Result<&'static CallHolds> {
        HOLDS.get()
    }

    fn own(&self) -> &Shard {
        let mixed = (thread::current() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }

    /// Calls `look` with the region at an address, which does not close meanwhile.
    pub(crate) fn with_region<T>(&self, address: usize, look: impl FnOnce(&Region) -> T) -> Option<T> {
        let _held = self.own().lock();
        REGIONS.find(address).filter(|region| region.shared.generation.is_current()).map(look)
    }

    /// Begins a hold of the pages from an address on that one region has. It does not close until [`Self::settle`] or [`Self::end`]. `Err` is an errno.
    pub(crate) fn enter(
        &self,
        asked: &Range<usize>,
        address: usize,
        for_stores: bool,
    ) -> Result<(Hold, &'static Region), i32> {
        let mut holds = self.own().lock();
        // With the lock held: whoever closes a region takes it out of the table, and then takes every lock.
        let region =
            REGIONS.find(address).filter(|region| region.shared.generation.is_current()).ok_or(libc::EFAULT)?;
        let first = region.views.place_of(address).ok_or(libc::EFAULT)?.page;
        // Not the mapping's length, which may become less while a call is under way.
        let room = region.table.reserved() / PAGE_BYTES as u64 - first;
        if region.calls.is_closing.load(Ordering::SeqCst) {
            return Err(libc::EFAULT);
        }
        let hold = Hold {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            thread: thread::current(),
            asked: (asked.start, asked.end),
            address,
            first,
            count: (((asked.end - address) / PAGE_BYTES) as u64).min(room),
            for_stores,
            state: State::Entering(region),
        };
        if !holds.as_mut().is_some_and(|holds| holds.push(hold)) {
            return Err(libc::ENOMEM);
        }
        region.calls.holds.fetch_add(1, Ordering::SeqCst);
        Ok((hold, region))
    }

    /// Notes that the pages of a hold are there.
    pub(crate) fn settle(&self, hold: &Hold, region: &'static Region) {
        let shard = self.own();
        if let Some(hold) = of_number(&mut shard.lock(), hold.number) {
            hold.state = State::Held(region);
            shard.tell(region);
        }
    }

    /// Finds the calling thread's latest hold of these addresses, or the part of it that begins at `address`.
    pub(crate) fn release(&self, asked: &Range<usize>, address: usize, for_stores: bool) -> Option<Released> {
        let (thread, mut holds) = (thread::current(), self.own().lock());
        let holds = holds.as_mut()?;
        let is_wanted = |hold: &Hold| {
            hold.thread == thread
                && hold.asked == (asked.start, asked.end)
                && hold.address == address
                && hold.for_stores == for_stores
                && !hold.is_moving()
        };
        let index = holds.as_slice().iter().rposition(is_wanted)?;
        let hold = holds.as_slice()[index];
        Some(match hold.state {
            State::Left(left) => {
                holds.remove(index);
                Released::Frames(hold, left)
            }
            State::Entering(region) | State::Held(region) | State::Leaving(region) => {
                holds.as_mut_slice()[index].state = State::Leaving(region);
                Released::Pages(hold, region)
            }
        })
    }

    /// Ends a hold, all of whose pages were given back. The region may close from then on.
    pub(crate) fn end(&self, hold: &Hold, region: &Region) {
        let shard = self.own();
        let mut holds = shard.lock();
        let Some(holds) = holds.as_mut() else { return };
        if let Some(index) = holds.as_slice().iter().rposition(|other| other.number == hold.number) {
            holds.remove(index);
            region.calls.holds.fetch_sub(1, Ordering::SeqCst);
            shard.tell(region);
        }
    }

    /// How many calls hold a page of a region.
    pub(crate) fn holding(&self, region: &Region, page: u64) -> u32 {
        let holds_page = |hold: &&Hold| {
            let is_giving_back = matches!(hold.state, State::Leaving(_));
            hold.is_of(region) && !is_giving_back && hold.pages().contains(&page)
        };
        let of_shard = |shard: &Shard| of(&shard.lock()).iter().filter(holds_page).count();
        self.shards.iter().map(of_shard).sum::<usize>() as u32
    }

    /// Takes the pages of a region that closes from the calls that hold them. From now on calls find nothing at its addresses, and the frames that they may
    /// still be using go to no other page before they have ended. Waits for no call.
    pub(crate) fn leave(&self, region: &Region) {
        region.calls.is_closing.store(true, Ordering::SeqCst);
        self.leave_at(region, &(0..usize::MAX));
    }

    /// The same of some addresses alone: those of a view, which the table of regions has no more. The caller has no lock of the views, which holds on
    /// their way in may take.
    pub(crate) fn leave_at(&self, region: &Region, addresses: &Range<usize>) {
        self.sweep();
        region.calls.leaving.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            if let Some(left) = shard.leave(region, addresses) {
                self.left.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(left));
            }
        }
        region.calls.leaving.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns when no call is looking at a region any more that is out of the table of regions.
    pub(crate) fn pass(&self) {
        self.shards.iter().for_each(|shard| drop(shard.lock()));
    }

    /// Drops the frames' lists of calls that have ended.
    fn sweep(&self) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|left| {
            let left = *left.get_mut();
            // SAFETY: from `Box::into_raw`; nobody else drops it.
            let is_used = unsafe { (*left).holds.load(Ordering::Acquire) } > 0;
            if !is_used {
                // SAFETY: as above; the calls that had references have ended their use, with the count.
                drop(unsafe { Box::from_raw(left) });
            }
            is_used
        });
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Option<SparseVec<Hold>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holds, none of which is moving that is of the region at these addresses.
    fn settled(&self, region: &Region, addresses: &Range<usize>) -> MutexGuard<'_, Option<SparseVec<Hold>>> {
        let is_awaited = |hold: &Hold| hold.is_moving() && hold.is_of(region) && addresses.contains(&hold.address);
        let is_moving = |holds: &mut Option<SparseVec<Hold>>| of(holds).iter().any(is_awaited);
        self.moved.wait_while(self.lock(), is_moving).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait for a region's holds. By whoever holds the lock.
    fn tell(&self, region: &Region) {
        if region.calls.leaving.load(Ordering::SeqCst) > 0 {
            self.moved.notify_all();
        }
    }

    /// [`CallHolds::leave_at`] of this part; returns what it leaves to calls.
    fn leave(&self, region: &Region, addresses: &Range<usize>) -> Option<*mut Left> {
        let is_held = |hold: &Hold| matches!(hold.state, State::Held(of) if ptr::eq(of, region));
        let is_ours = |hold: &Hold| is_held(hold) && addresses.contains(&hold.address);
        let count = |hold: &Hold| if is_ours(hold) { hold.count } else { 0 };
        let pages = of(&self.settled(region, addresses)).iter().map(count).sum::<u64>();
        if pages == 0 {
            return None;
        }
        // Memory comes before the lock. No hold begins any more, and some may end meanwhile.
        let frames = Vec::with_capacity(pages as usize);
        let mut left = Box::new(Left { shared: Arc::clone(&region.shared), frames, holds: AtomicU32::new(0) });
        let mut holds = self.settled(region, addresses);
        for hold in of(&holds).iter().filter(|hold| is_ours(hold)) {
            *left.holds.get_mut() += 1;
            for (page, address) in hold.pages().zip((hold.address..).step_by(PAGE_BYTES)) {
                let frame = region.frames().withdraw(address, hold.for_stores);
                left.frames.extend(frame.map(|frame| (page, frame)));
            }
        }
        if *left.holds.get_mut() == 0 {
            drop(holds);
            return None;
        }
        left.frames.sort_unstable_by_key(|(page, _)| *page);
        let raw = Box::into_raw(left);
        // SAFETY: it lives until a sweep finds no hold of it.
        let left: &'static Left = unsafe { &*raw };
        for hold in holds.as_mut().map_or(&mut [][..], SparseVec::as_mut_slice) {
            if is_ours(hold) {
                hold.state = State::Left(left);
                region.calls.holds.fetch_sub(1, Ordering::SeqCst);
                give_up(region, hold.pages(), hold.count);
            }
        }
        Some(raw)
    }
}

impl Left {
    /// Ends a hold of frames.
    pub(crate) fn release(&self, pages: Range<u64>) {
        for page in pages {
            if let Ok(found) = self.frames.binary_search_by_key(&page, |(page, _)| *page) {
                self.shared.paging.frames.let_go(self.frames[found].1);
            }
        }
        // The last use of it.
        self.holds.fetch_sub(1, Ordering::Release);
    }
}

impl Region {
    /// The holds of system calls, if the engine has any.
    pub(crate) fn call_holds(&self) -> Option<&'static CallHolds> {
        let has_holds = self.shared.paging.engine.engine() == Engine::Ring0;
        has_holds.then(CallHolds::of_process)?.ok()
    }

    /// How many system calls hold a page.
    pub(crate) fn calls_holding(&self, page: u64) -> u32 {
        if self.calls.holds.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        CallHolds::of_process().map_or(0, |holds| holds.holding(self, page))
    }
}

/// Gives back the pins of some pages, and the charge for this many.
pub(crate) fn give_up(region: &Region, pinned: Range<u64>, charged: u64) {
    pinned.for_each(|page| region.table.word(page).unpin());
    uncharge(region, charged);
}

fn of(holds: &Option<SparseVec<Hold>>) -> &[Hold] {
    holds.as_ref().map_or(&[], SparseVec::as_slice)
}

fn of_number(holds: &mut Option<SparseVec<Hold>>, number: u64) -> Option<&mut Hold> {
    holds.as_mut()?.as_mut_slice().iter_mut().rev().find(|hold| hold.number == number)
}
