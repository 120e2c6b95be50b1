//! Commits: one at a time, each for all threads that wait for one.

use std::cell::OnceCell;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::journal::core::Core;
use crate::journal::delta_batch::CommitDeltas;
use crate::journal::failure::failed_at;
use crate::journal::format::CommittedFile;
use crate::journal::joined::Joined;
use crate::journal::log::CommitFailure;
use crate::journal::participant::Participant;
use crate::sys::fork::Generation;
use crate::sys::probes;
use crate::sys::signal::SignalsBlocked;

/// A commit in the making.
///
/// Its pages are those spilled since the previous commit, and those written here.
pub struct Commit<'a> {
    pub(super) core: &'a Core,
    frozen: OnceCell<Frozen>,
}

/// The commit once its line is drawn: its number, and the files that take part.
pub(super) struct Frozen {
    pub(super) number: u64,
    files: Vec<CommittedFile>,
}

impl Commit<'_> {
    /// Draws the line between this commit and the next: pages spilled from now on belong to the next one.
    ///
    /// Pages of a ticket that was drawn before belong to this commit, which waits for the ticket at the end. If the
    /// commit is to be a point in time, no store may happen during this call.
    ///
    /// # Default
    ///
    /// The first [`Self::write`] draws the line, or else the end of the commit.
    pub fn freeze(&self) {
        // In a forked child the commit is the parent's, and so is the line.
        if self.core.is_of_this_process() {
            self.frozen();
        }
    }

    pub(super) fn frozen(&self) -> &Frozen {
        self.frozen.get_or_init(|| {
            let _signals = SignalsBlocked::new();
            // The line comes before the lengths: if a file grows before the line, its committed length must cover the
            // pages that were spilled in time.
            let number = self.core.tickets.advance();
            let files = self.core.files();
            let open = files.iter().filter(|joined| joined.is_open.load(Ordering::SeqCst));
            Frozen { files: open.map(committed).collect(), number }
        })
    }
}

/// The threads that commit: one leads, the others wait for the commit that serves them.
pub(crate) struct CommitQueue {
    generation: Generation,
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    /// Commits begun.
    begun: u64,
    is_under_way: bool,
    /// The last commit that succeeded, and its number in the journal.
    succeeded: Option<(u64, u64)>,
}

/// The right to lead a commit; dropping it gives the lead up.
struct Lead<'a> {
    queue: &'a CommitQueue,
    round: u64,
    outcome: Option<u64>,
}

impl CommitQueue {
    pub(crate) fn new(generation: Generation) -> Self {
        CommitQueue { generation, rounds: Mutex::default(), ended: Condvar::new() }
    }

