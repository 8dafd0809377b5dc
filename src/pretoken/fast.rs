//! The named splits by hand: what their regexes do, without a regex.
//!
//! In: a document and a [`Scanner`]. Out: the same pretokens as the regex of that name, for every valid UTF-8 text.
//! A scanner says where the pretoken that starts at a given byte ends; it never needs to know what came before,
//! which is why the loop may hand 64 bytes at a time to `block` and fall back to one pretoken at a time here.
//! Time is linear: a run is read at most three times, however long. The oracle is `reference`.

use super::block::{BLOCK, Block};
use super::classes::{CASELESS, Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, SYMBOL, UPPER, WHITE, classes};

/// One split: where pretokens end, one at a time or many at once.
pub trait Scanner {
    /// The end of the pretoken that starts at `at`, which is inside the text.
    fn end(text: &Text, at: usize) -> usize;

    /// Bit p is set where a pretoken certainly starts p bytes after `at`; a pretoken starts at `at` too, but bit 0
    /// is clear. No bit at all means: ask `end`.
    fn starts(text: &Text, at: usize, block: &Block) -> u64;
}

/// Calls `each` with every pretoken of `text` in order.
#[inline]
pub fn for_each<'t, S: Scanner>(text: &'t str, mut each: impl FnMut(&'t [u8])) {
    let bytes = text.as_bytes();
    let text = Text::new(bytes);
    let mut at = 0;
    let (mut one_by_one_until, mut patience) = (0, BLOCK);
    while at < bytes.len() {
        if at >= one_by_one_until {
            if let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
                let mut starts = S::starts(&text, at, &Block::new(block));
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
            // Where one block gave nothing (a script beyond ASCII, mostly), the next would not either: wait, and longer
            // each time. Without any wait gpt2 on multilingual text ran at 275 MB/s instead of 780.
            one_by_one_until = at + patience;
            patience = (2 * patience).min(16 * BLOCK);
        }
        let end = S::end(&text, at);
        each(&bytes[at..end]);
        at = end;
    }
}

/// A document and the class of its characters. Positions are byte offsets at the start of a character.
pub struct Text<'t> {
    bytes: &'t [u8],
    classes: &'static Classes,
}

impl<'t> Text<'t> {
    /// Of a valid UTF-8 text.
    pub fn new(bytes: &'t [u8]) -> Text<'t> {
        Text { bytes, classes: classes() }
    }

    /// The text.
    pub fn bytes(&self) -> &'t [u8] {
        self.bytes
    }

    /// The class of the character at `at` and its length in bytes; no class and no length at the end.
    #[inline(always)]
    fn class(&self, at: usize) -> (u8, usize) {
        let Some(&first) = self.bytes.get(at) else { return (0, 0) };
        if first < 0x80 {
            return (self.classes[first as usize], 1);
        }
        // The text is valid UTF-8, so the bytes that `first` announces are there.
        let next = |n: usize| (self.bytes[at + n] & 0x3f) as usize;
        let first = first as usize;
        let (code_point, len) = if first < 0xe0 {
            ((first & 0x1f) << 6 | next(1), 2)
        } else if first < 0xf0 {
            ((first & 0x0f) << 12 | next(1) << 6 | next(2), 3)
        } else {
            ((first & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3), 4)
        };
        (self.classes[code_point], len)
    }

    #[inline(always)]
    fn is(&self, at: usize, byte: u8) -> bool {
        self.bytes.get(at) == Some(&byte)
    }

    /// The end of the run of characters of `kinds` that starts at `at`.
    #[inline(always)]
    fn run(&self, mut at: usize, kinds: u8) -> usize {
        loop {
            let (class, len) = self.class(at);
            if class & kinds == 0 {
                return at;
            }
            at += len;
        }
    }

