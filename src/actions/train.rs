//! The loop: take the heaviest pair, rewrite the sequences listed for it, count again what changed.
//!
//! In: sequences of sets of tokens. Out: merges, best first. Oracle: `reference/actions.py`.
//!
//! A merge changes a few nodes of a sequence, and with them only the weights of pairs among them and their
//! neighbours; these are counted as they were and as they are. By the published rule a pair that is no longer in the
//! sequence keeps its weight, so for one that vanished here it must be known whether it is elsewhere in the sequence.
//! Most such pairs have a token that was merged, and mostly none of it is left; only otherwise is the sequence
//! searched. Changes are added up over all sequences of a merge, and a pair then gets one entry in the queue.

use super::counting::{Counted, MOST_PAIRS, share, too_many_pairs};
use super::pairs::{AHEAD, Pairs};
use super::queue::Queue;
use super::state::{Rewrite, State};
use super::tally::Tally;
use super::walk::{Marks, each_pair};
use super::weight::{Scale, Weight, common_denominator};
use super::{Arithmetic, Corpus, Counts, Learned, Plan, Stats, Weights};
use crate::arrays::prefetch;
use crate::bpe::pair::{Pair, pair, split};
use crate::error::{Error, Result};
use crate::progress::Progress;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// How far ahead the next sequences are prefetched.
const SEQUENCES_AHEAD: usize = 4;

/// Learns merges from `corpus` until the plan is met or no pair is left.
pub fn train(corpus: &Corpus, plan: &Plan, progress: &Progress) -> Result<Learned> {
    if plan.vocab_size < plan.n_init {
        return Err(Error::Plan(format!(
            "vocab_size={}: padding and the features alone need {}; ask for more than that",
            plan.vocab_size, plan.n_init
        )));
    }
    corpus.check(plan.n_init)?;
    if plan.arithmetic == Arithmetic::Float64 {
        return super::published::train(corpus, plan, progress);
    }
    // All weights of a sequence add up to less than (features + 2) for each item, and they only fall as sets shrink.
    let m = corpus.n_features;
    let bound = |common: i128| common.checked_mul(corpus.items.len() as i128)?.checked_mul(m as i128 + 2);
    let too_large = || {
        Error::Plan(format!(
            "{m} features and {} items in sequences: exact weights do not fit in 128 bits; use fewer features, or \
             arithmetic=float64",
            corpus.items.len()
        ))
    };
    let common = common_denominator(m).ok_or_else(too_large)?;
    let bound = bound(common).filter(|&bound| bound < 1 << 126).ok_or_else(too_large)?;
    let (learned, numerators) = if bound < 1 << 62 {
        let (learned, weights) = Trainer::<i64>::new(corpus, plan, progress, common).run(corpus)?;
        (learned, weights.into_iter().map(i128::from).collect())
    } else {
        Trainer::<i128>::new(corpus, plan, progress, common).run(corpus)?
    };
    Ok(Learned { weights: Weights::Exact { numerators, denominator: common }, ..learned })
}

/// The weight of a pair in a sequence, before and after a rewrite.
#[derive(Clone, Copy, Default)]
pub struct Change<W> {
    pub old: W,
    pub new: W,
    /// It is in a part of the sequence that did not change.
    elsewhere: bool,
}

/// Pairs with the token of the present merge, by their other token.
struct Came<W> {
    weights: Vec<W>,
    /// How many sequences have the pair; later its number.
    counts: Vec<u32>,
    tokens: Vec<u32>,
    /// Token and sequence, as they were found.
    places: Vec<(u32, u32)>,
}

/// The state of the loop.
pub struct Trainer<'a, W> {
    plan: &'a Plan,
    progress: &'a Progress,
    pub scale: Scale<W>,
    pub state: State,
    pairs: Pairs<W>,
    queue: Queue<W>,
    pub rewrite: Rewrite,
    /// Of one sequence.
    pub changes: Tally<Change<W>>,
    /// Of one merge: pairs of tokens that were there before it.
    deltas: Tally<W>,
    /// The numbers of these pairs.
    numbers: Vec<u32>,
    /// Pairs of old tokens that are new in a sequence.
    added: Vec<(Pair, u32)>,
    came: Came<W>,
    pub marks: Marks,
    learned: Learned,
    weights: Vec<W>,
}

