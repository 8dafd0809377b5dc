//! Balanced merges: each is chosen for the group that is compressed worst so far (parity-aware BPE, arXiv 2508.04796).
//!
//! In: a corpus whose words are of groups (languages, sources), and the bytes and tokens of each group. Out: merges, in
//! order. Each step takes the group with the fewest bytes per token, or with a development set, the same texts in every
//! group, the one with the most tokens there; a tie goes to the first. The pair that is most frequent in that group, a
//! tie to the smaller, is merged in all groups. A group that has no pair left is passed over. Oracle: `reference/bpe.py`.
//!
//! Slots, places and rounds are those of [`super::merge`]. What differs: a pair has a count in each group, and each
//! group has a floor and a queue of its own. A pair is listed, with its places in all groups, while its count in some
//! group reaches the floor of that group; counts below it are not kept. When the queue of the worst group is empty, a
//! round begins, in which every group gets a new floor.

use super::corpus::{Corpus, Slot};
use super::merge::{Listed, Merger, NARROW_SLOTS, NO_PAIR, SIDE_BY_SIDE, in_threads};
use super::pair::{Pair, PairMap, hash, pair, split};
use super::part::{Neighbours, Part, Place, Rule, Tally};
use super::queue::Queue;
use super::round::{BUCKET_BITS, DENSE_CELLS, EARLY_SHIFT, LATE_SHIFT, Lists, cell, for_each_two, for_each_two_in};
use super::{Ended, Learned, Plan};
use crate::error::Result;
use crate::progress::Progress;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The size of a group: each word as often as it occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Bytes of its words.
    pub bytes: u64,
    /// Tokens that they consist of.
    pub tokens: u64,
}

impl Group {
    /// Adds a word that occurred `weight` times.
    pub fn add(&mut self, bytes: usize, tokens: usize, weight: u64) {
        self.bytes = self.bytes.saturating_add((bytes as u64).saturating_mul(weight));
        self.tokens = self.tokens.saturating_add((tokens as u64).saturating_mul(weight));
    }
}

/// What is to be balanced.
#[derive(Clone, Debug)]
pub struct Balance {
    /// The groups of the training text; then, if `measured`, the same ones of the development set.
    pub groups: Vec<Group>,
    /// Whether there is a development set.
    pub measured: bool,
    /// This many merges come first that are chosen by the counts over all groups.
    pub after: usize,
}

/// Learns merges from a corpus in `parts`, a thread for each, whose words are sorted by group.
pub fn train<S: Slot>(parts: Vec<Corpus<S>>, plan: &Plan, balance: Balance, progress: &Progress) -> Result<Learned> {
    plan.check()?;
    let threads = parts.len();
    if parts.iter().all(|part| part.slots.len() <= NARROW_SLOTS) {
        in_threads(threads, || Balancer::<S, u32>::new(parts, plan, balance, progress).run())
    } else {
        in_threads(threads, || Balancer::<S, u64>::new(parts, plan, balance, progress).run())
    }
}

/// A weight by id and lane.
type Change = (u32, u32, u64);

/// What one merge did.
#[derive(Default)]
struct Changes {
    left: Vec<Change>,
    right: Vec<Change>,
    /// The new token beside itself.
    both: Vec<Change>,
    /// Tokens that each group lost.
    lost: Vec<(usize, u64)>,
    /// Places where the pair was.
    merged: u64,
}

impl Changes {
    /// Takes over what was `found` in a group, and empties it. The development set has no lane: its pairs do not count.
    fn collect(&mut self, group: usize, lane: Option<u32>, n: u32, found: &mut Neighbours) {
        self.lost.push((group, found.weight));
        self.merged += found.merged;
        if let Some(lane) = lane {
            for (side, changes) in [(&found.left, &mut self.left), (&found.right, &mut self.right)] {
                changes.extend(side.seen.iter().map(|&id| (id, lane, side.tallies[id as usize].weight)));
            }
            self.both.extend((found.both > 0).then_some((n, lane, found.both)));
        }
        found.reset();
    }

