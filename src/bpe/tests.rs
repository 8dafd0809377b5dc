//! The merge loop against a recount: every short word over three symbols, and random heaps of words.

use super::corpus::{Corpus, Slot, deal};
use super::{Plan, byte_order, merge};
use crate::progress::Progress;
use crate::random::Random;
use std::collections::BTreeMap;

fn plan(merges: u32) -> Plan {
    let special_tokens = Vec::new();
    let vocab_size = 256 + merges;
    Plan { vocab_size, min_frequency: 0, max_token_bytes: None, max_words: None, special_tokens, start: None }
}

fn fast<S: Slot>(words: &[(Vec<u8>, u64)], merges: u32) -> (Vec<[u32; 2]>, Vec<u64>) {
    fast_in_parts::<S>(words, merges, 1)
}

fn fast_in_parts<S: Slot>(words: &[(Vec<u8>, u64)], merges: u32, parts: usize) -> (Vec<[u32; 2]>, Vec<u64>) {
    let plan = plan(merges);
    let mut corpus: Vec<_> = (0..parts).map(|_| Corpus::<S>::new(&plan)).collect();
    words.iter().for_each(|(word, weight)| deal(&mut corpus, |part| part.push(word, *weight)));
    let learned = merge::train(corpus, &plan, &Progress::default()).expect("nothing to refuse");
    (learned.merges, learned.counts)
}

/// As `reference/bpe.py`: count everything, take the best, replace it everywhere, begin again.
fn naive(words: &[(Vec<u8>, u64)], merges: u32) -> (Vec<[u32; 2]>, Vec<u64>) {
    let mut rank = [0; 256];
    byte_order().zip(0..).for_each(|(byte, id)| rank[byte as usize] = id);
    let mut words: Vec<(Vec<u32>, u64)> =
        words.iter().map(|(word, weight)| (word.iter().map(|&b| rank[b as usize]).collect(), *weight)).collect();
    let (mut learned, mut counts) = (Vec::new(), Vec::new());
    for token in 256..256 + merges {
        let mut pairs = BTreeMap::<[u32; 2], u64>::new();
        for (word, weight) in &words {
            word.windows(2).for_each(|two| *pairs.entry([two[0], two[1]]).or_default() += weight);
        }
        let Some((&best, &count)) = pairs.iter().rev().max_by_key(|&(_, &count)| count) else { break };
        learned.push(best);
        counts.push(count);
        for (word, _) in &mut words {
            *word = merged(word, best, token);
        }
    }
    (learned, counts)
}

#[test]
fn every_word_over_three_symbols_merges_as_a_recount_says() {
    for len in 1..=6u32 {
        for number in 0..3usize.pow(len) {
            let word = (0..len).map(|digit| b'a' + (number / 3usize.pow(digit) % 3) as u8).collect();
            let words = [(word, 1)];
            assert_eq!(fast::<u16>(&words, 8), naive(&words, 8), "{words:?}");
        }
    }
}

/// A word with `token` in place of `pair`, left to right.
fn merged(word: &[u32], pair: [u32; 2], token: u32) -> Vec<u32> {
    let mut merged = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let hit = at + 1 < word.len() && word[at..at + 2] == pair;
        merged.push(if hit { token } else { word[at] });
        at += 1 + hit as usize;
    }
    merged
}

#[test]
fn heaps_of_random_words_merge_as_a_recount_says() {
    let mut random = Random(1);
    for heap in 0..60 {
        let mut words: Vec<(Vec<u8>, u64)> = (0..40 + heap)
            .map(|_| {
                let len = 1 + random.below(14);
                let weight = if heap % 2 == 0 { 1 } else { 1 + random.below(1 << (heap % 12)) as u64 };
                ((0..len).map(|_| b'a' + (random.below(6) * random.below(6) / 6) as u8).collect(), weight)
            })
            .collect();
        words.sort_by_key(|&(_, weight)| std::cmp::Reverse(weight));
        assert_eq!(fast::<u16>(&words, 120), naive(&words, 120));
        assert_eq!(fast::<u32>(&words, 120), naive(&words, 120));
        let parts = 2 + heap as usize % 3;
        assert_eq!(fast_in_parts::<u16>(&words, 120, parts), naive(&words, 120), "{parts} parts");
    }
}

#[test]
fn compacting_keeps_tokens_and_weights_and_drops_words_of_one_token() {
    let mut corpus = Corpus::<u16>::new(&plan(10));
    corpus.push(b"ab", 7);
    corpus.push(b"abab", 7);
    corpus.push(b"cd", 2);
    let ab = u16::of(256);
    for place in [1, 4, 6] {
        (corpus.slots[place], corpus.slots[place + 1]) = (ab, ab);
    }
    let mut spans = vec![1; 257];
    spans[256] = 2;
    corpus.compact(&spans);
    assert_eq!(corpus.slots.len(), 7); // END ab ab END c d END
    assert_eq!(corpus.slots[1..3], [ab, ab]);
    assert_eq!(corpus.runs.iter().map(|run| (run.end, run.weight)).collect::<Vec<_>>(), [(4, 7), (7, 2)]);
}
