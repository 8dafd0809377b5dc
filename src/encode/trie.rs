//! Longest match: a double-array trie over the bytes of the tokens.
//!
//! In: tokens and a number for each, in two sets (WordPiece: those that start a word, those that continue one; BPE has
//! only one). Out: the longest token that a byte string starts with, one table lookup per byte.
//!
//! The child of a node for byte `c` is the cell `base ^ c`, and the cell says the byte it was reached by. No two nodes
//! share a base, so the byte alone proves that the cell belongs to the node, and a cell takes 8 bytes: 0.8 MB for 30,000
//! tokens.

use super::memory::touch;
use crate::error::{Error, Result};
use std::hint::select_unpredictable;

/// Cells in a block. `base ^ c` never leaves the block of `base`.
const BLOCK: usize = 256;

/// The value of a node that is not the end of a token.
const NONE: u32 = u32::MAX;

/// The base of a node without children. No cell was reached from it.
const LEAF: u32 = 0;

/// Vacant cells that are tried for a node before a new block is made. Searching all of them makes the construction
/// quadratic (200 ms instead of 20 for 30,000 tokens).
const TRIES: usize = 128;

/// A token and its id.
type Token<'t> = (&'t [u8], u32);

#[derive(Clone, Copy)]
struct Cell {
    /// The base of the node, times 256, plus the byte that leads to it.
    edge: u32,
    value: u32,
}

/// Where a search starts: one of the two sets of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Root(u32);

/// What a word is followed by. Valid UTF-8 never has this byte, so no match goes beyond it.
pub const PAD: u8 = 0xff;

/// A word among others, each followed by [`PAD`].
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub start: u32,
    pub end: u32,
    /// How many ids it has; None if no sequence of tokens spells it.
    pub ids: Option<u32>,
}

/// Words whose searches go in step, so that their memory accesses overlap.
const IN_STEP: usize = 8;

/// A search on its way through a word.
#[derive(Clone, Copy, Default)]
struct Search {
    at: u32,
    base: u32,
    /// The longest token so far, or [`NONE`], and where it ends; without one, where it would begin.
    value: u32,
    end: u32,
    /// Where its next id goes.
    out: u32,
    word: u32,
}

/// Both sets of tokens in one table.
pub struct Trie {
    cells: Vec<Cell>,
    /// Whether some token has a byte [`PAD`].
    has_pad: bool,
}

impl Trie {
    /// The trie of two sets of tokens, and their roots. Of equal tokens the last one counts; empty ones never match.
    pub fn new(first: &[Token], second: &[Token]) -> Result<(Trie, Root, Root)> {
        let mut builder = Builder { cells: vec![], occupied: vec![], used_bases: vec![], vacant: vec![] };
        builder.grow()?;
        // See `finish`.
        builder.occupied[..2].fill(true);
        builder.used_bases[LEAF as usize] = true;
        let roots = [builder.set(first)?, builder.set(second)?];
        let has_pad = first.iter().chain(second).any(|(token, _)| token.contains(&PAD));
        Ok((Trie { cells: builder.finish(), has_pad }, roots[0], roots[1]))
    }

    /// Reads all of it.
    pub fn touch(&self) {
        touch(&self.cells);
    }

    /// The id of the longest token that `bytes` starts with, and its length.
    #[inline]
    pub fn longest(&self, root: Root, bytes: &[u8]) -> Option<(u32, usize)> {
        let (mut value, mut len) = (NONE, 0);
        let mut base = root.0;
        for (at, &byte) in bytes.iter().enumerate() {
            let cell = self.cells[(base ^ u32::from(byte)) as usize];
            if cell.edge as u8 != byte {
                break;
            }
            if cell.value != NONE {
                (value, len) = (cell.value, at + 1);
            }
            base = cell.edge >> 8;
        }
        (len > 0).then_some((value, len))
    }

