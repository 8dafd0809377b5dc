//! Tokens that a whole word can be: one lookup instead of merging, for a word that is new to the cache.

use super::batch::word_hash;

/// The id of each of some words.
pub struct WholeWords {
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
        let mut slots = vec![0; (words.len() * 2).next_power_of_two().max(16)];
        for (number, &(start, len, _)) in words.iter().enumerate() {
            let hash = word_hash(&bytes[start as usize..(start + len) as usize]);
            let mut at = hash as usize & (slots.len() - 1);
            while slots[at] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = hash >> NUMBER_BITS << NUMBER_BITS | (number as u64 + 1);
        }
        WholeWords { slots, bytes, words }
    }

    /// The id of `word`; `hash` is its [`word_hash`].
    #[inline(always)]
    pub fn get(&self, word: &[u8], hash: u64) -> Option<u32> {
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

    /// Where in memory `get` looks first.
    #[inline(always)]
    pub fn slot(&self, hash: u64) -> *const u8 {
        (&raw const self.slots[hash as usize & (self.slots.len() - 1)]).cast()
    }
}
