//! The thread that gives files aligned extents which were mapped without.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vmio_pmfs::{Error, Fs, Rewrite};

/// How long it rests for each second of its work: calls go first.
const REST: u32 = 9;
/// How often it looks whether a file is still in use.
const AGAIN: Duration = Duration::from_secs(1);

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
    while !rest(ended, Duration::ZERO) {
        let Some(ino) = fs.next_wanted(AGAIN) else { continue };
        let mut from = 0;
        loop {
            let start = Instant::now();
            match fs.rewrite_step(ino, from) {
                Ok(Rewrite::Moved(next)) => from = next,
                Ok(Rewrite::InUse) => {
                    fs.wants_alignment(ino);
                    if rest(ended, AGAIN) {
                        return;
                    }
                    break;
                }
                // Removed since.
                Ok(Rewrite::Done | Rewrite::NoSpace) | Err(Error::NoInode { .. }) => break,
                Err(error) => {
                    tracing::warn!(ino, %error, "a file cannot be rewritten");
                    break;
                }
            }
            if rest(ended, start.elapsed() * REST) {
                return;
            }
        }
    }
}
