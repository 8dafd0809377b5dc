//! Every pair seen so far: its weight, and the sequences it is listed for.

use super::weight::Weight;
use crate::bpe::pair::{Pair, PairMap};

/// Pairs, by number.
pub struct Pairs<W> {
    find: PairMap<u32>,
    /// The weight of each.
    pub totals: Vec<W>,
    /// The sequences of each: all that have it, and some that had it.
    pub lists: Lists,
}

impl<W: Weight> Pairs<W> {
    pub fn new() -> Self {
        Pairs { find: PairMap::default(), totals: Vec::new(), lists: Lists::default() }
    }

    pub fn len(&self) -> usize {
        self.totals.len()
    }

    /// The number of `pair`, if it was seen.
    pub fn number(&self, pair: Pair) -> Option<u32> {
        self.find.get(&pair).copied()
    }

    /// The number of `pair`, which is added with no weight if it was not seen.
    pub fn number_or_add(&mut self, pair: Pair) -> u32 {
        let next = self.totals.len() as u32;
        let number = *self.find.entry(pair).or_insert(next);
        if number == next {
            self.totals.push(W::default());
            self.lists.spans.push(Span::default());
        }
        number
    }

    /// The weight of `pair`; nothing if it was never seen.
    pub fn total(&self, pair: Pair) -> W {
        self.number(pair).map_or(W::default(), |number| self.totals[number as usize])
    }

    /// All pairs and their numbers, in no order.
    pub fn all(&self) -> impl Iterator<Item = (Pair, u32)> {
        self.find.iter().map(|(&pair, &number)| (pair, number))
    }
}

/// Lists of sequences, one after another in one array. A list that outgrows its place moves to the end.
#[derive(Default)]
pub struct Lists {
    data: Vec<u32>,
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Default)]
struct Span {
    start: usize,
    len: u32,
    room: u32,
}

impl Lists {
    /// Lays out lists of these lengths, which `push` then fills.
    pub fn reserve(&mut self, first: u32, lengths: impl Iterator<Item = u32>) {
        let mut start = self.data.len();
        for (span, length) in self.spans[first as usize..].iter_mut().zip(lengths) {
            *span = Span { start, len: 0, room: length };
            start += length as usize;
        }
        self.data.resize(start, 0);
    }

    pub fn of(&self, number: u32) -> &[u32] {
        let span = self.spans[number as usize];
        &self.data[span.start..span.start + span.len as usize]
    }

    pub fn push(&mut self, number: u32, sequence: u32) {
        let span = &mut self.spans[number as usize];
        if span.len == span.room {
            let start = self.data.len();
            self.data.extend_from_within(span.start..span.start + span.len as usize);
            span.start = start;
            span.room = (span.len * 2).max(4);
            self.data.resize(start + span.room as usize, 0);
        }
        self.data[span.start + span.len as usize] = sequence;
        span.len += 1;
    }

    /// Makes the list shorter or of the same length.
    pub fn replace(&mut self, number: u32, kept: &[u32]) {
        let span = &mut self.spans[number as usize];
        self.data[span.start..span.start + kept.len()].copy_from_slice(kept);
        span.len = kept.len() as u32;
    }

    /// Entries in all lists, their spare room included.
    pub fn len(&self) -> usize {
        self.data.len()
    }
}
