//! A few threads for work that would block the caller.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::cache::fetch::{Failure, Outcome};
use crate::sys::abort::AbortOnUnwind;
use crate::sys::fork::Generation;
use crate::sys::thread::{self, OwnThread};

/// The number of threads, and so of reads under way at a time.
pub(crate) const THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, and the jobs that wait for them.
pub(crate) struct Pool {
    jobs: Arc<Jobs>,
    threads: Vec<OwnThread>,
    generation: Generation,
}

#[derive(Default)]
struct Jobs {
    /// `None` once no more jobs will come. No job runs or is dropped under this lock.
    waiting: Mutex<Option<VecDeque<Job>>>,
    came: Condvar,
}

impl Pool {
    /// Starts the threads.
    pub(crate) fn start(generation: Generation) -> io::Result<Self> {
        let jobs = Arc::new(Jobs { waiting: Mutex::new(Some(VecDeque::new())), came: Condvar::new() });
        let mut pool = Pool { jobs, threads: Vec::with_capacity(THREADS), generation };
        for number in 0..THREADS {
            let jobs = Arc::clone(&pool.jobs);
            // On an error, dropping the pool ends the threads that run already.
            let thread = thread::spawn(format!("vmio-fetch-{number}"), move || {
                // A future waits for the end of the job.
                let _must_go_on = AbortOnUnwind::new();
                while let Some(job) = jobs.next() {
                    job();
                }
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Runs a job in one of the threads.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(waiting) = &mut *self.jobs.waiting() {
            waiting.push_back(Box::new(job));
        }
        self.jobs.came.notify_one();
    }

    /// Splits ranges among the threads. Calls `new_part` for each part now; a thread then runs the result on the part's
    /// ranges. That returns the first failure, and is dropped before its part counts as ended.
    pub(crate) fn fetch_in_parts<Part>(&self, ranges: &[Range<u64>], new_part: impl Fn() -> Part) -> Arc<Outcome>
    where
        Part: FnOnce(Vec<Range<u64>>) -> Option<Failure> + Send + 'static,
    {
        let parts = ranges.len().min(THREADS);
        let outcome = Arc::new(Outcome::of_parts(parts as u32));
        for number in 0..parts {
            let ranges: Vec<_> = ranges.iter().skip(number).step_by(parts).cloned().collect();
            let (part, outcome) = (new_part(), Arc::clone(&outcome));
            self.run(move || {
                let failed = part(ranges);
                outcome.finish_part(failed);
            });
        }
        outcome
    }
}

impl Jobs {
    fn waiting(&self) -> MutexGuard<'_, Option<VecDeque<Job>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = self.waiting();
        loop {
            if let Some(job) = waiting.as_mut()?.pop_front() {
                return Some(job);
            }
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        let left = self.jobs.waiting().take();
        self.jobs.came.notify_all();
        drop(left);
        self.threads.drain(..).for_each(|thread| thread.end("a thread that fetches pages"));
    }
}