    /// Cuts words into tokens from the left, each the longest there is: first one of `first`, then those of `rest`. The
    /// ids of a word are written to `out` from its start on: there are no more of them than bytes.
    ///
    /// A step looks one byte up, and either takes it or ends a token there and begins the next one with two bytes, all
    /// without a branch; only the end of a word is one. The oracle is `longest`.
    pub fn cut(&self, first: &Starts, rest: &Starts, text: &[u8], words: &mut [Word], out: &mut [u32]) {
        assert!(!self.has_pad);
        // Two bytes are read at the end of a word.
        let end = text.len().saturating_sub(1);
        assert!(words.iter().all(|word| word.start <= word.end && text[..end].get(word.end as usize) == Some(&PAD)));
        assert!(out.len() >= text.len());
        let mut searches = [Search::default(); IN_STEP];
        let mut next = 0;
        let begin = |next: usize, words: &[Word]| {
            let start = words[next].start;
            let at = start as usize;
            let Start { base, value, taken, len } = first.get([text[at], text[at + 1]]);
            Search { at: start + taken, base, value, end: start + len, out: start, word: next as u32 }
        };
        let mut active = words.len().min(IN_STEP);
        while next < active {
            searches[next] = begin(next, words);
            next += 1;
        }
        while active > 0 {
            let mut k = 0;
            while k < active {
                let search = &mut searches[k];
                // SAFETY: `at` and `end` start in a word, and go on only over bytes that some token has, so never over a `PAD`,
                // of which there is one at the end of each word, with a byte after it; or `at` goes back to where it was. A
                // base is that of a node, and all cells of its block exist. There are at most as many ids as bytes of the
                // word before `end`.
                let (byte, cell, two) = unsafe {
                    *out.get_unchecked_mut(search.out as usize) = search.value;
                    let byte = *text.get_unchecked(search.at as usize);
                    let cell = *self.cells.get_unchecked((search.base ^ u32::from(byte)) as usize);
                    let end = search.end as usize;
                    (byte, cell, [*text.get_unchecked(end), *text.get_unchecked(end + 1)])
                };
                let takes = cell.edge as u8 == byte;
                // Not taken, and no token. (One comparison: a branch on the first alone is mispredicted half the time.)
                if u64::from(search.value.wrapping_add(1)) << 1 < u64::from(!takes) {
                    let word = &mut words[search.word as usize];
                    word.ids = (search.end == word.end).then_some(search.out - word.start);
                    if next < words.len() {
                        *search = begin(next, words);
                        next += 1;
                    } else {
                        active -= 1;
                        searches[k] = searches[active];
                    }
                    continue;
                }
                let ends = takes & (cell.value != NONE);
                let start = rest.get(two);
                search.out += u32::from(!takes);
                search.at = select_unpredictable(takes, search.at + 1, search.end + start.taken);
                search.base = select_unpredictable(takes, cell.edge >> 8, start.base);
                let value = select_unpredictable(ends, cell.value, search.value);
                search.value = select_unpredictable(takes, value, start.value);
                let end = select_unpredictable(ends, search.at, search.end);
                search.end = select_unpredictable(takes, end, search.end + start.len);
                k += 1;
            }
        }
    }

    /// Where searches from `root` are after two bytes.
    pub fn starts(&self, root: Root) -> Starts {
        let step = |base: u32, byte: u8| {
            Some(self.cells[(base ^ u32::from(byte)) as usize]).filter(|cell| cell.edge as u8 == byte)
        };
        let two = |bytes: usize| {
            let bytes = [(bytes >> 8) as u8, bytes as u8];
            let mut start = Start { base: LEAF, value: NONE, taken: 2, len: 0 };
            let mut base = root.0;
            for (at, &byte) in bytes.iter().enumerate() {
                let Some(cell) = step(base, byte) else { return start };
                base = cell.edge >> 8;
                if cell.value != NONE {
                    (start.value, start.len) = (cell.value, at as u32 + 1);
                }
            }
            Start { base, ..start }
        };
        Starts { two: (0..usize::from(THREE_BYTES) << 8).map(|bytes| two(bytes).pack()).collect(), root }
    }
}

/// A search after its first bytes: the node, the longest token so far, and how many bytes were looked at.
#[derive(Clone, Copy)]
struct Start {
    base: u32,
    value: u32,
    taken: u32,
    len: u32,
}

impl Start {
    fn pack(self) -> u64 {
        u64::from(self.base) | u64::from(self.len) << 24 | u64::from(self.value) << 32
    }
}

/// The least byte that begins a character of three.
const THREE_BYTES: u8 = 0xe0;

/// Where a search is after its first two bytes: two ASCII characters, or one of two bytes.
pub struct Starts {
    two: Vec<u64>,
    pub root: Root,
}

