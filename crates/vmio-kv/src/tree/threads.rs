//! The threads that merge: each compaction has one, and idle ones merge parts of its target.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

use vmio::SignalsBlocked;

use crate::error::Result;

/// Counts the threads that merge.
pub(crate) struct MergeThreads {
    most: usize,
    busy: AtomicUsize,
}

/// Threads that count as busy.
struct BusyThreads<'threads> {
    of: &'threads MergeThreads,
    threads: usize,
}

impl Drop for BusyThreads<'_> {
    fn drop(&mut self) {
        self.of.busy.fetch_sub(self.threads, Ordering::Relaxed);
    }
}

/// The answers of one thread with the places of their parts, or its error.
type Done<Answer> = Result<Vec<(usize, Answer)>>;

impl MergeThreads {
    /// At most `most` threads, unless more compactions than that are under way.
    pub(crate) fn new(most: usize) -> Self {
        MergeThreads { most, busy: AtomicUsize::new(0) }
    }

    /// The most threads.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Counts the calling thread as busy, and as many idle ones as are wanted.
    fn take_idle(&self, wanted: usize) -> BusyThreads<'_> {
        let mut threads = 1;
        let taken = self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| {
            threads = wanted.min(self.most.saturating_sub(busy)).max(1);
            Some(busy + threads)
        });
        debug_assert!(taken.is_ok(), "the update never refuses");
        BusyThreads { of: self, threads }
    }

    /// Does the parts of some work with the help of idle threads. Returns the answers in order, or the first error. No part begins after an
    /// error.
    pub(super) fn each<Part: Sync, Answer: Send>(
        &self,
        parts: &[Part],
        work: impl Fn(&Part) -> Result<Answer> + Sync,
    ) -> Result<Vec<Answer>> {
        let busy = self.take_idle(parts.len());
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let do_some = || {
            let mut done = Vec::new();
            while !has_failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(index) else { break };
                let answer = work(part).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
                done.push((index, answer));
            }
            Ok(done)
        };
        let done = thread::scope(|scope| {
            let helpers: Vec<ScopedJoinHandle<'_, Done<Answer>>> = {
                // The program's signal handlers do not run in them: they inherit the mask.
                let _signals = SignalsBlocked::new();
                let start = |_| thread::Builder::new().name("vmio-kv-merge".to_owned()).spawn_scoped(scope, do_some);
                (1..busy.threads).map_while(|number| start(number).inspect_err(no_thread).ok()).collect()
            };
            let mut all: Vec<Done<Answer>> = vec![do_some()];
            all.extend(helpers.into_iter().map(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic))));
            all.into_iter().collect::<Result<Vec<_>>>()
        })?;
        let mut done: Vec<(usize, Answer)> = done.into_iter().flatten().collect();
        done.sort_unstable_by_key(|(index, _)| *index);
        Ok(done.into_iter().map(|(_, answer)| answer).collect())
    }
}

fn no_thread(error: &std::io::Error) {
    tracing::debug!(%error, "a thread that helps to merge could not be started; the others do its part");
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::error::{Error, FullPlace};

    #[test]
    fn parts_are_done_at_once_and_answered_in_order() {
        let threads = MergeThreads::new(3);
        // It lets no thread past before all three have come.
        let barrier = Barrier::new(3);
        let answers = threads.each(&[5, 6, 7], |part| {
            barrier.wait();
            Ok(part * 2)
        });
        assert_eq!(answers.expect("no part fails"), [10, 12, 14]);
        assert_eq!(threads.busy.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn without_idle_threads_the_caller_works_alone() {
        let threads = MergeThreads::new(2);
        let busy = threads.take_idle(2);
        assert_eq!((busy.threads, threads.take_idle(4).threads), (2, 1));
        assert_eq!(threads.each(&[1, 2, 3], |part| Ok(*part)).expect("no part fails"), [1, 2, 3]);
        drop(busy);
        assert_eq!(threads.take_idle(4).threads, 2);
    }

    #[test]
    fn no_part_begins_after_an_error() {
        let threads = MergeThreads::new(1);
        let begun = AtomicUsize::new(0);
        let failed = threads.each(&[0, 1, 2, 3], |part| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *part == 1 {
                Err(Error::Full { volume: "x".to_owned(), wanted: 1, place: FullPlace::Volume })
            } else {
                Ok(())
            }
        });
        assert!(matches!(failed, Err(Error::Full { .. })));
        assert_eq!(begun.into_inner(), 2);
    }
}
