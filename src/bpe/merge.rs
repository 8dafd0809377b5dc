//! The merge loop.
//!
//! In: a corpus in slots. Out: merges, best first. Oracle: `reference/bpe.py`.
//!
//! A pair knows its count and the places where it begins. When (a, b) becomes n, every pair that gains contains
//! n, so its list is complete the moment it is made; every other pair only loses, so its count is lowered and
//! its list left alone: a place is checked when (if) its pair is merged. Lists are ascending, so `aaa` merges
//! leftmost first by itself. A merge costs its occurrences and nothing more.
//!
//! Most pairs are rare and never merged. They wait: a round lists only pairs that occur at least `floor` times.
//! All pairs at or above the floor are in the queue (counts fall, never rise), so the queue's best is the true
//! best until it drops below the floor. Then the corpus is compacted and a round with a lower floor begins.
//! Where the pairs at the floor are more than memory is for, those up to some pair are listed, in the order in which
//! they would be merged; and a round that has come to hold too many ends early.
//!
//! The places are kept by the [`super::part`]s of the corpus, one for each thread. Frequent pairs are merged in all
//! parts side by side; for rare ones waking a thread would cost more than the work, so one thread goes through the parts.

use super::corpus::{Corpus, Slot};
use super::pair::{Pair, PairMap, pair, split};
use super::part::{Neighbours, Part, Place, Rule, Tally};
use super::queue::Queue;
use super::{Learned, Plan, Stats};
use crate::error::{Error, Result};
use crate::progress::Progress;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Marks a free entry; never a real pair, as ids stay far below 2^32.
pub(super) const NO_PAIR: Pair = Pair::MAX;

/// Pairs with fewer places than this are merged by one thread: about 0.1 ms of work.
#[cfg(not(test))]
const SIDE_BY_SIDE: usize = 1 << 14;
#[cfg(test)]
const SIDE_BY_SIDE: usize = 4;

/// Places of a part with at most this many slots have 32 bits.
#[cfg(not(test))]
pub(super) const NARROW_SLOTS: usize = u32::MAX as usize;
#[cfg(test)]
pub(super) const NARROW_SLOTS: usize = 200;

/// Bytes of listed pairs for each byte of an unweighted corpus, and what a pair takes while it is counted and listed:
/// so much, and more for each part. With slots and places that makes at most 10 bytes for each byte.
const PAIR_BYTES: usize = 2;
const BYTES_OF_A_PAIR: usize = 160;
const BYTES_IN_A_PART: usize = 100;
/// However short the corpus, this number of pairs may be listed.
#[cfg(not(test))]
const FEW_PAIRS: usize = 1 << 13;
#[cfg(test)]
const FEW_PAIRS: usize = 16;

/// A pair that is frequent enough to be queued.
pub(super) struct Listed {
    pub(super) pair: Pair,
    pub(super) count: u64,
}

/// The bytes of every token, by id, and how many words they are.
#[derive(Default)]
pub(super) struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    words: Vec<u32>,
}

impl Strings {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
        let words = string.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        self.words.push(words.count() as u32);
    }

    /// How many words `left` and `right` make together: one less if the last word of one goes on in the other.
    fn words(&self, left: u32, right: u32) -> u32 {
        let ends = |byte: Option<&u8>| byte.is_some_and(|byte| !byte.is_ascii_whitespace());
        let goes_on = ends(self.of(left).last()) && ends(self.of(right).first());
        self.words[left as usize] + self.words[right as usize] - goes_on as u32
    }

    fn of(&self, id: u32) -> &[u8] {
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        &self.bytes[start..self.ends[id as usize]]
    }
}

/// Learns merges from a corpus in `parts`, a thread for each, until the plan is met or no pair is left.
pub fn train<S: Slot>(parts: Vec<Corpus<S>>, plan: &Plan, progress: &Progress) -> Result<Learned> {
    plan.check()?;
    let weighted = parts.iter().any(|part| !part.is_unweighted());
    let longest = parts.iter().map(|part| part.slots.len()).max().unwrap_or(0);
    match (longest <= NARROW_SLOTS, weighted) {
        (true, false) => Merger::<S, u32, false>::new(parts, plan, progress).start(),
        (true, true) => Merger::<S, u32, true>::new(parts, plan, progress).start(),
        (false, false) => Merger::<S, u64, false>::new(parts, plan, progress).start(),
        (false, true) => Merger::<S, u64, true>::new(parts, plan, progress).start(),
    }
}