impl Starts {
    /// After these two; before the first, if it begins a longer character, or none.
    #[inline(always)]
    fn get(&self, [first, second]: [u8; 2]) -> Start {
        let short = first < THREE_BYTES;
        let packed = self.two[select_unpredictable(short, usize::from(first) << 8 | usize::from(second), 0)];
        Start {
            base: select_unpredictable(short, packed as u32 & 0xff_ffff, self.root.0),
            value: select_unpredictable(short, (packed >> 32) as u32, NONE),
            taken: u32::from(short) << 1,
            len: select_unpredictable(short, packed as u32 >> 24, 0),
        }
    }
}

struct Builder {
    cells: Vec<Cell>,
    occupied: Vec<bool>,
    used_bases: Vec<bool>,
    /// Every vacant cell, and some that are occupied by now; the newest last.
    vacant: Vec<u32>,
}

impl Builder {
    fn grow(&mut self) -> Result<()> {
        let len = self.cells.len() + BLOCK;
        if len > 1 << 24 {
            return Err(Error::Tokenizer(
                "the vocabulary has more than about 16 million distinct beginnings of tokens, more than the \
                 table can hold; use the `tokenizers` library for it"
                    .to_owned(),
            ));
        }
        self.cells.resize(len, Cell { edge: 0, value: NONE });
        self.occupied.resize(len, false);
        self.used_bases.resize(len, false);
        self.vacant.extend((len - BLOCK) as u32..len as u32);
        Ok(())
    }

    /// Adds one set of tokens.
    fn set(&mut self, tokens: &[Token]) -> Result<Root> {
        let mut tokens: Vec<Token> = tokens.iter().copied().filter(|(token, _)| !token.is_empty()).collect();
        // Stable, so equal tokens stay in the caller's order.
        tokens.sort_by_key(|&(token, _)| token);
        // Nodes whose children are still to be placed: the tokens below the node, and its depth and cell.
        let mut root = Root(LEAF);
        let mut open = vec![(tokens.as_slice(), 0, None::<usize>)];
        let mut labels = vec![];
        while let Some((below, depth, cell)) = open.pop() {
            // A token that ends here sorts before those that go on.
            let ending = below.iter().take_while(|(token, _)| token.len() == depth).count();
            let (ending, below) = below.split_at(ending);
            if let (Some(&(_, id)), Some(cell)) = (ending.last(), cell) {
                if id == NONE {
                    return Err(Error::Tokenizer(format!("id {id} is too large")));
                }
                self.cells[cell].value = id;
            }
            if below.is_empty() {
                continue;
            }
            let groups: Vec<&[Token]> = below.chunk_by(|(a, _), (b, _)| a[depth] == b[depth]).collect();
            labels.clear();
            labels.extend(groups.iter().map(|group| group[0].0[depth]));
            let base = self.place(&labels)?;
            match cell {
                Some(cell) => self.cells[cell].edge |= base << 8,
                None => root = Root(base),
            }
            for (group, &label) in groups.into_iter().zip(&labels) {
                open.push((group, depth + 1, Some((base ^ u32::from(label)) as usize)));
            }
        }
        Ok(root)
    }

    /// Takes a base that no node has, such that the cells of all `labels` are vacant, and occupies them.
    fn place(&mut self, labels: &[u8]) -> Result<u32> {
        let mut found = None;
        let (mut at, mut tries) = (self.vacant.len(), 0);
        while found.is_none() && at > 0 && tries < TRIES {
            at -= 1;
            let cell = self.vacant[at] as usize;
            if self.occupied[cell] {
                // The last one, which takes its place, has been looked at.
                self.vacant.swap_remove(at);
                continue;
            }
            tries += 1;
            let base = cell ^ usize::from(labels[0]);
            let fits = |&label: &u8| !self.occupied[base ^ usize::from(label)];
            found = (!self.used_bases[base] && labels.iter().all(fits)).then_some(base);
        }
        let base = match found {
            Some(base) => base,
            None => {
                let base = self.cells.len();
                self.grow()?;
                base
            }
        };
        self.used_bases[base] = true;
        for &label in labels {
            let cell = base ^ usize::from(label);
            self.occupied[cell] = true;
            self.cells[cell].edge = u32::from(label);
        }
        Ok(base as u32)
    }

