//! Balanced merges: each is chosen for the group that is compressed worst so far (parity-aware BPE, arXiv 2508.04796).
//!
//! In: a corpus whose words are of groups (languages, sources), and the bytes and tokens of each group. Out: merges, in
//! order. Each step takes the group with the fewest bytes per token, or with a development set, the same texts in every
//! group, the one with the most tokens there; a tie goes to the first. The pair that is most frequent in that group, a
//! tie to the smaller, is merged in all groups. A group that has no pair left is passed over, and with a window, one that
//! had more than twice its share of the last merges. Oracle: `reference/bpe.py`.
//!
//! Slots, places and rounds are those of [`super::merge`]. What differs: a pair has a count in each group, and each
//! group has its own floor and queue. A pair is listed, with its places in all groups, while its count in some
//! group reaches the floor of that group; counts below it are not kept. When the queue of the worst group is empty, a
//! round begins, in which every group gets a new floor.

use super::corpus::{Corpus, Slot};
use super::merge::{Listed, Merger, NARROW_SLOTS, NO_PAIR, in_threads};
use super::pair::{Pair, pair};
use super::part::{Neighbours, Part, Place, Rule, Tally};
use super::queue::Queue;
use super::{Learned, Plan};
use crate::error::Result;
use crate::progress::Progress;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

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
    /// No group is chosen for more than twice its equal share of this many merges, if another has a pair left; 0 for
    /// no such limit.
    pub window: usize,
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

/// A queue of pairs: of one group, or, while pairs are chosen for all together, of all groups.
pub(super) struct Lane {
    pub(super) queue: Queue<u64, (Pair, u32)>,
    /// Pairs whose count reaches the floor.
    pub(super) live: usize,
    pub(super) floor: u64,
    /// Whether no pair is left that may be merged.
    pub(super) ended: bool,
}

impl Lane {
    /// A lane in which every count is below `above`.
    pub(super) fn new(above: u64) -> Self {
        Lane { queue: Queue::new(std::iter::empty()), live: 0, floor: above, ended: false }
    }
}

/// The present count of a pair in a lane.
pub(super) fn count_of(
    listed: &[Listed],
    counts: &[Vec<(u32, u64)>],
    lane: u32,
    (pair, at): (Pair, u32),
) -> Option<u64> {
    let counts = if listed[at as usize].pair == pair { &counts[at as usize][..] } else { &[] };
    counts.iter().find(|&&(other, _)| other == lane).map(|&(_, count)| count)
}

/// The state of the merge loop. Of `merger` it uses parts, tokens and the table of listed pairs.
pub(super) struct Balancer<'a, S, P> {
    pub(super) merger: Merger<'a, S, P, true>,
    pub(super) balance: Balance,
    pub(super) lanes: Vec<Lane>,
    /// Lane and count of each listed pair, where it reaches the floor.
    pub(super) counts: Vec<Vec<(u32, u64)>>,
    /// The lanes of the last merges, at most as many as `Balance::window`, and how often each is among them.
    recent: VecDeque<usize>,
    chosen: Vec<usize>,
    /// Where the slots of each group end, by part.
    pub(super) bounds: Vec<Vec<usize>>,
}

impl<'a, S: Slot, P: Place> Balancer<'a, S, P> {
    fn new(parts: Vec<Corpus<S>>, plan: &'a Plan, balance: Balance, progress: &'a Progress) -> Self {
        let merger = Merger::new(parts, plan, progress);
        let (recent, chosen) = (VecDeque::new(), vec![0; balance.groups.len()]);
        let (lanes, counts, bounds) = Default::default();
        let mut new = Balancer { merger, balance, lanes, counts, recent, chosen, bounds };
        new.open_lanes(new.merger.above);
        new
    }

    /// Groups of the training text.
    pub(super) fn groups(&self) -> usize {
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
                self.merger.learned.full = false;
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
            if self.balance.window > 0 && !together {
                self.recent.push_back(lane);
                self.chosen[lane] += 1;
                if self.recent.len() > self.balance.window {
                    self.chosen[self.recent.pop_front().unwrap_or(lane)] -= 1;
                }
            }
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
        let left = || (0..self.lanes.len()).filter(|&lane| !self.lanes[lane].ended);
        let worst_of = |worst, lane| if worse(lane, worst) { lane } else { worst };
        let window = self.balance.window;
        let had_less = |&lane: &usize| window == 0 || self.chosen[lane] * self.lanes.len() <= 2 * window;
        left().filter(had_less).reduce(worst_of).or_else(|| left().reduce(worst_of))
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
    }

    /// Merges the pair listed at `at`, in every group.
    fn merge(&mut self, at: u32, count: u64) {
        let (rule, side_by_side) = self.merger.take_pair(at, count);
        self.forget(at);
        let (groups, lanes) = (self.groups(), self.lanes.len());
        let merger = &mut self.merger;
        let ids = merger.strings.len();
        let mut found = std::mem::replace(&mut merger.found, Neighbours::NONE);
        found.grow(ids);
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
        found.right.tallies[rule.n as usize] = Tally::default();
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

    /// Unlists a pair. Its queue entries become stale.
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

    /// Updates a lane that a pair has left.
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
