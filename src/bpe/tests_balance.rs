//! Balanced merges against a recount.

use super::balance::{Balance, Group, train};
use super::corpus::{Corpus, Slot, deal};
use super::{Plan, byte_order, merge};
use crate::progress::Progress;
use std::collections::BTreeMap;

type Words = Vec<(Vec<u8>, u64)>;

fn plan(merges: u32, min_frequency: u64) -> Plan {
    Plan {
        vocab_size: 256 + merges,
        min_frequency,
        max_token_bytes: None,
        max_words: None,
        special_tokens: Vec::new(),
        start: None,
    }
}

fn lay_out<S: Slot>(groups: &[Words], plan: &Plan, parts: usize) -> (Vec<Corpus<S>>, Vec<Group>) {
    let mut corpus: Vec<_> = (0..parts).map(|_| Corpus::<S>::new(plan)).collect();
    let mut sizes = vec![Group::default(); groups.len()];
    for (group, words) in groups.iter().enumerate() {
        corpus.iter_mut().for_each(|part| part.group = group as u32);
        for (word, weight) in words {
            deal(&mut corpus, |part| part.push(word, *weight));
            sizes[group].add(word.len(), word.len(), *weight);
        }
    }
    (corpus, sizes)
}

fn fast<S: Slot>(
    groups: &[Words],
    merges: u32,
    least: u64,
    measured: bool,
    after: usize,
    parts: usize,
) -> (Vec<(u32, u32)>, Vec<u64>) {
    let plan = plan(merges, least);
    let (corpus, groups) = lay_out::<S>(groups, &plan, parts);
    let balance = Balance { groups, measured, after, window: 0 };
    let learned = train(corpus, &plan, balance, &Progress::default()).expect("nothing to refuse");
    (learned.merges, learned.groups.iter().map(|group| group.tokens).collect())
}

/// As `reference/bpe.py`: counts everything anew for each merge.
fn naive(groups: &[Words], merges: u32, least: u64, measured: bool, after: usize) -> (Vec<(u32, u32)>, Vec<u64>) {
    let mut rank = [0; 256];
    byte_order().zip(0..).for_each(|(byte, id)| rank[byte as usize] = id);
    let ids = |word: &Vec<u8>| word.iter().map(|&b| rank[b as usize]).collect::<Vec<u32>>();
    let mut corpus: Vec<Vec<(Vec<u32>, u64)>> =
        groups.iter().map(|words| words.iter().map(|(word, weight)| (ids(word), *weight)).collect()).collect();
    let tokens = |words: &Vec<(Vec<u32>, u64)>| words.iter().map(|(word, by)| word.len() as u64 * by).sum::<u64>();
    let bytes: Vec<u64> = corpus.iter().map(tokens).collect();
    let training = if measured { groups.len() / 2 } else { groups.len() };
    let mut learned = Vec::new();
    for token in 256..256 + merges {
        let now: Vec<u64> = corpus.iter().map(tokens).collect();
        let mut order: Vec<Vec<usize>> = (0..training).map(|group| vec![group]).collect();
        if measured {
            order.sort_by_key(|one| std::cmp::Reverse(now[training + one[0]]));
        } else {
            order.sort_by(|one, other| (bytes[one[0]] * now[other[0]]).cmp(&(bytes[other[0]] * now[one[0]])));
        }
        if learned.len() < after {
            order = vec![(0..training).collect()];
        }
        let best = order.iter().find_map(|chosen| {
            let mut pairs = BTreeMap::<(u32, u32), u64>::new();
            for (word, weight) in chosen.iter().flat_map(|&group| &corpus[group]) {
                word.windows(2).for_each(|two| *pairs.entry((two[0], two[1])).or_default() += weight);
            }
            let best = pairs.iter().rev().max_by_key(|&(_, &count)| count)?;
            (*best.1 >= least.max(1)).then_some(*best.0)
        });
        let Some(best) = best else { break };
        learned.push(best);
        for (word, _) in corpus.iter_mut().flatten() {
            let mut merged = Vec::with_capacity(word.len());
            let mut at = 0;
            while at < word.len() {
                let hit = at + 1 < word.len() && (word[at], word[at + 1]) == best;
                merged.push(if hit { token } else { word[at] });
                at += 1 + hit as usize;
            }
            *word = merged;
        }
    }
    (learned, corpus.iter().map(tokens).collect())
}

#[test]
fn random_groups_merge_as_a_recount_says() {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for heap in 0..40u64 {
        let measured = heap % 3 == 2;
        let training = 1 + heap % 4;
        let groups: Vec<Words> = (0..training << measured as u32)
            .map(|group| {
                let mut words: Words = (0..10 + random(40))
                    .map(|_| {
                        let len = 1 + random(12);
                        let weight = 1 + random(1 << (heap % 10));
                        let first = b'a' + (group % training) as u8;
                        ((0..len).map(|_| first + (random(6) * random(6) / 6) as u8).collect(), weight)
                    })
                    .collect();
                words.sort_by_key(|&(_, weight)| std::cmp::Reverse(weight));
                words
            })
            .collect();
        let after = if heap % 5 == 4 { 20 } else { 0 };
        let least = heap % 7 / 3;
        let want = naive(&groups, 100, least, measured, after);
        for parts in 1..=3 {
            assert_eq!(fast::<u16>(&groups, 100, least, measured, after, parts), want, "heap {heap}, {parts} parts");
        }
        assert_eq!(fast::<u32>(&groups, 100, least, measured, after, 1), want, "heap {heap}");
    }
}

#[test]
fn one_group_merges_as_plain_training() {
    let words: Words = vec![(b"aaabdaaabac".to_vec(), 3), (b"abcabcdabcde".to_vec(), 2), (b"a".to_vec(), 1)];
    let plan = plan(12, 0);
    let (corpus, _) = lay_out::<u16>(std::slice::from_ref(&words), &plan, 1);
    let plain = merge::train(corpus, &plan, &Progress::default()).expect("nothing to refuse");
    assert_eq!(fast::<u16>(&[words], 12, 0, false, 0, 1).0, plain.merges);
}
