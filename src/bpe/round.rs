//! The start of a round: which pairs are frequent enough to be listed, and where they are.
//!
//! In: the corpus as the merges so far left it. Out: its pairs at or above a new floor, with all their places, in the
//! queue. Everything else waits; see [`super::merge`] for why that does not change the result.

use super::corpus::Slot;
use super::merge::{Listed, Merger, Place, Places};
use super::pair::{Pair, PairMap, hash, pair};
use super::queue::Queue;
use crate::error::Result;

/// Pair tables with at most this many cells are dense arrays; beyond, hash maps.
const DENSE_CELLS: usize = 1 << 22;

/// How far below the best count a round's floor lies, in powers of two. A lower floor means fewer rounds, but longer
/// lists, whose places are stale by the time they are needed. The first two rounds, with few and very frequent pairs,
/// want shorter steps. Figures in docs/tried.md; one step too low (8) can take twice the time and thrice the memory.
const EARLY_SHIFT: u32 = 3;
const LATE_SHIFT: u32 = 4;

/// At most so many bits choose a bucket: 16 MiB of sums.
const BUCKET_BITS: u32 = 22;

/// A pair that was counted.
struct Counted {
    pair: Pair,
    count: u64,
    /// In how many places it is; without weights, the same as `count`.
    places: usize,
    /// What the count's `Numbers` call it.
    number: usize,
}

/// How a second walk over the corpus finds the number of the pair at each place.
enum Numbers {
    /// It is the cell of a table with a row and a column for each id.
    Dense,
    /// Pairs whose bucket sums to less than the floor have none; of the others, `order` has it, place after place.
    Sparse { buckets: Buckets, order: Vec<u32> },
}

/// Counts added up by a hash of the pair: a bucket below the floor rules out all pairs in it.
struct Buckets {
    sums: Vec<u32>,
    bits: u32,
    floor: u32,
}

impl Buckets {
    #[inline]
    fn of<S: Slot>(&self, left: S, right: S) -> usize {
        (hash(pair(left.id(), right.id())) >> (64 - self.bits)) as usize
    }

    #[inline]
    fn admit<S: Slot>(&self, left: S, right: S) -> bool {
        self.sums[self.of(left, right)] >= self.floor && left != S::END && right != S::END
    }
}

