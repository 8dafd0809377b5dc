//! The start of a round: which pairs are frequent enough to be listed, and where they are.
//!
//! In: the corpus as the merges so far left it. Out: its pairs at or above a new floor, with all their places, in the
//! queue. Everything else waits; see [`super::merge`] for why that does not change the result. Each part of the corpus
//! is walked by a thread of its own.

use super::corpus::{Corpus, Slot};
use super::merge::{Listed, Merger};
use super::pair::{Pair, PairMap, hash, pair};
use super::part::{Part, Place, Places};
use super::queue::Queue;
use crate::error::Result;
use crate::progress::Progress;
use rayon::prelude::*;

/// Pair tables with at most this many cells are dense arrays; beyond, hash maps.
const DENSE_CELLS: usize = 1 << 22;

/// How far below the best count a round's floor lies, in powers of two. A lower floor means fewer rounds, but longer
/// lists, whose places are stale by the time they are needed. The first two rounds, with few and very frequent pairs,
/// want shorter steps. Figures in docs/tried.md; one step too low (8) can take twice the time and thrice the memory.
const EARLY_SHIFT: u32 = 3;
const LATE_SHIFT: u32 = 4;

/// At most so many bits choose a bucket: 16 MiB of sums.
const BUCKET_BITS: u32 = 22;

/// A pair that was counted in all parts.
struct Counted {
    pair: Pair,
    count: u64,
    /// Which of the counted pairs it is; of a dense table, the cell.
    number: usize,
}

/// What a walk over one part counted, by the number that it gave each pair.
#[derive(Default)]
struct Walk {
    weights: Vec<u64>,
    /// In how many places each pair is; left out without weights, as it is the same.
    places: Vec<usize>,
    /// The pairs by number, and the number of the pair at each admitted place; left out by a dense table.
    pairs: Vec<Pair>,
    order: Vec<u32>,
}

