//! A file whose writes go to the journal until they are committed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmio_core::store_gate::StoreGate;

use crate::backing::{Access, Backing, FileUser, Identity};
use crate::error::Error;
use crate::journal::chain::{Bottom, CHAIN_PAGES, read_version};
use crate::journal::commit::NOTHING_MORE;
use crate::journal::drain_gate::Inside;
use crate::journal::failure::failed_at;
use crate::journal::format::RecordKind;
use crate::journal::joined::Joined;
use crate::journal::log::Refusal;
use crate::journal::opened::Opened;
use crate::journal::participant::Participant;
use crate::journal::place::Place;
use crate::journal::version::Version;
use crate::sys::PAGE_BYTES;

/// A file of a journal as a mapping sees it: the newest version of each page, committed or not.
///
/// [`Backing::write_at`] spills pages to the journal; they belong to the next commit. [`Backing::flush`] commits the
/// spilled pages of all files of the journal. Dropping this forgets uncommitted pages.
pub struct JournaledBacking {
    joined: Arc<Joined>,
    opened: Arc<Opened>,
}

/// The right to write pages of a certain commit, which waits until the ticket is dropped.
///
/// A caller draws the ticket when it copies the pages, since the line between two commits may fall between the copy and
/// the write.
pub struct CommitTicket<'a>(Inside<'a>);

impl CommitTicket<'_> {
    /// Returns the number of the commit.
    pub fn commit(&self) -> u64 {
        self.0.epoch()
    }
}

impl JournaledBacking {
    pub(crate) fn new(joined: Arc<Joined>, opened: Arc<Opened>) -> Self {
        JournaledBacking { joined, opened }
    }

    pub(crate) fn joined(&self) -> &Arc<Joined> {
        &self.joined
    }

