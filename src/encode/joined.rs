//! Which characters stand side by side in some token.
//!
//! Between two that do not, a text can be cut without any change: a merge across that place would make a token with both
//! sides of it. So whole texts fall into short words that the cache knows, and a long run of Chinese into a few
//! characters each. Cutting where a pair might be joined is never needed, so the table may say yes too often. (But not
//! for models of characters: there, an unknown character must be a word by itself.)

use super::isa::Isa;
use super::vocabulary::character_len;
use crate::pretoken::block::BLOCK;
use crate::pretoken::wide::Characters;
use std::collections::HashSet;

/// What SentencePiece writes for a space. It is the same as a space here.
pub const SPACE: char = '\u{2581}';

/// Pairs of neighbouring characters that some token joins.
pub struct Joined {
    /// For each byte at the end of a character the bytes that may follow it: pairs of ASCII characters, and the
    /// borders of characters inside tokens that begin or end in the middle of one of the two.
    bytes: Box<[[u32; 8]; 256]>,
    /// For each two ASCII characters, whether a text can be cut between them, precomputed from `bytes`.
    cuts: Box<[[bool; 128]; 128]>,
    /// Pairs of whole characters of which one at least is beyond ASCII; open addressing, 0 is empty.
    wide: Vec<u64>,
    /// The bit of each of these pairs: sixteen times as many bits as pairs, so of other pairs one in sixteen has a bit too.
    /// (The table of pairs is a megabyte, and most characters would read a line of it that is in no near cache.)
    bits: Vec<u32>,
    /// Whether a pair with a bit is looked up in the table, or is joined.
    exact: bool,
    /// A product shifted right by this is the number of a bit.
    shift: u32,
    /// Characters before and after which a text is never cut.
    edges: Option<Edges>,
}

/// The first and the last characters of tokens that only a whole word can be. A part of a word must not be taken for
/// such a word: it is not, if it neither begins nor ends with a cut.
#[derive(Default)]
struct Edges {
    first: Vec<u64>,
    last: Vec<u64>,
}

impl Edges {
    fn add(&mut self, token: &str) {
        for (bits, character) in [(&mut self.first, token.chars().next()), (&mut self.last, token.chars().next_back())]
        {
            let Some(character) = character.map(|character| character as usize) else { continue };
            bits.resize(bits.len().max(character / 64 + 1), 0);
            bits[character / 64] |= 1 << (character % 64);
        }
    }

    /// Whether there must be no cut between these characters.
    #[inline(always)]
    fn forbid(&self, left: u32, right: u32) -> bool {
        let has = |bits: &[u64], character: u32| {
            bits.get(character as usize / 64).is_some_and(|word| word >> (character % 64) & 1 != 0)
        };
        has(&self.last, left) || has(&self.first, right)
    }
}

