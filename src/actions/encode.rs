//! Items -> tokens.
//!
//! In: a table of items (a row of initial tokens each), sequences of its rows, and the merges of a vocabulary. Out: the
//! tokens of each sequence, by chance (set permutation regularisation, SPR) or by weight. A sequence depends on
//! nothing but itself and its own (seed, epoch, row), so that threads and batches do not show in the result.
//! The plain version this must equal is `reference/segments.py`.

use super::walk::unordered;
use crate::bpe::pair::PairMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

const NONE: u32 = u32::MAX;
/// Fewer items than this per thread are done sooner than the thread is started.
const WORTH_A_THREAD: usize = 2_000;

/// Sequences of items: `items[starts[i]..stops[i]]` are rows of `table`, which has `width` tokens a row.
#[derive(Clone, Copy)]
pub struct Sequences<'a> {
    /// Tokens of each item, one after another.
    pub table: &'a [u32],
    /// Tokens of an item.
    pub width: usize,
    /// Rows of the table.
    pub items: &'a [i64],
    /// Where each sequence begins in `items`; sequences may overlap.
    pub starts: &'a [i64],
    /// Where each ends.
    pub stops: &'a [i64],
}

impl Sequences<'_> {
    fn tokens(&self, n: usize) -> impl Iterator<Item = &[u32]> {
        let items = &self.items[self.starts[n] as usize..self.stops[n] as usize];
        items.iter().map(|&item| &self.table[item as usize * self.width..][..self.width])
    }

    fn length(&self, n: usize) -> usize {
        (self.stops[n] - self.starts[n]) as usize
    }

    /// The sequences in `parts` runs of about as many items each.
    fn runs(&self, parts: usize) -> Vec<Range<usize>> {
        let total: usize = (0..self.starts.len()).map(|n| self.length(n)).sum();
        let (mut runs, mut from, mut done) = (Vec::with_capacity(parts), 0, 0);
        for n in 0..self.starts.len() {
            done += self.length(n);
            if done * parts >= total * (runs.len() + 1) {
                runs.push(from..n + 1);
                from = n + 1;
            }
        }
        runs.push(from..self.starts.len());
        runs
    }
}

/// How the tokens of items become one row.
#[derive(Clone, Copy)]
pub enum Way<'a> {
    /// Each item in an order drawn for (seed, epoch, row); then neighbours merge, the oldest rule first.
    Shuffled {
        /// Of the run.
        seed: u64,
        /// Of the pass over the data.
        epoch: u64,
        /// Of each sequence, wherever it stands in this call.
        rows: &'a [i64],
    },
    /// Items in the order they have; then neighbours merge, the oldest rule first.
    Given,
    /// Inside items and across them, wherever a rule weighs most.
    Weighed,
}

/// A vocabulary, ready to encode.
pub struct Segmenter {
    /// The token of each pair; nearly all lookups fail.
    rules: PairMap<u32>,
    priority: Vec<f64>,
}

impl Segmenter {
    /// `merges[k]` is the pair of token `first + k`; `priority` has the weight of every token.
    pub fn new(first: u32, merges: &[[u32; 2]], priority: Vec<f64>) -> Self {
        assert_eq!(priority.len(), first as usize + merges.len(), "one priority per token");
        // Of a pair that was merged twice, the later one stays.
        let rules = merges.iter().map(|&[a, b]| unordered(a, b)).zip(first..).collect();
        Segmenter { rules, priority }
    }

    /// The token of the pair {a, b}, or `NONE`.
    #[inline]
    fn token(&self, a: u32, b: u32) -> u32 {
        self.rules.get(&unordered(a, b)).copied().unwrap_or(NONE)
    }