/// Runs `work` with `threads` threads for its parallel parts.
pub(super) fn in_threads(threads: usize, work: impl FnOnce() -> Result<Learned> + Send) -> Result<Learned> {
    if threads < 2 {
        return work();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool =
        pool.map_err(|error| Error::Training(format!("{threads} threads for merging: {error}; ask for fewer")))?;
    pool.install(work)
}

/// The state of the merge loop.
pub(super) struct Merger<'a, S, P, const WEIGHTED: bool> {
    pub(super) parts: Vec<Part<S, P>>,
    pub(super) plan: &'a Plan,
    pub(super) progress: &'a Progress,
    /// Bytes of each token, by id.
    pub(super) strings: Strings,
    /// Strings that have an id already, of a special token, and strings that no merge may make.
    special: HashMap<Vec<u8>, u32>,
    forbidden: HashSet<Vec<u8>>,
    /// Slots that each token spans, by id.
    pub(super) spans: Vec<u32>,
    pub(super) listed: Vec<Listed>,
    pub(super) free: Vec<u32>,
    /// Pairs at or above the floor, and where they are in `listed`.
    pub(super) find: PairMap<u32>,
    pub(super) queue: Queue<u64, (Pair, u32)>,
    /// The pairs at or above the floor are listed; at the floor itself, those up to `last`.
    pub(super) floor: u64,
    pub(super) last: Pair,
    /// Every count is below this when a round begins.
    pub(super) above: u64,
    /// How many pairs a round may list.
    pub(super) most_pairs: usize,
    /// Slots of all parts at first.
    pub(super) most_slots: usize,
    /// Neighbours of the present merge.
    pub(super) found: Neighbours,
    pub(super) learned: Learned,
}

impl<'a, S: Slot, P: Place, const WEIGHTED: bool> Merger<'a, S, P, WEIGHTED> {
    pub(super) fn new(parts: Vec<Corpus<S>>, plan: &'a Plan, progress: &'a Progress) -> Self {
        let mut strings = Strings::default();
        plan.first_tokens().iter().for_each(|token| strings.push(token));
        let vocab_size = plan.first_merge_id();
        // No pair can occur more often than there are slots, each as often as its word.
        let above = parts.iter().map(Corpus::weighted_slots).fold(1, u64::saturating_add);
        let most_slots: usize = parts.iter().map(|part| part.slots.len()).sum();
        // Words are few and their pairs many: there the lists are what memory is for.
        let pairs = most_slots * PAIR_BYTES / (BYTES_OF_A_PAIR + BYTES_IN_A_PART * parts.len());
        let most_pairs = match (WEIGHTED, &plan.start) {
            (false, _) => pairs.max(FEW_PAIRS),
            (true, None) => usize::MAX,
            (true, Some(_)) => pairs.max(FEW_PAIRS << 4), // lines, it may be: not few at all
        };
        Merger {
            parts: parts.into_iter().map(Part::new).collect(),
            plan,
            progress,
            strings,
            special: plan.special_ids(),
            forbidden: plan.forbidden(),
            spans: vec![1; vocab_size as usize],
            listed: Vec::new(),
            free: Vec::new(),
            find: PairMap::default(),
            queue: Queue::new(std::iter::empty()),
            floor: above,
            last: Pair::MAX,
            above,
            most_pairs,
            most_slots,
            found: Neighbours::NONE,
            learned: Learned {
                merges: Vec::new(),
                counts: Vec::new(),
                vocab_size,
                full: true,
                stats: Stats::default(),
                groups: Vec::new(),
            },
        }
    }

    fn start(self) -> Result<Learned> {
        in_threads(self.parts.len(), || self.run())
    }

