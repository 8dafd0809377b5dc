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

use super::corpus::{Corpus, Slot};
use super::pair::{Pair, PairMap, pair, split};
use super::queue::Queue;
use super::{Ended, Learned, Plan, Stats};
use crate::error::Result;
use crate::progress::Progress;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A position in the slots: 32 bits while they suffice, else 64.
pub trait Place: Copy + Send + Sync + 'static {
    /// The place of slot `index`.
    fn of(index: usize) -> Self;
    /// The slot's index.
    fn index(self) -> usize;
}

impl Place for u32 {
    fn of(index: usize) -> Self {
        index as u32
    }
    fn index(self) -> usize {
        self as usize
    }
}

impl Place for u64 {
    fn of(index: usize) -> Self {
        index as u64
    }
    fn index(self) -> usize {
        self as usize
    }
}

/// Marks a free entry; never a real pair, as ids stay far below 2^32.
const NO_PAIR: Pair = Pair::MAX;

/// How far ahead of the walk slots are fetched: places of a rare pair are cache misses, one each.
const AHEAD: usize = 12;

/// A pair that is frequent enough to be queued.
pub(super) struct Listed<P> {
    pub(super) pair: Pair,
    pub(super) count: u64,
    pub(super) places: Places<P>,
}

/// Where a pair begins, ascending; may name places where it no longer is.
///
/// Lists made at the start of a round lie one after another in one array: filling them is then a store and an
/// increment for each position of the corpus, with no branch to mispredict.
pub(super) enum Places<P> {
    Shared(std::ops::Range<usize>),
    Own(Vec<P>),
}

impl<P> Places<P> {
    fn len(&self) -> usize {
        match self {
            Places::Shared(range) => range.len(),
            Places::Own(places) => places.len(),
        }
    }
}

/// What one merge did to the pairs with one neighbour.
#[derive(Clone, Copy, Default)]
struct Tally {
    weight: u64,
    /// Which list takes the new pair's places, plus 1; 0 if it is too rare for one.
    list: u32,
}

/// Learns merges from `corpus` until the plan is met or no pair is left.
pub fn train<S: Slot>(corpus: Corpus<S>, plan: &Plan, progress: &Progress) -> Result<Learned> {
    plan.check()?;
    match (corpus.slots.len() <= u32::MAX as usize, corpus.is_unweighted()) {
        (true, true) => Merger::<S, u32, false>::new(corpus, plan, progress).run(),
        (true, false) => Merger::<S, u32, true>::new(corpus, plan, progress).run(),
        (false, true) => Merger::<S, u64, false>::new(corpus, plan, progress).run(),
        (false, false) => Merger::<S, u64, true>::new(corpus, plan, progress).run(),
    }
}

/// The state of the merge loop.
pub(super) struct Merger<'a, S, P, const WEIGHTED: bool> {
    pub(super) corpus: Corpus<S>,
    pub(super) plan: &'a Plan,
    pub(super) progress: &'a Progress,
    /// Bytes of each token, by id.
    pub(super) strings: Vec<Vec<u8>>,
    /// Slots that each token spans, by id.
    pub(super) spans: Vec<u32>,
    pub(super) listed: Vec<Listed<P>>,
    /// The lists of the pairs that were there when the round began.
    pub(super) shared: Vec<P>,
    pub(super) free: Vec<u32>,
    /// Pairs at or above the floor, and where they are in `listed`.
    pub(super) find: PairMap<u32>,
    pub(super) queue: Queue<u64, (Pair, u32)>,
    pub(super) floor: u64,
    /// Neighbours of the present merge, by id, and which of them to reset.
    left: Vec<Tally>,
    right: Vec<Tally>,
    left_seen: Vec<u32>,
    right_seen: Vec<u32>,
    pub(super) places: u64,
    pub(super) learned: Learned,
}