    /// The tokens of all sequences, and where each ends.
    pub fn encode(&self, sequences: Sequences<'_>, way: Way<'_>, threads: usize) -> (Vec<u32>, Vec<i64>) {
        let items: usize = (0..sequences.starts.len()).map(|n| sequences.length(n)).sum();
        let mut runs = sequences.runs(threads.min(items / WORTH_A_THREAD).max(1));
        let mine = runs.pop().unwrap_or(0..0);
        let (mut ids, mut ends) = (Vec::new(), Vec::with_capacity(sequences.starts.len()));
        std::thread::scope(|scope| {
            let others: Vec<_> =
                runs.into_iter().map(|run| scope.spawn(move || self.encode_run(sequences, way, run))).collect();
            let last = self.encode_run(sequences, way, mine);
            let finished = others.into_iter().map(|other| match other.join() {
                Ok(part) => part,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            for (part, part_ends) in finished.chain([last]) {
                let before = ids.len() as i64;
                ids.extend(part);
                ends.extend(part_ends.into_iter().map(|end| end + before));
            }
        });
        (ids, ends)
    }

    fn encode_run(&self, sequences: Sequences<'_>, way: Way<'_>, run: Range<usize>) -> (Vec<u32>, Vec<i64>) {
        let mut ids = Vec::new();
        let mut ends = Vec::with_capacity(run.len());
        let (mut tokens, mut row, mut nodes) = (Vec::new(), Row::default(), Nodes::default());
        for n in run {
            tokens.clear();
            match way {
                Way::Shuffled { seed, epoch, rows } => {
                    let mut draw = Draw::new(seed, epoch, rows[n]);
                    for item in sequences.tokens(n) {
                        let from = tokens.len();
                        tokens.extend_from_slice(item);
                        draw.shuffle(&mut tokens[from..]);
                    }
                    self.merge_neighbours(&mut tokens, &mut row);
                }
                Way::Given => {
                    sequences.tokens(n).for_each(|item| tokens.extend_from_slice(item));
                    self.merge_neighbours(&mut tokens, &mut row);
                }
                Way::Weighed => {
                    sequences.tokens(n).for_each(|item| tokens.extend_from_slice(item));
                    nodes.segment(self, &mut tokens, sequences.width);
                }
            }
            ids.extend_from_slice(&tokens);
            ends.push(ids.len() as i64);
        }
        (ids, ends)
    }

    /// Merges the pair of neighbours with the smallest token, leftmost first on ties, until there is none.
    ///
    /// The heap holds (rank, place) packed; an entry counts only while `ranks` at its place says the same. A scan for the
    /// smallest rank instead is no quicker from 100 tokens on, which is 20 items; see docs/tried.md.
    fn merge_neighbours(&self, tokens: &mut Vec<u32>, row: &mut Row) {
        let end = tokens.len();
        let entry = |rank: u32, at: usize| Reverse(u64::from(rank) << 32 | at as u64);
        // ranks[i] is the token of i and what comes next.
        row.ranks.clear();
        row.ranks.extend(tokens.windows(2).map(|pair| self.token(pair[0], pair[1])));
        let live = row.ranks.iter().enumerate().filter(|&(_, &rank)| rank != NONE);
        row.heap.clear();
        row.heap.extend(live.map(|(at, &rank)| entry(rank, at)));
        if row.heap.is_empty() {
            return;
        }
        row.next.clear();
        row.next.extend(1..=end as u32);
        row.previous.clear();
        row.previous.extend((0..end as u32).map(|at| at.wrapping_sub(1)));
        let (ranks, next, previous) = (&mut row.ranks, &mut row.next, &mut row.previous);
        let mut heap = BinaryHeap::from(std::mem::take(&mut row.heap));
        while let Some(Reverse(packed)) = heap.pop() {
            let (rank, at) = ((packed >> 32) as u32, packed as u32 as usize);
            if ranks[at] != rank {
                continue;
            }
            let gone = next[at] as usize;
            let after = next[gone] as usize;
            tokens[at] = rank;
            tokens[gone] = NONE;
            next[at] = after as u32;
            ranks[at] = NONE;
            if after < end {
                ranks[gone] = NONE;
                previous[after] = at as u32;
                ranks[at] = self.token(rank, tokens[after]);
                if ranks[at] != NONE {
                    heap.push(entry(ranks[at], at));
                }
            }
            if at > 0 {
                let before = previous[at] as usize;
                ranks[before] = self.token(tokens[before], rank);
                if ranks[before] != NONE {
                    heap.push(entry(ranks[before], before));
                }
            }
        }
        row.heap = heap.into_vec();
        tokens.retain(|&token| token != NONE);
    }
}

/// Room to merge one sequence in, used again for the next.
#[derive(Default)]
struct Row {
    ranks: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: Vec<Reverse<u64>>,
}

/// The numbers that belong to one row of one epoch: splitmix64, from a state that seed, epoch and row go into.
struct Draw(u64);

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Draw {
    fn new(seed: u64, epoch: u64, row: i64) -> Self {
        Draw(
            [seed, epoch, row as u64]
                .iter()
                .fold(0, |state: u64, &part| mixed(state.wrapping_add(STEP).wrapping_add(part))),
        )
    }

    /// A random order, by swaps from the last place down.
    ///
    /// The high half of a product stands for a remainder: no division, and a bias of at most m in 2^64.
    #[inline]
    fn shuffle(&mut self, tokens: &mut [u32]) {
        for i in (1..tokens.len()).rev() {
            self.0 = self.0.wrapping_add(STEP);
            let j = (u128::from(mixed(self.0)) * (i as u128 + 1)) >> 64;
            tokens.swap(i, j as usize);
        }
    }
}

#[inline]
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// What a node could merge best: inside its set, or across to the next one.
#[derive(Clone, Copy)]
enum Place {
    Inside,
    Before,
    Behind,
    Across,
}

#[derive(Clone, Copy)]
struct Candidate {
    score: f64,
    place: Place,
    /// Positions in the sets of this node and, behind or across, of the next one.
    x: u32,
    y: u32,
    token: u32,
}

/// The working state of one sequence: sets of tokens, each with the token merged across to the next set, if any.
///
/// Node `k` has the tokens `sets[k * width..][..lengths[k]]`; `live` lists the nodes that are left, in order. Merging
/// changes two neighbouring nodes, so each keeps its best candidate until it or the next one is touched.
#[derive(Default)]
struct Nodes {
    width: usize,
    lengths: Vec<u32>,
    contexts: Vec<u32>,
    best: Vec<Option<Candidate>>,
    touched: Vec<bool>,
    live: Vec<u32>,
}

impl Nodes {
    /// Replaces `sets`, the initial tokens of a sequence, by its tokens.
    fn segment(&mut self, segmenter: &Segmenter, sets: &mut Vec<u32>, width: usize) {
        let count = sets.len() / width;
        self.width = width;
        refill(&mut self.lengths, count, width as u32);
        refill(&mut self.contexts, count, 0);
        refill(&mut self.best, count, None);
        refill(&mut self.touched, count, true);
        self.live.clear();
        self.live.extend(0..count as u32);
        loop {
            self.refresh(segmenter, sets);
            let mut chosen: Option<(usize, Candidate)> = None;
            for (at, &node) in self.live.iter().enumerate() {
                let Some(candidate) = self.best[node as usize] else { continue };
                if chosen.is_none_or(|(_, best)| candidate.score > best.score) {
                    chosen = Some((at, candidate));
                }
            }
            let Some((at, candidate)) = chosen else { break };
            self.apply(sets, at, candidate);
        }
        let mut out = Vec::with_capacity(sets.len());
        for &node in &self.live {
            out.extend_from_slice(self.set(sets, node as usize));
            out.extend(Some(self.contexts[node as usize]).filter(|&context| context != 0));
        }
        *sets = out;
    }

    fn set<'a>(&self, sets: &'a [u32], node: usize) -> &'a [u32] {
        &sets[node * self.width..][..self.lengths[node] as usize]
    }