    /// Draws a ticket for the present commit. The caller must not commit before the ticket is dropped.
    pub fn ticket(&self) -> CommitTicket<'_> {
        CommitTicket(self.opened.core.tickets.enter())
    }

    /// Fails in a forked child, where the journal is the parent's.
    fn check_not_forked(&self) -> io::Result<()> {
        self.opened.check_not_forked().map_err(io::Error::other)
    }

    /// Spills pages that belong to the commit of a ticket; otherwise like [`Backing::write_at`].
    pub fn spill(&self, ticket: &CommitTicket<'_>, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_not_forked()?;
        let number = |at: usize| offset / PAGE_BYTES as u64 + at as u64;
        self.append(RecordKind::Spill, ticket.commit(), &number, data)
    }

    /// Draws a ticket that outlives its borrow. Returns the number of the commit, which the caller hands back.
    pub(crate) fn draw(&self) -> u64 {
        let ticket = self.ticket();
        let number = ticket.commit();
        std::mem::forget(ticket);
        number
    }

    /// Hands back a ticket, by the number that [`Self::draw`] returned.
    pub(crate) fn hand_back(&self, number: u64) {
        self.opened.core.tickets.leave(number);
    }

    /// The number of the commit that stores belong to. It does not change while a thread is inside the store gate.
    pub(crate) fn present_commit(&self) -> u64 {
        self.opened.core.tickets.epoch()
    }

    /// The gate in which a thread must be while it makes a page of the file writable.
    pub(crate) fn store_gate(&self) -> &StoreGate {
        &self.opened.core.stores
    }

    /// Writes pages of a commit, in ascending order. The caller has a ticket of the commit or leads it. Leaves out
    /// pages behind the end.
    pub(crate) fn append(
        &self,
        kind: RecordKind,
        commit: u64,
        number: &dyn Fn(usize) -> u64,
        data: &[u8],
    ) -> io::Result<()> {
        let end = self.len().div_ceil(PAGE_BYTES as u64);
        let pages = (0..data.len().div_ceil(PAGE_BYTES)).take_while(|at| number(*at) < end).count();
        let data = &data[..(pages * PAGE_BYTES).min(data.len())];
        match self.opened.core.append(kind, commit, &self.joined, number, data) {
            Ok(()) => Ok(()),
            Err(Refusal::Full) => Err(io::ErrorKind::StorageFull.into()),
            Err(Refusal::Failed(error)) => Err(error),
        }
    }

    /// Notes that an image of this commit is lost: its write failed, and the page is newer by now.
    pub(crate) fn note_lost_image(&self, commit: u64) {
        self.opened.core.note_lost_image(commit);
    }

    /// The error for a page of a commit whose write failed.
    pub(crate) fn commit_error(&self, source: io::Error) -> Error {
        let core = &self.opened.core;
        match source.kind() {
            io::ErrorKind::StorageFull => core.log.full(),
            _ => failed_at(core.log.ring.device(), "writing")(source),
        }
    }

    /// Commits this file together with all files of the journal.
    pub(crate) fn commit(&self) -> crate::Result<u64> {
        self.opened.commit(NOTHING_MORE)
    }

    /// Adds a participant: from now on every commit asks it for pages of the file. Waits for the commit under way,
    /// whose line may still be ahead. Nobody would protect pages that the program stores to before that line.
    pub(crate) fn add_participant(&self, participant: Arc<dyn Participant>) {
        let _no_commit = self.opened.queue.hold();
        self.joined.set_participant(Some(participant));
    }

    /// Forgets uncommitted pages: the file takes part in no further commit.
    pub(crate) fn withdraw(&self) {
        self.opened.withdraw(&self.joined);
    }

    /// Whether this is a file of that journal.
    pub(crate) fn is_of(&self, journal: &Arc<Opened>) -> bool {
        Arc::ptr_eq(&self.opened, journal)
    }

    /// The least number of pages for which a commit finds space.
    pub(crate) fn commit_reserve_pages(&self) -> u64 {
        self.opened.core.log.commit_reserve()
    }

    /// Reads the longest front of the range that lies in one place, and returns its length; 0 if the place has changed
    /// meanwhile.
    fn read_run(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (index, log) = (&self.joined.index, &self.opened.core.log);
        let first = offset / PAGE_BYTES as u64;
        let tail = log.tail();
        let newest = index.version(first);
        let expected = |step: u64| newest.map(|newest| Version::image(newest.position + step));
        let is_delta = newest.is_some_and(|newest| newest.depth > 0);
        let pages = if is_delta { 1 } else { buffer.len().div_ceil(PAGE_BYTES) as u64 };
        let run = (1..pages).find(|step| index.version(first + step) != expected(*step)).unwrap_or(pages);
        let bytes = buffer.len().min(run as usize * PAGE_BYTES);
        let target = &mut buffer[..bytes];
        let read = match newest {
            Some(newest) if is_delta => self.read_deltas(tail, first, newest, target),
            Some(newest) => log.ring.read(newest.position, target),
            None => self.read_file(offset, target),
        };
        // A checkpoint may have moved the page to the file meanwhile. Newer records may then have overwritten what was
        // read of the log.
        let is_still_there =
            index.version(first) == newest && (1..run).all(|step| index.version(first + step) == expected(step));
        if !is_still_there || is_delta && log.tail() != tail {
            return Ok(0);
        }
        read.map(|()| bytes)
    }

    fn read_deltas(&self, tail: u64, page: u64, newest: Version, target: &mut [u8]) -> io::Result<()> {
        let log = &self.opened.core.log;
        let mut room = log.buffers.acquire();
        let wanted = (Place { file: self.joined.file, page }, newest);
        let read_bottom = |bottom, target: &mut [u8]| match bottom {
            Bottom::Image(position) => log.ring.read(position, target),
            Bottom::File => self.read_file(page * PAGE_BYTES as u64, target),
        };
        read_version(&log.ring, tail, wanted, &mut room[..CHAIN_PAGES], target, |_, error| error, read_bottom)
    }

    fn read_file(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        // Bytes behind the end of the file read as zeros.
        let read = self.joined.data.read_at(offset, target)?;
        target[read..].fill(0);
        Ok(())
    }
}