impl Joined {
    /// Of the tokens, which need not be valid UTF-8. Unless `exact`, it may join pairs that no token joins. `words` are
    /// those that only a whole word can be.
    pub fn new<'t>(
        tokens: impl Iterator<Item = &'t [u8]>,
        exact: bool,
        words: impl Iterator<Item = &'t [u8]>,
    ) -> Joined {
        let mut edges = None;
        // A part is made of whole characters, so it is no token that is not.
        for word in words.filter_map(|word| std::str::from_utf8(word).ok()) {
            edges.get_or_insert_with(Edges::default).add(word);
        }
        let mut bytes = Box::new([[0u32; 8]; 256]);
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
                        bytes[usize::from(token[border - 1])][usize::from(token[border]) / 32] |=
                            1 << (token[border] % 32)
                    }
                }
            }
        }
        let count = (16 * wide.len()).next_power_of_two().max(64);
        let shift = 32 - count.trailing_zeros();
        let mut bits = vec![0; count / 32];
        let mut table = vec![0; count / 4];
        let mut pairs: Vec<u64> = wide.into_iter().collect();
        pairs.sort_unstable();
        for pair in pairs {
            let bit = place(pair, shift);
            bits[bit / 32] |= 1 << (bit % 32);
            let mut at = bit / 4;
            while table[at] != 0 {
                at = (at + 1) & (table.len() - 1);
            }
            table[at] = pair;
        }
        let mut cuts = Box::new([[false; 128]; 128]);
        for (left, cuts) in cuts.iter_mut().enumerate() {
            for (right, cut) in cuts.iter_mut().enumerate() {
                *cut = bytes[left][right / 32] >> (right % 32) & 1 == 0;
            }
        }
        Joined { bytes, cuts, wide: table, bits, exact, shift, edges }
    }

    /// The first place after `at` and up to `most` where `text` can be cut. A character starts at `at`.
    #[inline(always)]
    pub fn end(&self, text: &[u8], at: usize, most: usize) -> usize {
        let (mut last, len) = code_point(&text[at..]);
        let mut end = at + len;
        while end < most {
            let byte = text[end];
            if last < 0x80 && byte < 0x80 {
                if !self.bytes(last as u8, byte) && !self.forbids(last, u32::from(byte)) {
                    break;
                }
                (last, end) = (u32::from(byte), end + 1);
                continue;
            }
            let (next, len) = code_point(&text[end..]);
            if !self.bytes(text[end - 1], byte) && !self.wide(last, next) && !self.forbids(last, next) {
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

    /// Bit p is set where a text can be cut before character p of a block, if that one or the one before it is beyond
    /// ASCII.
    #[inline(always)]
    pub fn wide_starts<I: Isa>(&self, isa: I, characters: &Characters) -> u64 {
        let mut asked = (characters.wide | characters.wide << 1) & !1;
        if characters.known < 64 {
            asked &= (1 << characters.known) - 1;
        }
        let mut cuts = if asked.count_ones() >= I::CUTS {
            isa.cuts(self, characters, asked)
        } else {
            self.cuts(characters, asked)
        };
        if let Some(edges) = &self.edges {
            let mut left = cuts;
            while left != 0 {
                let p = left.trailing_zeros() as usize;
                let forbidden = edges.forbid(characters.code_points[p - 1], characters.code_points[p]);
                cuts ^= u64::from(forbidden) << p;
                left &= left - 1;
            }
        }
        cuts
    }

    #[inline(always)]
    fn forbids(&self, left: u32, right: u32) -> bool {
        self.edges.as_ref().is_some_and(|edges| edges.forbid(left, right))
    }

    /// The bits of `asked` that are no pair.
    #[inline(always)]
    pub fn cuts(&self, characters: &Characters, asked: u64) -> u64 {
        let Characters { code_points, firsts, .. } = characters;
        let (mut left, mut cuts) = (asked, 0);
        while left != 0 {
            let p = left.trailing_zeros() as usize;
            let (that, this) = (code_points[p - 1], code_points[p]);
            let last = if that < 0x80 { that as u8 } else { 0x80 | that as u8 & 0x3f };
            let joined = self.bytes(last, firsts[p]) | self.listed(pair(that, this));
            cuts |= u64::from(!joined) << p;
            left &= left - 1;
        }
        cuts
    }

    /// The same for sixteen pairs at once.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub unsafe fn cuts_avx512(&self, characters: &Characters, asked: u64) -> u64 {
        use std::arch::x86_64::*;
        debug_assert!(!self.exact);
        let mut joined = 0;
        // SAFETY: the caller says that the instructions are there. Loads are of sixteen of 64. A place has as many bits as the
        // table; the other index is below 2^16, as many bits as there are pairs of bytes.
        unsafe {
            let mut before = _mm512_setzero_si512();
            for group in 0..characters.known.div_ceil(16) as usize {
                let this = _mm512_loadu_si512(characters.code_points.as_ptr().add(16 * group).cast());
                let that = _mm512_alignr_epi32::<15>(this, before);
                before = this;
                let asked = (asked >> (16 * group)) as u16;
                let hash = _mm512_add_epi32(
                    _mm512_mullo_epi32(that, _mm512_set1_epi32(FACTORS[0] as i32)),
                    _mm512_mullo_epi32(this, _mm512_set1_epi32(FACTORS[1] as i32)),
                );
                let bit = _mm512_srl_epi32(hash, _mm_cvtsi32_si128(self.shift as i32));
                let listed = bits_at(asked, self.bits.as_ptr(), bit);
                let ascii = _mm512_cmplt_epu32_mask(that, _mm512_set1_epi32(0x80));
                let last = _mm512_and_si512(that, _mm512_set1_epi32(0x3f));
                let last = _mm512_or_si512(last, _mm512_set1_epi32(0x80));
                let last = _mm512_mask_mov_epi32(last, ascii, that);
                let first = _mm_loadu_si128(characters.firsts.as_ptr().add(16 * group).cast());
                let both = _mm512_or_si512(_mm512_slli_epi32::<8>(last), _mm512_cvtepu8_epi32(first));
                let parts = bits_at(asked, self.bytes.as_ptr().cast(), both);
                let some = _mm512_test_epi32_mask(_mm512_or_si512(listed, parts), _mm512_set1_epi32(1));
                joined |= u64::from(some) << (16 * group);
            }
        }
        asked & !joined
    }

    #[inline(always)]
    fn bytes(&self, left: u8, right: u8) -> bool {
        self.bytes[usize::from(left)][usize::from(right) / 32] >> (right % 32) & 1 != 0
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
        self.bits[bit / 32] >> (bit % 32) & 1 != 0 && (!self.exact || self.in_table(pair, bit / 4))
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

/// The bits of these numbers, each the lowest of its lane; other lanes are 0 where nothing is asked.
///
/// # Safety
/// The processor has AVX-512, and the table these bits.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn bits_at(
    asked: std::arch::x86_64::__mmask16,
    table: *const u32,
    bit: std::arch::x86_64::__m512i,
) -> std::arch::x86_64::__m512i {
    use std::arch::x86_64::*;
    // SAFETY: as above.
    unsafe {
        let word = _mm512_srli_epi32::<5>(bit);
        let word = _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), asked, word, table.cast());
        _mm512_srlv_epi32(word, _mm512_and_si512(bit, _mm512_set1_epi32(31)))
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

/// What the two characters of a pair are multiplied with.
const FACTORS: [u32; 2] = [0x9e37_79b1, 0x85eb_ca77];

/// The number of a pair's bit. (In 32 bits, so that sixteen are found at once.)
#[inline(always)]
fn place(pair: u64, shift: u32) -> usize {
    let [left, right] = [(pair >> 32) as u32, pair as u32];
    (left.wrapping_mul(FACTORS[0]).wrapping_add(right.wrapping_mul(FACTORS[1])) >> shift) as usize
}