    /// Commits, or waits for a commit that begins after this call and succeeds. Returns its number.
    pub(crate) fn commit<W>(&self, core: &Core, write: Option<W>) -> Result<u64>
    where
        W: FnOnce(&Commit<'_>) -> Result<()>,
    {
        let _span = tracing::debug_span!("commit").entered();
        let mut lead = match self.enter() {
            Ok(lead) => lead,
            Err(number) => return Ok(number),
        };
        probes::commit_begin();
        let committed = lead_commit(core, write);
        probes::commit_end(committed.as_ref().map_or(0, |number| *number));
        lead.outcome = committed.as_ref().ok().copied();
        committed
    }

    /// Returns the lead, or the number of a commit that another thread has led.
    fn enter(&self) -> Result<Lead<'_>, u64> {
        let mut rounds = self.rounds();
        let first_of_use = rounds.begun + 1;
        loop {
            if let Some((_, number)) = rounds.succeeded.filter(|(round, _)| *round >= first_of_use) {
                return Err(number);
            }
            debug_assert!(rounds.succeeded.is_none_or(|(round, _)| round <= rounds.begun));
            if !rounds.is_under_way {
                rounds.is_under_way = true;
                rounds.begun += 1;
                return Ok(Lead { queue: self, round: rounds.begun, outcome: None });
            }
            rounds = self.ended.wait(rounds).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the commit under way, and keeps others from beginning until the returned value is dropped.
    pub(crate) fn hold(&self) -> impl Drop {
        let idle = self.ended.wait_while(self.rounds(), |rounds| rounds.is_under_way);
        let mut rounds = idle.unwrap_or_else(PoisonError::into_inner);
        debug_assert!(!rounds.is_under_way);
        rounds.is_under_way = true;
        Lead { queue: self, round: rounds.begun, outcome: None }
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // In a forked child the lead is the parent's, and one of the parent's threads may have had the lock.
        if !self.queue.generation.is_current() {
            return;
        }
        let mut rounds = self.queue.rounds();
        debug_assert!(rounds.is_under_way && rounds.begun == self.round, "two threads lead");
        rounds.is_under_way = false;
        if let Some(number) = self.outcome {
            rounds.succeeded = Some((self.round, number));
        }
        self.queue.ended.notify_all();
    }
}

/// A commit that has begun. However it ends, nobody has a ticket of it afterwards, and no page waits for it. The next
/// commit relies on that.
struct Begun<'a, 'b> {
    commit: &'a Commit<'b>,
    participants: Participants,
    is_durable: bool,
}

impl Begun<'_, '_> {
    /// Waits for the threads that have a ticket.
    fn drain(&self) {
        if let Some(frozen) = self.commit.frozen.get() {
            self.commit.core.tickets.drain(frozen.number);
        }
    }
}

impl Drop for Begun<'_, '_> {
    fn drop(&mut self) {
        // A forked child does not learn when tickets are given back. The pages and the deltas are its parent's.
        if !self.commit.core.is_of_this_process() {
            return;
        }
        self.drain();
        if !self.is_durable {
            let _signals = SignalsBlocked::new();
            // The next commit must take over the pages of unwritten deltas as well.
            let number = self.commit.frozen.get().map_or(0, |frozen| frozen.number);
            self.commit.core.deltas().settle(number, Err(io::ErrorKind::Other));
            self.participants.pass_on(self.commit);
        }
    }
}

/// For a commit to which its caller adds nothing.
pub(crate) const NOTHING_MORE: Option<fn(&Commit<'_>) -> Result<()>> = None;

/// Commits. The caller keeps other commits from beginning.
pub(crate) fn lead_commit<W>(core: &Core, write: Option<W>) -> Result<u64>
where
    W: FnOnce(&Commit<'_>) -> Result<()>,
{
    let commit = Commit { core, frozen: OnceCell::new() };
    let mut begun = Begun { commit: &commit, participants: Participants::hold_stores(&commit)?, is_durable: false };
    begun.participants.write(&commit)?;
    if let Some(write) = write {
        // Pages whose deltas are not written cannot be evicted, and the caller may need space in a cache.
        append_deltas(&commit)?;
        write(&commit)?;
        // `write` may have forked, and this may be the child: it would overwrite what its parent writes.
        core.check_not_forked()?;
    }
    commit.freeze();
    begun.drain();
    // Threads that had tickets may have failed to write their pages.
    begun.participants.write(&commit)?;
    let number = seal(&commit)?;
    debug_assert!(core.log.durable() <= core.log.head() && number < core.tickets.epoch());
    begun.is_durable = true;
    Ok(number)
}

/// Appends the deltas of a commit whose line is drawn.
pub(super) fn append_deltas(commit: &Commit<'_>) -> Result<()> {
    let Some(frozen) = commit.frozen.get() else { return Ok(()) };
    let _signals = SignalsBlocked::new();
    let core = commit.core;
    let appended = core.deltas().append(&core.log, &core.checkpoints, frozen.number);
    appended.map_err(|refusal| core.log.refused(refusal))
}

/// The deltas of the commit of that number. Only for the thread that leads the commit, with signals blocked.
pub(super) fn deltas(core: &Core, number: u64) -> CommitDeltas<'_> {
    CommitDeltas::new(&core.log, &core.checkpoints, number, core.deltas())
}

/// The participants that a commit asks for their pages.
struct Participants(Vec<Arc<dyn Participant>>);

impl Participants {
    /// Protects all pages that were stored to, while stores wait, and draws the line: the commit's point in time.
    fn hold_stores(commit: &Commit<'_>) -> Result<Self> {
        let core = commit.core;
        let _signals = SignalsBlocked::new();
        // No participant comes or goes while a commit is under way.
        let participants: Vec<_> = core.files().iter().filter_map(|joined| joined.participant()).collect();
        if !participants.is_empty() {
            participants.iter().try_for_each(|participant| participant.protect())?;
            let _held = HeldStores::new(core);
            participants.iter().try_for_each(|participant| participant.protect())?;
            commit.freeze();
        }
        Ok(Participants(participants))
    }

    fn write(&self, commit: &Commit<'_>) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let _signals = SignalsBlocked::new();
        let mut deltas = deltas(commit.core, commit.frozen().number);
        self.0.iter().try_for_each(|participant| participant.write(&mut deltas))
    }

    fn pass_on(&self, commit: &Commit<'_>) {
        self.0.iter().for_each(|participant| participant.pass_on(commit.frozen().number));
    }
}

/// The store gate while it is closed; dropping it opens the gate.
struct HeldStores<'a> {
    core: &'a Core,
    since: Instant,
}

impl<'a> HeldStores<'a> {
    fn new(core: &'a Core) -> Self {
        let since = Instant::now();
        core.stores.close();
        HeldStores { core, since }
    }
}

impl Drop for HeldStores<'_> {
    fn drop(&mut self) {
        self.core.stores.open();
        self.core.stores_held_ns_max.fetch_max(self.since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Writes the commit record and makes it durable.
fn seal(commit: &Commit<'_>) -> Result<u64> {
    let core = commit.core;
    let Frozen { number, files } = commit.frozen();
    let _signals = SignalsBlocked::new();
    if core.is_incomplete(*number) {
        return Err(core.log.full());
    }
    let failed = |failure| match failure {
        CommitFailure::Full => core.log.full(),
        CommitFailure::Write(source) => failed_at(core.log.ring.device(), "writing")(source),
        CommitFailure::Flush(source) => Error::JournalFlush { journal: core.log.ring.device().describe(), source },
    };
    let mut deltas = core.deltas();
    let record = loop {
        let tail = core.log.tail();
        match core.log.commit(*number, files, &mut deltas.records) {
            Err(CommitFailure::Full) if core.checkpoints.make_room(&core.log, tail) => {}
            other => break other.map_err(failed)?,
        }
    };
    // Settle before the record is durable: from then on a checkpoint may come.
    deltas.settle(*number, Ok(record.first));
    debug_assert!(deltas.records.is_empty());
    drop(deltas);
    let end = core.log.make_durable(record).map_err(failed)?;
    if end - core.log.tail() >= core.checkpoint_at_pages {
        core.checkpoints.begin();
    }
    Ok(*number)
}

fn committed(joined: &Arc<Joined>) -> CommittedFile {
    CommittedFile { file: joined.file, len: joined.len.load(Ordering::SeqCst), since: joined.since }
}
