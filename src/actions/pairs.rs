//! Every pair seen so far: its weight, and the sequences it is listed for.
//!
//! A merge touches some hundred pairs all over these tables, and waiting for memory is most of what that costs. So
//! code with a list of pairs prefetches the places of the next ones while it works on the present one.

use super::weight::Weight;
use crate::arrays::prefetch;
use crate::bpe::pair::{Pair, hash};

/// How many pairs ahead memory is prefetched.
pub const AHEAD: usize = 12;
/// No pair: tokens begin with 1.
const FREE: Pair = 0;

/// Pairs, by number.
pub struct Pairs<W> {
    /// Where a pair is by its hash, or after that: the pair and its number. At most five eighths are taken.
    slots: Vec<(Pair, u32)>,
    /// The weight of each.
    pub totals: Vec<W>,
    /// The sequences of each: all that have it, and some that had it.
    pub lists: Lists,
}

impl<W: Weight> Pairs<W> {
    pub fn new() -> Self {
        Pairs { slots: vec![(FREE, 0); 1024], totals: Vec::new(), lists: Lists::default() }
    }

    pub fn len(&self) -> usize {
        self.totals.len()
    }

    /// Asks for the place of `pair`, which will be looked up soon.
    #[inline(always)]
    pub fn prefetch(&self, pair: Pair) {
        prefetch(self.slots.as_ptr().wrapping_add(hash(pair) as usize & (self.slots.len() - 1)));
    }

    /// The slot of `pair`, or the free one where it belongs.
    #[inline(always)]
    fn slot(&self, pair: Pair) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(pair) as usize & mask;
        while self.slots[slot].0 != pair && self.slots[slot].0 != FREE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// The number of `pair`, which is added with no weight if it was not seen.
    #[inline(always)]
    pub fn number_or_add(&mut self, pair: Pair) -> u32 {
        let slot = self.slot(pair);
        if self.slots[slot].0 == pair {
            return self.slots[slot].1;
        }
        let number = self.totals.len() as u32;
        self.slots[slot] = (pair, number);
        self.totals.push(W::default());
        self.lists.spans.push(Span::default());
        if self.totals.len() * 8 > self.slots.len() * 5 {
            self.grow();
        }
        number
    }

    fn grow(&mut self) {
        let doubled = vec![(FREE, 0); self.slots.len() * 2];
        for entry in std::mem::replace(&mut self.slots, doubled) {
            if entry.0 != FREE {
                let slot = self.slot(entry.0);
                self.slots[slot] = entry;
            }
        }
    }

    /// The weight of `pair`; nothing if it was never seen.
    pub fn total(&self, pair: Pair) -> W {
        let (found, number) = self.slots[self.slot(pair)];
        if found == pair { self.totals[number as usize] } else { W::default() }
    }

    /// All pairs and their weights, in no order.
    pub fn all(&self) -> impl Iterator<Item = (Pair, W)> {
        let taken = self.slots.iter().filter(|(pair, _)| *pair != FREE);
        taken.map(|&(pair, number)| (pair, self.totals[number as usize]))
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

    /// Asks for the end of a list that will grow soon.
    #[inline(always)]
    pub fn prefetch(&self, number: u32) {
        prefetch(self.spans.as_ptr().wrapping_add(number as usize));
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