    /// Takes over what `other` has.
    fn append(&mut self, mut other: Changes) {
        self.left.append(&mut other.left);
        self.right.append(&mut other.right);
        self.both.append(&mut other.both);
        self.lost.append(&mut other.lost);
        self.merged += other.merged;
    }

    /// One entry for each id and lane, sorted.
    fn add_up(&mut self) {
        for changes in [&mut self.left, &mut self.right, &mut self.both] {
            changes.sort_unstable();
            changes.dedup_by(|next, kept| {
                let same = (next.0, next.1) == (kept.0, kept.1);
                kept.2 += if same { next.2 } else { 0 };
                same
            });
        }
    }
}

/// The changes of one id after another.
fn by_id(changes: &[Change]) -> impl Iterator<Item = (u32, &[Change])> {
    changes.chunk_by(|one, other| one.0 == other.0).map(|same| (same[0].0, same))
}

/// A group as the choice of pairs sees it; at first, all of them may be one.
struct Lane {
    queue: Queue<u64, (Pair, u32)>,
    /// Pairs whose count reaches the floor.
    live: usize,
    floor: u64,
    /// Whether no pair is left that may be merged.
    ended: bool,
}

impl Lane {
    /// A lane in which every count is below `above`.
    fn new(above: u64) -> Self {
        Lane { queue: Queue::new(std::iter::empty()), live: 0, floor: above, ended: false }
    }
}

/// The present count of a pair in a lane.
fn count_of(listed: &[Listed], counts: &[Vec<(u32, u64)>], lane: u32, (pair, at): (Pair, u32)) -> Option<u64> {
    let counts = if listed[at as usize].pair == pair { &counts[at as usize][..] } else { &[] };
    counts.iter().find(|&&(other, _)| other == lane).map(|&(_, count)| count)
}

/// The state of the merge loop. Of `merger` it uses parts, tokens and the table of listed pairs.
struct Balancer<'a, S, P> {
    merger: Merger<'a, S, P, true>,
    balance: Balance,
    lanes: Vec<Lane>,
    /// Lane and count of each listed pair, where it reaches the floor.
    counts: Vec<Vec<(u32, u64)>>,
    /// Where the slots of each group end, by part.
    bounds: Vec<Vec<usize>>,
}

impl<'a, S: Slot, P: Place> Balancer<'a, S, P> {
    fn new(parts: Vec<Corpus<S>>, plan: &'a Plan, balance: Balance, progress: &'a Progress) -> Self {
        let merger = Merger::new(parts, plan, progress);
        let mut new = Balancer { merger, balance, lanes: Vec::new(), counts: Vec::new(), bounds: Vec::new() };
        new.open_lanes(new.merger.above);
        new
    }

    /// Groups of the training text.
    fn groups(&self) -> usize {
        self.balance.groups.len() >> self.balance.measured as u32
    }

    /// Whether pairs are chosen for all groups together.
    fn together(&self) -> bool {
        self.merger.learned.merges.len() < self.balance.after
    }

    fn open_lanes(&mut self, above: u64) {
        let lanes = if self.together() { 1 } else { self.groups() };
        self.lanes = (0..lanes).map(|_| Lane::new(above)).collect();
    }

    fn run(mut self) -> Result<Learned> {
        while self.merger.learned.vocab_size < self.merger.plan.vocab_size {
            self.merger.progress.check()?;
            let Some(lane) = self.worst() else {
                self.merger.learned.ended = Ended::NoPairs;
                break;
            };
            let (listed, counts) = (&self.merger.listed, &self.counts);
            let now = |key| count_of(listed, counts, lane as u32, key);
            let Some((count, (_, at))) = self.lanes[lane].queue.pop(now) else {
                self.begin_round()?;
                continue;
            };
            let together = self.together();
            self.merge(at, count);
            self.report(count, self.lanes[lane].floor);
            if together && !self.together() {
                self.open_lanes(count + 1);
            }
        }
        self.merger.learned.groups = self.balance.groups;
        Ok(self.merger.learned)
    }

