//! Threads that begin together, and what they have done until the last one ends.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

/// What threads have done together.
#[derive(Debug)]
pub struct Done {
    ops: u64,
    waits: u64,
    took: Duration,
}

impl Done {
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.took.as_secs_f64()
    }

    pub fn waits_per_op(&self) -> f64 {
        self.waits as f64 / self.ops.max(1) as f64
    }
}

/// Prepares a state for each thread by its own, then has all of them work at once. `work` returns how many operations it has made.
pub fn together<State: Send>(
    threads: u8,
    prepare: impl Fn(u8) -> anyhow::Result<State> + Sync,
    work: impl Fn(&mut State) -> anyhow::Result<u64> + Sync,
) -> anyhow::Result<Done> {
    let barrier = Barrier::new(usize::from(threads));
    let one = |number: u8| -> anyhow::Result<(u64, u64, Instant, Instant)> {
        let prepared = prepare(number);
        // Also if it has failed: the others wait.
        barrier.wait();
        let mut state = prepared?;
        let (waited, began) = (waits()?, Instant::now());
        let ops = work(&mut state)?;
        Ok((ops, waits()? - waited, began, Instant::now()))
    };
    let ends = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|number| scope.spawn(move || one(number))).collect();
        started
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread has panicked"))?)
            .collect::<Vec<_>>()
    });
    let ends = ends.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let began = ends.iter().map(|end| end.2).min().context("no thread")?;
    let ended = ends.iter().map(|end| end.3).max().context("no thread")?;
    Ok(Done { ops: ends.iter().map(|end| end.0).sum(), waits: ends.iter().map(|end| end.1).sum(), took: ended - began })
}

/// How often this thread has waited so far.
fn waits() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("the kernel does not count context switches")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_waits_of_all_threads_count() -> anyhow::Result<()> {
        let work = |number: &mut u64| {
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(*number)
        };
        let done = together(3, |number| Ok(u64::from(number) + 1), work)?;
        assert_eq!(done.ops, 6);
        assert!(done.waits >= 60, "{done:?}");
        assert!(done.took >= Duration::from_millis(20), "{done:?}");
        Ok(())
    }

    #[test]
    fn a_thread_that_cannot_begin_keeps_no_other() {
        let prepare = |number| if number == 1 { Err(anyhow!("no")) } else { Ok(()) };
        let failed = together(2, prepare, |()| Ok(1));
        assert_eq!(failed.map(|_| ()).map_err(|error| error.to_string()), Err("no".to_owned()));
    }
}
