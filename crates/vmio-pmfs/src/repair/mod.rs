//! Repairs what is provable, and nothing else. Each repair is a transaction, so a crash leaves a medium that can be repaired.
//!
//! The structures themselves prove a repair: a name says that an inode counts it, an inode that it is free. Where two structures contradict
//! each other and either may be wrong, both stay.

mod blocks;
mod entries;
mod links;
mod survey;

use std::sync::Arc;

use crate::alloc::{Allocator, Used};
use crate::check::{Fault, Report, check};
use crate::data::Mode;
use crate::error::{Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::superblock::Superblock;
use crate::fs::growing::Released;
use crate::fs::growth_recovery::Appended;
use crate::fs::{Fs, Recovered};
use crate::inodes::free::FreeNumbers;
use crate::journal::Journals;
use crate::medium::Medium;
use survey::Survey;

/// Rounds of repairs, each of which may uncover what the next one repairs.
const ROUNDS_MAX: usize = 4;

/// The outcome of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The faults that are no more, and for each of them its repair.
    pub done: Vec<Fault>,
    /// Transactions that a crash had cut short; they were rolled back.
    pub transactions: usize,
    /// Files that have become longer by what processes had appended durably.
    pub appends: usize,
    /// Inodes without a name that counted none; they were deleted.
    pub orphans: usize,
    /// The report of a check now: its faults are those that are left.
    pub report: Report,
}

/// The work so far.
#[derive(Default)]
struct Work {
    done: Vec<Fault>,
    orphans: usize,
}

impl Work {
    fn add(&mut self, at: u64, what: impl ToString) {
        self.done.push(Fault { at, what: what.to_string() });
    }
}

/// Repairs the file system of a medium, which nobody else uses: what a mount does, and all else that is provable.
///
/// # Errors
///
/// Those of [`Superblock::read`], and of the medium. Everything else that cannot be repaired is in the report.
pub fn repair(medium: Arc<dyn Medium>) -> Result<Repaired> {
    let superblock = Superblock::read(&*medium)?;
    let mut work = Work::default();
    repair_superblocks(&*medium, &superblock, &mut work);
    // If the journals cannot be rolled back, nothing else is what it will be.
    let (mut transactions, appended) = recover_appends(&medium, superblock).unwrap_or_default();
    for Fault { at, what } in appended.ignored {
        work.add(at, format!("{what}: it says nothing now"));
    }
    for _ in 0..ROUNDS_MAX {
        let Ok((journals, unfinished)) = Journals::recover(&medium, &superblock.geometry) else {
            // Nothing else is what it will be.
            break;
        };
        transactions += unfinished;
        let before = work.done.len() + work.orphans;
        let round = |work: &mut Work, journals| -> Result<()> {
            let survey = Survey::read(&*medium, &superblock.geometry);
            blocks::repair(&assembled(&medium, superblock, journals, &survey), survey, work);
            let again = || Ok::<_, Error>(Journals::recover(&medium, &superblock.geometry)?.0);
            let survey = Survey::read(&*medium, &superblock.geometry);
            entries::repair(&assembled(&medium, superblock, again()?, &survey), survey, work)?;
            let survey = Survey::read(&*medium, &superblock.geometry);
            links::repair(&assembled(&medium, superblock, again()?, &survey), survey, work)
        };
        if let Err(error) = round(&mut work, journals) {
            // The faults that are left are in the report.
            tracing::warn!(%error, "a repair has failed");
            break;
        }
        if work.done.len() + work.orphans == before {
            break;
        }
    }
    medium.sync()?;
    let report = check(Arc::clone(&medium))?;
    Ok(Repaired { done: work.done, transactions, appends: appended.longer, orphans: work.orphans, report })
}

/// Does what a mount does with the journals and the slots of growing files, as long as the inodes can be read that these are of. Returns how many
/// transactions were rolled back, and what was in the slots. The slot of an inode that cannot be read stays: nobody knows whether it fits.
///
/// # Errors
///
/// [`Error::Damaged`] where a journal cannot be rolled back.
pub(crate) fn recover_appends(medium: &Arc<dyn Medium>, superblock: Superblock) -> Result<(usize, Appended)> {
    let (journals, unfinished) = Journals::recover(medium, &superblock.geometry)?;
    let survey = Survey::read(&**medium, &superblock.geometry);
    let fs = assembled(medium, superblock, journals, &survey);
    Ok((unfinished, fs.recover_appends(Released::PerhapsOfOthers, |ino| survey.unreadable.contains(&ino))))
}

/// A file system of what the survey has found. Of blocks nothing is free unless all inodes can be read.
fn assembled(medium: &Arc<dyn Medium>, superblock: Superblock, journals: Journals, survey: &Survey) -> Fs {
    let geometry = superblock.geometry;
    let used = Used::new(&geometry);
    if survey.unreadable.is_empty() {
        survey.inodes.values().flat_map(|loaded| loaded.all_runs()).for_each(|run| used.mark(run));
    } else {
        used.mark(crate::alloc::Run { start: 0, count: geometry.blocks });
    }
    let free = (0..geometry.areas).map(|area| {
        let (mut numbers, first) = (FreeNumbers::new(&geometry), u64::from(area) * u64::from(geometry.inodes));
        let is_free = |ino: &u64| survey.is_free(&geometry, *ino) && !survey.has_name(*ino);
        geometry.inodes_of(area).filter(is_free).for_each(|ino| numbers.add(ino - first));
        numbers
    });
    let allocator = Allocator::new(&geometry, &used);
    let (medium, recovered) = (Arc::clone(medium), Recovered::default());
    Fs::assembled(medium, superblock, Mode::Strict, journals, allocator, free.collect(), recovered)
}

/// Writes a superblock or its copy anew where one is damaged and the other one is not.
fn repair_superblocks(medium: &dyn Medium, superblock: &Superblock, work: &mut Work) {
    // Else the file system ends elsewhere than the medium, and where its copy is cannot be known.
    if superblock.geometry.bytes() != medium.len() / crate::EXTENT_BYTES * crate::EXTENT_BYTES {
        return;
    }
    for (at, read) in Superblock::both(medium) {
        if let Err(error @ (Error::Damaged { .. } | Error::NoFileSystem { .. })) = read {
            medium.write(at, &superblock.to_block());
            medium.fence();
            let other = if at == 0 { superblock.geometry.bytes() - BLOCK_BYTES } else { 0 };
            work.add(at, format!("{error}: it is that at byte {other} now"));
        }
    }
}
