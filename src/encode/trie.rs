//! Longest match: a double-array trie over the bytes of the tokens.
//!
//! In: tokens and a number for each, in two sets (WordPiece: those that start a word, those that continue one; BPE has
//! only one). Out: the longest token that a byte string starts with, one table lookup per byte.
//!
//! The child of a node for byte `c` is the cell `base ^ c`, and the cell says the byte it was reached by. No two nodes
//! share a base, so the byte alone proves that the cell belongs to the node, and a cell takes 8 bytes: 0.8 MB for 30,000
//! tokens.

use crate::error::{Error, Result};

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

/// Both sets of tokens in one table.
pub struct Trie {
    cells: Vec<Cell>,
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
        Ok((builder.finish(), roots[0], roots[1]))
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
    fn finish(mut self) -> Trie {
        let mut is_child = std::mem::take(&mut self.occupied);
        is_child[..2].fill(false);
        for cell in (0..self.cells.len()).filter(|&cell| !is_child[cell]) {
            let label = (0..=255).find(|&label: &u8| !self.used_bases[cell ^ usize::from(label)]);
            self.cells[cell].edge = u32::from(label.expect("fewer bases than cells"));
        }
        self.cells.shrink_to_fit();
        Trie { cells: self.cells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for alphabet in [2, 5, 256] {
            let mut words: Vec<Vec<u8>> =
                (0..3000).map(|_| (0..1 + below(7)).map(|_| below(alphabet) as u8).collect()).collect();
            words.extend((0..alphabet).map(|byte| vec![byte as u8]));
            words.sort();
            words.dedup();
            let (one, two): (Vec<_>, Vec<_>) =
                words.iter().enumerate().map(|(id, word)| (word.as_slice(), id as u32)).partition(|(_, id)| id % 3 > 0);
            let (trie, start, middle) = Trie::new(&one, &two).expect("a small vocabulary");
            for _ in 0..2000 {
                let text: Vec<u8> = (0..below(12)).map(|_| below(alphabet) as u8).collect();
                assert_eq!(trie.longest(start, &text), naive(&one, &text));
                assert_eq!(trie.longest(middle, &text), naive(&two, &text));
            }
        }
    }
}
