//! Weighing and listing the pairs of all sequences as they were given, on all cores.

use super::state::State;
use super::walk::each_pair;
use super::weight::{Scale, Weight};
use crate::bpe::pair::{Pair, PairMap, split};
use crate::error::{Error, Result};
use crate::progress::Progress;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Up to this number of pairs of features, a table says which number a pair has (64 MB); beyond, a hash map.
const TABLE_CELLS: usize = 1 << 24;
/// Numbers have 32 bits; one sequence or merge never adds as many again as are left.
pub const MOST_PAIRS: usize = 1 << 31;
/// No number.
const NONE: u32 = u32::MAX;

/// Weights and places of the pairs of some sequences.
pub struct Counted<W> {
    /// Pairs in the order in which they came.
    pub pairs: Vec<Pair>,
    /// Their weights, and in how many sequences they are.
    pub sums: Vec<Sum<W>>,
    /// The pairs of each sequence, one after another...
    pub places: Vec<u32>,
    /// ... and how many they are.
    pub counts: Vec<u32>,
}

/// The weight of one pair.
#[derive(Clone, Copy, Default)]
pub struct Sum<W> {
    /// Over all sequences.
    pub total: W,
    /// Of the present sequence: a float sum is made of sums of sequences.
    here: W,
    /// The last sequence that had it, plus 1.
    last: u32,
    /// How many sequences have it.
    pub sequences: u32,
}

impl<W: Weight> Counted<W> {
    /// Counts `sequences`, whose tokens are below `n_init`.
    pub fn of(
        state: &State,
        scale: &Scale<W>,
        n_init: u32,
        sequences: Range<u32>,
        progress: &Progress,
    ) -> Result<Self> {
        let counts = Vec::with_capacity(sequences.len());
        let mut counted = Counted::<W> { pairs: Vec::new(), sums: Vec::new(), places: Vec::new(), counts };
        let mut numbers = Numbers::new(n_init as usize);
        for sequence in sequences {
            progress.check()?;
            progress.visited.fetch_add(1, Relaxed);
            let first = counted.places.len();
            let nodes = state.sequence(sequence).chunks_exact(state.width);
            each_pair(None, nodes, None, scale, |pair, weight| {
                let number = numbers.of(pair, counted.pairs.len() as u32);
                if number as usize == counted.pairs.len() {
                    counted.pairs.push(pair);
                    counted.sums.push(Sum::default());
                }
                let sum = &mut counted.sums[number as usize];
                if sum.last != sequence + 1 {
                    sum.last = sequence + 1;
                    counted.places.push(number);
                }
                sum.here += weight;
            });
            for &number in &counted.places[first..] {
                let sum = &mut counted.sums[number as usize];
                sum.total += sum.here;
                sum.here = W::default();
                sum.sequences += 1;
            }
            if counted.pairs.len() >= MOST_PAIRS {
                return Err(too_many_pairs());
            }
            counted.counts.push((counted.places.len() - first) as u32);
        }
        Ok(counted)
    }
}

/// What is said where numbers of pairs end.
pub fn too_many_pairs() -> Error {
    Error::Training(format!("over {MOST_PAIRS} distinct pairs of tokens; learn from fewer sequences"))
}

/// Numbers of pairs of features.
enum Numbers {
    Table { cells: Vec<u32>, width: usize },
    Map(PairMap<u32>),
}

impl Numbers {
    fn new(tokens: usize) -> Self {
        match tokens.checked_mul(tokens) {
            Some(cells) if cells <= TABLE_CELLS => Numbers::Table { cells: vec![NONE; cells], width: tokens },
            _ => Numbers::Map(PairMap::default()),
        }
    }

    /// The number of `pair`; `next` if it has none yet.
    #[inline(always)]
    fn of(&mut self, pair: Pair, next: u32) -> u32 {
        match self {
            Numbers::Table { cells, width } => {
                let (x, y) = split(pair);
                let cell = &mut cells[x as usize * *width + y as usize];
                if *cell == NONE {
                    *cell = next;
                }
                *cell
            }
            Numbers::Map(map) => *map.entry(pair).or_insert(next),
        }
    }
}

/// Runs of sequences of about as many items each.
pub fn share(ends: &[u64], parts: usize) -> Vec<Range<u32>> {
    let items = ends.last().copied().unwrap_or(0);
    let cut = |part: usize| ends.partition_point(|&end| end * (parts as u64) <= items * part as u64) as u32;
    let last = ends.len() as u32;
    (0..parts).map(|part| cut(part)..if part + 1 == parts { last } else { cut(part + 1) }).collect()
}