impl<S: Slot, P: Place, const WEIGHTED: bool> Merger<'_, S, P, WEIGHTED> {
    /// Compacts the corpus, counts all pairs, and lists and queues those at or above a new floor.
    /// False if no pair can be merged any more.
    pub(super) fn begin_round(&mut self) -> Result<bool> {
        self.learned.stats.rounds += 1;
        let worst = self.queue.worst_per_mille() as u64;
        self.learned.stats.queue_per_mille = self.learned.stats.queue_per_mille.max(worst);
        self.queue = Queue::new(std::iter::empty());
        self.listed = Vec::new();
        self.shared = Vec::new();
        self.free.clear();
        self.find.clear();
        if self.learned.stats.rounds > 1 {
            self.corpus.compact(&mut self.spans);
        }
        let least = self.plan.min_frequency.max(1);
        let shift = if self.learned.stats.rounds <= 2 { EARLY_SHIFT } else { LATE_SHIFT };
        // All counts lie below the last floor.
        while self.floor > least {
            let (mut counts, numbers);
            if self.is_dense() {
                (counts, numbers) = (self.count_dense()?, Numbers::Dense);
                counts.retain(|counted| self.admits(counted.pair));
                let best = counts.iter().map(|counted| counted.count).max().unwrap_or(0);
                self.floor = (best >> shift).max(least);
            } else {
                self.floor = (self.floor >> shift).max(least);
                (counts, numbers) = self.count_sparse()?;
                counts.retain(|counted| self.admits(counted.pair));
            }
            counts.retain(|counted| counted.count >= self.floor);
            if !counts.is_empty() {
                self.list(&counts, &numbers)?;
                return Ok(true);
            }
        }
        Ok(false)
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

    /// Every pair there is.
    fn count_dense(&self) -> Result<Vec<Counted>> {
        let (ids, width) = (self.strings.len(), self.width());
        let mut table = vec![0u64; width * width];
        self.for_each_two(|left, right, _, weight| table[cell(left, right, ids)] += weight)?;
        let mut places = vec![0u32; if WEIGHTED { width * width } else { 0 }];
        if WEIGHTED {
            self.for_each_two(|left, right, _, _| places[cell(left, right, ids)] += 1)?;
        }
        let pairs = (0..ids).flat_map(|left| (0..ids).map(move |right| (left, right)));
        let counted = pairs.map(|(left, right)| {
            let number = left * width + right;
            let places = if WEIGHTED { places[number] as usize } else { table[number] as usize };
            Counted { pair: pair(left as u32, right as u32), count: table[number], places, number }
        });
        Ok(counted.filter(|counted| counted.count > 0).collect())
    }

    /// Every pair with a count of at least the floor; some below it are among them.
    ///
    /// There can be as many distinct pairs as tokens, nearly all of them rare. Buckets rule most of those out before
    /// they get an entry of their own, which saves most of the time and memory of counting them all.
    fn count_sparse(&self) -> Result<(Vec<Counted>, Numbers)> {
        let bits = self.corpus.slots.len().ilog2().clamp(1, BUCKET_BITS);
        let floor = self.floor.min(u32::MAX as u64) as u32;
        let mut buckets = Buckets { sums: vec![0; 1 << bits], bits, floor };
        self.for_each_two(|left, right, _, weight| {
            let bucket = buckets.of(left, right);
            let sum = &mut buckets.sums[bucket];
            *sum = sum.saturating_add(weight.min(u32::MAX as u64) as u32);
        })?;
        let mut numbers = PairMap::<u32>::default();
        let mut counts: Vec<Counted> = Vec::new();
        let mut order = Vec::new();
        self.for_each_two(|left, right, _, weight| {
            if buckets.admit(left, right) {
                let pair = pair(left.id(), right.id());
                let number = *numbers.entry(pair).or_insert_with(|| {
                    counts.push(Counted { pair, count: 0, places: 0, number: counts.len() });
                    counts.len() as u32 - 1
                });
                let counted = &mut counts[number as usize];
                counted.count += weight;
                counted.places += 1;
                order.push(number);
            }
        })?;
        Ok((counts, Numbers::Sparse { buckets, order }))
    }

    /// Opens a list for each of `counts`, writes their places, and queues them.
    fn list(&mut self, counts: &[Counted], numbers: &Numbers) -> Result<()> {
        // List 0 stands for all pairs that are not listed: their places go to one cell, over and over.
        let numbered = match numbers {
            Numbers::Dense => self.width() * self.width(),
            Numbers::Sparse { .. } => counts.iter().map(|counted| counted.number + 1).max().unwrap_or(0),
        };
        let mut list_of = vec![0u32; numbered];
        let mut next = Vec::with_capacity(counts.len() + 1);
        next.push(0);
        let mut start = 1;
        self.find.reserve(counts.len());
        for (counted, at) in counts.iter().zip(0..) {
            let range = start..start + counted.places;
            list_of[counted.number] = at + 1;
            next.push(start);
            start = range.end;
            self.find.insert(counted.pair, at);
            self.listed.push(Listed { pair: counted.pair, count: counted.count, places: Places::Shared(range) });
        }
        let mut shared = vec![P::of(0); start];
        let mut put = |list: u32, place: usize| {
            let next = &mut next[list as usize];
            shared[*next] = P::of(place);
            *next += (list != 0) as usize;
        };
        match numbers {
            Numbers::Dense => {
                let ids = self.strings.len();
                self.for_each_two(|left, right, place, _| put(list_of[cell(left, right, ids)], place))?;
            }
            Numbers::Sparse { buckets, order } => {
                let mut order = order.iter();
                self.for_each_two(|left, right, place, _| {
                    if buckets.admit(left, right) {
                        let list = order.next().and_then(|&number| list_of.get(number as usize));
                        put(list.copied().unwrap_or(0), place);
                    }
                })?;
            }
        }
        self.places = start as u64 - 1;
        self.shared = shared;
        self.queue = Queue::new(self.listed.iter().zip(0..).map(|(entry, at)| (entry.count, (entry.pair, at))));
        Ok(())
    }
}

/// Where the pair of two slots is in a dense table over `ids` ids; `END` counts as one id more.
#[inline]
fn cell<S: Slot>(left: S, right: S, ids: usize) -> usize {
    (left.id() as usize).min(ids) * (ids + 1) + (right.id() as usize).min(ids)
}