    /// Gives every cell that is nobody's child a byte by which no node reaches it.
    ///
    /// There is one: a base has at least one child, in its own block, and no child has two parents. So a block with a
    /// cell that is no child has fewer than 256 bases in use. (`LEAF` has no child, but the first block has two such
    /// cells.)
    fn finish(mut self) -> Vec<Cell> {
        let mut is_child = std::mem::take(&mut self.occupied);
        is_child[..2].fill(false);
        for cell in (0..self.cells.len()).filter(|&cell| !is_child[cell]) {
            let label = (0..=255).find(|&label: &u8| !self.used_bases[cell ^ usize::from(label)]);
            self.cells[cell].edge = u32::from(label.expect("fewer bases than cells"));
        }
        self.cells.shrink_to_fit();
        self.cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn naive(tokens: &[(&[u8], u32)], bytes: &[u8]) -> Option<(u32, usize)> {
        let found = tokens.iter().filter(|(token, _)| !token.is_empty() && bytes.starts_with(token));
        found.max_by_key(|(token, _)| token.len()).map(|&(token, id)| (id, token.len()))
    }

    #[test]
    fn the_longest_token_is_found_in_either_set() {
        let first: [(&[u8], u32); 6] = [(b"a", 1), (b"abc", 2), (b"b", 3), (b"", 4), (b"b", 5), (b"\0\xff", 6)];
        let second: [(&[u8], u32); 2] = [(b"abcd", 7), (b"\0", 8)];
        let (trie, start, middle) = Trie::new(&first, &second).expect("a small vocabulary");
        for word in ["abd", "abcd", "", "c", "b", "\0", "\0a", "aaaa"] {
            assert_eq!(trie.longest(start, word.as_bytes()), naive(&first, word.as_bytes()), "{word}");
            assert_eq!(trie.longest(middle, word.as_bytes()), naive(&second, word.as_bytes()), "{word}");
        }
        assert_eq!(trie.longest(start, b"\0\xff\xff"), Some((6, 2)));
        let (trie, start, middle) = Trie::new(&[], &[]).expect("nothing");
        assert_eq!(trie.longest(start, b"a").or(trie.longest(middle, b"a")), None);
    }

    #[test]
    fn random_tokens_over_all_bytes_and_over_few() {
        let mut random = Random(1);
        let mut below = |n: usize| random.below(n);
        for alphabet in [2, 5, 250, 256] {
            let mut words: Vec<Vec<u8>> =
                (0..3000).map(|_| (0..1 + below(7)).map(|_| below(alphabet) as u8).collect()).collect();
            words.extend((0..alphabet).map(|byte| vec![byte as u8]));
            words.sort();
            words.dedup();
            let (one, two): (Vec<_>, Vec<_>) =
                words.iter().enumerate().map(|(id, word)| (word.as_slice(), id as u32)).partition(|(_, id)| id % 3 > 0);
            let (trie, start, middle) = Trie::new(&one, &two).expect("a small vocabulary");
            let (mut texts, mut padded, mut words) = (vec![], vec![], vec![]);
            for _ in 0..2000 {
                let text: Vec<u8> = (0..below(12)).map(|_| below(alphabet) as u8).collect();
                assert_eq!(trie.longest(start, &text), naive(&one, &text));
                assert_eq!(trie.longest(middle, &text), naive(&two, &text));
                let from = padded.len();
                padded.extend_from_slice(&text);
                words.push(Word { start: from as u32, end: padded.len() as u32, ids: None });
                padded.push(PAD);
                texts.push(text);
            }
            if alphabet > usize::from(PAD) {
                continue;
            }
            padded.push(0);
            let (first, rest) = (trie.starts(start), trie.starts(middle));
            // More words than go in step, and fewer.
            for count in [2000, 3] {
                let mut out = vec![0; padded.len()];
                trie.cut(&first, &rest, &padded, &mut words[..count], &mut out);
                for (text, word) in texts.iter().zip(&words[..count]) {
                    let (mut ids, mut at) = (Some(vec![]), 0);
                    while let Some(found) = ids.as_mut().filter(|_| at < text.len()) {
                        match trie.longest(if at == 0 { start } else { middle }, &text[at..]) {
                            Some((id, len)) => (at, ()) = (at + len, found.push(id)),
                            None => ids = None,
                        }
                    }
                    let got = word.ids.map(|count| out[word.start as usize..][..count as usize].to_vec());
                    assert_eq!(got, ids, "{text:?}");
                }
            }
        }
    }
}
