//! Tokens that a whole word can be: one lookup instead of merging, for a word that is new to the cache.

use super::batch::word_hash;
use super::isa::prefetch;

/// The id of each of some words.
pub struct WholeWords {
    /// A Bloom filter with eight bits a word, of which its hash sets one. It rejects most words that are not here, and
    /// is small enough to stay in a core's own cache.
    maybe: Vec<u64>,
    /// Bits of the hash above, number of the word + 1 below; 0 is empty.
    slots: Vec<u64>,
    bytes: Vec<u8>,
    /// Where the bytes of each word start, its length, and its id.
    words: Vec<(u32, u32, u32)>,
}

const NUMBER_BITS: u32 = 24;

impl WholeWords {
    /// Of fewer than 2^24 words, each once.
    pub fn new<'t>(tokens: impl Iterator<Item = (&'t [u8], u32)>) -> WholeWords {
        let (mut bytes, mut words) = (vec![], vec![]);
        for (token, id) in tokens {
            words.push((bytes.len() as u32, token.len() as u32, id));
            bytes.extend_from_slice(token);
        }
        let mut maybe = vec![0; (words.len() / 8).next_power_of_two().max(16)];
        let mut slots = vec![0; (words.len() * 2).next_power_of_two().max(16)];
        for (number, &(start, len, _)) in words.iter().enumerate() {
            let hash = word_hash(&bytes[start as usize..(start + len) as usize]);
            let (place, bit) = filter_place(hash, maybe.len());
            maybe[place] |= bit;
            let mut at = hash as usize & (slots.len() - 1);
            while slots[at] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = hash >> NUMBER_BITS << NUMBER_BITS | (number as u64 + 1);
        }
        WholeWords { maybe, slots, bytes, words }
    }

    /// The id of `word`; `hash` is its [`word_hash`].
    #[inline(always)]
    pub fn get(&self, word: &[u8], hash: u64) -> Option<u32> {
        if !self.maybe(hash) {
            return None;
        }
        let mut at = hash as usize & (self.slots.len() - 1);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if slot >> NUMBER_BITS == hash >> NUMBER_BITS {
                let (start, len, id) = self.words[(slot & ((1 << NUMBER_BITS) - 1)) as usize - 1];
                if self.bytes[start as usize..][..len as usize] == *word {
                    return Some(id);
                }
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Prefetches the slot that `get` reads, if the filter passes.
    #[inline(always)]
    pub fn fetch(&self, hash: u64) {
        if self.maybe(hash) {
            prefetch(&raw const self.slots[hash as usize & (self.slots.len() - 1)]);
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
