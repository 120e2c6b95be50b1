//! An MPSC queue: passes values from many threads to one without a lock. Only making a node allocates. A thread that is
//! interrupted half-way, by a signal for example, holds up no other.

use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that can be queued.
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

/// A queue to which any thread pushes nodes. A consumer takes all of them at once. If there are several consumers, each
/// takes the nodes that the others have not taken.
pub(crate) struct MpscQueue<T> {
    /// The node that was pushed last, which leads to all others.
    last: AtomicPtr<Link<T>>,
}

// SAFETY: nodes move through the queue from thread to thread, and are never shared.
unsafe impl<T: Send> Sync for MpscQueue<T> {}
// SAFETY: the queue owns its nodes, and their values may be sent.
unsafe impl<T: Send> Send for MpscQueue<T> {}

impl<T> Default for MpscQueue<T> {
    fn default() -> Self {
        MpscQueue { last: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> MpscQueue<T> {
    /// Pushes a node.
    pub(crate) fn push(&self, node: Node<T>) {
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

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.last.load(Ordering::SeqCst).is_null()
    }

    /// Takes all nodes, and appends them to the caller's queue in the order in which they were pushed.
    pub(crate) fn take_all(&self, queue: &mut LocalQueue<T>) {
        // A node that is pushed meanwhile goes into the emptied queue: no node is taken twice.
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
            // `last` was pushed last: it is at the end.
            queue.append(first, last);
        }
    }
}

impl<T> Drop for MpscQueue<T> {
    fn drop(&mut self) {
        self.take_all(&mut LocalQueue::default());
    }
}

/// A queue for one thread, of the same nodes. It neither allocates nor frees.
pub(crate) struct LocalQueue<T> {
    first: *mut Link<T>,
    last: *mut Link<T>,
}

// SAFETY: the queue owns its nodes.
unsafe impl<T: Send> Send for LocalQueue<T> {}

impl<T> Default for LocalQueue<T> {
    fn default() -> Self {
        LocalQueue { first: ptr::null_mut(), last: ptr::null_mut() }
    }
}

impl<T> LocalQueue<T> {
    /// Whether it is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Appends a node.
    pub(crate) fn push_back(&mut self, node: Node<T>) {
        let link = Box::into_raw(node.0);
        // SAFETY: the node is ours.
        unsafe { (*link).next = ptr::null_mut() };
        self.append(link, link);
    }

    /// Takes the first node.
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

    /// Appends a chain that the caller owns. Its last link has no next one.
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

impl<T> Drop for LocalQueue<T> {
    fn drop(&mut self) {
        while self.pop_front().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_arrives_once_and_in_order() {
        let shared = MpscQueue::default();
        let mut queue = LocalQueue::default();
        queue.push_back(Node::new((9, 0)));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let shared = &shared;
                scope.spawn(move || (0..100).for_each(|number| shared.push(Node::new((thread, number)))));
            }
            while !shared.is_empty() {
                shared.take_all(&mut queue);
            }
        });
        shared.take_all(&mut queue);
        let arrived: Vec<_> = std::iter::from_fn(|| queue.pop_front()).map(|node| *node).collect();
        assert_eq!(arrived[0], (9, 0));
        for thread in 0..3 {
            let of_thread = arrived.iter().filter(|(from, _)| *from == thread).map(|(_, number)| *number);
            assert!(of_thread.eq(0..100));
        }
        assert!(queue.is_empty());
        shared.push(Node::new((0, 0)));
    }
}
