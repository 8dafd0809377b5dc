//! The published float64 arithmetic, to the last bit; everything that only this mode needs.
//!
//! Sums of floats depend on their order. The weight of a pair in a sequence is the sum over the sequence from left to
//! right, so the pairs that may have changed are added up over the whole sequence, before and after a rewrite. The
//! changes of a merge are added up in the order in which CPython walks through a set of the sequences' numbers: a hash
//! table in which a number is its own hash, so that the order is a function of the order of insertion. The table's
//! rules (CPython 3.7 to 3.13): it starts with 8 places, looks at up to 9 places after the first, then jumps; three
//! fifths full, it grows to more than four times its members, or twice if they are over 50,000.

use super::pairs::Lists;
use super::train::Trainer;
use super::weight::Weight;
use super::{Corpus, Counts, Learned, Plan, Weights};
use crate::error::{Error, Result};
use crate::progress::Progress;
use std::cmp::Ordering;

/// Weights that differ by no more than this are taken as equal.
const TOLERANCE: f64 = 1e-12;

/// Learns merges with float64 weights.
pub fn train(corpus: &Corpus, plan: &Plan, progress: &Progress) -> Result<Learned> {
    if plan.counts == Counts::Current {
        return Err(Error::Plan("arithmetic=float64 is defined for counts=published only".into()));
    }
    let (learned, weights) = Trainer::<f64>::new(corpus, plan, progress, 1).run(corpus)?;
    Ok(Learned { weights: Weights::Float64(weights), ..learned })
}

impl Weight for f64 {
    fn fraction(numerator: u32, denominator: u32, _: i128) -> Self {
        numerator as f64 / denominator as f64
    }
    fn at_least(weight: f64, _: i128) -> Self {
        weight
    }
    fn checked_plus(self, other: Self) -> Option<Self> {
        Some(self + other)
    }
    fn same(self, other: Self) -> bool {
        (self - other).abs() <= TOLERANCE
    }
    fn is_nothing(self) -> bool {
        self.abs() < TOLERANCE
    }
    fn order(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
    fn half(self) -> Self {
        self / 2.0
    }
    fn shown(self, _: i128) -> f64 {
        self
    }
    fn threads(_: usize) -> usize {
        1
    }
    fn in_order(listed: &[u32]) -> Vec<u32> {
        set_order(listed)
    }
    fn count(trainer: &mut Trainer<'_, Self>, sequence: u32, _: (u32, u32)) {
        trainer.count_whole(sequence);
    }
    fn list(lists: &mut Lists, number: u32, sequence: u32) {
        if !lists.of(number).contains(&sequence) {
            lists.push(number, sequence);
        }
    }
    /// A pair stays listed: the order of a set depends on all that was ever added.
    fn relist(_: &mut Lists, _: u32, _: &[u32]) {}
}

impl Trainer<'_, f64> {
    /// Weighs the pairs of tokens around what was rewritten over the whole sequence, left to right, before and after.
    fn count_whole(&mut self, sequence: u32) {
        let (width, nodes) = (self.state.width, self.state.sequence(sequence));
        let part = |from: usize, to: usize| &nodes[from * width..to * width];
        let len = nodes.len() / width;
        // The sequence as it was: what is unchanged, and the regions as they were between.
        let mut old = Vec::with_capacity(2 * self.rewrite.regions.len() + 1);
        let mut at = 0;
        for region in &self.rewrite.regions {
            let end = region.new_first + region.new_len;
            let around = part(region.new_first.saturating_sub(1), (end + 1).min(len));
            let was = self.rewrite.old_nodes(region, width);
            around.iter().chain(was).for_each(|&token| self.marks.add(token));
            old.push(part(at, region.new_first));
            old.push(was);
            at = end;
        }
        old.push(part(at, len));
        let changes = &mut self.changes;
        let before = old.into_iter().flat_map(|part| part.chunks_exact(width));
        self.marks.each_pair(before, &self.scale, |pair, weight| {
            let change = changes.of(pair);
            change.old += weight;
        });
        self.marks.each_pair(nodes.chunks_exact(width), &self.scale, |pair, weight| {
            let change = changes.of(pair);
            change.new += weight;
        });
        self.marks.clear();
    }
}

const FREE: u32 = u32::MAX;
const NEXT_PLACES: usize = 9;
const LEAST: usize = 8;

/// The members of `set.copy()`, as CPython's iteration gives them, after `inserted` were added to an empty set one by one.
///
/// Members must differ from each other and from `u32::MAX`.
pub fn set_order(inserted: &[u32]) -> Vec<u32> {
    let mut table = vec![FREE; LEAST];
    for (before, &member) in inserted.iter().enumerate() {
        place(&mut table, member);
        let used = before + 1;
        if is_full(used, table.len()) {
            let grown = larger_than(if used > 50_000 { used * 2 } else { used * 4 });
            table = moved(&table, grown);
        }
    }
    // A copy starts with 8 places as well and makes room for all members at once, for twice as many of them.
    let used = inserted.len();
    let copied = if is_full(used, LEAST) { larger_than(used * 2) } else { LEAST };
    if copied != table.len() {
        table = moved(&table, copied);
    }
    table.retain(|&member| member != FREE);
    table
}

fn is_full(used: usize, places: usize) -> bool {
    used * 5 >= (places - 1) * 3
}

fn larger_than(least: usize) -> usize {
    let mut places = LEAST;
    while places <= least {
        places *= 2;
    }
    places
}

fn moved(table: &[u32], places: usize) -> Vec<u32> {
    let mut grown = vec![FREE; places];
    for &member in table.iter().filter(|&&member| member != FREE) {
        place(&mut grown, member);
    }
    grown
}

fn place(table: &mut [u32], member: u32) {
    let mask = table.len() - 1;
    let (mut at, mut perturb) = (member as usize & mask, member as usize);
    loop {
        let last = if at + NEXT_PLACES <= mask { at + NEXT_PLACES } else { at };
        if let Some(free) = table[at..=last].iter_mut().find(|place| **place == FREE) {
            *free = member;
            return;
        }
        perturb >>= 5;
        at = (at * 5 + 1 + perturb) & mask;
    }
}
