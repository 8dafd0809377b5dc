//! Which kind of character each code point is, as the splits see it.
//!
//! In: the Unicode classes of `regex-syntax`. Out: one byte for every code point, the number of its class; a set of
//! classes is a word with a bit for each. Because the table is built from the regex engine's own classes, its Unicode
//! version is the engine's; a test asks the engine about every code point.

use regex_syntax::hir::{Class, HirKind};
use std::sync::OnceLock;

/// A set of classes: bit n is class number n.
pub type Kinds = u32;

/// Upper and title case letters: Lu, Lt.
pub const UPPER: Kinds = 1 << 0;
/// Lower case letters: Ll.
pub const LOWER: Kinds = 1 << 1;
/// `\r` and `\n`.
pub const NEWLINE: Kinds = 1 << 2;
/// White space other than `\r` and `\n`.
pub const BLANK: Kinds = 1 << 3;
/// Digits and other numbers: N.
pub const NUMBER: Kinds = 1 << 4;
const CASELESS_ELSEWHERE: Kinds = 1 << 5;
const MARK_ELSEWHERE: Kinds = 1 << 6;
const PUNCTUATION_ELSEWHERE: Kinds = 1 << 7;
const REST_ELSEWHERE: Kinds = 1 << 8;
// The same four among the characters that deepseek-v3 cuts out of a text first.
const CASELESS_IDEOGRAPHIC: Kinds = 1 << 9;
const MARK_IDEOGRAPHIC: Kinds = 1 << 10;
const PUNCTUATION_IDEOGRAPHIC: Kinds = 1 << 11;
const REST_IDEOGRAPHIC: Kinds = 1 << 12;

/// Letters without case, and modifiers: Lm, Lo.
pub const CASELESS: Kinds = CASELESS_ELSEWHERE | CASELESS_IDEOGRAPHIC;
/// Marks, which combine with the letter before them: M.
pub const MARK: Kinds = MARK_ELSEWHERE | MARK_IDEOGRAPHIC;
/// Punctuation and symbols: P, S.
pub const PUNCTUATION: Kinds = PUNCTUATION_ELSEWHERE | PUNCTUATION_IDEOGRAPHIC;
/// Everything else: controls, formats, private use, unassigned.
pub const REST: Kinds = REST_ELSEWHERE | REST_IDEOGRAPHIC;
/// deepseek-v3's `[一-龥぀-ゟ゠-ヿ]`.
pub const IDEOGRAPHIC: Kinds = CASELESS_IDEOGRAPHIC | MARK_IDEOGRAPHIC | PUNCTUATION_IDEOGRAPHIC | REST_IDEOGRAPHIC;

/// `\p{L}`
pub const LETTER: Kinds = UPPER | LOWER | CASELESS;
/// `\s`
pub const WHITE: Kinds = NEWLINE | BLANK;
/// `[^\s\p{L}\p{N}]`
pub const SYMBOL: Kinds = PUNCTUATION | REST | MARK;
/// Every character; the end of a text is of no kind.
pub const ANY: Kinds = LETTER | WHITE | NUMBER | SYMBOL;

/// Code points, surrogates included so that the index needs no arithmetic.
const CODE_POINTS: usize = 0x11_0000;

/// One byte for each code point. A text touches few of its cache lines, so a second level would save nothing; a word
/// for each, with the bit already in place, would fill twice as many.
pub type Classes = [u8; CODE_POINTS];

/// The table, built on first use (about a millisecond) and shared by all threads.
pub fn classes() -> &'static Classes {
    static TABLE: OnceLock<Box<Classes>> = OnceLock::new();
    TABLE.get_or_init(build)
}

/// The code point of the character at `at` and its length. The text is valid UTF-8.
#[inline(always)]
pub fn decode(text: &[u8], at: usize) -> (usize, usize) {
    let first = text[at] as usize;
    let next = |n: usize| (text[at + n] & 0x3f) as usize;
    if first < 0x80 {
        (first, 1)
    } else if first < 0xe0 {
        ((first & 0x1f) << 6 | next(1), 2)
    } else if first < 0xf0 {
        ((first & 0x0f) << 12 | next(1) << 6 | next(2), 3)
    } else {
        ((first & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3), 4)
    }
}

fn build() -> Box<Classes> {
    let number = |kind: Kinds| kind.trailing_zeros() as u8;
    let table = vec![number(REST_ELSEWHERE); CODE_POINTS].into_boxed_slice();
    let mut table: Box<Classes> = table.try_into().expect("the table was made with CODE_POINTS entries");
    // Newlines come last: they are white space first.
    for (class, kind) in [
        (r"[\p{Lu}\p{Lt}]", UPPER),
        (r"\p{Ll}", LOWER),
        (r"[\p{Lm}\p{Lo}]", CASELESS_ELSEWHERE),
        (r"\p{M}", MARK_ELSEWHERE),
        (r"[\p{P}\p{S}]", PUNCTUATION_ELSEWHERE),
        (r"\p{N}", NUMBER),
        (r"\s", BLANK),
        (r"[\r\n]", NEWLINE),
    ] {
        let hir = regex_syntax::parse(class).expect("a class that regex-syntax knows");
        let HirKind::Class(Class::Unicode(ranges)) = hir.into_kind() else {
            unreachable!("{class} is a Unicode class");
        };
        for range in ranges.ranges() {
            table[range.start() as usize..=range.end() as usize].fill(number(kind));
        }
    }
    for ideographic in ['\u{4e00}'..='\u{9fa5}', '\u{3040}'..='\u{309f}', '\u{30a0}'..='\u{30ff}'] {
        for class in &mut table[*ideographic.start() as usize..=*ideographic.end() as usize] {
            // No letter with case, white space or number is among them.
            *class += number(CASELESS_IDEOGRAPHIC) - number(CASELESS_ELSEWHERE);
        }
    }
    table
}
