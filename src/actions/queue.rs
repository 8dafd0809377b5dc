//! The queue of pairs: highest weight first, ties to the smaller pair.
//!
//! Weights rise and fall, so a change adds an entry, and an entry counts only if its pair has that weight when it
//! comes up. By the published rule the entries left over are part of the result: a weight that is reached twice is
//! merged twice. They cannot be dropped, then, but they need not be in order: only entries at or above a floor are
//! kept in a heap. The rest is a list, of which the heaviest half joins the heap when that is empty.

use super::weight::Weight;
use crate::bpe::pair::Pair;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Clone, Copy)]
struct Entry<W> {
    weight: W,
    pair: Pair,
}

impl<W: Weight> Ord for Entry<W> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.weight.order(&other.weight).then_with(|| other.pair.cmp(&self.pair))
    }
}

impl<W: Weight> PartialOrd for Entry<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<W: Weight> PartialEq for Entry<W> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<W: Weight> Eq for Entry<W> {}

/// Entries, live and stale.
pub struct Queue<W> {
    heap: BinaryHeap<Entry<W>>,
    /// Entries below the floor.
    low: Vec<Entry<W>>,
    /// None: nothing is in the heap yet.
    floor: Option<W>,
    /// Weights below this are not queued at all.
    least: W,
    /// Entries ever made.
    pub made: u64,
    /// Most entries at a time.
    pub peak: usize,
}

impl<W: Weight> Queue<W> {
    pub fn new(least: W) -> Self {
        Queue { heap: BinaryHeap::new(), low: Vec::new(), floor: None, least, made: 0, peak: 0 }
    }

    pub fn len(&self) -> usize {
        self.heap.len() + self.low.len()
    }

    pub fn push(&mut self, weight: W, pair: Pair) {
        if weight < self.least {
            return;
        }
        match self.floor {
            Some(floor) if weight >= floor => self.heap.push(Entry { weight, pair }),
            _ => self.low.push(Entry { weight, pair }),
        }
        self.made += 1;
        self.peak = self.peak.max(self.len());
    }

    /// Takes entries off until one has the weight that `now` returns for its pair.
    pub fn pop(&mut self, now: impl Fn(Pair) -> W) -> Option<(W, Pair)> {
        loop {
            while let Some(Entry { weight, pair }) = self.heap.pop() {
                if weight.same(now(pair)) {
                    return Some((weight, pair));
                }
            }
            let heaviest = self.low.iter().max_by(|a, b| a.weight.order(&b.weight))?.weight;
            let floor = heaviest.half();
            self.floor = Some(floor);
            let mut taken = Vec::new();
            self.low.retain(|entry| {
                let stays = entry.weight < floor;
                if !stays {
                    taken.push(*entry);
                }
                stays
            });
            self.heap = taken.into();
        }
    }

    /// Puts one entry for each pair in place of all there are. Only where entries left over mean nothing.
    pub fn rebuild(&mut self, pairs: impl Iterator<Item = (W, Pair)>) {
        self.heap.clear();
        self.low.clear();
        self.floor = None;
        self.low.extend(pairs.filter(|(weight, _)| *weight >= self.least).map(|(weight, pair)| Entry { weight, pair }));
    }
}