    /// `\p{N}{1,3}`
    #[inline(always)]
    fn three_numbers(&self, mut at: usize) -> usize {
        for _ in 0..3 {
            let (class, len) = self.class(at);
            if class & NUMBER == 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// The length of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at `at`, or 0. With `any_case`, letters of either
    /// case count, and so does U+017F, the long s, whose upper case is S. (No other letter beyond ASCII folds to
    /// one of these; the Kelvin sign folds to k.)
    #[inline(always)]
    pub fn contraction(&self, at: usize, any_case: bool) -> usize {
        if !self.is(at, b'\'') {
            return 0;
        }
        let fold = if any_case { 0x20 } else { 0 };
        let letter = |n: usize| self.bytes.get(at + n).map_or(0, |&byte| byte | fold);
        match letter(1) {
            b's' | b't' | b'm' | b'd' => 2,
            b'r' | b'v' if letter(2) == b'e' => 3,
            b'l' if letter(2) == b'l' => 3,
            _ if any_case && self.is(at + 1, 0xc5) && self.is(at + 2, 0xbf) => 3,
            _ => 0,
        }
    }

    /// `\s+(?!\S)|\s+` at white space: all of the run if the text ends with it, else all but its last character,
    /// which is left to the next pretoken; but a single one stands alone.
    ///
    /// With `lines`, `\s*[\r\n]+` comes first: if the run has a newline, up to and with the last one.
    #[inline(always)]
    fn white(&self, at: usize, lines: bool) -> usize {
        let (mut end, mut last, mut line_end) = (at, at, at);
        loop {
            let (class, len) = self.class(end);
            if class & WHITE == 0 {
                break;
            }
            last = end;
            end += len;
            if class == NEWLINE {
                line_end = end;
            }
        }
        if lines && line_end > at {
            line_end
        } else if end == self.bytes.len() || last == at {
            end
        } else {
            last
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub struct Gpt2;

impl Scanner for Gpt2 {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let contraction = text.contraction(at, false);
        if contraction > 0 {
            return at + contraction;
        }
        let body = at + usize::from(text.is(at, b' '));
        let (class, len) = text.class(body);
        for kinds in [LETTER, NUMBER, SYMBOL] {
            if class & kinds != 0 {
                return text.run(body + len, kinds);
            }
        }
        text.white(at, false)
    }

    #[inline(always)]
    fn starts(text: &Text, at: usize, block: &Block) -> u64 {
        block.gpt2_starts(|offset| text.contraction(at + offset, false))
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub struct Cl100k;

impl Scanner for Cl100k {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let contraction = text.contraction(at, true);
        if contraction > 0 {
            return at + contraction;
        }
        let (class, len) = text.class(at);
        if class & LETTER != 0 {
            return text.run(at + len, LETTER);
        }
        if class == NUMBER {
            return text.three_numbers(at);
        }
        let body = at + len;
        let (next, next_len) = text.class(body);
        if class != NEWLINE && next & LETTER != 0 {
            return text.run(body + next_len, LETTER);
        }
        if class & SYMBOL != 0 || text.is(at, b' ') && next & SYMBOL != 0 {
            return text.run(text.run(body, SYMBOL), NEWLINE);
        }
        text.white(at, true)
    }

    #[inline(always)]
    fn starts(text: &Text, at: usize, block: &Block) -> u64 {
        block.cl100k_starts(|offset| text.contraction(at + offset, true))
    }
}

/// A word of o200k's first two alternatives, with neither the character before it nor the contraction after it:
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` or the same with `+` and `*` exchanged.
enum Word {
    /// The first alternative matches up to here.
    First(usize),
    /// Only the second one does: upper case letters and nothing else.
    Second(usize),
    /// Neither does.
    None,
}

/// Caseless letters and marks belong to both halves of a word. The first half takes all it can, and gives back
/// if the second half would be empty: then the word ends after the last caseless one, and capitals beyond it are
/// left for the next pretoken.
#[inline(always)]
fn word(text: &Text, at: usize) -> Word {
    let (mut end, mut last_caseless) = (at, at);
    loop {
        let (class, len) = text.class(end);
        if class & (CASELESS | MARK) != 0 {
            end += len;
            last_caseless = end;
        } else if class == UPPER {
            end += len;
        } else if class == LOWER {
            return Word::First(text.run(end + len, LOWER | CASELESS | MARK));
        } else if last_caseless > at {
            return Word::First(last_caseless);
        } else if end > at {
            return Word::Second(end);
        } else {
            return Word::None;
        }
    }
}

/// `P?U*L+C?|P?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where P is
/// `[^\r\n\p{L}\p{N}]`, U capitals, L small letters, both with caseless letters and marks, and C a contraction.
pub struct O200k;

impl Scanner for O200k {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let (class, len) = text.class(at);
        if class == NUMBER {
            return text.three_numbers(at);
        }
        let body = at + len;
        if class != NEWLINE {
            let word_start = if class & LETTER != 0 { at } else { body };
            let word_end = match word(text, word_start) {
                Word::First(end) => end,
                // A mark is both: the P of a word, and a word itself. The first alternative is tried either way
                // before the second one is, so a mark before capitals alone, or before nothing, is a word itself.
                Word::Second(_) | Word::None if class == MARK => body,
                Word::Second(end) => end,
                Word::None => at,
            };
            if word_end > at {
                return word_end + text.contraction(word_end, true);
            }
        }
        if class & SYMBOL != 0 || text.is(at, b' ') && text.class(body).0 & SYMBOL != 0 {
            let mut end = text.run(body, SYMBOL);
            while text.class(end).0 == NEWLINE || text.is(end, b'/') {
                end += 1;
            }
            return end;
        }
        debug_assert!(class & WHITE != 0);
        text.white(at, true)
    }

    #[inline(always)]
    fn starts(text: &Text, at: usize, block: &Block) -> u64 {
        block.o200k_starts(|offset| text.contraction(at + offset, true))
    }
}
