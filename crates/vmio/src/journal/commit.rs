//! Commits: one at a time, each for all threads that wait.

use std::cell::OnceCell;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::journal::core::{Core, Joined};
use crate::journal::delta_batch::CommitDeltas;
use crate::journal::failed_at;
use crate::journal::format::{CommittedFile, RecordKind};
use crate::journal::journaled_backing::JournaledBacking;
use crate::journal::log::CommitFailure;
use crate::journal::participant::Participant;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::probes;
use crate::sys::signal::SignalsBlocked;

/// A commit that is being put together.
///
/// Its pages are those that were spilled since the commit before, and those written here.
pub struct Commit<'a> {
    core: &'a Core,
    frozen: OnceCell<Frozen>,
}

/// The commit once its line is drawn.
struct Frozen {
    number: u64,
    files: Vec<CommittedFile>,
}

impl Commit<'_> {
    /// Draws the line between this commit and the next: what is spilled from now on belongs to the next one. What holds a ticket that
    /// was drawn before belongs to this one, and is waited for at the end. Called while stores stand still, if the commit is to be a
    /// point in time.
    ///
    /// # Default
    ///
    /// The line is drawn with the first [`Self::write`], or at the end.
    pub fn freeze(&self) {
        // The line is the parent's to draw.
        if self.core.is_of_this_process() {
            self.frozen();
        }
    }

    fn frozen(&self) -> &Frozen {
        self.frozen.get_or_init(|| {
            let _signals = SignalsBlocked::new();
            // First the line: a file that grows before it must not be cut where the pages behind were spilled in time.
            let number = self.core.tickets.advance();
            let files = self.core.files();
            let open = files.iter().filter(|joined| joined.is_open.load(Ordering::SeqCst));
            Frozen { files: open.map(committed).collect(), number }
        })
    }

    /// Adds pages of a file, under the rules of [`crate::backing::Backing::write_at`].
    ///
    /// # Errors
    ///
    /// [`Error::JournalFull`] or [`Error::Journal`]. After an error the commit must fail; what was written becomes part of the next
    /// one.
    pub fn write(&self, file: &JournaledBacking, offset: u64, data: &[u8]) -> Result<()> {
        self.core.check_not_forked()?;
        // Of a page that is written twice, the second is what counts.
        append_deltas(self)?;
        let number = |at: usize| offset / PAGE_BYTES as u64 + at as u64;
        let appended = self.core.append(RecordKind::Batch, self.frozen().number, file.joined(), &number, data);
        appended.map_err(|refusal| self.core.refused(refusal))
    }

    /// Adds a page of a file of which the caller knows the newest version, `before`: writes only what differs in `after`, or
    /// the whole page if much differs. Nobody may spill the page until the commit has ended. If the commit fails, the newest version
    /// may be the one before: read the page.
    ///
    /// # Errors
    ///
    /// Those of [`Self::write`]; [`Error::BadOption`] for what is no page of the file.
    pub fn write_changes(&self, file: &JournaledBacking, page: u64, before: &[u8], after: &[u8]) -> Result<()> {
        self.core.check_not_forked()?;
        let is_page = before.len() == PAGE_BYTES && after.len() == PAGE_BYTES;
        if !is_page || page >= file.len().div_ceil(PAGE_BYTES as u64) {
            let expected = "whole pages of the file";
            let value = format!("{} and {} bytes of page {page}", before.len(), after.len());
            return Err(Error::BadOption { option: "changes of a page", value, expected });
        }
        let number = self.frozen().number;
        if self.core.deltas().has(file.joined(), page) {
            append_deltas(self)?;
        }
        let written = {
            let _signals = SignalsBlocked::new();
            let mut deltas = CommitDeltas::new(self.core, number);
            deltas.make_room()?;
            deltas.add(file.joined(), page, before, after).is_some()
        };
        if written { Ok(()) } else { self.write(file, page * PAGE_BYTES as u64, after) }
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
    /// The last one that succeeded, and its number in the journal.
    succeeded: Option<(u64, u64)>,
}

/// The right to lead; given up when dropped.
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

    /// The lead, or the number of a commit that another thread has led.
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

    /// Keeps commits from beginning, and waits for the one under way, until what this returns is dropped.
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
        // The lead is the parent's, and one of its threads may have had the lock.
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

