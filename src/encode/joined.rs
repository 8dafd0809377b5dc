//! Which characters stand side by side in some token.
//!
//! Between two that do not, a text can be cut without any change: a merge across that place would make a token with both
//! sides of it. So whole texts fall into short words that the cache knows, and a long run of Chinese into a few
//! characters each. Cutting where a pair might be joined is never needed, so the table may say yes too often. (But not
//! for models of characters: there, an unknown character must be a word by itself.)

use super::isa::GOLDEN;
use super::vocabulary::character_len;
use crate::pretoken::block::BLOCK;
use std::collections::HashSet;

/// What SentencePiece writes for a space. It is the same as a space here.
pub const SPACE: char = '\u{2581}';

/// Pairs of neighbouring characters that some token joins.
pub struct Joined {
    /// For each byte at the end of a character the bytes that may follow it: pairs of ASCII characters, and the
    /// borders of characters inside tokens that begin or end in the middle of one of the two.
    bytes: Box<[[u64; 4]; 256]>,
    /// For each two ASCII characters, whether a text can be cut between them, precomputed from `bytes`.
    cuts: Box<[[bool; 128]; 128]>,
    /// Pairs of whole characters of which one at least is beyond ASCII; open addressing, 0 is empty.
    wide: Vec<u64>,
    /// The bit of each of these pairs: sixteen times as many bits as pairs, so of other pairs one in sixteen has a bit too.
    /// (The table of pairs is a megabyte, and most characters would read a line of it that is in no near cache.)
    bits: Vec<u64>,
    /// Whether a pair with a bit is looked up in the table, or is joined.
    exact: bool,
    /// A product shifted right by this is the number of a bit.
    shift: u32,
}

