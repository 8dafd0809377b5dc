//! Words of any length -> symbols, in time that grows with their length.
//!
//! The encoding of a text is the only sequence of tokens in which every two neighbours stay apart: no merge across
//! their border would have come before the merges that made them. So it can be searched for from the left: take the
//! longest token that fits, go back to a shorter one where none does. A prefix has one encoding too, so a place that
//! was a dead end once is one for good, and the search visits every place at most once.
//!
//! That needs tokens that encode to themselves and merges that come after the merges of their parts. Vocabularies that
//! are not so are merged with a heap, in n log n steps.

use super::pairs::NOBODY;
use super::vocabulary::Symbols;
use super::isa::Portable;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
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
/// milliseconds. A ruler of eighty signs here and there does not pay for them.
const WORTH_TABLES: usize = 64 << 10;

impl Long {
    /// Gives the symbols of `word` to `out`. `units` are the symbols of its units.
    pub fn encode(
        &self,
        symbols: &Symbols,
        word: &[u8],
        units: impl Iterator<Item = u32>,
        scratch: &mut Scratch,
        mut out: impl FnMut(u32),
    ) {
        let enough = || self.seen.fetch_add(word.len(), Ordering::Relaxed) + word.len() > WORTH_TABLES;
        if self.words.get().is_none() && !enough() {
            return by_heap(symbols, units, &mut out);
        }
        let words = self.words.get_or_init(|| LongWords::new(symbols));
        if words.ordered {
            words.search(symbols, word, scratch);
            scratch.symbols.iter().copied().for_each(out);
        } else {
            by_heap(symbols, units, &mut out);
        }
    }
}

/// What the search from the left needs beyond the symbols.
struct LongWords {
    /// Whether the search from the left is exact for this vocabulary.
    ordered: bool,
    /// A double-array trie of the tokens that encode to themselves. A slot is: base of its children (24 bits), the byte
    /// that leads to it (8), symbol + 1 or 0 (24), and whether it is used (bit 63). The child of a slot for byte b is
    /// at base ^ b, if that slot has the byte b.
    trie: Vec<u64>,
    /// The longest token that is a proper prefix of each, or [`NOBODY`].
    shorter: Vec<u32>,
    lengths: Vec<u32>,
}

const USED: u64 = 1 << 63;

fn base(slot: u64) -> usize {
    (slot & 0xff_ffff) as usize
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
        let ordered = (0..count).all(|symbol| {
            let (left, right) = symbols.halves[symbol as usize];
            left == NOBODY || left == symbol || left < symbol && right < symbol
        });
        let lengths = (0..count).map(|symbol| symbols.bytes(symbol).len() as u32).collect();
        if !ordered {
            return LongWords { ordered, trie: vec![], shorter: vec![], lengths };
        }
        let mut sorted: Vec<u32> = (0..count).filter(|&symbol| symbols.is_itself(symbol)).collect();
        sorted.sort_unstable_by_key(|&symbol| symbols.bytes(symbol));
        let mut shorter = vec![NOBODY; count as usize];
        let mut prefixes: Vec<u32> = vec![];
        for &symbol in &sorted {
            let bytes = symbols.bytes(symbol);
            while prefixes.last().is_some_and(|&prefix| !bytes.starts_with(symbols.bytes(prefix))) {
                prefixes.pop();
            }
            shorter[symbol as usize] = prefixes.last().copied().unwrap_or(NOBODY);
            prefixes.push(symbol);
        }
        match trie(symbols, &sorted) {
            Some(trie) => LongWords { ordered, trie, shorter, lengths },
            None => LongWords { ordered: false, trie: vec![], shorter: vec![], lengths },
        }
    }

    fn search(&self, symbols: &Symbols, word: &[u8], scratch: &mut Scratch) {
        let Scratch { symbols: found, dead, remembered, steps } = scratch;
        found.clear();
        dead.clear();
        dead.resize(word.len() / 64 + 1, 0);
        remembered.resize(1 << REMEMBERED_BITS, u64::MAX);
        let mut at = 0;
        let mut last = NOBODY;
        let mut next = self.longest(word);
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
                next = self.longest(&word[at..]);
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

    /// The longest token that `text` begins with.
    #[inline]
    fn longest(&self, text: &[u8]) -> u32 {
        let mut best = 0;
        let mut at = 0;
        for &byte in text {
            let slot = self.trie[at ^ usize::from(byte)];
            if slot & (USED | 0xff << 24) != USED | u64::from(byte) << 24 {
                break;
            }
            let symbol = (slot >> 32) as u32 & 0xff_ffff;
            best = if symbol == 0 { best } else { symbol };
            at = base(slot);
            if at == 0 {
                break;
            }
        }
        best - 1
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
        let across = symbols.pairs.get(Portable, left, right);
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
    let place = &mut remembered[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - REMEMBERED_BITS)) as usize];
    if *place >> 1 != key {
        *place = key << 1 | u64::from(stay_apart(symbols, left, right));
    }
    *place & 1 == 1
}

