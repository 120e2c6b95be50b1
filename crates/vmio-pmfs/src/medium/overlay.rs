//! A medium whose changes stay in memory: for checks, which change nothing, and for states after a crash.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::Medium;

const PAGE: u64 = 4096;

/// A medium in front of another one, whose bytes it does not change.
pub struct Overlay {
    below: Arc<dyn Medium>,
    pages: RwLock<BTreeMap<u64, Box<[u8; PAGE as usize]>>>,
}

impl Overlay {
    /// Without any change yet.
    pub fn new(below: Arc<dyn Medium>) -> Overlay {
        Overlay { below, pages: RwLock::new(BTreeMap::new()) }
    }
}

/// The pages of a range: page, first byte in it, number of bytes.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = at + len as u64;
    let mut next = at;
    std::iter::from_fn(move || {
        let part = (next < end).then(|| {
            let in_page = next % PAGE;
            (next / PAGE, in_page as usize, (PAGE - in_page).min(end - next) as usize)
        })?;
        next += part.2 as u64;
        Some(part)
    })
}

impl Medium for Overlay {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let pages = self.pages.read();
        let mut done = 0;
        for (page, first, len) in parts(at, into.len()) {
            let part = &mut into[done..done + len];
            match pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[first..first + len]),
                None => self.below.read(page * PAGE + first as u64, part),
            }
            done += len;
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let mut pages = self.pages.write();
        let mut done = 0;
        for (page, first, len) in parts(at, bytes.len()) {
            let below = &self.below;
            let copy = pages.entry(page).or_insert_with(|| {
                let mut copy = Box::new([0; PAGE as usize]);
                let there = PAGE.min(below.len().saturating_sub(page * PAGE)) as usize;
                below.read(page * PAGE, &mut copy[..there]);
                copy
            });
            copy[first..first + len].copy_from_slice(&bytes[done..done + len]);
            done += len;
        }
    }

    fn fence(&self) {}
}