    fn run(mut self) -> Result<Learned> {
        while self.learned.vocab_size < self.plan.vocab_size {
            let began = Instant::now();
            self.progress.rounds_begun.fetch_add(1, Relaxed);
            let any = self.begin_round()?;
            self.progress.round_nanos.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
            self.progress.floor.store(self.floor, Relaxed);
            self.progress.rounds_ready.fetch_add(1, Relaxed);
            if !any {
                self.learned.full = false;
                break;
            }
            while self.learned.vocab_size < self.plan.vocab_size {
                let listed = &self.listed;
                let now = |(pair, at): (Pair, u32)| {
                    let entry = &listed[at as usize];
                    (entry.pair == pair).then_some(entry.count)
                };
                let Some((count, (_, at))) = self.queue.pop(now) else { break };
                self.progress.check()?;
                self.merge(at, count);
                self.report(count);
                if self.find.len() > self.most_pairs.saturating_add(self.most_pairs / 2) {
                    self.above = count + 1;
                    break;
                }
            }
        }
        self.close_queue();
        Ok(self.learned)
    }

    /// Ends the round's queue, and takes note of how large it was.
    pub(super) fn close_queue(&mut self) {
        let queue = std::mem::replace(&mut self.queue, Queue::new(std::iter::empty()));
        let stats = &mut self.learned.stats;
        stats.peak_queue = stats.peak_queue.max(queue.peak as u64);
        stats.queue_per_mille = stats.queue_per_mille.max(queue.worst_per_mille as u64);
    }

    fn report(&mut self, count: u64) {
        let stats = &mut self.learned.stats;
        stats.peak_live_pairs = stats.peak_live_pairs.max(self.find.len() as u64);
        stats.peak_places = stats.peak_places.max(self.parts.iter().map(|part| part.held).sum());
        let progress = self.progress;
        progress.merges.store(self.learned.merges.len() as u64, Relaxed);
        progress.occurrences.store(stats.occurrences, Relaxed);
        progress.pair_count.store(count, Relaxed);
    }

    /// Whether a pair may be merged at all.
    pub(super) fn admits(&self, pair: Pair) -> bool {
        let (left, right) = split(pair);
        if self.plan.max_words.is_some_and(|most| self.strings.words(left, right) > most) {
            return false;
        }
        let (left, right) = (self.strings.of(left), self.strings.of(right));
        let short = self.plan.max_token_bytes.is_none_or(|most| left.len() + right.len() <= most as usize);
        short && (self.forbidden.is_empty() || !self.forbidden.contains(&[left, right].concat()))
    }

    /// Takes the places of the pair listed at `at` and learns the merge: the rule by which they are rewritten, and
    /// whether they are enough for the parts to do it side by side.
    pub(super) fn take_pair(&mut self, at: u32, count: u64) -> (Rule, bool) {
        let merged = self.listed[at as usize].pair;
        let places: usize = self.parts.iter().map(|part| part.listed(at)).sum();
        let side_by_side = self.parts.len() > 1 && places >= SIDE_BY_SIDE;
        self.parts.iter_mut().for_each(|part| part.take(at));

        let (a, b) = split(merged);
        let n = self.new_token(a, b);
        self.learned.merges.push([a, b]);
        self.learned.counts.push(count);
        self.progress.pair.store(merged, Relaxed);
        let (a_span, b_span) = (self.spans[a as usize] as usize, self.spans[b as usize] as usize);
        (Rule { a, b, n, a_span, b_span }, side_by_side)
    }

    /// Merges the pair listed at `at`, wherever it still is.
    fn merge(&mut self, at: u32, count: u64) {
        let (rule, side_by_side) = self.take_pair(at, count);
        self.forget(at);
        let ids = self.strings.len();
        self.found.grow(ids);
        if side_by_side {
            self.parts.par_iter_mut().for_each(|part| part.rewrite_alone::<WEIGHTED>(rule, ids));
            self.parts.iter_mut().for_each(|part| self.found.absorb(&mut part.found));
        } else {
            self.parts.iter_mut().for_each(|part| {
                let all = 0..part.taken().len();
                part.rewrite::<WEIGHTED>(rule, &mut self.found, all);
            });
        }
        self.learned.stats.occurrences += self.found.merged;

        let mut found = std::mem::replace(&mut self.found, Neighbours::NONE);
        if self.relist(rule, &mut found) {
            let spans = &self.spans[..];
            if side_by_side {
                self.parts.par_iter_mut().for_each(|part| part.fill(rule, &found, spans));
            } else {
                self.parts.iter_mut().for_each(|part| part.fill(rule, &found, spans));
            }
        }
        self.parts.iter_mut().for_each(Part::done);
        found.right.tallies[rule.n as usize] = Tally::default();
        found.reset();
        self.found = found;
    }

