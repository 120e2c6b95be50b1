//! A process and its forked children that keep one budget together.
//!
//! Each says in memory that all of them have how much it holds. What the others hold is taken off the budget of each; a process that wants more and
//! has less than an equal share gets it, since those with more then give up what is beyond theirs.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;
use crate::sys::task_stat;

/// Of a longer line of processes, the rest keeps to the least that any has.
const MEMBERS_MAX: usize = 64;
/// What each may have of an equal share, at least, and by which part of the capacity it may grow from look to look.
const LEAST_PART: u64 = 16;
/// How long a member may be silent before it is looked for, and before it is given up unless it was stopped.
const SILENCE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

// The words of the shared page: the capacity, how many have gone that had pages, and four of each member.
const CAPACITY: usize = 0;
const GONE: usize = 1;
const MEMBERS: usize = 8;
const WORDS: usize = 4;

/// The processes of a budget.
pub(super) struct Family {
    page: SparseArray<AtomicU64>,
}

/// What a member tells the others; each is a word of its own.
#[derive(Clone, Copy)]
enum Word {
    /// The process; 0 if the place is free.
    Process,
    /// Pages that it holds, or may hold before it tells again.
    Pages,
    /// Whether it wants more, and has less than an equal share.
    Wants,
    /// When it told last, in nanoseconds since the machine began.
    Told,
}

impl Family {
    pub(super) fn new(capacity_pages: u32) -> io::Result<Self> {
        let family = Family { page: SparseArray::over(Reservation::shared_with_children(PAGE_BYTES)?) };
        family.set_capacity(capacity_pages);
        Ok(family)
    }

    /// Pages that all may have together.
    pub(super) fn capacity(&self) -> u64 {
        self.page.get(CAPACITY).load(Ordering::Relaxed)
    }

    pub(super) fn set_capacity(&self, pages: u32) {
        self.page.get(CAPACITY).store(pages.into(), Ordering::Relaxed);
    }

    /// How many members have gone so far.
    fn gone(&self) -> u64 {
        self.page.get(GONE).load(Ordering::Acquire)
    }

    fn word(&self, place: usize, word: Word) -> &AtomicU64 {
        self.page.get(MEMBERS + place * WORDS + word as usize)
    }

    fn get(&self, place: usize, word: Word) -> u64 {
        self.word(place, word).load(Ordering::Relaxed)
    }
}

/// A process as a member; it leaves when this is dropped, but not in a child.
pub(super) struct Member {
    family: Arc<Family>,
    generation: Generation,
    process: u64,
    /// None if there was no place.
    place: Option<usize>,
    /// Those that had gone when it looked last.
    gone: u64,
    looked_for_silent: Duration,
    /// What it held when it told last.
    resident: u64,
}

/// What a member may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) pages: u64,
    /// Whether somebody has gone since the last time, and left in memory what it had.
    pub(super) somebody_has_gone: bool,
}

impl Member {
    pub(super) fn join(family: Arc<Family>, generation: Generation) -> Self {
        let process = u64::from(std::process::id());
        let gone = family.gone();
        let looked_for_silent = Duration::ZERO;
        let mut member = Member { family, generation, process, place: None, gone, looked_for_silent, resident: 0 };
        member.take_place();
        member
    }

