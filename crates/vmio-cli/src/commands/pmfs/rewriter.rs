//! The thread that moves blocks when it has time. Files that somebody has mapped in pieces get aligned extents, and broken extents become whole.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vmio_pmfs::{Error, Fs, Rewrite};

/// How long it rests for each second of its work: calls go first.
const REST: u32 = 9;
/// How often it looks for work.
const AGAIN: Duration = Duration::from_secs(1);

/// Extents that are gathered at once.
const GATHERED: usize = 64;
/// How long it waits when nothing can be gathered.
const GATHER_AGAIN: Duration = Duration::from_secs(60);

/// The thread, which ends with this value.
pub struct Rewriter {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rewriter {
    pub fn start(fs: Arc<Fs>) -> std::io::Result<Rewriter> {
        let (end, ended) = channel();
        let thread = thread::Builder::new().name("pmfs-rewriter".to_owned()).spawn(move || run(&fs, &ended))?;
        Ok(Rewriter { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that rewrites files has panicked");
        }
    }
}

/// Waits; true if it is time to end.
fn rest(ended: &Receiver<()>, time: Duration) -> bool {
    ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}

fn run(fs: &Fs, ended: &Receiver<()>) {
    let mut gather_at = Instant::now() + AGAIN;
    loop {
        if fs.next_wanted().is_some_and(|ino| rewrite(fs, ino, ended)) {
            return;
        }
        let mut time = AGAIN;
        if Instant::now() >= gather_at && fs.has_many_holes() {
            let start = Instant::now();
            let gained = match fs.gather(GATHERED) {
                Ok(gathered) => gathered.extents > 0,
                Err(error) => {
                    tracing::warn!(%error, "blocks cannot be moved");
                    false
                }
            };
            if gained {
                time = start.elapsed() * REST;
            } else {
                gather_at = Instant::now() + GATHER_AGAIN;
            }
        }
        if rest(ended, time) {
            return;
        }
    }
}

/// Rewrites a file. True if it is time to end.
fn rewrite(fs: &Fs, ino: u64, ended: &Receiver<()>) -> bool {
    let mut from = 0;
    loop {
        let start = Instant::now();
        match fs.rewrite_step(ino, from) {
            Ok(Rewrite::Moved(next)) => from = next,
            Ok(Rewrite::InUse) => {
                fs.wants_alignment(ino);
                return false;
            }
            // Removed since.
            Ok(Rewrite::Done | Rewrite::NoSpace) | Err(Error::NoInode { .. }) => return false,
            Err(error) => {
                tracing::warn!(ino, %error, "a file cannot be rewritten");
                return false;
            }
        }
        if rest(ended, start.elapsed() * REST) {
            return true;
        }
    }
}