    /// Lowers the counts of the pairs that lost places to `rule` and opens lists for those that came with it.
    /// Says if there are any.
    fn relist(&mut self, rule: Rule, found: &mut Neighbours) -> bool {
        let Rule { a, b, n, .. } = rule;
        let (left, right) = (&mut found.left, &mut found.right);
        // What was lost: (x, a) and (b, y). The merged pair itself is gone already.
        for &x in &left.seen {
            self.lower(pair(x, a), left.tallies[x as usize].weight);
        }
        for &y in &right.seen {
            self.lower(pair(b, y), right.tallies[y as usize].weight);
        }
        // What came: (x, n), (n, y) and (n, n). Where n follows n, the first n saw its neighbour as `a`.
        if found.both > 0 {
            right.tallies[a as usize].weight -= found.both;
        }
        let mut any = false;
        for &x in &left.seen {
            let tally = &mut left.tallies[x as usize];
            tally.list = self.list_new(pair(x, n), tally.weight, &mut any);
        }
        for &y in &right.seen {
            let tally = &mut right.tallies[y as usize];
            tally.list = self.list_new(pair(n, y), tally.weight, &mut any);
        }
        right.tallies[n as usize].list = self.list_new(pair(n, n), found.both, &mut any);
        any
    }

    /// The id for a new token `ab`: a special token's, if it is the same string, else the next free one.
    fn new_token(&mut self, a: u32, b: u32) -> u32 {
        let string = [self.strings.of(a), self.strings.of(b)].concat();
        let span = self.spans[a as usize] + self.spans[b as usize];
        if let Ok(mut token) = self.progress.token.lock() {
            token.clone_from(&string);
        }
        if let Some(&id) = self.special.get(&string) {
            self.spans[id as usize] = span;
            return id;
        }
        self.strings.push(&string);
        self.spans.push(span);
        self.learned.vocab_size += 1;
        self.learned.vocab_size - 1
    }

    /// Lowers the count of a pair; below the floor it is forgotten until the next round.
    fn lower(&mut self, pair: Pair, by: u64) {
        if let Some(&at) = self.find.get(&pair) {
            let entry = &mut self.listed[at as usize];
            entry.count -= by;
            if !reaches(entry.count, pair, self.floor, self.last) {
                self.parts.iter_mut().for_each(|part| part.forget(at));
                self.forget(at);
            }
        }
    }

    /// Takes a pair off the books. Its queue entry dies with it.
    fn forget(&mut self, at: u32) {
        let entry = &mut self.listed[at as usize];
        self.find.remove(&entry.pair);
        entry.pair = NO_PAIR;
        self.free.push(at);
        let listed = &self.listed;
        self.queue.sweep(self.find.len(), |(pair, at)| (listed[at as usize].pair == pair).then_some(0));
    }

    /// Opens a list for a new pair and queues it, if it is frequent enough; returns its number plus 1, or 0.
    fn list_new(&mut self, pair: Pair, count: u64, any: &mut bool) -> u32 {
        if !reaches(count, pair, self.floor, self.last) || !self.admits(pair) {
            return 0;
        }
        *any = true;
        let entry = Listed { pair, count };
        let at = match self.free.pop() {
            Some(at) => {
                self.listed[at as usize] = entry;
                at
            }
            None => {
                self.listed.push(entry);
                self.listed.len() as u32 - 1
            }
        };
        // Without weights the count is the number of places; parts have about as many each.
        let room = if WEIGHTED { 0 } else { count as usize / self.parts.len() };
        self.parts.iter_mut().for_each(|part| part.open(at, room));
        self.find.insert(pair, at);
        self.queue.push(count, (pair, at));
        at + 1
    }
}

/// Whether a pair is listed in a round that lists down to `floor`, and at the floor up to `last`.
pub(super) fn reaches(count: u64, pair: Pair, floor: u64, last: Pair) -> bool {
    count > floor || count == floor && pair <= last
}
