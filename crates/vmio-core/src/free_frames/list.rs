//! A list of things that have numbers, without locks.

use crate::atomic::{AtomicU64, Ordering};

/// The number of the thing at the top and 1, or 0; above these 32 bits a count that makes every change another.
///
/// Each thing has a word, which all lists that it may be in have in common: it is in one at a time.
pub struct List(AtomicU64);

/// The word of a thing in a list: the number of the thing below it and 1, or 0; above these 32 bits, how many things the list has from it on down.
#[derive(Clone, Copy)]
struct Link(u64);

impl Link {
    #[inline]
    fn above(below: u64, words: &[AtomicU64]) -> Link {
        let height = top(below).map_or(0, |below| Link(words[below as usize].load(Ordering::Relaxed)).height());
        Link(u64::from(height.wrapping_add(1)) << 32 | u64::from(below as u32))
    }

    #[inline]
    fn below(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn height(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[inline]
fn top(word: u64) -> Option<u32> {
    (word as u32).checked_sub(1)
}

#[inline]
fn next(word: u64, top: u32) -> u64 {
    (word >> 32).wrapping_add(1) << 32 | u64::from(top)
}

impl Default for List {
    fn default() -> List {
        List(AtomicU64::new(0))
    }
}

impl List {
    /// Puts a thing on top that is in no list.
    #[inline]
    pub fn push(&self, words: &[AtomicU64], number: u32) {
        self.push_up_to(u32::MAX, words, number);
    }

    /// The same, unless the list has `most` things or more already: then it returns false.
    #[inline]
    pub fn push_up_to(&self, most: u32, words: &[AtomicU64], number: u32) -> bool {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            // Should the list change meanwhile, this may be nonsense.
            let link = Link::above(seen, words);
            if link.height() > most {
                return false;
            }
            words[number as usize].store(link.0, Ordering::Relaxed);
            match self.0.compare_exchange_weak(seen, next(seen, number + 1), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes the thing on top.
    #[inline]
    pub fn pop(&self, words: &[AtomicU64]) -> Option<u32> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let number = top(seen)?;
            let below = Link(words[number as usize].load(Ordering::Relaxed)).below();
            match self.0.compare_exchange_weak(seen, next(seen, below), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(number),
                Err(now) => seen = now,
            }
        }
    }

    /// Whether it has nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        top(self.0.load(Ordering::Acquire)).is_none()
    }

    /// How often it has changed, up to multiples of 2^32.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.0.load(Ordering::Acquire) >> 32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn the_last_comes_first() {
        let (list, words) = (List::default(), words(3));
        assert!(list.is_empty() && list.pop(&words).is_none());
        [0, 2, 1].into_iter().for_each(|number| list.push(&words, number));
        assert!(!list.is_empty());
        assert_eq!([(); 4].map(|()| list.pop(&words)), [Some(1), Some(2), Some(0), None]);
        assert_eq!((list.is_empty(), list.changes()), (true, 6));
    }

    #[test]
    fn a_list_gets_no_longer_than_its_user_wants() {
        let (list, words) = (List::default(), words(4));
        assert!(!list.push_up_to(0, &words, 3) && list.is_empty());
        assert!(list.push_up_to(2, &words, 3) && list.push_up_to(2, &words, 1));
        assert!(!list.push_up_to(2, &words, 0));
        assert_eq!(list.pop(&words), Some(1));
        assert!(list.push_up_to(2, &words, 0) && list.push_up_to(3, &words, 1) && !list.push_up_to(3, &words, 2));
    }

    #[test]
    fn a_thing_goes_from_list_to_list() {
        let (one, other, words) = (List::default(), List::default(), words(4));
        (0..4).for_each(|number| one.push(&words, number));
        while let Some(number) = one.pop(&words) {
            assert!(other.push_up_to(4 - number, &words, number));
        }
        assert_eq!(other.pop(&words), Some(0));
    }
}

#[cfg(all(test, loom))]
mod loom_model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A frame that one thread pops, pushes and pops again is no other thread's.
    #[test]
    fn loom_a_thing_of_a_list_has_one_owner() {
        loom::model(|| {
            let list = Arc::new((List::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
            list.0.push(&list.1, 0);
            list.0.push(&list.1, 1);
            let other = Arc::clone(&list);
            let other = thread::spawn(move || {
                let taken = other.0.pop(&other.1);
                let next = other.0.pop(&other.1);
                if let Some(number) = taken {
                    other.0.push(&other.1, number);
                }
                next
            });
            let taken = list.0.pop(&list.1);
            let mut seen: Vec<u32> = other.join().unwrap().into_iter().chain(taken).collect();
            seen.extend(std::iter::from_fn(|| list.0.pop(&list.1)));
            seen.sort_unstable();
            assert_eq!(seen, [0, 1]);
        });
    }
}
