//! An iterator whose next item is known, at both ends.

use crate::tree::Direction;

/// An iterator of which one item at each end is known before it is taken.
pub(super) struct TwoEnds<Items: DoubleEndedIterator> {
    items: Items,
    front: Option<Items::Item>,
    back: Option<Items::Item>,
}

impl<Items: DoubleEndedIterator> TwoEnds<Items> {
    pub(super) fn new(items: Items) -> Self {
        TwoEnds { items, front: None, back: None }
    }

    /// The next item in a direction.
    pub(super) fn peek(&mut self, direction: Direction) -> Option<&Items::Item> {
        let TwoEnds { items, front, back } = self;
        let (near, far) = match direction {
            Direction::Up => (front, back),
            Direction::Down => (back, front),
        };
        if near.is_none() {
            let next = match direction {
                Direction::Up => items.next(),
                Direction::Down => items.next_back(),
            };
            // Behind the last item that is not known, there is the other end's.
            *near = next.or_else(|| far.take());
        }
        near.as_ref()
    }

    /// Takes the next item in a direction.
    pub(super) fn take(&mut self, direction: Direction) -> Option<Items::Item> {
        self.peek(direction)?;
        match direction {
            Direction::Up => self.front.take(),
            Direction::Down => self.back.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_from_both_ends_once_each() {
        for ups in 0_u32..32 {
            let mut items = TwoEnds::new([1, 2, 3, 4, 5].into_iter());
            let mut expected = std::collections::VecDeque::from([1, 2, 3, 4, 5]);
            for step in 0..6 {
                // Both ends know their next item, whichever is taken.
                assert_eq!(items.peek(Direction::Up).is_some(), !expected.is_empty());
                let is_up = ups >> step & 1 == 1;
                let (direction, next) = match is_up {
                    true => (Direction::Up, expected.pop_front()),
                    false => (Direction::Down, expected.pop_back()),
                };
                assert_eq!(items.peek(direction).copied(), next);
                assert_eq!(items.take(direction), next);
            }
        }
    }
}
