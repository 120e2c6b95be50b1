//! Things to undo when the command ends, also when it ends by Ctrl-C: devices to give back,
//! temporary files to remove, children to stop.

use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

/// An action that runs once: when this value drops, or when the process is told to end.
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

/// What the shell reports for a command that Ctrl-C ended.
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

    /// Forgets the action: what it would have undone is to stay.
    pub fn disarm(self) {
        drop(take(&mut lock(), self.id));
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // The lock is held while the action runs: an interrupt waits for it to complete.
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

/// Holds the lock to the end: the main thread, which notices that its child is gone, must neither
/// run an action a second time nor end the process in the middle of one.
fn run_all_and_exit() {
    let mut actions = lock();
    while let Some((_, action)) = actions.pending.pop() {
        action();
    }
    process::exit(EXIT_INTERRUPTED);
}