impl<'a, W: Weight> Trainer<'a, W> {
    pub fn new(corpus: &Corpus, plan: &'a Plan, progress: &'a Progress, common: i128) -> Self {
        Trainer {
            plan,
            progress,
            scale: Scale::new(corpus.n_features, common),
            state: State::new(corpus),
            pairs: Pairs::new(),
            queue: Queue::new(W::at_least(plan.min_pair_weight, common)),
            rewrite: Rewrite::default(),
            changes: Tally::new(),
            deltas: Tally::new(),
            numbers: Vec::new(),
            added: Vec::new(),
            came: Came { weights: vec![], counts: vec![], tokens: vec![], places: vec![] },
            marks: Marks::default(),
            learned: Learned {
                merges: Vec::new(),
                weights: Weights::Float64(Vec::new()),
                touched: Vec::new(),
                full: true,
                stats: Stats::default(),
            },
            weights: Vec::new(),
        }
    }

    pub fn run(mut self, corpus: &Corpus) -> Result<(Learned, Vec<W>)> {
        let began = Instant::now();
        self.progress.rounds_begun.store(1, Relaxed);
        self.count_all(corpus)?;
        let counted = Instant::now();
        self.progress.visited.store(0, Relaxed);
        self.progress.round_nanos.store((counted - began).as_nanos() as u64, Relaxed);
        self.progress.rounds_ready.store(1, Relaxed);
        let mut vocab_size = self.plan.n_init;
        while vocab_size < self.plan.vocab_size {
            let pairs = &self.pairs;
            let Some((weight, merged)) = self.queue.pop(|pair| pairs.total(pair)) else {
                self.learned.full = false;
                break;
            };
            self.merge(merged, weight, vocab_size)?;
            vocab_size += 1;
            self.report(weight, merged);
        }
        let stats = &mut self.learned.stats;
        stats.pairs = self.pairs.len() as u64;
        stats.queued = self.queue.made;
        stats.peak_queue = self.queue.peak as u64;
        stats.listed = self.pairs.lists.len() as u64;
        stats.count_seconds = (counted - began).as_secs_f64();
        stats.merge_seconds = counted.elapsed().as_secs_f64();
        Ok((self.learned, self.weights))
    }

    fn report(&self, weight: W, merged: Pair) {
        let progress = self.progress;
        progress.pair_weight.store(weight.shown(self.scale.common).to_bits(), Relaxed);
        progress.pair.store(merged, Relaxed);
        progress.occurrences.store(self.learned.stats.touched, Relaxed);
        progress.visited.store(self.learned.stats.visited, Relaxed);
        progress.merges.store(self.learned.merges.len() as u64, Relaxed);
    }