/// The trie of `sorted` tokens; None if it would need more slots than a base can name.
fn trie(symbols: &Symbols, sorted: &[u32]) -> Option<Vec<u64>> {
    let bytes = |place: usize| symbols.bytes(sorted[place]);
    let mut slots = vec![0u64; 1 << 16];
    let mut base_taken = vec![false; 1 << 16];
    // The root has base 0: its children are slots 0 to 255.
    base_taken[0] = true;
    let mut free = 256;
    // Which slot, which of the sorted tokens pass through it, and how many of their bytes lead to it.
    let mut queue = VecDeque::from([(None, 0, sorted.len(), 0)]);
    while let Some((slot, from, to, depth)) = queue.pop_front() {
        let mut children: Vec<(u8, usize, usize)> = vec![];
        let mut start = from;
        while start < to {
            let byte = bytes(start)[depth];
            let stop = start + (start..to).take_while(|&place| bytes(place)[depth] == byte).count();
            children.push((byte, start, stop));
            start = stop;
        }
        let Some(&(first, ..)) = children.first() else { continue };
        let base = match slot {
            None => 0,
            Some(slot) => {
                while slots[free] & USED != 0 {
                    free += 1;
                    if free == slots.len() {
                        grow(&mut slots, &mut base_taken);
                    }
                }
                let mut at = free;
                let mut tried = 0;
                let base = loop {
                    let base = at ^ usize::from(first);
                    if (base | 255) >= slots.len() {
                        grow(&mut slots, &mut base_taken);
                    }
                    let fits = |&(byte, ..): &(u8, usize, usize)| slots[base ^ usize::from(byte)] & USED == 0;
                    if base > 255 && !base_taken[base] && children.iter().all(fits) {
                        break base;
                    }
                    at += 1;
                    tried += 1;
                };
                if tried > 64 {
                    free += tried / 8; // crowded: leave some holes behind
                }
                if base >= 1 << 24 {
                    return None;
                }
                slots[slot] |= base as u64;
                base_taken[base] = true;
                base
            }
        };
        for (byte, start, stop) in children {
            let whole = bytes(start).len() == depth + 1;
            let symbol = if whole { u64::from(sorted[start]) + 1 } else { 0 };
            let child = base ^ usize::from(byte);
            slots[child] = USED | u64::from(byte) << 24 | symbol << 32;
            queue.push_back((Some(child), start + usize::from(whole), stop, depth + 1));
        }
    }
    let last = slots.iter().rposition(|slot| slot & USED != 0).unwrap_or(0);
    slots.truncate((last | 255) + 1);
    Some(slots)
}

fn grow(slots: &mut Vec<u64>, base_taken: &mut Vec<bool>) {
    let more = slots.len() * 2;
    slots.resize(more, 0);
    base_taken.resize(more, false);
}

/// Merging as it is defined, with the pairs in a heap.
fn by_heap(symbols: &Symbols, units: impl Iterator<Item = u32>, out: &mut impl FnMut(u32)) {
    let mut parts: Vec<u32> = units.collect();
    let n = parts.len();
    let mut next: Vec<usize> = (1..=n).collect();
    let mut previous: Vec<usize> = (0..n).map(|at| at.wrapping_sub(1)).collect();
    let rank = |left: u32, right: u32| symbols.pairs.get(Portable, left, right);
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
