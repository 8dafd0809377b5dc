//! Words of any length -> symbols, in time that grows with their length.
//!
//! The encoding of a text is the only sequence of tokens in which every two neighbours stay apart: no merge across
//! their border would have come before the merges that made them. So it can be searched for from the left: take the
//! longest token that fits, go back to a shorter one where none does. A prefix has one encoding too, so a place that
//! was a dead end once is one for good, and the search visits every place at most once.
//!
//! That needs tokens that encode to themselves and merges that come after the merges of their parts. Vocabularies that
//! are not so are merged with a heap, in n log n steps.

use super::isa::{GOLDEN, Isa};
use super::pairs::NOBODY;
use super::trie::{Root, Trie};
use super::vocabulary::Symbols;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Long words, with tables that are built once there is enough of them.
#[derive(Default)]
pub struct Long {
    words: OnceLock<LongWords>,
    /// Bytes of long words so far.
    seen: AtomicUsize,
}

/// Bytes of long words that are merged with a heap before the tables for the search are built, which takes tens of
/// milliseconds.
const WORTH_TABLES: usize = 64 << 10;

impl Long {
    /// Gives the symbols of `word` to `out`. `units` are the symbols of its units.
    #[inline(always)]
    pub fn encode<I: Isa>(
        &self,
        isa: I,
        symbols: &Symbols,
        word: &[u8],
        units: impl Iterator<Item = u32>,
        scratch: &mut Scratch,
        mut out: impl FnMut(u32),
    ) {
        if word.len() <= MEDIUM {
            return by_scan(isa, symbols, units, out);
        }
        let enough = || self.seen.fetch_add(word.len(), Ordering::Relaxed) + word.len() > WORTH_TABLES;
        if self.words.get().is_none() && !enough() {
            return by_heap(symbols, units, &mut out);
        }
        let words = self.words.get_or_init(|| LongWords::new(symbols));
        match &words.trie {
            Some(trie) => {
                words.search(trie, symbols, word, scratch);
                scratch.symbols.iter().copied().for_each(out);
            }
            None => by_heap(symbols, units, &mut out),
        }
    }
}

/// Bytes of a word up to which the lowest rank is looked for among all of them, eight at a time.
const MEDIUM: usize = 512;
/// Bits for a place in such a word; what is left of 32 is for a symbol.
const PLACE_BITS: u32 = 11;

/// As `lockstep`, for one longer word.
#[inline(always)]
fn by_scan<I: Isa>(isa: I, symbols: &Symbols, units: impl Iterator<Item = u32>, out: impl FnMut(u32)) {
    let (mut parts, mut ranks) = ([NOBODY; MEDIUM], [u32::MAX; MEDIUM]);
    let (mut before, mut after) = ([0u16; MEDIUM], [0u16; MEDIUM]);
    let mut n = 0;
    for (part, unit) in parts.iter_mut().zip(units) {
        *part = unit;
        n += 1;
    }
    let rank = |left: u32, right: u32, place: usize| match symbols.pairs.get(left, right) {
        NOBODY => u32::MAX,
        merged => merged << PLACE_BITS | place as u32,
    };
    for place in 0..n {
        before[place] = place.saturating_sub(1) as u16;
        after[place] = place as u16 + 1;
        if place + 1 < n {
            ranks[place] = rank(parts[place], parts[place + 1], place);
        }
    }
    let lanes = n.next_multiple_of(8);
    loop {
        let least = isa.least(&ranks[..lanes]);
        if least == u32::MAX {
            break;
        }
        let (merged, place) = (least >> PLACE_BITS, (least & ((1 << PLACE_BITS) - 1)) as usize);
        let gone = usize::from(after[place]);
        let next = usize::from(after[gone]);
        parts[place] = merged;
        parts[gone] = NOBODY;
        ranks[gone] = u32::MAX;
        after[place] = next as u16;
        ranks[place] = u32::MAX;
        if next < n {
            before[next] = place as u16;
            ranks[place] = rank(merged, parts[next], place);
        }
        if place > 0 {
            let last = usize::from(before[place]);
            ranks[last] = rank(parts[last], merged, last);
        }
    }
    parts[..n].iter().copied().filter(|&part| part != NOBODY).for_each(out);
}

/// What the search from the left needs beyond the symbols.
struct LongWords {
    /// The tokens that encode to themselves.
    trie: Option<(Trie, Root)>,
    /// The longest token that is a proper prefix of each, or [`NOBODY`].
    shorter: Vec<u32>,
    lengths: Vec<u32>,
}

/// Buffers that calls share, and how much the search did.
#[derive(Default)]
pub struct Scratch {
    symbols: Vec<u32>,
    dead: Vec<u64>,
    /// Pairs of neighbours that were found to stay apart (bit 0 set) or not, by a hash of the pair.
    remembered: Vec<u64>,
    /// Candidates looked at, for a test that time is linear.
    pub steps: u64,
}

const REMEMBERED_BITS: u32 = 14;