    /// The lane to choose the next pair for; none if no lane has a pair left.
    fn worst(&self) -> Option<usize> {
        let (groups, first) = (&self.balance.groups, self.groups());
        let worse = |one: usize, other: usize| {
            if self.balance.measured {
                return groups[first + one].tokens > groups[first + other].tokens;
            }
            let (one, other) = (groups[one], groups[other]);
            (one.bytes as u128) * (other.tokens as u128) < (other.bytes as u128) * (one.tokens as u128)
        };
        let left = (0..self.lanes.len()).filter(|&lane| !self.lanes[lane].ended);
        left.reduce(|worst, lane| if worse(lane, worst) { lane } else { worst })
    }

    fn report(&mut self, count: u64, floor: u64) {
        let (stats, progress) = (&mut self.merger.learned.stats, self.merger.progress);
        let queued: usize = self.lanes.iter().map(|lane| lane.queue.len()).sum();
        stats.peak_live_pairs = stats.peak_live_pairs.max(self.merger.find.len() as u64);
        stats.peak_queue = stats.peak_queue.max(queued as u64);
        stats.peak_places = stats.peak_places.max(self.merger.parts.iter().map(|part| part.held).sum());
        progress.merges.store(self.merger.learned.merges.len() as u64, Relaxed);
        progress.occurrences.store(stats.occurrences, Relaxed);
        progress.pair_count.store(count, Relaxed);
        progress.floor.store(floor, Relaxed);
        progress.live_pairs.store(self.merger.find.len() as u64, Relaxed);
        progress.queue_len.store(queued as u64, Relaxed);
    }

    /// Merges the pair listed at `at`, in every group.
    fn merge(&mut self, at: u32, count: u64) {
        let merger = &mut self.merger;
        let merged = merger.listed[at as usize].pair;
        let places: usize = merger.parts.iter().map(|part| part.listed(at)).sum();
        let side_by_side = merger.parts.len() > 1 && places >= SIDE_BY_SIDE;
        merger.parts.iter_mut().for_each(|part| part.take(at));
        self.forget(at);

        let merger = &mut self.merger;
        let (a, b) = split(merged);
        let n = merger.new_token(a, b);
        merger.learned.merges.push((a, b));
        merger.learned.counts.push(count);
        merger.progress.pair.store(merged, Relaxed);

        let (a_span, b_span) = (merger.spans[a as usize] as usize, merger.spans[b as usize] as usize);
        let rule = Rule { a, b, n, a_span, b_span };
        let ids = merger.strings.len();
        let mut found = std::mem::replace(&mut merger.found, Neighbours::NONE);
        found.grow(ids);
        let (groups, lanes) = (self.balance.groups.len() >> self.balance.measured as u32, self.lanes.len());
        let lane_of = |group: usize| (group < groups).then_some(group.min(lanes - 1) as u32);
        let mut changes = Changes::default();
        if side_by_side {
            let alone = |(part, bounds): (&mut Part<S, P>, &Vec<usize>)| {
                let mut found = std::mem::replace(&mut part.found, Neighbours::NONE);
                found.grow(ids);
                let mut changes = Changes::default();
                rewrite(part, bounds, lane_of, rule, &mut found, &mut changes);
                part.found = found;
                changes
            };
            let all: Vec<Changes> = merger.parts.par_iter_mut().zip(&self.bounds).map(alone).collect();
            all.into_iter().for_each(|more| changes.append(more));
        } else {
            for (part, bounds) in merger.parts.iter_mut().zip(&self.bounds) {
                rewrite(part, bounds, lane_of, rule, &mut found, &mut changes);
            }
        }
        changes.add_up();
        merger.learned.stats.occurrences += changes.merged;
        for &(group, tokens) in &changes.lost {
            self.balance.groups[group].tokens -= tokens;
        }

        if self.relist(rule, &mut changes, &mut found) {
            let merger = &mut self.merger;
            let spans = &merger.spans[..];
            if side_by_side {
                merger.parts.par_iter_mut().for_each(|part| part.fill(rule, &found, spans));
            } else {
                merger.parts.iter_mut().for_each(|part| part.fill(rule, &found, spans));
            }
        }
        self.merger.parts.iter_mut().for_each(Part::done);
        changes.left.iter().for_each(|&(id, ..)| found.left.tallies[id as usize] = Tally::default());
        changes.right.iter().for_each(|&(id, ..)| found.right.tallies[id as usize] = Tally::default());
        found.right.tallies[n as usize] = Tally::default();
        self.merger.found = found;
    }

