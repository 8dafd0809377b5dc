//! The start of a round: which pairs are frequent enough to be listed, and where they are.
//!
//! In: the corpus as the merges so far left it. Out: its pairs at or above a new floor, with all their places, in the
//! queue. Everything else waits; see [`super::merge`] for why that does not change the result. Each part of the corpus
//! is walked by a separate thread.

use super::corpus::{Corpus, Slot};
use super::merge::{Listed, Merger, reaches};
use super::pair::{Pair, PairMap, PairSet, hash, pair};
use super::part::{Part, Place, Places};
use super::queue::Queue;
use crate::error::Result;
use crate::progress::Progress;
use rayon::prelude::*;
use std::cmp::Reverse;
use std::ops::Range;

/// Pair tables with at most this many cells are dense arrays; beyond, hash maps. Of a short corpus, fewer, but never
/// fewer than the least.
#[cfg(not(test))]
pub(super) const DENSE_CELLS: usize = 1 << 22;
#[cfg(not(test))]
const LEAST_DENSE_CELLS: usize = 1 << 18;
/// So that a test of some hundred merges sees both.
#[cfg(test)]
pub(super) const DENSE_CELLS: usize = 300 * 300;
#[cfg(test)]
const LEAST_DENSE_CELLS: usize = DENSE_CELLS;

/// How far below the best count a round's floor lies, in powers of two. A lower floor means fewer rounds, but longer
/// lists, whose places are stale by the time they are needed. The first two rounds, with few and very frequent pairs,
/// want shorter steps. Figures in docs/tried.md; one step too low (8) can take twice the time and thrice the memory.
pub(super) const EARLY_SHIFT: u32 = 3;
pub(super) const LATE_SHIFT: u32 = 4;

/// Going on from a vocabulary, pairs are many and rare from the first round on: one that lists this many for each merge
/// that is wanted is nearly always enough, where steps from the best count down took six, each a walk over all.
const PAIRS_FOR_A_MERGE: usize = 6;
const FEW_LISTED: usize = 1 << 12;

/// Most bits that choose a bucket: 16 MiB of sums.
pub(super) const BUCKET_BITS: u32 = 22;

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

    /// The floor that about `pairs` pairs reach, or more if some share a bucket.
    fn floor_of(&self, pairs: usize) -> u64 {
        let mut sums: Vec<u32> = self.sums.iter().copied().filter(|&sum| sum > 0).collect();
        if sums.len() <= pairs {
            return 1;
        }
        let (_, floor, _) = sums.select_nth_unstable_by_key(pairs, |&sum| Reverse(sum));
        (*floor).into()
    }

    /// All buckets, in ranges that admit at most `most` places each, or are one bucket.
    fn ranges(&self, most: usize) -> Vec<Range<usize>> {
        let (mut ranges, mut start, mut places) = (Vec::new(), 0, 0);
        for (bucket, &sum) in self.sums.iter().enumerate().filter(|&(_, &sum)| sum >= self.floor) {
            if places + sum as usize > most && start < bucket {
                ranges.push(start..bucket);
                (start, places) = (bucket, 0);
            }
            places += sum as usize;
        }
        ranges.push(start..self.sums.len());
        ranges
    }
}