impl Backing for JournaledBacking {
    fn len(&self) -> u64 {
        self.joined.len.load(Ordering::SeqCst)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.check_not_forked()?;
        let wanted = self.len().saturating_sub(offset).min(buffer.len() as u64) as usize;
        // Images are whole pages. So are the buffers of callers that read with O_DIRECT.
        let pages = wanted.next_multiple_of(PAGE_BYTES).min(buffer.len());
        let mut done = 0;
        while done < pages {
            done += self.read_run(offset + done as u64, &mut buffer[done..pages])?;
        }
        Ok(wanted)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // Check this before drawing a ticket: commits wait for tickets.
        self.check_not_forked()?;
        self.spill(&self.ticket(), offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.commit().map(drop).map_err(io::Error::other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_not_forked()?;
        if len < self.len() {
            let why = "a file of a journal cannot be cut: close it, cut it, and open it again";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        if len.div_ceil(PAGE_BYTES as u64) > self.joined.index.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.joined.len.fetch_max(len, Ordering::SeqCst);
        Ok(())
    }

    fn identity(&self) -> Option<Identity> {
        self.joined.data.identity()
    }

    fn lock(&self, user: FileUser) -> crate::Result<()> {
        self.joined.data.lock(user)
    }

    fn unlock(&self) -> io::Result<()> {
        // The next owner of the lock expects the committed pages in the file.
        self.opened.checkpoint().map_err(io::Error::other)?;
        self.joined.data.unlock()
    }

    fn describe(&self) -> String {
        self.joined.data.describe()
    }
}

impl Drop for JournaledBacking {
    fn drop(&mut self) {
        self.opened.leave(&self.joined);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::Result;
    use crate::backing::MemoryBacking;
    use crate::journal::{CommitDeltas, Journal, JournalOptions};

    /// A mapping with stores, which a commit has to protect before it draws its line.
    #[derive(Default)]
    struct Stores {
        protected_for: AtomicU64,
        present: AtomicU64,
    }

    impl Participant for Stores {
        fn protect(&self) -> Result<()> {
            self.protected_for.store(self.present.load(Ordering::SeqCst), Ordering::SeqCst);
            Ok(())
        }

        fn write(&self, deltas: &mut CommitDeltas<'_>) -> Result<()> {
            assert_eq!(self.protected_for.load(Ordering::SeqCst), deltas.commit(), "written without being protected");
            Ok(())
        }

        fn settle(&self, _page: u64, _commit: u64, _written: io::Result<()>) {}

        fn pass_on(&self, _commit: u64) {}

        fn copy_clean(&self, _page: u64, _target: &mut [u8], _is_newest: &dyn Fn() -> bool) -> bool {
            false
        }
    }

    /// A commit without participants draws its line late. A participant that came before that would hold pages of it
    /// that nobody has protected.
    #[test]
    fn no_participant_is_added_while_a_commit_is_under_way() {
        let journal = Journal::create(MemoryBacking::new(1 << 20).unwrap(), JournalOptions::new()).unwrap();
        let backing = journal.join(MemoryBacking::new(PAGE_BYTES as u64).unwrap()).unwrap();
        let stores = Arc::new(Stores::default());
        let is_added = AtomicBool::new(false);
        thread::scope(|scope| {
            let committed = journal.commit(|_| {
                scope.spawn(|| {
                    backing.add_participant(Arc::clone(&stores) as _);
                    is_added.store(true, Ordering::SeqCst);
                });
                thread::sleep(Duration::from_millis(100));
                assert!(!is_added.load(Ordering::SeqCst), "its stores are part of a commit that does not ask for them");
                Ok(())
            });
            assert_eq!(committed.unwrap(), 1);
        });
        stores.present.store(backing.present_commit(), Ordering::SeqCst);
        assert_eq!(journal.commit_all().unwrap(), 2);
        assert_eq!(stores.protected_for.load(Ordering::SeqCst), 2);
    }
}
