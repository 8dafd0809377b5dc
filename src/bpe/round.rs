//! The start of a round: which pairs are frequent enough to be listed, and where they are.
//!
//! In: the corpus as the merges so far left it. Out: its pairs at or above a new floor, with all their places, in the
//! queue. Everything else waits; see [`super::merge`] for why that does not change the result.

use super::corpus::Slot;
use super::merge::{Listed, Merger, Place, Places};
use super::pair::{Pair, PairMap, hash, pair, split};
use super::queue::Queue;
use crate::error::Result;

/// Pair tables with at most this many cells are dense arrays; beyond, hash maps.
const DENSE_CELLS: usize = 1 << 22;

/// How far below the best count a round's floor lies, in powers of two. A lower floor means fewer rounds, but longer
/// lists, whose places are stale by the time they are needed. The first two rounds, with few and very frequent pairs,
/// want shorter steps. Figures in docs/tried.md; one step too low (8) can take twice the time and thrice the memory.
const EARLY_SHIFT: u32 = 3;
const LATE_SHIFT: u32 = 4;

/// Buckets that sum counts by a hash of the pair, so that rare pairs need no entry: 16 MiB.
const BUCKET_BITS: u32 = 22;

impl<S: Slot, P: Place, const WEIGHTED: bool> Merger<'_, S, P, WEIGHTED> {
    /// Compacts the corpus, counts all pairs, and lists and queues those at or above a new floor.
    /// False if no pair can be merged any more.
    pub(super) fn begin_round(&mut self) -> Result<bool> {
        self.learned.stats.rounds += 1;
        self.listed = Vec::new();
        self.shared = Vec::new();
        self.free.clear();
        self.find.clear();
        if self.learned.stats.rounds > 1 {
            self.corpus.compact(&mut self.spans);
        }
        let least = self.plan.min_frequency.max(1);
        let shift = if self.learned.stats.rounds <= 2 { EARLY_SHIFT } else { LATE_SHIFT };
        let mut counts = Vec::new();
        while counts.is_empty() {
            if self.floor <= least {
                return Ok(false);
            }
            // All counts lie below the last floor. A dense table also tells the best of them.
            counts = if self.is_dense() {
                self.count_dense()?
            } else {
                self.count_sparse((self.floor >> shift).max(least))?
            };
            counts.retain(|&(pair, _)| self.admits(pair));
            let dense_best = || counts.iter().map(|&(_, count)| count).max().unwrap_or(0);
            let best = if self.is_dense() { dense_best() } else { self.floor };
            self.floor = (best >> shift).max(least);
            counts.retain(|&(_, count)| count >= self.floor);
        }
        self.list_all(&counts)?;
        let worst = self.queue.worst_per_mille() as u64;
        self.learned.stats.queue_per_mille = self.learned.stats.queue_per_mille.max(worst);
        self.queue = Queue::new(counts.iter().zip(0..).map(|(&(pair, count), at)| (count, (pair, at))));
        Ok(true)
    }

    /// Calls `each` with every two neighbouring slots, the place of the first, and their weight. One of them may be
    /// `END`: leaving those out is up to `each`, which can do it without a branch.
    fn for_each_two(&self, mut each: impl FnMut(S, S, usize, u64)) -> Result<()> {
        let slots = &self.corpus.slots;
        let mut from = 1;
        for run in &self.corpus.runs {
            while from < run.end {
                self.progress.check()?;
                let to = run.end.min(from + (1 << 22));
                for (two, place) in slots[from - 1..to].windows(2).zip(from - 1..) {
                    each(two[0], two[1], place, run.weight);
                }
                from = to;
            }
        }
        Ok(())
    }

    /// Width of a dense pair table: the ids, and one more for `END`.
    fn width(&self) -> usize {
        self.strings.len() + 1
    }

    fn is_dense(&self) -> bool {
        self.width() * self.width() <= DENSE_CELLS
    }

    /// Every pair and its count, by ascending pair.
    fn count_dense(&self) -> Result<Vec<(Pair, u64)>> {
        let (ids, width) = (self.strings.len(), self.width());
        let mut table = vec![0u64; width * width];
        self.for_each_two(|left, right, _, weight| table[cell(left, right, ids)] += weight)?;
        let pairs = (0..ids).flat_map(|left| (0..ids).map(move |right| (left, right)));
        let counted = pairs.map(|(left, right)| (pair(left as u32, right as u32), table[left * width + right]));
        Ok(counted.filter(|&(_, count)| count > 0).collect())
    }

    /// Every pair with a count of at least `floor`, by ascending pair; some below it may be among them.
    ///
    /// There can be as many distinct pairs as tokens, nearly all of them rare. So counts are first added up by a
    /// hash of the pair: a bucket below the floor rules out all pairs in it. Only the others get an entry of
    /// their own, which saves most of the time and memory of counting them all.
    fn count_sparse(&self, floor: u64) -> Result<Vec<(Pair, u64)>> {
        let mut buckets = vec![0u32; 1 << BUCKET_BITS];
        let bucket = |left: S, right: S| (hash(pair(left.id(), right.id())) >> (64 - BUCKET_BITS)) as usize;
        self.for_each_two(|left, right, _, weight| {
            let sum = &mut buckets[bucket(left, right)];
            *sum = sum.saturating_add(weight.min(u32::MAX as u64) as u32);
        })?;
        let floor = floor.min(u32::MAX as u64) as u32;
        let mut table = PairMap::<u64>::default();
        self.for_each_two(|left, right, _, weight| {
            if buckets[bucket(left, right)] >= floor && left != S::END && right != S::END {
                *table.entry(pair(left.id(), right.id())).or_default() += weight;
            }
        })?;
        let mut counts: Vec<_> = table.into_iter().collect();
        counts.sort_unstable();
        Ok(counts)
    }

    /// Opens a list for each of `counts` and writes the places of all.
    fn list_all(&mut self, counts: &[(Pair, u64)]) -> Result<()> {
        // Number 0 stands for all pairs that are not listed: their places go to one cell, over and over.
        let mut next = vec![0usize; counts.len() + 1];
        let lengths: Vec<usize> =
            if WEIGHTED { self.lengths(counts)? } else { counts.iter().map(|&(_, n)| n as usize).collect() };
        let mut start = 1;
        for (at, (&(pair, count), length)) in counts.iter().zip(lengths).enumerate() {
            self.find.insert(pair, at as u32);
            self.listed.push(Listed { pair, count, places: Places::Shared(start..start + length) });
            next[at + 1] = start;
            start += length;
        }
        let mut shared = vec![P::of(0); start];
        self.for_each_listed(counts, |at, place| {
            shared[next[at]] = P::of(place);
            next[at] += (at != 0) as usize;
        })?;
        self.shared = shared;
        self.places = start as u64 - 1;
        Ok(())
    }

    /// How many places each of `counts` has. (Without weights, that is its count.)
    fn lengths(&self, counts: &[(Pair, u64)]) -> Result<Vec<usize>> {
        let mut lengths = vec![0; counts.len() + 1];
        self.for_each_listed(counts, |at, _| lengths[at] += 1)?;
        lengths.remove(0);
        Ok(lengths)
    }

    /// Calls `each` with every place in the corpus and which of `counts` is there: its index plus 1, or 0.
    fn for_each_listed(&self, counts: &[(Pair, u64)], mut each: impl FnMut(usize, usize)) -> Result<()> {
        if !self.is_dense() {
            let find: PairMap<usize> = counts.iter().zip(1..).map(|(&(pair, _), at)| (pair, at)).collect();
            return self.for_each_two(|left, right, place, _| {
                each(find.get(&pair(left.id(), right.id())).copied().unwrap_or(0), place);
            });
        }
        let (ids, width) = (self.strings.len(), self.width());
        let mut table = vec![0u32; width * width];
        for (&(pair, _), at) in counts.iter().zip(1..) {
            let (left, right) = split(pair);
            table[left as usize * width + right as usize] = at;
        }
        self.for_each_two(|left, right, place, _| each(table[cell(left, right, ids)] as usize, place))
    }
}

/// Where the pair of two slots is in a dense table over `ids` ids; `END` counts as one id more.
#[inline]
fn cell<S: Slot>(left: S, right: S, ids: usize) -> usize {
    (left.id() as usize).min(ids) * (ids + 1) + (right.id() as usize).min(ids)
}
