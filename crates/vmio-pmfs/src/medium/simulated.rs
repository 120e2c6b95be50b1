//! A medium in memory that records its stores, so that a test can make every state which a crash might leave.

use std::collections::BTreeMap;
use std::mem;

use parking_lot::Mutex;

use super::Medium;

const PAGE: u64 = 4096;

/// A store of one word, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The first byte.
    pub at: u64,
    /// The bytes; they lie in one aligned word of 8 bytes.
    pub bytes: Vec<u8>,
}

/// A medium in memory. Pages that nobody has written are zeros and take no memory.
pub struct Simulated {
    len: u64,
    contents: Mutex<Contents>,
}

#[derive(Clone, Default)]
struct Contents {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    /// The stores since recording began, apart at fences. The last ones are behind the last fence.
    recorded: Option<Vec<Vec<Store>>>,
}

impl Simulated {
    /// A medium of zeros.
    pub fn new(len: u64) -> Simulated {
        Simulated { len, contents: Mutex::new(Contents::default()) }
    }

    /// A copy of its bytes, which records nothing.
    pub fn copy(&self) -> Simulated {
        let pages = self.contents.lock().pages.clone();
        Simulated { len: self.len, contents: Mutex::new(Contents { pages, recorded: None }) }
    }

    /// Begins to record stores.
    pub fn record(&self) {
        self.contents.lock().recorded = Some(vec![Vec::new()]);
    }

    /// The stores since [`Self::record`], apart at fences, in their order.
    pub fn recorded(&self) -> Vec<Vec<Store>> {
        mem::take(&mut self.contents.lock().recorded).unwrap_or_default()
    }
}

impl Medium for Simulated {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        assert!(at + into.len() as u64 <= self.len, "a read at {at} of a medium of {} bytes", self.len);
        let contents = self.contents.lock();
        let mut done = 0;
        while done < into.len() {
            let (page, first) = ((at + done as u64) / PAGE, ((at + done as u64) % PAGE) as usize);
            let len = (PAGE as usize - first).min(into.len() - done);
            match contents.pages.get(&page) {
                Some(bytes) => into[done..done + len].copy_from_slice(&bytes[first..first + len]),
                None => into[done..done + len].fill(0),
            }
            done += len;
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.len, "a write at {at} to a medium of {} bytes", self.len);
        let mut contents = self.contents.lock();
        let mut done = 0;
        while done < bytes.len() {
            let here = at + done as u64;
            let len = (8 - here % 8).min((bytes.len() - done) as u64) as usize;
            let (page, first) = (here / PAGE, (here % PAGE) as usize);
            let copy = contents.pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            copy[first..first + len].copy_from_slice(&bytes[done..done + len]);
            if let Some(epoch) = contents.recorded.as_mut().and_then(|epochs| epochs.last_mut()) {
                epoch.push(Store { at: here, bytes: bytes[done..done + len].to_vec() });
            }
            done += len;
        }
    }

    fn fence(&self) {
        if let Some(epochs) = self.contents.lock().recorded.as_mut()
            && epochs.last().is_some_and(|epoch| !epoch.is_empty())
        {
            epochs.push(Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_recorded_by_words_and_apart_at_fences() {
        let medium = Simulated::new(1 << 20);
        medium.record();
        medium.write(4, &[1; 8]);
        medium.fence();
        medium.fence();
        medium.write(4096, &[2; 3]);
        let recorded = medium.recorded();
        let places = |epoch: &Vec<Store>| epoch.iter().map(|store| (store.at, store.bytes.len())).collect::<Vec<_>>();
        assert_eq!(recorded.iter().map(places).collect::<Vec<_>>(), [vec![(4, 4), (8, 4)], vec![(4096, 3)]]);
        let mut read = [9; 6];
        medium.read(2, &mut read);
        assert_eq!(read, [0, 0, 1, 1, 1, 1]);
    }
}