    /// Looks for the best candidate of every node that was touched, or whose next one was.
    fn refresh(&mut self, segmenter: &Segmenter, sets: &[u32]) {
        for at in 0..self.live.len() {
            let node = self.live[at] as usize;
            let next = self.live.get(at + 1).map(|&next| next as usize);
            if self.touched[node] || next.is_some_and(|next| self.touched[next]) {
                self.best[node] = self.look(segmenter, sets, node, next);
            }
        }
        self.touched.fill(false);
    }

    /// The best candidate of a node; the first in this order on ties.
    fn look(&self, segmenter: &Segmenter, sets: &[u32], node: usize, next: Option<usize>) -> Option<Candidate> {
        let here = self.set(sets, node);
        let mut best: Option<Candidate> = None;
        let mut offer = |a: u32, b: u32, times: f64, size: usize, place: Place, x: usize, y: usize| {
            let token = segmenter.token(a, b);
            if token != NONE {
                let score = segmenter.priority[token as usize] * times / size as f64;
                if best.is_none_or(|best| score > best.score) {
                    best = Some(Candidate { score, place, x: x as u32, y: y as u32, token });
                }
            }
        };
        for (x, &a) in here.iter().enumerate() {
            for (y, &b) in here.iter().enumerate().skip(x + 1) {
                offer(a, b, 2.0, here.len(), Place::Inside, x, y);
            }
        }
        let Some(next) = next else { return best };
        let following = self.set(sets, next);
        match self.contexts[node] {
            0 => {
                for (x, &a) in here.iter().enumerate() {
                    for (y, &b) in following.iter().enumerate() {
                        offer(a, b, 1.0, here.len() * following.len(), Place::Across, x, y);
                    }
                }
            }
            context => {
                for (x, &a) in here.iter().enumerate() {
                    offer(a, context, 1.0, here.len(), Place::Before, x, 0);
                }
                for (y, &b) in following.iter().enumerate() {
                    offer(context, b, 1.0, following.len(), Place::Behind, 0, y);
                }
            }
        }
        best
    }

