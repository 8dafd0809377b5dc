//! Tokens that a whole word can be: one lookup instead of merging, for a word that is new to the cache.

use super::isa::{SHORT, fold, hash_long, key_of};
use super::memory::{Table, Zero};
use crate::arrays::prefetch;

/// The id of each of some words.
pub struct WholeWords {
    /// A Bloom filter with eight bits a word, of which its hash sets one. It rejects most words that are not here, and
    /// is small enough to stay in a core's own cache.
    maybe: Vec<u64>,
    /// Words that fit a key, each in the first free slot from that of its hash on; key 0 is empty. One memory access
    /// finds most of them.
    short: Table<Short>,
    /// Longer words: bits of the hash above, number of the word + 1 below; 0 is empty.
    long: Vec<u64>,
    bytes: Vec<u8>,
    /// Where the bytes of each longer word start, its length, and its id.
    words: Vec<(u32, u32, u32)>,
}

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Short {
    key: u128,
    id: u32,
}

// SAFETY: integers.
unsafe impl Zero for Short {}

const NUMBER_BITS: u32 = 24;

impl WholeWords {
    /// Of fewer than 2^24 words, each once.
    pub fn new<'t>(tokens: impl Iterator<Item = (&'t [u8], u32)>) -> WholeWords {
        let (mut keys, mut bytes, mut words) = (vec![], vec![], vec![]);
        for (token, id) in tokens {
            if token.len() <= SHORT {
                keys.push((key_of(token), id));
            } else {
                words.push((bytes.len() as u32, token.len() as u32, id));
                bytes.extend_from_slice(token);
            }
        }
        let mut maybe = vec![0; ((keys.len() + words.len()) / 8).next_power_of_two().max(16)];
        let mut note = |hash| {
            let (place, bit) = filter_place(hash, maybe.len());
            maybe[place] |= bit;
        };
        let mut short: Table<Short> = Table::new((keys.len() * 5 / 4).next_power_of_two().max(16), true);
        for (key, id) in keys {
            let hash = fold(key);
            note(hash);
            let mut at = hash as usize & (short.len() - 1);
            while short[at].key != 0 {
                at = (at + 1) & (short.len() - 1);
            }
            short[at] = Short { key, id };
        }
        let mut long = vec![0; (words.len() * 2).next_power_of_two().max(16)];
        for (number, &(start, len, _)) in words.iter().enumerate() {
            let hash = hash_long(&bytes[start as usize..(start + len) as usize]);
            note(hash);
            let mut at = hash as usize & (long.len() - 1);
            while long[at] != 0 {
                at = (at + 1) & (long.len() - 1);
            }
            long[at] = hash >> NUMBER_BITS << NUMBER_BITS | (number as u64 + 1);
        }
        WholeWords { maybe, short, long, bytes, words }
    }

    /// The id of a word of at most [`SHORT`] bytes by its key; `hash` is [`fold`] of that.
    #[inline(always)]
    pub fn short(&self, key: u128, hash: u64) -> Option<u32> {
        if !self.maybe(hash) {
            return None;
        }
        let mut at = hash as usize & (self.short.len() - 1);
        loop {
            let slot = &self.short[at];
            // First, as a word may be empty: its key is that of an empty slot.
            if slot.key == 0 {
                return None;
            }
            if slot.key == key {
                return Some(slot.id);
            }
            at = (at + 1) & (self.short.len() - 1);
        }
    }

    /// The id of a longer word; `hash` is its [`hash_long`].
    #[inline(always)]
    pub fn long(&self, word: &[u8], hash: u64) -> Option<u32> {
        if !self.maybe(hash) {
            return None;
        }
        let mut at = hash as usize & (self.long.len() - 1);
        loop {
            let slot = self.long[at];
            if slot == 0 {
                return None;
            }
            if slot >> NUMBER_BITS == hash >> NUMBER_BITS {
                let (start, len, id) = self.words[(slot & ((1 << NUMBER_BITS) - 1)) as usize - 1];
                if self.bytes[start as usize..][..len as usize] == *word {
                    return Some(id);
                }
            }
            at = (at + 1) & (self.long.len() - 1);
        }
    }

    /// Prefetches the slot that `short` reads, if the filter passes.
    #[inline(always)]
    pub fn fetch_short(&self, hash: u64) {
        if self.maybe(hash) {
            prefetch(&raw const self.short[hash as usize & (self.short.len() - 1)]);
        }
    }

    /// Prefetches the slot that `long` reads, if the filter passes.
    #[inline(always)]
    pub fn fetch_long(&self, hash: u64) {
        if self.maybe(hash) {
            prefetch(&raw const self.long[hash as usize & (self.long.len() - 1)]);
        }
    }

    #[inline(always)]
    fn maybe(&self, hash: u64) -> bool {
        let (place, bit) = filter_place(hash, self.maybe.len());
        self.maybe[place] & bit != 0
    }
}

/// The bit of a hash among `words` words of 64 bits, from other bits than the slot.
#[inline(always)]
fn filter_place(hash: u64, words: usize) -> (usize, u64) {
    ((hash >> 38) as usize & (words - 1), 1 << (hash >> 32 & 63))
}
