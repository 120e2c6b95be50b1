//! Handing things from threads to one thread without a lock and, but for the making of a node, without allocating: what
//! is interrupted half way, by a signal for example, holds nobody up.

use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that can be handed over and queued.
pub(crate) struct Node<T>(Box<Link<T>>);

struct Link<T> {
    value: T,
    next: *mut Link<T>,
}

// SAFETY: a node is the only owner of its value; `next` means something only to the queue or stack that holds it.
unsafe impl<T: Send> Send for Node<T> {}

impl<T> Node<T> {
    /// Allocates a node.
    pub(crate) fn new(value: T) -> Self {
        Node(Box::new(Link { value, next: ptr::null_mut() }))
    }
}

impl<T> Deref for Node<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Node<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

/// Where nodes are put by anybody and taken, all at once, by anybody.
pub(crate) struct HandOver<T> {
    /// The node that was put there last, and through it all others.
    last: AtomicPtr<Link<T>>,
}

// SAFETY: nodes are moved through it from thread to thread, never shared.
unsafe impl<T: Send> Sync for HandOver<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for HandOver<T> {}

impl<T> Default for HandOver<T> {
    fn default() -> Self {
        HandOver { last: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> HandOver<T> {
    /// Puts a node there.
    pub(crate) fn put(&self, node: Node<T>) {
        let link = Box::into_raw(node.0);
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is ours until the exchange below succeeds.
            unsafe { (*link).next = last };
            match self.last.compare_exchange_weak(last, link, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => last = seen,
            }
        }
    }

    /// Whether nothing is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.last.load(Ordering::SeqCst).is_null()
    }

    /// Takes what is there, and puts it at the end of a queue in the order in which it came.
    pub(crate) fn take_all(&self, queue: &mut Queue<T>) {
        // Whoever puts something there meanwhile puts it into what is empty again: no node is seen twice.
        let mut link = self.last.swap(ptr::null_mut(), Ordering::SeqCst);
        let mut first = ptr::null_mut();
        let last = link;
        while !link.is_null() {
            // SAFETY: the swap has made the whole chain ours.
            let next = unsafe { std::mem::replace(&mut (*link).next, first) };
            first = link;
            link = next;
        }
        if !first.is_null() {
            // `last` was put there last: it stands at the end.
            queue.append(first, last);
        }
    }
}

impl<T> Drop for HandOver<T> {
    fn drop(&mut self) {
        self.take_all(&mut Queue::default());
    }
}

/// Nodes in a row; neither allocates nor frees.
pub(crate) struct Queue<T> {
    first: *mut Link<T>,
    last: *mut Link<T>,
}

// SAFETY: the queue owns its nodes.
unsafe impl<T: Send> Send for Queue<T> {}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { first: ptr::null_mut(), last: ptr::null_mut() }
    }
}

impl<T> Queue<T> {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds one at the end.
    pub(crate) fn push_back(&mut self, node: Node<T>) {
        let link = Box::into_raw(node.0);
        // SAFETY: the node is ours.
        unsafe { (*link).next = ptr::null_mut() };
        self.append(link, link);
    }

    /// Takes the first.
    pub(crate) fn pop_front(&mut self) -> Option<Node<T>> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: the links of a queue come from `Box::into_raw`, and each is turned back once: here.
        let link = unsafe { Box::from_raw(self.first) };
        self.first = link.next;
        if self.first.is_null() {
            self.last = ptr::null_mut();
        }
        Some(Node(link))
    }

    /// Adds a chain that is the caller's, whose last link has no next.
    fn append(&mut self, first: *mut Link<T>, last: *mut Link<T>) {
        if self.first.is_null() {
            self.first = first;
        } else {
            // SAFETY: the last link is the queue's.
            unsafe { (*self.last).next = first };
        }
        self.last = last;
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        while self.pop_front().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_arrives_once_and_in_order() {
        let hand_over = HandOver::default();
        let mut queue = Queue::default();
        queue.push_back(Node::new((9, 0)));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let hand_over = &hand_over;
                scope.spawn(move || (0..100).for_each(|number| hand_over.put(Node::new((thread, number)))));
            }
            while !hand_over.is_empty() {
                hand_over.take_all(&mut queue);
            }
        });
        hand_over.take_all(&mut queue);
        let arrived: Vec<_> = std::iter::from_fn(|| queue.pop_front()).map(|node| *node).collect();
        assert_eq!(arrived[0], (9, 0));
        for thread in 0..3 {
            let of_thread = arrived.iter().filter(|(from, _)| *from == thread).map(|(_, number)| *number);
            assert!(of_thread.eq(0..100));
        }
        assert!(queue.is_empty());
        hand_over.put(Node::new((0, 0)));
    }
}
