//! Where the raw words of a text end: one at a time, or for 64 bytes at once.
//!
//! In: a text and a position at which a word starts. Out: its end, or a bit wherever a further word starts.
//! A word starts at p if the character before p is not white space, and either that character stands alone
//! (punctuation, an ideograph) or the one at p does or is white space. And of white space in a run the last one starts a
//! word: so the same word after an indent is the same to the cache, and not longer. Three neighbours decide, and no
//! state goes from block to block. A test compares the two ways.

use super::WordPiece;
use super::classes::{CJK, PUNCTUATION, WHITE};
use crate::encode::normalize::decode;

/// Bytes in a block: one for each bit of a word.
pub const BLOCK: usize = 64;

/// Characters that are words by themselves.
const ALONE: u8 = PUNCTUATION | CJK;

impl WordPiece {
    /// The end of the raw word that starts at `at`, which is inside the text. The text is valid UTF-8.
    #[inline]
    pub fn end(&self, text: &[u8], at: usize) -> usize {
        let (mut class, len) = self.class(text, at);
        let mut at = at + len;
        if class & WHITE != 0 {
            // A run up to its last one, or that one with what comes after it.
            let (mut next, mut len) = self.class(text, at);
            let mut last = None;
            while next & WHITE != 0 {
                last = Some(at);
                at += len;
                (next, len) = self.class(text, at);
            }
            if let Some(last) = last {
                return last;
            }
            (class, at) = (next, at + len);
        }
        if class & ALONE != 0 {
            return at;
        }
        loop {
            let (class, len) = self.class(text, at);
            if class & (WHITE | ALONE) != 0 || len == 0 {
                return at;
            }
            at += len;
        }
    }

    /// The flags of the character at `at` and its length; nothing at the end of the text.
    #[inline(always)]
    fn class(&self, text: &[u8], at: usize) -> (u8, usize) {
        let Some(&first) = text.get(at) else { return (0, 0) };
        if first < 0x80 {
            return (self.classes[usize::from(first)], 1);
        }
        let (code_point, len) = decode(text, at);
        (self.classes[code_point], len)
    }

    /// Bit p is set where a word certainly starts p bytes after the start of the block; a word starts at byte 0 too,
    /// but bit 0 is clear. No bit at all means: ask `end`. Words between the first and the last bit are complete.
    #[inline(always)]
    pub fn starts(&self, block: &[u8; BLOCK]) -> u64 {
        let Masks { white, alone, unknown } =
            if self.clean { Masks::new::<true>(block) } else { Masks::new::<false>(block) };
        let starts = !(white << 1) & (white | alone | alone << 1);
        // Up to the first byte whose class is not known; after punctuation a word starts there, whatever it is.
        let first_unknown = unknown & unknown.wrapping_neg();
        let known = first_unknown.wrapping_sub(1);
        // The last of a run, where it is known what follows it.
        let last_white = white & white << 1 & !(white >> 1) & known >> 1;
        (starts & known | last_white) & !1 | alone << 1 & first_unknown
    }

    /// Calls `each` with every raw word of `text` in order; concatenated they are `text`.
    #[cfg(test)]
    pub fn for_each<'t>(&self, text: &'t str, mut each: impl FnMut(&'t [u8])) {
        let bytes = text.as_bytes();
        let mut at = 0;
        let (mut one_by_one_until, mut patience) = (0, BLOCK);
        while at < bytes.len() {
            if at >= one_by_one_until {
                if let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
                    let mut starts = self.starts(block);
                    if starts != 0 {
                        let base = at;
                        patience = BLOCK;
                        while starts != 0 {
                            let start = base + starts.trailing_zeros() as usize;
                            each(&bytes[at..start]);
                            at = start;
                            starts &= starts - 1;
                        }
                        continue;
                    }
                }
                // As in `pretoken::fast`: where one block gave nothing, the next would not either.
                one_by_one_until = at + patience;
                patience = (2 * patience).min(16 * BLOCK);
            }
            let end = self.end(bytes, at);
            each(&bytes[at..end]);
            at = end;
        }
    }
}