impl Joined {
    /// Of the tokens, which need not be valid UTF-8. Unless `exact`, it may join pairs that no token joins.
    pub fn new<'t>(tokens: impl Iterator<Item = &'t [u8]>, exact: bool) -> Joined {
        let mut bytes = Box::new([[0; 4]; 256]);
        let mut wide = HashSet::new();
        for token in tokens {
            // A border is before every byte that begins a character.
            for border in (1..token.len()).filter(|&at| token[at] & 0xc0 != 0x80) {
                let start = (0..border).rev().find(|&at| token[at] & 0xc0 != 0x80);
                let whole = start.filter(|&at| at + character_len(token[at]) == border);
                let complete = border + character_len(token[border]) <= token.len();
                match whole {
                    Some(start) if complete && (token[start] >= 0x80 || token[border] >= 0x80) => {
                        wide.insert(pair(code_point(&token[start..]).0, code_point(&token[border..]).0));
                    }
                    _ => {
                        bytes[usize::from(token[border - 1])][usize::from(token[border]) / 64] |=
                            1 << (token[border] % 64)
                    }
                }
            }
        }
        let count = (16 * wide.len()).next_power_of_two().max(64);
        let shift = 64 - count.trailing_zeros();
        let mut bits = vec![0; count / 64];
        let mut table = vec![0; count / 4];
        let mut pairs: Vec<u64> = wide.into_iter().collect();
        pairs.sort_unstable();
        for pair in pairs {
            let bit = place(pair, shift);
            bits[bit / 64] |= 1 << (bit % 64);
            let mut at = bit / 4;
            while table[at] != 0 {
                at = (at + 1) & (table.len() - 1);
            }
            table[at] = pair;
        }
        let mut cuts = Box::new([[false; 128]; 128]);
        for (left, cuts) in cuts.iter_mut().enumerate() {
            for (right, cut) in cuts.iter_mut().enumerate() {
                *cut = bytes[left][right / 64] >> (right % 64) & 1 == 0;
            }
        }
        Joined { bytes, cuts, wide: table, bits, exact, shift }
    }

    /// The first place after `at` and up to `most` where `text` can be cut. A character starts at `at`.
    #[inline(always)]
    pub fn end(&self, text: &[u8], at: usize, most: usize) -> usize {
        let (mut last, len) = code_point(&text[at..]);
        let mut end = at + len;
        while end < most {
            let byte = text[end];
            if last < 0x80 && byte < 0x80 {
                if !self.bytes(last as u8, byte) {
                    break;
                }
                (last, end) = (u32::from(byte), end + 1);
                continue;
            }
            let (next, len) = code_point(&text[end..]);
            if !self.bytes(text[end - 1], byte) && !self.wide(last, next) {
                break;
            }
            (last, end) = (next, end + len);
        }
        end
    }

    /// Whether a text can be cut between these two characters.
    #[inline(always)]
    pub fn is_cut(&self, left: u32, right: u32) -> bool {
        if left < 0x80 && right < 0x80 { !self.bytes(left as u8, right as u8) } else { !self.wide(left, right) }
    }

    /// All pairs of characters that some token joins.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u32)> {
        let ascii = (0..0x80u8).flat_map(|left| (0..0x80u8).map(move |right| (left, right)));
        let ascii = ascii.filter(|&(left, right)| self.bytes(left, right));
        ascii
            .map(|(left, right)| (left.into(), right.into()))
            .chain(self.wide.iter().filter(|&&pair| pair != 0).map(|pair| ((pair >> 32) as u32, *pair as u32)))
    }

    /// Bit p is set where a text that goes on with `block` can be cut before its byte p, as far as the block is ASCII.
    /// (Each byte is tested without a branch: `end` has one for every byte, and the last is always mispredicted.)
    #[inline(always)]
    pub fn starts(&self, block: &[u8; BLOCK]) -> u64 {
        let mut starts = 0;
        let mut beyond = 0;
        for p in 1..BLOCK {
            let (left, right) = (block[p - 1], block[p]);
            starts |= u64::from(self.cuts[usize::from(left & 0x7f)][usize::from(right & 0x7f)]) << p;
        }
        if !block.is_ascii() {
            for (p, &byte) in block.iter().enumerate() {
                beyond |= u64::from(byte >> 7) << p;
            }
        }
        // Up to the first byte beyond ASCII.
        starts & (beyond ^ beyond.wrapping_sub(1)) >> u32::from(beyond != 0)
    }

    #[inline(always)]
    fn bytes(&self, left: u8, right: u8) -> bool {
        self.bytes[usize::from(left)][usize::from(right) / 64] >> (right % 64) & 1 != 0
    }

    #[inline(always)]
    fn wide(&self, left: u32, right: u32) -> bool {
        let plain = |character: u32| if character == u32::from(SPACE) { u32::from(' ') } else { character };
        // U+2581 may be a space, and then the pair may be of ASCII.
        let (plain_left, plain_right) = (plain(left), plain(right));
        if plain_left < 0x80 && plain_right < 0x80 && self.bytes(plain_left as u8, plain_right as u8) {
            return true;
        }
        self.listed(pair(left, right))
            || (plain_left != left || plain_right != right) && self.listed(pair(plain_left, plain_right))
    }

    #[inline(always)]
    fn listed(&self, pair: u64) -> bool {
        let bit = place(pair, self.shift);
        self.bits[bit / 64] >> (bit % 64) & 1 != 0 && (!self.exact || self.in_table(pair, bit / 4))
    }

    #[inline(always)]
    fn in_table(&self, pair: u64, mut at: usize) -> bool {
        loop {
            match self.wide[at] {
                0 => return false,
                found if found == pair => return true,
                _ => at = (at + 1) & (self.wide.len() - 1),
            }
        }
    }
}

/// The first character of `text`, which is not empty and valid UTF-8, and its length.
#[inline(always)]
pub fn code_point(text: &[u8]) -> (u32, usize) {
    let first = text[0];
    let len = character_len(first);
    let next = |n: usize| u32::from(text.get(n).copied().unwrap_or(0) & 0x3f);
    let first = u32::from(first);
    let character = match len {
        1 => first,
        2 => (first & 0x1f) << 6 | next(1),
        3 => (first & 0x0f) << 12 | next(1) << 6 | next(2),
        _ => (first & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3),
    };
    (character, len)
}

#[inline(always)]
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[inline(always)]
fn place(pair: u64, shift: u32) -> usize {
    (pair.wrapping_mul(GOLDEN) >> shift) as usize
}