impl<S: Slot, P: Place, const WEIGHTED: bool> Merger<'_, S, P, WEIGHTED> {
    /// Compacts the corpus, counts all pairs, and lists and queues those at or above a new floor.
    /// False if no pair can be merged any more.
    pub(super) fn begin_round(&mut self) -> Result<bool> {
        self.learned.stats.rounds += 1;
        self.close_queue();
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
        while self.above > least {
            let dense = self.width() * self.width() <= self.dense_cells();
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

    fn dense_cells(&self) -> usize {
        // What slots and their places no longer take is free for tables.
        let bytes = 8 * (self.most_slots - self.slots());
        let cells = bytes / (8 * self.parts.len() + 4);
        if WEIGHTED { DENSE_CELLS } else { cells.clamp(LEAST_DENSE_CELLS, DENSE_CELLS) }
    }

    fn slots(&self) -> usize {
        self.parts.iter().map(|part| part.corpus.slots.len()).sum()
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
        let counted = counted.filter(|counted| counted.count > 0 && self.admits(counted.pair));
        let best = counted.clone().map(|counted| counted.count).max().unwrap_or(0);
        let floor = (best >> shift).max(least);
        let counts: Vec<_> = counted.filter(|counted| counted.count >= floor).collect();
        (self.floor, self.last) = (floor, Pair::MAX);

        let mut list_of = vec![0; width * width];
        self.list(counts, &mut list_of);
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
        (self.floor, self.last) = ((self.above >> shift).max(least), Pair::MAX);
        let mut buckets = self.buckets()?;
        if self.plan.start.is_some() {
            let wanted = PAIRS_FOR_A_MERGE * (self.plan.vocab_size - self.learned.vocab_size) as usize;
            let floor = buckets.floor_of(wanted.max(FEW_LISTED).min(self.most_pairs));
            self.floor = floor.min(self.above >> 1).max(least);
            buckets.floor = self.floor.min(u32::MAX as u64) as u32;
        }
        if let Some(any) = self.list_admitted(|left, right| buckets.admit(left, right), self.most_pairs)? {
            return Ok(any);
        }
        let best = self.best(&buckets)?;
        drop(buckets);
        let any = self.list_admitted(|left, right| best.contains(&pair(left.id(), right.id())), usize::MAX)?;
        Ok(any == Some(true))
    }

    /// The counts of all pairs, added up by their hashes.
    fn buckets(&self) -> Result<Buckets> {
        let bits = (self.slots() / self.parts.len().max(1)).max(2).ilog2().min(BUCKET_BITS);
        let floor = self.floor.min(u32::MAX as u64) as u32;
        let none = || Buckets { sums: vec![0; 1 << bits], bits, floor };
        let sums = self.parts.par_iter().map(|part| {
            let mut buckets = none();
            for_each_two(&part.corpus, self.progress, |left, right, _, weight| {
                let bucket = buckets.of(left, right);
                let sum = &mut buckets.sums[bucket];
                let inside = (left != S::END && right != S::END) as u32;
                *sum = sum.saturating_add(weight.min(u32::MAX as u64) as u32 * inside);
            })?;
            Ok(buckets)
        });
        let all = sums.try_reduce_with(|mut all, more| {
            all.sums.iter_mut().zip(&more.sums).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
            Ok(all)
        });
        Ok(all.transpose()?.unwrap_or_else(none))
    }

    /// Lists those of the pairs that `admit` lets in which reach the floor. None, and nothing listed, if more than
    /// `most` pairs of a part are let in.
    fn list_admitted(&mut self, admit: impl Fn(S, S) -> bool + Sync, most: usize) -> Result<Option<bool>> {
        let walks =
            self.parts.par_iter().map(|part| count_sparse::<S, WEIGHTED>(&part.corpus, &admit, most, self.progress));
        let Some(mut walks) = walks.collect::<Result<Option<Vec<Walk>>>>()? else { return Ok(None) };

        let (mut counts, numbers) = add_up(&walks);
        walks.iter_mut().for_each(|walk| walk.pairs = Vec::new());
        counts.retain(|counted| self.admits(counted.pair));
        let mut list_of = vec![0; numbers.iter().flatten().map(|&number| number as usize + 1).max().unwrap_or(0)];
        self.list(counts, &mut list_of);
        let lists = self.listed.len();
        let list = |((part, walk), numbers): ((&mut Part<S, P>, &Walk), &Vec<u32>)| {
            let list_of: Vec<u32> = numbers.iter().map(|&number| list_of[number as usize]).collect();
            let mut places = Lists::new(walk, &list_of, lists);
            let mut order = walk.order.iter();
            for_each_two(&part.corpus, self.progress, |left, right, place, _| {
                if admit(left, right) {
                    let list = order.next().and_then(|&number| list_of.get(number as usize));
                    places.put(list.copied().unwrap_or(0), place);
                }
            })?;
            part.adopt(places);
            Ok(())
        };
        self.parts.par_iter_mut().zip(&walks).zip(&numbers).try_for_each(list)?;
        Ok(Some(lists > 0))
    }

    /// The best pairs, as many as may be listed, where not even what the buckets admit can be counted at once: pairs
    /// are counted a range of buckets at a time. Raises the floor to the worst of them.
    fn best(&mut self, buckets: &Buckets) -> Result<PairSet> {
        let counts_of = |range: &Range<usize>| {
            let mut counts = PairMap::<u64>::default();
            for part in &self.parts {
                for_each_two(&part.corpus, self.progress, |left, right, _, weight| {
                    if range.contains(&buckets.of(left, right)) && buckets.admit(left, right) {
                        *counts.entry(pair(left.id(), right.id())).or_default() += weight;
                    }
                })?;
            }
            let counts = counts.into_iter().filter(|&(pair, count)| count >= self.floor && self.admits(pair));
            Ok(self.best_of(counts.map(|(pair, count)| (count, Reverse(pair))).collect()))
        };
        let both = |mut one: Vec<_>, other: Vec<_>| {
            one.extend(other);
            Ok(self.best_of(one))
        };
        // A range at a time for each thread; 40 bytes for each pair that is counted.
        let ranges = buckets.ranges((self.most_pairs * 4).max(1));
        let best: Result<Vec<(u64, Reverse<Pair>)>> = if self.parts.len() > 1 {
            ranges.par_iter().map(counts_of).try_reduce(Vec::new, both)
        } else {
            ranges.iter().map(counts_of).try_fold(Vec::new(), |all, more| both(all, more?))
        };
        let best = best?;
        let worst = best.iter().min().filter(|_| best.len() == self.most_pairs);
        if let Some(&(count, Reverse(pair))) = worst {
            (self.floor, self.last) = (count, pair);
        }
        Ok(best.into_iter().map(|(_, Reverse(pair))| pair).collect())
    }

    /// The best of `counts`, as many as may be listed.
    fn best_of(&self, mut counts: Vec<(u64, Reverse<Pair>)>) -> Vec<(u64, Reverse<Pair>)> {
        if counts.len() > self.most_pairs {
            counts.select_nth_unstable_by(self.most_pairs - 1, |one, other| other.cmp(one));
            counts.truncate(self.most_pairs);
            counts.shrink_to_fit();
        }
        counts
    }

    /// Queues those of `counts` that reach the floor, which is raised if they are too many, and writes to `list_of`
    /// which list (plus 1) each number has.
    fn list(&mut self, mut counts: Vec<Counted>, list_of: &mut [u32]) {
        counts.retain(|counted| reaches(counted.count, counted.pair, self.floor, self.last));
        if counts.len() > self.most_pairs {
            let order = |counted: &Counted| (Reverse(counted.count), counted.pair);
            let (_, worst, _) = counts.select_nth_unstable_by_key(self.most_pairs - 1, order);
            (self.floor, self.last) = (worst.count, worst.pair);
            counts.truncate(self.most_pairs);
        }
        self.above = self.floor + (self.last != Pair::MAX) as u64;
        self.listed.reserve_exact(counts.len());
        for counted in counts {
            self.listed.push(Listed { pair: counted.pair, count: counted.count });
            list_of[counted.number] = self.listed.len() as u32;
        }
        self.find.extend(self.listed.iter().map(|entry| entry.pair).zip(0..));
        self.queue = Queue::new(self.listed.iter().zip(0..).map(|(entry, at)| (entry.count, (entry.pair, at))));
    }
}

/// The lists of one part, while they are written.
pub(super) struct Lists<P> {
    /// Where the next place of each list (plus 1) goes. List 0 stands for all pairs that are not listed: their places
    /// go to one cell, over and over.
    next: Vec<usize>,
    shared: Vec<P>,
}

impl<P: Place> Lists<P> {
    /// The lists that `found` names, one place after another, which are `lists` in all.
    pub(super) fn of(found: &[(u32, P)], lists: usize) -> Self {
        let mut next = vec![0; lists + 1];
        found.iter().for_each(|&(list, _)| next[list as usize + 1] += 1);
        let mut made = Self::laid_out(next);
        found.iter().for_each(|&(list, place)| made.put(list + 1, place.index()));
        made
    }

    /// Room for `lists` lists, as long as `walk` says; `list_of` has the list (plus 1) of each number.
    fn new(walk: &Walk, list_of: &[u32], lists: usize) -> Self {
        let mut next = vec![0; lists + 1];
        for (number, &list) in list_of.iter().enumerate().filter(|&(_, &list)| list != 0) {
            next[list as usize] = walk.places(number);
        }
        Self::laid_out(next)
    }

    /// Room for lists of the lengths in `next`, one after another.
    fn laid_out(mut next: Vec<usize>) -> Self {
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
    pub(super) fn adopt(&mut self, lists: Lists<P>) {
        let starts = std::iter::once(1).chain(lists.next[1..].iter().copied());
        self.places = starts.zip(&lists.next[1..]).map(|(start, &end)| Places::Shared(start..end)).collect();
        self.held = lists.shared.len() as u64 - 1;
        self.shared = lists.shared;
    }
}

/// Calls `each` with every two neighbouring slots, the place of the first, and their weight. One of them may be
/// `END`: leaving those out is up to `each`, which can do it without a branch.
pub(super) fn for_each_two<S: Slot>(
    corpus: &Corpus<S>,
    progress: &Progress,
    each: impl FnMut(S, S, usize, u64),
) -> Result<()> {
    for_each_two_in(corpus, 0..corpus.runs.len(), progress, each)
}

/// As `for_each_two`, in some of the runs.
pub(super) fn for_each_two_in<S: Slot>(
    corpus: &Corpus<S>,
    runs: Range<usize>,
    progress: &Progress,
    mut each: impl FnMut(S, S, usize, u64),
) -> Result<()> {
    let mut from = if runs.start == 0 { 1 } else { corpus.runs[runs.start - 1].end };
    for run in &corpus.runs[runs] {
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

/// Every pair that `admit` lets in; None if they are more than `most`.
fn count_sparse<S: Slot, const WEIGHTED: bool>(
    corpus: &Corpus<S>,
    admit: &impl Fn(S, S) -> bool,
    most: usize,
    progress: &Progress,
) -> Result<Option<Walk>> {
    let mut numbers = PairMap::<u32>::default();
    // Room for all costs nothing until it is written to, unlike growing.
    let mut walk = Walk { order: Vec::with_capacity(corpus.slots.len()), ..Walk::default() };
    for_each_two(corpus, progress, |left, right, _, weight| {
        if numbers.len() <= most && admit(left, right) {
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
    Ok((numbers.len() <= most).then_some(walk))
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
pub(super) fn cell<S: Slot>(left: S, right: S, ids: usize) -> usize {
    (left.id() as usize).min(ids) * (ids + 1) + (right.id() as usize).min(ids)
}