impl<'a, S: Slot, P: Place, const WEIGHTED: bool> Merger<'a, S, P, WEIGHTED> {
    fn new(corpus: Corpus<S>, plan: &'a Plan, progress: &'a Progress) -> Self {
        let mut strings = plan.special_tokens.clone();
        strings.extend(super::byte_order().map(|byte| vec![byte]));
        let vocab_size = plan.first_merge_id();
        // No pair can occur more often than there are slots, each as often as its word.
        let starts = std::iter::once(0).chain(corpus.runs.iter().map(|run| run.end));
        let slots = starts.zip(&corpus.runs).map(|(start, run)| run.weight.saturating_mul((run.end - start) as u64));
        let floor = slots.fold(1, u64::saturating_add);
        // A merge uses up at least one slot, so there are never more ids than this, whatever was asked for.
        let most_ids = (plan.vocab_size as usize).min(vocab_size as usize + corpus.slots.len());
        Merger {
            corpus,
            plan,
            progress,
            strings,
            spans: vec![1; vocab_size as usize],
            listed: Vec::new(),
            shared: Vec::new(),
            free: Vec::new(),
            find: PairMap::default(),
            queue: Queue::new(std::iter::empty()),
            floor,
            left: vec![Tally::default(); most_ids],
            right: vec![Tally::default(); most_ids],
            left_seen: Vec::new(),
            right_seen: Vec::new(),
            places: 0,
            learned: Learned {
                merges: Vec::new(),
                counts: Vec::new(),
                vocab_size,
                ended: Ended::Full,
                stats: Stats::default(),
            },
        }
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
                self.learned.ended = Ended::NoPairs;
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
                let listed = &self.listed;
                self.queue.sweep(self.find.len(), |(pair, at)| (listed[at as usize].pair == pair).then_some(0));
                self.report(count);
            }
        }
        self.learned.stats.queue_per_mille =
            self.learned.stats.queue_per_mille.max(self.queue.worst_per_mille() as u64);
        Ok(self.learned)
    }

    fn report(&mut self, count: u64) {
        let stats = &mut self.learned.stats;
        stats.peak_live_pairs = stats.peak_live_pairs.max(self.find.len() as u64);
        stats.peak_queue = stats.peak_queue.max(self.queue.len() as u64);
        stats.peak_places = stats.peak_places.max(self.places);
        let progress = self.progress;
        progress.merges.store(self.learned.merges.len() as u64, Relaxed);
        progress.occurrences.store(stats.occurrences, Relaxed);
        progress.pair_count.store(count, Relaxed);
        progress.live_pairs.store(self.find.len() as u64, Relaxed);
        progress.queue_len.store(self.queue.len() as u64, Relaxed);
    }

    /// Whether a pair may be merged at all.
    pub(super) fn admits(&self, pair: Pair) -> bool {
        let (left, right) = split(pair);
        let bytes = self.strings[left as usize].len() + self.strings[right as usize].len();
        self.plan.max_token_bytes.is_none_or(|most| bytes <= most as usize)
    }

    /// Merges the pair listed at `at`, wherever it still is.
    fn merge(&mut self, at: u32, count: u64) {
        let entry = &mut self.listed[at as usize];
        let merged = entry.pair;
        let mut places = std::mem::replace(&mut entry.places, Places::Shared(0..0));
        self.places -= places.len() as u64;
        self.forget(at);
        let mut shared = std::mem::take(&mut self.shared);
        let places = match &mut places {
            Places::Shared(range) => &mut shared[range.clone()],
            Places::Own(places) => &mut places[..],
        };

        let (a, b) = split(merged);
        let n = self.new_token(a, b);
        self.learned.merges.push((a, b));
        self.learned.counts.push(count);
        self.progress.pair.store(merged, Relaxed);

        let (kept, both) = self.rewrite(places, a, b, n);
        self.learned.stats.occurrences += kept as u64;

        // What was lost: (x, a) and (b, y). The merged pair itself is gone already.
        for i in 0..self.left_seen.len() {
            let x = self.left_seen[i];
            self.lower(pair(x, a), self.left[x as usize].weight);
        }
        for i in 0..self.right_seen.len() {
            let y = self.right_seen[i];
            self.lower(pair(b, y), self.right[y as usize].weight);
        }
        // What came: (x, n), (n, y) and (n, n). Where n follows n, the first n saw its neighbour as `a`.
        if both > 0 {
            self.right[a as usize].weight -= both;
        }
        let mut any = false;
        for i in 0..self.left_seen.len() {
            let x = self.left_seen[i];
            self.left[x as usize].list = self.list_new(pair(x, n), self.left[x as usize].weight, &mut any);
        }
        for i in 0..self.right_seen.len() {
            let y = self.right_seen[i];
            self.right[y as usize].list = self.list_new(pair(n, y), self.right[y as usize].weight, &mut any);
        }
        self.right[n as usize].list = self.list_new(pair(n, n), both, &mut any);
        if any {
            self.fill_new_lists(&places[..kept], n);
        }
        self.shared = shared;
        self.right[n as usize] = Tally::default();
        for x in self.left_seen.drain(..) {
            self.left[x as usize] = Tally::default();
        }
        for y in self.right_seen.drain(..) {
            self.right[y as usize] = Tally::default();
        }
    }

    /// The id for a new token `ab`: a special token's, if it is the same string, else the next free one.
    fn new_token(&mut self, a: u32, b: u32) -> u32 {
        let string = [&self.strings[a as usize][..], &self.strings[b as usize]].concat();
        let span = self.spans[a as usize] + self.spans[b as usize];
        if let Ok(mut token) = self.progress.token.lock() {
            token.clone_from(&string);
        }
        if let Some(id) = self.plan.special_tokens.iter().position(|special| *special == string) {
            self.spans[id] = span;
            return id as u32;
        }
        self.strings.push(string);
        self.spans.push(span);
        self.learned.vocab_size += 1;
        self.learned.vocab_size - 1
    }

    /// Writes `n` over every (a, b) in `places`, moves the places where it was to the front, and tallies the
    /// neighbours. Returns how many places those are, and the weight of (n, n).
    fn rewrite(&mut self, places: &mut [P], a: u32, b: u32, n: u32) -> (usize, u64) {
        let slots = &mut self.corpus.slots[..];
        let (left, right) = (&mut self.left[..], &mut self.right[..]);
        let (a_span, b_span) = (self.spans[a as usize] as usize, self.spans[b as usize] as usize);
        let span = a_span + b_span;
        let (a, b, n) = (S::of(a), S::of(b), S::of(n));
        let runs = &self.corpus.runs[..];
        let (mut run, mut weight, mut both, mut kept) = (0, 1, 0, 0);
        for i in 0..places.len() {
            if let Some(ahead) = places.get(i + AHEAD) {
                prefetch(slots, ahead.index());
            }
            let place = places[i].index();
            if slots[place] != a || slots[place + a_span] != b {
                continue;
            }
            if WEIGHTED {
                while runs[run].end <= place {
                    run += 1;
                }
                weight = runs[run].weight;
            }
            let (x, y) = (slots[place - 1], slots[place + span]);
            slots[place + a_span - 1] = S::DEAD;
            slots[place + a_span] = S::DEAD;
            slots[place] = n;
            slots[place + span - 1] = n;
            places[kept] = P::of(place);
            kept += 1;
            if x == n {
                both += weight;
            } else if x != S::END {
                let tally = &mut left[x.id() as usize];
                if tally.weight == 0 {
                    self.left_seen.push(x.id());
                }
                tally.weight += weight;
            }
            if y != S::END {
                let tally = &mut right[y.id() as usize];
                if tally.weight == 0 {
                    self.right_seen.push(y.id());
                }
                tally.weight += weight;
            }
        }
        (kept, both)
    }

    /// Lowers the count of a pair; below the floor it is forgotten until the next round.
    fn lower(&mut self, pair: Pair, by: u64) {
        if let Some(&at) = self.find.get(&pair) {
            let entry = &mut self.listed[at as usize];
            entry.count -= by;
            if entry.count < self.floor {
                self.places -= entry.places.len() as u64;
                self.forget(at);
            }
        }
    }

    /// Takes a pair off the books. Its queue entry dies with it.
    fn forget(&mut self, at: u32) {
        let entry = &mut self.listed[at as usize];
        self.find.remove(&entry.pair);
        entry.pair = NO_PAIR;
        entry.places = Places::Shared(0..0);
        self.free.push(at);
    }

    /// Opens a list for a new pair and queues it, if it is frequent enough; returns its number plus 1, or 0.
    fn list_new(&mut self, pair: Pair, count: u64, any: &mut bool) -> u32 {
        if count < self.floor || !self.admits(pair) {
            return 0;
        }
        *any = true;
        let places = Vec::with_capacity(if WEIGHTED { 0 } else { count as usize });
        let entry = Listed { pair, count, places: Places::Own(places) };
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
        self.find.insert(pair, at);
        self.queue.push(count, (pair, at));
        at + 1
    }

    /// Adds a place to the list of a new pair.
    fn append(&mut self, list: u32, place: usize) {
        if let Places::Own(places) = &mut self.listed[list as usize - 1].places {
            places.push(P::of(place));
            self.places += 1;
        }
    }

    /// Writes the places of the pairs that came with `n`.
    fn fill_new_lists(&mut self, places: &[P], n: u32) {
        let span = self.spans[n as usize] as usize;
        let token = S::of(n);
        for (i, place) in places.iter().enumerate() {
            if let Some(ahead) = places.get(i + AHEAD) {
                prefetch(&self.corpus.slots, ahead.index());
            }
            let place = place.index();
            let (x, y) = (self.corpus.slots[place - 1], self.corpus.slots[place + span]);
            if x != S::END && x != token {
                let list = self.left[x.id() as usize].list;
                if list != 0 {
                    let x_span = self.spans[x.id() as usize] as usize;
                    self.append(list, place - x_span);
                }
            }
            if y != S::END {
                let list = self.right[y.id() as usize].list;
                if list != 0 {
                    self.append(list, place);
                }
            }
        }
    }
}

/// Asks for a slot that will be read soon.
#[inline]
fn prefetch<S>(slots: &[S], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(slot) = slots.get(index) {
        // SAFETY: a prefetch of a valid reference; it reads nothing the program can see.
        unsafe { std::arch::x86_64::_mm_prefetch((slot as *const S).cast(), std::arch::x86_64::_MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slots, index);
}