    /// Weighs and lists the pairs of all sequences, and queues them.
    fn count_all(&mut self, corpus: &Corpus) -> Result<()> {
        let parts = share(corpus.ends, W::threads(self.plan.threads));
        let (state, scale, n_init, progress) = (&self.state, &self.scale, self.plan.n_init, self.progress);
        let counted: Vec<Result<Counted<W>>> = std::thread::scope(|scope| {
            let count = |part| scope.spawn(move || Counted::of(state, scale, n_init, part, progress));
            let threads: Vec<_> = parts.iter().cloned().map(count).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let counted = counted.into_iter().collect::<Result<Vec<_>>>()?;
        // Numbers of a part's pairs among those of all parts.
        let mut numbers: Vec<Vec<u32>> = Vec::new();
        let mut lengths = Vec::new();
        for part in &counted {
            let mut here = Vec::with_capacity(part.pairs.len());
            for (&pair, sum) in part.pairs.iter().zip(&part.sums) {
                let number = self.pairs.number_or_add(pair);
                lengths.resize(self.pairs.len(), 0);
                lengths[number as usize] += sum.sequences;
                let total = &mut self.pairs.totals[number as usize];
                *total += sum.total;
                here.push(number);
            }
            numbers.push(here);
        }
        self.pairs.lists.reserve(0, lengths.into_iter());
        for ((part, numbers), range) in counted.iter().zip(&numbers).zip(parts) {
            let mut at = 0;
            for (sequence, &count) in range.zip(&part.counts) {
                self.progress.check()?;
                for _ in 0..count {
                    if let Some(&ahead) = part.places.get(at + AHEAD) {
                        self.pairs.lists.prefetch(numbers[ahead as usize]);
                    }
                    self.pairs.lists.push(numbers[part.places[at] as usize], sequence);
                    at += 1;
                }
            }
        }
        drop(counted);
        for (pair, total) in self.pairs.all() {
            self.queue.push(total, pair);
        }
        Ok(())
    }

    /// Merges `merged` into the token `n`, wherever it still is.
    fn merge(&mut self, merged: Pair, weight: W, n: u32) -> Result<()> {
        let (a, b) = split(merged);
        if self.pairs.len() >= MOST_PAIRS {
            return Err(too_many_pairs());
        }
        // Tables by token grow with the tokens: far more may be requested than there are pairs to merge.
        self.came.weights.resize(n as usize + 1, W::default());
        self.came.counts.resize(n as usize + 1, 0);
        self.marks.resize(n as usize + 1);
        let number = self.pairs.number_or_add(merged);
        let listed = W::in_order(self.pairs.lists.of(number));
        self.deltas.clear();
        let mut kept = Vec::new();
        let mut touched = 0;
        for (at, &sequence) in listed.iter().enumerate() {
            self.progress.check()?;
            if let Some(&ahead) = listed.get(at + SEQUENCES_AHEAD) {
                self.state.prefetch(ahead);
            }
            if self.state.rewrite(sequence, (a, b), n, &mut self.rewrite) {
                touched += 1;
                self.changes.clear();
                W::count(self, sequence, (a, b));
                self.take_changes(sequence, n);
                if self.changes.get(merged).is_some_and(|change| change.new > W::default()) {
                    kept.push(sequence);
                }
            }
        }
        W::relist(&mut self.pairs.lists, number, &kept);
        self.learned.merges.push([a, b]);
        self.learned.touched.push(touched);
        self.learned.stats.visited += listed.len() as u64;
        self.learned.stats.touched += touched as u64;
        self.weights.push(weight);
        self.take_deltas()?;
        self.list_new(n);
        if self.plan.counts == Counts::Current {
            // What is left of the merged pair can be merged again, even if it weighs what it did.
            let left = self.pairs.totals[number as usize];
            if left > W::default() {
                self.queue.push(left, merged);
            }
            if self.queue.len() > 2 * self.pairs.len() + 1024 {
                let left = self.pairs.all().filter(|(_, total)| *total > W::default());
                self.queue.rebuild(left.map(|(pair, total)| (total, pair)));
            }
        }
        Ok(())
    }

    /// Weighs the pairs around what was rewritten, before and after.
    pub fn count_regions(&mut self, sequence: u32, (a, b): (u32, u32)) {
        let (width, nodes) = (self.state.width, self.state.sequence(sequence));
        let node_at = |at: usize| nodes.get(at * width..(at + 1) * width);
        for region in &self.rewrite.regions {
            let before = region.new_first.checked_sub(1).and_then(node_at);
            let after = node_at(region.new_first + region.new_len);
            let old = self.rewrite.old_nodes(region, width).chunks_exact(width);
            let new = nodes[region.new_first * width..][..region.new_len * width].chunks_exact(width);
            let changes = &mut self.changes;
            each_pair(before, old, after, &self.scale, |pair, weight| {
                let change = changes.of(pair);
                change.old += weight;
            });
            each_pair(before, new, after, &self.scale, |pair, weight| {
                let change = changes.of(pair);
                change.new += weight;
            });
        }
        if self.plan.counts == Counts::Current {
            return;
        }
        let leftover = self.rewrite.leftover;
        for (pair, change) in &self.changes.entries {
            let (x, y) = split(*pair);
            let merged = x == a || x == b || y == a || y == b;
            if change.new.is_nothing() && (leftover || !merged) {
                self.marks.add(x);
                self.marks.add(y);
            }
        }
        if self.marks.any() {
            let changes = &mut self.changes;
            self.marks.each_pair(nodes.chunks_exact(width), &self.scale, |pair, _| {
                if let Some(change) = changes.get(pair) {
                    change.elsewhere = true;
                }
            });
            self.marks.clear();
        }
    }

    /// Adds the changes of one sequence to those of the merge.
    fn take_changes(&mut self, sequence: u32, n: u32) {
        let current = self.plan.counts == Counts::Current;
        for &(pair, change) in &self.changes.entries {
            let (x, larger) = split(pair);
            let (came, was) = (change.new > W::default(), change.old > W::default());
            if larger == n {
                let came = &mut self.came;
                if came.counts[x as usize] == 0 {
                    came.tokens.push(x);
                }
                came.counts[x as usize] += 1;
                came.weights[x as usize] += change.new;
                came.places.push((x, sequence));
                continue;
            }
            if came || change.elsewhere || current {
                let delta = change.new - change.old;
                if delta != W::default() {
                    let sum = self.deltas.of(pair);
                    *sum += delta;
                }
            }
            if came && !was {
                self.added.push((pair, sequence));
            }
        }
    }

    /// Adds the changes of the merge to the weights, and queues the pairs with their new ones.
    fn take_deltas(&mut self) -> Result<()> {
        for (pair, sequence) in std::mem::take(&mut self.added) {
            let number = self.pairs.number_or_add(pair);
            W::list(&mut self.pairs.lists, number, sequence);
        }
        self.deltas.entries.retain(|(_, delta)| !delta.is_nothing());
        let deltas = &self.deltas.entries;
        self.numbers.clear();
        for (at, &(pair, _)) in deltas.iter().enumerate() {
            if let Some(ahead) = deltas.get(at + AHEAD) {
                self.pairs.prefetch(ahead.0);
            }
            let number = self.pairs.number_or_add(pair);
            prefetch(self.pairs.totals.as_ptr().wrapping_add(number as usize));
            self.numbers.push(number);
        }
        for (&(pair, delta), &number) in deltas.iter().zip(&self.numbers) {
            let total = &mut self.pairs.totals[number as usize];
            *total = total.checked_plus(delta).ok_or_else(|| {
                let (a, b) = split(pair);
                Error::Training(format!("the weight of the pair ({a}, {b}) is too large; use arithmetic=float64"))
            })?;
            if *total > W::default() {
                self.queue.push(*total, pair);
            }
        }
        Ok(())
    }

    /// Lists and queues the pairs that came with `n`.
    fn list_new(&mut self, n: u32) {
        let came = &mut self.came;
        let first = self.pairs.len() as u32;
        for (at, &x) in came.tokens.iter().enumerate() {
            if let Some(&ahead) = came.tokens.get(at + AHEAD) {
                self.pairs.prefetch(pair(ahead, n));
            }
            let number = self.pairs.number_or_add(pair(x, n));
            self.pairs.totals[number as usize] = came.weights[x as usize];
        }
        self.pairs.lists.reserve(first, came.tokens.iter().map(|&x| came.counts[x as usize]));
        for (number, &x) in (first..).zip(&came.tokens) {
            came.counts[x as usize] = number;
        }
        for &(x, sequence) in &came.places {
            self.pairs.lists.push(came.counts[x as usize], sequence);
        }
        for &x in &came.tokens {
            self.queue.push(came.weights[x as usize], pair(x, n));
            came.counts[x as usize] = 0;
            came.weights[x as usize] = W::default();
        }
        came.tokens.clear();
        came.places.clear();
    }
}
