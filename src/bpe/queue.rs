//! The queue of candidates: highest weight first, ties to the smaller key.
//!
//! Weights of queued keys may only fall while they wait, so a stale entry is always too high: it is corrected
//! when it reaches the top, never searched for. A key has one entry; entries of keys that died are dropped when
//! they surface, or all at once before they outnumber the living. Swept after each death, the queue never holds more
//! than twice the live keys (or a constant), where a queue with one entry per change grows without bound.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Below this size dead entries are not worth a sweep.
const SMALL: usize = 1024;

/// A priority queue with lazy correction. `now` gives a key's present weight, or `None` if it died.
pub struct Queue<W, K> {
    heap: BinaryHeap<(W, Reverse<K>)>,
    /// Largest number of entries per 1,000 live keys seen before a sweep, for queues larger than `SMALL`.
    pub worst_per_mille: usize,
    /// Most entries at a time.
    pub peak: usize,
}

impl<W: Ord + Copy, K: Ord + Copy> Queue<W, K> {
    /// A queue of `entries`, built in linear time.
    pub fn new(entries: impl Iterator<Item = (W, K)>) -> Self {
        let heap: BinaryHeap<_> = entries.map(|(weight, key)| (weight, Reverse(key))).collect();
        let peak = heap.len();
        Queue { heap, worst_per_mille: 1000, peak }
    }

    /// Entries, dead and stale ones included.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Adds a key that is not queued.
    pub fn push(&mut self, weight: W, key: K) {
        self.heap.push((weight, Reverse(key)));
        self.peak = self.peak.max(self.heap.len());
    }

    /// Removes and returns the live key with the highest present weight.
    pub fn pop(&mut self, mut now: impl FnMut(K) -> Option<W>) -> Option<(W, K)> {
        loop {
            let mut top = self.heap.peek_mut()?;
            match now(top.1.0) {
                None => {
                    PeekMut::pop(top);
                }
                Some(weight) if weight == top.0 => {
                    let (weight, Reverse(key)) = PeekMut::pop(top);
                    return Some((weight, key));
                }
                Some(weight) => top.0 = weight, // sinks to its place when `top` is dropped
            }
        }
    }

    /// To be called whenever a key has died: drops all dead entries if with one more death they could be more than
    /// half. Each sweep is paid for by the deaths since the last.
    #[inline]
    pub fn sweep(&mut self, live: usize, mut now: impl FnMut(K) -> Option<W>) {
        if self.heap.len() > SMALL {
            self.worst_per_mille = self.worst_per_mille.max(self.heap.len() * 1000 / live.max(1));
            if self.heap.len() + 2 > 2 * live {
                self.heap.retain(|(_, Reverse(key))| now(*key).is_some());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_smaller_key_and_stale_weights_are_corrected() {
        let mut queue = Queue::new([(5, 'b'), (5, 'a'), (9, 'c'), (7, 'd')].into_iter());
        let now = |key| match key {
            'c' => Some(4), // fell from 9
            'd' => None,    // died
            _ => Some(5),
        };
        let order: Vec<_> = std::iter::from_fn(|| queue.pop(now)).collect();
        assert_eq!(order, [(5, 'a'), (5, 'b'), (4, 'c')]);
    }

    #[test]
    fn a_sweep_keeps_the_queue_within_twice_the_living() {
        let mut queue = Queue::new((0..10_000u32).map(|key| (1u64, key)));
        let now = |key: u32| key.is_multiple_of(8).then_some(1);
        queue.sweep(1250, now);
        assert_eq!(queue.len(), 1250);
        assert_eq!(queue.pop(now), Some((1, 0)));
    }
}