    /// Lowers the counts of the pairs that lost places to `rule` and opens lists for those that came with it, to which
    /// `found` will refer. Says if there are any.
    fn relist(&mut self, rule: Rule, changes: &mut Changes, found: &mut Neighbours) -> bool {
        let Rule { a, b, n, .. } = rule;
        by_id(&changes.left).for_each(|(x, by)| self.lower(pair(x, a), by));
        by_id(&changes.right).for_each(|(y, by)| self.lower(pair(b, y), by));
        // Where n follows n, the first n saw its neighbour as `a`.
        for &(_, lane, weight) in &changes.both {
            if let Ok(at) = changes.right.binary_search_by_key(&(a, lane), |&(id, lane, _)| (id, lane)) {
                changes.right[at].2 -= weight;
            }
        }
        let mut any = false;
        for (x, counts) in by_id(&changes.left) {
            found.left.tallies[x as usize].list = self.list_new(pair(x, n), counts, &mut any);
        }
        for (y, counts) in by_id(&changes.right) {
            found.right.tallies[y as usize].list = self.list_new(pair(n, y), counts, &mut any);
        }
        found.right.tallies[n as usize].list = self.list_new(pair(n, n), &changes.both, &mut any);
        any
    }

    /// Lowers the counts of a pair. What falls below the floor of its lane is forgotten until the next round.
    fn lower(&mut self, pair: Pair, by: &[Change]) {
        let Some(&at) = self.merger.find.get(&pair) else { return };
        for &(_, lane, weight) in by {
            let counts = &mut self.counts[at as usize];
            let Some(index) = counts.iter().position(|&(other, _)| other == lane) else { continue };
            counts[index].1 -= weight;
            if counts[index].1 < self.lanes[lane as usize].floor {
                counts.swap_remove(index);
                self.leave(lane);
            }
        }
        if self.counts[at as usize].is_empty() {
            self.merger.parts.iter_mut().for_each(|part| part.forget(at));
            self.forget(at);
        }
    }

    /// Takes a pair off the books. Its queue entries die with it.
    fn forget(&mut self, at: u32) {
        let merger = &mut self.merger;
        let entry = &mut merger.listed[at as usize];
        merger.find.remove(&entry.pair);
        entry.pair = NO_PAIR;
        merger.free.push(at);
        for (lane, _) in std::mem::take(&mut self.counts[at as usize]) {
            self.leave(lane);
        }
    }

    /// To be called when a pair left a lane.
    fn leave(&mut self, lane: u32) {
        let (listed, counts, left) = (&self.merger.listed, &self.counts, &mut self.lanes[lane as usize]);
        left.live -= 1;
        left.queue.sweep(left.live, |key| count_of(listed, counts, lane, key));
    }

