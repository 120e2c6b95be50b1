//! Actions at the end of the command, even if Ctrl-C ends it: giving back devices, removing temporary files, stopping children.

use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

/// An action that runs once: when this value drops, or when a signal ends the process.
#[must_use = "the action runs when this value drops"]
pub struct Cleanup {
    id: u64,
}

type Action = Box<dyn FnOnce() + Send>;

struct Actions {
    pending: Vec<(u64, Action)>,
    next_id: u64,
    handler_installed: bool,
}

static ACTIONS: Mutex<Actions> = Mutex::new(Actions { pending: Vec::new(), next_id: 0, handler_installed: false });

/// The status that the shell reports for a command that Ctrl-C ended.
const EXIT_INTERRUPTED: i32 = 130;

impl Cleanup {
    /// Registers an action. Actions run in the reverse of the order of their registration.
    pub fn register(action: impl FnOnce() + Send + 'static) -> anyhow::Result<Self> {
        let mut actions = lock();
        if !actions.handler_installed {
            ctrlc::set_handler(run_all_and_exit).context("cannot watch for Ctrl-C")?;
            actions.handler_installed = true;
        }
        let id = actions.next_id;
        actions.next_id += 1;
        actions.pending.push((id, Box::new(action)));
        Ok(Self { id })
    }

    /// Forgets the action, whose object is to stay.
    pub fn disarm(self) {
        drop(take(&mut lock(), self.id));
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // The lock is held until the action has run: an interrupt waits for it to complete.
        let mut actions = lock();
        if let Some(action) = take(&mut actions, self.id) {
            action();
        }
    }
}

fn lock() -> MutexGuard<'static, Actions> {
    ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(actions: &mut Actions, id: u64) -> Option<Action> {
    let index = actions.pending.iter().position(|(pending, _)| *pending == id)?;
    Some(actions.pending.remove(index).1)
}

/// Runs all actions and ends the process. Holds the lock to the end: the main thread, which notices that its child is gone, must neither
/// run an action a second time nor end the process in the middle of one.
fn run_all_and_exit() {
    let mut actions = lock();
    while let Some((_, action)) = actions.pending.pop() {
        action();
    }
    process::exit(EXIT_INTERRUPTED);
}
