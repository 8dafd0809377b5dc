//! Which kind of character each code point is, as the splits see it.
//!
//! In: the Unicode classes of `regex-syntax`. Out: one byte for every code point, with exactly one bit set.
//! Because the table is built from the regex engine's own classes, its Unicode version is the engine's; a test
//! asks the engine about every code point.

use regex_syntax::hir::{Class, HirKind};
use std::sync::OnceLock;

/// Upper and title case letters: Lu, Lt.
pub const UPPER: u8 = 1;
/// Lower case letters: Ll.
pub const LOWER: u8 = 2;
/// Letters without case, and modifiers: Lm, Lo.
pub const CASELESS: u8 = 4;
/// Marks, which combine with the letter before them: M.
pub const MARK: u8 = 8;
/// Digits and other numbers: N.
pub const NUMBER: u8 = 16;
/// `\r` and `\n`.
pub const NEWLINE: u8 = 32;
/// White space other than `\r` and `\n`.
pub const BLANK: u8 = 64;
/// Everything else: punctuation, symbols, controls, unassigned.
pub const OTHER: u8 = 128;

/// `\p{L}`
pub const LETTER: u8 = UPPER | LOWER | CASELESS;
/// `\s`
pub const WHITE: u8 = NEWLINE | BLANK;
/// `[^\s\p{L}\p{N}]`
pub const SYMBOL: u8 = OTHER | MARK;

/// Code points, surrogates included so that the index needs no arithmetic.
const CODE_POINTS: usize = 0x11_0000;

/// One byte for each code point. A text touches few of its cache lines, so a second level would save nothing.
pub type Classes = [u8; CODE_POINTS];

/// The table, built on first use (about a millisecond) and shared by all threads.
pub fn classes() -> &'static Classes {
    static TABLE: OnceLock<Box<Classes>> = OnceLock::new();
    TABLE.get_or_init(build)
}

fn build() -> Box<Classes> {
    let table = vec![OTHER; CODE_POINTS].into_boxed_slice();
    let mut table: Box<Classes> = table.try_into().expect("the table was made with CODE_POINTS entries");
    // Newlines come last: they are white space first.
    for (class, bit) in [
        (r"[\p{Lu}\p{Lt}]", UPPER),
        (r"\p{Ll}", LOWER),
        (r"[\p{Lm}\p{Lo}]", CASELESS),
        (r"\p{M}", MARK),
        (r"\p{N}", NUMBER),
        (r"\s", BLANK),
        (r"[\r\n]", NEWLINE),
    ] {
        let hir = regex_syntax::parse(class).expect("a class that regex-syntax knows");
        let HirKind::Class(Class::Unicode(ranges)) = hir.into_kind() else {
            unreachable!("{class} is a Unicode class");
        };
        for range in ranges.ranges() {
            table[range.start() as usize..=range.end() as usize].fill(bit);
        }
    }
    table
}