impl Walk {
    fn places(&self, number: usize) -> usize {
        self.places.get(number).copied().unwrap_or(self.weights[number] as usize)
    }
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
        self.free.clear();
        self.find.clear();
        self.parts.iter_mut().for_each(Part::clear);
        if self.learned.stats.rounds > 1 {
            self.parts.par_iter_mut().for_each(|part| part.corpus.compact(&self.spans));
            self.spans.fill(1);
        }
        let least = self.plan.min_frequency.max(1);
        let shift = if self.learned.stats.rounds <= 2 { EARLY_SHIFT } else { LATE_SHIFT };
        // All counts lie below the last floor.
        while self.floor > least {
            let dense = self.width() * self.width() <= DENSE_CELLS;
            let any = if dense { self.list_dense(shift, least)? } else { self.list_sparse(shift, least)? };
            if any {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Width of a dense pair table: the ids, and one more for `END`.
    fn width(&self) -> usize {
        self.strings.len() + 1
    }

    /// Counts with a table that has a cell for every pair there can be, and lists by it.
    fn list_dense(&mut self, shift: u32, least: u64) -> Result<bool> {
        let (ids, width) = (self.strings.len(), self.width());
        let walks: Vec<Walk> = self
            .parts
            .par_iter()
            .map(|part| count_dense::<S, WEIGHTED>(&part.corpus, ids, self.progress))
            .collect::<Result<_>>()?;
        let pairs = (0..ids).flat_map(|left| (0..ids).map(move |right| (left, right)));
        let counted = pairs.map(|(left, right)| {
            let number = left * width + right;
            let count = walks.iter().map(|walk| walk.weights[number]).sum();
            Counted { pair: pair(left as u32, right as u32), count, number }
        });
        let counts: Vec<_> = counted.filter(|counted| counted.count > 0 && self.admits(counted.pair)).collect();
        let best = counts.iter().map(|counted| counted.count).max().unwrap_or(0);
        self.floor = (best >> shift).max(least);

        let mut list_of = vec![0; width * width];
        self.list(&counts, &mut list_of);
        let lists = self.listed.len();
        let list = |(part, walk): (&mut Part<S, P>, &Walk)| {
            let mut places = Lists::new(walk, &list_of, lists);
            for_each_two(&part.corpus, self.progress, |left, right, place, _| {
                places.put(list_of[cell(left, right, ids)], place);
            })?;
            part.adopt(places);
            Ok(())
        };
        self.parts.par_iter_mut().zip(&walks).try_for_each(list)?;
        Ok(lists > 0)
    }

    /// Counts what can reach the floor with a hash map, and lists by it.
    ///
    /// There can be as many distinct pairs as tokens, nearly all of them rare. Buckets rule most of those out before
    /// they get an entry of their own, which saves most of the time and memory of counting them all.
    fn list_sparse(&mut self, shift: u32, least: u64) -> Result<bool> {
        self.floor = (self.floor >> shift).max(least);
        let slots: usize = self.parts.iter().map(|part| part.corpus.slots.len()).sum();
        let bits = slots.ilog2().clamp(1, BUCKET_BITS);
        let floor = self.floor.min(u32::MAX as u64) as u32;
        let sums = self.parts.par_iter().map(|part| {
            let mut buckets = Buckets { sums: vec![0; 1 << bits], bits, floor };
            for_each_two(&part.corpus, self.progress, |left, right, _, weight| {
                let bucket = buckets.of(left, right);
                let sum = &mut buckets.sums[bucket];
                *sum = sum.saturating_add(weight.min(u32::MAX as u64) as u32);
            })?;
            Ok(buckets)
        });
        let buckets = sums.try_reduce_with(|mut all, more| {
            all.sums.iter_mut().zip(&more.sums).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
            Ok(all)
        });
        let Some(buckets) = buckets.transpose()? else { return Ok(false) };
        let walks: Vec<Walk> = self
            .parts
            .par_iter()
            .map(|part| count_sparse::<S, WEIGHTED>(&part.corpus, &buckets, self.progress))
            .collect::<Result<_>>()?;

        let (counts, numbers) = add_up(&walks);
        let counts: Vec<_> = counts.into_iter().filter(|counted| self.admits(counted.pair)).collect();
        let mut list_of = vec![0; numbers.iter().flatten().map(|&number| number as usize + 1).max().unwrap_or(0)];
        self.list(&counts, &mut list_of);
        let lists = self.listed.len();
        let list = |((part, walk), numbers): ((&mut Part<S, P>, &Walk), &Vec<u32>)| {
            let list_of: Vec<u32> = numbers.iter().map(|&number| list_of[number as usize]).collect();
            let mut places = Lists::new(walk, &list_of, lists);
            let mut order = walk.order.iter();
            for_each_two(&part.corpus, self.progress, |left, right, place, _| {
                if buckets.admit(left, right) {
                    let list = order.next().and_then(|&number| list_of.get(number as usize));
                    places.put(list.copied().unwrap_or(0), place);
                }
            })?;
            part.adopt(places);
            Ok(())
        };
        self.parts.par_iter_mut().zip(&walks).zip(&numbers).try_for_each(list)?;
        Ok(lists > 0)
    }

    /// Queues those of `counts` that reach the floor, and writes to `list_of` which list (plus 1) each number has.
    fn list(&mut self, counts: &[Counted], list_of: &mut [u32]) {
        for counted in counts.iter().filter(|counted| counted.count >= self.floor) {
            self.listed.push(Listed { pair: counted.pair, count: counted.count });
            list_of[counted.number] = self.listed.len() as u32;
        }
        self.find.extend(self.listed.iter().map(|entry| entry.pair).zip(0..));
        self.queue = Queue::new(self.listed.iter().zip(0..).map(|(entry, at)| (entry.count, (entry.pair, at))));
    }
}

/// The lists of one part, while they are written.
struct Lists<P> {
    /// Where the next place of each list (plus 1) goes. List 0 stands for all pairs that are not listed: their places
    /// go to one cell, over and over.
    next: Vec<usize>,
    shared: Vec<P>,
}

impl<P: Place> Lists<P> {
    /// Room for `lists` lists, as long as `walk` says; `list_of` tells the list (plus 1) of each number.
    fn new(walk: &Walk, list_of: &[u32], lists: usize) -> Self {
        let mut next = vec![0; lists + 1];
        for (number, &list) in list_of.iter().enumerate().filter(|&(_, &list)| list != 0) {
            next[list as usize] = walk.places(number);
        }
        let mut start = 1;
        for next in &mut next[1..] {
            start += std::mem::replace(next, start);
        }
        Lists { next, shared: vec![P::of(0); start] }
    }

    #[inline]
    fn put(&mut self, list: u32, place: usize) {
        let next = &mut self.next[list as usize];
        self.shared[*next] = P::of(place);
        *next += (list != 0) as usize;
    }
}

impl<S: Slot, P: Place> Part<S, P> {
    /// Takes over lists that are full: each ends where the next begins.
    fn adopt(&mut self, lists: Lists<P>) {
        let starts = std::iter::once(1).chain(lists.next[1..].iter().copied());
        self.places = starts.zip(&lists.next[1..]).map(|(start, &end)| Places::Shared(start..end)).collect();
        self.held = lists.shared.len() as u64 - 1;
        self.shared = lists.shared;
    }
}

/// Calls `each` with every two neighbouring slots, the place of the first, and their weight. One of them may be
/// `END`: leaving those out is up to `each`, which can do it without a branch.
fn for_each_two<S: Slot>(
    corpus: &Corpus<S>,
    progress: &Progress,
    mut each: impl FnMut(S, S, usize, u64),
) -> Result<()> {
    let mut from = 1;
    for run in &corpus.runs {
        while from < run.end {
            progress.check()?;
            let to = run.end.min(from + (1 << 22));
            for (two, place) in corpus.slots[from - 1..to].windows(2).zip(from - 1..) {
                each(two[0], two[1], place, run.weight);
            }
            from = to;
        }
    }
    Ok(())
}

/// Every pair there is, in a table over `ids` ids.
fn count_dense<S: Slot, const WEIGHTED: bool>(corpus: &Corpus<S>, ids: usize, progress: &Progress) -> Result<Walk> {
    let cells = (ids + 1) * (ids + 1);
    let mut walk = Walk { weights: vec![0; cells], ..Walk::default() };
    for_each_two(corpus, progress, |left, right, _, weight| walk.weights[cell(left, right, ids)] += weight)?;
    if WEIGHTED {
        walk.places = vec![0; cells];
        for_each_two(corpus, progress, |left, right, _, _| walk.places[cell(left, right, ids)] += 1)?;
    }
    Ok(walk)
}

/// Every pair that `buckets` admit.
fn count_sparse<S: Slot, const WEIGHTED: bool>(
    corpus: &Corpus<S>,
    buckets: &Buckets,
    progress: &Progress,
) -> Result<Walk> {
    let mut numbers = PairMap::<u32>::default();
    let mut walk = Walk::default();
    for_each_two(corpus, progress, |left, right, _, weight| {
        if buckets.admit(left, right) {
            let pair = pair(left.id(), right.id());
            let number = *numbers.entry(pair).or_insert_with(|| {
                walk.pairs.push(pair);
                walk.weights.push(0);
                if WEIGHTED {
                    walk.places.push(0);
                }
                walk.pairs.len() as u32 - 1
            });
            walk.weights[number as usize] += weight;
            if WEIGHTED {
                walk.places[number as usize] += 1;
            }
            walk.order.push(number);
        }
    })?;
    Ok(walk)
}

/// The pairs of all walks with their counts, and for each walk what its numbers are called here.
fn add_up(walks: &[Walk]) -> (Vec<Counted>, Vec<Vec<u32>>) {
    let Some((first, others)) = walks.split_first() else { return Default::default() };
    let counted = first.pairs.iter().zip(&first.weights).enumerate();
    let mut counts: Vec<_> = counted.map(|(number, (&pair, &count))| Counted { pair, count, number }).collect();
    let mut numbers = vec![(0..counts.len() as u32).collect::<Vec<_>>()];
    if !others.is_empty() {
        let mut find: PairMap<u32> = first.pairs.iter().copied().zip(0..).collect();
        for walk in others {
            let number = |(&pair, &count): (&Pair, &u64)| {
                let number = *find.entry(pair).or_insert_with(|| {
                    counts.push(Counted { pair, count: 0, number: counts.len() });
                    counts.len() as u32 - 1
                });
                counts[number as usize].count += count;
                number
            };
            numbers.push(walk.pairs.iter().zip(&walk.weights).map(number).collect());
        }
    }
    (counts, numbers)
}

/// Where the pair of two slots is in a dense table over `ids` ids; `END` counts as one id more.
#[inline]
fn cell<S: Slot>(left: S, right: S, ids: usize) -> usize {
    (left.id() as usize).min(ids) * (ids + 1) + (right.id() as usize).min(ids)
}
