//! The start of a round of [`super::balance`]: a new floor for each lane, the pairs that reach it, and where they are.
//!
//! As [`super::round`], with counts by lane. The places of a listed pair are listed in all groups, also where it is rare.

use super::balance::{Balancer, Lane, count_of};
use super::corpus::{Corpus, Slot};
use super::merge::Listed;
use super::pair::{Pair, PairMap, hash, pair, split};
use super::part::{Part, Place};
use super::queue::Queue;
use super::round::{BUCKET_BITS, DENSE_CELLS, EARLY_SHIFT, LATE_SHIFT, Lists, cell, for_each_two, for_each_two_in};
use crate::error::Result;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

impl<S: Slot, P: Place> Balancer<'_, S, P> {
    /// Compacts the corpus, counts the pairs of each lane, and lists and queues those at or above its new floor.
    pub(super) fn begin_round(&mut self) -> Result<()> {
        let progress = self.merger.progress;
        let began = Instant::now();
        progress.rounds_begun.fetch_add(1, Relaxed);
        // The best count is known where the queue is not empty; elsewhere, that all counts are below the floor.
        let (listed, counts) = (&self.merger.listed, &self.counts);
        let best = |(number, lane): (usize, &mut Lane)| {
            let best = lane.queue.pop(|key| count_of(listed, counts, number as u32, key));
            best.map(|(count, _)| count)
        };
        let best: Vec<Option<u64>> = self.lanes.iter_mut().enumerate().map(best).collect();
        let merger = &mut self.merger;
        merger.learned.stats.rounds += 1;
        merger.listed = Vec::new();
        merger.free.clear();
        merger.find.clear();
        self.counts = Vec::new();
        merger.parts.iter_mut().for_each(Part::clear);
        if merger.learned.stats.rounds > 1 {
            merger.parts.par_iter_mut().for_each(|part| part.corpus.compact(&merger.spans));
            merger.spans.fill(1);
        }
        let groups = self.balance.groups.len();
        self.bounds = merger.parts.iter().map(|part| bounds(&part.corpus, groups)).collect();

        let count = |lane: usize| self.count(lane, best[lane]);
        let counted: Vec<(u64, Vec<(Pair, u64)>)> = if self.merger.parts.len() > 1 {
            (0..self.lanes.len()).into_par_iter().map(count).collect::<Result<_>>()?
        } else {
            (0..self.lanes.len()).map(count).collect::<Result<_>>()?
        };
        let merger = &mut self.merger;
        for ((lane, (floor, pairs)), number) in self.lanes.iter_mut().zip(counted).zip(0..) {
            *lane = Lane { live: pairs.len(), ended: pairs.is_empty(), ..Lane::new(floor) };
            let mut queued = Vec::with_capacity(pairs.len());
            for (pair, count) in pairs {
                let at = *merger.find.entry(pair).or_insert_with(|| {
                    merger.listed.push(Listed { pair, count: 0 });
                    self.counts.push(Vec::new());
                    merger.listed.len() as u32 - 1
                });
                self.counts[at as usize].push((number, count));
                queued.push((count, (pair, at)));
            }
            lane.queue = Queue::new(queued.into_iter());
        }
        self.list_places()?;
        progress.round_nanos.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
        progress.rounds_ready.fetch_add(1, Relaxed);
        Ok(())
    }

    /// A new floor for a lane, and the pairs that reach it; none if none may be merged.
    fn count(&self, lane: usize, best: Option<u64>) -> Result<(u64, Vec<(Pair, u64)>)> {
        let merger = &self.merger;
        let least = merger.plan.min_frequency.max(1);
        let shift = if merger.learned.stats.rounds <= 2 { EARLY_SHIFT } else { LATE_SHIFT };
        if self.lanes[lane].ended {
            return Ok((least, Vec::new()));
        }
        if self.is_dense() {
            let mut counts = self.count_dense(lane)?;
            let best = counts.iter().map(|&(_, count)| count).max().unwrap_or(0);
            let floor = (best >> shift).max(least);
            counts.retain(|&(_, count)| count >= floor);
            return Ok((floor, counts));
        }
        let mut floor = best.unwrap_or(self.lanes[lane].floor);
        loop {
            floor = (floor >> shift).max(least);
            let counts = self.count_sparse(lane, floor)?;
            if !counts.is_empty() || floor == least {
                return Ok((floor, counts));
            }
        }
    }

    fn is_dense(&self) -> bool {
        (self.merger.strings.len() + 1).pow(2) <= DENSE_CELLS
    }

    /// Calls `each` with every two neighbouring slots of a lane, and their weight; see `for_each_two`.
    fn for_each_in(&self, lane: usize, mut each: impl FnMut(S, S, u64)) -> Result<()> {
        let groups = if self.lanes.len() < self.groups() { 0..self.groups() } else { lane..lane + 1 };
        for part in &self.merger.parts {
            let runs = runs_of(&part.corpus, &groups);
            for_each_two_in(&part.corpus, runs, self.merger.progress, |left, right, _, weight| {
                each(left, right, weight);
            })?;
        }
        Ok(())
    }

    /// The counts of all pairs of a lane that may be merged, by a table with a cell for each pair there can be.
    fn count_dense(&self, lane: usize) -> Result<Vec<(Pair, u64)>> {
        let ids = self.merger.strings.len();
        let mut counts = vec![0; (ids + 1) * (ids + 1)];
        self.for_each_in(lane, |left, right, weight| counts[cell(left, right, ids)] += weight)?;
        let cells = counts.into_iter().enumerate().filter(|&(_, count)| count > 0);
        let pairs = cells.map(|(cell, count)| (cell / (ids + 1), cell % (ids + 1), count));
        let pairs = pairs.filter(|&(left, right, _)| left < ids && right < ids);
        let pairs = pairs.map(|(left, right, count)| (pair(left as u32, right as u32), count));
        Ok(pairs.filter(|&(pair, _)| self.merger.admits(pair)).collect())
    }

    /// The pairs of a lane that reach `floor` and may be merged. Sums over hashes rule most others out first.
    fn count_sparse(&self, lane: usize, floor: u64) -> Result<Vec<(Pair, u64)>> {
        let slots: usize = self.merger.parts.iter().map(|part| part.corpus.slots.len()).sum();
        let bits = (slots / self.lanes.len()).max(2).ilog2().min(BUCKET_BITS);
        let bucket = |left: S, right: S| (hash(pair(left.id(), right.id())) >> (64 - bits)) as usize;
        let mut sums = vec![0u32; 1 << bits];
        self.for_each_in(lane, |left, right, weight| {
            let sum = &mut sums[bucket(left, right)];
            *sum = sum.saturating_add(weight.min(u32::MAX as u64) as u32);
        })?;
        let least = floor.min(u32::MAX as u64) as u32;
        let mut counts = PairMap::<u64>::default();
        self.for_each_in(lane, |left, right, weight| {
            if sums[bucket(left, right)] >= least && left != S::END && right != S::END {
                *counts.entry(pair(left.id(), right.id())).or_default() += weight;
            }
        })?;
        Ok(counts.into_iter().filter(|&(pair, count)| count >= floor && self.merger.admits(pair)).collect())
    }

    /// Lists the places of every listed pair, in all groups.
    fn list_places(&mut self) -> Result<()> {
        let lists = self.merger.listed.len();
        if self.is_dense() {
            let ids = self.merger.strings.len();
            let mut list_of = vec![0; (ids + 1) * (ids + 1)];
            for (entry, list) in self.merger.listed.iter().zip(1..) {
                let (left, right) = split(entry.pair);
                list_of[left as usize * (ids + 1) + right as usize] = list;
            }
            return self.list_by(|left, right| list_of[cell(left, right, ids)], lists);
        }
        // A table of bits rules out most pairs that are not listed, without a look into the map.
        let bits = (lists.max(1) * 16).ilog2() + 1;
        let mut known = vec![0u64; (1usize << bits).div_ceil(64)];
        let bit = |pair: Pair| (hash(pair) >> (64 - bits)) as usize;
        for entry in &self.merger.listed {
            known[bit(entry.pair) / 64] |= 1 << (bit(entry.pair) % 64);
        }
        let find = std::mem::take(&mut self.merger.find);
        let list_of = |left: S, right: S| {
            let pair = pair(left.id(), right.id());
            let listed = known[bit(pair) / 64] >> (bit(pair) % 64) & 1 == 1;
            if listed { find.get(&pair).map_or(0, |&at| at + 1) } else { 0 }
        };
        let done = self.list_by(list_of, lists);
        self.merger.find = find;
        done
    }

    fn list_by(&mut self, list_of: impl Fn(S, S) -> u32 + Sync, lists: usize) -> Result<()> {
        let progress = self.merger.progress;
        let list = |part: &mut Part<S, P>| {
            let mut found = Vec::new();
            for_each_two(&part.corpus, progress, |left, right, place, _| {
                let list = list_of(left, right);
                if list != 0 {
                    found.push((list - 1, P::of(place)));
                }
            })?;
            part.adopt(Lists::of(&found, lists));
            Ok(())
        };
        self.merger.parts.par_iter_mut().try_for_each(list)
    }
}

/// Where the slots of each group end.
fn bounds<S: Slot>(corpus: &Corpus<S>, groups: usize) -> Vec<usize> {
    let end = |group| runs_of(corpus, &(group..group + 1)).end;
    (0..groups).map(|group| end(group).checked_sub(1).map_or(1, |last| corpus.runs[last].end)).collect()
}

/// Which runs are of some groups.
fn runs_of<S: Slot>(corpus: &Corpus<S>, groups: &Range<usize>) -> Range<usize> {
    let before = |group: usize| corpus.runs.partition_point(|run| (run.group as usize) < group);
    before(groups.start)..before(groups.end)
}