    fn apply(&mut self, sets: &mut [u32], at: usize, candidate: Candidate) {
        let (x, y) = (candidate.x as usize, candidate.y as usize);
        let node = self.live[at] as usize;
        self.touched[node] = true;
        if let Place::Inside = candidate.place {
            self.remove(sets, node, y); // y is behind x
            self.remove(sets, node, x);
            let set = &mut sets[node * self.width..][..self.lengths[node] as usize + 1];
            set.rotate_right(1);
            set[0] = candidate.token;
            self.lengths[node] += 1;
            return;
        }
        let next = self.live[at + 1] as usize;
        self.touched[next] = true;
        if let Place::Before | Place::Across = candidate.place {
            self.remove(sets, node, x);
        }
        if let Place::Behind | Place::Across = candidate.place {
            self.remove(sets, next, y);
        }
        self.contexts[node] = candidate.token;
        if self.lengths[node] == 0 || self.lengths[next] == 0 {
            self.clean(sets);
        }
    }

    fn remove(&mut self, sets: &mut [u32], node: usize, at: usize) {
        let set = &mut sets[node * self.width..][..self.lengths[node] as usize];
        set[at..].rotate_left(1);
        self.lengths[node] -= 1;
    }

    /// An empty set takes the context before it; a node with neither goes, unless it is the last. Until nothing changes.
    fn clean(&mut self, sets: &mut [u32]) {
        loop {
            let mut changed = false;
            for at in 1..self.live.len() {
                let (before, node) = (self.live[at - 1] as usize, self.live[at] as usize);
                if self.lengths[node] == 0 && self.contexts[before] != 0 {
                    sets[node * self.width] = std::mem::take(&mut self.contexts[before]);
                    self.lengths[node] = 1;
                    self.touched[before] = true;
                    self.touched[node] = true;
                    changed = true;
                }
            }
            let mut at = 0;
            while at + 1 < self.live.len() {
                let node = self.live[at] as usize;
                if self.lengths[node] == 0 && self.contexts[node] == 0 {
                    self.live.remove(at);
                    if at > 0 {
                        self.touched[self.live[at - 1] as usize] = true; // another node is next now
                    }
                    changed = true;
                } else {
                    at += 1;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

fn refill<T: Clone>(list: &mut Vec<T>, count: usize, value: T) {
    list.clear();
    list.resize(count, value);
}