/// A commit that has been begun. However it ends, nobody has a ticket of it afterwards, and no page waits for it: the next
/// one relies on that.
struct Begun<'a, 'b> {
    commit: &'a Commit<'b>,
    participants: Participants,
    is_durable: bool,
}

impl Begun<'_, '_> {
    /// Waits for those who have a ticket.
    fn drain(&self) {
        if let Some(frozen) = self.commit.frozen.get() {
            self.commit.core.tickets.drain(frozen.number);
        }
    }
}

impl Drop for Begun<'_, '_> {
    fn drop(&mut self) {
        // Of who has tickets a forked child hears nothing; the pages and the deltas are its parent's.
        if !self.commit.core.is_of_this_process() {
            return;
        }
        self.drain();
        if !self.is_durable {
            let _signals = SignalsBlocked::new();
            // Their pages are to be passed on as well.
            let number = self.commit.frozen.get().map_or(0, |frozen| frozen.number);
            self.commit.core.deltas().settle(number, Err(io::ErrorKind::Other));
            self.participants.pass_on(self.commit);
        }
    }
}

/// Nothing that the caller of a commit adds to it.
pub(crate) const NOTHING_MORE: Option<fn(&Commit<'_>) -> Result<()>> = None;

/// Commits, for who keeps other commits from beginning.
pub(crate) fn lead_commit<W>(core: &Core, write: Option<W>) -> Result<u64>
where
    W: FnOnce(&Commit<'_>) -> Result<()>,
{
    let commit = Commit { core, frozen: OnceCell::new() };
    let mut begun = Begun { commit: &commit, participants: Participants::hold_stores(&commit)?, is_durable: false };
    begun.participants.write(&commit)?;
    if let Some(write) = write {
        // Pages whose deltas have not been written cannot be evicted, and the caller may need room in a cache.
        append_deltas(&commit)?;
        write(&commit)?;
        // It may have forked, and this be the child, which would write over what its parent writes.
        core.check_not_forked()?;
    }
    commit.freeze();
    begun.drain();
    // Those who had tickets may have failed.
    begun.participants.write(&commit)?;
    let number = seal(&commit)?;
    debug_assert!(core.log.durable() <= core.log.head() && number < core.tickets.epoch());
    begun.is_durable = true;
    Ok(number)
}

fn append_deltas(commit: &Commit<'_>) -> Result<()> {
    let Some(frozen) = commit.frozen.get() else { return Ok(()) };
    let _signals = SignalsBlocked::new();
    let appended = commit.core.append_deltas(frozen.number, &mut commit.core.deltas());
    appended.map_err(|refusal| commit.core.refused(refusal))
}

/// Those who are asked for their pages.
struct Participants(Vec<Arc<dyn Participant>>);

impl Participants {
    /// Has all pages protected that were stored to, while stores wait, and draws the line: the commit's point in time.
    fn hold_stores(commit: &Commit<'_>) -> Result<Self> {
        let core = commit.core;
        let _signals = SignalsBlocked::new();
        // Nobody comes or goes while a commit is under way.
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
        let mut deltas = CommitDeltas::new(commit.core, commit.frozen().number);
        self.0.iter().try_for_each(|participant| participant.write(&mut deltas))
    }

    fn pass_on(&self, commit: &Commit<'_>) {
        self.0.iter().for_each(|participant| participant.pass_on(commit.frozen().number));
    }
}

/// The store gate while it is closed.
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
        return Err(core.full());
    }
    let failed = |failure| match failure {
        CommitFailure::Full => core.full(),
        CommitFailure::Write(source) => failed_at(core.log.ring.device(), "writing")(source),
        CommitFailure::Flush(source) => Error::JournalFlush { journal: core.log.ring.device().describe(), source },
    };
    let mut deltas = core.deltas();
    let record = loop {
        let tail = core.log.tail();
        match core.log.commit(*number, files, &mut deltas) {
            Err(CommitFailure::Full) if core.make_room(tail) => {}
            other => break other.map_err(failed)?,
        }
    };
    // Before it is durable, since then a checkpoint may come.
    deltas.settle(*number, Ok(record.first));
    debug_assert!(deltas.is_empty());
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
