//! What BERT's normalizer and pretokenizer do with each code point.
//!
//! In: the four options of the normalizer. Out: one byte of flags for every code point; 0 means that the character is
//! copied as it is. The flags come from the tables that HF `tokenizers` uses (`unicode_categories`, Unicode 8;
//! `unicode-normalization-alignments`, Unicode 9; Rust's `char`), because newer tables give other ids.

use super::Options;
use crate::encode::normalize::{CODE_POINTS, LISTED};
use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::char::{canonical_combining_class, decompose_canonical};

/// White space, which separates words and is dropped.
pub const WHITE: u8 = 1;
/// Punctuation: a word of its own.
pub const PUNCTUATION: u8 = 2;
/// An ideograph: a word of its own.
pub const CJK: u8 = 4;
/// Deleted by the cleaner, before anything else sees it.
pub const DELETED: u8 = 8;
/// A nonspacing mark: deleted after the decomposition.
pub const MARK: u8 = 16;
/// Not a mark that is deleted, but canonical ordering may move it among its neighbours.
pub const REORDERS: u8 = 32;
/// Has a canonical decomposition.
pub const DECOMPOSES: u8 = 64;
/// Has a lower case other than itself.
pub const CASED: u8 = 128;

/// Flags for each code point. A text touches few of its cache lines, so a second level would save nothing.
pub type Classes = [u8; CODE_POINTS];

/// The ranges that BERT's authors took for Chinese. (U+2B820 to U+2B91F are missing in HF `tokenizers` too.)
const IDEOGRAPHS: [std::ops::RangeInclusive<usize>; 8] = [
    0x3400..=0x4dbf,
    0x4e00..=0x9fff,
    0xf900..=0xfaff,
    0x2_0000..=0x2_a6df,
    0x2_a700..=0x2_b73f,
    0x2_b740..=0x2_b81f,
    0x2_b920..=0x2_ceaf,
    0x2_f800..=0x2_fa1f,
];

/// The table for `options`. Takes about 20 ms, nearly all of it in the binary searches of `unicode_categories`.
pub fn build(options: &Options) -> Box<Classes> {
    let table = vec![0; CODE_POINTS].into_boxed_slice();
    let mut table: Box<Classes> = table.try_into().expect("the table was made with CODE_POINTS entries");
    for c in LISTED.into_iter().flatten().filter_map(char::from_u32) {
        table[c as usize] = listed(c, options);
    }
    if options.clean {
        table[0xf_0000..=0xf_fffd].fill(DELETED);
        table[0x10_0000..=0x10_fffd].fill(DELETED);
    }
    if options.chinese {
        // None of these is deleted or white space.
        for range in IDEOGRAPHS {
            table[range].iter_mut().for_each(|class| *class |= CJK);
        }
    }
    table
}

fn listed(c: char, options: &Options) -> u8 {
    if options.clean && is_deleted(c) {
        return DELETED;
    }
    let mut class = 0;
    let mut set = |flag, is: bool| class |= if is { flag } else { 0 };
    set(WHITE, c.is_whitespace());
    set(PUNCTUATION, c.is_ascii_punctuation() || c.is_punctuation());
    if options.strip_accents {
        let mark = c.is_mark_nonspacing();
        set(MARK, mark);
        set(REORDERS, !mark && canonical_combining_class(c) != 0);
        let mut itself = true;
        decompose_canonical(c, |part| itself &= part == c);
        set(DECOMPOSES, !itself);
    }
    set(CASED, options.lowercase && !c.to_lowercase().eq([c]));
    class
}

/// Controls, formats and private use, except the three controls that count as white space. `\x0b`, `\x0c` and U+0085
/// are white space to Rust, but they are deleted first.
fn is_deleted(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r') && (c == '\u{fffd}' || c.is_other())
}
