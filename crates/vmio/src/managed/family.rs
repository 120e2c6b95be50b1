//! A *family*: a process and its forked children, which keep one budget together. Each of these processes is a
//! *member*.
//!
//! Each member publishes in shared memory how many pages it holds. The budget of each is the capacity less the pages
//! that the others hold. A member that wants more, and has less than an equal share, gets it: members with more give up
//! what exceeds their share.

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

/// The members that the shared page has places for. Every further process keeps to the least share that a member can
/// have.
const MEMBERS_MAX: usize = 64;
/// One part in this many: the least part of an equal share that a member may have. Also the part of the capacity by
/// which it grows at most between two looks.
const LEAST_PART: u64 = 16;
/// The silence of a member after which others check that its process exists, and after which they give it up. They keep
/// a member that is stopped, or in an uninterruptible wait.
const SILENCE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

// The words of the shared page: the capacity, how many members that held pages have gone, and four words for each
// member.
const CAPACITY: usize = 0;
const GONE: usize = 1;
const MEMBERS: usize = 8;
const WORDS: usize = 4;

/// The memory that the members share.
pub(super) struct Family {
    page: SparseArray<AtomicU64>,
}

/// The words that a member publishes.
#[derive(Clone, Copy)]
enum Word {
    /// The process ID; 0 if the place is free.
    Process,
    /// The pages that it holds, or may hold before it reports again.
    Pages,
    /// Whether it wants more pages and has less than an equal share.
    Wants,
    /// The time of its last report, in nanoseconds since boot.
    Told,
}

impl Family {
    pub(super) fn new(capacity_pages: u32) -> io::Result<Self> {
        let family = Family { page: SparseArray::over(Reservation::shared_with_children(PAGE_BYTES)?) };
        family.set_capacity(capacity_pages);
        Ok(family)
    }

    /// Pages that all members may hold together.
    pub(super) fn capacity(&self) -> u64 {
        self.page.get(CAPACITY).load(Ordering::Relaxed)
    }

    pub(super) fn set_capacity(&self, pages: u32) {
        self.page.get(CAPACITY).store(pages.into(), Ordering::Relaxed);
    }

    /// How many members that held pages have gone so far.
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

/// This process as a member. Dropping it leaves the family, except in a forked child.
pub(super) struct Member {
    family: Arc<Family>,
    generation: Generation,
    process: u64,
    /// `None` if all places were taken.
    place: Option<usize>,
    /// [`Family::gone`] at its last look.
    gone: u64,
    looked_for_silent: Duration,
    /// The pages that it held at its last report.
    resident: u64,
}

/// How many pages a member may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) pages: u64,
    /// Whether a member has gone since the last look, and has left its pages in memory.
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

    /// Reports how many pages this member holds, and returns how many it may hold.
    pub(super) fn share(&mut self, resident: u64) -> Share {
        self.share_at(resident, now())
    }

    /// Reports that this member is in the middle of reclaim, which may take long.
    pub(super) fn is_at_work(&self, resident: u64) {
        if let Some(place) = self.place {
            self.family.word(place, Word::Pages).store(resident, Ordering::Relaxed);
            self.family.word(place, Word::Told).store(now().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn share_at(&mut self, resident: u64, now: Duration) -> Share {
        // On busy cores a member may be silent for so long that others give its place away.
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
            // Others may begin to grow at the same time. Small steps let the members see each other.
            Some(_) => rest.min(resident + capacity / LEAST_PART).min(if is_wanted { fair } else { rest }),
        };
        let has_grown = resident > std::mem::replace(&mut self.resident, resident);
        if let Some(place) = self.place {
            let wants = count > 1 && rest < fair && resident + rest / 4 >= rest;
            // A process that does not grow claims no more pages than it has.
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

    /// Frees the places of processes that ended without leaving, or that have executed another program.
    fn look_for_silent(&self, now: Duration) {
        for place in self.others() {
            let process = self.family.get(place, Word::Process);
            let told = Duration::from_nanos(self.family.get(place, Word::Told));
            let silence = now.saturating_sub(told);
            // A process that has just joined reports at its first look.
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

/// The state of a process, from /proc/PID/stat; `None` if there is no such process.
fn state_of(process: u64) -> Option<char> {
    task_stat::state(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

#[cfg(test)]
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

    /// Each member takes its share, as fast as a device serves all of them between two looks.
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
        // Fifteen members hold some pages and are idle.
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

    /// After an exec the process exists, but nothing of the program that joined.
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