/// The classes of 64 bytes.
///
/// Letters of two bytes are known by their first: U+00C0 to U+033F (lead bytes C3 to CC: Latin) and U+0400 to U+053F
/// (D0 to D4: Cyrillic) hold nothing that cuts, so European text stays here. All other lead bytes are unknown.
#[derive(Debug, PartialEq, Eq)]
struct Masks {
    /// ASCII white space.
    white: u64,
    /// ASCII punctuation.
    alone: u64,
    /// Lead bytes of characters that need the table.
    unknown: u64,
}

impl Masks {
    const EMPTY: Masks = Masks { white: 0, alone: 0, unknown: 0 };

    /// `CLEAN`: the cleaner deletes `\x0b` and `\x0c`, so they are no white space.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn new<const CLEAN: bool>(bytes: &[u8; BLOCK]) -> Masks {
        use std::arch::x86_64::*;
        let mut masks = Masks::EMPTY;
        for at in (0..BLOCK).step_by(16) {
            // SAFETY: SSE2 is part of every x86-64; the 16 bytes at `at` lie inside `bytes`; loadu needs no alignment.
            unsafe {
                let x = _mm_loadu_si128(bytes.as_ptr().add(at).cast());
                let bits = |lanes| u64::from(_mm_movemask_epi8(lanes) as u16) << at;
                let is = |byte: u8| _mm_cmpeq_epi8(x, _mm_set1_epi8(byte as i8));
                // byte - low <= high - low, unsigned: true where the smaller of the two is the left one.
                let within = |x, low: u8, high: u8| {
                    let above = _mm_sub_epi8(x, _mm_set1_epi8(low as i8));
                    _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8((high - low) as i8)), above)
                };
                let controls =
                    if CLEAN { _mm_or_si128(within(x, b'\t', b'\n'), is(b'\r')) } else { within(x, b'\t', b'\r') };
                masks.white |= bits(_mm_or_si128(is(b' '), controls));
                let letter = within(_mm_or_si128(x, _mm_set1_epi8(0x20)), b'a', b'z');
                let word = _mm_or_si128(letter, within(x, b'0', b'9'));
                masks.alone |= bits(_mm_andnot_si128(word, within(x, b'!', b'~')));
                let two_bytes = _mm_or_si128(is(0xc2), within(x, 0xcd, 0xcf));
                masks.unknown |= bits(_mm_or_si128(two_bytes, within(x, 0xd5, 0xff)));
            }
        }
        masks
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn new<const CLEAN: bool>(bytes: &[u8; BLOCK]) -> Masks {
        Masks::portable::<CLEAN>(bytes)
    }

    /// The same on any machine.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn portable<const CLEAN: bool>(bytes: &[u8; BLOCK]) -> Masks {
        let mut masks = Masks::EMPTY;
        for (at, byte) in bytes.iter().enumerate() {
            let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r') || !CLEAN && matches!(byte, 0x0b | 0x0c);
            masks.white |= u64::from(white) << at;
            masks.alone |= u64::from(byte.is_ascii_punctuation()) << at;
            masks.unknown |= u64::from(matches!(byte, 0xc2 | 0xcd..=0xcf | 0xd5..)) << at;
        }
        masks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_classify_a_block_agree_on_every_byte_in_every_place() {
        for byte in 0..=255 {
            for place in 0..BLOCK {
                let mut bytes: [u8; BLOCK] = std::array::from_fn(|at| (at as u8).wrapping_mul(37) & 0x7f);
                bytes[place] = byte;
                assert_eq!(Masks::new::<true>(&bytes), Masks::portable::<true>(&bytes), "byte {byte:#x} at {place}");
                assert_eq!(Masks::new::<false>(&bytes), Masks::portable::<false>(&bytes), "byte {byte:#x} at {place}");
            }
        }
    }
}