impl LongWords {
    /// Of a finished vocabulary.
    fn new(symbols: &Symbols) -> LongWords {
        let count = symbols.len() as u32;
        let lengths = (0..count).map(|symbol| symbols.bytes(symbol).len() as u32).collect();
        let mut shorter = vec![NOBODY; count as usize];
        let ordered = (0..count).all(|symbol| {
            let (left, right) = symbols.halves[symbol as usize];
            left == NOBODY || left == symbol || left < symbol && right < symbol
        });
        if !ordered {
            return LongWords { trie: None, shorter, lengths };
        }
        let mut sorted: Vec<(&[u8], u32)> = (0..count)
            .filter(|&symbol| symbols.is_itself(symbol))
            .map(|symbol| (symbols.bytes(symbol), symbol))
            .collect();
        sorted.sort_unstable();
        let mut prefixes: Vec<(&[u8], u32)> = vec![];
        for &(bytes, symbol) in &sorted {
            while prefixes.last().is_some_and(|(prefix, _)| !bytes.starts_with(prefix)) {
                prefixes.pop();
            }
            shorter[symbol as usize] = prefixes.last().map_or(NOBODY, |&(_, symbol)| symbol);
            prefixes.push((bytes, symbol));
        }
        // A vocabulary that is too large for a trie is merged with a heap.
        let trie = Trie::new(&sorted, &[]).ok().map(|(trie, root, _)| (trie, root));
        LongWords { trie, shorter, lengths }
    }

    fn search(&self, (trie, root): &(Trie, Root), symbols: &Symbols, word: &[u8], scratch: &mut Scratch) {
        let longest = |text: &[u8]| trie.longest(*root, text).map_or(NOBODY, |(symbol, _)| symbol);
        let Scratch { symbols: found, dead, remembered, steps } = scratch;
        found.clear();
        dead.clear();
        dead.resize(word.len() / 64 + 1, 0);
        remembered.resize(1 << REMEMBERED_BITS, u64::MAX);
        let mut at = 0;
        let mut last = NOBODY;
        let mut next = longest(word);
        loop {
            *steps += 1;
            let end = at + self.lengths[next as usize] as usize;
            let open = dead[end / 64] >> (end % 64) & 1 == 0;
            if open && (last == NOBODY || stay_apart_remembered(symbols, last, next, remembered)) {
                found.push(next);
                if end == word.len() {
                    return;
                }
                at = end;
                last = next;
                next = longest(&word[at..]);
                continue;
            }
            next = self.shorter[next as usize];
            while next == NOBODY {
                // No token leads on from here.
                dead[at / 64] |= 1 << (at % 64);
                let back = found.pop().expect("every word has an encoding");
                at -= self.lengths[back as usize] as usize;
                last = found.last().copied().unwrap_or(NOBODY);
                next = self.shorter[back as usize];
            }
        }
    }
}

/// Takes back the later of the two merges that made `left` and `right`: the parts at the border before it, and the
/// rank below which a merge across the border would have come first. None if both are single units.
///
/// Of two equal symbols the right one was made later, and a merge of the same rank across the border, being further
/// left, would have come before it.
#[inline]
fn undo(symbols: &Symbols, left: u32, right: u32) -> Option<(u32, u32, u32)> {
    let (left_end, right_start) = (symbols.halves[left as usize].1, symbols.halves[right as usize].0);
    match (left_end == left, right_start == right) {
        (true, true) => None,
        (false, right_is_unit) if right_is_unit || left > right => Some((left_end, right, left)),
        _ => Some((left, right_start, right + 1)),
    }
}

/// Whether `left` and `right` stay apart in a text where both were made.
#[inline]
fn stay_apart(symbols: &Symbols, mut left: u32, mut right: u32) -> bool {
    let mut limit = u32::MAX;
    loop {
        let across = symbols.pairs.get(left, right);
        if across != NOBODY && across < limit {
            return false;
        }
        match undo(symbols, left, right) {
            None => return true,
            Some(parts) => (left, right, limit) = parts,
        }
    }
}

#[inline]
fn stay_apart_remembered(symbols: &Symbols, left: u32, right: u32, remembered: &mut [u64]) -> bool {
    let key = u64::from(left) << 32 | u64::from(right);
    let place = &mut remembered[(key.wrapping_mul(GOLDEN) >> (64 - REMEMBERED_BITS)) as usize];
    if *place >> 1 != key {
        *place = key << 1 | u64::from(stay_apart(symbols, left, right));
    }
    *place & 1 == 1
}

/// Merging as it is defined, with the pairs in a heap.
fn by_heap(symbols: &Symbols, units: impl Iterator<Item = u32>, out: &mut impl FnMut(u32)) {
    let mut parts: Vec<u32> = units.collect();
    let n = parts.len();
    let mut next: Vec<usize> = (1..=n).collect();
    let mut previous: Vec<usize> = (0..n).map(|at| at.wrapping_sub(1)).collect();
    let rank = |left: u32, right: u32| symbols.pairs.get(left, right);
    // The merged symbol, the place of its left part, and what stood there and after it when it was put in.
    let mut heap: BinaryHeap<Reverse<(u32, usize, u32, u32)>> = (0..n.saturating_sub(1))
        .filter_map(|at| {
            let merged = rank(parts[at], parts[at + 1]);
            (merged != NOBODY).then_some(Reverse((merged, at, parts[at], parts[at + 1])))
        })
        .collect();
    while let Some(Reverse((merged, at, left, right))) = heap.pop() {
        let after = next[at];
        if parts[at] != left || after >= n || parts[after] != right {
            continue; // one of the two was merged with its other neighbour
        }
        parts[at] = merged;
        parts[after] = NOBODY;
        next[at] = next[after];
        if next[at] < n {
            previous[next[at]] = at;
        }
        for (left, right) in [(previous[at], at), (at, next[at])] {
            if left < n && right < n {
                let merged = rank(parts[left], parts[right]);
                if merged != NOBODY {
                    heap.push(Reverse((merged, left, parts[left], parts[right])));
                }
            }
        }
    }
    parts.into_iter().filter(|&part| part != NOBODY).for_each(out);
}
