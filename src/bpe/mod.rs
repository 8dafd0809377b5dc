//! Counts -> merges.
//!
//! In: words with their weights (distinct pretokens and how often they occurred), or whole documents.
//! Out: merges, best first. Each step takes the pair with the highest count; a tie goes to the smaller
//! (left id, right id), so the result depends neither on threads nor on the order in which words arrived.
//! Training can go on from a vocabulary ([`Start`]): then the corpus is given as ids of its tokens.
//! The plain version this must equal is `reference/bpe.py`.
//!
//! [`corpus`] lays words out in slots, a [`part`] for each thread, [`round`] lists the pairs worth listing, [`merge`]
//! works through them, and [`queue`] says which is next. [`balance`] chooses each merge for one of several groups.
//! [`file`] reads and writes a vocabulary as tokenizer.json has it.

pub mod balance;
mod balance_round;
pub mod corpus;
pub mod file;
pub mod merge;
pub(crate) mod pair;
mod part;
pub mod queue;
mod round;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};

/// What to learn. Ids: special tokens first, then the 256 bytes in GPT-2's order, then one id per merge; or the ids of
/// the vocabulary to go on from, then one id per merge.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Stop when the vocabulary, special tokens and bytes included, has this many entries.
    pub vocab_size: u32,
    /// Pairs that occur less often are not merged; 0 and 1 mean the same.
    pub min_frequency: u64,
    /// No token is longer than this, if given.
    pub max_token_bytes: Option<u32>,
    /// No token made by a merge has more words than this, if given: runs of bytes without ASCII white space in them.
    pub max_words: Option<u32>,
    /// Tokens with the first ids. A learned string equal to one of them takes its id.
    pub special_tokens: Vec<Vec<u8>>,
    /// The vocabulary to go on from; `special_tokens` is empty then.
    pub start: Option<Start>,
}

/// A vocabulary that training goes on from.
#[derive(Clone, Debug)]
pub struct Start {
    /// The bytes of each id; empty for an id that stands for none.
    pub tokens: Vec<Vec<u8>>,
    /// Ids of special tokens. A learned string equal to one of them takes its id.
    pub special: Vec<u32>,
    /// Ids of tokens that the merges so far do not make out of their bytes. They are not made anew: a merge that was
    /// passed long ago could then apply again.
    pub unreachable: Vec<u32>,
}

impl Plan {
    /// Refuses what cannot be learned.
    pub fn check(&self) -> Result<()> {
        let least = self.first_merge_id() as usize;
        if let Some(start) = &self.start {
            if (self.vocab_size as usize) < least {
                return Err(Error::Plan(format!(
                    "vocab_size={}: the vocabulary to go on from has {least} entries; ask for more than that",
                    self.vocab_size,
                )));
            }
            if let Some(id) = start.special.iter().chain(&start.unreachable).find(|&&id| id as usize >= least) {
                return Err(Error::Plan(format!("start: id {id} does not exist; expected 0 to {}", least - 1)));
            }
        }
        if (self.vocab_size as usize) < least {
            return Err(Error::Plan(format!(
                "vocab_size={}: the 256 bytes and {} special tokens alone need {least}; ask for more than that",
                self.vocab_size,
                self.special_tokens.len(),
            )));
        }
        if self.vocab_size > 1 << 30 {
            return Err(Error::Plan(format!("vocab_size={}: at most {} is supported", self.vocab_size, 1 << 30)));
        }
        if self.max_token_bytes == Some(0) {
            return Err(Error::Plan("max_token_bytes=0: a token has at least 1 byte".into()));
        }
        if self.max_words == Some(0) {
            return Err(Error::Plan("max_words=0: a token has at least 1 word".into()));
        }
        Ok(())
    }

    /// The id of each byte. GPT-2 shows printable bytes as themselves and moves the rest to U+0100 and up;
    /// ids follow those code points.
    pub fn byte_ids(&self) -> [u32; 256] {
        let first = self.special_tokens.len() as u32;
        let mut ids = [0; 256];
        for (rank, byte) in byte_order().enumerate() {
            ids[byte as usize] = first + rank as u32;
        }
        ids
    }

    /// The first id that a merge can take.
    pub fn first_merge_id(&self) -> u32 {
        self.start.as_ref().map_or(self.special_tokens.len() + 256, |start| start.tokens.len()) as u32
    }

    /// The bytes of each id before the first merge.
    fn first_tokens(&self) -> Vec<Vec<u8>> {
        match &self.start {
            Some(start) => start.tokens.clone(),
            None => self.special_tokens.iter().cloned().chain(byte_order().map(|byte| vec![byte])).collect(),
        }
    }

    /// The special tokens by their bytes.
    fn special_ids(&self) -> HashMap<Vec<u8>, u32> {
        match &self.start {
            Some(start) => start.special.iter().map(|&id| (start.tokens[id as usize].clone(), id)).collect(),
            // Of equal ones the first: `collect` keeps the last.
            None => self.special_tokens.iter().enumerate().rev().map(|(i, token)| (token.clone(), i as u32)).collect(),
        }
    }

    /// The strings that no merge may make.
    fn forbidden(&self) -> HashSet<Vec<u8>> {
        let start = self.start.iter();
        start.flat_map(|start| start.unreachable.iter().map(|&id| start.tokens[id as usize].clone())).collect()
    }
}

/// All bytes, in GPT-2's order: those it shows as themselves first.
pub fn byte_order() -> impl Iterator<Item = u8> {
    (0..=255).filter(|&byte| is_shown(byte)).chain((0..=255).filter(|&byte| !is_shown(byte)))
}

/// Whether GPT-2 shows a byte as itself: it is printable in Latin-1.
fn is_shown(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// What was learned, and what it cost.
#[derive(Clone, Debug)]
pub struct Learned {
    /// Merged pairs, in order.
    pub merges: Vec<[u32; 2]>,
    /// The count of each merged pair when it was merged.
    pub counts: Vec<u64>,
    /// Entries in the vocabulary.
    pub vocab_size: u32,
    /// Whether the vocabulary has the requested size; if not, no pair was left to merge.
    pub full: bool,
    /// How it went.
    pub stats: Stats,
    /// The groups of [`balance`] at the end: those of the training text, then those of the development set.
    pub groups: Vec<balance::Group>,
}

/// How merging went, for `training.json` and the benchmarks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Times the occurrence lists were rebuilt from the corpus.
    pub rounds: u32,
    /// Positions rewritten in all.
    pub occurrences: u64,
    /// Most live pairs at a time.
    pub peak_live_pairs: u64,
    /// Most queue entries at a time.
    pub peak_queue: u64,
    /// Largest ratio of queue entries to live pairs, in thousandths.
    pub queue_per_mille: u64,
    /// Most positions held in occurrence lists at a time.
    pub peak_places: u64,
}
