//! Where the raw words of a text end: one at a time, or for 64 bytes at once.
//!
//! In: a text and a position at which a word starts. Out: its end, or a bit wherever a further word starts.
//! A word starts at p if the character before p is not white space, and either that character stands alone
//! (punctuation, an ideograph) or the one at p does or is white space. And of white space in a run the last one starts a
//! word: so the same word after an indent is the same to the cache, and not longer. Three neighbours decide, and no
//! state goes from block to block. A test compares the two ways.

use super::WordPiece;
use super::classes::{CJK, PUNCTUATION, WHITE};
use crate::encode::isa::{Isa, WithIsa};
use crate::pretoken::block::BLOCK;
use crate::pretoken::classes::decode;
use crate::pretoken::wide::Characters;

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
    pub fn starts<I: Isa>(&self, isa: I, block: &[u8; BLOCK], characters: &mut Characters) -> u64 {
        let halves = if self.clean { &HALVES } else { &HALVES_UNCLEAN };
        let [white, alone, unknown] = isa.classify(block, halves, KINDS, UNKNOWN_FROM);
        if I::WIDE && unknown != 0 {
            return isa.call(WideStarts(self, block, characters));
        }
        let starts = !(white << 1) & (white | alone | alone << 1);
        // Up to the first byte whose class is not known; after punctuation a word starts there, whatever it is.
        let first_unknown = unknown & unknown.wrapping_neg();
        let known = first_unknown.wrapping_sub(1);
        // The last of a run, where it is known what follows it.
        let last_white = white & white << 1 & !(white >> 1) & known >> 1;
        (starts & known | last_white) & !1 | alone << 1 & first_unknown
    }
}

/// The same by the class of each character, up to the first ideograph: these go in runs.
struct WideStarts<'a>(&'a WordPiece, &'a [u8; BLOCK], &'a mut Characters);

impl WithIsa for WideStarts<'_> {
    type Out = u64;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> u64 {
        let WideStarts(model, block, characters) = self;
        isa.decode(block, characters);
        let known = characters.known as usize;
        let mut classes = [0; BLOCK];
        let (code_points, _) = characters.code_points.as_chunks::<16>();
        let (found, _) = classes.as_chunks_mut::<16>();
        for (code_points, found) in code_points.iter().zip(found).take(known.div_ceil(16)) {
            for (&code_point, class) in code_points.iter().zip(found) {
                *class = model.classes[code_point as usize];
            }
        }
        let white = isa.with_bits(&classes, WHITE);
        let alone = isa.with_bits(&classes, ALONE);
        let ideographs = isa.with_bits(&classes, CJK);
        let starts = !(white << 1) & (white | alone | alone << 1);
        // The last of a run, where it is known what follows it.
        let last_white = white & white << 1 & !(white >> 1);
        let known = if known < BLOCK { (1 << known) - 1 } else { !0 } & (ideographs ^ ideographs.wrapping_sub(1));
        isa.spread((starts & known | last_white & known >> 1) & !1, characters.chars)
    }
}

/// The sets of bytes that a block is searched for, each with a bit of its own in the tables.
///
/// Letters of two bytes are recognized by their lead byte: U+00C0 to U+033F (C3 to CC: Latin) and U+0400 to U+053F (D0 to
/// D4: Cyrillic) hold nothing that cuts, so European text stays in blocks. All other lead bytes are unknown: they need
/// the table of classes. So does 7F, which is in a set of punctuation only because of its two halves.
const SETS: [&[u8]; 8] =
    [b" ", b"\t\n\r", b"!\"#$%&'()*+,-./", b":;<=>?", b"@`", b"[\\]^_{|}~\x7f", b"\xc2\xcd\xce\xcf", b"\x7f"];
/// Which of the sets are white space, punctuation, and unknown.
const KINDS: [u8; 3] = [0b11, 0b11_1100, 0b1100_0000];
const UNKNOWN_FROM: u8 = 0xd5;

/// For each low half and each high half of a byte the sets that have such a byte: a byte is in those that both have.
const HALVES: [[u8; 16]; 2] = {
    let mut halves = [[0; 16]; 2];
    let mut set = 0;
    while set < SETS.len() {
        let mut at = 0;
        while at < SETS[set].len() {
            let byte = SETS[set][at];
            halves[0][(byte & 15) as usize] |= 1 << set;
            halves[1][(byte >> 4) as usize] |= 1 << set;
            at += 1;
        }
        set += 1;
    }
    halves
};

/// Without cleaning, `\x0b` and `\x0c` are white space too.
const HALVES_UNCLEAN: [[u8; 16]; 2] = {
    let mut halves = HALVES;
    halves[0][0xb] |= 0b10;
    halves[0][0xc] |= 0b10;
    halves
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::isa::{Instructions, Portable, with_isa};

    struct Classify<'a>(&'a [u8; BLOCK], &'a [[u8; 16]; 2]);
    impl WithIsa for Classify<'_> {
        type Out = [u64; 3];
        fn run<I: Isa>(self, isa: I) -> [u64; 3] {
            isa.classify(self.0, self.1, KINDS, UNKNOWN_FROM)
        }
    }

    #[test]
    fn every_byte_in_every_place_has_its_class() {
        for byte in 0..=255 {
            for place in 0..BLOCK {
                let mut bytes: [u8; BLOCK] = std::array::from_fn(|at| (at as u8).wrapping_mul(37) & 0x7f);
                bytes[place] = byte;
                for (halves, clean) in [(&HALVES, true), (&HALVES_UNCLEAN, false)] {
                    let found = Classify(&bytes, halves).run(Portable);
                    for instructions in [Instructions::Best, Instructions::Avx2] {
                        assert_eq!(
                            with_isa(instructions, Classify(&bytes, halves)),
                            found,
                            "byte {byte:#x} at {place}"
                        );
                    }
                    let white = matches!(byte, b' ' | b'\t' | b'\n' | b'\r') || !clean && matches!(byte, 0x0b | 0x0c);
                    let alone = byte.is_ascii_punctuation() || byte == 0x7f;
                    let unknown = matches!(byte, 0x7f | 0xc2 | 0xcd..=0xcf | 0xd5..);
                    assert_eq!(found.map(|bits| bits >> place & 1 != 0), [white, alone, unknown], "byte {byte:#x}");
                }
            }
        }
    }
}
