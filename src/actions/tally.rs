//! A small map from pairs that is emptied in no time: the pairs of one place, or of one merge.

use crate::bpe::pair::{Pair, hash};

/// Values by pair, in the order in which the pairs came.
pub struct Tally<V> {
    /// What is in it.
    pub entries: Vec<(Pair, V)>,
    /// Where each pair is in `entries`; a slot counts only if it bears the present stamp.
    slots: Vec<Slot>,
    stamp: u32,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    stamp: u32,
    at: u32,
}

impl<V: Copy + Default> Tally<V> {
    /// An empty one.
    pub fn new() -> Self {
        Tally { entries: Vec::new(), slots: vec![Slot::default(); 512], stamp: 1 }
    }

    /// Forgets all pairs.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.slots.fill(Slot::default());
            self.stamp = 1;
        }
    }

    /// The value of `pair`, which is added if it is not there.
    #[inline(always)]
    pub fn of(&mut self, pair: Pair) -> &mut V {
        match self.find(pair) {
            Ok(at) => &mut self.entries[at].1,
            Err(slot) => self.add(pair, slot),
        }
    }

    /// The value of `pair`, if it is there.
    #[inline(always)]
    pub fn get(&mut self, pair: Pair) -> Option<&mut V> {
        self.find(pair).ok().map(|at| &mut self.entries[at].1)
    }

    /// Where `pair` is in `entries`, or the slot that it would take.
    #[inline(always)]
    fn find(&self, pair: Pair) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash(pair) as usize & mask;
        loop {
            let Slot { stamp, at } = self.slots[slot];
            if stamp != self.stamp {
                return Err(slot);
            }
            if self.entries[at as usize].0 == pair {
                return Ok(at as usize);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn add(&mut self, pair: Pair, slot: usize) -> &mut V {
        let at = self.entries.len();
        self.entries.push((pair, V::default()));
        self.slots[slot] = Slot { stamp: self.stamp, at: at as u32 };
        if self.entries.len() * 2 > self.slots.len() {
            self.grow();
        }
        &mut self.entries[at].1
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        self.slots = vec![Slot::default(); mask + 1];
        for (at, (pair, _)) in self.entries.iter().enumerate() {
            let mut slot = hash(*pair) as usize & mask;
            while self.slots[slot].stamp == self.stamp {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = Slot { stamp: self.stamp, at: at as u32 };
        }
    }
}