    fn take_place(&mut self) {
        let is_taken = |place: &usize| {
            let process = self.family.word(*place, Word::Process);
            process.compare_exchange(0, self.process, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.place = (0..MEMBERS_MAX).find(is_taken);
    }

    /// Tells the others that it holds this many pages, and finds out how many it may.
    pub(super) fn share(&mut self, resident: u64) -> Share {
        self.share_at(resident, now())
    }

    /// Tells the others that it is at work, which may take long.
    pub(super) fn is_at_work(&self, resident: u64) {
        if let Some(place) = self.place {
            self.family.word(place, Word::Pages).store(resident, Ordering::Relaxed);
            self.family.word(place, Word::Told).store(now().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn share_at(&mut self, resident: u64, now: Duration) -> Share {
        // Whoever was silent for too long, since its cores were busy, has lost its place.
        if self.place.is_none_or(|place| self.family.get(place, Word::Process) != self.process) {
            self.take_place();
        }
        if now.saturating_sub(self.looked_for_silent) > SILENCE.0 {
            self.looked_for_silent = now;
            self.look_for_silent(now);
        }
        let capacity = self.family.capacity();
        let others = self.others().filter(|other| self.family.get(*other, Word::Process) != 0);
        let (mut count, mut held, mut is_wanted) = (1, 0, false);
        for other in others {
            let (pages, wants) = (self.family.get(other, Word::Pages), self.family.get(other, Word::Wants) != 0);
            count += u64::from(pages > 0 || wants);
            held += pages;
            is_wanted |= wants;
        }
        let fair = capacity / count;
        let rest = capacity.saturating_sub(held).max(fair / LEAST_PART);
        let pages = match self.place {
            None => capacity / LEAST_PART / MEMBERS_MAX as u64,
            Some(_) if count == 1 => rest,
            // Others may begin to grow at the same time: step by step they see each other.
            Some(_) => rest.min(resident + capacity / LEAST_PART).min(if is_wanted { fair } else { rest }),
        };
        let has_grown = resident > std::mem::replace(&mut self.resident, resident);
        if let Some(place) = self.place {
            let wants = count > 1 && rest < fair && resident + rest / 4 >= rest;
            // A process that does not grow claims no more than it has.
            let more = if count > 1 && has_grown { pages.saturating_sub(resident) } else { 0 };
            let claimed = resident + more.min(fair / LEAST_PART);
            self.family.word(place, Word::Pages).store(claimed, Ordering::Relaxed);
            self.family.word(place, Word::Wants).store(wants.into(), Ordering::Relaxed);
            self.family.word(place, Word::Told).store(now.as_nanos() as u64, Ordering::Relaxed);
        }
        let gone = self.family.gone();
        let somebody_has_gone = gone != std::mem::replace(&mut self.gone, gone);
        Share { pages, somebody_has_gone }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.place;
        (0..MEMBERS_MAX).filter(move |place| Some(*place) != own)
    }

    /// Gives the places away of those that have ended without a word, or have become another program.
    fn look_for_silent(&self, now: Duration) {
        for place in self.others() {
            let process = self.family.get(place, Word::Process);
            let told = Duration::from_nanos(self.family.get(place, Word::Told));
            let silence = now.saturating_sub(told);
            // A process that has just come tells at its first look.
            if process == 0 || told.is_zero() && is_there(process) || silence <= SILENCE.0 {
                continue;
            }
            let is_there = match state_of(process) {
                None | Some('Z' | 'X') => false,
                Some('T' | 't' | 'D') => true,
                Some(_) => silence <= SILENCE.1,
            };
            if !is_there {
                self.leave(place, process);
            }
        }
    }

    fn leave(&self, place: usize, process: u64) {
        let had_pages = self.family.get(place, Word::Pages) > 0;
        for word in [Word::Pages, Word::Wants, Word::Told] {
            self.family.word(place, word).store(0, Ordering::Relaxed);
        }
        let word = self.family.word(place, Word::Process);
        let has_left = word.compare_exchange(process, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if has_left && had_pages {
            self.family.page.get(GONE).fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(place) = self.place
            && self.generation.is_current()
        {
            self.leave(place, self.process);
        }
    }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

fn is_there(process: u64) -> bool {
    !matches!(state_of(process), None | Some('Z' | 'X'))
}

/// As the kernel tells it; none if there is no such process.
fn state_of(process: u64) -> Option<char> {
    task_stat::state(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    const CAPACITY: u64 = 1600;

    fn members(processes: &[u64]) -> Vec<Member> {
        let family = Arc::new(Family::new(CAPACITY as u32).unwrap());
        let generation = Generation::of_this_process().unwrap();
        let join = |process: &u64| {
            let family = Arc::clone(&family);
            let mut member = Member {
                family,
                generation,
                process: *process,
                place: None,
                gone: 0,
                looked_for_silent: now(),
                resident: 0,
            };
            member.take_place();
            member
        };
        processes.iter().map(join).collect()
    }

    /// Each takes what it may have, as fast as a device lets all of them from look to look.
    fn settle(members: &mut [Member], held: &mut [u64]) {
        let fastest = CAPACITY / LEAST_PART / held.len() as u64;
        for _ in 0..1000 {
            for (member, held) in members.iter_mut().zip(held.iter_mut()) {
                *held = member.share(*held).pages.min(*held + fastest);
            }
            let all = held.iter().sum::<u64>();
            assert!(all <= CAPACITY + CAPACITY / LEAST_PART, "{all}: {held:?}");
        }
    }

    #[test]
    fn one_alone_has_all_of_it() {
        let own = u64::from(std::process::id());
        let mut alone = members(&[own]);
        assert_eq!(alone[0].share(CAPACITY), Share { pages: CAPACITY, somebody_has_gone: false });
    }

    #[test]
    fn those_who_want_more_share_alike_and_never_hold_more_than_there_is() {
        let own = u64::from(std::process::id());
        let mut members = members(&[own, own, own]);
        let mut held = [CAPACITY, 0, 0];
        settle(&mut members, &mut held);
        let fair = CAPACITY / 3;
        assert!(held.iter().all(|held| (fair / 2..=fair + CAPACITY / LEAST_PART).contains(held)), "{held:?}");
    }

    #[test]
    fn who_needs_little_leaves_the_rest() {
        let own = u64::from(std::process::id());
        let mut members = members(&[own; 16]);
        // Fifteen that hold something and do nothing.
        for _ in 0..2 {
            members[1..].iter_mut().for_each(|idle| _ = idle.share(10));
        }
        let mut held = 0;
        for _ in 0..100 {
            held = members[0].share(held).pages;
        }
        assert_eq!(held, CAPACITY - 150);
    }

    #[test]
    fn many_that_want_all_hold_little_more_than_there_is() {
        let own = u64::from(std::process::id());
        let mut members = members(&[own; 40]);
        let mut held = [0; 40];
        settle(&mut members, &mut held);
        assert!(held.iter().sum::<u64>() > CAPACITY / 4, "{held:?}");
    }

    #[test]
    fn what_a_process_had_that_has_ended_is_free_again() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let own = u64::from(std::process::id());
        let mut both = members(&[own, child.id().into()]);
        both[1].share(CAPACITY / 2);
        let (later, step) = (now() + 2 * SILENCE.0, CAPACITY / LEAST_PART);
        assert_eq!(both[0].share_at(CAPACITY / 2, later).pages, CAPACITY / 2);
        assert_eq!(both[0].share_at(0, later), Share { pages: step, somebody_has_gone: false });
        child.kill().unwrap();
        child.wait().unwrap();
        let later = later + 2 * SILENCE.0;
        assert_eq!(both[0].share_at(0, later), Share { pages: CAPACITY, somebody_has_gone: true });
        assert_eq!(both[0].share_at(0, later), Share { pages: CAPACITY, somebody_has_gone: false });
    }

    /// An exec leaves the process, but nothing of the program.
    #[test]
    fn who_is_silent_for_long_has_gone_and_may_come_again() {
        let own = u64::from(std::process::id());
        let mut both = members(&[own, own]);
        both[1].share(CAPACITY / 2);
        let later = now() + 2 * SILENCE.1;
        assert!(both[0].share_at(0, later).somebody_has_gone);
        both[1].share_at(CAPACITY / 2, later);
        assert_eq!(both[0].share_at(CAPACITY, later).pages, CAPACITY / 2);
    }
}
