//! Sequences of items, each a set of features -> merges (ActionPiece).
//!
//! In: the feature tokens of every item, and sequences of items. Out: merges, best first. Each step takes the pair of
//! tokens most likely to be neighbours when every set is written out in a random order, wherever it is: inside a set
//! or across two that follow each other. Weights are whole numbers on a common denominator, and a tie goes to the
//! smaller pair, so the result depends neither on threads nor on the order of the sequences; or they are float64,
//! added up in the order of the published implementation, to the last bit.
//! The plain version this must equal is `reference/actions.py`.
//!
//! [`state`] holds the sequences and rewrites them, [`walk`] weighs their pairs, [`counting`] all of them at the start,
//! [`pairs`] knows each pair's weight and sequences, [`queue`] says which is next, [`weight`] is the arithmetic,
//! [`published`] that of float64 with its order of sums, [`mod@train`] the loop; [`encode`] turns sequences into tokens
//! of a vocabulary.

mod counting;
pub mod encode;
mod pairs;
mod published;
mod queue;
mod state;
mod tally;
#[cfg(test)]
mod tests;
mod train;
mod walk;
mod weight;

pub use published::set_order;
pub use train::train;

use crate::error::{Error, Result};

/// What becomes of the weight of a pair that vanishes from a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// It stays, as in the published implementation and its vocabularies.
    Published,
    /// It goes: weights are always those of the sequences as they are.
    Current,
}

/// What weights are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Whole numbers on a common denominator.
    Exact,
    /// Floating point, in the order of the published implementation.
    Float64,
}

/// What to learn.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Stop when the vocabulary, padding and features included, has this many entries.
    pub vocab_size: u32,
    /// Padding and features: the ids below this one.
    pub n_init: u32,
    /// What becomes of vanished pairs.
    pub counts: Counts,
    /// What weights are made of.
    pub arithmetic: Arithmetic,
    /// Pairs of less weight are never queued.
    pub min_pair_weight: f64,
    /// Threads that count pairs at the start. The result does not depend on it.
    pub threads: usize,
}

/// Sequences of items, each a set of feature tokens.
#[derive(Clone, Copy)]
pub struct Corpus<'a> {
    /// The features of every item, `n_features` each.
    pub features: &'a [u32],
    /// Features of an item.
    pub n_features: usize,
    /// The items of all sequences.
    pub items: &'a [u32],
    /// Where each sequence ends in `items`.
    pub ends: &'a [u64],
}

impl Corpus<'_> {
    /// Refuses arrays that do not fit together.
    pub fn check(&self, n_init: u32) -> Result<()> {
        let wrong = |what: String| Err(Error::Training(what));
        if self.n_features == 0 || !self.features.len().is_multiple_of(self.n_features) {
            return wrong(format!("{} features are not {} for each item", self.features.len(), self.n_features));
        }
        for (item, set) in self.features.chunks_exact(self.n_features).enumerate() {
            if let Some(token) = set.iter().find(|&&token| token == 0 || token >= n_init) {
                return wrong(format!("item {item}: token {token}; expected 1 to {}", n_init - 1));
            }
            if set.iter().enumerate().any(|(at, token)| set[..at].contains(token)) {
                return wrong(format!("item {item}: the same token twice; an item is a set"));
            }
        }
        let n_items = self.features.len() / self.n_features;
        if let Some(item) = self.items.iter().find(|&&item| item as usize >= n_items) {
            return wrong(format!("item {item} in a sequence; there are {n_items} items"));
        }
        let last = self.ends.last().copied().unwrap_or(0);
        if last != self.items.len() as u64 || self.ends.windows(2).any(|pair| pair[0] > pair[1]) {
            return wrong(format!("the ends of sequences do not rise to {}", self.items.len()));
        }
        if self.ends.len() >= u32::MAX as usize {
            return wrong(format!("{} sequences; at most {} are supported", self.ends.len(), u32::MAX - 1));
        }
        Ok(())
    }
}

/// The weight of each merged pair when it was merged.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    /// Numerators over `denominator`.
    Exact {
        /// One for each merge.
        numerators: Vec<i128>,
        /// Their common denominator.
        denominator: i128,
    },
    /// Float64, to the last bit those of the published implementation.
    Float64(Vec<f64>),
}

/// What was learned, and what it cost.
#[derive(Clone, Debug)]
pub struct Learned {
    /// Merged pairs, smaller id first, in order.
    pub merges: Vec<[u32; 2]>,
    /// Their weights.
    pub weights: Weights,
    /// How many sequences each merge changed.
    pub touched: Vec<u32>,
    /// Whether the vocabulary has the requested size; if not, no pair was left to merge.
    pub full: bool,
    /// How it went.
    pub stats: Stats,
}

/// How training went, for the record and the benchmarks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Sequences looked at, each as often as a pair it was listed for was merged.
    pub visited: u64,
    /// Those of them that changed.
    pub touched: u64,
    /// Pairs ever seen.
    pub pairs: u64,
    /// Entries of the queue ever made.
    pub queued: u64,
    /// Most entries in the queue at a time.
    pub peak_queue: u64,
    /// Entries in lists of sequences, at the end.
    pub listed: u64,
    /// Seconds it took to count the pairs of the sequences as they were given.
    pub count_seconds: f64,
    /// Seconds it took to merge.
    pub merge_seconds: f64,
}