    /// Opens a list for a new pair and queues it in the lanes where it is frequent enough; its number plus 1, or 0.
    fn list_new(&mut self, pair: Pair, counts: &[Change], any: &mut bool) -> u32 {
        let reaching = counts.iter().filter(|&&(_, lane, count)| count >= self.lanes[lane as usize].floor);
        let counts: Vec<(u32, u64)> = reaching.map(|&(_, lane, count)| (lane, count)).collect();
        if counts.is_empty() || !self.merger.admits(pair) {
            return 0;
        }
        *any = true;
        let at = self.merger.free.pop().unwrap_or_else(|| {
            self.merger.listed.push(Listed { pair, count: 0 });
            self.counts.push(Vec::new());
            self.merger.listed.len() as u32 - 1
        });
        self.merger.listed[at as usize].pair = pair;
        self.merger.parts.iter_mut().for_each(|part| part.open(at, 0));
        self.merger.find.insert(pair, at);
        for &(lane, count) in &counts {
            let lane = &mut self.lanes[lane as usize];
            lane.queue.push(count, (pair, at));
            lane.live += 1;
        }
        self.counts[at as usize] = counts;
        at + 1
    }

    /// Compacts the corpus, counts the pairs of each lane, and lists and queues those at or above its new floor.
    fn begin_round(&mut self) -> Result<()> {
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
        // A table of bits tells most pairs that are not listed, without a look into the map.
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

/// Writes `n` over the taken places of a part, group by group.
fn rewrite<S: Slot, P: Place>(
    part: &mut Part<S, P>,
    bounds: &[usize],
    lane_of: impl Fn(usize) -> Option<u32>,
    rule: Rule,
    found: &mut Neighbours,
    changes: &mut Changes,
) {
    let mut from = 0;
    while let Some(place) = part.taken().get(from) {
        let group = bounds.partition_point(|&end| end <= place.index());
        let to = from + part.taken()[from..].partition_point(|place| place.index() < bounds[group]);
        part.rewrite::<true>(rule, found, from..to);
        changes.collect(group, lane_of(group), rule.n, found);
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::super::corpus::deal;
    use super::super::{byte_order, merge};
    use super::*;
    use std::collections::BTreeMap;

    type Words = Vec<(Vec<u8>, u64)>;

    fn plan(merges: u32, min_frequency: u64) -> Plan {
        Plan { vocab_size: 256 + merges, min_frequency, max_token_bytes: None, special_tokens: Vec::new(), start: None }
    }

    fn lay_out<S: Slot>(groups: &[Words], plan: &Plan, parts: usize) -> (Vec<Corpus<S>>, Vec<Group>) {
        let mut corpus: Vec<_> = (0..parts).map(|_| Corpus::<S>::new(plan)).collect();
        let mut sizes = vec![Group::default(); groups.len()];
        for (group, words) in groups.iter().enumerate() {
            corpus.iter_mut().for_each(|part| part.group = group as u32);
            for (word, weight) in words {
                deal(&mut corpus, |part| part.push(word, *weight));
                sizes[group].add(word.len(), word.len(), *weight);
            }
        }
        (corpus, sizes)
    }

    fn fast<S: Slot>(
        groups: &[Words],
        merges: u32,
        least: u64,
        measured: bool,
        after: usize,
        parts: usize,
    ) -> (Vec<(u32, u32)>, Vec<u64>) {
        let plan = plan(merges, least);
        let (corpus, groups) = lay_out::<S>(groups, &plan, parts);
        let learned =
            train(corpus, &plan, Balance { groups, measured, after }, &Progress::default()).expect("nothing to refuse");
        (learned.merges, learned.groups.iter().map(|group| group.tokens).collect())
    }

    /// As `reference/bpe.py`: counts everything anew for each merge.
    fn naive(groups: &[Words], merges: u32, least: u64, measured: bool, after: usize) -> (Vec<(u32, u32)>, Vec<u64>) {
        let mut rank = [0; 256];
        byte_order().zip(0..).for_each(|(byte, id)| rank[byte as usize] = id);
        let ids = |word: &Vec<u8>| word.iter().map(|&b| rank[b as usize]).collect::<Vec<u32>>();
        let mut corpus: Vec<Vec<(Vec<u32>, u64)>> =
            groups.iter().map(|words| words.iter().map(|(word, weight)| (ids(word), *weight)).collect()).collect();
        let tokens = |words: &Vec<(Vec<u32>, u64)>| words.iter().map(|(word, by)| word.len() as u64 * by).sum::<u64>();
        let bytes: Vec<u64> = corpus.iter().map(tokens).collect();
        let training = if measured { groups.len() / 2 } else { groups.len() };
        let mut learned = Vec::new();
        for token in 256..256 + merges {
            let now: Vec<u64> = corpus.iter().map(tokens).collect();
            let mut order: Vec<Vec<usize>> = (0..training).map(|group| vec![group]).collect();
            if measured {
                order.sort_by_key(|one| std::cmp::Reverse(now[training + one[0]]));
            } else {
                order.sort_by(|one, other| (bytes[one[0]] * now[other[0]]).cmp(&(bytes[other[0]] * now[one[0]])));
            }
            if learned.len() < after {
                order = vec![(0..training).collect()];
            }
            let best = order.iter().find_map(|chosen| {
                let mut pairs = BTreeMap::<(u32, u32), u64>::new();
                for (word, weight) in chosen.iter().flat_map(|&group| &corpus[group]) {
                    word.windows(2).for_each(|two| *pairs.entry((two[0], two[1])).or_default() += weight);
                }
                let best = pairs.iter().rev().max_by_key(|&(_, &count)| count)?;
                (*best.1 >= least.max(1)).then_some(*best.0)
            });
            let Some(best) = best else { break };
            learned.push(best);
            for (word, _) in corpus.iter_mut().flatten() {
                let mut merged = Vec::with_capacity(word.len());
                let mut at = 0;
                while at < word.len() {
                    let hit = at + 1 < word.len() && (word[at], word[at + 1]) == best;
                    merged.push(if hit { token } else { word[at] });
                    at += 1 + hit as usize;
                }
                *word = merged;
            }
        }
        (learned, corpus.iter().map(tokens).collect())
    }

    #[test]
    fn random_groups_merge_as_a_recount_says() {
        let mut state = 88_172_645_463_325_252u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for heap in 0..80u64 {
            let measured = heap % 3 == 2;
            let training = 1 + heap % 4;
            let groups: Vec<Words> = (0..training << measured as u32)
                .map(|group| {
                    let mut words: Words = (0..10 + random(40))
                        .map(|_| {
                            let len = 1 + random(12);
                            let weight = 1 + random(1 << (heap % 10));
                            let first = b'a' + (group % training) as u8;
                            ((0..len).map(|_| first + (random(6) * random(6) / 6) as u8).collect(), weight)
                        })
                        .collect();
                    words.sort_by_key(|&(_, weight)| std::cmp::Reverse(weight));
                    words
                })
                .collect();
            let after = if heap % 5 == 4 { 20 } else { 0 };
            let least = heap % 7 / 3;
            let want = naive(&groups, 150, least, measured, after);
            for parts in 1..=3 {
                assert_eq!(
                    fast::<u16>(&groups, 150, least, measured, after, parts),
                    want,
                    "heap {heap}, {parts} parts"
                );
            }
            assert_eq!(fast::<u32>(&groups, 150, least, measured, after, 1), want, "heap {heap}");
        }
    }

    #[test]
    fn one_group_merges_as_plain_training() {
        let words: Words = vec![(b"aaabdaaabac".to_vec(), 3), (b"abcabcdabcde".to_vec(), 2), (b"a".to_vec(), 1)];
        let plan = plan(12, 0);
        let (corpus, _) = lay_out::<u16>(std::slice::from_ref(&words), &plan, 1);
        let plain = merge::train(corpus, &plan, &Progress::default()).expect("nothing to refuse");
        assert_eq!(fast::<u16>(&[words], 12, 0, false, 0, 1).0, plain.merges);
    }
}
